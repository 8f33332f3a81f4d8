"""The history of score cards: a Parquet table that Spark appends to and queries.

Each run is in it once: a card that was made anew replaces the older one. A change rewrites the
months that it concerns, each as one file: the new file is appended, then the older ones are
deleted. Both need nothing but Spark's usual commit of an append.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loadgen.errors import CannotRunError, RunDirectoryError
from loadgen.report import history
from loadgen.report.build.compare import Bounds, Comparison, compare, load_of
from loadgen.report.history import HISTORY_SCHEMA, Course, month_of
from loadgen.report.score_card import ScoreCard
from loadgen.run.rundir import exclusive
from loadgen.sentences import SPARK_TEXT, printable
from loadgen.spark.session import own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def location(where: str) -> str:
    """Return a URL as it is, and a path as a URL."""
    return where if "://" in where else f"file://{Path(where).resolve()}"


def add_cards(
    spark: "SparkSession", where: str, cards: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[int, int]:
    """Add score cards, as (shown name, document); return the numbers of new and replaced ones.

    Raise RunDirectoryError for an invalid card, CannotRunError if the table cannot be written.
    """
    entries: dict[str, list[dict[str, Any]]] = {}
    for shown, document in cards:
        if lines := history.entries_of(document, shown):
            entries[lines[0]["run"]] = lines
    from pyspark.sql import functions as col

    with _alone(where), _spark_errors(where):
        table, present = _read(spark, where), {}
        months = {(lines[0]["case"], lines[0]["month"]) for lines in entries.values()}
        if table is not None and entries:
            firsts = _of_months(table, months).filter(col.col("card").isNotNull())
            rows = firsts.filter(col.col("run").isin([*entries])).select("run", "card").collect()
            present = {row["run"]: row["card"] for row in rows}
        changed = {run: of for run, of in entries.items() if present.get(run) != of[0]["card"]}
        months = {(lines[0]["case"], lines[0]["month"]) for lines in changed.values()}
        _rewrite(spark, where, table, months, changed)
    return len(changed.keys() - present.keys()), len(changed.keys() & present.keys())


def remove_runs(spark: "SparkSession", where: str, runs: Sequence[str]) -> int:
    """Remove the cards of runs; return the number of those that were there."""
    from pyspark.sql import functions as col

    with _alone(where), _spark_errors(where):
        table = _existing(spark, where)
        named = table.filter(col.col("run").isin([*runs]) & col.col("card").isNotNull())
        rows = named.select("run", "case", "month").distinct().collect()
        months = {(row["case"], row["month"]) for row in rows}
        _rewrite(spark, where, table, months, {row["run"]: [] for row in rows})
    return len({row["run"] for row in rows})


def _alone(where: str) -> AbstractContextManager[None]:
    """Wait for other writers; at a URL the user must prevent them."""
    return nullcontext() if "://" in where else exclusive(Path(where), wait=True)


def _of_months(table: "DataFrame", months: Collection[tuple[str, str]]) -> "DataFrame":
    """Return the rows of these cases and months, of which Spark lists no other directories."""
    from pyspark.sql import functions as col

    parts = ((col.col("case") == case) & (col.col("month") == month) for case, month in months)
    return table.filter(reduce(or_, parts))


def _rewrite(
    spark: "SparkSession",
    where: str,
    table: "DataFrame | None",
    months: Collection[tuple[str, str]],
    changed: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Write the months anew, each as one file, with these lines in place of those of their runs."""
    from pyspark.sql import functions as col

    if not changed:
        return
    lines = [line for of_run in changed.values() for line in of_run]
    frame, old = spark.createDataFrame(pa.Table.from_pylist(lines, HISTORY_SCHEMA)), []
    if table is not None:
        before = _of_months(table, months)
        old = [row[0] for row in before.select("_metadata.file_path").distinct().collect()]
        kept = before.filter(~col.col("run").isin([*changed])).dropDuplicates(["run", "place"])
        frame = kept.unionByName(frame)
    writer = frame.coalesce(1).write.mode("append").partitionBy("case", "month")
    writer.parquet(location(where))
    java, settings = spark._jvm, spark._jsc.hadoopConfiguration()
    assert java is not None, "a session of this program has a JVM"
    for file in old:
        path = java.org.apache.hadoop.fs.Path(java.java.net.URI(file))
        path.getFileSystem(settings).delete(path, False)


