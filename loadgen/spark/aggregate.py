"""The views of `report.views` over the interval table of many runs, by Spark.

Spark reads the files, which may be on any of its file systems, and hands them whole to Python.
There pyarrow unpacks their long lists at a third of the cost of Spark's reader. Every batch of rows
is reduced in the task that read it, by the functions of `report.views` that the summary of one run
uses. The reduced rows, about a thousandth of the batches, travel as Arrow in a binary column. One
task for each run makes them its views. No task holds more than a file and a batch, or the reduced
rows of a run.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.errors import RunDirectoryError
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.report.record import RunFiles, mixed, row_groups
from loadgen.report.views import Parts, Views, joined, parts_of, views_of_parts
from loadgen.run.redaction import printable
from loadgen.spark.session import own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Backgrounds = Mapping[str, frozenset[str]]
"""Run id to its groups whose latencies are not the case's result."""

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

_LEFT = pa.schema([("run", pa.string()), ("part", pa.string()), ("rows", pa.binary())])
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
            files.mapInArrow(_left_of(owners, backgrounds, _BATCH_ROWS), left)
            .groupBy("run")
            .applyInArrow(_views_of(backgrounds), left)
            .toArrow()
        )
    packed: dict[tuple[str, str], pa.BinaryScalar] = {}
    for run, part, rows in zip(*(results[name] for name in _LEFT.names), strict=True):
        if part.as_py() == "error":
            raise RunDirectoryError(rows.as_py().decode())
        packed[run.as_py(), part.as_py()] = rows
    nothing = views_of_parts(parts_of(INTERVAL_SCHEMA.empty_table(), ()), ())

    def views(run: str) -> Views:
        if (run, "totals") not in packed:
            return nothing
        return Views(**{one.name: _unpacked(packed[run, one.name]) for one in fields(Views)})

    return views


def _left_of(
    owners: Mapping[str, str], backgrounds: Backgrounds, batch_rows: int
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`: interval files, as Spark reads them, to reduced rows.

    `owners` are as in `_tables_in`.
    """

    def reduced(rows: pa.Table) -> Iterator[pa.RecordBatch]:
        for run in rows["run"].unique().to_pylist():
            if run not in backgrounds:
                raise RunDirectoryError(
                    f"the run directories hold rows of another run: {printable(str(run), 80)!r}"
                )
            of_run = pc.equal(rows["run"], run)
            # To copy histograms costs as much as to merge them.
            of_run = rows if pc.all(of_run).as_py() else rows.filter(of_run)
            yield from _packed(run, parts_of(of_run, backgrounds[run])).to_batches()

    def left(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.Table] = []
        try:
            for rows in _tables_in(batches, owners):
                waiting.append(rows)
                if sum(map(len, waiting)) >= batch_rows:
                    yield from reduced(pa.concat_tables(waiting))
                    waiting.clear()
            if waiting:
                yield from reduced(pa.concat_tables(waiting))
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


def _views_of(backgrounds: Backgrounds) -> Callable[..., pa.Table]:
    """Return a function for `applyInArrow`: reduced rows of a run to its views."""

    def views(key: tuple[Any, ...], left: pa.Table) -> pa.Table:
        run = key[0].as_py()
        tables: dict[str, list[pa.Table]] = {part.name: [] for part in fields(Parts)}
        for part, rows in zip(left["part"].to_pylist(), left["rows"], strict=True):
            if part == "error":
                return _failed(rows.as_py().decode())
            tables[part].append(_unpacked(rows))
        pieces = [Parts(*of_piece) for of_piece in zip(*tables.values(), strict=True)]
        try:
            return _packed(run, views_of_parts(joined(pieces), backgrounds[run]))
        except RunDirectoryError as error:
            return _failed(str(error))

    return views


def _packed(run: str, tables: Parts | Views) -> pa.Table:
    """Return a table of _LEFT with all these tables."""
    names = [one.name for one in fields(tables)]
    streams = []
    for name in names:
        table, stream = getattr(tables, name), pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema, options=_PACKED) as writer:
            writer.write_table(table)
        streams.append(stream.getvalue().to_pybytes())
    return pa.table([[run] * len(names), names, streams], schema=_LEFT)


def _unpacked(rows: pa.BinaryScalar) -> pa.Table:
    return pa.ipc.open_stream(rows.as_buffer()).read_all().combine_chunks()


def _failed(message: str) -> pa.Table:
    return pa.table([[""], ["error"], [message.encode()]], schema=_LEFT)
