"""The layout of help texts: common options first, then those of the case, then by subject."""

import inspect
from collections.abc import Callable
from typing import Any

import typer
import typer.core

from loadgen.plan.scenario import Scenario

COMMON = "Common"
PANELS = {
    COMMON: (
        *("broker", "devices", "rate", "duration", "warmup", "size", "qos", "mqtt"),
        *("out", "json_", "quiet"),
    ),
    "Search": (),
    "Run": (
        *("drain", "settle", "steps", "latency_bound", "require"),
        *("abort_on_fail", "workers", "affinity", "seed", "scenario", "set_"),
    ),
    "Several hosts": ("hosts", "place", "spark_master", "spark_wait", "spark_conf", "ship"),
    "Messages": ("arrivals", "send_tick", "payload", "payload_template"),
    "Devices": (
        *("connect_rate", "in_flight", "connect_timeout", "keep_alive", "source_address"),
        *("client_id", "clients_file", "will", "churn", "away", "reconnect", "reconnect_max"),
    ),
    "Broker": (
        *("user", "password", "anyway"),
        *("broker_name", "broker_note", "broker_pid", "sut"),
        *("instances", "separate_brokers", "access_control", "save_each"),
        *("crash_broker", "crash_command"),
    ),
    "TLS": ("tls",),
    "Power": ("rack_units",),
    "Baseline": ("baseline", "history", "history_runs", "bound", "junit", "github_summary"),
    "Results": (*("metrics", "otlp", "per_device", "title", "author", "note"),),
}
"""The subjects of options in the order of a help text, each with its options.

The prefixes `tls_` and `pdu` and the fields that every case has are placed by rule.
"""

_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_PLACE = {name: place for place, name in enumerate(_PANEL_OF)}
_PREFIXES = {"tls_": "TLS", "pdu": "Power"}


def panel_of(name: str, default: str) -> str:
    """Return the heading of an option; `default` is for options that the table does not place."""
    for prefix, panel in _PREFIXES.items():
        if name.startswith(prefix):
            return panel
    return _PANEL_OF.get(name, "Run" if name in Scenario.fields() else default)


def _place(parameter: Any) -> int:
    """Return the place of a parameter among those of its panel."""
    return _PLACE.get(parameter.name, len(_PLACE))


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
