from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from loadgen.judge.backlog import Standstill, backlog_growth, waits_too_long
from loadgen.judge.backlog_watch import BacklogWatch
from loadgen.judge.live_sample import LiveSample

S = 1_000_000_000
MS = S // 1000
START = 100 * S
RATE = 1000
"""Messages a second; each is delivered once."""


def sample_at(at_ms: float, owed: int, under_way: int, due: int, answered: int) -> LiveSample:
    time_ns = START + round(at_ms * MS)
    return LiveSample(time_ns, owed=owed, under_way=under_way, due=due, answered=answered)


def watched(
    answered: Callable[[float], float],
    seconds: float = 10,
    drain_s: float = 1,
    lost: Callable[[float], float] = lambda at: 0,
    moments: Iterable[int] = (),
    rate: float = RATE,
) -> BacklogWatch:
    """A window looked at each 10 ms; `answered(s)` and `lost(s)` messages by that second."""
    watch = BacklogWatch(START, START + round(seconds * S))
    for at_ms in moments or range(0, round((seconds + drain_s) * 1000) + 1, 10):
        at = at_ms / 1000
        due = round(rate * min(at, seconds))
        back = round(answered(at))
        watch.sample(sample_at(at_ms, 0, max(0, due - back - round(lost(at))), due, back))
    return watch


def stalled(from_s: float, until_s: float) -> Callable[[float], float]:
    """A broker that stood, and then at once delivered all that had waited."""
    return lambda at: RATE * (from_s if from_s <= at < until_s else min(at, 10))


def test_a_calm_window_has_samples_a_second_and_more_at_both_ends() -> None:
    watch = watched(lambda at: RATE * min(at, 10))
    samples = watch.samples()
    times = [(at - START) / S for at, _, _ in samples]
    assert times[0] == 0 and times[-1] == 10
    assert sum(time <= 0.5 for time in times) == sum(time >= 9.5 for time in times) == 51
    assert 60 <= sum(0.5 < time < 9.5 for time in times) + 52 <= 75
    assert {under_way for _, _, under_way in samples} == {0}
    assert (watch.high_water_mark, watch.standstills()) == (0, ())


def test_a_stall_that_recovers_is_told_and_no_growth() -> None:
    watch = watched(stalled(4, 6))
    (still,) = watch.standstills()
    assert (still.from_s, round(still.until_s, 2)) == (4.01, 5.99)
    assert still.waiting == 1990
    assert watch.high_water_mark == 1990
    assert backlog_growth(watch.samples()) == 0


