"""Command-line options made from the scenario's fields, and the scenario made from options.

One declaration of a field (`plan.scenario`) is its option, its key in a file and its help
text. Values stay text until the scenario reads them, so that one rule checks them all.
"""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cases.case import Case
from loadgen.cases.registry import CASES, RENAMED, build_scenario
from loadgen.cli.help import COMMON, HOSTS, RESULTS, GroupedCommand, HelpAll
from loadgen.errors import ScenarioError, UsageError
from loadgen.plan.fields import FieldKind, Flag
from loadgen.plan.scenario import Scenario, read_toml
from loadgen.run.redaction import printable, scrub

Flags = Mapping[str, Any]
"""Options of a command line: text, a list of texts or a boolean; None if absent."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]

_FILE_LIMIT_BYTES = 4 << 20
_FIRST_LINE_BYTES = 1 << 10


def field_option(field: FieldKind, panel: str) -> inspect.Parameter:
    """Return the option of a scenario's field, listed in this panel unless it is a common one.

    Its value stays text.
    """
    flag = isinstance(field, Flag)
    annotation: Any = list[str] | None if field.repeatable else str | None
    default = field.shown_default
    option = typer.Option(
        *filter(None, (field.short,)),
        f"{field.option}/--no-{field.option[2:]}" if flag else field.option,
        help=field.description + (f" [default: {default}]" if default else ""),
        metavar=None if flag else field.metavar,
        show_default=False,
        rich_help_panel=COMMON if field.everyday else panel,
    )
    return parameter(field.name, bool | None if flag else annotation, None, option)


def option_of(name: str) -> str:
    """Return the option of a parameter of this name."""
    return f"--{name.strip('_').replace('_', '-')}"


def option(
    name: str,
    annotation: Any,
    default: Any = None,
    *,
    short: str = "",
    panel: str = RESULTS,
    **declared: Any,
) -> inspect.Parameter:
    """Return a keyword parameter with its option; `declared` is for `typer.Option`."""
    words = filter(None, (short, option_of(name)))
    declared["rich_help_panel"] = panel
    return parameter(name, annotation, default, typer.Option(*words, **declared))


def parameter(name: str, annotation: Any, default: Any, option: Any) -> inspect.Parameter:
    """Return a keyword parameter that typer makes an option of."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def case_options(case: Case[Any]) -> list[inspect.Parameter]:
    """Return the options that choose a scenario of this case, those of every day first."""
    sources = [
        option(
            "scenario",
            Path | None,
            panel=COMMON,
            help="Scenario file in TOML, with the same names. Options override it; "
            "scenarios/fanin.toml and others come with the program.",
            metavar="FILE",
        ),
        option(
            "set_",
            list[str] | None,
            panel="Run",
            help="Any field of the scenario by its name.",
            metavar="NAME=VALUE",
        ),
    ]
    fields = sorted(case.scenario.fields().values(), key=lambda one: one.everyday or math.inf)
    title = case.name.upper()
    known = {field.name for field in fields}
    return [
        *(field_option(field, field.panel or title) for field in fields),
        *(option(old, str | None, hidden=True) for old, new in RENAMED.items() if new in known),
        *sources,
    ]


def json_option() -> inspect.Parameter:
    """Return `--json`."""
    return option("json_", bool, False, panel=COMMON, help="Print the result as JSON.")


def long_option() -> inspect.Parameter:
    """Return `--long`."""
    return option("long", bool, False, help="Print all figures, also next to the published ones.")


def run_options() -> list[inspect.Parameter]:
    """Return the options of every run, besides its scenario's."""
    return [
        option(
            "out",
            Path | None,
            short="-o",
            panel=COMMON,
            help="Run directory. It must be empty or not exist. [default: runs/TIME-CASE]",
            metavar="DIR",
            show_default=False,
        ),
        json_option(),
        option("quiet", bool, False, help="Show no progress and a result of two lines."),
        *_cluster_options(),
    ]


def spark_conf_option() -> inspect.Parameter:
    """Return `--spark-conf`, for commands that start Spark."""
    return option(
        "spark_conf",
        list[str] | None,
        panel=HOSTS,
        metavar="NAME=VALUE",
        help="Any setting of Spark, as spark.executor.cores=16.",
    )


def _cluster_options() -> list[inspect.Parameter]:
    """Return the options for the hosts of a run."""
    return [
        option(
            "spark_master",
            str | None,
            panel=HOSTS,
            metavar="URL",
            help="Spark cluster whose executors generate the load: spark://HOST:7077, yarn, "
            "k8s://HOST:443 or local-cluster[HOSTS,CORES,MIB]. [default: this host]",
            show_default=False,
        ),
        option(
            "listen",
            str | None,
            panel=HOSTS,
            metavar="HOST:PORT",
            help="Address of this host at which the agents of --hosts connect: those that run "
            "loadgen agent --join, or that Spark starts.",
        ),
        option(
            "secret",
            str | None,
            panel=HOSTS,
            metavar="env:NAME|file:PATH",
            help="Secret that loadgen agent has, too.",
        ),
        option(
            "hosts_wait",
            str | None,
            short="--spark-wait",
            panel=HOSTS,
            metavar="TIME",
            help="Longest wait for agents, for Spark's master and for its executors. "
            "[default: 30s]",
            show_default=False,
        ),
        spark_conf_option(),
        option(
            "ship",
            bool,
            False,
            panel=HOSTS,
            help="Send this Python environment to the executors, packed by venv-pack or "
            "conda-pack.",
        ),
    ]


