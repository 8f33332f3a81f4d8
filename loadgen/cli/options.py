"""Command-line options made from the scenario's fields, and what they give back.

One declaration of a field (`workload.scenario`) is its option, its key in a file and its help
text. Values stay text until the scenario reads them, so that every way to give one is judged by
the same rule.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.errors import ScenarioError
from loadgen.workload.cases import CASE_INFO
from loadgen.workload.fields import FieldSpec
from loadgen.workload.scenario import (
    CASES,
    Case,
    Scenario,
    build_scenario,
    fields_of,
    read_toml,
)

__all__ = ["Flags", "case_options", "named_values", "read_scenario", "with_options"]

Flags = Mapping[str, Any]
"""Options as given: text, a list of texts or a boolean; None for what was not."""

NOT_YET = ("hosts",)
"""Fields of the scenario that this version cannot play: they get no option."""

_METAVARS = {
    "count": "N",
    "rate": "N",
    "ratio": "N",
    "seconds": "TIME",
    "size": "BYTES",
    "network": "CIDR",
}

_FILE_LIMIT_BYTES = 4 << 20


def _metavar(spec: FieldSpec) -> str:
    if spec.kind == "choice":
        return "|".join(spec.choices)
    return _METAVARS.get(spec.kind) or spec.unit.upper() or "TEXT"


def _default(spec: FieldSpec) -> str:
    """What an option that is not given means, as the end of its help."""
    if spec.default is None:
        return f" [default: {spec.absent}]" if spec.absent else ""
    if isinstance(spec.default, bool):
        return f" [default: {'on' if spec.default else 'off'}]"
    if isinstance(spec.default, tuple):
        if spec.kind == "size":
            low, high = spec.default
            return f" [default: {low if low == high else f'{low}-{high}'}]"
        return f" [default: {', '.join(spec.default)}]" if spec.default else ""
    if isinstance(spec.default, float):
        return f" [default: {spec.default:g}]"
    return f" [default: {spec.default}]"


def _panel(spec: FieldSpec) -> str:
    if spec.name.startswith("tls_"):
        return "TLS"
    if spec.name.startswith("pdu") or spec.name == "rack_units":
        return "Power"
    if spec.name in (
        "broker",
        "mqtt",
        "connect_timeout",
        "keep_alive",
        "source_address",
        "broker_pid",
    ):
        return "Broker and connections"
    return "Load" if spec.cases != CASES or spec.name in ("rate", "qos") else "Run"


def _parameter(spec: FieldSpec) -> inspect.Parameter:
    names = [spec.option]
    annotation: Any = str | None
    if spec.kind == "flag":
        names = [f"{spec.option}/--no-{spec.option[2:]}"]
        annotation = bool | None
    elif spec.repeatable:
        annotation = list[str] | None
    option = typer.Option(
        *names,
        help=spec.description + _default(spec),
        metavar=None if spec.kind == "flag" else _metavar(spec),
        show_default=False,
        rich_help_panel=_panel(spec),
    )
    return inspect.Parameter(
        spec.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[annotation, option],
    )


def _plain(name: str, annotation: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def case_options(case: Case) -> list[inspect.Parameter]:
    """The options that choose a scenario of this case."""
    own = [
        _plain(
            "scenario",
            Path | None,
            None,
            typer.Option(
                "--scenario",
                help="TOML file with the same names; options win over it.",
                metavar="FILE",
            ),
        ),
        _plain(
            "set_",
            list[str] | None,
            None,
            typer.Option(
                "--set", help="Any field of the scenario by its name.", metavar="NAME=VALUE"
            ),
        ),
    ]
    fields = [spec for spec in fields_of(case) if spec.name not in NOT_YET]
    return [*map(_parameter, sorted(fields, key=lambda spec: spec.cases == CASES)), *own]


def json_option() -> inspect.Parameter:
    """`--json`."""
    return _plain(
        "json_", bool, False, typer.Option("--json", help="The result as JSON on stdout.")
    )


def run_options() -> list[inspect.Parameter]:
    """The options that every run takes beside its scenario's."""
    return [
        _plain(
            "out",
            Path | None,
            None,
            typer.Option(
                "--out",
                help="Run directory; must not exist or be empty. [default: runs/TIME-CASE]",
                metavar="DIR",
                show_default=False,
            ),
        ),
        json_option(),
        _plain("quiet", bool, False, typer.Option("--quiet", help="Show no progress.")),
    ]


def with_options(
    function: Callable[[Flags], int], parameters: Sequence[inspect.Parameter], doc: str
) -> Callable[..., int]:
    """`function` as a command with these options; it gets them as one mapping."""

    def command(**given: Any) -> int:
        return function(given)

    command.__doc__ = doc
    command.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def help_of(case: Case) -> str:
    """Help text of a case's command: what it is and an example."""
    info = CASE_INFO[case]
    return f"{info.summary}\n\nExample: {info.example}"


def named_values(pairs: Sequence[str]) -> dict[str, object]:
    """The values of `--set NAME=VALUE`; raises ScenarioError for another form or a repetition."""
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


def read_scenario(case: Case, given: Flags) -> Scenario:
    """The scenario that options, `--set` and `--scenario` make; raises ScenarioError."""
    known = {spec.name for spec in fields_of(case)}
    flags = {
        name: value
        for name, value in given.items()
        if name in known and value is not None and value != []
    }
    for name, value in named_values(given.get("set_") or []).items():
        if name in flags:
            raise ScenarioError(f"{name}: given as an option and with --set; give it once")
        flags[name] = value
    path = given.get("scenario")
    return build_scenario(case, None if path is None else _file(path), flags)


def _file(path: Path) -> dict[str, object]:
    shown = ascii(str(path)[:200])
    try:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise ScenarioError(f"scenario file {shown} is too large to be one")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        reason = (error.strerror or "cannot be opened").lower()
        raise ScenarioError(f"scenario file {shown} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"scenario file {shown} is not UTF-8 text") from None
    return read_toml(text)
