"""The interval rows of a run, as the run itself recorded them: of its window, and its course."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.metrics.reducer import reduce_table


def window_rows(directory: Path) -> list[dict[str, Any]]:
    parts = []
    for table in _tables(directory):
        measured = table.filter(pc.equal(table["phase"], "measure"))
        parts.append(reduce_table(measured, ("group", "phase", "series")))
    if not parts:
        return []
    # Reduced once a file and once over all: a long run never has all its rows in memory.
    whole = pa.concat_tables(parts)
    rows: list[dict[str, Any]] = reduce_table(whole, ("group", "phase", "series")).to_pylist()
    return rows


def course(directory: Path) -> list[tuple[int, int, int]]:
    """Return (from, until, messages received) of each second of each worker, in ns."""
    rows: list[tuple[int, int, int]] = []
    for table in _tables(directory):
        counted = table.filter(pc.greater(table["received"], 0))
        sums = counted.group_by(["time_ns", "span_ns"]).aggregate([("received", "sum")])
        columns = (sums[name].to_pylist() for name in ("time_ns", "span_ns", "received_sum"))
        rows += [
            (from_ns, from_ns + ns, count) for from_ns, ns, count in zip(*columns, strict=True)
        ]
    return rows


def _tables(directory: Path) -> Iterator[pa.Table]:
    for path in sorted((directory / "intervals").glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            table = file.read().select(INTERVAL_SCHEMA.names)
        yield table.replace_schema_metadata(None).cast(INTERVAL_SCHEMA)
