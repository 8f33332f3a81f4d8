"""Run directories at URLs that only Spark's file systems can read, as hdfs://host/runs/a.

One Spark job reads all of them. It returns the documents of a run (run.json, its seal, the broker's
log), and the digests of its other files. The tasks of `spark.aggregate` read their rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cases.registry import DOCUMENTS
from loadgen.errors import RunDirectoryError
from loadgen.report.build import broker_section as broker
from loadgen.report.record import LARGEST_MANIFEST_BYTES, RunFiles, open_run
from loadgen.run.redaction import printable
from loadgen.run.seal import SUMS, covered
from loadgen.scratch import scratch_directory
from loadgen.spark.session import own_settings, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DOCUMENTS = ("run.json", SUMS, broker.FILE)
_READ = f"{{{','.join(('run.json', *DOCUMENTS, SUMS))},*.jsonl,*.parquet}}"
_SETTINGS = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
}


def is_url(where: object) -> bool:
    """Return True if a run is named by a URL and not by a path of this host."""
    return "://" in str(where)


def open_remote(spark: "SparkSession", urls: Sequence[str]) -> list[RunFiles]:
    """Return the runs at these URLs, in order; raise RunDirectoryError and CannotRunError."""
    with spark_errors("Spark cannot read the runs"):
        roots = [_root(spark, url) for url in urls]
        files = _files_in(spark, roots)
    with scratch_directory("spark") as scratch:
        return [
            _opened(scratch / str(number), root, files[root]) for number, root in enumerate(roots)
        ]


def _root(spark: "SparkSession", url: str) -> str:
    """Return the directory as Spark names its files; raise RunDirectoryError."""
    java = spark.sparkContext
    path = java._jvm.org.apache.hadoop.fs.Path(url)  # type: ignore[union-attr]
    files = path.getFileSystem(java._jsc.hadoopConfiguration())
    if not files.exists(path) or not files.getFileStatus(path).isDirectory():
        shown = printable(url, 200)
        raise RunDirectoryError(f"run directory {shown} does not exist or is not a directory")
    return str(files.makeQualified(path).toString())


def _files_in(
    spark: "SparkSession", roots: Sequence[str]
) -> dict[str, dict[str, tuple[str, bytes | None]]]:
    """Return the files of each directory by path: digest, and the content of documents."""
    from pyspark.sql import functions as col

    from loadgen.spark.aggregate import plain_name

    document = col.substring_index("path", "/", -1).isin(*_DOCUMENTS)
    small = col.col("length") <= LARGEST_MANIFEST_BYTES
    rows = (
        own_settings(spark, _SETTINGS)
        .read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", _READ)
        .load([plain_name(root) for root in roots])
        .select(
            "path",
            col.sha2("content", 256).alias("digest"),
            col.when(document & small, col.col("content")).alias("content"),
        )
        .toArrow()
    )
    files: dict[str, dict[str, tuple[str, bytes | None]]] = {root: {} for root in roots}
    for row in rows.to_pylist():
        # The file is in the run directory, or in intervals/ there.
        root, _, name = row["path"].rpartition("/")
        if root not in files:
            root, _, folder = root.rpartition("/")
            name = f"{folder}/{name}"
        if root in files:
            files[root][name] = (row["digest"], row["content"])
    return files


def _opened(scratch: Path, root: str, files: dict[str, tuple[str, bytes | None]]) -> RunFiles:
    scratch.mkdir()
    for name in _DOCUMENTS:
        if name in files and (content := files[name][1]) is not None:
            (scratch / name).write_bytes(content)
    digests = {name: digest for name, (digest, _) in sorted(files.items()) if covered(name)}
    return open_run(scratch, root, digests)
