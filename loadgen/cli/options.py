"""Command-line options made from the scenario's fields, and the scenario made from options."""

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cases.case import Case
from loadgen.cases.registry import CASES, RENAMED, build_scenario, require_groups
from loadgen.cli.help import COMMON, HELP_ALL, GroupedCommand, HelpInOrder
from loadgen.errors import CannotRunError, ScenarioError, UsageError
from loadgen.plan.fields import Count, FieldKind, Flag, option_of
from loadgen.plan.scenario import FILE_LIMIT_CHARACTERS, Scenario, read_toml
from loadgen.plan.units import shown
from loadgen.run.redaction import scrub
from loadgen.sentences import CLI_TEXT, printable, read_table

Flags = Mapping[str, Any]
"""Options of a command line: text, a list of texts or a boolean; None if absent."""

_FIRST_LINE_BYTES = 1 << 10


def field_option(field: FieldKind, panel: str) -> inspect.Parameter:
    """Return the option of a scenario's field, listed in this panel unless it is a common one."""
    flag = isinstance(field, Flag)
    annotation: Any = list[str] | None if field.repeatable else str | None
    default = field.shown_default
    option = typer.Option(
        *filter(None, (field.short,)),
        f"{field.option}/--no-{field.option[2:]}" if flag else field.option,
        help=field.text + (f" [default: {default}]" if default else ""),
        metavar=None if flag else field.metavar,
        show_default=False,
        rich_help_panel=COMMON if field.everyday else panel,
    )
    return parameter(field.name, bool | None if flag else annotation, None, option)


_TYPES: Mapping[str, Any] = {
    "text": str | None,
    "texts": list[str] | None,
    "path": Path | None,
    "paths": list[Path],
    "flag": bool,
    "integer": Any,
    "number": float | None,
}
_SHOWN = frozenset(("metavar", "help", "show_default"))


@cache
def _tables() -> Mapping[str, Any]:
    return read_table("loadgen.cli", "options.toml")


def command_options() -> set[str]:
    """Return the names of all options that are not fields of a scenario."""
    return {
        name.strip("_")
        for title, table in _tables().items()
        if title != "help"
        for name, row in table.items()
        if not row.get("argument")
    }


def help_text(name: str, **values: str) -> str:
    """Return a command's help; `values` are those of the names in braces."""
    text: str = _tables()["help"][name]
    return text.strip().format(**values)


def declared(*tables: str) -> list[inspect.Parameter]:
    """Return the options in tables of `options.toml`; of two with one name the first."""
    rows: dict[str, Mapping[str, Any]] = {}
    for name, row in chain.from_iterable(_tables()[table].items() for table in tables):
        rows.setdefault(name, row)
    return [_declared(name, row) for name, row in rows.items()]


def _declared(name: str, row: Mapping[str, Any]) -> inspect.Parameter:
    if row.get("field"):
        return field_option(Scenario.fields()[name], row["panel"])
    values = {**_tables()["shared"].get(row.get("like"), {}), **row}
    annotation = _TYPES[values["type"]]
    default = values.get("default", False if annotation is bool else None)
    if values.get("required"):
        default = inspect.Parameter.empty
    if values.get("argument"):
        argument = typer.Argument(metavar=values["metavar"], help=values["help"])
        return parameter(name, annotation, default, argument)
    words = (
        *filter(None, (values.get("short"),)),
        *values.get("names", (option_of(name.strip("_")),)),
    )
    shown = {key: values[key] for key in _SHOWN & values.keys()}
    if values["type"] == "integer":
        shown["parser"] = partial(_count, Count(values["min"], values["max"]))
    option = typer.Option(*words, rich_help_panel=values.get("panel"), **shown)
    return parameter(name, annotation, default, option)


def _count(kind: Count, text: str) -> int:
    try:
        return kind.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; use {kind.allowed}") from None


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
    fields = sorted(case.scenario.fields().values(), key=lambda one: one.everyday or math.inf)
    title = case.name.upper()
    names = {field.name for field in fields}
    return [
        *(field_option(field, field.panel or title) for field in fields),
        *(
            parameter(old, str | None, None, typer.Option(option_of(old), hidden=True))
            for old, new in RENAMED.items()
            if new in names
        ),
        *declared("file_case" if case.takes_file else "case"),
    ]


def with_options(
    function: Callable[[Flags], int], parameters: Sequence[inspect.Parameter], doc: str = ""
) -> Callable[..., int]:
    """Return a command that calls `function` with a mapping of these options; `doc` is its help."""

    def command(**flags: Any) -> int:
        return function(flags)

    listed = [*parameters]
    details = [getattr(p.annotation, "__metadata__", (None,))[0] for p in parameters]
    if any(getattr(detail, "rich_help_panel", None) for detail in details):
        listed.append(parameter("help_all", bool, False, HELP_ALL))
    command.__doc__ = doc or function.__doc__
    command.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in listed}
    return command


