"""Cards, comparisons and the history of loadgen 0.1.0 are made and shown again by Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

import orjson
import pytest

from loadgen.cli.main import main
from loadgen.spark import job, session
from tests.old_runs import DATA, RUNS, copy, figures, load, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CELL = ("values", "mean", "stdev")
_DIFFERENCE = ("absolute", "share", "regression")


@pytest.fixture(autouse=True)
def shared_session(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextmanager
    def shared(*_args: object, **_named: object) -> Iterator["SparkSession"]:
        yield spark

    for module in (job, session):
        monkeypatch.setattr(module, "open_session", shared)
    monkeypatch.chdir(tmp_path)


def loadgen(*words: str | Path) -> int:
    return main([str(word) for word in words])


def compared(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the numbers of each line of a comparison."""
    return [
        {
            # Rows of one name and unit have their description, too.
            "name": line["name"].partition(",")[0],
            "unit": line["unit"],
            "column": line["column"],
            "bound": line["bound"],
            "cells": [{key: cell[key] for key in _CELL} for cell in line["cells"]],
            "differences": [{key: one[key] for key in _DIFFERENCE} for one in line["differences"]],
        }
        for line in document["comparison"][0]["lines"]
    ]


def test_cards_have_the_figures_that_they_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [DATA / name for name in RUNS]
    assert loadgen("scorecard", *runs, "--out", tmp_path / "card", "--json") == 1
    document = orjson.loads(capsys.readouterr().out)
    for name, card in zip(RUNS, document["runs"], strict=True):
        old = figures(load(f"{name}/scorecard.json"))
        # Rows are added at the end.
        now = figures(card) | {"rows": figures(card)["rows"][: len(old["rows"])]}
        same(old, now, name)
    assert document["schema"] == 1
    written = orjson.loads((tmp_path / "card" / "scorecard.json").read_bytes())
    assert written == document


def test_a_run_is_compared_with_its_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--baseline", DATA / "plain", "--bound", "1000%", "--json")
    assert loadgen("scorecard", DATA / "again", *words, "--out", tmp_path / "card") == 0
    old, now = compared(load("comparison.json")), compared(orjson.loads(capsys.readouterr().out))
    lines = [(line["name"], line["column"], line["unit"]) for line in old]
    same(old, [line for line in now if (line["name"], line["column"], line["unit"]) in lines])
    words = ("--baseline", DATA / "again", "--bound", "VALUE=5%", "--json")
    assert loadgen("scorecard", DATA / "plain", *words, "--out", tmp_path / "worse") == 1


def test_the_history_is_shown_and_has_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = copy("history", tmp_path)
    assert loadgen("history", "add", DATA / "plain", DATA / "connects", "--to", history) == 0
    capsys.readouterr()
    assert loadgen("history", "show", "--in", history, "--json") == 0
    courses = orjson.loads(capsys.readouterr().out)
    # The points of `plain` once, and none of an INVALID run.
    same(
        [without_descriptions(course) for course in load("courses.json")],
        [without_descriptions(course) for course in courses],
    )


def test_the_history_is_a_baseline(tmp_path: Path) -> None:
    history = copy("history", tmp_path)
    judged = tmp_path / "judged.xml"
    words = ("--history", history, "--bound", "1000%", "--junit", judged, "--json")
    assert loadgen("scorecard", DATA / "again", *words, "--out", tmp_path / "card") == 0
    suite = Xml.parse(judged).getroot()
    bounded = [line for line in compared(load("comparison.json")) if line["bound"] is not None]
    # One test for each figure, for the average of the latency, for the verdict, and for the run.
    assert len(list(suite.iter("testcase"))) == len(bounded) + 3
    assert not list(suite.iter("failure"))


def without_descriptions(course: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in course.items() if key != "description"}
