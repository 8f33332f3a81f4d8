from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from loadgen.judge.live_sample import LiveSample
from loadgen.judge.own_delay import OwnDelay
from loadgen.judge.verdict import RateStepVerdict
from loadgen.metrics.interval import Interval
from loadgen.plan.rate_steps import rate_steps
from loadgen.run.collect_facts import own_delay_of
from loadgen.run.rate_step_watch import RateStepWatch
from loadgen.run.run_document import _rate_step
from loadgen.run.run_state import WorkerStall
from loadgen.run.tally import Tally
from tests.histograms import latency_row
from tests.ledgers import facts_with

S = 1_000_000_000
START = 100 * S
STEPS = rate_steps("50%:10s,100%:10s,40%:10s", 10, 2)


def watch() -> RateStepWatch:
    return RateStepWatch(STEPS, START - 3 * S, START, ["pub", "sub"])


def mark(
    at_s: float, expected: int, missing: int = 0, owed: int = 0, responses: int = 0
) -> LiveSample:
    return LiveSample(
        START + int(at_s * S),
        begun=expected,
        sent=expected + responses,
        expected=expected,
        received=expected - missing,
        owed=owed,
    )


def play(own: RateStepWatch, marks: Mapping[Any, LiveSample]) -> None:
    """Feed marks in time order; those at a bound open or close a step."""
    bounds = {(at - START) / S for judged in own.bounds for at in judged}
    for at_s in sorted(marks):
        take = own.bound if at_s in bounds else own.sample
        take(marks[at_s])


def verdicts(
    own: RateStepWatch,
    own_delay: Callable[[Tally, tuple[int, int]], OwnDelay] = lambda *_: OwnDelay(),
) -> tuple[RateStepVerdict, ...]:
    return own.verdicts(facts_with(devices=3, publishers=2), 100, own_delay)


def test_judged_parts_and_rate_changes() -> None:
    own = watch()
    assert own.bounds == [
        (START, START + 10 * S),
        (START + 12 * S, START + 20 * S),
        (START + 22 * S, START + 30 * S),
    ]
    # The warm-up runs at the first step's rate already.
    assert own.changes == [(START - 3 * S, 0.5), (START + 10 * S, 1.0), (START + 20 * S, 0.4)]


def even(at_s: float) -> int:
    rates = ((10, 50), (20, 100), (30, 40))
    total, before = 0.0, 0
    for end, rate in rates:
        total += max(0.0, min(at_s, end) - before) * rate
        before = end
    return round(total)


def test_each_step_has_its_own_counts_and_verdict() -> None:
    own = watch()
    play(own, {at: mark(at, even(at)) for at in (0, 5, 10, 12, 16, 20, 22, 30, 31)})
    found = verdicts(own)
    assert [one.facts.schedule.target_rate for one in found] == [50, 100, 40]
    assert [one.facts.messages.window.sent for one in found] == [500, 800, 320]
    assert [one.facts.window_s for one in found] == [10, 8, 8]
    assert all(one.verdict.valid for one in found)


