import random
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import Mock

import pytest

from loadgen.run.environment import host_of
from loadgen.run.hosts.agent_link import AgentLink
from loadgen.run.hosts.clocks import KEPT, ClockEstimate, ClockWatch, RoundTrip
from loadgen.run.hosts.messages import Joined, Ping
from loadgen.run.hosts.remote_host import RemoteHost

MS = 1_000_000
S = 1_000_000_000
DAY_NS = 86_400 * S

Delays = Callable[[], tuple[float, float]]


def quiet() -> tuple[float, float]:
    return 50_000, 50_000


def busy(seed: int) -> Delays:
    chance = random.Random(seed)

    def delay() -> float:
        return 40_000 + chance.expovariate(1 / 60_000) + (chance.random() < 0.05) * 20 * MS

    return lambda: (delay(), delay())


def estimates(
    watch: ClockWatch,
    ahead: Callable[[float], float],
    delays: Delays,
    seconds: float,
    start_ns: int = 5 * DAY_NS,
) -> Iterator[tuple[float, ClockEstimate]]:
    """Yield the truth and the estimate after each round trip, ten a second; `ahead(t)` in ns."""
    for step in range(int(seconds * 10)):
        sent = start_ns + step * S // 10
        there, back = delays()
        read = sent + there
        theirs = read + ahead((read - start_ns) / S)
        received = int(read + back)
        watch.add(RoundTrip(sent, int(theirs), received))
        now = received + 50 * MS  # as late as it is used
        found = watch.estimate(now)
        assert found is not None
        yield ahead((now - start_ns) / S), found


def within(truth: float, found: ClockEstimate) -> bool:
    return abs(found.offset_ns - truth) <= found.bound_ns + 1


def test_before_the_first_round_trip_nothing_is_known() -> None:
    assert ClockWatch().estimate(S) is None


@pytest.mark.parametrize("offset_ns", [0, DAY_NS, -DAY_NS, 123_456_789])
def test_an_offset_is_found_to_half_a_round_trip(offset_ns: int) -> None:
    *_, (truth, found) = estimates(ClockWatch(), lambda _: float(offset_ns), quiet, 5)
    assert within(truth, found)
    assert found.round_trip_ns == 100_000
    assert found.bound_ns <= 55_000


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ppm", [-100.0, -1.0, 0.0, 30.0, 100.0])
def test_drift_is_followed_within_the_bound(ppm: float, seed: int) -> None:
    watch = ClockWatch()
    course = list(estimates(watch, lambda t: 7.0 * S + ppm * 1000 * t, busy(seed), 120))
    assert all(within(truth, found) for truth, found in course)
    _, last = course[-1]
    # Many short round trips: better than any single one, and never worse than a typical one.
    assert last.bound_ns < 80_000
    assert last.drift * 1e6 == pytest.approx(ppm, abs=5)


@pytest.mark.parametrize("slow_ns", [10 * MS, 150 * MS])
def test_an_asymmetric_delay_stays_inside_the_bound_and_is_not_seen(slow_ns: int) -> None:
    """Nothing in a round trip says on which way it took long."""
    for ways in ((50_000.0, float(slow_ns)), (float(slow_ns), 50_000.0)):
        delays = partial(tuple[float, float], ways)
        *_, (truth, found) = estimates(ClockWatch(), lambda _: 3.0 * S, delays, 10)
        assert within(truth, found)
        assert found.bound_ns >= slow_ns // 2
        assert abs(found.offset_ns - truth) > slow_ns * 0.4


def test_a_clock_that_was_set_is_found_again() -> None:
    watch = ClockWatch()
    list(estimates(watch, lambda _: 0.0, quiet, 30))
    later = 5 * DAY_NS + 30 * S
    course = list(estimates(watch, lambda _: 2.0 * S, quiet, 1, start_ns=later))
    truth, found = course[-1]
    assert within(truth, found)


def test_a_clock_that_jumps_in_a_run_is_in_its_bound() -> None:
    """Until the new offset is known, moments are wrong by the jump."""
    link = Mock(AgentLink)
    agent = RemoteHost(Joined(host_of(), "m", {}, {}), link)
    for clock, worst_ns in (
        (None, 0),
        (ClockEstimate(7 * S, 40_000, 0.0, 80_000), 40_000),
        (ClockEstimate(7 * S + 50_000, 30_000, 0.0, 60_000), 40_000),
        (ClockEstimate(9 * S, 30_000, 0.0, 60_000), 2 * S - 80_000),
        (ClockEstimate(9 * S, 30_000, 0.0, 60_000), 2 * S - 80_000),
    ):
        agent.take(Ping(1, clock))
        assert agent.clock_bound_ns == worst_ns
    assert link.send.call_count == 5


def test_a_pause_widens_the_bound_by_what_the_drift_may_be() -> None:
    watch = ClockWatch()
    *_, (_, before) = estimates(watch, lambda _: 0.0, quiet, 20)
    after = watch.estimate(5 * DAY_NS + 80 * S)
    assert after is not None
    assert after.bound_ns > before.bound_ns
    assert abs(after.offset_ns) <= after.bound_ns


def test_only_so_many_round_trips_are_kept() -> None:
    watch = ClockWatch()
    list(estimates(watch, lambda _: 0.0, quiet, 100))
    assert len(watch._trips) == KEPT
