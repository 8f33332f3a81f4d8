"""The views of `report.views` over the interval table of many runs, by Spark.

Spark hands files whole to Python, where pyarrow unpacks them at a third of the cost. The task that
reads a run's only file makes its views; the files of other runs are reduced where they are read,
and only the reduced rows are shuffled. The views stay on the disks of the executors. No task holds
more than a file and a batch, or the reduced rows of a run.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from loadgen.errors import RunDirectoryError
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.report.packing import packed, unpacked
from loadgen.report.record import RunFiles, mixed, row_groups
from loadgen.report.views import Parts, Views, joined, parts_of, views_of, views_of_parts
from loadgen.run.seal import covered
from loadgen.sentences import printable
from loadgen.spark.remote import FILES, plain_name
from loadgen.spark.session import SETTINGS, own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 4096  # rows of small files are concatenated up to this number, some 10 MB unpacked
_SETTINGS = SETTINGS["files"]
_RESULT = pa.schema([("run", pa.string()), ("kind", pa.string()), ("value", pa.binary())])
"""A result of a run: its packed "parts" or "views", the "digest" of a file, or an "error"."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A run as its tasks need it. The files of a `remote` run are digested where they are read."""

    run: str
    background: frozenset[str]
    remote: bool


_Sources = Mapping[str, _Source]  # directory, as `_directory` returns it, to the run in it


@dataclass(frozen=True, slots=True)
class RunViews:
    """The results of the tasks; `digests` has those of each remote run's files by their names."""

    digests: Mapping[str, Mapping[str, str]]
    each: Callable[[], Iterator[tuple[str, Views]]]
    """Returns an iterator over the id and the views of every run, in any order."""


@contextmanager
def views_of_runs(spark: "SparkSession", runs: Sequence[RunFiles]) -> Iterator[RunViews]:
    """Provide the views of these runs, which stay on the executors' disks during the block.

    Raise RunDirectoryError if rows cannot be read or are mixed, CannotRunError if Spark fails.
    """
    from pyspark import StorageLevel

    with spark_errors("Spark failed while it read the runs"):
        results = _results(spark, runs).persist(StorageLevel.DISK_ONLY)
        try:
            # The only job that reads files. It returns what is small.
            small = results.filter("kind != 'views'").toArrow().to_pylist()
            for row in small:
                if row["kind"] == "error":
                    raise unpacked(row["value"])
            digests: dict[str, dict[str, str]] = {}
            for row in small:
                name, digest = unpacked(row["value"])
                digests.setdefault(row["run"], {})[name] = digest

            def each() -> Iterator[tuple[str, Views]]:
                left = {run.record.id for run in runs}
                with spark_errors("Spark failed while it returned the views"):
                    for row in results.filter("kind = 'views'").toLocalIterator():
                        left.remove(row["run"])
                        yield row["run"], unpacked(row["value"])
                for run in sorted(left):
                    yield run, views_of(INTERVAL_SCHEMA.empty_table(), ())

            yield RunViews(digests, each)
        finally:
            results.unpersist()


def _results(spark: "SparkSession", runs: Sequence[RunFiles]) -> "DataFrame":
    """Return the table of _RESULT of all runs; rows of runs in several files are shuffled."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(_RESULT)
    sources, frames = {}, []
    for run in runs:
        root = run.intervals.removesuffix("/intervals")
        sources[_directory(root)] = _Source(run.record.id, run.record.background, run.remote)
    local = {} if any(run.remote for run in runs) else SETTINGS["local files"]
    spark = own_settings(spark, _SETTINGS | local)
    for several in (False, True):
        roots = [
            run.intervals.removesuffix("/intervals") if run.remote else run.intervals
            for run in runs
            if (len(run.files) > 1) == several
        ]
        if not roots:
            continue
        files = (
            spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", FILES)
            .load([plain_name(root) for root in roots])
            .select("path", "content")
            .mapInArrow(_reducer(sources, _BATCH_ROWS, several=several), schema)
        )
        if several:
            files = files.groupBy("run").applyInArrow(_joiner(sources), schema)
        frames.append(files)
    return frames[0] if len(frames) == 1 else frames[0].union(frames[1])


def _directory(path: str) -> str:
    """Return a directory in one spelling: Spark writes file:/a for file:///a."""
    return re.sub("^file:/+", "/", path)


def _reducer(
    sources: _Sources, batch_rows: int, *, several: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from files of Spark to rows of _RESULT: parts if `several`, or views."""

    def reduced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for source, contents in groupby(_contents_in(batches, sources), lambda file: file[0]):
                pieces: list[Parts] = []
                waiting: list[pa.Table] = []
                for _, content in contents:
                    if isinstance(content, tuple):
                        yield _result(source.run, "digest", packed(content))
                        continue
                    waiting.append(content)
                    if sum(map(len, waiting)) >= batch_rows:
                        pieces.append(parts_of(pa.concat_tables(waiting), source.background))
                        waiting.clear()
                if waiting:
                    pieces.append(parts_of(pa.concat_tables(waiting), source.background))
                if pieces and several:
                    yield _result(source.run, "parts", packed(_all_parts(pieces)))
                elif pieces:
                    views = views_of_parts(_all_parts(pieces), source.background)
                    yield _result(source.run, "views", packed(views))
        except RunDirectoryError as error:
            yield _result("", "error", packed(error))

    return reduced


def _contents_in(
    batches: Iterable[pa.RecordBatch], sources: _Sources
) -> Iterator[tuple[_Source, pa.Table | tuple[str, str]]]:
    """Yield the rows of interval files by row groups, and (name, digest) of remote files."""
    for batch in batches:
        columns = (batch.column("path").to_pylist(), batch.column("content"))
        for path, content in zip(*columns, strict=True):
            folder, _, name = path.rpartition("/")
            directory, _, parent = folder.rpartition("/")
            source = sources.get(_directory(folder))
            if source is None:
                source, name = sources.get(_directory(directory)), f"{parent}/{name}"
            if source is None:
                continue  # not of a run directory's own files
            data = content.as_buffer()
            if source.remote and covered(name):
                yield source, (name, hashlib.sha256(data).hexdigest())
            if not name.startswith("intervals/"):
                continue
            where = f"run directory {printable(_directory(directory), 200)}: {Path(name).name}"
            for rows in row_groups(data, where):
                ids = {*rows["run"].unique().to_pylist()}
                if ids - {source.run}:
                    raise mixed(where, ids, source.run)
                yield source, rows


def _joiner(sources: _Sources) -> Callable[..., pa.Table]:
    """Return a function for `applyInArrow`: all rows of _RESULT of a run to its views."""
    backgrounds = {source.run: source.background for source in sources.values()}

    def views(key: tuple[Any, ...], results: pa.Table) -> pa.Table:
        run, rows, pieces = key[0].as_py(), [], []
        for row in results.to_pylist():
            if row["kind"] == "parts":
                pieces.append(unpacked(row["value"]))
            else:
                rows.append(_result(**row))
        try:
            if pieces:
                made = views_of_parts(_all_parts(pieces), backgrounds[run])
                rows.append(_result(run, "views", packed(made)))
        except RunDirectoryError as error:
            rows.append(_result(run, "error", packed(error)))
        return pa.Table.from_batches(rows, _RESULT)

    return views


def _all_parts(pieces: Sequence[Parts]) -> Parts:
    """Return the parts of a run; a piece that is all of it is not reduced again."""
    return joined(pieces) if len(pieces) > 1 else pieces[0]


def _result(run: str, kind: str, value: bytes) -> pa.RecordBatch:
    return pa.record_batch([[run], [kind], [value]], schema=_RESULT)
