"""What only some cases have to show: the published row beside ours, queues, backends.

A section is a small table that every rendering shows as it is; the same facts go into
scorecard.json by name (`details_of`). All of it comes from run.json and is text that some other
program wrote: a part that is not as expected is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.cases.registry import CASES
from loadgen.scorecard.reading import Object, figure, figures, objects, part
from loadgen.scorecard.record import RunRecord
from loadgen.scorecard.rows import Row
from loadgen.scorecard.text import name, number
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


def sections_of(record: RunRecord, rates: Rates) -> tuple[Section, ...]:
    """The sections of one run, those without anything left out."""
    found = (_beside(record, rates), _queues(record), _backends(record))
    return tuple(section for section in found if section is not None)


def details_of(record: RunRecord, rates: Rates) -> dict[str, Any]:
    """The same for scorecard.json: `published`, `queue` and `bridge`, those that there are."""
    details: dict[str, Any] = {}
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
    if published:
        details["published"] = published
    for key in ("queue", "bridge"):
        if isinstance(record.observed.get(key), Mapping):
            details[key] = record.observed[key]
    return details


def more_rows(record: RunRecord) -> tuple[Row, ...]:
    """Rows beside those of the case: the spread over consumers, the rate to each backend."""
    rows: list[Row] = []
    spread = _spread(record)
    if spread:
        consumers = number(figure(spread, "consumers"))
        rows.append(
            Row(
                "Throughput",
                "QUEUE",
                f"Messages of the window that each of {consumers} consumers took; VALUE is the "
                "fewest.",
                "messages",
                value=figure(spread, "min"),
                avg=figure(spread, "mean"),
                max=figure(spread, "max"),
                stdev=figure(spread, "stdev"),
            )
        )
    for backend in _each_backend(record):
        where = f"backend {backend.get('number')} ({name(backend.get('url'))})"
        rate, mark = figure(backend, "rate"), figure(backend, "high_water_mark")
        rows += [
            Row("Throughput", "BRIDGE", f"Forwarded to {where}.", "msgs/sec", value=rate),
            Row("Throughput", "BRIDGE", f"High-water mark before {where}.", "messages", value=mark),
        ]
    return tuple(rows)


# --- the published row ----------------------------------------------------------------------


def _figures(record: RunRecord) -> tuple[PublishedFigure, ...]:
    qos = record.publishing[0].qos if record.publishing else 0
    case = CASES.get(record.case)
    figures = case.counterparts(record.scenario.get("published"), qos) if case else ()
    return tuple(figure for figure in figures if figure.measure in _OURS)


def _beside(record: RunRecord, rates: Rates) -> Section | None:
    figures = _figures(record)
    if not figures:
        return None
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
    return Section("Beside the published score card", note.strip(), header, rows, texts=(0, 2))


# --- queues ---------------------------------------------------------------------------------


def _spread(record: RunRecord) -> Object:
    return part(record.observed, "queue", "spread")


def _queues(record: RunRecord) -> Section | None:
    spread = _spread(record)
    if not spread:
        return None
    keys = ("received", "min", "max", "mean", "stdev")
    rows: list[tuple[Cell, ...]] = [("all", *figures(spread, *keys))]
    rows += [
        (f"queue {one.get('queue')}", *figures(one, *keys)) for one in objects(spread.get("queues"))
    ]
    cut = part(record.observed, "queue", "cut_off")
    note = "Messages of the window that the consumers of a queue took, each by one of them."
    if cut:
        note += (
            f" Consumer {cut.get('consumer')} was cut off in the middle with "
            f"{number(figure(cut, 'held'))} messages that it had not acknowledged."
        )
    header = ("", "received", "fewest", "most", "mean", "deviation")
    return Section("Spread over the consumers", note, header, tuple(rows))


# --- backends -------------------------------------------------------------------------------


def _each_backend(record: RunRecord) -> list[Object]:
    return objects(part(record.observed, "bridge").get("backends"))


def _backends(record: RunRecord) -> Section | None:
    backends = _each_backend(record)
    if not backends:
        return None
    limit = part(record.observed, "bridge", "limit")
    rows: list[tuple[Cell, ...]] = [
        (
            f"backend {one.get('number')}",
            str(one.get("url") or ""),
            *figures(one, "rate", "expected", "received", "high_water_mark"),
            _percent(figure(one, "busy_share")),
        )
        for one in backends
    ]
    totals = [sum(figure(one, key) or 0 for one in backends) for key in ("rate", "expected")]
    received = sum(figure(one, "received") or 0 for one in backends)
    front = _percent(figure(part(record.observed, "bridge"), "front_busy_share"))
    rows.append(("all", "front", *totals, received, None, front))
    header = ("", "broker", "msgs/sec", "expected", "received", "high-water mark", "busy")
    return Section(
        "Backends",
        f"What limited the rate: {limit.get('side') or 'not known'} "
        f"({limit.get('detail') or '?'}). The high-water mark is the most that producers "
        "had sent and consumers not received, once a second.",
        header,
        tuple(rows),
        texts=(0, 1),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
