"""`loadgen specjms horizontal | vertical | freeform`, and `loadgen specjms bundle RUN`."""

import inspect
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.cases import check_power_logs, play, show, tell
from loadgen.cli.options import Flags, case_options, read_scenario, run_options, with_options
from loadgen.errors import RunDirectoryError, UsageError

if TYPE_CHECKING:
    from loadgen.scorecard.model import ScoreCard
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
            "--repeat",
            help="Run a second time, into DIR-repeat, to show reproducibility; with --json the "
            "result is an array of both score cards.",
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
        if given["repeat"]:
            return _twice(scenario, given)
        result = play(scenario, given["out"], quiet=given["quiet"])
        return show(result, scenario, as_json=given["json_"], quiet=given["quiet"])

    example = "--scenario my.toml" if topology == "freeform" else "--base 100 --duration 60"
    doc = f"{_TOPOLOGIES[topology]}\n\nExample: loadgen specjms {topology} {example}"
    fields = [p for p in case_options("specjms") if p.name != "topology"]
    return with_options(command, [*fields, *run_options(), _REPEAT], doc)


def _twice(scenario: "Scenario", given: Flags) -> int:
    """A run and its repetition, each with its score card, and how the two compare."""
    from loadgen.control.disclosure import repeat_directory
    from loadgen.control.rundir import default_directory, require_free
    from loadgen.scorecard.to_json import to_json_array

    directory = given["out"] or default_directory(datetime.now(UTC), "specjms")
    again = repeat_directory(directory)
    for path in (directory, again):
        # Both before either: the main run may take an hour.
        require_free(path)
    quiet, as_json = given["quiet"], given["json_"]
    cards: list[ScoreCard] = []
    try:
        result = play(scenario, directory, quiet=quiet)
        status = show(result, scenario, as_json=as_json, quiet=quiet, cards=cards)
        if not result.measured or result.interrupted:
            return status
        if not quiet:
            tell(["", f"once more, for reproducibility: {again}"])
        result = play(scenario, again, quiet=quiet)
        status = max(status, show(result, scenario, as_json=as_json, quiet=quiet, cards=cards))
    finally:
        # Also where the repetition could not be played: what was measured is not withheld.
        if as_json and cards:
            sys.stdout.write(to_json_array(cards).decode())
            sys.stdout.flush()
    if not as_json:
        print("\n".join(["", *_compared(directory, again)]))
    elif not quiet:
        tell(["", *_compared(directory, again)])
    return status


def _compared(directory: Path, again: Path) -> list[str]:
    """The run and its repetition side by side, as one short paragraph."""
    from loadgen.control.disclosure import read_played
    from loadgen.specjms.repetition import comparison

    try:
        told = comparison(read_played(directory), read_played(again))
    except RunDirectoryError as error:
        told = f"Run and repetition cannot be compared: {error}"
    return wrap(told, 100)


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

    A run that was changed since it ended is refused, and a second run that is no repetition of the
    first: one of the same scenario and length, whose measurement does not overlap. The disclosure
    says where the run is INVALID or not sealed and where the repetition is worse.

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
