"""Tables that a score card shows below its figures, and the published row beside ours.

A section is a small table that every rendering shows as it is. What a case alone observed comes
from its part of run.json; `observed.TABLES` says which of its keys become which table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.cases.registry import CASES
from loadgen.scorecard.record import RunRecord
from loadgen.workload.case import PUBLISHED_SOURCE, PublishedFigure

Rates = Mapping[str, float]
Cell = str | float | None

_OURS: Mapping[str, tuple[str, str]] = {
    "ingress_rate": ("sent", "ingress"),
    "egress_rate": ("received", "egress"),
    "persistent_rate": ("received", "received"),
    "queue_rate": ("received", "received"),
    "forwarding_rate": ("received", "forwarded"),
}
"""Measure of a published rate to ours, and the word for it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a heading and a sentence; `texts` are the places of columns that hold words."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: tuple[int, ...] = (0,)


def published_details(record: RunRecord, rates: Rates) -> dict[str, Any]:
    """For scorecard.json: `published`, where the run stands beside a published row."""
    published = [
        {
            "row": record.case.upper(),
            "measure": figure.measure,
            "value": rates[_OURS[figure.measure][0]],
            "published": {
                "name": figure.name,
                "value": figure.value,
                "high_water_mark": figure.high_water_mark,
            },
            "relation": figure.relation,
        }
        for figure in _figures(record)
    ]
    return {"published": published} if published else {}


def published_sections(record: RunRecord, rates: Rates) -> tuple[Section, ...]:
    """The published row beside ours; nothing where no row is published for it."""
    figures = _figures(record)
    if not figures:
        return ()
    rows = tuple(
        (
            f"{record.case.upper()} {_OURS[figure.measure][1]}",
            rates[_OURS[figure.measure][0]],
            figure.name,
            figure.value,
        )
        for figure in figures
    )
    note = (
        f"{PUBLISHED_SOURCE}: the limits of that report's appliance and network, a yardstick for "
        "what the case is about. Ours is the rate that was played, a limit only where a search "
        f"found it. {figures[0].relation}"
    )
    header = ("ours", "msgs/sec", "published", "msgs/sec")
    title = "Beside the published score card"
    return (Section(title, note.strip(), header, rows, texts=(0, 2)),)


def _figures(record: RunRecord) -> tuple[PublishedFigure, ...]:
    qos = record.publishing[0].qos if record.publishing else 0
    case = CASES.get(record.case)
    figures = case.counterparts(record.scenario.get("published"), qos) if case else ()
    return tuple(figure for figure in figures if figure.measure in _OURS)
