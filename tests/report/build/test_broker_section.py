"""The broker's side of a run: processor time, memory, and its own counts against ours."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.cli.result_text import result_lines
from loadgen.errors import RunDirectoryError
from loadgen.report.build.broker_section import read_broker
from loadgen.report.build.charts import charts_of
from loadgen.report.build.compare import compare
from loadgen.report.build.summary import summarize_run
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make
from tests.tables import rows_of

RECEIVED = "$SYS/broker/publish/messages/received"
SENT = "$SYS/broker/publish/messages/sent"


def process(at_s: float, cpu_s: float, mib: int = 10, **more: int) -> dict[str, Any]:
    load = {"cpu_ns": round(cpu_s * 1e9), "resident_bytes": mib << 20, "processes": 1, **more}
    return {"time_ns": make.ANCHOR_NS + round(at_s * 1e9), "process": load}


def word(at_s: float, topic: str, value: int, broker: int = 0, watched: int = 0) -> dict[str, Any]:
    return {
        "time_ns": make.ANCHOR_NS + round(at_s * 1e9),
        "broker": broker,
        "topic": topic,
        "count": "publish_received" if "received" in topic else "publish_sent",
        "value": value,
        "watched": watched,
    }


def card_with(run: Path, *records: dict[str, Any]) -> ScoreCard:
    """A fan-in of 100 messages a second, in the seconds 2 to 6 of the run; 500 in all."""
    make.fabricate(run)
    (run / "broker.jsonl").write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in records))
    return summarize_run(run)


def test_processor_time_of_the_window(tmp_path: Path) -> None:
    """The window, second 3 to 7, begins and ends between samples: half of an interval counts."""
    samples = [process(s + 0.5, 7.0 + 0.25 * s, 10 + s) for s in range(9)]
    card = card_with(tmp_path / "run", *samples)
    assert card.broker is not None
    assert card.broker.cpu_seconds == pytest.approx(1.0)
    assert card.broker.cores == pytest.approx(0.25)
    assert card.broker.resident_bytes_max == 16 << 20
    # 400 in and 400 out for one second of a processor.
    assert card.broker.messages_per_core_second == pytest.approx(800)
    rows = {row.name: (row.value, row.unit) for row in card.rows}
    value, unit = rows["FANIN.MPC"]
    assert value == pytest.approx(800)
    assert unit == "msgs/core-sec"
    assert card.broker.moments[0].used == pytest.approx(0.25)


def test_nodes_are_added_up(tmp_path: Path) -> None:
    """One node has a disk and a network, the other only processors."""
    more = {"network_sent_bytes": 0, "processors": 4}
    first = [process(s, 0.25 * s, 100, **more, disk_read_bytes=s << 20) for s in range(9)]
    second = [process(s, 0.5 * s, 20, processors=2) for s in range(9)]
    samples = [{**s, "node": n} for n, them in (("a", first), ("b", second)) for s in them]
    card = card_with(tmp_path / "run", *samples)
    assert card.broker is not None and len(card.broker.nodes) == 2
    a, b = card.broker.nodes
    assert a.rates == {"disk_read_bytes": 1 << 20, "network_sent_bytes": 0.0} and not b.rates
    assert (a.cores, b.cores) == pytest.approx((0.25, 0.5))
    assert (card.broker.cpu_seconds, card.broker.cores) == pytest.approx((3.0, 0.75))
    assert (card.broker.resident_bytes_max, card.broker.processors) == (120 << 20, 6)
    assert "| a | 0.25 | 4 | 100 | 1.05 |" in make.rendered(card).text


@pytest.mark.parametrize(("a_second", "steps", "told"), rows_of("report.steps_told"))
def test_processor_time_below_its_resolution_gives_no_figure(
    tmp_path: Path, a_second: float, steps: dict[str, int], told: str | None
) -> None:
    samples = [process(s, 7.0 + a_second * s, **steps) for s in range(9)]
    card = card_with(tmp_path / "run", *samples)
    row = next(row for row in card.rows if row.unit == "msgs/core-sec")
    if told is None:
        assert row.value == pytest.approx(800 / (4 * a_second)) and row.remark == ""
        return
    assert row.value is None and row.remark.startswith("Withheld: ") and told in row.remark
    page, text, _, csv = make.rendered(card)
    for rendering in (page, text, csv):
        assert told in rendering
    assert any(told in line for line in result_lines(card, tmp_path, long=True))
    # Nothing to compare, so nothing to fail a gate.
    (comparison,) = compare([card, card], [True, False])
    assert all(line.unit != "msgs/core-sec" for line in comparison.lines)


def test_samples_a_tenth_of_a_second_apart_are_drawn_by_the_second(tmp_path: Path) -> None:
    samples = [process(s / 10, 0.025 * s, step_ns=1) for s in range(90)]
    card = card_with(tmp_path / "run", *samples)
    assert card.broker is not None and card.broker.cpu_seconds == pytest.approx(1.0)
    assert 8 <= len(card.broker.moments) <= 10
    assert {round(moment.used, 6) for moment in card.broker.moments} == {0.25}


def test_a_broker_that_started_anew_counts_from_nothing(tmp_path: Path) -> None:
    used = [5.0, 5.5, 6.0, 6.5, 7.0, 0.5, 1.0, 1.5]
    samples = [process(second, cpu) for second, cpu in enumerate(used)]
    card = card_with(tmp_path / "run", *samples)
    assert card.broker is not None and card.broker.cpu_seconds == pytest.approx(2.0)


def test_a_broker_not_watched_all_the_time_has_no_figure(tmp_path: Path) -> None:
    samples = [process(second, second) for second in range(4)]
    card = card_with(tmp_path / "run", *samples)
    assert card.broker is not None and card.broker.cpu_seconds is None
    assert all(row.unit != "msgs/core-sec" for row in card.rows)


@pytest.mark.parametrize(
    ("counted", "agrees"), [(500, True), (1000, False), (490, False), (501, True)]
)
def test_the_brokers_own_count(tmp_path: Path, counted: int, agrees: bool) -> None:
    """A broker that counts 1,000 received each of our 500 messages twice."""
    records = [word(0.2, RECEIVED, 1000), word(9.5, RECEIVED, 1000 + counted)]
    card = card_with(tmp_path / "run", *records)
    assert card.broker is not None
    (check,) = card.broker.counts
    assert (check.broker, check.ours, check.uncertain) == (counted, 500, 0)
    assert check.agrees is agrees
    page, text, document, _ = make.rendered(card)
    assert ("2.000 times ours" in page) == (counted == 1000)
    assert f"| {'agrees' if agrees else 'differs'} " in text
    assert document["broker_load"]["counts"][0]["agrees"] is agrees


def test_words_in_the_middle_are_compared_over_their_time(tmp_path: Path) -> None:
    """200 messages were sent between the two reports, at seconds 3.5 and 5.5."""
    for counted, agrees in ((200, True), (1000, False)):
        records = [word(3.5, RECEIVED, 0), word(5.5, RECEIVED, counted)]
        card = card_with(tmp_path / f"run-{counted}", *records)
        assert card.broker is not None
        (check,) = card.broker.counts
        assert check.ours == 200 and check.uncertain > 0
        assert check.agrees is agrees


def test_what_went_to_the_watcher_is_not_ours(tmp_path: Path) -> None:
    records = [word(0.2, SENT, 10, watched=2), word(9.5, SENT, 560, watched=52)]
    card = card_with(tmp_path / "run", *records)
    assert card.broker is not None
    (check,) = card.broker.counts
    assert (check.broker, check.ours, check.agrees) == (500, 500, True)


def test_several_brokers_are_added_up(tmp_path: Path) -> None:
    records = [word(0.1, RECEIVED, 5, 0), word(0.2, RECEIVED, 7, 1)]
    records += [word(9.1, RECEIVED, 255, 0), word(9.2, RECEIVED, 257, 1)]
    card = card_with(tmp_path / "run", *records)
    assert card.broker is not None
    assert [check.broker for check in card.broker.counts] == [500]


def test_a_count_that_goes_back_or_comes_once_says_nothing(tmp_path: Path) -> None:
    records = [word(0.1, RECEIVED, 500), word(9.1, RECEIVED, 3), word(9, SENT, 3)]
    card = card_with(tmp_path / "run", *records)
    assert card.broker is not None and card.broker.counts == ()


def test_half_a_line_at_the_end_is_of_a_killed_run(tmp_path: Path) -> None:
    make.fabricate(tmp_path / "run")
    file = tmp_path / "run" / "broker.jsonl"
    whole = orjson.dumps(process(1, 1)) + b"\n"
    file.write_bytes(whole + b'{"time_ns": 12')
    records = read_broker(tmp_path / "run")
    assert records is not None and len(records.processes) == 1
    file.write_bytes(b'{"time_ns": 12\n' + whole)
    with pytest.raises(RunDirectoryError) as error:
        summarize_run(tmp_path / "run")
    assert error.value.code == "DAMAGED"
    assert str(error.value.values["where"]).endswith("broker.jsonl, line 1")
    file.unlink()
    assert summarize_run(tmp_path / "run").broker is None


def test_hostile_words_are_text(tmp_path: Path) -> None:
    topic = RECEIVED + "<script>alert(1)</script>\x1b"
    records = [word(0.1, topic, 0), word(9.1, topic, 500)]
    records.append({"time_ns": 1, "trouble": "<img src=x>\n"})
    card = card_with(tmp_path / "run", *records)
    page = make.rendered(card).page
    assert "<script>alert" not in page and "<img" not in page and "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_generator_and_broker_share_a_chart(tmp_path: Path) -> None:
    samples = [process(second, 2.0 * second) for second in range(9)]
    card = card_with(tmp_path / "run", *samples)
    (chart,) = [c for c in charts_of(card) if c.title.startswith("Processor time")]
    traces = {trace["name"]: trace for trace in chart.figure["data"]}
    assert set(traces) == {
        *("worker 0/0", "worker 0/1", "broker"),
        *("memory of all workers", "memory of the broker"),
    }
    # Two processors in use: the axis must hold it.
    assert traces["broker"]["y"] == [200.0] * 8
    assert chart.figure["layout"]["yaxis"]["range"][1] >= 200
    assert traces["memory of all workers"]["y"][0] == pytest.approx(2 * 150e6 / 2**20, rel=1e-4)
    assert "memory of the broker,2.5,10.0,MiB," in chart.table
