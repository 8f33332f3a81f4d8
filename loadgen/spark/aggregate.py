"""The views of `report.views` over the interval table of many runs, by Spark.

Spark reads the files, which may be on any of its file systems, and hands them whole to Python.
There pyarrow unpacks their long lists at a third of the cost of Spark's reader. Every batch of rows
is reduced in the task that read it, by the functions of `report.views` that the summary of one run
uses. The reduced rows, about a thousandth of the batches, travel as Arrow in a binary column. One
task for each run and block of seconds merges them, so that a second has all its rows. No task holds
more than a file and a batch, or the reduced rows of a block.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.errors import RunDirectoryError
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.metrics.reducer import reduced_schema
from loadgen.report.record import RunFiles, mixed, row_groups
from loadgen.report.views import (
    COURSE_SCHEMA,
    PROCESS_SCHEMA,
    TOTALS_BY,
    Parts,
    Views,
    course_of_parts,
    parts_of,
    processes_of_parts,
    totals_of,
)
from loadgen.run.redaction import printable
from loadgen.spark.session import own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Backgrounds = Mapping[str, frozenset[str]]
"""Run id to its groups whose latencies are not the case's result."""

_BLOCK_SECONDS = 256
"""Seconds of a run that one call merges into a course."""

_ALL_SECONDS = -(2**31)
"""The block of rows that are not by second."""

_BATCH_ROWS = 4096
"""Rows of small files are concatenated up to this number, about 10 MB unpacked."""

_SETTINGS = {
    # Tasks of some ten megabytes on disk; each opened file counts like 256 KiB.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.files.openCostInBytes": "256k",
    # A Spark job for the listing costs more than a listing of hundreds of directories here.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # One batch to Python has one large file, or many small ones.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
}

PYTHON_SETTINGS = {
    # Freed memory is soon needed again: to fault its pages in anew took a third of the time.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""Settings of the session that runs these tasks."""

_LEFT = pa.schema(
    [("run", pa.string()), ("block", pa.int32()), ("part", pa.string()), ("rows", pa.binary())]
)
"""Reduced rows: `rows` is a table as an Arrow stream, `part` a field of Parts or Views.

With the part "error", `rows` is a message.
"""

_PACKED = pa.ipc.IpcWriteOptions(compression="zstd")
"""Compression that shrinks histograms to a fifth, in Java and in the driver's memory."""

_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""Characters that Spark reads as a pattern unless they are escaped."""


def plain_name(path: str) -> str:
    """Escape a path for Spark, which reads paths as patterns."""
    return _PATTERN.sub(r"\\\1", path)


def views_of_runs(spark: "SparkSession", runs: Sequence[RunFiles]) -> Callable[[str], Views]:
    """Return a function from a run's id to its views, which stay packed until it is called.

    Raise RunDirectoryError if rows cannot be read or are mixed, CannotRunError if Spark fails.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    backgrounds = {run.record.id: run.record.background for run in runs}
    owners = {run.intervals: run.record.id for run in runs}
    spark = own_settings(spark, _SETTINGS)
    files = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", "*.parquet")
        .load([plain_name(run.intervals) for run in runs])
        .select("path", "content")
    )
    left = from_arrow_schema(_LEFT)
    with spark_errors("Spark failed while it read the runs"):
        results = (
            files.mapInArrow(_left_of(owners, backgrounds, _BLOCK_SECONDS, _BATCH_ROWS), left)
            .groupBy("run", "block")
            .applyInArrow(_views_of(backgrounds), left)
            .toArrow()
        )
    return _by_run(results)


