"""The chart of a comparison: figures over the field that differs, or latencies of each side."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.report.build.compare import compare
from loadgen.report.build.comparison_chart import comparison_chart
from loadgen.report.build.summary import summarize_run
from loadgen.report.model import Chart
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.fabricate(tmp_path_factory.mktemp("base") / "run", case="fanout")


def card(base: Path, **scenario: Any) -> ScoreCard:
    path = base / "run.json"
    document = orjson.loads(path.read_bytes())
    document["scenario"] = {"size": [32, 32], "ratio": 10, "qos": 0} | scenario
    path.write_bytes(orjson.dumps(document))
    return summarize_run(base)


def drawn(*cards: ScoreCard) -> Chart:
    (comparison,) = compare(cards)
    chart = comparison_chart(cards, comparison)
    assert chart is not None
    return chart


def test_a_varied_field_is_the_axis(base: Path) -> None:
    chart = drawn(*(card(base, ratio=ratio) for ratio in (100, 1, 10)))
    assert chart.title == "FANOUT by ratio"
    ingress, egress, tail = chart.figure["data"]
    assert [line["name"] for line in (ingress, egress)] == ["ingress (left)", "egress (right)"]
    assert ingress["x"] == [1, 10, 100]
    assert (egress["yaxis"], tail["name"], tail["yaxis"]) == ("y2", "99th percentile", "y3")
    axes = chart.figure["layout"]
    assert (axes["xaxis"]["type"], axes["xaxis"]["ticktext"]) == ("log", ["1", "10", "100"])
    # All have the same rate: the axis does not zoom into it.
    assert axes["yaxis"]["rangemode"] == "tozero"
    assert axes["yaxis2"]["side"] == "right"
    assert chart.table.splitlines()[0] == "line,ratio,value,unit,note"
    assert len(chart.table.splitlines()) == 1 + 3 * 3


def test_another_field_that_differs_names_the_lines(base: Path) -> None:
    cards = [card(base, size=[size, size], ratio=ratio) for size in (32, 100) for ratio in (30, 1)]
    lines = drawn(*cards).figure["data"]
    assert [line["name"] for line in lines if line["yaxis"] == "y2"] == [
        "egress (right), size [32, 32]",
        "egress (right), size [100, 100]",
    ]
    assert lines[0]["x"] == [1, 30]
    looks = [(line["line"]["color"], line["line"]["dash"]) for line in lines]
    assert looks == [(c, d) for c in ("$blue", "$orange") for d in ("solid", "dash", "dot")]


def test_sides_of_one_load_have_a_distribution_for_each_run(base: Path) -> None:
    lines = drawn(*(card(base, mqtt=version) for version in ("5", "5", "3.1.1"))).figure["data"]
    assert [line["name"] for line in lines] == ["mqtt 5", "mqtt 5", "mqtt 3.1.1"]
    first, again, other = (line["line"]["color"] for line in lines)
    assert first == again != other
    assert [line["showlegend"] for line in lines] == [True, False, True]
    assert {line["line"]["dash"] for line in lines} == {"solid"}
