"""The report of a sweep: its table, and a chart over what was swept."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from loadgen.plan.tables import Cell, DataTable
from loadgen.report.build.comparison_chart import VariedPoint, varied_chart
from loadgen.report.build.sweep_table import SweepRow, SweepTable
from loadgen.report.model import Chart, Charts, Judged, Paragraph, Report
from loadgen.report.render.text import name, number, text_of
from loadgen.sentences import duration, percent

VERDICT = "verdict"  # title of the column before the figures

_RANGES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("ingress", "{} msg/s in", number),
    ("egress", "{} msg/s out", number),
    ("seconds", "connected in {} s", number),
    ("p50", "p50 {}", duration),
    ("p99", "p99 {}", duration),
)
"""Figures of the first lines of a table, in words."""


def sweep_report(table: SweepTable) -> Report:
    """Return the report of a sweep's table.

    Its document has every figure, whatever columns are shown; a notice comes before them.
    """
    searched = f"limit of {table.searched}" if table.searched else ""
    about = " · ".join(filter(None, (table.broker, table.protocol, searched, *table.programs)))
    title = f"Sweep: {name(table.case.upper())}"
    valid = all(row.valid for row in table.rows)
    header, rows = _csv(table)
    fields = asdict(table)
    for row in fields["rows"]:
        row["told"] = row.pop("reasons")
    notice = fields.pop("notice")
    return Report(
        title=title,
        heading=title,
        lead=(
            *([Paragraph(notice)] if notice else []),
            Judged("VALID" if valid else "INVALID", text=ranges_of(table)),
            Paragraph(about, "muted"),
            table_block(table),
            Charts(lambda: charts_of(table)),
        ),
        document={"schema": 1, "kind": "sweep", **({"notice": notice} if notice else {}), **fields},
        header=header,
        rows=lambda: rows,
    )


def table_block(table: SweepTable) -> DataTable:
    """Return the columns of a sweep as a table of a report."""
    columns = columns_of(table)
    verdict = [*columns].index(VERDICT)
    cells = tuple(
        tuple(
            Cell(text, wrong=place == verdict and not (row.valid and row.runs > 0))
            for place, text in enumerate(texts)
        )
        for row, texts in zip(table.rows, zip(*columns.values(), strict=True), strict=True)
    )
    return DataTable("", "", (*columns,), cells, texts=(*range(verdict + 1),), look="sweep")


def _csv(table: SweepTable) -> tuple[tuple[str, ...], tuple[tuple[object, ...], ...]]:
    """Return the header and the lines of the CSV file, figures in full precision."""
    keys = [column.key for column in table.columns]
    axes = [axis for axis in table.axes if axis not in keys]
    of_search = ("limit", "limit_stands", "limit_above", "limit_own", "ended", "ended_by")
    last = ("runs", "spread", "measured_on", "protocol", "verdict")
    rows = []
    for row in table.rows:
        limit = row.limit or {}
        search = [limit.get(key) for key in ("load", "stands", "above", "own")]
        search += ["; ".join(limit.get("ended", ())), " ".join(limit.get("codes", ()))]
        rows.append(
            (
                *(row.values[axis] for axis in axes),
                *(_figure(table, row, key) for key in keys),
                *(search if table.searched else ()),
                *(row.runs, row.spread, row.broker, row.protocol, verdict_of(row)),
            )
        )
    return (*axes, *keys, *(of_search if table.searched else ()), *last), tuple(rows)


def columns_of(table: SweepTable) -> dict[str, list[str]]:
    """Return the columns that people read, by title: swept fields, limit, verdict, figures."""
    rows = table.rows
    titles = {one.key: ", ".join(filter(None, (one.title, one.unit))) for one in table.columns}
    figures = {key: [text_of(_figure(table, row, key)) for row in rows] for key in titles}
    columns = {
        titles.get(axis, axis): figures.get(axis) or [row.values[axis] for row in rows]
        for axis in table.axes
    }
    if table.searched:
        ends = [("", "", "") if row.limit is None else _limit_cells(row.limit) for row in rows]
        header = (f"limit: {table.searched}", "lowest that failed", "ended by")
        columns |= {title: [end[place] for end in ends] for place, title in enumerate(header)}
    columns[VERDICT] = [verdict_of(row) for row in rows]
    columns |= {titles[key]: texts for key, texts in figures.items() if key not in table.axes}
    if table.repeated:
        columns["runs"] = [str(row.runs) for row in rows]
        columns["spread"] = [percent(row.spread, 1) for row in rows]
    return columns


def _figure(table: SweepTable, row: SweepRow, key: str) -> float | str | None:
    """Return a figure; for a row that could not be run, the swept value that identifies it."""
    if row.figures[key] is None and key in table.axes:
        return row.numbers.get(key, row.values[key])
    return row.figures[key]


def _limit_cells(limit: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a search's limit, "at least" if not closed, the lowest load that failed, and why."""
    held = "at least " if limit["stands"] in ("at least", "not closed") else ""
    in_verdict = ("confirmed", "nothing held")
    endings = () if limit["stands"] == "closed" else limit["ended"]
    ended = [ending for ending in endings if ending not in in_verdict]
    codes = " ".join(limit["codes"]) + (" (the generator's own limit)" if limit["own"] else "")
    reasons = "; ".join(filter(None, (codes, *ended)))
    return f"{held}{number(limit['load'])}", number(limit["above"]), reasons


