"""The one reducer: rows of the interval table merged by any of its dimensions.

Spark applies it to the rows of one key, the summary of a run to a whole table. Both get the same
integers in any order of the rows, and a reduced table can be reduced again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loadgen.errors import RunDirectoryError
from loadgen.metrics.histogram import BUCKETS, Int64Array, mean_and_stdev, percentiles, rank
from loadgen.metrics.interval import (
    COUNTERS,
    DIMENSIONS,
    GAUGES,
    HISTOGRAM,
    INTERVAL_SCHEMA,
    PROCESS_COUNTERS,
    PROCESS_GAUGES,
    SPAN,
)
from loadgen.sentences import METRICS_TEXT

_BLOCK_COUNTS = 1 << 17  # of groups that are merged at a time: their dense histograms take 1 MB
_PIECE_ENTRIES = 1 << 15  # of histograms added at a time, for the processor's cache

_INT64 = np.iinfo(np.int64)
_ADDED = (*COUNTERS, *PROCESS_COUNTERS, "count", "sum_ns")
_LEVELS = (*GAUGES, *PROCESS_GAUGES)
_LISTS = ["bucket", "bucket_count"]


def reduced_schema(by: Sequence[str]) -> pa.Schema:
    """Return the columns of `reduce_table(table, by)`: keys, then all but other dimensions."""
    names = (*by, *SPAN, *COUNTERS, *GAUGES, *PROCESS_COUNTERS, *PROCESS_GAUGES, *HISTOGRAM)
    return pa.schema([INTERVAL_SCHEMA.field(name) for name in names])


def reduce_table(
    table: pa.Table, by: Sequence[str], where: Any = True, *, gauges: Literal["max", "sum"] = "max"
) -> pa.Table:
    """Merge the rows that agree in the dimensions `by`, one row each, ordered by them.

    Of the rows, those merge for which `where` is True: a filtered table would copy histograms.
    Counters, counts and histograms add; least, greatest, and time and span widen to cover all.
    Gauges take the greatest, the high-water mark over time; with gauges="sum" they add, which is
    right for rows of one moment.

    The table has the columns of `reduced_schema(by)`, in any order; others are ignored. Raises
    ValueError if `by` names no dimension, RunDirectoryError if the rows are not those of a worker:
    a column missing or of another type, nulls, invalid histograms, sums beyond 64 bits.
    """
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown or len(set(by)) != len(by):
        raise ValueError(f"cannot reduce by {', '.join(by)}: not distinct names of {DIMENSIONS}")
    schema = reduced_schema(by)
    table = _checked(table, schema)
    rows = np.flatnonzero(np.broadcast_to(where, len(table)))
    lists, table = table.select(_LISTS), table.drop_columns(_LISTS).take(rows)
    if not table.num_rows:
        return schema.empty_table()

    group = group_numbers(table, by)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    value = {
        name: table[name].to_numpy()[order]
        for name in (*SPAN, *_ADDED, *_LEVELS, "min_ns", "max_ns")
    }

    added, highest = (_ADDED + _LEVELS, ()) if gauges == "sum" else (_ADDED, _LEVELS)
    columns = {name: _added(value[name], starts, name) for name in added}
    columns |= {name: np.maximum.reduceat(value[name], starts) for name in highest}
    time_ns = np.minimum.reduceat(value["time_ns"], starts)
    end_ns = np.maximum.reduceat(value["time_ns"] + value["span_ns"], starts)
    columns |= {"time_ns": time_ns, "span_ns": end_ns - time_ns}
    # A row without latencies has no least or greatest: its zeros must not take part.
    some, any_at_all = value["count"] > 0, columns["count"] > 0
    least = np.minimum.reduceat(np.where(some, value["min_ns"], _INT64.max), starts)
    most = np.maximum.reduceat(np.where(some, value["max_ns"], _INT64.min), starts)
    columns |= {"min_ns": np.where(any_at_all, least, 0), "max_ns": np.where(any_at_all, most, 0)}

    keys = table.select(list(by)).take(pa.array(order[starts]))
    bucket, bucket_count = _merged(lists, rows, group, order, np.append(starts, len(order)))
    running = np.concatenate([[0], np.cumsum(bucket_count.values.to_numpy())])
    if not np.array_equal(np.diff(running[bucket_count.offsets.to_numpy()]), columns["count"]):
        raise RunDirectoryError(METRICS_TEXT.HISTOGRAM_COUNT())
    arrays = {
        **{name: keys[name] for name in by},
        **{name: pa.array(column, pa.int64()) for name, column in columns.items()},
        "bucket": bucket,
        "bucket_count": bucket_count,
    }
    return pa.table([arrays[name] for name in schema.names], schema=schema)


def _checked(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the needed columns in the types of the schema; raise if there are nulls."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise RunDirectoryError(METRICS_TEXT.NO_COLUMN(column=missing[0]))
    try:
        # An engine may hand over larger offsets or dictionaries; the values are the same.
        table = table.select(schema.names).cast(schema).combine_chunks()
    except pa.ArrowException as error:
        raise RunDirectoryError(METRICS_TEXT.COLUMN_TYPE(reason=error)) from error
    for name in schema.names:
        if table[name].null_count:
            raise RunDirectoryError(METRICS_TEXT.NO_VALUE(column=name))
    return table


def group_numbers(table: pa.Table, by: Sequence[str]) -> Int64Array:
    """Return the row of `reduce_table(table, by)` to which each row belongs."""
    group = np.zeros(table.num_rows, np.int64)
    for name in by:
        column = table[name].combine_chunks().dictionary_encode()
        code = column.indices.to_numpy().astype(np.int64)
        rank = np.empty(len(column.dictionary), np.int64)
        rank[np.argsort(column.dictionary.to_numpy(zero_copy_only=False))] = np.arange(len(rank))
        # Renumbered after each key, so that no combination of keys can overflow.
        _, group = np.unique(group * len(rank) + rank[code], return_inverse=True)
    return group


def _added(values: Int64Array, starts: Int64Array, name: str) -> Int64Array:
    """Return the sum of each group. Raises RunDirectoryError rather than wrap around."""
    size = np.add.reduceat(np.abs(values.astype(np.float64)), starts)
    if size.max() >= 2.0**63:
        raise RunDirectoryError(METRICS_TEXT.LARGE_SUM(column=name))
    total: Int64Array = np.add.reduceat(values, starts)
    return total


def _merged(
    lists: pa.Table, merged: Int64Array, group: Int64Array, order: Int64Array, bounds: Int64Array
) -> tuple[pa.ListArray, pa.ListArray]:
    """Return the sparse histogram of each group, as two list columns.

    `order` lists the places in `merged` by group, group g being order[bounds[g]:bounds[g + 1]].
    """
    offsets, bucket, bucket_count = _entries(lists)
    begin_of, entries_of = offsets[merged], np.diff(offsets)[merged]
    if not entries_of.any():
        bucket, bucket_count = bucket[:0], bucket_count[:0]
    groups = len(bounds) - 1
    # Only as wide as needed: latencies of some seconds use a fifth of all buckets.
    lowest, highest = int(bucket.min(initial=BUCKETS)), int(bucket.max(initial=0))
    if lowest < 0 or highest >= BUCKETS or bucket_count.min(initial=0) < 0:
        raise RunDirectoryError(METRICS_TEXT.HISTOGRAM_LAYOUT())
    width = max(highest - lowest + 1, 1)
    at_once = max(min(groups, _BLOCK_COUNTS // width), 1)
    block = np.zeros(at_once * width, np.int64)
    lengths, buckets, counts = [], [], []
    for first in range(0, groups, at_once):
        last = min(first + at_once, groups)
        rows = np.sort(order[bounds[first] : bounds[last]])
        rows = rows[entries_of[rows] > 0]
        place = (group[rows] - first) * width - lowest
        for row, entries in _pieces(begin_of[rows], entries_of[rows]):
            places = np.repeat(place[row], entries_of[rows[row]])
            places += bucket[entries]
            np.add.at(block, places, bucket_count[entries])
        used = np.flatnonzero(block != 0)  # of truth values: five times as fast
        begin = np.arange(last - first + 1) * width
        lengths.append(np.diff(np.searchsorted(used, begin)))
        buckets.append((used - np.repeat(begin[:-1] - lowest, lengths[-1])).astype(np.int32))
        counts.append(block[used])
        block[used] = 0
    ends = pa.array(np.cumsum(np.concatenate([[0], *lengths])), pa.int32())
    return (
        pa.ListArray.from_arrays(ends, pa.array(np.concatenate(buckets))),
        pa.ListArray.from_arrays(ends, pa.array(np.concatenate(counts))),
    )


def _entries(table: pa.Table) -> tuple[Int64Array, NDArray[np.int32], Int64Array]:
    """Return (offsets, bucket, bucket_count): row i has the entries offsets[i] to offsets[i+1]."""
    lists = [table[name].chunk(0) for name in _LISTS]  # of one chunk: combine_chunks would copy
    lengths, count_lengths = (pc.list_value_length(column).to_numpy() for column in lists)
    if not np.array_equal(lengths, count_lengths):
        raise RunDirectoryError(METRICS_TEXT.BUCKET_COUNTS())
    index, count = (column.flatten() for column in lists)
    if index.null_count or count.null_count:
        raise RunDirectoryError(METRICS_TEXT.NO_VALUE(column="a histogram"))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return offsets, index.to_numpy(), count.to_numpy()


def _pieces(start: Int64Array, length: Int64Array) -> Iterator[tuple[slice, slice | Int64Array]]:
    """Yield pieces of ascending rows as a slice of them and the places of their entries."""
    running = np.cumsum(length)
    done = 0
    while done < len(length):
        # At least one row, and as many as fit in a piece.
        before = running[done - 1] if done else 0
        stop = max(int(np.searchsorted(running, before + _PIECE_ENTRIES, "right")), done + 1)
        piece, total = slice(done, stop), int(running[stop - 1] - before)
        if start[stop - 1] + length[stop - 1] - start[done] == total:
            yield piece, slice(start[done], start[done] + total)
        else:
            skipped = start[piece] - (running[piece] - length[piece] - before)
            yield piece, np.repeat(skipped, length[piece]) + np.arange(total)
        done = stop


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latencies of one series; without any, all but `count` are None.

    `avg_us`, `min_us` and `max_us` are exact. Percentiles and `stdev_us` are the hdrhistogram
    library's: a percentile is the highest value of its bucket, and never above `max_us`. It is
    None if there are too few latencies: if its rank is that of the greatest one.
    """

    count: int
    avg_us: float | None = None
    min_us: float | None = None
    p50_us: float | None = None
    p90_us: float | None = None
    p99_us: float | None = None
    p99_9_us: float | None = None
    max_us: float | None = None
    stdev_us: float | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> float | None:
            """Return a figure by its old name without a unit, which is accepted until 1.0."""
            if name not in LATENCY_KEYS:
                raise AttributeError(name)
            return self.figure(name)

    def figure(self, key: str) -> float | None:
        """Return a figure by its key in scorecard.json, such as p99.9 or count."""
        value: float | None = getattr(self, field_of_figure(key))
        return value