def with_options(
    function: Callable[[Flags], int], parameters: Sequence[inspect.Parameter], doc: str
) -> Callable[..., int]:
    """Return a command with these options and `--help-all`.

    It calls `function` with one mapping of the options.
    """

    def command(**flags: Any) -> int:
        return function(flags)

    listed = [*parameters, _HELP_ALL]
    command.__doc__ = doc
    command.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in listed}
    return command


_HELP_ALL = inspect.Parameter(
    "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll
)


def help_of(case: Case[Any], verb: str = "") -> str:
    """Return the help text of a case's command, or of another command for it: an example, too."""
    written = "Numbers may be 10k or 2.5M, times 500ms or 5m."
    command = case.example.removeprefix("loadgen ")
    return (
        f"{case.summary} {written}\n\nExample: {' '.join(filter(None, ('loadgen', verb, command)))}"
    )


def require_command(app: typer.Typer, question: str) -> None:
    """Answer a line that names no command of `app` with the question, as a usage error."""

    def root(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            raise UsageError(question)

    app.callback(invoke_without_command=True)(root)


class _LazyGroup(typer.core.TyperGroup):
    """A group that makes a command when a line names it: all options together take 0.4 s."""

    makers: dict[str, Callable[[], Callable[..., int] | typer.Typer]]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.name in self.makers:
            command = self.made(command.name)
        return name, command, rest

    def made(self, name: str) -> Any:
        """Return click's command, or group of commands, with its options."""
        made = self.makers[name]()
        app = made if isinstance(made, typer.Typer) else typer.Typer(add_completion=False)
        if app is not made:
            app.command(name, cls=GroupedCommand)(made)
        app.rich_markup_mode = None
        command = typer.main.get_command(app)
        command.name = name
        return command


def group(**declared: Any) -> typer.Typer:
    """Return a group of commands for `add_command`; `declared` is for `typer.Typer`."""
    return typer.Typer(cls=type("LazyGroup", (_LazyGroup,), {"makers": {}}), **declared)


def add_command(
    app: typer.Typer,
    name: str,
    summary: str,
    make: Callable[[], Callable[..., int] | typer.Typer],
) -> None:
    """Add a command or a group, which `make` makes when a line names it."""
    app.command(name, short_help=summary)(lambda: None)
    app.info.cls.makers[name] = make  # type: ignore[union-attr]


def cases_app(
    name: str, help_text: str, command: Callable[[Case[Any]], Callable[..., int]]
) -> typer.Typer:
    """Return the group of this name with a command for each case, one of which must be named."""
    app = group(help=help_text, add_completion=False)
    require_command(app, f"{name}: which case? allowed: {', '.join(CASES)}")
    for case in CASES.values():
        add_command(app, case.name, case.summary, partial(command, case))
    return app


def named_values(pairs: Sequence[str]) -> dict[str, object]:
    """Return the values of `--set NAME=VALUE`; raises ScenarioError for other forms or repeats."""
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ScenarioError("--set: write it as NAME=VALUE, for example --set rate=10k")
        if name in values:
            raise ScenarioError(f"{name[:60]!r}: given twice with --set")
        values[name] = value
    return values


def read_scenario(case: Case[Any], flags: Flags) -> Scenario:
    """Return the scenario of options, `--set` and `--scenario`; raises ScenarioError."""
    known = case.scenario.fields()
    chosen = {
        name: value
        for name, value in flags.items()
        if (name in known or name in RENAMED) and value is not None and value != []
    }
    for name, value in named_values(flags.get("set_") or []).items():
        if name in chosen:
            raise ScenarioError(f"{name}: given as an option and with --set; give it once")
        chosen[name] = value
    path = flags.get("scenario")
    scenario = build_scenario(case.name, None if path is None else _file(path), chosen)
    clients = getattr(scenario, "clients_file", None)
    if clients is not None:
        with suppress(OSError), Path(clients).open("rb") as file:
            if b"password" in file.readline(_FIRST_LINE_BYTES):
                _warn_of_readers(Path(clients))
    return scenario


def _warn_of_readers(path: Path) -> None:
    """Warn if other users can read a file with passwords."""
    from loadgen.run.secrets import readable_by_others

    if readable_by_others(path):
        shown = printable(str(path), 200)
        print(
            f"loadgen: other users may read {shown}, which has a password; use chmod 600 {shown}",
            file=sys.stderr,
        )


_SCENARIOS = "scenarios"


def _file(path: Path) -> dict[str, object]:
    shown = ascii(str(path)[:200])
    if path.parts[:1] == (_SCENARIOS,) and not path.exists():
        from loadgen.run.tuning import shipped

        path = shipped(_SCENARIOS).joinpath(*path.parts[1:])
    try:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise ScenarioError(f"scenario file {shown} is too large to be one")
        text = path.read_bytes().decode("utf-8")
        if scrub(text, ()) != text:
            _warn_of_readers(path)
    except OSError as error:
        reason = (error.strerror or "cannot be opened").lower()
        raise ScenarioError(f"scenario file {shown} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"scenario file {shown} is not UTF-8 text") from None
    return read_toml(text)