def test_responses_are_no_part_of_the_rate() -> None:
    """With the responses a step that sends half its rate would look whole."""
    own = watch()
    marks = {at: even(at) for at in (0, 10, 12, 20, 22, 30, 31)}
    play(own, {at: mark(at, sent, responses=sent) for at, sent in marks.items()})
    assert all(one.verdict.valid for one in verdicts(own))
    half = watch()
    play(half, {at: mark(at, n // 2, owed=n - n // 2, responses=n // 2) for at, n in marks.items()})
    found = verdicts(half)
    assert all("RATE_MISSED" in one.verdict.codes for one in found)
    assert [one.facts.begun for one in found] == [250, 400, 160]
    assert [_rate_step(one)["sent"] for one in found] == [250, 400, 160]
    values = found[1].verdict.reasons[0].values
    assert (values["sent"], values["target"]) == (400, 800)


def test_late_deliveries_are_no_loss_and_what_never_came_is() -> None:
    own = watch()
    late = {at: mark(at, even(at)) for at in (0, 5, 10, 12)}
    # 60 of the second step come with the third; 7 of the third never.
    late |= {16: mark(16, even(16), 40), 20: mark(20, even(20), 60)}
    late |= {22: mark(22, even(22), 20), 25: mark(25, even(25), 0)}
    late |= {30: mark(30, even(30), 9), 31: mark(31, even(30), 7)}
    play(own, late)
    found = verdicts(own)
    assert [one.facts.messages.window.lost for one in found] == [0, 0, 7]
    assert [one.verdict.codes for one in found] == [(), (), ("LOST",)]


def test_a_receiver_that_counted_before_its_sender_makes_no_loss() -> None:
    own = watch()
    marks = {at: mark(at, even(at)) for at in (0, 5, 10, 12, 16, 20, 22, 30, 31)}
    marks |= {5: mark(5, even(5), -3), 16: mark(16, even(16), -1)}
    play(own, marks)
    found = verdicts(own)
    assert [one.facts.messages.window.lost for one in found] == [0, 0, 0]
    assert all(one.verdict.valid for one in found)


def test_overload_shows_in_the_step_that_brought_it() -> None:
    own = watch()
    marks = {at: mark(at, even(at)) for at in (0, 5, 10, 12)}
    marks |= {12 + n: mark(12 + n, even(12 + n), 60 * n) for n in range(1, 9)}
    marks |= {22: mark(22, even(22), 240), 26: mark(26, even(26)), 30: mark(30, even(30))}
    play(own, marks)
    found = verdicts(own)
    assert [one.verdict.codes for one in found] == [(), ("BACKLOG_GROWS",), ()]


def test_what_a_step_left_owed_is_sent_in_the_next() -> None:
    own = watch()
    sent = {0: 0, 10: 400, 12: 600, 20: 1400, 22: 1480, 30: 1800}
    play(own, {at: mark(at, count, owed=100 if at == 10 else 0) for at, count in sent.items()})
    found = verdicts(own)
    assert [one.owed for one in found] == [100, 0, 0]
    assert [one.verdict.codes for one in found] == [("RATE_MISSED",), (), ()]


def test_steps_that_were_cut_off_are_left_out() -> None:
    own = watch()
    play(own, {at: mark(at, even(at)) for at in (0, 10, 12)})
    assert len(verdicts(own)) == 1


def test_rows_count_in_the_step_that_held_their_middle() -> None:
    own = watch()
    timed = latency_row("end_to_end", *[1_000_000] * 5, group="sub")

    def rows(at_s: float) -> list[Interval]:
        base = {"time_ns": START + int(at_s * S), "span_ns": S, "phase": "measure"}
        return [
            Interval(group="", cpu_ns=S // 2, **base),  # type: ignore[arg-type]
            Interval(group="sub", duplicated=2, **base),  # type: ignore[arg-type]
            replace(timed, **base),  # type: ignore[arg-type]
        ]

    # Between two steps a second settles; what comes after the window is of the last step.
    for at_s in (4.0, 10.5, 13.0, 33.0):
        for row in rows(at_s):
            own.add(row)
    play(own, {at: mark(at, even(at)) for at in (0, 10, 12, 20, 22, 30)})
    first, second, third = verdicts(own)
    assert [one.facts.messages.window.repeated for one in (first, second, third)] == [2, 2, 2]
    assert first.facts.generator.busy_share == 0.5
    assert first.facts.service.latency_p99_us is not None


def test_a_stall_in_one_step_is_of_that_step_alone() -> None:
    own = watch()
    play(own, {at: mark(at, even(at)) for at in (0, 10, 12, 20, 22, 30)})
    stall = WorkerStall(1, START + 13 * S, START + 15 * S, 0, 0)

    def own_delay(tally: Tally, window: tuple[int, int]) -> OwnDelay:
        return own_delay_of([stall], {}, tally, window)

    found = verdicts(own, own_delay)
    assert ["GENERATOR_SATURATED" in step.verdict.codes for step in found] == [False, True, False]
    (reason,) = (r for r in found[1].verdict.reasons if r.code == "GENERATOR_SATURATED")
    values = reason.values
    assert (values["worker"], values["stalled_s"], values["window_s"]) == (1, 2, 8)
    assert values["start_s"] == 1
