"""The numbers of a score card, against the rows that they come from."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hdrh.histogram import HdrHistogram

from loadgen.metrics.histogram import HIGHEST_NS, lowest_values
from loadgen.metrics.interval import Interval
from loadgen.report.build.curves import rates_of
from loadgen.report.build.rows import in_report_order
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.settings import log_settings
from loadgen.report.score_card import ScoreCard
from loadgen.run.seal import seal
from tests.report import fabricate as make
from tests.report.fabricate import card_of
from tests.tables import rows_of

PDU = Path(__file__).parent / "power" / "pdu"
LOGS = [PDU / "power_supply_1.log", PDU / "power_supply_2.log"]
POWER_TABLES_S = 1_366_970_765  # 2013-04-26T10:06:05Z


def values(card: ScoreCard) -> dict[str, float | None]:
    return {f"{row.name} {row.unit}": row.value for row in card.rows}


def with_power(
    directory: Path, case: str, logs: Sequence[str | Path], offset: Any = None, units: Any = None
) -> ScoreCard:
    """A run whose clock puts its window within the tables of the published report."""
    settings = log_settings(logs, "UTC", offset=offset)
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": POWER_TABLES_S * make.SECOND_NS}
    return summarize_run(make.fabricate(directory, case=case, clock=clock), settings, units)


def test_a_card_goes_to_another_process(tmp_path: Path) -> None:
    card = card_of(tmp_path / "run", "fanin")
    assert pickle.loads(pickle.dumps(card)) == card


ROWS_OF_CASES = [
    ("fanin", "FANIN producers 100, FANIN msgs/sec 100.0, FANIN msgs/sec 100.0, FANIN messages 17"),
    ("fanout", "FANOUT msgs/sec 200.0, FANOUT msgs/sec 2000.0"),
    ("persistent", "PERSISTENT msgs/sec 500.0"),
]


@pytest.mark.parametrize(("case", "rows"), ROWS_OF_CASES)
def test_rows_of_a_case(tmp_path: Path, case: str, rows: str) -> None:
    card = card_of(tmp_path / "run", case)
    found = ", ".join(f"{row.name} {row.unit} {row.value}" for row in card.rows)
    assert found == f"{rows}, {case.upper()}.end_to_end microseconds None"
    row, timed = card.rows[-1], card.latency["end_to_end"]
    levels = (row.avg, row.p50, row.p99, row.p99_9, row.max)
    assert levels == (timed.avg_us, timed.p50_us, timed.p99_us, timed.p99_9_us, timed.max_us)
    deliveries = 10 if case == "fanout" else 1
    assert card.counts.expected == card.counts.received == deliveries * card.counts.sent
    assert (card.counts.high_water_mark, card.power) == (17, None)
    assert card.verdict.valid


def test_latency_is_that_of_the_timed_pair(tmp_path: Path) -> None:
    rows = make.rows_of(case="latency")
    card = card_of(tmp_path / "run", "latency", rows)
    histogram = HdrHistogram(1, HIGHEST_NS, 3)
    total_ns = 0
    for row in rows:
        if (row.group, row.phase, row.series) == ("pair_subscriber", "measure", "end_to_end"):
            total_ns += row.sum_ns
            for bucket, count in zip(row.bucket, row.bucket_count, strict=True):
                histogram.record_value(int(lowest_values(bucket)), int(count))
    result, _ = card.rows
    assert result.value is None
    assert result.p50 == histogram.get_value_at_percentile(50) / 1000
    assert result.p99 == histogram.get_value_at_percentile(99) / 1000
    assert result.stdev == pytest.approx(histogram.get_stddev() / 1000)
    assert result.avg == pytest.approx(total_ns / histogram.total_count / 1000)
    assert card.latency["background.end_to_end"].avg_us > 2 * result.avg  # type: ignore[operator]
    assert card.latency["end_to_end"].count == histogram.total_count == 4000


def test_power_and_rack_units(tmp_path: Path) -> None:
    card = with_power(tmp_path / "run", "persistent", LOGS, units=2)
    assert card.power is not None
    assert [outlet.watts for outlet in card.power.outlets] == [137.0, 166.0]
    assert values(card) == {
        "PERSISTENT msgs/sec": 500.0,
        "PERSISTENT.MPW msgs/Watt": pytest.approx(500 / 303),
        "PERSISTENT.MPU msgs/sec/U": 250.0,
        "PERSISTENT.JPM joules/msg": pytest.approx(303 / 500),
        "PERSISTENT.end_to_end microseconds": None,
    }
    assert (card.power.watts, card.power.watts_per_rack_unit) == (303.0, 151.5)
    assert card.power.messages_per_watt == pytest.approx(500 / 303)
    assert card.power.joules_per_message == pytest.approx(0.606)


def test_power_of_any_case_by_node(tmp_path: Path) -> None:
    logs = [f"broker={LOGS[0]}", f"switch={LOGS[1]}"]
    card = with_power(tmp_path / "run", "fanout", logs)
    assert card.power is not None
    nodes = [(node.name, node.outlets, node.watts) for node in card.power.nodes]
    assert nodes == [("broker", 1, 137.0), ("switch", 1, 166.0)]
    assert values(card)["FANOUT.MPW msgs/Watt"] == pytest.approx(2000 / 303)
    assert "FANOUT.MPU msgs/sec/U" not in values(card)


@pytest.mark.parametrize(("offset", "watts"), [("1m", 136.0), ("-60s", 139.0)])
def test_an_offset_moves_the_log(tmp_path: Path, offset: str, watts: float) -> None:
    """The PDU is a minute ahead: its sample of 10:07 was taken at 10:06."""
    card = with_power(tmp_path / "run", "persistent", LOGS[:1], offset)
    assert card.power is not None and card.power.watts == watts


def test_connburst(tmp_path: Path) -> None:
    connect = {"connected": 100, "failures": {"timeout": 3}, "seconds": 0.8}
    # A burst holds its devices for a while afterwards: nothing is measured then.
    windows = make.run_document(case="fanin")["windows"]
    card = card_of(tmp_path / "run", "connburst", connect=connect, windows=windows)
    assert values(card) == {"CONNBURST seconds": 0.8, "CONNBURST microseconds": None}
    assert card.run.seconds == 0.8
    assert card.connect.failures == {"timeout": 3}
    assert card.network["syn_retransmits"] == 2
    assert {"connect", "tcp", "connack"} == set(card.latency)
    assert card.latency["connect"].count == 100
    # Without all devices there is no time.
    connect |= {"connected": 90}
    card = card_of(tmp_path / "less", "connburst", connect=connect)
    assert values(card) == {"CONNBURST seconds": None, "CONNBURST microseconds": None}


def test_only_messages_intended_in_the_window_count(tmp_path: Path) -> None:
    rows = [r for r in make.rows_of() if not (r.received and (r.worker, r.second) == (1, 5))]
    late = Interval(
        run="run-1",
        second=7,
        time_ns=make.ANCHOR_NS + 7 * make.SECOND_NS,
        span_ns=make.SECOND_NS,
        group="subscriber",
        phase="measure",
        received=3,
    )
    drained = replace(late, phase="drain", expected=3)
    before = card_of(tmp_path / "a", "fanin", rows)
    after = card_of(tmp_path / "b", "fanin", [*rows, late, drained])
    assert after.counts.received == before.counts.received + 3
    assert after.counts.lost == before.counts.lost - 3 > 0


@pytest.mark.parametrize("valid", [True, False])
def test_an_invalid_run_shows_what_passed_in_its_window(tmp_path: Path, valid: bool) -> None:
    """Half of the messages of the window are sent and received after it."""
    rows = []
    for row in make.rows_of():
        if row.phase == "measure" and (row.sent or row.received):
            half: dict[str, Any] = {"sent": row.sent // 2, "received": row.received // 2}
            late: dict[str, Any] = {
                "second": row.second + 8,
                "time_ns": row.time_ns + 8 * make.SECOND_NS,
            }
            rows += [replace(row, **half), replace(row, **late, **half)]
        else:
            rows.append(row)
    verdict = {"valid": valid, "reasons": [] if valid else [{"code": "RATE_MISSED"}]}
    card = card_of(tmp_path / "run", "fanin", rows, verdict=verdict)
    assert card.rates["sent"] == card.rates["asked"] == 100.0
    passed = 100.0 if valid else 50.0
    assert (card.rates["ingress"], card.rates["egress"]) == (passed, passed)
    assert [row.value for row in card.rows if row.unit == "msgs/sec"] == [passed, passed]


def test_the_burst_after_a_stall_is_not_the_rate_of_the_window() -> None:
    """40 messages in 1.6 s, 0.3 s of them before the window; 160 in 1 s, 0.3 s of it after it."""
    record: Any = SimpleNamespace(valid=False, scenario={"steps": 1})
    of = {"at_s": [-0.3, 1.3], "span_s": [1.6, 1.0], "covered_s": [1.6, 0.7]}
    course = pa.table(of | {key: [25.0, 160 / 0.7] for key in ("sent", "received")})
    found = rates_of(record, {"sent": 80.0, "received": 80.0}, course, 2.0)
    assert found == pytest.approx(dict.fromkeys(("ingress", "egress"), 72.25))


@pytest.mark.parametrize("measure_end", [None, "planned"])
def test_a_killed_run_gives_what_it_measured(tmp_path: Path, measure_end: str | None) -> None:
    """run.json without a verdict; two of four seconds written."""
    document = make.run_document()
    del document["verdict"], document["connect"], document["network"], document["windows"]["drain"]
    document["observed"] = {}
    if measure_end is None:
        document["windows"]["measure"] = document["windows"]["measure"][:1]
    rows = [row for row in make.rows_of() if row.second < 5]
    card = summarize_run(make.write_run(tmp_path / "run", document, rows))
    assert not card.verdict.valid
    assert [reason.code for reason in card.verdict.reasons] == ["INTERRUPTED"]
    assert card.run.seconds == 2.0
    assert card.rates["sent"] == 100.0
    assert card.counts.connects == 102
    assert card.counts.high_water_mark is None


@pytest.mark.parametrize(("changes", "reasons"), rows_of("report.verdict_reasons"))
def test_the_verdict_is_the_runs(
    tmp_path: Path, changes: dict[str, Any], reasons: list[str]
) -> None:
    card = card_of(tmp_path / "run", "fanin", **changes)
    assert not card.verdict.valid
    assert [reason.code for reason in card.verdict.reasons] == reasons


def test_the_high_water_mark_is_that_of_one_subscription(tmp_path: Path) -> None:
    observed = make.run_document(case="fanout")["observed"]
    observed |= {"high_water_mark": 900, "subscription_high_water_mark": 12}
    card = card_of(tmp_path / "run", "fanout", observed=observed)
    marks = [(row.name, row.value) for row in card.rows if row.unit == "messages"]
    assert marks == [("FANOUT.HWM", 12)]
    assert (card.counts.high_water_mark, card.counts.subscription_high_water_mark) == (900, 12)


def test_large_messages_have_their_bytes(tmp_path: Path) -> None:
    for size_bytes, found in ((1_000_000, [2000.0]), (65_536, [])):
        document = make.run_document(case="fanout")
        document["plan"]["groups"][0]["publishes"]["size_bytes"] = [size_bytes, size_bytes]
        rows = make.rows_of(case="fanout")
        card = summarize_run(make.write_run(tmp_path / str(size_bytes), document, rows))
        assert [row.value for row in card.rows if row.unit == "MB/sec"] == found


def test_an_unknown_case_has_its_rates(tmp_path: Path) -> None:
    document = make.run_document() | {"case": "novel"}
    card = summarize_run(make.write_run(tmp_path / "run", document, make.rows_of()))
    rows = [(row.name, row.value) for row in card.rows]
    assert rows[:-1] == [("NOVEL", 100.0), ("NOVEL", 100.0), ("NOVEL.HWM", 17)]


def test_an_encrypted_case_has_the_published_name(tmp_path: Path) -> None:
    broker = {"name": "x", "urls": ["mqtts://broker:8883"], "protocol": "MQTT 5"}
    card = card_of(tmp_path / "run", "fanout", broker=broker)
    assert {row.name for row in card.rows} == {"FANOUT.SEC", "FANOUT.end_to_end"}
    assert card.run.protocol == "MQTT 5"


def test_rows_of_several_runs_are_in_the_reports_order(tmp_path: Path) -> None:
    cases = ("connburst", "latency", "persistent", "fanout", "fanin")
    cards = [card_of(tmp_path / case, case) for case in cases]
    rows = [row for _, row in in_report_order([card.rows for card in cards])]
    assert list(dict.fromkeys(row.name for row in rows)) == [
        *("FANIN", "FANOUT", "PERSISTENT"),
        *("FANIN.end_to_end", "FANOUT.end_to_end", "PERSISTENT.end_to_end"),
        *("LATENCY", "LATENCY.TRANSIT", "CONNBURST"),
    ]


def by_second(card: ScoreCard) -> dict[int, dict[str, Any]]:
    """The course of a run by whole seconds after the window's start."""
    return {round(row["at_s"]): row for row in card.curves.course.to_pylist()}