def verdict_of(row: SweepRow) -> str:
    """Return VALID, CONFIRMED for a closed limit that held twice, or the reasons against it."""
    if row.runs == 0:
        return f"FAILED: {'; '.join(row.reasons)}" if row.reasons else "NOTHING HELD"
    if row.limit is not None:
        stands = row.limit["stands"]
        if stands == "closed":
            verdict = "CONFIRMED" if row.valid else "NOT CONFIRMED"
        else:
            verdict = stands.upper() + ("" if row.limit["confirmed"] else ", NOT CONFIRMED")
        return f"{verdict}: {'; '.join(row.reasons)}" if row.reasons else verdict
    return "VALID" if row.valid else f"INVALID: {' '.join(row.reasons)}"


def ranges_of(table: SweepTable) -> str:
    """Return limits, rates and latencies in one line, each from its lowest to its highest value."""
    limits = [row.limit["load"] for row in table.rows if row.limit]
    parts = [_range(f"limit of {table.searched} {{}}", limits, number)]
    parts += [
        _range(words, [row.figures[key] for row in table.rows], shown)
        for key, words, shown in _RANGES
    ]
    return " · ".join(filter(None, parts))


def _range(words: str, values: Iterable[float | None], shown: Callable[[float], str]) -> str:
    """Return the lowest and the highest value in words, or one of them if they are within 1 %."""
    present = sorted(value for value in values if value is not None)
    ends = present[:1] + [value for value in present[-1:] if value > 1.01 * present[0]]
    return words.format(" to ".join(dict.fromkeys(map(shown, ends)))) if ends else ""


def charts_of(table: SweepTable) -> list[Chart]:
    """Return a chart over the first swept number with several values, if there is one.

    It has a line for each combination of the other fields.
    """
    rows = [row for row in table.rows if row.runs]
    for swept in table.axes:
        numbers = [row.numbers.get(swept) for row in rows]
        if None not in numbers and len({*numbers}) > 1:
            break
    else:
        return []
    fields = [axis for axis in table.axes if axis != swept]
    points = [
        VariedPoint(
            row.numbers[swept],
            ", ".join(f"{axis}={row.values[axis]}" for axis in fields),
            row.figures,
            mark_of(row),
        )
        for row in rows
    ]
    return [varied_chart(table.case, swept, points)]


def mark_of(row: SweepRow) -> str:
    """Return the mark of a point that is INVALID or not a limit, else ""."""
    if row.valid:
        return ""
    if row.limit is None:
        return "INVALID"
    return "NOT CONFIRMED" if row.limit["stands"] == "closed" else "at least"
