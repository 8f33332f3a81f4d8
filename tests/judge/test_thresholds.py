"""The check of a run against thresholds."""

import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from loadgen.judge.ledger import Ledger
from loadgen.judge.thresholds import Measured, broken_by_own_delay, hopeless, missed
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.thresholds import STATES, parse_threshold
from loadgen.sentences import Text

TABLES = tomllib.loads(Path(__file__).with_name("thresholds.toml").read_text())
SUMMARY = LatencySummary(
    100, 500.0, 1.0, p50_us=400.0, p99_us=4_900.0, p99_9_us=5_100.0, max_us=5_200.0
)
LEDGER = Ledger(sent=1000, expected=1000, intact=999, lost=1)
MEASURED = Measured({"end_to_end": SUMMARY}, LEDGER, sent=800, window_s=2)


def unmet(*texts: str, measured: Measured = MEASURED) -> tuple[Text, ...]:
    return missed(map(parse_threshold, texts), measured)


@pytest.mark.parametrize("text", TABLES["hold"])
def test_what_holds_is_not_told(text: str) -> None:
    assert unmet(text) == ()


@pytest.mark.parametrize(("text", "value", "unit"), TABLES["missed"])
def test_the_measured_value_is_reported(text: str, value: float, unit: str) -> None:
    (found,) = unmet(text)
    values = {"threshold": text, "value": value, "unit": unit, "skew_us": None}
    assert (found.code, found.values) == ("THRESHOLD_MISSED", values)


@pytest.mark.parametrize("text", ["acknowledge.p50<5ms", "lost_acknowledged==0"])
def test_a_figure_that_was_not_measured_does_not_hold(text: str) -> None:
    (found,) = unmet(text)
    assert (found.code, found.values) == ("THRESHOLD_NOT_MEASURED", {"threshold": text})


def test_too_few_values_for_a_percentile_are_counted() -> None:
    (found,) = unmet("end_to_end.p90<5ms")
    assert found.code == "THRESHOLD_FEW_VALUES"
    assert (found.values["count"], found.values["max_us"]) == (100, 5200)


def test_share_of_nothing_expected_was_not_measured() -> None:
    nothing = replace(MEASURED, ledger=Ledger())
    (found,) = unmet("lost<1%", measured=nothing)
    assert found.code == "THRESHOLD_NOT_MEASURED"
    assert unmet("lost==0", measured=nothing) == ()


def test_a_share_is_one_of_the_messages_or_of_their_deliveries() -> None:
    """A tenth of the messages refused, and each of the others delivered to a hundred."""
    fanned = Ledger(sent=100, refused=10, acknowledged=90, expected=9000, intact=9000)
    measured = replace(MEASURED, ledger=fanned)
    (found,) = unmet("refused<1%", measured=measured)
    assert found.values["value"] == 10
    assert unmet("acknowledged>=90%", "lost==0%", "intact==100%", measured=measured) == ()


@pytest.mark.parametrize(("text", "given_up"), TABLES["given_up"])
def test_a_run_is_given_up_when_what_it_has_cannot_become_right(text: str, given_up: bool) -> None:
    ledger = replace(LEDGER, misrouted=4)
    assert bool(hopeless([parse_threshold(text)], replace(MEASURED, ledger=ledger))) is given_up


@pytest.mark.parametrize(("text", "holds"), TABLES["between_hosts"])
def test_a_latency_between_hosts_holds_when_it_does_at_both_ends_of_its_bound(
    text: str, holds: bool
) -> None:
    assert (unmet(text, measured=replace(MEASURED, clock_skew_us=200.0)) == ()) is holds


@pytest.mark.parametrize(("text", "own"), TABLES["own"])
def test_a_bound_that_our_own_delay_breaks_is_ours(text: str, own: list[float]) -> None:
    parts = {
        "own_delay": LatencySummary(9, p50_us=150.0, p99_us=1500.0),
        "own_send": LatencySummary(9, p99_us=1000.0),
    }
    latencies = {**MEASURED.latencies, **parts, "connect": LatencySummary(9, max_us=900.0)}
    measured = replace(MEASURED, latencies=latencies, stall_us=800.0)
    found = broken_by_own_delay([parse_threshold(text)], measured)
    assert found == tuple((text, each) for each in own)


def test_every_state_of_the_ledger_can_be_named() -> None:
    assert set(STATES) == {"intended", *(field.name for field in fields(Ledger))}