def command(
    name: str, function: Callable[[Flags], int], options: Sequence[inspect.Parameter] = ()
) -> Callable[..., int]:
    """Return a command with the help and, unless others are named, the options of its tables."""
    return with_options(function, options or declared(name), help_text(name))


def help_of(case: Case[Any], verb: str = "") -> str:
    """Return the help text of a case's command, or of another command for it, with an example."""
    written = "Write numbers as 10k or 2.5M, times as 500ms or 5m."
    command = case.example.removeprefix("loadgen ")
    return (
        f"{case.summary} {written}\n\nExample: {' '.join(filter(None, ('loadgen', verb, command)))}"
    )


def require_command(app: typer.Typer, name: str, missing: str, choices: Iterable[str]) -> None:
    """Refuse a line that names no command of `app`; list the choices for the missing word."""

    def root(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            raise UsageError(CLI_TEXT.NO_COMMAND(name=name, missing=missing, choices=(*choices,)))

    app.callback(invoke_without_command=True)(root)


class _LazyGroup(HelpInOrder, typer.core.TyperGroup):
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
    """Return an empty group of commands, to which `add_command` adds."""
    return typer.Typer(cls=type("LazyGroup", (_LazyGroup,), {"makers": {}}), **declared)


def add_command(
    app: typer.Typer,
    name: str,
    make: Callable[[], Callable[..., int] | typer.Typer],
    summary: str = "",
) -> None:
    """Add a command or a group, which `make` makes when a line names it."""
    app.command(name, short_help=summary or help_text(name).partition("\n\n")[0])(lambda: None)
    app.info.cls.makers[name] = make  # type: ignore[union-attr]


def add_plain(app: typer.Typer, name: str, function: Callable[[Flags], int], table: str) -> None:
    summary = help_text(table).partition("\n\n")[0]
    add_command(app, name, partial(command, table, function), summary)


def cases_app(name: str, command: Callable[[Case[Any]], Callable[..., int]]) -> typer.Typer:
    """Return the group of this name with a command for each case, one of which must be named."""
    app = group(help=help_text(name), add_completion=False)
    require_command(app, name, "case", CASES)
    for case in CASES.values():
        add_command(app, case.name, partial(command, case), case.summary)
    return app


def named_values(pairs: Sequence[str], form: str = "") -> dict[str, object]:
    """Return the values of `--set NAME=VALUE`; raises ScenarioError for other forms or repeats."""
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ScenarioError(form or CLI_TEXT.SET_FORM())
        if name in values:
            raise ScenarioError(CLI_TEXT.SET_TWICE(name=name[:60]))
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
            raise ScenarioError(CLI_TEXT.OPTION_AND_SET(name=name))
        chosen[name] = value
    if flags.get("long") and flags.get("quiet"):
        raise UsageError(CLI_TEXT.LONG_AND_QUIET())
    path = flags.get("scenario")
    keys = None if path is None else _file(path)
    named = (keys or {}).get("case", case.name) if case.takes_file else case.name
    scenario = build_scenario(str(named), keys, chosen)
    require_groups(scenario)
    tables = (*getattr(scenario, "tables", ()), scenario.plain())
    for clients in filter(None, (table.get("clients_file") for table in tables)):
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
            f"loadgen: other users can read {shown}, which has a password; use chmod 600 {shown}",
            file=sys.stderr,
        )


def write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file that must not exist; raises CannotRunError."""
    try:
        # The mode is there from the first byte: the file may hold passwords.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotRunError(CLI_TEXT.NOT_WRITTEN(path=path, reason=error)) from None


_SCENARIOS = "scenarios"


def _file(path: Path) -> dict[str, object]:
    name = shown(str(path), 200)
    if path.parts[:1] == (_SCENARIOS,) and not path.exists():
        from loadgen.run.tuning import shipped

        path = shipped(_SCENARIOS).joinpath(*path.parts[1:])
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(FILE_LIMIT_CHARACTERS + 1)  # a device such as /dev/zero has no end
        if scrub(text, ()) != text:
            _warn_of_readers(path)
    except OSError as error:
        raise ScenarioError(CLI_TEXT.UNREADABLE_SCENARIO(name=name, reason=error)) from None
    except UnicodeDecodeError:
        raise ScenarioError(CLI_TEXT.SCENARIO_NOT_UTF_8(name=name)) from None
    return read_toml(text)
