"""The views of `scorecard.views` over the interval files of many runs, by Spark.

A task gets some files of one run, reads them with pyarrow and hands their rows to the same
functions that the summary of one run uses; what it returns is small. Runs are cut into such pieces
only where no second has rows on both sides, so that a second's percentiles are made of all its
rows, and nothing but the totals of a run's pieces is left to merge. Files are opened where the
tasks run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    course_of,
    processes_of,
    totals_of,
)
from loadgen.spark.session import reason_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE_FILES = 64
_PIECE_ROWS = 20_000
"""A piece is cut at the first clean second after so many files or rows: some 100 MB of them."""

_PARTITIONS_A_CORE = 4
"""Pieces differ in size: with some more tasks than cores none waits long for the last."""

_VIEWS = {"totals": TOTALS_SCHEMA, "course": COURSE_SCHEMA, "processes": PROCESS_SCHEMA}
_ANSWER = pa.schema([("run", pa.int32()), ("view", pa.string()), ("table", pa.binary())])
_ANSWER_COLUMNS = "run int, view string, table binary"


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of one run that one call reads; `run` is its place in the list of runs."""

    run: int
    id: str
    directory: Path
    shown: str
    files: tuple[str, ...]
    background: frozenset[str]


def pieces_of(place: int, run: RunFiles) -> list[Piece]:
    """The files of a run, cut where all later rows are of later seconds."""
    later: list[int] = [2**31]
    for first, _ in reversed(run.seconds):
        later.append(min(first, later[-1]))
    later.reverse()
    pieces, files, rows, last = [], [], 0, -1
    for number, path in enumerate(run.files):
        files.append(path.name)
        rows += run.rows[number]
        last = max(last, run.seconds[number][1])
        full = len(files) >= _PIECE_FILES or rows >= _PIECE_ROWS
        if number == len(run.files) - 1 or (full and last < later[number + 1]):
            pieces.append(
                Piece(
                    run=place,
                    id=run.record.id,
                    directory=(run.directory / "intervals").resolve(),
                    shown=str(run.directory),
                    files=tuple(files),
                    background=run.record.background,
                )
            )
            files, rows = [], 0
    return pieces


def views_of_runs(spark: "SparkSession", runs: Sequence[RunFiles]) -> dict[str, Views]:
    """Run id to its views. Raises RunDirectoryError where rows cannot be read or are mixed,
    CannotRunError where Spark fails.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    pieces = [piece for place, run in enumerate(runs) for piece in pieces_of(place, run)]
    tasks = min(len(pieces), _PARTITIONS_A_CORE * spark.sparkContext.defaultParallelism)
    try:
        answers = (
            spark.range(0, len(pieces), 1, tasks)
            .mapInArrow(lambda batches: _views(batches, pieces), _ANSWER_COLUMNS)
            .toArrow()
        )
    except (PySparkException, Py4JError) as error:
        # What is wrong with a run comes as an answer; this is Spark itself.
        reason = printable(reason_in(str(error)), 400)
        raise CannotRunError(f"Spark failed while it read the runs: {reason}") from error
    found: dict[tuple[int, str], list[pa.Table]] = {}
    for answer in answers.to_pylist():
        if answer["view"] == "error":
            raise RunDirectoryError(answer["table"].decode())
        table = pa.ipc.open_stream(answer["table"]).read_all()
        found.setdefault((answer["run"], answer["view"]), []).append(table)
    return {
        run.record.id: Views(
            totals=totals_of(_together(found, place, "totals")),
            course=_ordered(_together(found, place, "course")),
            processes=_ordered(_together(found, place, "processes")),
        )
        for place, run in enumerate(runs)
    }


def _views(batches: Iterable[pa.RecordBatch], pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
    """The views of each piece that is numbered; the totals of a run's pieces as one."""
    totals: pa.Table | None = None
    run = -1
    for batch in batches:
        for number in batch.column(0).to_pylist():
            piece = pieces[number]
            try:
                rows = load_files(
                    [piece.directory / name for name in piece.files], piece.id, piece.shown
                )
                own = totals_of(rows)
                course = course_of(rows, {piece.id: piece.background})
                processes = processes_of(rows)
            except RunDirectoryError as error:
                yield _answer(piece.run, "error", str(error).encode())
                return
            yield _answer(piece.run, "course", _written(course))
            yield _answer(piece.run, "processes", _written(processes))
            if piece.run != run and totals is not None:
                yield _answer(run, "totals", _written(totals))
                totals = None
            totals = own if totals is None else totals_of(pa.concat_tables([totals, own]))
            run = piece.run
    if totals is not None:
        yield _answer(run, "totals", _written(totals))


def _answer(run: int, view: str, table: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"run": [run], "view": [view], "table": [table]}, _ANSWER)


def _written(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


def _together(found: dict[tuple[int, str], list[pa.Table]], place: int, view: str) -> pa.Table:
    return pa.concat_tables(found.get((place, view)) or [_VIEWS[view].empty_table()])


def _ordered(table: pa.Table) -> pa.Table:
    """Rows by their keys, which are the first columns, whichever task came first."""
    keys = [name for name in table.schema.names if name in _KEYS]
    return table.sort_by([(name, "ascending") for name in keys])


_KEYS = frozenset({"run", "host", "worker", "second", "group", *TOTALS_BY})
