"""The facts of a run, from counts and from the workers' last answers."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.judge.facts import RunFacts
from loadgen.judge.live_sample import LiveSample
from loadgen.judge.own_delay import DelayGap, OwnDelay, TimeTaken
from loadgen.judge.verdict import judge
from loadgen.metrics.interval import Interval
from loadgen.plan.groups import Target, WorkerPlan
from loadgen.plan.plan import Plan
from loadgen.run.collect_facts import facts_of, own_delay_of
from loadgen.run.host_watch import HostSample
from loadgen.run.hosts.worker_pool import Loss
from loadgen.run.run_state import RunState, WorkerStall, state_before
from loadgen.run.tally import Tally
from loadgen.sentences import Text
from tests.histograms import latency_row

S = 1_000_000_000
CLOSING = {"scheduled": 480, "distinct": 360, "publishes": 360, "in_flight": 0}


def request(**fields: Any) -> tuple[Plan, RunState]:
    """40 requests a second for 6 s; a sixth of them, or of the responses, is not there."""
    given = {"devices": 40, "rate": 40, "responders": 4, "qos": 1, **fields}
    plan = resolve(build_scenario("request", None, given))
    targets, workers = (Target("127.0.0.1", 1),), (WorkerPlan(0, ()), WorkerPlan(1, ()))
    plan = replace(plan, targets=targets, workers=workers)
    state = state_before(plan)
    state.windows["measure"] = (0, 6 * S)
    return plan, state


def count(state: RunState, group: str, phase: str = "measure", **counts: Any) -> None:
    state.tally.add(Interval(group=group, phase=phase, **counts))


def facts(state: RunState, plan: Plan, *lost: int) -> RunFacts:
    return facts_of(plan, state, [Loss(worker, "") for worker in lost])


def test_a_response_that_was_not_caused_misses_no_rate() -> None:
    plan, state = request()
    # 40 requests were lost, so as many responses were never sent.
    count(state, "requesters", sent=240, acknowledged=240, expected=480, received=200)
    count(state, "responders", sent=200, acknowledged=200, received=200)
    found = facts(state, plan)
    assert (found.schedule.target_rate, found.begun, found.messages.window.sent) == (40, 240, 440)
    assert found.bounds.workers == 2
    assert (found.messages.window.expected, found.messages.window.lost) == (480, 80)
    assert "RATE_MISSED" not in judge(found).codes and "LOST" in judge(found).codes


def test_a_rate_that_must_be_sent_is_that_of_the_requests() -> None:
    plan, state = request(require=["sent_rate>=40", "sent_rate>40", "sent==480"])
    count(state, "requesters", sent=240, acknowledged=240, expected=480, received=240)
    count(state, "responders", sent=240, acknowledged=240, received=240)
    (missed,) = facts(state, plan).service.thresholds_missed
    assert missed.startswith("sent_rate>40: ")


def test_the_sums_are_held_against_what_every_worker_says() -> None:
    plan, state = request()
    for phase in ("warmup", "measure"):
        count(state, "requesters", phase, sent=120, acknowledged=120, expected=180, received=90)
        count(state, "responders", phase, sent=120, acknowledged=120, received=90)
    closing = {name: value // 2 for name, value in CLOSING.items()}
    state.finals = {0: {"closing": closing}, 1: {"closing": closing}}
    found = facts(state, plan)
    assert found.messages.proven and found.messages.imbalances == ()
    assert (found.messages.run.sent, found.messages.window.sent) == (480, 240)
    state.finals[1] = {"closing": closing | {"in_flight": 3, "refusals": {"135": 2}}}
    (wrong,) = facts(state, plan).messages.imbalances
    assert isinstance(wrong, Text) and wrong.values["in_flight"] == 3
    # Without the word of every worker nothing is proven, and nothing is held against the run.
    del state.finals[0]
    silent = facts(state, plan)
    assert not silent.messages.proven and silent.messages.imbalances == ()


def test_what_nobody_saw_to_its_end_is_not_lost() -> None:
    plan, state = request()
    count(state, "requesters", sent=240, acknowledged=200, expected=480, received=200)
    assert facts(state, plan).messages.window.lost == 280
    for cause in ("worker", "abandoned", "unread"):
        plan, state = request()
        count(state, "requesters", sent=240, acknowledged=200, expected=480, received=200)
        state.abandoned = cause == "abandoned"
        if cause == "unread":
            state.finals = {0: {"closing": {"unread": 1}}, 1: {"closing": {"unread": 0}}}
        found = facts(state, plan, *((1,) if cause == "worker" else ()))
        assert (found.messages.window.lost, found.messages.window.unobserved) == (0, 280)
        assert not {"LOST", "UNACKNOWLEDGED", "LEDGER"} & set(judge(found).codes)


def test_messages_sent_after_the_drain_are_neither_lost_nor_owed() -> None:
    plan, state = request()
    count(state, "requesters", sent=240, acknowledged=240, expected=480, received=380)
    state.at_end = LiveSample(0, sent=210, expected=420, under_way=10)
    state.owed_at_end = 50
    # Those that a later message of their stream has overtaken did not wait.
    for arriving, overtaken, unobserved in ((0, 0, 60), (10, 0, 70), (10, 55, 45), (0, 100, 0)):
        state.waiting = arriving
        state.finals = {row: {"closing": {"overtaken": overtaken * row}} for row in (0, 1)}
        messages = facts(state, plan).messages
        ledger = messages.window
        assert (ledger.unobserved, ledger.lost, ledger.owed) == (unobserved, 100 - unobserved, 20)
        assert messages.waiting == (unobserved if arriving else 0)


def test_what_a_broker_said_is_bounded_and_escaped() -> None:
    plan, state = request()
    hostile = "Not authorized (0x87): \x1b[2J" + "x" * 10_000
    state.finals = {row: {"closing": {"refusal": hostile, "violation": "\n"}} for row in (0, 1)}
    found = facts(state, plan)
    assert found.messages.refusal.isprintable() and len(found.messages.refusal) < 300
    assert found.messages.violation.isprintable()


MS = 10**6
WINDOW = (100 * S, 110 * S)


latencies = partial(latency_row, group="timed")


def tally_of(*rows: Interval) -> Tally:
    tally = Tally(["timed"], ["measure"])
    for row in rows:
        tally.add(row)
    return tally


def test_the_worker_that_stood_still_most_counts_and_only_within_the_window() -> None:
    stalls = [
        WorkerStall(0, 101 * S, 102 * S, 0, 0),
        WorkerStall(1, 99 * S, 101 * S, S, S // 2),
        WorkerStall(1, 103 * S, 103 * S + 300 * MS, 0, 300 * MS),
        WorkerStall(1, 120 * S, 180 * S, 0, 0),
    ]
    found = own_delay_of(stalls, {}, tally_of(), WINDOW)
    assert found.stalled_s == 1.3
    assert found.longest is not None
    assert (found.longest.worker, found.longest.start_s, found.longest.seconds) == (1, 0.0, 1.0)
    assert found.in_stalls == TimeTaken(None, None, 0.55, 0.5)


def test_a_silent_host_was_cut_off_unless_its_agent_or_the_coordinator_stood_still() -> None:
    silences = ((101 * S, 103 * S), (104 * S, 105 * S), (106 * S, 107 * S))
    left = HostSample(0, host="1 (left)", silences=silences, gaps=(silences[2],))
    other = HostSample(0, host="0 (right)", gaps=(silences[0],))
    coordinator = [(104 * S, 105 * S - 400 * MS)]
    found = own_delay_of([], {0: [other], 1: [left]}, tally_of(), WINDOW, coordinator)
    assert found.cuts == (DelayGap("1 (left)", 1.0, 4.0, watcher=False),)
    assert len(found.gaps) == 3


@pytest.mark.parametrize(("needless", "early", "lost"), [(0, 0, 30), (28, 0, 2), (28, 12, 12)])
def test_a_segment_that_arrived_twice_was_not_lost(needless: int, early: int, lost: int) -> None:
    grown = {"retransmitted_segments": 30, "needless_retransmits": needless}
    after = {
        "sent_segments": 1_000,
        "out_of_order_segments": early,
        "repeated_segments": 40,
        **grown,
    }
    samples = [
        HostSample(WINDOW[0], network=dict.fromkeys(after, 0)),
        HostSample(WINDOW[1], network=after),
    ]
    (host,) = own_delay_of([], {0: samples}, tally_of(), WINDOW).hosts
    assert (host.segments, host.retransmitted, host.lost) == (1_000, 30, lost)


def test_the_host_is_asked_about_the_seconds_of_the_stalls() -> None:
    samples = [HostSample(at * S, (at * S // 2,)) for at in range(99, 112)]
    found = own_delay_of(
        [WorkerStall(0, 103 * S + 1, 104 * S - 1, 0, 0)], {0: samples}, tally_of(), WINDOW
    )
    assert found.in_stalls.steal == 0.5
    assert own_delay_of([], {0: samples}, tally_of(), WINDOW).in_window.steal == 5.0


def test_of_several_hosts_only_that_of_the_worker_tells() -> None:
    idle = [HostSample(at * S, (0,)) for at in range(99, 112)]
    stolen = [HostSample(at * S, (at * S // 2,)) for at in range(99, 112)]
    for host, steal in ((0, 0.0), (1, 0.5), (2, None)):
        stalls = [WorkerStall(7, 103 * S, 104 * S, 0, 0, host)]
        found = own_delay_of(stalls, {0: idle, 1: stolen}, tally_of(), WINDOW)
        assert found.in_stalls.steal == steal


def test_of_the_whole_window_the_busiest_worker_tells() -> None:
    rows = (
        Interval(phase="measure", worker=0, cpu_ns=S, wait_ns=S, span_ns=10 * S),
        Interval(phase="measure", worker=1, cpu_ns=4 * S, wait_ns=S, span_ns=10 * S),
        Interval(phase="warmup", worker=0, cpu_ns=9 * S, wait_ns=S, span_ns=10 * S),
    )
    found = own_delay_of([], {}, tally_of(*rows), WINDOW)
    nothing = TimeTaken(None, None, 0.0, 0.0)
    assert found == OwnDelay(in_stalls=nothing, in_window=TimeTaken(None, None, 1.0, 4.0))


def test_what_waited_for_the_broker_is_no_send_delay_of_ours() -> None:
    sent = [5 * MS] * 20 + [50_000] * 980
    tally = tally_of(latencies("send_delay", *sent), latencies("own_delay", 7 * MS))
    found = own_delay_of([], {}, tally, WINDOW)
    assert found.send_p99_us == pytest.approx(5_000, rel=0.001)
    assert found.read_p99_us == pytest.approx(7_000, rel=0.001)
    tally.add(latencies("pushed_back", *sent[:15]))
    held = own_delay_of([], {}, tally, WINDOW).send_p99_us
    assert held == pytest.approx(50, rel=0.001)
    tally.add(latencies("pushed_back", *sent[15:]))
    assert own_delay_of([], {}, tally, WINDOW).send_p99_us is None


def test_the_slowest_host_counts_unless_it_has_too_few_messages() -> None:
    samples = {at: [HostSample(0, host=f"{at} (x)")] for at in (0, 1)}
    for count, name, own_us in ((990, "1 (x)", 50_000), (9_901, "0 (x)", 50)):
        quick = latencies("own_delay", *[50_000] * count)
        slow = replace(latencies("own_delay", *[50 * MS] * 10), host=1)
        found = own_delay_of([], samples, tally_of(quick, slow), WINDOW)
        assert found.slow_host == name
        assert found.read_p99_us == pytest.approx(own_us, rel=0.001)
        assert [host.messages for host in found.hosts] == [count, 10]
