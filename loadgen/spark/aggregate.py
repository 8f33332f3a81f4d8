"""The views of `scorecard.views` over the interval rows of many runs, by Spark.

Both jobs hand Arrow tables to the same functions that the summary of one run uses. Rows are
reduced where they are read, before they are shuffled: a run's totals are a few rows a partition.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from loadgen.errors import RunDirectoryError
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.metrics.reducer import reduced_schema
from loadgen.scorecard.record import RunFiles
from loadgen.scorecard.views import (
    COURSE_SCHEMA,
    COURSE_SERIES,
    PROCESS_SCHEMA,
    TOTALS_BY,
    Background,
    Views,
    course_of,
    processes_of,
    totals_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["views_of_runs"]

_CHUNK_SECONDS = 64
"""Seconds of a run whose course one task draws: enough rows to be worth a call, few to hold."""

_TOTALS_SCHEMA = reduced_schema(TOTALS_BY)


def views_of_runs(spark: "SparkSession", runs: Sequence[RunFiles]) -> dict[str, Views]:
    """Run id to its views. Raises RunDirectoryError where rows cannot be read or are mixed."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    background = {run.record.id: run.record.background for run in runs}
    rows = spark.read.schema(from_arrow_schema(INTERVAL_SCHEMA)).parquet(
        *(str((run.directory / "intervals").resolve()) for run in runs)
    )
    try:
        totals = _totals(rows)
        course = _course(rows.where(F.col("series").isin(*COURSE_SERIES)), background)
        processes = _processes(rows.where((F.col("group") == "") & (F.col("series") == "")))
    except (PySparkException, Py4JError) as error:
        raise RunDirectoryError(_cause(error)) from error
    strange = sorted(set(totals["run"].unique().to_pylist()) - background.keys())
    if strange:
        raise RunDirectoryError(
            f"the run directories hold rows of another run: {strange[0][:80]!r}"
        )
    return {
        run: Views(*(_only(view, run) for view in (totals, course, processes)))
        for run in background
    }


def _totals(rows: "DataFrame") -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    partial = rows.mapInArrow(_reduce_batches, from_arrow_schema(_TOTALS_SCHEMA))
    merged = partial.groupBy("run").applyInArrow(totals_of, from_arrow_schema(_TOTALS_SCHEMA))
    return _collected(merged, _TOTALS_SCHEMA)


def _course(rows: "DataFrame", background: Background) -> pa.Table:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    chunk = F.floor(F.col("second") / _CHUNK_SECONDS)
    drawn = rows.groupBy("run", chunk).applyInArrow(
        lambda table: course_of(table, background), from_arrow_schema(COURSE_SCHEMA)
    )
    return _collected(drawn, COURSE_SCHEMA)


def _processes(rows: "DataFrame") -> pa.Table:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    # These rows have no histogram: without its columns most of a file need not be read.
    bare = rows.withColumns(
        {
            "bucket": F.array().cast("array<int>"),
            "bucket_count": F.array().cast("array<bigint>"),
        }
    )
    merged = bare.groupBy("run").applyInArrow(processes_of, from_arrow_schema(PROCESS_SCHEMA))
    return _collected(merged, PROCESS_SCHEMA)


def _reduce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Totals of each batch, and of them all: what leaves a partition is small."""
    kept = _TOTALS_SCHEMA.empty_table()
    for batch in batches:
        kept = totals_of(pa.concat_tables([kept, totals_of(pa.table(batch))]))
    yield from kept.combine_chunks().to_batches()


def _collected(frame: "DataFrame", schema: pa.Schema) -> pa.Table:
    """The rows on the driver, in the schema, ordered by its first columns (the keys)."""
    table = frame.toArrow().select(schema.names).cast(schema)
    keys = [(name, "ascending") for name in schema.names if name in _KEYS]
    return table.sort_by(keys)


_KEYS = ("run", "host", "worker", "second", "group", "phase", "series")


def _only(table: pa.Table, run: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.equal(table["run"], run))


_FILE = re.compile(r"(?:file://)?(/[^\s]+\.parquet)")


def _cause(error: Exception) -> str:
    """One line of what went wrong, whether a Python worker or the JVM met it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("loadgen.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    file = next((found[1] for line in lines if (found := _FILE.search(line))), None)
    if file:
        return f"interval file {file} is damaged or cut off"
    return f"interval files cannot be read: {lines[0][:300]}"
