"""What a case alone observed: its tables, its further rows and its notice.

All of it is the case's part of `observed` in run.json, an object under the case's name. `TABLES`
says which keys of it become which table, so that a case gets a table by recording that key.
"""

from collections.abc import Callable, Mapping
from typing import Any

from loadgen.report.build import supply
from loadgen.report.build.rows import Row
from loadgen.report.build.sections import Cell, Section
from loadgen.report.reading import Object, figure, figures, objects, part
from loadgen.report.record import RunRecord
from loadgen.report.render.text import NOTICE_CHARACTERS, name, number


def notice_of(record: RunRecord) -> str:
    """What must stand before any figure of the run; empty for a run that needs none."""
    return str(record.own.get("notice") or "")[:NOTICE_CHARACTERS]


def observed_details(record: RunRecord) -> dict[str, Any]:
    """For scorecard.json: what the case observed, under the case's name."""
    document = record.own
    return {record.case: dict(document)} if document else {}


def observed_sections(record: RunRecord) -> tuple[Section, ...]:
    """The tables of what the case observed, those without rows left out."""
    document = record.own
    found = [table(document) for key, table in TABLES.items() if document.get(key)]
    return tuple(section for section in found if section.rows)


def observed_rows(record: RunRecord) -> tuple[Row, ...]:
    """Rows beside those of the case: the spread over consumers, the rate to each backend."""
    document, title = record.own, record.case.upper()
    rows: list[Row] = []
    spread = part(document, "spread")
    if spread:
        consumers = number(figure(spread, "consumers"))
        rows.append(
            Row(
                "Throughput",
                title,
                f"Messages of the window that each of {consumers} consumers took; VALUE is the "
                "fewest.",
                "messages",
                value=figure(spread, "min"),
                avg=figure(spread, "mean"),
                max=figure(spread, "max"),
                stdev=figure(spread, "stdev"),
            )
        )
    for backend in objects(document.get("backends")):
        where = f"backend {backend.get('number')} ({name(backend.get('url'))})"
        rate, mark = figures(backend, "rate", "high_water_mark")
        rows += [
            Row("Throughput", title, f"Forwarded to {where}.", "msgs/sec", value=rate),
            Row("Throughput", title, f"High-water mark before {where}.", "messages", value=mark),
        ]
    return tuple(rows)


def _spread(document: Object) -> Section:
    keys = ("received", "min", "max", "mean", "stdev")
    spread, cut = part(document, "spread"), part(document, "cut_off")
    rows: list[tuple[Cell, ...]] = [("all", *figures(spread, *keys))] if spread else []
    rows += [
        (f"queue {one.get('queue')}", *figures(one, *keys)) for one in objects(spread.get("queues"))
    ]
    note = "Messages of the window that the consumers of a queue took, each by one of them."
    if cut:
        note += (
            f" Consumer {cut.get('consumer')} was cut off in the middle with "
            f"{number(figure(cut, 'held'))} messages that it had not acknowledged."
        )
    header = ("", "received", "fewest", "most", "mean", "deviation")
    return Section("Spread over the consumers", note, header, tuple(rows))


def _backends(document: Object) -> Section:
    backends, limit = objects(document.get("backends")), part(document, "limit")
    rows: list[tuple[Cell, ...]] = [
        (
            f"backend {one.get('number')}",
            str(one.get("url") or ""),
            *figures(one, "rate", "expected", "received", "high_water_mark"),
            _percent(figure(one, "busy_share")),
        )
        for one in backends
    ]
    if backends:
        totals = [
            sum(figure(one, key) or 0 for one in backends)
            for key in ("rate", "expected", "received")
        ]
        rows.append(("all", "front", *totals, None, _percent(figure(document, "front_busy_share"))))
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


TABLES: Mapping[str, Callable[[Object], Section]] = {
    "spread": _spread,
    "backends": _backends,
    "audit": supply.audit,
    "types": supply.message_types,
    "groups": supply.message_mix,
    "traffic": supply.topics,
    "rules": supply.run_rules,
}
"""Key of what a case observed to the table that shows it, in the order of the score card."""
