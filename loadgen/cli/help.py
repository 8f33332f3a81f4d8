"""The layout of help texts: options of every day first, and with `--help-all` all by subject."""

import re
from typing import Any

import typer
import typer.core

COMMON = "Common"
SEARCH = "Search"
BASELINE = "Baseline"
HOSTS = "Several hosts"
RESULTS = "Results"
PANELS = ("Run", HOSTS, "Messages", "Devices", "Broker", "TLS", "Power", BASELINE, RESULTS)
"""Headings of the complete text in their order, after those of every day and of the case."""

WIDEST = 120

_EVERYTHING = "loadgen.help-all"
_FIRST = ("Arguments", SEARCH, COMMON)
_LAST = "Options"
_BOUNDS = re.compile(r"(; | +\[)[0-9]+<=x<=[0-9]+(?=\])|(?<=\[)[0-9]+<=x<=[0-9]+; ")
"""Bounds as click writes them; an error names them in words."""
_SENTENCES = re.compile(r"(?P<first>.*?\.)(?: (?!\[default).*?)?(?P<default> \[default: .*\])?")


def _show_everything(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_EVERYTHING] = True
        print(context.get_help())
        raise typer.Exit


HELP_ALL = typer.Option(
    "--help-all",
    help="Show all options.",
    is_eager=True,
    expose_value=False,
    callback=_show_everything,
)


class HelpInOrder:
    """A command that lists the names of its help option in the same order each time."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return sorted(super().get_help_option_names(ctx))  # type: ignore[misc]


class GroupedCommand(HelpInOrder, typer.core.TyperCommand):
    """A command whose options are listed by panels; with `--help-all`, at first the common ones."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters = self.get_params(ctx)
        brief = "help_all" in {one.name for one in parameters} and _EVERYTHING not in ctx.meta
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in parameters:
            panel = _panel(parameter)
            record = parameter.get_help_record(ctx)
            if record is None or (brief and panel not in (*_FIRST, _LAST)):
                continue
            option, text = record
            option = option.partition(" <")[0]  # the type of an argument in Python
            text = _BOUNDS.sub("", text)
            sections.setdefault(panel, []).append((option, _brief(text) if brief else text))
        for panel in sorted(sections, key=_place):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])


def _panel(parameter: Any) -> str:
    if parameter.param_type_name != "option":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or _LAST


def _place(panel: str) -> int:
    """Return the place of a panel; that of a case follows the common one."""
    if panel in _FIRST:
        return _FIRST.index(panel) - len(_FIRST)
    return PANELS.index(panel) + 1 if panel in PANELS else len(PANELS) + 1 if panel == _LAST else 0


def _brief(text: str) -> str:
    """Return the first sentence of an option's help, with its default."""
    parts = _SENTENCES.fullmatch(text)
    return text if parts is None else parts["first"] + (parts["default"] or "")
