"""The score cards that Spark makes are those of the summary without it, to the last digit."""

import pickle
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from loadgen.errors import RunDirectoryError
from loadgen.metrics.interval import LATER
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.settings import log_settings
from loadgen.report.render.html import to_html
from loadgen.report.render.write import to_json
from loadgen.spark.job import make_scorecards
from tests.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES = ("connburst", "latency", "persistent", "fanout", "fanin")
PDU = Path(__file__).parents[1] / "report" / "power" / "pdu"
LOGS = [PDU / "power_supply_1.log", PDU / "power_supply_2.log"]
IN_THE_TABLES = 1_366_970_765  # 2013-04-26T10:06:05Z


def test_every_case_equals_the_summary(
    make: ModuleType, tmp_path: Path, spark: "SparkSession"
) -> None:
    """A run longer than one task's piece of the course, and histograms that differ by run.

    Columns that came later are nowhere in the files of a run of an older version, and a background
    group of one run is not that of another.
    """
    runs = [
        make.fabricate(tmp_path / case, f"run-{case}", case, rows_seed=place, seconds=seconds)
        for place, (case, seconds) in enumerate(zip(CASES, (4, 70, 4, 5, 6), strict=True))
    ]
    document = make.run_document("other")
    document["plan"]["groups"][1]["timed"] = False
    runs += [make.write_run(tmp_path / "other", document, make.rows_of("other"))]
    for part in (runs[-1] / "intervals").iterdir():
        pq.write_table(pq.read_table(part).drop_columns(list(LATER)), part)
    cards = make_scorecards(runs, spark=spark)
    summaries = [summarize_run(run) for run in runs]
    assert [card.run.case for card in cards] == [*CASES, "fanin"]
    assert cards == summaries == pickle.loads(pickle.dumps(cards))
    assert to_json(report_of(cards)) == to_json(report_of(summaries))
    assert to_html(report_of(cards)) == to_html(report_of(summaries))
    assert len(cards[1].curves.course) > 64
    assert "end_to_end" in cards[4].latency
    assert "end_to_end" not in cards[5].latency and "background.end_to_end" in cards[5].latency


def test_power_equals_the_summary(make: ModuleType, tmp_path: Path, spark: "SparkSession") -> None:
    runs = []
    for name, later in (("a", 0), ("b", 90)):
        clock = {
            "monotonic_ns": make.ANCHOR_NS,
            "wall_ns": (IN_THE_TABLES + later) * make.SECOND_NS,
        }
        runs.append(make.fabricate(tmp_path / name, name, "persistent", clock=clock))
    settings = log_settings(LOGS, "UTC")
    cards = make_scorecards(runs, settings, 2, spark=spark)
    assert cards == [summarize_run(run, settings, 2) for run in runs]
    for card in cards:
        assert card.power is not None
        assert [Path(outlet.log).name for outlet in card.power.outlets] == [p.name for p in LOGS]
    assert cards[0].power is not None and cards[0].power.watts == 303.0
    assert cards[1].power is not None and cards[1].power.watts == 307.0
    assert [row.name for row in cards[0].rows] == [
        *("PERSISTENT", "PERSISTENT.MPW", "PERSISTENT.MPU", "PERSISTENT.JPM"),
        "PERSISTENT.end_to_end",
    ]


def test_damage_that_only_reading_shows(
    make: ModuleType, tmp_path: Path, spark: "SparkSession"
) -> None:
    """A file that was cut, and a histogram that disagrees with its count, on an executor."""
    run = make.fabricate(tmp_path / "run")
    part = run / "intervals" / "part-000004.parquet"
    data = part.read_bytes()
    part.write_bytes(data[:4] + bytes(596) + data[600:])
    rows = make.rows_of("other")
    place = next(i for i, row in enumerate(rows) if row.series == "end_to_end")
    rows[place] = replace(rows[place], count=rows[place].count + 1)
    other = make.write_run(tmp_path / "other", make.run_document("other"), rows)
    for damaged, code in ((run, "DAMAGED"), (other, "HISTOGRAM_COUNT")):
        with refused(code, RunDirectoryError) as caught:
            make_scorecards([damaged], spark=spark)
        assert "\n" not in str(caught.value)


def test_what_needs_no_spark_is_refused_before_it_starts(make: ModuleType, tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    master = "no such master"
    with pytest.raises(RunDirectoryError, check=lambda error: error.code == "NO_RECORD"):
        make_scorecards([tmp_path], master=master)
    with pytest.raises(RunDirectoryError, check=lambda error: error.code == "SAME_RUN"):
        make_scorecards([run, run], master=master)
