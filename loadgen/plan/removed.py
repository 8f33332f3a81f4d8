"""Removed names, each with its replacement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loadgen.sentences import read_table

Kind = Literal["field", "argument", "broker", "command"]
"""A field of the scenario, another argument of runs, a name for `--broker`, a command's option."""


@dataclass(frozen=True, slots=True)
class RemovedName:
    """A name of an earlier version; `unset` is its value if it was not given."""

    name: str
    kind: Kind
    instead: str
    unset: object = None


_TABLE = read_table("loadgen.plan", "removed.toml")
REMOVED = tuple(RemovedName(**row) for row in _TABLE["removed"])


def removal(name: str, *kinds: Kind) -> str | None:
    """Return advice for a removed name of one of these kinds, None for other names."""
    advice = (one.instead for one in REMOVED if one.name == name and one.kind in kinds)
    return next((f"removed; {instead}" for instead in advice), None)


ADDED: Mapping[str, object] = _TABLE["added"]


def with_removed(values: Mapping[str, object], kind: Kind) -> dict[str, object]:
    """Return values by name as earlier versions had them, so that digests stay the same."""
    there = {
        name: value
        for name, value in values.items()
        if name not in ADDED or value not in (None, ADDED[name])
    }
    gone = (one for one in REMOVED if one.kind == kind and one.name not in ADDED)
    return {one.name: one.unset for one in gone} | there
