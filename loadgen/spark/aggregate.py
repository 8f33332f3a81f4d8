"""The views of `scorecard.views` over the interval table of many runs, by Spark.

Spark reads the table wherever its file systems reach, and every batch of rows is reduced where it
was read, by the functions that the summary of one run uses (`scorecard.views`). What is left of the
batches, some thousandth of them, travels as Arrow in one binary column to the task that has the
same run and block of seconds, where it is put together: a second has all its rows, wherever they
were read. No task holds more than a batch, or what is left of a block.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.control.redaction import printable
from loadgen.errors import CannotRunError, RunDirectoryError
from loadgen.metrics.interval import INTERVAL_SCHEMA, LATER
from loadgen.scorecard.record import RunFiles
from loadgen.scorecard.views import (
    COURSE_SCHEMA,
    PROCESS_SCHEMA,
    Parts,
    Views,
    course_of_parts,
    parts_of,
    processes_of_parts,
    totals_of,
)
from loadgen.spark.session import own_settings, reason_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Backgrounds = Mapping[str, frozenset[str]]
"""Run id to its groups whose latencies are not the case's result."""

_BLOCK_SECONDS = 256
"""Seconds of a run that one call makes into a course."""

_ALL_SECONDS = -(2**31)
"""The block of what is not told by second."""

_SETTINGS = {
    # A task is some ten megabytes on the disk; a file a second costs what its bytes cost.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.files.openCostInBytes": "256k",
    # Histograms are long: as many rows as make some ten megabytes.
    "spark.sql.parquet.columnarReaderBatchSize": "1024",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
}

_LEFT = pa.schema(
    [("run", pa.string()), ("block", pa.int32()), ("part", pa.string()), ("rows", pa.binary())]
)
"""What is left of rows: `rows` is a table as an Arrow stream, `part` a field of Parts or Views.

With the part "error", `rows` is a message.
"""

_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""What Spark takes for a pattern in a name, unless it is escaped."""

_LOST_FILE = "Encountered error while reading file "


def views_of_runs(spark: "SparkSession", runs: Sequence[RunFiles]) -> dict[str, Views]:
    """Run id to its views. Raises RunDirectoryError where rows cannot be read or are mixed,
    CannotRunError where Spark fails.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    backgrounds = {run.record.id: run.record.background for run in runs}
    spark = own_settings(spark, _SETTINGS)
    rows = (
        spark.read.schema(from_arrow_schema(INTERVAL_SCHEMA))
        .option("pathGlobFilter", "*.parquet")
        .parquet(*(_PATTERN.sub(r"\\\1", run.intervals) for run in runs))
    )
    left = from_arrow_schema(_LEFT)
    try:
        found = (
            rows.mapInArrow(_left_of(backgrounds, _BLOCK_SECONDS), left)
            .groupBy("run", "block")
            .applyInArrow(_views_of(backgrounds), left)
            .toArrow()
        )
    except (PySparkException, Py4JError) as error:
        raise _failure(str(error), runs) from error
    return _assembled(found, [run.record.id for run in runs])


