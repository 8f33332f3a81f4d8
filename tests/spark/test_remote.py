"""Runs where this program cannot look, but Spark's file systems can."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from loadgen.errors import RunDirectoryError
from loadgen.report.build.summary import summarize_run
from loadgen.run.interval_files import compact
from loadgen.run.seal import seal
from loadgen.spark.job import make_scorecards

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
    with pytest.raises(RunDirectoryError, match=r"c: part-000900\.parquet holds rows of another"):
        make_scorecards(named, spark=spark)
    (runs[2] / "run.json").unlink()
    (runs[0] / "intervals" / "part-000000.parquet").write_bytes(b"cut off")
    for where, says in (
        ("c", r"^run directory viewfs://far/runs/c has no run\.json"),
        ("none", "^run directory viewfs://far/runs/none does not exist"),
        (names[0], r"^run directory viewfs://far/runs/\[a\] 5%: part-000000\.parquet is damaged"),
    ):
        with pytest.raises(RunDirectoryError, match=says):
            make_scorecards([f"viewfs://far/runs/{where}"], spark=spark)
