"""The facts of a run, from what was counted and what the workers said at its end."""

from dataclasses import replace
from typing import Any

from loadgen.cases.registry import build_scenario, resolve
from loadgen.judge.facts import RunFacts
from loadgen.judge.verdict import judge
from loadgen.metrics.interval import Interval
from loadgen.plan.groups import Target, WorkerPlan
from loadgen.plan.plan import Plan
from loadgen.run.collect_facts import facts_of
from loadgen.run.hosts.worker_pool import Loss
from loadgen.run.run_state import RunState, state_before
from loadgen.sentences import Text

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


def test_what_a_broker_said_is_bounded_and_escaped() -> None:
    plan, state = request()
    hostile = "Not authorized (0x87): \x1b[2J" + "x" * 10_000
    state.finals = {row: {"closing": {"refusal": hostile, "violation": "\n"}} for row in (0, 1)}
    found = facts(state, plan)
    assert found.messages.refusal.isprintable() and len(found.messages.refusal) < 300
    assert found.messages.violation.isprintable()
