"""The state of a run as the facts that the verdict is made of."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadgen.control.run_state import NS, RunState
from loadgen.workload.groups import RunPlan, sent_rate
from loadgen.workload.rate_step_verdict import RateStepVerdict
from loadgen.workload.verdict import RunFacts
from loadgen.workload.workload import Workload


def facts_of(
    workload: Workload, plan: RunPlan, state: RunState, workers_lost: tuple[int, ...] = ()
) -> RunFacts:
    """The facts of a run that was played to its end, or cut."""
    counts = state.tally.counts["measure"]
    timed = [group for group in plan.groups if group.timed]
    start_ns, end_ns = state.windows.get("measure" if state.messages else "connect", (0, 0))
    result = ("measure", "end_to_end") if state.messages else ("connect", "connect")
    connected, subscribed = state.connected, state.subscribed
    failures = Counter(connected.failures if connected else {})
    failures.update(subscribed.failures if subscribed else {})
    done = connected.done if connected else 0
    if subscribed is not None:
        done -= sum(subscribed.failures.values())
    return RunFacts(
        qos=workload.needs.qos,
        connects_only=workload.case.connects_only,
        send_delay_limit_us=workload.case.send_delay_limit_us,
        devices=sum(group.count for group in plan.groups),
        connected=done,
        connect_failures=failures.total(),
        connect_failure=max(failures, key=lambda reason: failures[reason], default=""),
        disconnects=state.tally.total("disconnects"),
        disconnect=state.disconnect_reason,
        disconnects_planned=plan.reconnect is not None,
        reconnects=state.tally.total("connects") - (connected.done if connected else 0),
        returned=sum(final.get("returned") or 0 for final in state.finals.values()),
        owed_by_leave=_owed_by_leave(plan),
        connect_rate=workload.phases.connect_rate,
        connect_seconds=connected.seconds if connected else 0.0,
        window_s=(end_ns - start_ns) / NS,
        target_rate=sum(sent_rate(group, plan.groups) for group in plan.groups)
        * workload.mean_share,
        arrivals_random=workload.arrivals_random,
        publishers=sum(group.count for group in plan.groups if group.publishes is not None),
        sent=counts["sent"],
        owed_at_window_end=state.owed_at_window_end,
        owed_at_end=state.owed_at_end,
        expected=counts["expected"],
        received=counts["received"],
        duplicated=counts["duplicated"],
        out_of_order=counts["out_of_order"],
        corrupt=counts["corrupt"],
        busy_share=state.tally.busy_share_max(),
        send_delay_p99_us=state.tally.p99_us("measure", "send_delay") if timed else None,
        send_tick_us=plan.send_tick_us,
        pushed_back=any(final.get("pushed_back") for final in state.finals.values()),
        backlog=tuple(state.backlog_samples),
        latency_p99_us=state.tally.p99_us(*result),
        latency_bound_us=workload.latency_bound_us,
        workers_lost=workers_lost,
        interrupted=state.ending == "interrupted",
    )


def _owed_by_leave(plan: RunPlan) -> float:
    """Messages that publishers owe, at most, because churn sent them away."""
    publishing = [group for group in plan.groups if group.publishes is not None]
    devices = sum(group.count for group in publishing)
    if not plan.churn_per_s or not devices:
        return 0.0
    longest_s = plan.away_s * 1.5
    away = min(plan.churn_per_s * longest_s, devices)
    return away * longest_s * sum(sent_rate(group, plan.groups) for group in publishing) / devices


def handshakes_of(finals: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What TLS the connections of all workers had, the most first; None where none was encrypted.

    `finals` are the last answers of the workers by row; one that was lost is missing.
    """
    kinds: Counter[tuple[str, str]] = Counter()
    resumed = 0
    for final in finals.values():
        found = final.get("tls") or {"connections": [], "resumed": 0}
        for one in found["connections"]:
            kinds[one["version"], one["cipher"]] += one["count"]
        resumed += found["resumed"]
    if not kinds:
        return None
    return {
        "connections": [
            {"version": version, "cipher": cipher, "count": count}
            for (version, cipher), count in sorted(kinds.items(), key=lambda k: (-k[1], k[0]))
        ],
        "resumed": resumed,
    }


def rate_step_verdicts(
    state: RunState, plan: RunPlan, whole: RunFacts
) -> tuple[RateStepVerdict, ...]:
    """Each rate step that was played to its end; `whole` are the facts of the run."""
    if state.rate_steps is None:
        return ()
    rate = sum(sent_rate(group, plan.groups) for group in plan.groups)
    return state.rate_steps.verdicts(whole, rate)
