"""The interval files of a run: one a second while it runs, merged after it, mostly into one.

So many files keep a killed run readable, but cost a reader more than their rows. The merged ones
are written next to `intervals`, and one system call exchanges the two directories: at every moment
`intervals` holds each row once.
"""

import ctypes
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.metrics.interval import INTERVAL_SCHEMA, RUN_METADATA_KEY, Interval, to_table
from loadgen.metrics.reducer import reduce_table
from loadgen.run.rundir import make_folder, open_in_place, replacing

ROW_GROUP_ROWS = 20_000
"""Least rows of a row group, which a reader holds at once: some 100 MB when unpacked."""
LARGEST_FILE_BYTES = 32 << 20
"""Size after which a file gets no more row groups: a reader may hold it whole (Spark: 2 GB)."""

WRITE_OPTIONS = {
    "compression": "zstd",
    # Buckets ascend and most counts are small: this halves the size and the work of a reader.
    "use_dictionary": ["run", "group", "phase", "series", "bucket_count.list.element"],
    "column_encoding": {"bucket.list.element": "DELTA_BINARY_PACKED"},
}

_AT_FDCWD = -100  # <fcntl.h>: paths are relative to the current directory
_RENAME_EXCHANGE = 2  # <linux/fs.h>


class IntervalWriter:
    """Writes intervals/part-SSSSSS.parquet, S being the seconds since the run's anchor.

    The seconds of a run begin at `anchor_ns` (CLOCK_MONOTONIC).
    """

    def __init__(self, directory: Path, run: str, anchor_ns: int = 0) -> None:
        self.run, self.anchor_ns = run, anchor_ns
        self._directory = directory / "intervals"
        self._parts = -1

    def write(self, second: int, rows: Sequence[Interval]) -> None:
        if not rows:
            return
        self._parts = max(second, self._parts + 1)
        table = to_table(rows).replace_schema_metadata({RUN_METADATA_KEY: self.run.encode()})
        with replacing(self._directory / f"part-{self._parts:06d}.parquet") as hidden:
            pq.write_table(table, hidden, compression="zstd")


def window_rows(directory: Path) -> list[dict[str, Any]]:
    parts = []
    for table in _tables(directory):
        measured = table.filter(pc.equal(table["phase"], "measure"))
        parts.append(reduce_table(measured, ("group", "phase", "series")))
    if not parts:
        return []
    # Reduced by file first: a long run never has all its rows in memory.
    whole = pa.concat_tables(parts)
    rows: list[dict[str, Any]] = reduce_table(whole, ("group", "phase", "series")).to_pylist()
    return rows


def course(
    directory: Path, counter: str = "received", group: str | None = None
) -> list[tuple[int, int, int]]:
    """Return (from, until, count) of each second of each worker, in ns; of one group or of all."""
    rows: list[tuple[int, int, int]] = []
    for table in _tables(directory):
        counted = table.filter(pc.greater(table[counter], 0))
        if group is not None:
            counted = counted.filter(pc.equal(counted["group"], group))
        sums = counted.group_by(["time_ns", "span_ns"]).aggregate([(counter, "sum")])
        columns = (sums[name].to_pylist() for name in ("time_ns", "span_ns", f"{counter}_sum"))
        rows += [(at_ns, at_ns + ns, count) for at_ns, ns, count in zip(*columns, strict=True)]
    return rows


def _tables(directory: Path) -> Iterator[pa.Table]:
    for path in sorted((directory / "intervals").glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            table = file.read().select(INTERVAL_SCHEMA.names)
        yield table.replace_schema_metadata(None).cast(INTERVAL_SCHEMA)


def compact(run_dir: Path) -> None:
    """Merge the interval files of a run that has ended, in the order written.

    Change nothing if there are fewer than two, if one cannot be read, or if the file system has no
    exchange (NFS): many files are as good, only slower.
    """
    intervals = run_dir / "intervals"
    parts = sorted(p for p in intervals.glob("*.parquet") if not p.name.startswith("."))
    if len(parts) < 2:
        return
    made = run_dir / f".intervals.{os.getpid()}"
    make_folder(made)
    try:
        with suppress(OSError, pa.ArrowException):
            with pq.ParquetFile(parts[0]) as first:
                schema = INTERVAL_SCHEMA.with_metadata(first.schema_arrow.metadata)
            left = deque(parts)
            while left:
                _write_file(left, schema, made / left[0].name)
            _exchange(made, intervals)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_file(parts: deque[Path], schema: pa.Schema, path: Path) -> None:
    """Write the rows of as many parts as fit into one file."""
    with open(path, "wb", opener=open_in_place) as file:
        with pq.ParquetWriter(file, schema, **WRITE_OPTIONS) as writer:
            tables: list[pa.Table] = []
            while parts and file.tell() < LARGEST_FILE_BYTES:
                with pq.ParquetFile(parts.popleft()) as read:
                    tables.append(read.read(use_threads=False).cast(schema))
                if not parts or sum(map(len, tables)) >= ROW_GROUP_ROWS:
                    rows = pa.concat_tables(tables).sort_by("second")
                    writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
                    tables.clear()
        # The parts go next: from here on this file must outlive a power cut.
        os.fsync(file.fileno())


def _exchange(one: Path, other: Path) -> None:
    """Exchange two paths of one file system; raise OSError if that is not possible."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError("this C library has no renameat2")
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