def _left_of(
    owners: Mapping[str, str],
    backgrounds: Backgrounds,
    block_seconds: int,
    batch_rows: int,
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`: interval files, as Spark reads them, to reduced rows.

    `owners` are as in `_tables_in`.
    """

    def left(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for rows in _gathered(_tables_in(batches, owners), batch_rows):
                for run in rows["run"].unique().to_pylist():
                    of_run = _rows_of(run, rows, backgrounds)
                    yield from _left(of_run, run, backgrounds, block_seconds).to_batches()
        except RunDirectoryError as error:
            yield from _failed(str(error)).to_batches()

    return left


def _tables_in(batches: Iterable[pa.RecordBatch], owners: Mapping[str, str]) -> Iterator[pa.Table]:
    """Yield the row groups of files that come as path and content.

    `owners` has the run of each directory at a URL; local directories are already checked.
    """
    for batch in batches:
        for path, content in zip(
            batch.column("path").to_pylist(), batch.column("content"), strict=True
        ):
            directory, _, name = path.rpartition("/intervals/")
            where = f"run directory {printable(directory.removeprefix('file:'), 200)}: {name}"
            owner = owners.get(f"{directory}/intervals")
            for rows in row_groups(content.as_buffer(), where):
                others = {*rows["run"].unique().to_pylist()} - {owner}
                if owner is not None and others:
                    raise mixed(where, others, owner)
                yield rows


def _gathered(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the tables, concatenated until they have at least this many rows."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= rows:
            yield pa.concat_tables(waiting)
            waiting.clear()
    if waiting:
        yield pa.concat_tables(waiting)


def _rows_of(run: str, rows: pa.Table, backgrounds: Collection[str]) -> pa.Table:
    if run not in backgrounds:
        raise RunDirectoryError(
            f"the run directories hold rows of another run: {printable(str(run), 80)!r}"
        )
    of_run = pc.equal(rows["run"], run)
    # To copy histograms costs as much as to merge them.
    return rows if pc.all(of_run).as_py() else rows.filter(of_run)


def _left(rows: pa.Table, run: str, backgrounds: Backgrounds, block_seconds: int) -> pa.Table:
    parts = parts_of(rows, backgrounds[run])
    pieces: list[tuple[int, str, pa.Table]] = [(_ALL_SECONDS, "totals", parts.totals)]
    for name in ("counters", "latencies", "processes"):
        table = getattr(parts, name)
        block = pc.divide(table["second"], block_seconds)
        pieces += [
            (number, name, table.filter(pc.equal(block, number)))
            for number in block.unique().to_pylist()
        ]
    return _packed(run, pieces)


def _views_of(backgrounds: Backgrounds) -> Callable[..., pa.Table]:
    """Return a function for `applyInArrow`: reduced rows of a run's block to views of it."""

    def views(key: tuple[Any, ...], left: pa.Table) -> pa.Table:
        run, block = (value.as_py() for value in key)
        names = left.column("part").to_pylist()
        if "error" in names:
            return left.slice(names.index("error"), 1)
        if names == ["totals"]:
            return left
        try:
            parts = _parts(left)
            if block == _ALL_SECONDS:
                return _packed(run, [(block, "totals", totals_of(parts.totals))])
            course = course_of_parts(parts.counters, parts.latencies, backgrounds[run])
            processes = processes_of_parts(parts.processes)
        except RunDirectoryError as error:
            return _failed(str(error))
        return _packed(run, [(block, "course", course), (block, "processes", processes)])

    return views


def _parts(left: pa.Table) -> Parts:
    """Return reduced rows, concatenated by part."""
    nothing = parts_of(INTERVAL_SCHEMA.empty_table(), ())
    tables_of: dict[str, list[pa.Table]] = {
        field.name: [getattr(nothing, field.name)] for field in fields(Parts)
    }
    for part, rows in zip(left.column("part").to_pylist(), left.column("rows"), strict=True):
        tables_of[part].append(_unpacked(rows))
    return Parts(**{name: pa.concat_tables(tables) for name, tables in tables_of.items()})


def _by_run(results: pa.Table) -> Callable[[str], Views]:
    """Return the views of each run from all tasks' results; raise RunDirectoryError."""
    # Sort by block, so that rows are in the order of their seconds, not of the tasks.
    results = results.sort_by([("run", "ascending"), ("block", "ascending")])
    parts = results["part"].to_pylist()
    if "error" in parts:
        raise RunDirectoryError(results["rows"][parts.index("error")].as_py().decode())
    places: dict[str, list[int]] = {}
    for place, run in enumerate(results["run"].to_pylist()):
        places.setdefault(run, []).append(place)

    def views(run: str) -> Views:
        tables = {
            "totals": [reduced_schema(TOTALS_BY).empty_table()],
            "course": [COURSE_SCHEMA.empty_table()],
            "processes": [PROCESS_SCHEMA.empty_table()],
        }
        for place in places.get(run, ()):
            tables[parts[place]].append(_unpacked(results["rows"][place]))
        return Views(
            totals=pa.concat_tables(tables["totals"]).combine_chunks(),
            course=_ordered(tables["course"], ("second", "group", "series")),
            processes=_ordered(tables["processes"], ("host", "worker", "second")),
        )

    return views


def _ordered(tables: Sequence[pa.Table], by: Sequence[str]) -> pa.Table:
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in by])


def _packed(run: str, tables: Iterable[tuple[int, str, pa.Table]]) -> pa.Table:
    """Return a table of _LEFT from block, part and table."""
    present = [(block, part, table) for block, part, table in tables if table.num_rows]
    streams = []
    for _, _, table in present:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema, options=_PACKED) as writer:
            writer.write_table(table)
        streams.append(stream.getvalue().to_pybytes())
    blocks = [block for block, _, _ in present]
    parts = [part for _, part, _ in present]
    return pa.table([[run] * len(present), blocks, parts, streams], schema=_LEFT)


def _unpacked(rows: pa.BinaryScalar) -> pa.Table:
    return pa.ipc.open_stream(rows.as_buffer()).read_all()


def _failed(message: str) -> pa.Table:
    return pa.table([[""], [_ALL_SECONDS], ["error"], [message.encode()]], schema=_LEFT)
