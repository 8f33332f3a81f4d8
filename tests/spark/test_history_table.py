"""The history: each card once, trends by hand, and a baseline that rolls."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from loadgen.errors import RunDirectoryError
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import Bounds, load_of, regressions
from loadgen.report.build.summary import summarize_run
from loadgen.report.history import documents_in, history_report, past_card, weeks_of
from loadgen.report.render.html import to_html
from loadgen.report.render.write import to_json
from loadgen.report.score_card import ScoreCard, card_document
from loadgen.run.rundir import exclusive
from loadgen.spark.history_table import (
    add_cards,
    baseline_of,
    courses_of,
    past_comparisons,
    remove_runs,
)
from tests.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = (100.0, 104.0, 96.0, 102.0)
DAYS = ("2026-10-26", "2026-10-28", "2026-11-02", "2026-11-03")


@pytest.fixture(scope="module")
def card(make: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> ScoreCard:
    return summarize_run(make.fabricate(tmp_path_factory.mktemp("runs") / "a"))


def document(card: ScoreCard, run: str, day: str, value: float, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(orjson.dumps(card_document(card), default=dict))
    found["run"] |= {"id": run, "started": f"{day}T12:00:00Z"} | changes
    found["rows"][0]["value"] = value
    return found


def documents(card: ScoreCard) -> list[tuple[str, dict[str, Any]]]:
    known = zip(DAYS, VALUES, strict=True)
    return [(f"c{n}", document(card, f"r{n}", *of)) for n, of in enumerate(known)]


@pytest.fixture(scope="module")
def history(
    spark: "SparkSession", card: ScoreCard, tmp_path_factory: pytest.TempPathFactory
) -> str:
    where = tmp_path_factory.mktemp("with space") / "history"
    other = document(card, "other", DAYS[0], 1.0, scenario={"devices": 7})
    invalid = document(card, "invalid", DAYS[3], 1.0)
    invalid["verdict"] = {"valid": False, "reasons": [{"code": "LOST", "detail": "some"}]}
    told = [*documents(card), ("o", other), ("i", invalid)]
    assert add_cards(spark, str(where), told) == (6, 0)
    # Again: from another file, by itself, and twice in one go.
    assert add_cards(spark, str(where), [*told, *told]) == (0, 0)
    return f"file://{where}"


def value_of(courses: Sequence[Any]) -> Any:
    return next(c for c in courses if c.column == "value" and len(c.points) == 4)


def test_a_table_by_case_and_month(history: str) -> None:
    where = Path(history.removeprefix("file://"))
    folders = {str(path.relative_to(where)) for path in where.glob("*/*") if path.is_dir()}
    assert folders == {"case=fanin/month=2026-10", "case=fanin/month=2026-11"}


def test_weeks_and_the_rolling_mean(spark: "SparkSession", history: str, card: ScoreCard) -> None:
    courses = courses_of(spark, history, "FANIN", rolling=2)
    course = value_of(courses)
    assert course.name == card.rows[0].name
    assert course.description == card.rows[0].description
    assert [point.value for point in course.points] == [*VALUES]
    assert [point.before for point in course.points] == [None, 100.0, 102.0, 100.0]
    assert weeks_of(course) == [("2026-10-26", 2, 102, 100, 104), ("2026-11-02", 2, 99, 96, 102)]
    # Every case has a latency to follow.
    assert {"value", "p50", "p99"} == {c.column for c in courses}
    assert courses_of(spark, history, row="NO.SUCH") == []
    late = courses_of(spark, history, row=course.name, since="2026-11-01")
    points = [p.value for c in late if (c.column, c.place) == ("value", 0) for p in c.points]
    assert points == [96.0, 102.0]
    page = to_html(history_report(courses, 2)).decode()
    assert page.count("<figure>") == len(courses)


def test_the_baseline_rolls(spark: "SparkSession", history: str, card: ScoreCard) -> None:
    load = load_of(card)
    new = past_card(orjson.dumps(document(card, "new", "2026-11-04", 60.0)).decode())
    assert load_of(new) == load
    found = baseline_of(spark, history, new, load, 3)
    assert [one.run.id for one in found] == ["r1", "r2", "r3"]
    # A run is no baseline of itself, nor of what came before it.
    third = past_card(orjson.dumps(documents(card)[2][1]).decode())
    assert [one.run.id for one in baseline_of(spark, history, third, load, 9)] == ["r0", "r1"]
    (comparison,) = past_comparisons(spark, history, [new], 3, Bounds(0.05))
    told = [line for line in regressions([comparison]) if line.startswith(card.rows[0].name)]
    assert len(told) == 1 and "60" in told[0]
    same = past_card(orjson.dumps(document(card, "new", "2026-11-04", 101.0)).decode())
    assert regressions(past_comparisons(spark, history, [same], 3, Bounds(0.05))) == []


def test_a_card_made_anew_replaces_its_old_one(
    spark: "SparkSession", card: ScoreCard, tmp_path: Path
) -> None:
    where = tmp_path / "history"
    assert add_cards(spark, str(where), documents(card)) == (4, 0)
    again = document(card, "r1", DAYS[1], 77.0)
    assert add_cards(spark, str(where), [("again", again)]) == (0, 1)
    assert sorted(point.value for point in value_of(courses_of(spark, str(where))).points) == [
        *(77.0, 96.0, 100.0, 102.0)
    ]
    # A month is one file after each change.
    assert len([*where.glob("*/*/*.parquet")]) == 2
    assert remove_runs(spark, str(where), ["r1", "r2", "r3", "none"]) == 3
    assert len([*where.glob("*/*/*.parquet")]) == 1
    (value,) = (c for c in courses_of(spark, str(where)) if (c.column, c.place) == ("value", 0))
    assert [point.run for point in value.points] == ["r0"]


def test_a_second_writer_waits(spark: "SparkSession", card: ScoreCard, tmp_path: Path) -> None:
    where = tmp_path / "history"
    first, second = documents(card)[:2]
    assert add_cards(spark, str(where), [first]) == (1, 0)
    with ThreadPoolExecutor(1) as pool:
        with exclusive(where):
            waiting = pool.submit(add_cards, spark, str(where), [second])
            with pytest.raises(TimeoutError):
                waiting.result(1.0)
        assert waiting.result(60.0) == (1, 0)


def test_a_baseline_reads_one_case_and_pushes_its_conditions(
    spark: "SparkSession", history: str, card: ScoreCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import DataFrame

    plans: list[str] = []

    def collected(frame: DataFrame) -> list[Any]:
        tools = frame.sparkSession._jvm.PythonSQLUtils  # type: ignore[union-attr]
        plans.append(tools.explainString(frame._jdf.queryExecution(), "formatted"))
        return []

    monkeypatch.setattr(type(spark.range(1)), "collect", collected)
    new = past_card(orjson.dumps(document(card, "new", "2026-11-04", 60.0)).decode())
    baseline_of(spark, history, new, load_of(new), 3)
    (plan,) = plans
    parts, pushed = (
        "".join(re.findall(rf"{name}: \[(.*)\]", plan))
        for name in ("PartitionFilters", "PushedFilters")
    )
    assert "case#" in parts and "month#" in parts, plan
    assert "EqualTo(load," in pushed and "EqualTo(valid,true)" in pushed, plan


def is_refused(error: RunDirectoryError) -> bool:
    return error.code in ("NOT_A_CARD", "SCHEMA")


def test_what_is_no_card(spark: "SparkSession", card: ScoreCard, tmp_path: Path) -> None:
    assert len(documents_in(to_json(report_of([card, card])), "x")) == 2
    for data in (b"{", b"3", b'{"runs": 3}'):
        with pytest.raises(RunDirectoryError, check=is_refused):
            documents_in(data, "x")
    harm: list[dict[str, Any]] = [{"rows": [{"name": 1}]}, {"run": {}}, {"schema": 2}]
    for changes in (*harm, {"verdict": None}, {"latency": {"a": {"b": 1}}}):
        bad = documents(card)[0][1] | changes
        with pytest.raises(RunDirectoryError, check=is_refused):
            add_cards(spark, str(tmp_path / "h"), [("x", bad)])
    assert not (tmp_path / "h").exists()
    with refused("NO_HISTORY", RunDirectoryError):
        courses_of(spark, str(tmp_path / "h"))
