"""How help texts are laid out: options by what they are about, those of the case first."""

import inspect
from collections.abc import Callable
from typing import Any

import typer
import typer.core

from loadgen.plan.scenario import Scenario

PANELS = {
    "Search": (),
    "Run": (
        *("duration", "warmup", "drain", "settle", "steps", "latency_bound", "require"),
        *("abort_on_fail", "workers", "affinity", "seed", "scenario", "set_"),
    ),
    "Several hosts": ("hosts", "place", "spark_master", "spark_wait", "spark_conf", "ship"),
    "Messages": ("size", "qos", "arrivals", "send_tick", "payload", "payload_template"),
    "Devices": (
        *("connect_rate", "in_flight", "connect_timeout", "keep_alive", "source_address"),
        *("client_id", "clients_file", "will", "churn", "away", "reconnect", "reconnect_max"),
    ),
    "Broker": (
        *("broker", "user", "password", "mqtt", "anyway"),
        *("broker_name", "broker_note", "broker_pid", "sut"),
        *("instances", "separate_brokers", "access_control", "save_each"),
        *("crash_broker", "crash_command"),
    ),
    "TLS": ("tls",),
    "Power": ("rack_units",),
    "Baseline": ("baseline", "history", "history_runs", "bound", "junit", "github_summary"),
    "Results": (
        *("metrics", "otlp", "out", "json_", "quiet", "per_device"),
        *("title", "author", "note"),
    ),
}
"""What options are about, in the order of a help text, and the fields that belong there.

The prefixes `tls_` and `pdu` and the fields that every case has are placed by rule.
"""

_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_PLACE = {name: place for place, name in enumerate(_PANEL_OF)}
_PREFIXES = {"tls_": "TLS", "pdu": "Power"}


def panel_of(name: str, own: str) -> str:
    """The heading under which an option stands; `own` is for what the table does not place."""
    for prefix, panel in _PREFIXES.items():
        if name.startswith(prefix):
            return panel
    return _PANEL_OF.get(name, "Run" if name in Scenario.fields() else own)


def _place(parameter: Any) -> int:
    """Where a parameter stands among those of its panel."""
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
        # What has no place in the order is the case's own, but for --help.
        places = {"Arguments": -2, "Options": len(order)} | {
            panel: place for place, panel in enumerate(order)
        }
        for panel in sorted(sections, key=lambda panel: places.get(panel, -1)):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])


def add_plain_command(app: typer.Typer, name: str, command: Callable[..., int]) -> None:
    """Give `app` a command whose docstring's first paragraph is its line in the list."""
    summary, _, _ = (inspect.getdoc(command) or "").partition("\n\n")
    app.command(name, short_help=" ".join(summary.split()), cls=GroupedCommand)(command)