def baseline_of(
    spark: "SparkSession", where: str, card: ScoreCard, load: str, count: int
) -> list[ScoreCard]:
    """Return the last `count` VALID cards of this case and load, oldest first."""
    table = _read(spark, where)
    if table is None:
        return []
    from pyspark.sql import functions as col

    with _spark_errors(where):
        rows = (
            table.filter((col.col("case") == card.run.case) & (col.col("month") <= month_of(card)))
            .filter((col.col("load") == load) & col.col("valid") & col.col("card").isNotNull())
            .filter((col.col("started") <= card.run.started) & (col.col("run") != card.run.id))
            .dropDuplicates(["run"])
            .orderBy(col.desc("started"), col.desc("run"))
            .limit(count)
            .select("card")
            .collect()
        )
    return [history.past_card(row["card"]) for row in reversed(rows)]


def past_comparisons(
    spark: "SparkSession", where: str, cards: Sequence[ScoreCard], count: int, bounds: Bounds
) -> list[Comparison]:
    """Return comparisons of each load's cards with its last VALID ones in the history.

    Runs that are among the cards are not part of the baseline.
    """
    loads: dict[tuple[str, str], list[ScoreCard]] = {}
    for card in cards:
        loads.setdefault((card.run.case, load_of(card)), []).append(card)
    comparisons = []
    for (_, load), group in loads.items():
        first = min(group, key=lambda card: card.run.started)
        past = baseline_of(spark, where, first, load, count)
        if past:
            marks = [True] * len(past) + [False] * len(group)
            comparisons += compare([*past, *group], marks, bounds)
    return comparisons


def courses_of(
    spark: "SparkSession",
    where: str,
    case: str = "",
    row: str = "",
    since: str = "",
    rolling: int = 10,
) -> list[Course]:
    """Return all figures of all rows over time by case and load; raise RunDirectoryError."""
    table = _existing(spark, where)
    from pyspark.sql import Window
    from pyspark.sql import functions as col

    for column, wanted in (("case", case), ("name", row)):
        if wanted:
            table = table.filter(col.lower(col.col(column)) == wanted.lower())
    figures = [
        col.struct(
            col.lit(number).alias("number"),
            col.lit(key).alias("column"),
            col.col(key).alias("figure"),
        )
        for number, key in enumerate(history.COLUMNS)
    ]
    keys = ("case", "load", "place", "name", "unit", "number", "column")
    before = Window.partitionBy(*keys).orderBy("started", "run").rowsBetween(-rolling, -1)
    points = (
        table.filter("valid")
        .dropDuplicates(["run", "place"])
        .select("*", col.explode(col.array(*figures)).alias("of"))
        .select("*", "of.number", "of.column", "of.figure")
        .filter("figure is not null")
        .withColumn("before", col.avg("figure").over(before))
        .filter(col.col("started") >= since)
        .select(*keys, "started", "run", "broker", "figure", "before", "description")
        .orderBy(*keys, "started", "run")
    )
    with _spark_errors(where):
        rows = points.collect()
    about = ("case", "load", "name", "place", "column", "unit", "description")
    point = itemgetter("started", "run", "broker", "figure", "before")
    # The description is that of the last run.
    return [
        Course(
            **{key: entries[-1][key] for key in about},
            points=tuple(history.Point(*point(entry)) for entry in entries),
        )
        for entries in ([*of_course] for _, of_course in groupby(rows, itemgetter(*keys)))
    ]


def _read(spark: "SparkSession", where: str) -> "DataFrame | None":
    """Return the table, None if it does not exist; an interrupted change leaves duplicates."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        with _spark_errors(where):
            schema = from_arrow_schema(HISTORY_SCHEMA)
            return own_settings(spark).read.schema(schema).parquet(location(where))
    except CannotRunError as error:
        cause = error.__cause__
        if isinstance(cause, AnalysisException) and "PATH_NOT_FOUND" in str(cause):
            return None
        raise


def _existing(spark: "SparkSession", where: str) -> "DataFrame":
    table = _read(spark, where)
    if table is None:
        raise RunDirectoryError(SPARK_TEXT.NO_HISTORY(where=printable(where, 200)))
    return table


def _spark_errors(where: str) -> AbstractContextManager[None]:
    return spark_errors(f"the history in {printable(where, 200)} cannot be used")
