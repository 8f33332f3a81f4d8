"""The views of the interval table for a score card: three small tables of many rows, pure.

Spark and the summary of one run compute them by the same functions of `metrics.reducer`. Rows that
come in several pieces are reduced to `Parts`, which are then joined.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadgen.metrics.histogram import row_percentiles
from loadgen.metrics.reducer import group_numbers, reduce_table, reduced_schema

TIMED = "timed"
BACKGROUND = "background"
TOTALS_BY = ("run", "group", "phase", "series")  # keys of the totals; "" holds the counters
_TIMED_SERIES = ("end_to_end", "connect")
"""Series whose course over time is drawn, in addition to the counters."""
_COURSE_BY = ("run", "second", "group", "series")
_COUNTERS_BY = ("run", "host", "worker", "second", "group", "series")
_COURSE_COUNTS = (
    *("time_ns", "span_ns", "sent", "expected", "received", "duplicated", "corrupt", "foreign"),
    *("connects", "connect_failures", "disconnects", "connected", "owed", "in_flight", "count"),
)
_COURSE_RATES = {"sent_per_s": "sent", "received_per_s": "received"}
_SHORTEST_SPAN_NS = 50_000_000  # shortest interval with a meaningful rate
_COURSE_LEVELS = {"p50_ns": 50.0, "p99_ns": 99.0}

COURSE_SCHEMA = pa.schema(
    [
        *(reduced_schema(_COURSE_BY).field(name) for name in (*_COURSE_BY, *_COURSE_COUNTS)),
        *((name, pa.float64()) for name in _COURSE_RATES),
        *((name, pa.int64()) for name in (*_COURSE_LEVELS, "max_ns")),
    ]
)
"""One row a second and series; `group` is TIMED or BACKGROUND. Gauges and rates are sums over the
workers; each worker's rate is over its own span, which is longer if it was late."""

_PROCESS_BY = ("run", "host", "worker", "second")
_OF_PROCESS = (*_PROCESS_BY, "time_ns", "span_ns", "cpu_ns", "wait_ns", "resident_bytes")
PROCESS_SCHEMA = pa.schema([reduced_schema(_PROCESS_BY).field(name) for name in _OF_PROCESS])
"""One row per worker and second."""


@dataclass(frozen=True, slots=True)
class Views:
    """The views of one run: tables of `reduced_schema(TOTALS_BY)`, COURSE_ and PROCESS_SCHEMA."""

    totals: pa.Table
    course: pa.Table
    processes: pa.Table


Parts = Mapping[str, pa.Table]
"""Reduced rows of a piece of a run; "counters" and "latencies" are merged into the course."""

_PARTS_BY = {
    "totals": TOTALS_BY,
    "counters": _COUNTERS_BY,
    "latencies": _COURSE_BY,
    "processes": _PROCESS_BY,
}
"""Tables of `Parts` and their keys."""


def parts_of(intervals: pa.Table, background: Collection[str]) -> Parts:
    """Return the reduced rows of a table of INTERVAL_SCHEMA with any rows of a run.

    `background` are the groups whose latencies are not the case's result.
    """
    intervals = intervals.combine_chunks()  # once, not for each table
    grouped = pc.not_equal(intervals["group"], "")
    counted = pc.equal(intervals["series"], "")
    timed = pc.is_in(intervals["series"], pa.array(_TIMED_SERIES))
    # A worker writes its gauges in the row of each phase: one of them counts.
    tables = (intervals, intervals, _by_class(intervals, background), intervals)
    rows = (True, pc.and_(grouped, counted), pc.and_(grouped, timed), pc.and_not(counted, grouped))
    return dict(zip(_PARTS_BY, map(reduce_table, tables, _PARTS_BY.values(), rows), strict=True))


def views_of(intervals: pa.Table, background: Collection[str]) -> Views:
    """Return all three views of a table of INTERVAL_SCHEMA with all rows of a run."""
    return views_of_parts(parts_of(intervals, background), background)


def joined(parts: Sequence[Parts]) -> Parts:
    """Return the parts of all rows from the parts of some of them."""
    return {
        name: reduce_table(pa.concat_tables(part[name] for part in parts), by)
        for name, by in _PARTS_BY.items()
    }


def views_of_parts(parts: Parts, background: Collection[str]) -> Views:
    """Return the views; the course has all workers and phases of a second in one row a series."""
    counters = _by_class(parts["counters"], background)
    by_second = reduce_table(counters, _COURSE_BY, gauges="sum")
    merged = pa.concat_tables([by_second, parts["latencies"]])
    columns = {name: merged[name] for name in (*_COURSE_BY, *_COURSE_COUNTS, "max_ns")}
    second = group_numbers(counters, _COURSE_BY)
    span_s = np.maximum(counters["span_ns"].to_numpy(), _SHORTEST_SPAN_NS) / 1e9
    for name, counter in _COURSE_RATES.items():
        rates = counters[counter].to_numpy() / span_s
        columns[name] = pa.array(np.bincount(second, rates, minlength=merged.num_rows))
    bucket, bucket_count = (
        merged[name].combine_chunks().flatten().to_numpy() for name in ("bucket", "bucket_count")
    )
    totals, ps = merged["count"].to_numpy(), tuple(_COURSE_LEVELS.values())
    levels = row_percentiles(bucket, bucket_count, totals, ps)
    columns |= zip(_COURSE_LEVELS, map(pa.array, levels), strict=True)
    course = pa.table([columns[name] for name in COURSE_SCHEMA.names], schema=COURSE_SCHEMA)
    return Views(parts["totals"], course, parts["processes"].select(PROCESS_SCHEMA.names))


def _by_class(table: pa.Table, background: Collection[str]) -> pa.Table:
    """Return the table with TIMED or BACKGROUND instead of the group's name."""
    named = pc.is_in(table["group"], pa.array(background, pa.string()))
    place = table.schema.get_field_index("group")
    return table.set_column(place, "group", pc.if_else(named, BACKGROUND, TIMED))
