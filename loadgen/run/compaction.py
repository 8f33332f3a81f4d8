"""Merging of the interval files after a run, mostly into one.

A run writes a file a second, so that a killed one stays readable; but opening so many files costs a
reader more than their rows do. The new files are written into a hidden directory next to
`intervals`, and the two directories are exchanged by one system call: at every moment `intervals`
holds each row of the run once.
"""

import ctypes
import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.run.rundir import make_folder, open_in_place

ROW_GROUP_ROWS = 20_000
"""At the least; some 100 MB when unpacked. A row group is what a reader holds at once."""

LARGEST_FILE_BYTES = 32 << 20
"""After so many no row group is begun. A reader may hold a file whole; Spark takes none of 2 GB."""

_LATE_S = 5
"""Rows of so many last seconds wait for the next file: no second is in two, unless a worker was
later than that."""

WRITE_OPTIONS = {
    "compression": "zstd",
    # Buckets ascend and most counts are small: half as large so, and read with less work.
    "use_dictionary": ["run", "group", "phase", "series", "bucket_count.list.element"],
    "column_encoding": {"bucket.list.element": "DELTA_BINARY_PACKED"},
}

_AT_FDCWD = -100  # <fcntl.h>: paths are relative to the current directory
_RENAME_EXCHANGE = 2  # <linux/fs.h>


def compact(run_dir: Path) -> None:
    """Merge the interval files of a run that has ended, in the order written.

    Change nothing if there are fewer than two, if one cannot be read, or if the disk or the file
    system does not allow it (NFS has no exchange): many files are as good, only slower.
    """
    intervals = run_dir / "intervals"
    parts = sorted(p for p in intervals.glob("*.parquet") if not p.name.startswith("."))
    if len(parts) < 2:
        return
    with suppress(OSError, pa.ArrowException), _hidden(run_dir) as made:
        _write(parts, made)
        _exchange(made, intervals)


@contextmanager
def _hidden(run_dir: Path) -> Iterator[Path]:
    made = run_dir / f".intervals.{os.getpid()}"
    make_folder(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(parts: list[Path], made: Path) -> None:
    with pq.ParquetFile(parts[0]) as first:
        waiting = INTERVAL_SCHEMA.with_metadata(first.schema_arrow.metadata).empty_table()
    left = deque(parts)
    while left:
        waiting = _write_file(left, waiting, made / left[0].name)


def _write_file(parts: deque[Path], rows: pa.Table, path: Path) -> pa.Table:
    """Write these rows and those of as many parts as fit; returns the rows for the next file."""
    schema = rows.schema
    tables, later = [rows], rows.slice(0, 0)
    with open(path, "wb", opener=open_in_place) as file:
        with pq.ParquetWriter(file, schema, **WRITE_OPTIONS) as writer:
            full = False
            while parts and not full:
                with pq.ParquetFile(parts.popleft()) as read:
                    tables.append(read.read(use_threads=False).cast(schema))
                if parts and sum(map(len, tables)) < ROW_GROUP_ROWS:
                    continue
                rows = pa.concat_tables(tables).sort_by("second")
                tables.clear()
                full = bool(parts) and file.tell() >= LARGEST_FILE_BYTES
                if full:
                    waits = pc.greater(rows["second"], rows["second"][-1].as_py() - _LATE_S)
                    rows, later = rows.filter(pc.invert(waits)), rows.filter(waits)
                if rows.num_rows:
                    writer.write_table(rows, row_group_size=rows.num_rows)
        # The parts go next: from here on this file must outlive a power cut.
        os.fsync(file.fileno())
    return later


def _exchange(one: Path, other: Path) -> None:
    """Exchange two paths of one file system; raise OSError if that is not possible."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError("this C library has no renameat2")
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
