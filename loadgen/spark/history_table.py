"""The history of score cards: a Parquet table that Spark appends to and queries.

It may be on any of Spark's file systems. A card that is already in it is not added again. If two
programs add the same card at once, one entry counts.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loadgen.errors import CannotRunError, RunDirectoryError
from loadgen.report.build.compare import Bounds, Comparison, compare, load_of
from loadgen.report.history import (
    COLUMNS,
    HISTORY_SCHEMA,
    Course,
    Point,
    entries_of,
    past_card,
)
from loadgen.report.score_card import ScoreCard
from loadgen.run.redaction import printable
from loadgen.run.rundir import exclusive
from loadgen.spark.session import own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def location(where: str) -> str:
    """Return a URL as it is, and a path as a URL."""
    return where if "://" in where else f"file://{Path(where).resolve()}"


def add_cards(
    spark: "SparkSession", where: str, cards: Sequence[tuple[str, dict[str, Any]]]
) -> int:
    """Append score cards, as (shown name, document); return the number of new ones.

    Raise RunDirectoryError for an invalid card, CannotRunError if the table cannot be written.
    """
    entries: dict[str, list[dict[str, Any]]] = {}
    for shown, document in cards:
        lines = entries_of(document, shown)
        entries.setdefault(lines[0]["run"], lines) if lines else None
    # At a URL the user must prevent concurrent adds.
    with nullcontext() if "://" in where else exclusive(Path(where)):
        table = _read(spark, where)
        present: set[str] = set()
        if table is not None:
            with _spark_errors(where):
                present = {row["run"] for row in table.select("run").distinct().collect()}
        new = [line for run, lines in entries.items() if run not in present for line in lines]
        if new:
            rows = pa.Table.from_pylist(new, HISTORY_SCHEMA)
            frame = spark.createDataFrame(rows).coalesce(1)
            with _spark_errors(where):
                frame.write.mode("append").partitionBy("case", "month").parquet(location(where))
    return len(entries.keys() - present)


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
            table.filter(col.col("case") == card.run.case)
            .filter((col.col("load") == load) & col.col("valid") & col.col("card").isNotNull())
            .filter((col.col("started") <= card.run.started) & (col.col("run") != card.run.id))
            .orderBy(col.desc("started"), col.desc("run"))
            .limit(count)
            .select("card")
            .collect()
        )
    return [past_card(row["card"]) for row in reversed(rows)]


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
    table = _read(spark, where)
    if table is None:
        raise RunDirectoryError(
            f"{printable(where, 200)} holds no history; begin one with loadgen history add"
        )
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
        for number, key in enumerate(COLUMNS)
    ]
    keys = ("case", "load", "place", "name", "unit", "number", "column")
    before = Window.partitionBy(*keys).orderBy("started", "run").rowsBetween(-rolling, -1)
    points = (
        table.filter("valid")
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
    courses: dict[tuple[Any, ...], list[Point]] = {}
    described: dict[tuple[Any, ...], str] = {}
    for entry in rows:
        key = tuple(entry[name] for name in keys)
        point = Point(
            entry["started"], entry["run"], entry["broker"], entry["figure"], entry["before"]
        )
        courses.setdefault(key, []).append(point)
        described[key] = entry["description"]  # of the last run
    return [
        Course(case, load, name, place, column, unit, described[key], tuple(of_course))
        for key, of_course in courses.items()
        for case, load, place, name, unit, _, column in (key,)
    ]


def _read(spark: "SparkSession", where: str) -> "DataFrame | None":
    """Return the table, each entry once; None if it does not exist."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        with _spark_errors(where):
            table = (
                own_settings(spark)
                .read.schema(from_arrow_schema(HISTORY_SCHEMA))
                .parquet(location(where))
            )
    except CannotRunError as error:
        if isinstance(error.__cause__, AnalysisException) and "PATH_NOT_FOUND" in str(
            error.__cause__
        ):
            return None
        raise
    return table.dropDuplicates(["run", "place"])


def _spark_errors(where: str) -> AbstractContextManager[None]:
    return spark_errors(f"the history in {printable(where, 200)} cannot be used")
