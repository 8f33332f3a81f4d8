"""Runs side by side: what are repetitions, what is a difference, what a regression."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from loadgen.errors import RunDirectoryError
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.tables import DataTable, as_cell
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import (
    Bounds,
    Comparison,
    Line,
    checks,
    compare,
    half_width,
    load_of,
    regressions,
)
from loadgen.report.build.comparison_chart import comparison_chart
from loadgen.report.build.summary import summarize_run
from loadgen.report.headline import headline
from loadgen.report.model import Judged
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make
from tests.tables import rows_of


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ScoreCard:
    return summarize_run(make.fabricate(tmp_path_factory.mktemp("runs") / "a", case="persistent"))


def run_at(card: ScoreCard, rate: float, **scenario: Any) -> ScoreCard:
    """The card with another rate as the value of its one row with a value."""
    rows = tuple(replace(row, value=row.value and rate) for row in card.rows)
    return replace(card, rows=rows, run=replace(card.run, scenario={"pairs": 10, **scenario}))


def line(comparison: Comparison, unit: str = "msgs/sec") -> Line:
    return next(line for line in comparison.lines if line.unit == unit)


def test_same_scenario_and_broker_are_repetitions(card: ScoreCard) -> None:
    cards = [run_at(card, rate, seed=place) for place, rate in enumerate((100, 102, 98))]
    (comparison,) = compare(cards)
    assert [side.runs for side in comparison.sides] == [(0, 1, 2)]
    (cell,) = line(comparison).cells
    assert cell is not None
    assert (cell.mean, cell.stdev) == (100, stdev((100, 102, 98)))
    assert line(comparison).differences == ()
    assert compare(cards[:1]) == []


def test_different_brokers_are_named_without_their_addresses(card: ScoreCard) -> None:
    cards = [
        replace(
            card,
            run=replace(
                card.run,
                id=name,
                broker={"name": name, "version": "1", "urls": [f"mqtt://{address}"]},
            ),
        )
        for name, address in (("mosquitto", "a:1"), ("nats", "a:2"), ("emqx", "b:1"))
    ]
    for number, remarks in ((2, 0), (3, 1)):  # another host can matter, another port cannot
        (comparison,) = compare(cards[:number])
        labels = [side.label for side in comparison.sides]
        assert labels == ["mosquitto 1", "nats 1", "emqx 1"][:number]
        assert len(comparison.remarks) == remarks


@pytest.mark.parametrize(("changed", "label", "words"), rows_of("report.other_setups"))
def test_runs_of_another_setup_are_no_repetitions(
    card: ScoreCard, changed: dict[str, Any], label: str, words: str
) -> None:
    theirs = {"name": "mosquitto", "version": "2.0.11", "urls": ["mqtt://a:1"]}
    first = replace(card, run=replace(card.run, broker=theirs))
    ((key, value),) = changed.items()
    if isinstance(value, dict):
        value = {**getattr(first.run, key), **value}
    other = replace(first, run=replace(first.run, **{"id": "b", key: value}))
    (comparison,) = compare([first, first, other])
    assert [side.runs for side in comparison.sides] == [(0, 1), (2,)]
    assert label in comparison.sides[1].label
    assert comparison.remarks == (f"The sides differ in {words}, which may affect the figures.",)
    # A baseline is what somebody chose: it stays one side, and is told what it mixes.
    cards = [first, other, first]
    (chosen,) = compare(cards, [True, True, False])
    assert chosen.sides[0].runs == (0, 1)
    assert f"not repetitions of each other: they differ in {words}." in chosen.remarks[0]
    for rendering in make.rendered(*cards, comparisons=[chosen])[:2]:
        assert "not repetitions of each other" in rendering


def test_a_private_broker_has_another_port_each_time(card: ScoreCard) -> None:
    cards = [
        replace(card, run=replace(card.run, id=str(port), broker=of_port(card, port)))
        for port in (1, 2)
    ]
    (comparison,) = compare(cards)
    assert [side.runs for side in comparison.sides] == [(0, 1)]
    assert comparison.remarks == ()


def of_port(card: ScoreCard, port: int) -> dict[str, Any]:
    return {**card.run.broker, "urls": [f"mqtt://127.0.0.1:{port}"], "started_by_us": True}


def test_sides_are_told_apart_by_what_differs(card: ScoreCard) -> None:
    other = replace(
        run_at(card, 90), run=replace(card.run, broker={"name": "=amqtt<b>", "version": "1"})
    )
    cards = [run_at(card, 100, size=[32, 32]), run_at(card, 100, size=[64, 64]), other]
    (comparison,) = compare(cards)
    assert [side.label for side in comparison.sides] == [
        "mosquitto 2.0.11, pairs 10, size [32, 32], devices not given",
        "mosquitto 2.0.11, pairs 10, size [64, 64], devices not given",
        "=amqtt<b> 1, pairs not given, size [32, 32], devices 100",
    ]


def test_welch_against_a_worked_example() -> None:
    """Two samples of unequal size and spread."""
    a, b = (27.5, 21.0, 19.0, 23.6, 17.0), (27.1, 22.0, 20.8, 23.4)
    va, vb = stdev(a) ** 2 / 5, stdev(b) ** 2 / 4
    freedom = (va + vb) ** 2 / (va**2 / 4 + vb**2 / 3)
    assert 6 < freedom < 7
    # t(0.975, 6) = 2.447
    assert half_width(a, b) == pytest.approx(2.447 * math.sqrt(va + vb))
    assert half_width(a, b) == half_width(b, a)


def test_one_run_against_several_takes_their_spread() -> None:
    many = (100.0, 101.0, 99.0)
    # t(0.975, 2) = 4.303
    assert half_width(many, (103.0,)) == pytest.approx(4.303 * math.sqrt(1 / 3 + 1))
    assert half_width((103.0,), many) == half_width(many, (103.0,))
    assert half_width((1.0,), (2.0,)) is None
    assert half_width((5.0, 5.0), (5.0, 5.0)) == 0.0


@pytest.mark.parametrize(("first", "other", "exceeds"), rows_of("report.spreads"))
def test_a_difference_and_the_spread(
    card: ScoreCard, first: tuple[float, ...], other: tuple[float, ...], exceeds: bool | None
) -> None:
    cards = [run_at(card, rate, qos=1) for rate in first]
    cards += [run_at(card, rate, qos=2) for rate in other]
    (comparison,) = compare(cards)
    (difference,) = line(comparison).differences
    assert difference is not None
    assert difference.absolute == pytest.approx(other[0] - first[0])
    assert difference.share == pytest.approx((other[0] - first[0]) / first[0])
    assert difference.exceeds is exceeds
    assert not difference.regression
    assert regressions([comparison]) == []


@pytest.mark.parametrize(
    ("rate", "bound", "worse"), [(94, 0.05, True), (96, 0.05, False), (150, 0.05, False)]
)
def test_a_regression_is_beyond_the_bound_for_the_worse(
    card: ScoreCard, rate: float, bound: float, worse: bool
) -> None:
    cards = [run_at(card, 100), run_at(card, rate)]
    comparisons = compare(cards, [True, False], Bounds(bound))
    told = regressions(comparisons)
    if worse:
        assert told == [
            "PERSISTENT VALUE: 94 msgs/sec against 100 of the baseline, -6.0 %, a regression "
            "beyond 5 %, too few runs to tell (run)"
        ]
    else:
        assert told == []


def test_three_repetitions_excuse_what_is_within_their_spread(card: ScoreCard) -> None:
    """6 % is beyond the bound of 5 %, but noise if three runs a side spread as much."""
    wide, near = (100, 110, 90), (94, 104, 84)
    for count, told in ((1, 1), (2, 1), (3, 0)):
        cards = [run_at(card, rate) for rate in (*wide[:count], *near[:count])]
        marks = [place < count for place in range(2 * count)]
        assert len(regressions(compare(cards, marks))) == told
    steady = [run_at(card, rate) for rate in (100, 100.1, 99.9, 94, 94.1, 93.9)]
    (line_,) = regressions(compare(steady, [True] * 3 + [False] * 3))
    assert "a regression beyond 5 % (run)" in line_
    # By name: of this row nothing below 10 % counts.
    named = Bounds(0.05, {"persistent": 0.1})
    assert regressions(compare(steady, [True] * 3 + [False] * 3, named)) == []


def test_a_field_that_older_runs_lack_makes_no_other_side(card: ScoreCard) -> None:
    (comparison,) = compare([run_at(card, 100), run_at(card, 100, place={}, impair=None)])
    assert len(comparison.sides) == 1


def test_how_a_run_is_judged_and_watched_makes_no_other_side(card: ScoreCard) -> None:
    """A stricter gate keeps its history."""
    judged = {"require": ["lost==0"], "abort_on_fail": True, "latency_bound": 0.5}
    other = run_at(card, 100, **judged, metrics=":9464", otlp="http://x")
    (comparison,) = compare([run_at(card, 100), other])
    assert len(comparison.sides) == 1
    assert load_of(run_at(card, 100)) == load_of(other) != load_of(run_at(card, 100, qos=1))


def test_an_option_of_a_later_version_that_is_off_leaves_a_history_whole(card: ScoreCard) -> None:
    later = run_at(card, 100, new_switch=False, new_delay=0)
    assert load_of(run_at(card, 100)) == load_of(later)
    assert load_of(run_at(card, 100)) != load_of(run_at(card, 100, new_switch=True))


def test_a_figure_that_a_gate_cannot_look_at_is_told(card: ScoreCard) -> None:
    """A withheld figure does not pass."""
    none = replace(card, rows=tuple(replace(row, value=None) for row in card.rows))
    (gate,) = compare([card, none], [True, False])
    assert len(gate.remarks) == 1
    assert gate.remarks[0].startswith("Not compared, because a run lacks the figure: ")
    assert "PERSISTENT VALUE" in gate.remarks[0]
    # Without a gate, and where the baseline has none, nothing is missed.
    assert [one.remarks for one in compare([card, none])] == [()]
    assert [one.remarks for one in compare([none, card], [True, False])] == [()]


@pytest.mark.parametrize(("first", "other", "text", "certainty"), rows_of("report.differences"))
def test_a_difference_is_a_share_or_a_multiple(
    card: ScoreCard, first: tuple[float, ...], other: tuple[float, ...], text: str, certainty: str
) -> None:
    cards = [run_at(card, rate, mqtt="5") for rate in first]
    cards += [run_at(card, rate, mqtt="3.1.1") for rate in other]
    (difference,) = line(compare(cards)[0]).differences
    assert difference is not None
    assert (difference.text, difference.certainty) == (text, certainty)


def test_topologies_have_no_comparison_and_are_no_baselines_of_each_other(card: ScoreCard) -> None:
    cards = [run_at(card, 9, base=1, topology=kind) for kind in ("horizontal", "vertical")]
    assert compare(cards) == []
    with pytest.raises(RunDirectoryError) as error:
        compare(cards, [True, False])
    assert error.value.code == "BASELINE_ALONE"
    assert error.value.values == {"case": "persistent horizontal"}
    (both, _) = compare([*cards, *cards], [True, True, False, False])
    assert [side.runs for side in both.sides] == [(0,), (2,)]


def test_different_loads_have_no_percentages(card: ScoreCard) -> None:
    cards = [run_at(card, 1000, devices=1000), run_at(card, 2000, devices=2000)]
    (comparison,) = compare(cards)
    (difference,) = line(comparison).differences
    assert difference is not None
    assert (difference.share, difference.ratio, difference.absolute) == (None, None, 1000)
    assert "%" not in difference.text


def test_repetitions_are_one_line_and_one_column(card: ScoreCard) -> None:
    cards = [
        replace(one, run=replace(one.run, id=f"run-{place}"))
        for place, one in enumerate(
            [run_at(card, rate) for rate in (100, 102, 98)]
            + [run_at(card, rate, qos=2) for rate in (50, 52, 48, 50)]
        )
    ]
    cards[1] = replace(cards[1], verdict=Verdict((Reason("LOST", "1 message"),)))
    report = report_of(cards, compare(cards))
    answers = [block for block in report.lead if isinstance(block, Judged)]
    assert [(one.word, one.title) for one in answers] == [
        ("INVALID", "PERSISTENT · qos not given"),
        ("VALID", "PERSISTENT · qos 2"),
    ]
    assert answers[0].reasons == (("LOST", "in 1 of 3 runs: 1 message"),)
    assert answers[0].text == f"1 of 3 runs INVALID: {headline(*cards[:3])}"
    (table,) = [block for block in report.lead if isinstance(block, DataTable)]
    assert table.header[1:] == ("qos not given, 3 runs", "qos 2, 4 runs")
    first = [as_cell(cell) for cell in table.rows[0]]
    assert [cell.value for cell in first[1:]] == [100, 50]
    assert first[1].notes == ("100 · 102 · 98",)
    assert first[2].notes == ("2 times lower", "50 · 52 · 48 · 50")


def test_a_slower_run_is_worse_by_its_latency(card: ScoreCard) -> None:
    timed = card.latency["end_to_end"]
    assert timed.p99_us is not None
    rows = [replace(row, p99=row.p99 and 2 * row.p99) for row in card.rows]
    slow = replace(card, rows=tuple(rows))
    (told,) = regressions(compare([card, slow], [True, False], Bounds(0.5)))
    assert told.startswith("end_to_end 99P: ") and "2 times, a regression beyond 50 %, too" in told
    assert regressions(compare([slow, card], [True, False], Bounds(0.5))) == []


def test_an_invalid_run_is_worse_than_a_valid_one(card: ScoreCard) -> None:
    bad = replace(card, verdict=Verdict((Reason("LOST", "1"),)))
    assert regressions(compare([card, bad], [True, False])) == [
        "run: INVALID, the baseline is VALID"
    ]
    with pytest.raises(RunDirectoryError) as error:
        compare([bad, card], [True, False])
    assert error.value.code == "BASELINE_INVALID"
    (left,) = compare([bad, card, card], [True, True, False])
    assert left.sides[0].runs == (1,) and bad.run.id in left.remarks[0]


def test_a_change_within_the_spread_is_inconclusive(card: ScoreCard) -> None:
    """90 against 100, 60 and 140: worse by 10 %, which three runs cannot tell from noise."""

    def with_value(value: float) -> ScoreCard:
        return replace(card, rows=(replace(card.rows[0], value=value), *card.rows[1:]))

    cards = [with_value(value) for value in (100.0, 60.0, 140.0, 90.0)]
    (compared,) = compare(cards, [True, True, True, False])
    outcomes = {check.figure: check.outcome for check in checks(compared)}
    assert outcomes[f"{card.rows[0].name} VALUE"] == "skipped"
    assert outcomes["verdict"] == "passed" and "failed" not in outcomes.values()
    without = replace(cards[3], rows=card.rows[1:])
    (compared,) = compare([cards[0], without], [True, False])
    outcomes = {check.figure: check.outcome for check in checks(compared)}
    assert outcomes[f"{card.rows[0].name} VALUE"] == "skipped"


def test_a_case_without_its_baseline_is_refused(card: ScoreCard, tmp_path: Path) -> None:
    other = summarize_run(make.fabricate(tmp_path / "b", "b", "fanin"))
    for baselines, code in (
        ([True, False, False], "NO_BASELINE"),
        ([True, False, True], "BASELINE_ALONE"),
    ):
        with pytest.raises(RunDirectoryError) as error:
            compare([card, card, other], baselines)
        assert (error.value.code, error.value.values) == (code, {"case": "fanin"})


def test_every_rendering_shows_them(card: ScoreCard) -> None:
    hostile = "<script>alert(1)</script>|=1"
    run = replace(card.run, broker={"name": hostile, "version": ""}, id="b")
    cards = [run_at(card, 100), run_at(card, 100), replace(run_at(card, 80), run=run)]
    comparisons = compare(cards, [True, True, False])
    assert len(regressions(comparisons)) == 1
    page, text, document, _ = make.rendered(*cards, comparisons=comparisons)
    assert "PERSISTENT side by side" in page and "-20.0 %" in page
    assert "REGRESSION" in page
    assert "<script>alert" not in page
    assert "-20.0 %" in text and ", REGRESSION" in text and "<script>" not in text
    (compared,) = document["comparison"]
    assert compared["bound"] == 0.05
    assert compared["lines"][0]["differences"][0]["regression"] is True
    chart = comparison_chart(cards, comparisons[0])
    assert chart is not None
    lines = chart.figure["data"]
    assert len(lines) == len(cards) and len({line["name"] for line in lines}) == 2
    assert not any("<" in line["name"] for line in lines)