def _left_of(
    backgrounds: Backgrounds, block_seconds: int
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: rows of the interval table to what is left of them."""

    def left(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = _without_nulls(pa.Table.from_batches([batch]))
            try:
                for run in rows["run"].unique().to_pylist():
                    yield from _left(rows, run, backgrounds, block_seconds).to_batches()
            except RunDirectoryError as error:
                yield from _failed(str(error)).to_batches()
                return

    return left


def _left(rows: pa.Table, run: str, backgrounds: Backgrounds, block_seconds: int) -> pa.Table:
    if run not in backgrounds:
        raise RunDirectoryError(
            f"the run directories hold rows of another run: {printable(str(run), 80)!r}"
        )
    of_run = pc.equal(rows["run"], run)
    # Copying histograms costs as much as merging them.
    own = rows if pc.all(of_run).as_py() else rows.filter(of_run)
    parts = parts_of(own, backgrounds[run])
    told: list[tuple[int, str, pa.Table]] = [(_ALL_SECONDS, "totals", parts.totals)]
    for name in ("counters", "latencies", "processes"):
        table = getattr(parts, name)
        block = pc.divide(table["second"], block_seconds)
        told += [
            (number, name, table.filter(pc.equal(block, number)))
            for number in block.unique().to_pylist()
        ]
    return _packed(run, told)


def _views_of(backgrounds: Backgrounds) -> Callable[..., pa.Table]:
    """For `applyInArrow`: what is left of a run's block, or of all its seconds, to views of it."""

    def views(key: tuple[Any, ...], left: pa.Table) -> pa.Table:
        run, block = (one.as_py() for one in key)
        known = left.column("part").to_pylist()
        if "error" in known:
            return left.slice(known.index("error"), 1)
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
    """All that is left of some rows, put together by part."""
    nothing = parts_of(INTERVAL_SCHEMA.empty_table(), ())
    found: dict[str, list[pa.Table]] = {
        field.name: [getattr(nothing, field.name)] for field in fields(Parts)
    }
    for part, rows in zip(left.column("part").to_pylist(), left.column("rows"), strict=True):
        found[part].append(_unpacked(rows))
    return Parts(**{name: pa.concat_tables(tables) for name, tables in found.items()})


def _assembled(found: pa.Table, runs: Sequence[str]) -> dict[str, Views]:
    """Views of each run from the answers of all tasks; raises RunDirectoryError for an error."""
    tables: dict[str, dict[str, list[pa.Table]]] = {
        run: {
            "totals": [],
            "course": [COURSE_SCHEMA.empty_table()],
            "processes": [PROCESS_SCHEMA.empty_table()],
        }
        for run in runs
    }
    # By block: then rows are in the order of their seconds, whichever task came first.
    found = found.sort_by([("run", "ascending"), ("block", "ascending")])
    for run, part, rows in zip(
        found["run"].to_pylist(), found["part"].to_pylist(), found["rows"], strict=True
    ):
        if part == "error":
            raise RunDirectoryError(rows.as_py().decode())
        tables[run][part].append(_unpacked(rows))
    empty = parts_of(INTERVAL_SCHEMA.empty_table(), ()).totals
    return {
        run: Views(
            totals=pa.concat_tables([empty, *own["totals"]]).combine_chunks(),
            course=_ordered(own["course"], ("second", "group", "series")),
            processes=_ordered(own["processes"], ("host", "worker", "second")),
        )
        for run, own in tables.items()
    }


def _ordered(tables: Sequence[pa.Table], by: Sequence[str]) -> pa.Table:
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in by])


def _packed(run: str, tables: Iterable[tuple[int, str, pa.Table]]) -> pa.Table:
    """A table of _LEFT from block, part and table."""
    some = [(block, part, table) for block, part, table in tables if table.num_rows]
    streams = []
    for _, _, table in some:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        streams.append(stream.getvalue().to_pybytes())
    blocks = [block for block, _, _ in some]
    parts = [part for _, part, _ in some]
    return pa.table([[run] * len(some), blocks, parts, streams], schema=_LEFT)


def _unpacked(rows: pa.BinaryScalar) -> pa.Table:
    return pa.ipc.open_stream(rows.as_buffer()).read_all()


def _failed(message: str) -> pa.Table:
    return pa.table([[""], [_ALL_SECONDS], ["error"], [message.encode()]], schema=_LEFT)


def _without_nulls(rows: pa.Table) -> pa.Table:
    """The rows with 0 in the columns that older files lack, where Spark has nulls."""
    for name in LATER:
        place = rows.schema.get_field_index(name)
        if rows[name].null_count:
            rows = rows.set_column(place, name, pc.fill_null(rows[name], 0))
    return rows


def _failure(says: str, runs: Sequence[RunFiles]) -> RunDirectoryError | CannotRunError:
    """What Spark says of a job that failed: a file that cannot be read, or Spark itself."""
    reason = printable(reason_in(says), 400)
    _, lost, rest = says.partition(_LOST_FILE)
    for run in runs if lost else ():
        where, found, part = rest.partition(run.intervals.removeprefix("file://") + "/")
        if found and len(where) < len("file:///"):
            name = printable(part.split(".parquet")[0], 100)
            shown = printable(run.shown, 200)
            return RunDirectoryError(f"run directory {shown}: {name}.parquet is damaged: {reason}")
    return CannotRunError(f"Spark failed while it read the runs: {reason}")
