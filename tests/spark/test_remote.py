"""Runs at places that this program cannot read, but Spark's file systems can."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from loadgen.errors import RunDirectoryError
from loadgen.report.build.summary import summarize_run
from loadgen.run.interval_files import compact
from loadgen.run.seal import seal
from loadgen.spark.job import make_scorecards
from tests.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_runs_at_urls(make: ModuleType, tmp_path: Path, spark: "SparkSession") -> None:
    """Of a file system of Hadoop's that no path of this host names, and one of this host between;
    the seal is read there, too."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.far.link./runs", f"file://{tmp_path}")
    names = ("[a] 5%", "b", "c")
    runs = [make.fabricate(tmp_path / name, name[:2], "fanout") for name in names]
    compact(runs[0])
    for run in runs:
        seal(run)
    (runs[2] / "events.jsonl").write_text("{}\n")
    named = [f"viewfs://far/runs/{names[0]}", runs[1], "viewfs://far/runs/c/"]
    cards = make_scorecards(named, spark=spark)
    assert cards == [summarize_run(run) for run in runs]
    assert [card.integrity.state for card in cards] == ["intact", "intact", "changed"]
    moved = runs[2] / "intervals" / "part-000900.parquet"
    shutil.copy(runs[1] / "intervals" / "part-000004.parquet", moved)
    with refused("OTHER_RUN", where="run directory viewfs://far/runs/c: part-000900.parquet"):
        make_scorecards(named, spark=spark)
    (runs[2] / "run.json").unlink()
    (runs[0] / "intervals" / "part-000000.parquet").write_bytes(b"cut off")
    for run, code, part in (
        ("c", "NO_RECORD", ""),
        ("none", "NO_DIRECTORY", ""),
        (names[0], "DAMAGED", ": part-000000.parquet"),
    ):
        url = f"viewfs://far/runs/{run}"
        with refused(code, RunDirectoryError, where=f"run directory {url}{part}"):
            make_scorecards([url], spark=spark)
