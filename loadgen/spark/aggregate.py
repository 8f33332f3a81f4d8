"""The views of `scorecard.views` over the interval files of many runs, by Spark.

A task gets some files of one run, reads them with pyarrow and hands their rows to the same
functions that the summary of one run uses; what it returns is small. Runs are cut into such pieces
only where no second has rows on both sides, so that a second's percentiles are made of all its
rows, and nothing but the totals of a run's pieces is left to merge. Files are opened where the
tasks run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from loadgen.control.redaction import printable
from loadgen.errors import CannotRunError, RunDirectoryError
from loadgen.scorecard.record import RunFiles, load_files
from loadgen.scorecard.views import (
    COURSE_SCHEMA,
    PROCESS_SCHEMA,
    TOTALS_BY,
    TOTALS_SCHEMA,
    Views,
    totals_of,
    views_of,
)
from loadgen.spark.session import reason_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE_FILES = 64
_PIECE_ROWS = 20_000
"""A piece is cut at the first clean second after so many files or rows: some 100 MB of them."""

_PARTITIONS_A_CORE = 4
"""Pieces differ in size: with some more tasks than cores none waits long for the last."""

_EMPTY = Views(
    TOTALS_SCHEMA.empty_table(), COURSE_SCHEMA.empty_table(), PROCESS_SCHEMA.empty_table()
)
_KEYS = frozenset({"run", "host", "worker", "second", "group", *TOTALS_BY})


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of one run that one call reads; `run` is its place in the list of runs."""

    run: int
    id: str
    shown: str
    files: tuple[Path, ...]
    background: frozenset[str]


def pieces_of(place: int, run: RunFiles) -> list[Piece]:
    """The files of a run, cut where all later rows are of later seconds."""
    firsts = (first for first, _ in reversed(run.seconds))
    later = [*accumulate(firsts, min, initial=2**31)][::-1]
    pieces: list[Piece] = []
    files: list[Path] = []
    rows, last = 0, -1
    for number, path in enumerate(run.files):
        files.append(path.resolve())
        rows += run.rows[number]
        last = max(last, run.seconds[number][1])
        full = len(files) >= _PIECE_FILES or rows >= _PIECE_ROWS
        if number == len(run.files) - 1 or (full and last < later[number + 1]):
            record, shown = run.record, str(run.directory)
            pieces.append(Piece(place, record.id, shown, tuple(files), record.background))
            files, rows = [], 0
    return pieces


def views_of_runs(spark: "SparkSession", runs: Sequence[RunFiles]) -> dict[str, Views]:
    """Run id to its views. Raises RunDirectoryError where rows cannot be read or are mixed,
    CannotRunError where Spark fails.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    pieces = [piece for place, run in enumerate(runs) for piece in pieces_of(place, run)]
    context = spark.sparkContext
    tasks = min(len(pieces), _PARTITIONS_A_CORE * context.defaultParallelism)
    try:
        answers = context.parallelize(pieces, tasks).mapPartitions(_views).collect()
    except (PySparkException, Py4JError) as error:
        # What is wrong with a run comes as an answer; this is Spark itself.
        reason = printable(reason_in(str(error)), 400)
        raise CannotRunError(f"Spark failed while it read the runs: {reason}") from error
    found: list[list[Views]] = [[_EMPTY] for _ in runs]
    for run, views in answers:
        if isinstance(views, str):
            raise RunDirectoryError(views)
        found[run].append(views)
    return {
        run.record.id: Views(
            totals=totals_of(pa.concat_tables(part.totals for part in parts)),
            course=_ordered(pa.concat_tables(part.course for part in parts)),
            processes=_ordered(pa.concat_tables(part.processes for part in parts)),
        )
        for run, parts in zip(runs, found, strict=True)
    }


def _views(pieces: Iterable[Piece]) -> Iterator[tuple[int, Views | str]]:
    """Run and views of each piece, the totals of a run's pieces as one; or why one has none."""
    totals: dict[int, pa.Table] = {}
    for piece in pieces:
        try:
            rows = load_files(piece.files, piece.id, piece.shown)
            own = views_of(rows, piece.background)
        except RunDirectoryError as error:
            yield piece.run, str(error)
            return
        yield piece.run, Views(_EMPTY.totals, own.course, own.processes)
        known = totals.get(piece.run, _EMPTY.totals)
        totals[piece.run] = totals_of(pa.concat_tables([known, own.totals]))
    for run, table in totals.items():
        yield run, Views(table, _EMPTY.course, _EMPTY.processes)


def _ordered(table: pa.Table) -> pa.Table:
    """Rows by their keys, which are the first columns, whichever task came first."""
    return table.sort_by([(name, "ascending") for name in table.schema.names if name in _KEYS])
