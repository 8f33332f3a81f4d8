"""The generator's own part in a window: when it is too much, and its cause."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadgen.judge import own_delay
from loadgen.judge.own_delay import (
    OWN_FLOOR_SHARE,
    OWN_SHARE_LIMIT,
    STALLED_FLOOR_S,
    STALLED_SHARE_LIMIT,
    DelayBounds,
    DelayGap,
    Generator,
    HostDelay,
    LongestStall,
    OwnDelay,
    TimeTaken,
    own_p99_us,
    saturated,
)
from tests.tables import rows_of

BOUNDS = DelayBounds(window_s=20.0, latency_p99_us=300.0, limit_us=20_000)
STOOD = OwnDelay(
    stalled_s=2.0, longest=LongestStall(1, 3.14, 1.99), in_stalls=TimeTaken(0.0, 0.0, 0, 0)
)
Values = Mapping[str, Any]


def is_saturated(own: OwnDelay, bounds: DelayBounds = BOUNDS, busy_share: float = 0.1) -> bool:
    return saturated(Generator(busy_share, own), bounds)


def stalled(own: OwnDelay, bounds: DelayBounds = BOUNDS) -> Values:
    (values,) = own_delay.stalled(Generator(own_delay=own), bounds)
    return values


def late(own: OwnDelay, bounds: DelayBounds = BOUNDS) -> Values:
    (values,) = own_delay.late(Generator(own_delay=own), bounds)
    return values


def test_no_own_delay_is_neither_reason_nor_remark() -> None:
    assert not is_saturated(OwnDelay())
    assert not [*own_delay.noticeable(Generator(), BOUNDS)]
    assert not [*own_delay.noticeable_stalls(Generator(), BOUNDS)]


@pytest.mark.parametrize(
    ("window_s", "start_s", "seconds", "inside"), rows_of("judge.hosts_cut_off")
)
def test_a_host_that_was_cut_off_makes_the_window_describe_its_network(
    window_s: float, start_s: float, seconds: float, inside: bool
) -> None:
    own = OwnDelay(cuts=(DelayGap("1 (left)", start_s, seconds, watcher=False),))
    bounds = replace(BOUNDS, window_s=window_s)
    values = {"host": "1 (left)", "seconds": seconds, "start_s": start_s}
    assert [*own_delay.cut_off(Generator(own_delay=own), bounds)] == [values] * inside
    assert is_saturated(own, bounds) == inside


def test_each_host_that_was_cut_off_is_named_once() -> None:
    cuts = [DelayGap(host, 1.0, s) for host, s in (("a", 1.0), ("b", 2.0), ("a", 3.0))]
    found = own_delay.cut_off(Generator(own_delay=OwnDelay(cuts=tuple(cuts))), BOUNDS)
    assert [(values["host"], values["seconds"]) for values in found] == [("a", 3.0), ("b", 2.0)]


@pytest.mark.parametrize(("retransmitted", "reasons"), rows_of("judge.segments_lost"))
def test_segments_that_one_host_loses_are_lost_on_its_path(
    retransmitted: tuple[int, ...], reasons: list[str]
) -> None:
    hosts = [
        HostDelay(name, segments=1_000, lost=count)
        for name, count in zip("abc", retransmitted, strict=True)
    ]
    generator = Generator(own_delay=OwnDelay(hosts=tuple(hosts)))
    assert [values["host"] for values in own_delay.lossy(generator, BOUNDS)] == reasons
    assert saturated(generator, BOUNDS) == bool(reasons)


@pytest.mark.parametrize(
    ("waited_us", "named"),
    [((None, 9e4), []), ((1.0, 9e4), ["b"]), ((1.0, 1e4), []), ((4e4, 9e4), []), ((9e4, 9e4), [])],
)
def test_publishers_of_one_host_that_wait_have_a_slow_path(
    waited_us: tuple[float | None, ...], named: list[str]
) -> None:
    hosts = [HostDelay(n, pushed_back_p99_us=w) for n, w in zip("ab", waited_us, strict=True)]
    generator = Generator(own_delay=OwnDelay(hosts=tuple(hosts)))
    assert [values["host"] for values in own_delay.pressed(generator, BOUNDS)] == named


@pytest.mark.parametrize("window_s", [1.0, 100.0])
def test_a_worker_may_stand_still_for_a_share_of_the_window_and_for_a_moment(
    window_s: float,
) -> None:
    bounds = replace(BOUNDS, window_s=window_s)
    most_s = max(STALLED_FLOOR_S, STALLED_SHARE_LIMIT * window_s)
    at_most = replace(STOOD, stalled_s=most_s)
    assert not is_saturated(at_most, bounds)
    assert stalled(replace(STOOD, stalled_s=most_s * 1.01), bounds)["worker"] == 1
    (remark,) = own_delay.noticeable_stalls(Generator(own_delay=at_most), bounds)
    assert remark["stalled_s"] == most_s


def test_the_worker_and_the_moment_are_named() -> None:
    values = stalled(STOOD)
    assert (values["worker"], values["stalled_s"], values["window_s"]) == (1, 2.0, 20.0)
    assert (values["longest_s"], values["start_s"]) == (None, 3.14)
    often = replace(STOOD, longest=LongestStall(1, 3.14, 0.3))
    assert stalled(often)["longest_s"] == 0.3


@pytest.mark.parametrize(
    ("taken", "cause", "seconds"),
    [
        (TimeTaken(steal=1.2), "STEAL", 1.2),
        (TimeTaken(steal=1.1, throttled=1.2, waited=1.3), "THROTTLED", 1.2),
        (TimeTaken(0.0, None, 1.2, 0.5), "WAITED", 1.2),
        (TimeTaken(0.0, 0.0, 0.1, 1.9), "BUSY", None),
        (TimeTaken(0.0, 0.0, 0.1, 0.1), "STOPPED", None),
    ],
)
def test_the_cause_is_what_took_most_of_the_time(
    taken: TimeTaken, cause: str, seconds: float | None
) -> None:
    found = stalled(replace(STOOD, in_stalls=taken))["cause"]
    assert (found.code, found.values.get("seconds")) == (cause, seconds)


def test_fewer_workers_are_advised_only_if_there_are_several() -> None:
    own = replace(STOOD, in_stalls=TimeTaken(waited=1.2))
    for workers, several in ((1, None), (2, 2)):
        assert stalled(own, replace(BOUNDS, workers=workers))["cause"].values["several"] == several


@pytest.mark.parametrize(
    ("taken", "cause"),
    [
        (TimeTaken(steal=0.15), "STEAL"),
        (TimeTaken(steal=0.05, throttled=0.15), "THROTTLED"),
        (TimeTaken(waited=2.0, busy=15.0), "WAITED"),
        (TimeTaken(0.0, 0.0, 0.0, 15.0), "BUSY"),
        (TimeTaken(0.0, 0.0, 0.0, 3.0), "WOKEN_LATE"),
    ],
)
def test_delay_without_a_stall_is_explained_by_the_whole_window(
    taken: TimeTaken, cause: str
) -> None:
    assert late(OwnDelay(read_p99_us=25_000.0, in_window=taken))["cause"].code == cause


def test_a_short_stall_does_not_explain_a_p99() -> None:
    brief = OwnDelay(
        0.05, LongestStall(0, 1.0, 0.05), TimeTaken(0.0, 0.0, 0.05, 0.0), read_p99_us=3e4
    )
    assert late(replace(brief, stalled_s=0.1))["cause"].code == "WAITED"
    assert late(brief)["cause"].code == "BUSY"


def test_both_ends_count_and_an_intended_wait_does_not() -> None:
    own = OwnDelay(read_p99_us=100.0, send_p99_us=1_050.0)
    assert own_p99_us(own, replace(BOUNDS, tick_us=1_000)) == 150.0
    assert own_p99_us(own, replace(BOUNDS, tick_us=2_000)) == 100.0


def test_more_than_the_limit_is_too_much_however_late_the_broker_was() -> None:
    bounds = replace(BOUNDS, latency_p99_us=1e6)
    assert not is_saturated(OwnDelay(send_p99_us=20_000.0), bounds)
    values = late(OwnDelay(send_p99_us=20_001.0), bounds)
    assert (values["own_us"], values["limit_us"]) == (20_001, 20_000)


def test_a_large_share_is_too_much_from_a_floor_on() -> None:
    floor_us = OWN_FLOOR_SHARE * BOUNDS.limit_us
    bounds = replace(BOUNDS, latency_p99_us=floor_us)
    assert not is_saturated(OwnDelay(read_p99_us=floor_us), bounds)
    above = Generator(own_delay=OwnDelay(read_p99_us=floor_us + 1))
    (values,) = own_delay.dominant(above, bounds)
    assert values["share"] == 1
    assert not saturated(above, replace(BOUNDS, latency_p99_us=(floor_us + 1) / OWN_SHARE_LIMIT))


@pytest.mark.parametrize(("own_us", "p99_us", "shares"), rows_of("judge.own_delay_remarked"))
def test_half_of_the_p99_is_remarked(own_us: float, p99_us: float, shares: list[float]) -> None:
    generator = Generator(own_delay=OwnDelay(send_p99_us=own_us))
    bounds = replace(BOUNDS, latency_p99_us=p99_us, limit_us=100_000)
    found = [values["share"] for values in own_delay.noticeable(generator, bounds)]
    assert found == pytest.approx(shares, rel=1e-3)


@pytest.mark.parametrize(("window_s", "found", "unknown"), rows_of("judge.unwatched"))
def test_what_nobody_watched_is_unknown(window_s: float, found: list[Any], unknown: bool) -> None:
    name, from_s, stopped_s = found
    gap = DelayGap(name, from_s, stopped_s, watcher="worker" not in name)
    own, bounds = OwnDelay(gaps=(gap,)), replace(BOUNDS, window_s=window_s)
    assert is_saturated(own, bounds) is unknown
    processes = [one["process"] for one in own_delay.unwatched(Generator(own_delay=own), bounds)]
    assert processes == [gap.process] * unknown
    # What a watcher did not see is no backlog of the broker.
    late_s = own_delay.late_s(Generator(own_delay=own), bounds, unread=False)
    assert late_s == (gap.within(0, window_s) if unknown and gap.watcher else 0)


def test_a_busy_loop_needs_workers_and_a_starved_one_a_processor() -> None:
    for taken, cause in (
        (TimeTaken(0.0, 0.0, 0.0, 19.5), "BUSY"),
        (TimeTaken(0.0, 0.0, 12.0, 7.4), "WAITED"),
    ):
        generator = Generator(0.97, OwnDelay(in_window=taken))
        (values,) = own_delay.busy(generator, BOUNDS)
        assert (values["share"], values["cause"].code) == (0.97, cause)