LATENCY_KEYS = frozenset(("avg", "min", "p50", "p90", "p99", "p99_9", "max", "stdev"))


def field_of_figure(key: str) -> str:
    return key if key == "count" else f"{key.replace('.', '_')}_us"


_NS_PER_US = 1000
_PERCENTILES = (50, 90, 99, 99.9)


def summarize(row: Mapping[str, Any]) -> LatencySummary:
    """Return the summary of a row with the columns of `interval.HISTOGRAM`, buckets ascending."""
    count = int(row["count"])
    if not count:
        return LatencySummary(0)
    bucket, bucket_count = row["bucket"], row["bucket_count"]
    highest_ns = int(row["max_ns"])
    values = percentiles(bucket_count, _PERCENTILES, bucket)
    p50, p90, p99, p99_9 = (
        min(value, highest_ns) / _NS_PER_US if rank(p, count) < count else None
        for p, value in zip(_PERCENTILES, values, strict=True)
    )
    return LatencySummary(
        count=count,
        avg_us=int(row["sum_ns"]) / (count * _NS_PER_US),
        min_us=int(row["min_ns"]) / _NS_PER_US,
        p50_us=p50,
        p90_us=p90,
        p99_us=p99,
        p99_9_us=p99_9,
        max_us=highest_ns / _NS_PER_US,
        stdev_us=mean_and_stdev(bucket_count, bucket)[1] / _NS_PER_US,
    )
