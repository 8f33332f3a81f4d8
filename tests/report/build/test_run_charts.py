"""Charts over several runs: by message size, by fan-out ratio, by number of backends."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.report.build.run_charts import run_charts_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.fabricate(tmp_path_factory.mktemp("base") / "run", case="fanout")


def card(base: Path, case: str = "fanout", **scenario: Any) -> ScoreCard:
    path = base / "run.json"
    document = orjson.loads(path.read_bytes())
    document["case"] = case
    document["scenario"] = {"size": [32, 32], "ratio": 10, "qos": 0} | scenario
    path.write_bytes(orjson.dumps(document))
    return summarize_run(base)


def titles(cards: list[ScoreCard]) -> list[str]:
    return [chart.title for chart in run_charts_of(cards)]


def test_runs_that_do_not_differ_give_no_chart(base: Path) -> None:
    assert titles([card(base), card(base)]) == []
    assert titles([card(base), card(base, "latency", size=[64, 64])]) == []


def test_rate_by_message_size_has_both_directions(base: Path) -> None:
    cards = [card(base, size=[size, size]) for size in (1024, 32, 256)]
    (chart,) = run_charts_of(cards)
    assert chart.title == "Rate by message size"
    sent, received = chart.figure["data"]
    assert sent["name"] == "FANOUT QoS 0 1:10 TX" and received["name"].endswith("RX")
    assert sent["x"] == received["x"] == [32, 256, 1024]
    assert received["y"] == pytest.approx([10 * rate for rate in sent["y"]])
    assert chart.table.splitlines()[0] == "case,bytes,sent_per_s,received_per_s,valid"
    assert len(chart.table.splitlines()) == 4


def test_size_and_ratio_together_give_a_line_for_each_size(base: Path) -> None:
    cards = [card(base, size=[size, size], ratio=ratio) for size in (32, 100) for ratio in (30, 1)]
    assert titles(cards) == [
        *("Fan-out", "Rate by message size", "Fan-out by ratio and message size")
    ]
    chart = run_charts_of(cards)[2]
    assert [trace["name"] for trace in chart.figure["data"]] == ["32 bytes", "100 bytes"]
    assert chart.figure["data"][0]["x"] == [1, 30]
    axis = chart.figure["layout"]["xaxis"]
    assert (axis["type"], axis["ticktext"]) == ("log", ["1:1", "1:30"])


def test_forwarding_rate_by_backends(base: Path) -> None:
    cards = [card(base, "bridge", backends=count) for count in (3, 1, None)]
    cards += [
        card(base, "bridge", qos=1, durable=True, backend=["mqtt://b"] * count) for count in (1, 2)
    ]
    (chart,) = run_charts_of(cards)
    assert chart.title == "Forwarding rate by number of backends"
    assert [trace["name"] for trace in chart.figure["data"]] == ["QoS 0", "QoS 1, durable"]
    assert [trace["x"] for trace in chart.figure["data"]] == [[1, 1, 3], [1, 2]]
