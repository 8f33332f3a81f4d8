"""The layout of help texts: common options first, then those of the case, then by subject."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer
import typer.core

COMMON = "Common"
PANELS: Mapping[str, tuple[str, ...]] = {
    COMMON: (
        *("broker", "devices", "rate", "duration", "warmup", "size", "qos", "mqtt"),
        *("out", "json_", "quiet"),
    ),
    "Search": (),
    "Run": ("scenario", "set_"),
    "Several hosts": ("spark_master", "spark_wait", "spark_conf", "ship"),
    "Messages": (),
    "Devices": (),
    "Broker": (),
    "TLS": (),
    "Power": (),
    "Baseline": ("baseline", "history", "history_runs", "bound", "junit", "github_summary"),
    "Results": ("title", "author", "note"),
}
"""Headings in the order of a help text, with the common options and those that are not fields."""

_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_PLACE = {name: place for place, name in enumerate(_PANEL_OF)}


def panel_of(name: str, default: str) -> str:
    """Return the heading of an option; `default` is for options that the table does not place."""
    return _PANEL_OF.get(name, default)


def _place(parameter: Any) -> int:
    """Return the place of a parameter in its panel; fields come first, in their own order."""
    return _PLACE.get(parameter.name, -1)


class GroupedCommand(typer.core.TyperCommand):
    """A command whose options are listed by their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        order = list(PANELS)
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(self.get_params(ctx), key=_place):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            option = parameter.param_type_name == "option"
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            sections.setdefault(panel if option else "Arguments", []).append(record)
        # The case's options follow the common ones; --help is the last.
        places = {panel: place for place, panel in enumerate(order)}
        places |= {"Arguments": -3, COMMON: -2, "Options": len(order)}
        for panel in sorted(sections, key=lambda panel: places.get(panel, -1)):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])


def add_plain_command(app: typer.Typer, name: str, command: Callable[..., int]) -> None:
    """Add a command to `app`; the first paragraph of its docstring is its line in the list."""
    summary, _, _ = (inspect.getdoc(command) or "").partition("\n\n")
    app.command(name, short_help=" ".join(summary.split()), cls=GroupedCommand)(command)
