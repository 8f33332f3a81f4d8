"""Removed names, each with its replacement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["field", "argument", "broker", "command"]
"""A field of the scenario, another argument of runs, a name for `--broker`, a command's option."""


@dataclass(frozen=True, slots=True)
class RemovedName:
    """A name of an earlier version; `unset` is its value if it was not given."""

    name: str
    kind: Kind
    instead: str
    unset: object = None


REMOVED = (
    RemovedName(
        "impair",
        "field",
        "impair the network itself with netem, as docs/how-to/impaired-links.md does",
    ),
    RemovedName("amqtt", "broker", "use nats, which pip installs, or mosquitto"),
    RemovedName(
        "faults",
        "argument",
        "only the instruments of the tests err on command, as docs/internals/faults.md says",
        "none",
    ),
    RemovedName("days", "command", "certificates are valid for 30 days"),
    RemovedName("client_key", "command", "devices have ECDSA keys"),
    RemovedName("client_name", "command", "devices are named device-0, device-1 and so on"),
)


def removal(name: str, *kinds: Kind) -> str | None:
    """Return advice for a removed name of one of these kinds, None for other names."""
    for removed in REMOVED:
        if removed.name == name and removed.kind in kinds:
            return f"removed; {removed.instead}"
    return None


_ADDED = frozenset(
    {"broker_command", "pdu_format", "power", "power_command", "topic", "wait_quiet"}
)
"""Fields of a scenario that searches and sweeps of schema 1 did not have at first."""


def with_removed(values: Mapping[str, object], kind: Kind) -> dict[str, object]:
    """Return values by name together with the unset values of a kind's removed names.

    Fields that were added are left out while they are unset. The result has the same digest as in
    earlier versions, so that their searches and sweeps can be continued.
    """
    there = {name: v for name, v in values.items() if v is not None or name not in _ADDED}
    return {one.name: one.unset for one in REMOVED if one.kind == kind} | there
