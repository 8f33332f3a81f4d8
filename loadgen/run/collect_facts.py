"""The state of a run as the facts that the verdict is made of."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loadgen.cases.registry import case_of
from loadgen.judge import ledger
from loadgen.judge import own_delay as delay
from loadgen.judge.backlog import BACKLOG_EDGE_NS
from loadgen.judge.facts import Connects, Ending, Messages, RunFacts, Schedule, Service, SlowFacts
from loadgen.judge.ledger import LONGEST_TEXT, Counted, Witness, ledgers_of, witness_of
from loadgen.judge.thresholds import Measured, broken_by_own_delay, missed
from loadgen.judge.verdict import RateStepVerdict
from loadgen.mqtt.violations import SESSION_LOST, VIOLATIONS
from loadgen.plan.addressing import timed_between_hosts
from loadgen.plan.deliveries import delivered_rate, direct_senders
from loadgen.plan.groups import may_leave, sent_qos, slow_group
from loadgen.plan.plan import Plan, rate_in_window
from loadgen.plan.scenario import HEADER_BYTES
from loadgen.plan.stages import presence
from loadgen.run.host_watch import GAP_NS, HostSample, between, network_within
from loadgen.run.hosts.worker_pool import Loss
from loadgen.run.run_state import NS, RunState, Window, WorkerStall
from loadgen.run.tally import Tally
from loadgen.sentences import printable


def facts_of(
    plan: Plan, state: RunState, losses: Sequence[Loss] = (), held_when_cut: int = 0
) -> RunFacts:
    start_ns, end_ns = state.result_window
    result = ("measure", "end_to_end") if state.messages else ("connect", "connect")
    backlog = state.backlog
    closings = [final["closing"] for final in state.finals.values() if final.get("closing")]
    # Without the statements of all workers nothing is proven.
    complete = len(closings) == len(plan.workers)
    witness = witness_of(closings if complete else ())
    window, total = _counted(plan, state, witness, "measure"), _counted(plan, state, witness)
    unread = 0 if state.waiting else witness.unread  # while messages come, some bytes are unread
    observed = not (losses or state.abandoned or unread)
    ledgers = ledgers_of(window, total, observed=observed)
    in_window, in_run = ledger.with_acknowledged(*ledgers, state.lost_unacknowledged)
    case, bound_s = case_of(plan.scenario.case), plan.scenario.latency_bound
    sums = ledger.imbalances(window, total, witness if complete else None, observed=observed)
    connects = _connects(plan, state)
    kinds = ((VIOLATIONS[kind], count) for kind, count in witness.violations.items())
    own_delay = _own_delay(state, state.tally, state.result_window)
    messages = Messages(
        qos=plan.needs.qos,
        window=in_window,
        run=in_run,
        imbalances=tuple(sums),
        proven=complete or not state.messages,
        lost_named=state.lost_named,
        held_when_cut=held_when_cut,
        waiting=total.waiting if state.waiting and not own_delay.cuts else 0,
        refusals=witness.refusals,
        refusal=printable(witness.refusal, LONGEST_TEXT),
        violation=printable(witness.violation, LONGEST_TEXT),
        redelivered=witness.redelivered,
        unreleased=witness.unreleased,
        remarked={kind.words: count for kind, count in kinds if not kind.is_judged},
        sessions_lost=witness.violations.get(SESSION_LOST, 0),
    )
    facts = RunFacts(
        window_s=(end_ns - start_ns) / NS,
        ending=Ending(
            interrupted=state.ending == "interrupted",
            abandoned=state.abandoned,
            drain_s=plan.phases.drain_s,
            workers_lost=tuple(loss.worker for loss in losses),
            hosts_of_lost=tuple(dict.fromkeys(loss.host for loss in losses if loss.host)),
            loss=losses[0].detail if losses else "",
            unread=unread,
        ),
        connects=connects,
        schedule=_schedule(plan, state, connects.overdue),
        messages=messages,
        generator=delay.Generator(
            busy_share=state.tally.busy_share_max(),
            own_delay=own_delay,
            send_delay_limit_us=case.send_delay_limit_us,
            send_tick_us=plan.send_tick_us,
            workers=max(Counter(worker.host for worker in plan.workers).values(), default=1),
        ),
        service=Service(
            backlog=() if backlog is None else tuple(backlog.samples()),
            arrived=None if backlog is None else backlog.arrived,
            waited_s=0.0 if backlog is None else backlog.waited_s(),
            standstills=() if backlog is None else backlog.standstills(),
            latency_p99_us=state.tally.p99_us(*result),
            latency_bound_us=None if bound_s is None else bound_s * 1e6,
            clock_bound_ns=state.clock_bound_ns,
            clock_hosts=state.clock_hosts,
            timed_between_hosts=timed_between_hosts(plan),
        ),
        slow=_slow(plan, state),
    )
    measured = Measured(
        state.tally.latencies(),
        in_window,
        facts.on_time,
        facts.window_s,
        facts.service.clock_skew_us,
        max((stall.ns / 1000 for stall in state.stalls), default=0.0),
    )
    service = replace(
        facts.service,
        thresholds_missed=state.missed or missed(plan.thresholds, measured),
        ended_by_threshold=bool(state.missed),
    )
    broken = broken_by_own_delay(plan.thresholds, measured)
    return replace(facts, service=service, generator=replace(facts.generator, bounds_broken=broken))


def _counted(plan: Plan, state: RunState, witness: Witness, phase: str | None = None) -> Counted:
    """Return the counts of the messages intended in a phase, or in the whole run."""
    waiting, owed, sums = state.waiting, state.owed_at_end, state.tally.counts()
    if state.at_end is not None:
        # A message that was sent after the drain had no time to arrive, and is not owed any more.
        waiting += max(sums["expected"] - state.at_end.expected, 0)
        owed = max(owed - max(sums["sent"] - state.at_end.sent, 0), 0)
    arrived = sums["received"] + witness.damaged + max(witness.overtaken, 0)
    waiting = min(waiting, max(sums["expected"] - arrived, 0))
    confirmed = [group.name for group in plan.groups if sent_qos(group) > 0]
    sent = state.tally.counts(phase, confirmed)["sent"]
    return Counted(state.tally.counts(phase), confirmed=sent, owed=owed, waiting=waiting)


def _own_delay(state: RunState, tally: Tally, window: Window) -> delay.OwnDelay:
    return own_delay_of(state.stalls, state.hosts, tally, window, state.attendance.gaps)


def _worst(tally: Tally, series: str, hosts: Iterable[int]) -> float | None:
    """Return the greatest p99 of a series over these hosts; without hosts, that of all messages."""
    values = [tally.p99_us("measure", series, host) for host in hosts]
    of_all = tally.p99_us("measure", series) if not values else None
    return max((value for value in values if value is not None), default=of_all)


def _host_delay(
    number: int, samples: Sequence[HostSample], tally: Tally, window: Window
) -> delay.HostDelay:
    network = network_within(samples, window)
    resent, series = network["retransmitted_segments"], tally.series_of(number)
    return delay.HostDelay(
        name=samples[-1].host,
        messages=max((row.count for (at, _), row in series.items() if at == "measure"), default=0),
        read_p99_us=tally.p99_us("measure", "own_delay", number),
        send_p99_us=tally.p99_us("measure", "own_send", number),
        pushed_back_p99_us=tally.p99_us("measure", "pushed_back", number),
        segments=network["sent_segments"],
        retransmitted=resent,
        # A segment that arrived twice was delayed; one that arrived early shows a lost one.
        lost=max(resent - network["needless_retransmits"], network["out_of_order_segments"]),
    )


def own_delay_of(
    stalls: Sequence[WorkerStall],
    hosts: Mapping[int, Sequence[HostSample]],
    tally: Tally,
    window: tuple[int, int],
    coordinator: Sequence[tuple[int, int]] = (),
) -> delay.OwnDelay:
    """Return the facts of a window whose messages are in `tally`.

    `hosts` are the samples of each host by its number; `coordinator` are the times in which this
    process did not run. The use of time is that of the host whose worker stalled longest, or of the
    busiest worker.
    """
    begun_ns = window[0]
    by_worker: defaultdict[int, list[WorkerStall]] = defaultdict(list)
    for stall in stalls:
        part = stall.within(*window)
        if part.end_ns > part.start_ns:
            by_worker[part.worker].append(part)
    worst = max(by_worker.values(), key=lambda parts: sum(part.ns for part in parts), default=[])
    stalled, longest = max(worst, key=lambda part: part.ns, default=None), None
    by_host = {at: _host_delay(at, hosts[at], tally, window) for at in sorted(hosts)}
    # The messages of a host with fewer than a hundredth of them do not determine a p99.
    least = 0.01 * sum(host.messages for host in by_host.values())
    heard = {at: host for at, host in by_host.items() if host.messages >= max(least, 1)}
    own_us = {at: (one.read_p99_us or 0.0) + (one.send_p99_us or 0.0) for at, one in heard.items()}
    slow = max(own_us, key=lambda at: own_us[at], default=min(hosts, default=0))
    samples = hosts.get(slow if stalled is None else stalled.host, ())
    if stalled is not None:
        start_s = (stalled.start_ns - begun_ns) / NS
        host = samples[-1].host if samples else ""
        longest = delay.LongestStall(stalled.worker, start_s, stalled.ns / NS, host)
    cuts: list[tuple[str, int, int, bool]] = []
    spans = [("the coordinator", *gap, True) for gap in coordinator]
    for last in (samples[-1] for samples in hosts.values()):
        spans += [(f"the agent of host {last.host}", *gap, True) for gap in last.gaps]
        gaps = np.array([*coordinator, *last.gaps], np.int64).reshape(-1, 2).T
        for from_ns, until_ns in last.silences:
            # A silence while agent and coordinator ran counts at twice its length: TCP doubles its
            # intervals of retransmission, so messages can wait as long again afterwards.
            ours_ns = np.minimum(gaps[1], until_ns) - np.maximum(gaps[0], from_ns)
            if np.maximum(ours_ns, 0).sum() < (until_ns - from_ns) / 2:
                cuts.append((last.host, from_ns, 2 * until_ns - from_ns, False))
    spans += [
        (f"worker {stall.worker}", stall.start_ns, stall.end_ns, False)
        for stall in stalls
        if stall.ns >= GAP_NS
    ]

    def gaps_of(spans: Iterable[tuple[str, int, int, bool]]) -> tuple[delay.DelayGap, ...]:
        return tuple(
            delay.DelayGap(name, (start_ns - begun_ns) / NS, (end_ns - start_ns) / NS, watches)
            for name, start_ns, end_ns, watches in spans
        )

    busy_s, waited_s = tally.busiest_s()
    return delay.OwnDelay(
        stalled_s=sum(part.ns for part in worst) / NS,
        longest=longest,
        in_stalls=delay.TimeTaken(
            *between(samples, [(part.start_ns, part.end_ns) for part in worst]),
            sum(part.waited_ns for part in worst) / NS,
            sum(part.busy_ns for part in worst) / NS,
        ),
        in_window=delay.TimeTaken(*between(samples, [window]), waited_s, busy_s),
        gaps=gaps_of(spans),
        cuts=gaps_of(cuts),
        hosts=tuple(by_host.values()),
        slow_host=heard[slow].name if heard else "",
        read_p99_us=_worst(tally, "own_delay", heard),
        send_p99_us=_worst(tally, "own_send", heard),
    )


def _connects(plan: Plan, state: RunState) -> Connects:
    connected, subscribed = state.connected, state.subscribed
    connect_failures, connect_failure = _most_frequent(connected.failures if connected else {})
    again: Counter[str] = Counter(subscribed.failures if subscribed else {})
    for final in state.finals.values():
        again.update(final.get("subscribe_failures") or {})
    subscribe_failures, subscribe_failure = _most_frequent(again)
    counts = state.tally.counts()
    made = connected.done if connected and not connected.kept_from else 0
    return Connects(
        devices=sum(group.count for group in plan.groups),
        connected=connected.done if connected else 0,
        connect_failures=connect_failures,
        connect_failure=connect_failure,
        connect_rate=plan.phases.connect_rate,
        connect_seconds=connected.seconds if connected else 0.0,
        subscribe_failures=subscribe_failures,
        subscribe_failure=subscribe_failure,
        closed_at_subscribe=subscribed.closed if subscribed else 0,
        lost_to_absent=state.lost_to_absent,
        disconnects=counts["disconnects"],
        disconnect=state.disconnect_reason,
        disconnects_planned=plan.reconnect is not None,
        reconnects=counts["connects"] - made,
        overdue=sum(final.get("overdue") or 0 for final in state.finals.values()),
        resubscribe_rate=plan.scenario.resubscribe or 0.0,
        resubscribed=sum(final.get("resubscribed") or 0 for final in state.finals.values()),
        resubscribe_slack=len(plan.workers),
    )


def _most_frequent(failures: Mapping[str, int]) -> tuple[int, str]:
    """Return the number of failures, and their most frequent reason."""
    return sum(failures.values()), max(failures, key=lambda reason: failures[reason], default="")


def _schedule(plan: Plan, state: RunState, overdue: int) -> Schedule:
    publishing = [group for group in plan.groups if group.publishes is not None]
    publishers = sum(group.count for group in publishing)
    rate = _rate(plan)
    owed_by_leave = rate * _seconds_away(plan, publishers)
    reading = [group for group in plan.groups if group.subscribes is not None]
    away_s = _seconds_away(plan, sum(group.count for group in reading if may_leave(group)))
    seconds = plan.phases.duration_s
    away_s += sum(seconds * (1 - presence(one.stages, one.count, seconds)) for one in reading)
    if (seen := state.backlog) and seen.end_ns - seen.last_absence_ns > BACKLOG_EDGE_NS:
        owed_by_leave = away_s = 0.0  # all devices were back well before the end
    names = [group.name for group in publishing if not group.is_closed]
    windows = [one.publishes.window for one in publishing if one.publishes and one.is_closed]
    sizes = [one.publishes.size_bytes[0] for one in publishing if one.publishes]
    mixed = bool(windows and names) or any(group.responds for group in plan.groups)
    return Schedule(
        connects_only=case_of(plan.scenario.case).connects_only,
        target_rate=rate * plan.mean_share,
        arrivals_random=plan.scenario.arrivals != "constant",
        publishers=publishers,
        # Responses, and messages of closed loops, have no schedule.
        scheduled=state.tally.counts("measure", names)["sent"] if mixed else None,
        owed_at_window_end=state.owed_at_window_end,
        # A device that failed to return on time is not away on request.
        owed_by_leave=0.0 if overdue else owed_by_leave,
        waiting_by_leave=delivered_rate(plan.groups, plan.separate_count) * away_s,
        short_bytes=min((size for size in sizes if size < HEADER_BYTES), default=0),
        closed_window=max(windows, default=0),
        by_order=plan.scenario.header == "none",
    )


def _rate(plan: Plan) -> float:
    return sum(rate_in_window(group, plan.phases) for group in plan.groups)


def _seconds_away(plan: Plan, devices: int) -> float:
    """Return a device's mean seconds of absence by churn, each as long as possible."""
    longest_s = plan.scenario.away * 1.5
    away = min((plan.scenario.churn or 0.0) * longest_s, devices)
    return away * longest_s / devices if devices else 0.0


