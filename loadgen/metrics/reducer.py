"""The one reducer: rows of the interval table merged by any of its dimensions.

Spark applies it to the rows of one key, the summary that a run prints at once applies it to a
whole table, and both get the same integers, whatever the order of the rows and however they
were partitioned: sums, least and greatest only, and a reduced table can be reduced again.

Histograms merge in numpy over the flat entries of many rows, never row by row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadgen.errors import RunDirectoryError
from loadgen.metrics.histogram import BUCKETS, highest_values, percentiles, rank, stdev
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

Int64Array = NDArray[np.int64]

_BLOCK_COUNTS = 128 * BUCKETS
"""Counts of the groups that are merged at a time: their dense histograms take 35 MB."""
_PIECE_ENTRIES = 1 << 20
"""Histogram entries added at a time: bounds the temporary arrays to some 20 MB."""

_INT64 = np.iinfo(np.int64)
_ADDED = (*COUNTERS, *PROCESS_COUNTERS, "count", "sum_ns")
_LEVELS = (*GAUGES, *PROCESS_GAUGES)


def reduced_schema(by: Sequence[str]) -> pa.Schema:
    """Return the columns of `reduce_table(table, by)`: keys, then all but other dimensions."""
    names = (*by, *SPAN, *COUNTERS, *GAUGES, *PROCESS_COUNTERS, *PROCESS_GAUGES, *HISTOGRAM)
    return pa.schema([INTERVAL_SCHEMA.field(name) for name in names])


def reduce_table(
    table: pa.Table, by: Sequence[str], *, gauges: Literal["max", "sum"] = "max"
) -> pa.Table:
    """Merge the rows that agree in the dimensions `by`, one row each, ordered by them.

    Counters, counts and histograms add; least, greatest, and time and span widen to cover all.
    Gauges take the greatest, the high-water mark over time; with
    gauges="sum" they add, which is right for rows of one moment, the workers of one second. So
    the high-water mark of all workers together is two steps: sum by second, then the greatest.

    Table: the columns of `reduced_schema(by)`, in any order; others are ignored.
    Raises ValueError if `by` names no dimension, RunDirectoryError if the rows are not
    those of a worker: a column missing or of another type, nulls, histograms that are out of
    their layout or disagree with their count, sums beyond 64 bits.
    """
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown or len(set(by)) != len(by):
        raise ValueError(f"cannot reduce by {', '.join(by)}: not distinct names of {DIMENSIONS}")
    schema = reduced_schema(by)
    table = _checked(table, schema)
    if not table.num_rows:
        return schema.empty_table()

    group = _groups(table, by)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    value = {
        name: table[name].to_numpy()[order]
        for name in (*SPAN, *_ADDED, *_LEVELS, "min_ns", "max_ns")
    }

    columns = {name: _added(value[name], starts, name) for name in _ADDED}
    for name in _LEVELS:
        columns[name] = (
            _added(value[name], starts, name)
            if gauges == "sum"
            else np.maximum.reduceat(value[name], starts)
        )
    time_ns = np.minimum.reduceat(value["time_ns"], starts)
    end_ns = np.maximum.reduceat(value["time_ns"] + value["span_ns"], starts)
    columns |= {"time_ns": time_ns, "span_ns": end_ns - time_ns}
    # A row without latencies has no least or greatest: its zeros must not take part.
    some, any_at_all = value["count"] > 0, columns["count"] > 0
    least = np.minimum.reduceat(np.where(some, value["min_ns"], _INT64.max), starts)
    most = np.maximum.reduceat(np.where(some, value["max_ns"], _INT64.min), starts)
    columns |= {"min_ns": np.where(any_at_all, least, 0), "max_ns": np.where(any_at_all, most, 0)}

    keys = table.select(list(by)).take(pa.array(order[starts]))
    bucket, bucket_count = _merged(table, group, order, np.append(starts, len(order)))
    if not np.array_equal(_list_sums(bucket_count), columns["count"]):
        raise RunDirectoryError("interval rows are damaged: histograms disagree with their count")
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
        raise RunDirectoryError(f"interval rows lack the column {missing[0]}")
    try:
        # An engine may hand over larger offsets or dictionaries; the values are the same.
        table = table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise RunDirectoryError(f"interval rows have a column of a wrong type: {error}") from error
    for name in schema.names:
        if table[name].null_count:
            raise RunDirectoryError(f"interval rows are damaged: no value in {name}")
    return table


def _groups(table: pa.Table, by: Sequence[str]) -> Int64Array:
    """Return the number of each row's group; groups are numbered in the order of their keys."""
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
        raise RunDirectoryError(f"interval rows are damaged: {name} adds up beyond 64 bits")
    total: Int64Array = np.add.reduceat(values, starts)
    return total


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The histogram entries of consecutive rows: row i has entries offsets[i] to offsets[i+1]."""

    first_row: int
    offsets: Int64Array
    bucket: NDArray[np.int32]
    bucket_count: Int64Array


def _merged(
    table: pa.Table, group: Int64Array, order: Int64Array, bounds: Int64Array
) -> tuple[pa.ListArray, pa.ListArray]:
    """Return the sparse histogram of each group, as two list columns.

    `order` lists the rows by group, group g being order[bounds[g]:bounds[g + 1]].
    """
    chunks = list(_chunks(table))
    groups = len(bounds) - 1
    # Only as wide as needed: latencies of some seconds use a fifth of all buckets.
    some = [chunk.bucket for chunk in chunks if chunk.bucket.size]
    lowest = int(min((bucket.min() for bucket in some), default=0))
    width = int(max((bucket.max() for bucket in some), default=0)) - lowest + 1
    at_once = max(min(groups, _BLOCK_COUNTS // width), 1)
    block = np.zeros(at_once * width, np.int64)
    lengths, buckets, counts = [], [], []
    for first in range(0, groups, at_once):
        last = min(first + at_once, groups)
        rows = np.sort(order[bounds[first] : bounds[last]])
        for chunk in chunks:
            _add_rows(block, chunk, rows, (group - first) * width - lowest)
        used = np.flatnonzero(block)
        begin = np.arange(last - first + 1) * width
        lengths.append(np.diff(np.searchsorted(used, begin)))
        buckets.append((used - np.repeat(begin[:-1] - lowest, lengths[-1])).astype(np.int32))
        counts.append(block[used])
        block[used] = 0
    offsets = pa.array(np.cumsum(np.concatenate([[0], *lengths])), pa.int32())
    return (
        pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(buckets))),
        pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(counts))),
    )


def _chunks(table: pa.Table) -> Iterator[_Chunk]:
    first_row = 0
    for batch in table.select(["bucket", "bucket_count"]).to_batches():
        bucket, bucket_count = batch.columns
        offsets = bucket.offsets.to_numpy().astype(np.int64)
        count_offsets = bucket_count.offsets.to_numpy().astype(np.int64)
        # Either list may begin anywhere in its values, as in a slice of a larger table.
        index, count = (
            column.values[column.offsets[0].as_py() : column.offsets[-1].as_py()]
            for column in batch.columns
        )
        offsets -= offsets[0]
        if not np.array_equal(offsets, count_offsets - count_offsets[0]):
            raise RunDirectoryError("interval rows are damaged: buckets without a count")
        if index.null_count or count.null_count:
            raise RunDirectoryError("interval rows are damaged: no value in a histogram")
        chunk = _Chunk(first_row, offsets, index.to_numpy(), count.to_numpy())
        if chunk.bucket.size and (
            chunk.bucket.min() < 0 or chunk.bucket.max() >= BUCKETS or chunk.bucket_count.min() < 0
        ):
            raise RunDirectoryError("interval rows are damaged: a histogram is out of its layout")
        yield chunk
        first_row += batch.num_rows


def _add_rows(block: Int64Array, chunk: _Chunk, rows: Int64Array, base: Int64Array) -> None:
    """Add the histograms of those of `rows` (ascending) that the chunk holds.

    Bucket 0 of row i has its place in the block at base[i].
    """
    last_row = chunk.first_row + len(chunk.offsets) - 1
    here = rows[slice(*np.searchsorted(rows, (chunk.first_row, last_row)))]
    start = chunk.offsets[here - chunk.first_row]
    length = chunk.offsets[here - chunk.first_row + 1] - start
    running = np.cumsum(length)
    done = 0
    while done < len(here):
        # At least one row, and as many as fit in a piece.
        before = running[done - 1] if done else 0
        stop = max(int(np.searchsorted(running, before + _PIECE_ENTRIES, "right")), done + 1)
        total = int(running[stop - 1] - before)
        entries: slice | Int64Array
        if start[stop - 1] + length[stop - 1] - start[done] == total:
            entries = slice(start[done], start[done] + total)
        else:
            skipped = start[done:stop] - (running[done:stop] - length[done:stop] - before)
            entries = np.repeat(skipped, length[done:stop]) + np.arange(total)
        place = np.repeat(base[here[done:stop]], length[done:stop]) + chunk.bucket[entries]
        np.add.at(block, place, chunk.bucket_count[entries])
        done = stop


def _list_sums(column: pa.ListArray) -> Int64Array:
    running = np.concatenate([[0], np.cumsum(column.values.to_numpy())])
    sums: Int64Array = np.diff(running[column.offsets.to_numpy()])
    return sums


def row_percentiles(reduced: pa.Table, ps: Sequence[float]) -> list[pa.Array]:
    """Return each percentile of `ps` for every row of a reduced table; 0 without a latency.

    The same as `histogram.percentiles` row by row, for all of them at once.
    """
    bucket, bucket_count = (reduced[name].combine_chunks() for name in ("bucket", "bucket_count"))
    total = _list_sums(bucket_count)
    running = np.cumsum(bucket_count.flatten().to_numpy())
    before = np.cumsum(total) - total
    highest = np.append(highest_values(bucket.flatten().to_numpy()), 0)
    found = []
    for p in ps:
        rank = np.maximum((p * total / 100 + 0.5).astype(np.int64), 1)
        place = np.where(total, np.searchsorted(running, before + rank), len(running))
        found.append(pa.array(highest[place]))
    return found


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Latencies of one series in microseconds; without any, all but `count` are None.

    `avg`, `min` and `max` are exact. Percentiles and `stdev` are the hdrhistogram library's: a
    percentile is the highest value of its bucket, and never above `max`. It is None if there
    are too few latencies: if its rank is that of the greatest one.
    """

    count: int
    avg: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p99_9: float | None = None
    max: float | None = None
    stdev: float | None = None


_NS_PER_US = 1000
_PERCENTILES = (50, 90, 99, 99.9)


def summarize(row: Mapping[str, Any]) -> LatencySummary:
    """Return the summary of a row of a (reduced) interval table, from `to_pylist` or an `Interval`.

    Needs the columns of `interval.HISTOGRAM`, buckets ascending.
    """
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
        avg=int(row["sum_ns"]) / (count * _NS_PER_US),
        min=int(row["min_ns"]) / _NS_PER_US,
        p50=p50,
        p90=p90,
        p99=p99,
        p99_9=p99_9,
        max=highest_ns / _NS_PER_US,
        stdev=stdev(bucket_count, bucket) / _NS_PER_US,
    )
