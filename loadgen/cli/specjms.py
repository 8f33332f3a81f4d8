"""`loadgen specjms horizontal | vertical | freeform`, and `loadgen specjms bundle RUN`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.cases import check_power_logs, play, show, tell
from loadgen.cli.options import Flags, case_options, read_scenario, run_options, with_options
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.control.coordinator import RunResult
    from loadgen.workload.scenario import Scenario

__all__ = ["app"]

_TOPOLOGIES = {
    "horizontal": "Scale by locations: BASE supermarkets, traffic of each location fixed.",
    "vertical": "Scale by traffic: ten supermarkets, rates that grow with BASE.",
    "freeform": "Locations, rates, sizes and options as the scenario says.",
}
_REPEAT = inspect.Parameter(
    "repeat",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--repeat", help="Run a second time, into DIR-repeat, to show reproducibility."
        ),
    ],
)

app = typer.Typer(
    help="The supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.\n\n"
    "Example: loadgen specjms horizontal --base 100 --duration 60",
    add_completion=False,
)


def _command(topology: str) -> Callable[..., int]:
    def command(given: Flags) -> int:
        scenario = read_scenario("specjms", {**given, "topology": topology})
        check_power_logs(scenario)
        result, status = _played(scenario, given["out"], given)
        if not given["repeat"] or not result.measured or result.interrupted:
            return status
        again = result.directory.with_name(f"{result.directory.name}-repeat")
        if not given["quiet"]:
            tell(["", f"once more, for reproducibility: {again}"])
        _, repeated = _played(scenario, again, given)
        return max(status, repeated)

    example = "--scenario my.toml" if topology == "freeform" else "--base 100 --duration 60"
    doc = f"{_TOPOLOGIES[topology]}\n\nExample: loadgen specjms {topology} {example}"
    fields = [p for p in case_options("specjms") if p.name != "topology"]
    return with_options(command, [*fields, *run_options(), _REPEAT], doc)


def _played(scenario: "Scenario", directory: Path | None, given: Flags) -> tuple["RunResult", int]:
    """One run and its score card."""
    result = play(scenario, directory, quiet=given["quiet"])
    return result, show(result, scenario, as_json=given["json_"], quiet=given["quiet"])


@app.command("bundle")
def bundle(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    repeat: Annotated[
        Path | None,
        typer.Option(
            "--repeat-run",
            metavar="DIR",
            help="The reproducibility run. [default: RUN-repeat where there is one]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The archive. [default: RUN.jar]", show_default=False
        ),
    ] = None,
) -> int:
    """Put a run and its repetition into one archive, with the disclosure that a tool can fill.

    Example: loadgen specjms bundle runs/20261120T233000Z-specjms
    """
    from loadgen.control.disclosure import write_bundle

    print(write_bundle(run, repeat, out))
    return 0


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError(f"specjms: which topology? allowed: {', '.join(_TOPOLOGIES)}, or bundle")


for _topology, _summary in _TOPOLOGIES.items():
    app.command(_topology, short_help=_summary)(_command(_topology))
