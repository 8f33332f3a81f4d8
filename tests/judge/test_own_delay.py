"""What of a window is the generator's own, when it is too much, and who took the time."""

from dataclasses import replace

import pytest

from loadgen.judge.own_delay import (
    OWN_FLOOR_SHARE,
    OWN_SHARE_LIMIT,
    STALLED_FLOOR_S,
    STALLED_SHARE_LIMIT,
    Bounds,
    LongestStall,
    OwnDelay,
    TimeTaken,
    own_p99_us,
    remark,
    saturation,
)

BOUNDS = Bounds(window_s=20.0, latency_p99_us=300.0, limit_us=20_000)
STOOD = OwnDelay(
    stalled_s=2.0, longest=LongestStall(1, 3.14, 1.99), in_stalls=TimeTaken(0.0, 0.0, 0, 0)
)


def test_nothing_of_our_own_is_no_reason_and_no_remark() -> None:
    assert saturation(OwnDelay(), 0.5, BOUNDS) == ""
    assert remark(OwnDelay(), BOUNDS) == ""


@pytest.mark.parametrize("window_s", [1.0, 100.0])
def test_a_worker_may_stand_still_for_a_share_of_the_window_and_for_a_moment(
    window_s: float,
) -> None:
    bounds = replace(BOUNDS, window_s=window_s)
    most_s = max(STALLED_FLOOR_S, STALLED_SHARE_LIMIT * window_s)
    at_most = replace(STOOD, stalled_s=most_s)
    assert saturation(at_most, 0.1, bounds) == ""
    assert "stood still" in saturation(replace(STOOD, stalled_s=most_s * 1.01), 0.1, bounds)
    assert "stood still" in remark(at_most, bounds)


def test_the_worker_and_the_moment_are_named() -> None:
    said = saturation(STOOD, 0.1, BOUNDS)
    assert said.startswith("worker 1 stood still for 2.00 s of 20 s, from second 3.1: ")
    often = replace(STOOD, longest=LongestStall(1, 3.14, 0.3))
    assert "longest 0.30 s from second 3.1" in saturation(often, 0.1, BOUNDS)


@pytest.mark.parametrize(
    ("taken", "cause"),
    [
        (TimeTaken(steal=1.2), "hypervisor took this host's processor for 1.20 s; repeat it"),
        (TimeTaken(steal=0.1, throttled=1.2), "quota throttled this host's generator for 1.20 s"),
        (TimeTaken(0.0, None, 1.2, 0.5), "waited 1.20 s for a processor"),
        (TimeTaken(0.0, 0.0, 0.1, 1.9), "add workers or cores"),
        (TimeTaken(0.0, 0.0, 0.1, 0.1), "it was stopped, or waited for memory or a disk"),
    ],
)
def test_the_cause_is_who_had_most_of_the_time(taken: TimeTaken, cause: str) -> None:
    said = saturation(replace(STOOD, in_stalls=taken), 0.3, BOUNDS)
    assert cause in said
    assert ("add workers" in said) == ("add workers" in cause)


def test_delay_without_a_stall_is_explained_by_the_whole_window() -> None:
    late = OwnDelay(read_p99_us=25_000.0)
    for taken, cause in (
        (TimeTaken(steal=0.15), "hypervisor"),
        (TimeTaken(steal=0.05, throttled=0.15), "quota"),
        (TimeTaken(waited=2.0, busy=15.0), "waited 2.00 s for a processor"),
        (TimeTaken(0.0, 0.0, 0.0, 15.0), "add workers"),
        (TimeTaken(0.0, 0.0, 0.0, 3.0), "this host woke it late"),
    ):
        assert cause in saturation(replace(late, in_window=taken), 0.3, BOUNDS)


def test_a_short_stall_does_not_explain_a_p99() -> None:
    late = OwnDelay(
        0.05, LongestStall(0, 1.0, 0.05), TimeTaken(0.0, 0.0, 0.05, 0.0), read_p99_us=3e4
    )
    assert "waited" in saturation(replace(late, stalled_s=0.1), 0.3, BOUNDS)
    assert "waited" not in saturation(late, 0.3, BOUNDS)


def test_both_ends_count_and_an_intended_wait_does_not() -> None:
    own = OwnDelay(read_p99_us=100.0, send_p99_us=1_050.0)
    assert own_p99_us(own, replace(BOUNDS, tick_us=1_000)) == 150.0
    assert own_p99_us(own, replace(BOUNDS, tick_us=2_000)) == 100.0


def test_more_than_the_limit_is_too_much_however_late_the_broker_was() -> None:
    bounds = replace(BOUNDS, latency_p99_us=1e6)
    assert saturation(OwnDelay(send_p99_us=20_000.0), 0.1, bounds) == ""
    assert "p99 20,001 µs above 20,000 µs" in saturation(OwnDelay(send_p99_us=2e4 + 1), 0.1, bounds)


def test_a_large_share_is_too_much_from_a_floor_on() -> None:
    floor_us = OWN_FLOOR_SHARE * BOUNDS.limit_us
    bounds = replace(BOUNDS, latency_p99_us=floor_us)
    assert saturation(OwnDelay(read_p99_us=floor_us), 0.1, bounds) == ""
    assert "(100%) of the p99" in saturation(OwnDelay(read_p99_us=floor_us + 1), 0.1, bounds)
    slow = replace(BOUNDS, latency_p99_us=(floor_us + 1) / OWN_SHARE_LIMIT)
    some = OwnDelay(read_p99_us=floor_us + 1)
    assert saturation(some, 0.1, slow) == ""
    assert "(50%) of the p99" in remark(some, slow)


def test_a_busy_loop_is_told_to_get_help_and_a_starved_one_is_not() -> None:
    busy = OwnDelay(in_window=TimeTaken(0.0, 0.0, 0.0, 19.5))
    assert "97.0% of its time" in saturation(busy, 0.97, BOUNDS)
    assert "add workers" in saturation(busy, 0.97, BOUNDS)
    starved = saturation(OwnDelay(in_window=TimeTaken(0.0, 0.0, 12.0, 7.4)), 0.97, BOUNDS)
    assert "waited 12.00 s for a processor" in starved
    assert "add workers" not in starved
