"""Tables, further rows and the notice from the observations of a case.

The observations are an object under the case's name in `observed` of run.json. A case gets a table
if it records a key of `_BUILDERS`, or by its function `Case.tables`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from loadgen.cases.registry import CASES
from loadgen.plan.reading import Object, figure, figures, objects, part
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.build.rows import Row
from loadgen.report.record import RunRecord
from loadgen.report.render.text import NOTICE_CHARACTERS, name, number


def notice_of(record: RunRecord) -> str:
    """Return the notice before any figure of the run; "" for a run that needs no notice."""
    return str(record.case_observations.get("notice") or "")[:NOTICE_CHARACTERS]


def observed_details(record: RunRecord) -> dict[str, Any]:
    """Return the case's observations for scorecard.json, under the case's name."""
    document = record.case_observations
    return {record.case: dict(document)} if document else {}


def observed_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """Return the tables of the case's observations; a table without rows is left out."""
    document = record.case_observations
    tables = [build(document) for key, build in _BUILDERS.items() if document.get(key)]
    case = CASES.get(record.case)
    own = () if case is None else case.tables(document)
    return (*(table for table in tables if table.rows), *own)


def observed_rows(record: RunRecord) -> tuple[Row, ...]:
    """Return further rows: the spread over consumers, the rate to each backend."""
    document, title = record.case_observations, record.case.upper()
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


def _spread(document: Object) -> DataTable:
    keys = ("received", "min", "max", "mean", "stdev")
    spread, cut = part(document, "spread"), part(document, "cut_off")
    rows: list[tuple[TableCell, ...]] = [("all", *figures(spread, *keys))] if spread else []
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
    return DataTable("Spread over the consumers", note, header, tuple(rows))


def _backends(document: Object) -> DataTable:
    backends, limit = objects(document.get("backends")), part(document, "limit")
    rows: list[tuple[TableCell, ...]] = [
        (
            f"backend {backend.get('number')}",
            str(backend.get("url") or ""),
            *figures(backend, "rate", "expected", "received", "high_water_mark"),
            _percent(figure(backend, "busy_share")),
        )
        for backend in backends
    ]
    if backends:
        totals = [
            sum(figure(backend, key) or 0 for backend in backends)
            for key in ("rate", "expected", "received")
        ]
        rows.append(("all", "front", *totals, None, _percent(figure(document, "front_busy_share"))))
    header = ("", "broker", "msgs/sec", "expected", "received", "high-water mark", "busy")
    return DataTable(
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


_BUILDERS: Mapping[str, Callable[[Object], DataTable]] = {"spread": _spread, "backends": _backends}
"""Key of an observed document to the table that shows it, for any case that records the key."""
