"""Run directories at URLs that only Spark's file systems can read, as hdfs://host/runs/a.

One Spark job reads the documents of all runs (run.json, its seal, the logs of broker and power) and
lists their other files, which the tasks of `spark.aggregate` read and digest once.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cases.registry import DOCUMENTS
from loadgen.errors import RunDirectoryError
from loadgen.report.build import broker_section as broker
from loadgen.report.record import LARGEST_MANIFEST_BYTES, RunFiles, open_run
from loadgen.run.power_log import POWER_FILE
from loadgen.run.seal import SUMS
from loadgen.sentences import REPORT_TEXT, printable
from loadgen.spark.session import own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DOCUMENTS = ("run.json", SUMS, broker.FILE, POWER_FILE)
FILES = f"{{{','.join(DOCUMENTS)},*.jsonl,*.parquet}}"
"""Pattern of the files of a run directory that are read for their rows or digests."""
_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""Characters that Spark reads as a pattern unless they are escaped."""


def plain_name(path: str) -> str:
    """Escape a path for Spark, which reads paths as patterns."""
    return _PATTERN.sub(r"\\\1", path)


def is_url(where: object) -> bool:
    return "://" in str(where)


def open_remote(spark: "SparkSession", urls: Sequence[str], scratch: Path) -> list[RunFiles]:
    """Return the runs at these URLs, in order; raise RunDirectoryError and CannotRunError."""
    with spark_errors("Spark cannot read the runs"):
        roots = [_qualified(spark, url) for url in urls]
        names = _read_documents(spark, roots, scratch)
    directories = [scratch / str(number) for number in range(len(roots))]
    return [*map(open_run, directories, roots, names)]


def _qualified(spark: "SparkSession", url: str) -> str:
    java = spark.sparkContext
    path = java._jvm.org.apache.hadoop.fs.Path(url)  # type: ignore[union-attr]
    files = path.getFileSystem(java._jsc.hadoopConfiguration())
    return str(files.makeQualified(path).toString())


def _read_documents(spark: "SparkSession", roots: Sequence[str], scratch: Path) -> list[list[str]]:
    """Copy the documents of each run to a directory, and return the names of its interval files."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as col

    session = own_settings(spark)

    def files_like(pattern: str) -> "DataFrame":
        return (
            session.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", pattern)
            .load([plain_name(root) for root in roots])
        )

    small = col.col("length") <= LARGEST_MANIFEST_BYTES
    try:
        documents = files_like(f"{{{','.join(_DOCUMENTS)}}}").select(
            "path", col.when(small, col.col("content")).alias("content")
        )
        # A column that is not selected is not read.
        empty = col.lit(None).cast("binary").alias("content")
        tables = files_like("*.parquet").select("path", empty)
    except AnalysisException as error:
        missing = re.search(r"PATH_NOT_FOUND.*?exist: (.*?)\. SQLSTATE", str(error), re.DOTALL)
        if missing is None:
            raise
        where = f"run directory {printable(missing[1], 200)}"
        raise RunDirectoryError(REPORT_TEXT.NO_DIRECTORY(where=where)) from None
    numbers = {root: number for number, root in enumerate(roots)}
    names: list[list[str]] = [[] for _ in roots]
    for number in range(len(roots)):
        (scratch / str(number)).mkdir()
    for row in documents.union(tables).toLocalIterator():
        folder, _, name = row["path"].rpartition("/")
        if folder in numbers and row["content"] is not None:
            (scratch / str(numbers[folder]) / name).write_bytes(row["content"])
        root, _, parent = folder.rpartition("/")
        if root in numbers and parent == "intervals":
            names[numbers[root]].append(f"intervals/{name}")
    return names