def _slow(plan: Plan, state: RunState) -> SlowFacts | None:
    slow = slow_group(plan.groups)
    if slow is None or slow.subscribes is None:
        return None
    senders = [group.name for group in direct_senders(plan.groups, slow.name)]
    sent = state.tally.counts("measure", senders)["sent"]
    counted = state.tally.counts("measure", (slow.name,))
    return SlowFacts(
        devices=slow.count,
        bytes_per_s=slow.subscribes.read_rate,
        expected=sent * slow.count // slow.topic_count,
        received=counted["received"] + counted["corrupt"],
        waited=state.slow_waited,
        disconnects=state.tally.total(slow.name, "disconnects"),
    )


def handshakes_of(finals: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the kinds of TLS of all connections, the most frequent first; None without TLS."""
    kinds: Counter[tuple[str, str]] = Counter()
    resumed = 0
    for final in finals.values():
        tls = final.get("tls") or {"connections": [], "resumed": 0}
        for one in tls["connections"]:
            kinds[one["version"], one["cipher"]] += one["count"]
        resumed += tls["resumed"]
    connections = [
        {"version": version, "cipher": cipher, "count": count}
        for (version, cipher), count in sorted(kinds.items(), key=lambda k: (-k[1], k[0]))
    ]
    return {"connections": connections, "resumed": resumed} if connections else None


def rate_step_verdicts(
    state: RunState, plan: Plan, run_facts: RunFacts
) -> tuple[RateStepVerdict, ...]:
    if state.rate_steps is None:
        return ()
    return state.rate_steps.verdicts(run_facts, _rate(plan), partial(_own_delay, state))