def test_curves_show_the_course(tmp_path: Path) -> None:
    card = card_of(tmp_path / "run", "latency")
    course = by_second(card)
    assert course[-3]["connects"] == 114 and course[-3]["sent"] == 0
    assert course[0]["sent"] == course[0]["received"] == 1100
    assert course[0]["p99_us"] is not None and course[0]["p50_us"] < course[0]["p99_us"]
    # Gauges of both workers and of the timed and background groups, but of one phase.
    assert course[0]["connected"] == 100 + 10 + 2
    assert card.curves.phases[0] == ("connect", -3.0, -2.2)
    assert ("measure", 0.0, 4.0) in card.curves.phases
    assert set(card.curves.processes["worker"].to_pylist()) == {"0/0", "0/1"}
    assert all(0 < used < 1 for used in card.curves.processes["used"].to_pylist())
    curve = card.curves.distribution[0]
    assert curve.series == "end_to_end"
    assert curve.points[-1] == (100.0, card.latency["end_to_end"].max_us)
    us = [value for _, value in curve.points]
    assert us == sorted(us)
    series, histogram = next(iter(card.curves.histograms.items()))
    assert (series, histogram["count"]) == ("end_to_end", 4000)
    assert sum(histogram["bucket_count"].to_pylist()) == 4000
    groups = {group.planned.name: group for group in card.groups}
    assert groups["pair_publisher"].counters["sent"] == 4000
    assert groups["background_subscribers"].planned.count == 10