def test_a_stall_that_stands_at_the_end_is_growth() -> None:
    watch = watched(stalled(8, 10.5))
    assert watch.standstills() == (Standstill(8.01, 10.0, 2000),)
    assert 1700 < backlog_growth(watch.samples()) < 2000


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_one_subscription_that_is_not_served_is_a_backlog(share: float) -> None:
    """Only 4 of 1,000 messages wait, all of them for the same device."""
    watch = BacklogWatch(START, START + 10 * S)
    for at_ms in range(0, 10_001, 10):
        waiting = round(4 * at_ms / 10_000)
        sample = sample_at(at_ms, 0, waiting, at_ms // 10, at_ms // 10 - waiting)
        watch.sample(replace(sample, most=waiting, waits=share))
    watch.sample(sample_at(10_500, 0, 0, 1_000, 1_000))
    assert watch.waited_s() == pytest.approx(10 * share, abs=0.1)
    assert waits_too_long(watch.samples(), watch.waited_s(), 10, 0) is (share > 0)


def test_what_never_arrives_is_no_backlog() -> None:
    # Half of what is sent after the fourth second is lost.
    def lost(at: float) -> float:
        return max(0.0, RATE / 2 * (min(at, 10) - 4))

    def answered(at: float) -> float:
        return RATE * min(at, 10) - lost(at)

    watch = watched(answered)
    samples = watch.samples()
    assert samples[-1][2] == 0 and backlog_growth(samples) == 0
    # A broker that stands still for good has lost all, and the time is known.
    gone = watched(lambda at: RATE * min(at, 7))
    assert backlog_growth(gone.samples()) == 0
    assert gone.standstills() == (Standstill(7.01, 10.0, 3000),)


def test_what_the_warm_up_lost_is_no_backlog() -> None:
    watch = BacklogWatch(START, START + 10 * S)
    for at_ms in range(0, 11_000, 10):
        watch.sample(sample_at(at_ms, 0, 700, at_ms, at_ms))
    assert {under_way for _, _, under_way in watch.samples()} == {0}


def test_few_messages_or_a_short_time_are_no_standstill() -> None:
    assert watched(stalled(4, 4.4)).standstills() == ()
    watch = BacklogWatch(START, START + 10 * S)
    # A message a second, each lost: nothing that stands still can be told from that.
    for at_ms in range(0, 8_000, 10):
        watch.sample(sample_at(at_ms, 0, at_ms // 1000, at_ms // 1000, 0))
    assert watch.standstills() == ()


def test_the_time_before_something_is_due_is_no_standstill() -> None:
    watch = BacklogWatch(START, START + 10 * S)
    # A hundred deliveries each second, all within 20 ms; one look falls between.
    for at_ms in range(0, 10_000, 10):
        due = 100 * (at_ms // 1000)
        back = due if at_ms % 1000 >= 20 else max(0, due - 100)
        watch.sample(sample_at(at_ms, 0, due - back, due, back))
    assert watch.standstills() == ()


def test_a_look_that_was_late_is_no_standstill() -> None:
    moments = [*range(0, 4_000, 10), *range(6_000, 11_000, 10)]
    assert watched(lambda at: RATE * min(at, 10), moments=moments).standstills() == ()


def test_what_is_owed_comes_due_too() -> None:
    watch = BacklogWatch(START, START + 10 * S)
    # The window of every publisher is full: nothing is sent any more.
    for at_ms in range(0, 10_000, 10):
        owed = max(0, at_ms - 5_000)
        sent = min(at_ms, 5_000)
        watch.sample(sample_at(at_ms, owed, 5, sent + owed, min(at_ms, 4_990)))
    (still,) = watch.standstills()
    assert still.from_s == 5.0 and still.waiting > 4_900


def test_arrivals_are_those_of_the_window_and_the_last_may_come_later() -> None:
    watch = BacklogWatch(START, START + 10 * S)
    for at_s, received in ((-1, 5), (0, 7), (5, 7), (10, 9), (11, 40), (12, 40)):
        watch.sample(LiveSample(START + at_s * S, received=received))
    arrived: int | None = watch.arrived
    assert (arrived, watch.last_arrival_ns) == (2, START + 11 * S)


def test_a_window_that_is_cut_ends_there() -> None:
    watch = BacklogWatch(START, START + 10 * S)
    for at_ms in range(0, 3_000, 10):
        if at_ms == 2_000:
            watch.end_ns = START + 2 * S
        watch.sample(sample_at(at_ms, 0, 0, at_ms, at_ms))
    assert watch.samples()[-1][0] == START + 2 * S


def test_a_few_messages_are_a_backlog_if_the_oldest_waits_too_long() -> None:
    """Of one message a second half are served; then all, each 0.4 s late."""
    half, late = (
        watched(served, seconds=5, drain_s=6, rate=1)
        for served in (lambda at: min(5, at / 2), lambda at: min(5, max(0, at - 0.4)))
    )
    assert [backlog_growth(one.samples()) for one in (half, late)] == [3, 1]
    assert [round(one.waited_s(), 1) for one in (half, late)] == [2.2, 0]
    assert [waits_too_long(one.samples(), one.waited_s(), 5, 0) for one in (half, late)] == [1, 0]
    assert not waits_too_long(half.samples(), half.waited_s(), 5, late_s=2)
