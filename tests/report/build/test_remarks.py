"""Remarks at the rows: the generator's own share of a latency, a recovery, slow subscribers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.metrics.reducer import LatencySummary
from loadgen.report.build.compare import compare
from loadgen.report.build.rows import own_share_remark, recovery_remark, slow_remark, with_latency
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import RunRecord
from tests.report import fabricate as make


def series(p50: float | None, p99: float | None, avg: float) -> LatencySummary:
    return LatencySummary(count=1000, avg_us=avg, p50_us=p50, p99_us=p99)


WHOLE = series(100, 900, 120)


# Of transit and of the own delay: 50P, 99P and AVG.
OWN = [
    ((95, 800, 110), None, ""),
    ((95, None, 110), None, ""),
    ((95, 88, 70), None, "99P, 812 of 900 µs"),
    ((95, 600, 110), (1, 200, 5), "99P, 500 of 900 µs"),
    ((95, 600, 110), (1, 100, 5), ""),
    ((40, None, 50), None, "50P, 60 of 100 µs; AVG, 70 of 120 µs."),
    ((95, 800, 110), (1, 5000, 5), "99P, 900 of 900 µs"),  # never more than there is
]


@pytest.mark.parametrize(("transit", "own", "told"), OWN)
def test_what_of_a_figure_is_ours(transit: Any, own: Any, told: str) -> None:
    latency = {"end_to_end": WHOLE, "transit": series(*transit)}
    latency |= {} if own is None else {"own_delay": series(*own)}
    remark = own_share_remark(latency)
    assert told in remark and bool(remark) is bool(told)
    assert own_share_remark({"end_to_end": WHOLE}) == ""


def test_the_row_has_transit_beside_it(tmp_path: Path) -> None:
    """Fabricated transit is 25 µs less than the whole."""
    card = summarize_run(make.fabricate(tmp_path / "a", case="latency"))
    first, second = card.rows[:2]
    assert (first.name, second.name) == ("LATENCY", "LATENCY.TRANSIT")
    assert second.p99 == card.latency["transit"].p99_us and second.unit == "microseconds"
    assert first.remark == ""
    # A generator that sends late by more than the broker takes.
    rows = make.rows_of(case="latency")
    late = [
        replace(row, sum_ns=row.sum_ns // 100, bucket=row.bucket // 2)
        if row.series == "transit"
        else row
        for row in rows
    ]
    card = summarize_run(make.write_run(tmp_path / "b", make.run_document(case="latency"), late))
    assert card.rows[0].remark.startswith("Mostly the generator's own delay (estimated): 50P, ")
    assert with_latency((), "fanin", card.latency)[0].remark == card.rows[0].remark
    (comparison,) = compare([card, replace(card, run=replace(card.run, id="c"))])
    assert "2 of 2 runs" in comparison.remarks[-1] and "p50, p99" in comparison.remarks[-1]
    for rendering in make.rendered(card)[:2]:
        assert "Mostly the generator" in rendering


def seen(**observed: object) -> RunRecord:
    return RunRecord("run-1", "persistent", observed=observed)


@pytest.mark.parametrize(
    ("recovery", "is_over"), [({}, True), ({"drained_s": 3}, True), ({"drained_s": None}, False)]
)
def test_a_recovery_that_did_not_end_is_told(recovery: dict[str, object], is_over: bool) -> None:
    assert (recovery_remark(seen(recovery=recovery)) == "") is is_over


def test_what_was_made_worse_on_request_is_said_at_its_rows() -> None:
    assert slow_remark(seen()) == recovery_remark(seen()) == ""
    assert slow_remark(seen(slow={"waited": 1200})).startswith("1,200 deliveries")
