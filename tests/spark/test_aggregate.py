"""The cuts of the rows of runs, which must not show."""

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from loadgen.errors import CannotRunError
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import open_run
from loadgen.run import interval_files
from loadgen.run.interval_files import compact
from loadgen.spark import aggregate
from loadgen.spark.job import make_scorecards
from tests.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_cuts_do_not_show(
    make: ModuleType, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is late by two seconds; batches as small as they can be, and a file
    a task, so that seconds are in several; names that are patterns; one run put together, in row
    groups that divide seconds, and one not."""
    monkeypatch.setattr(aggregate, "_BATCH_ROWS", 7)
    monkeypatch.setattr(interval_files, "ROW_GROUP_ROWS", 7)
    settings = aggregate._SETTINGS | {"spark.sql.files.maxPartitionBytes": "1"}
    monkeypatch.setattr(aggregate, "_SETTINGS", settings)
    rows = [
        replace(row, second=row.second - 2) if row.worker == 1 and row.second in (4, 5) else row
        for row in make.rows_of("late", "fanout", 5)
    ]
    late = make.write_run(tmp_path / "[l]ate {a} 5%", make.run_document("late", "fanout", 5), rows)
    # Where they are written is when they came.
    for second in (2, 3):
        part = late / "intervals" / f"part-{second:06d}.parquet"
        part.rename(late / "intervals" / f"part-{second + 20:06d}.parquet")
    runs = [
        late,
        make.write_run(
            tmp_path / "one",
            make.run_document("one", "fanout", 5),
            [replace(row, run="one") for row in rows],
        ),
    ]
    compact(runs[1])
    (runs[1] / "intervals" / ".part-000009.parquet.17").write_bytes(b"half written")
    cards = make_scorecards(runs, spark=spark)
    assert cards == [summarize_run(run) for run in runs]


def test_a_run_of_more_than_a_file_may_be(
    make: ModuleType, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes no file of 2 GB; here, none of a whole run."""
    monkeypatch.setattr(interval_files, "ROW_GROUP_ROWS", 40)
    one, several = (make.fabricate(tmp_path / name, name, seconds=8) for name in ("a", "b"))
    compact(one)
    size = (one / "intervals" / "part-000000.parquet").stat().st_size
    settings = aggregate._SETTINGS | {"spark.sql.sources.binaryFile.maxLength": str(size - 1)}
    monkeypatch.setattr(aggregate, "_SETTINGS", settings)
    with refused("FAILED", CannotRunError) as caught:
        make_scorecards([one], spark=spark)
    assert re.search(r"FAILED_READ_FILE.*part-000000", caught.value.values["reason"])
    # Most of so small a file is its footer, which is written last.
    monkeypatch.setattr(interval_files, "LARGEST_FILE_BYTES", size // 9)
    compact(several)
    assert len(list((several / "intervals").iterdir())) == 3
    assert make_scorecards([several], spark=spark) == [summarize_run(several)]


def test_only_a_run_in_several_files_is_shuffled(
    make: ModuleType, tmp_path: Path, spark: "SparkSession"
) -> None:
    run = make.fabricate(tmp_path / "run")
    assert "Exchange" in plan_of(spark, run)
    compact(run)
    assert "Exchange" not in plan_of(spark, run)


def plan_of(spark: "SparkSession", run: Path) -> str:
    """Return the physical plan of the views of a run."""
    execution = aggregate._results(spark, [open_run(run)])._jdf.queryExecution()
    return str(execution.executedPlan().toString())