def test_a_partial_second_is_drawn_at_its_rate(tmp_path: Path) -> None:
    """The load begins and ends within a second, which has half of the messages in half its time."""
    windows = make.run_document()["windows"]
    half = make.SECOND_NS // 2
    windows["warmup"] = [windows["warmup"][0] + half, windows["measure"][0]]
    windows["measure"] = [windows["measure"][0], windows["measure"][1] - half]
    rows = [
        replace(row, sent=row.sent // 2, received=row.received // 2, expected=row.expected // 2)
        if row.second in (2, 6) and not row.series
        else row
        for row in make.rows_of()
    ]
    card = card_of(tmp_path / "run", "fanin", rows, windows=windows)
    course = by_second(card)
    assert [course[second]["sent"] for second in (-1, 0, 3)] == [100.0, 100.0, 100.0]
    assert (course[-1]["covered_at_s"], course[-1]["covered_s"]) == (-0.5, 0.5)
    assert course[-3]["sent"] == 0.0


def test_a_sliver_of_a_second_has_no_rate(tmp_path: Path) -> None:
    windows = make.run_document()["windows"]
    windows["measure"] = [windows["measure"][0], windows["measure"][0] + 3_050_000_000]
    card = card_of(tmp_path / "run", "fanin", windows=windows)
    course = by_second(card)
    assert course[3]["sent"] is None and course[3]["received"] is None
    assert course[2]["sent"] == 100.0


def test_a_changed_run_is_not_valid(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    assert summarize_run(run).integrity.state == "unsealed"
    seal(run)
    card = summarize_run(run)
    assert card.verdict.valid and card.integrity.state == "intact"
    (run / "intervals" / "part-000004.parquet").unlink()
    card = summarize_run(run)
    assert not card.verdict.valid
    assert [(reason.code, reason.detail) for reason in card.verdict.reasons] == [
        ("CHANGED", "since the run ended: intervals/part-000004.parquet is missing")
    ]
