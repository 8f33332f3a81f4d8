"""The audit: five tests of every interaction or destination (run rules, section 3.6).

A pure function of the model and of counts. Delivery is judged over the whole run, including warm-up
and drain, all else in the measurement window.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from loadgen.metrics.course import Course, Span
from loadgen.sentences import counted
from loadgen.specjms.chain_model import Model, answers_to_calls, enabled_types, interactions_on
from loadgen.specjms.destinations import consumed_at, destination_name, location_name
from loadgen.specjms.expected import interaction_messages
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES
from loadgen.specjms.queues import Depth, Depths

TOLERANCE_PERCENT: Final = 5  # of input rates and numbers of messages, from those of the topology
MISSES_LIMIT_PERCENT: Final = 20  # tolerated share of interactions begun late
DELIVERY_PERCENTILE: Final = 90
DELIVERY_LIMIT_MS: Final = 5000
RULES_S: Final = 1800.0  # least length by the run rules (3.1)
DRAW_SIGMAS: Final = 4  # tolerated standard deviations of the number of suppliers drawn

Test = Literal["input_rate", "message_count", "pacing", "delivery_time", "delivered", "recovery"]
TESTS: Final[tuple[Test, ...]] = get_args(Test)[:-1]  # of a run in normal operation
RECOVERY_TESTS: Final[tuple[Test, ...]] = "delivered", "recovery"  # if the broker is killed

Latencies = Mapping[str, float | int | None]  # of one series in µs: count, avg, p50, p90, p99, max


TYPE_COUNTS: Final = ("sent", "expected", "received", "duplicated", "out_of_order")
"""Counts of a message type, by their names in the interval table."""


@dataclass(frozen=True, slots=True)
class TypeCount:
    """Counts of one message type in the window, over all workers."""

    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    delivery: Latencies = field(default_factory=dict)
    end_to_end: Latencies = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DestinationCount:
    """Counts of one destination: of interactions begun in the window, and of the whole run.

    `expected` counts deliveries. `missing` names messages that did not arrive, and
    `missing_unnamed` counts further ones.
    """

    number: int
    destination: int
    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    sent_in_all: int = 0
    expected_in_all: int = 0
    received_in_all: int = 0
    missing: tuple[str, ...] = ()
    missing_unnamed: int = 0


@dataclass(frozen=True, slots=True)
class HandlerCount:
    """Deliveries to the event handlers of a message type at one location in the window.

    `over` counts the handlers with a greater share of `slow` deliveries than tolerated. `p90_ns` is
    that of the slowest handler, at most an eighth above the exact value.
    """

    number: int
    place: int
    handlers: int
    over: int
    received: int
    slow: int
    p90_ns: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of a run from the failure that it requested.

    Moments are CLOCK_MONOTONIC in ns. `recovered` deliveries had waited for a handler, until
    `recovered_ns`.
    """

    limit_s: float
    killed_ns: int = 0  # 0 if the broker was not killed
    started_ns: int = 0  # when the broker served again, 0 if it never did
    returned_ns: int = 0  # when the last device had reconnected
    away: int = 0  # devices that did not reconnect
    recovered: int = 0
    recovered_ns: int = 0

    @property
    def seconds(self) -> float:
        """Time from the failure until all devices and messages were back."""
        return (max(self.started_ns, self.returned_ns, self.recovered_ns) - self.killed_ns) / 1e9

    @property
    def complete(self) -> bool:
        back = bool(self.killed_ns and self.started_ns) and not self.away
        return back and self.seconds <= self.limit_s

    @property
    def observed(self) -> str:
        if not self.killed_ns:
            return "the run ended before the broker was killed"
        if not self.started_ns or self.away:
            return f"{counted(self.away, 'device')} did not come back"
        waited = counted(self.recovered, "message")
        return f"{self.seconds:,.3f} s; {waited} had waited at the broker"


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations of a run, the input of the audit and of the run rules."""

    window_s: float
    warmup_s: float
    clock_ms: float
    # Of the interactions begun in the window; `inside` and `late` have one entry per interaction.
    types: Sequence[TypeCount]
    inside: Sequence[int]  # interactions begun
    late: Sequence[int]  # interactions begun behind schedule
    destinations: Sequence[DestinationCount]
    heard: Sequence[HandlerCount] = ()
    discarded: int = 0  # deliveries that a selector at the receiver refused
    discarded_bytes: int = 0
    waited: int = 0  # messages that had to wait for a place in the in-flight window
    # Of the whole run.
    calls_open: int = 0  # calls for offers that did not get all of their offers
    calls_dropped: int = 0  # offers that found the table of open calls full
    unsent: int = 0  # received messages with outputs still unsent at the end
    workers_silent: int = 0  # workers that ended without a report of their counts
    duplicated: int = 0
    out_of_order: int = 0
    redelivered: int = 0  # marked as repeated by the broker
    unmarked: int = 0  # repeated without a mark
    recovery: Recovery | None = None  # None if no failure was requested
    progress_s: float = 0.0  # interval of progress reports
    notes: Sequence[str] = ()  # further notes for the reader
    course: Course = ()
    depths: Depths = field(default_factory=dict)  # by our ledger
    stored: Depth = ()  # by the broker, empty if it does not report it
    windows: tuple[Span, Span] = ((0, 0), (0, 0))  # warm-up and measurement
    # From the plan.
    broker_is_local: bool = False
    broker_is_private: bool = False  # started by loadgen for the run
    mixed_workers: int = 0  # workers with agents of several kinds of locations
    workers: int = 1
    endpoints: bool = False  # some devices use separate addresses
    case_study: object = None  # scenario of the paper of jms2009-PS that was played
    changed: Sequence[str] = ()  # changes of the workload that the model does not show


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of one test, with the interaction and the agent to which it belongs."""

    test: Test
    subject: str
    passed: bool
    expected: str
    observed: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings; the audit passes if each of them does."""

    findings: tuple[AuditFinding, ...]
    tests: tuple[Test, ...] = TESTS

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[AuditFinding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def of(self, test: Test) -> tuple[AuditFinding, ...]:
        return tuple(finding for finding in self.findings if finding.test == test)


def audit(model: Model, seen: Observed) -> Audit:
    """Run every test on every interaction and destination of the model."""
    findings: list[AuditFinding] = []
    if seen.workers_silent:  # first, since it explains the others
        observed = f"{seen.workers_silent:,} reported nothing, so counts and names are incomplete"
        expected = "every worker reports what it sent and received"
        findings.append(AuditFinding("delivered", "workers", False, expected, observed))
    for interaction in interactions_on(model):
        findings += _interaction_findings(model, seen, interaction)
    for heard in seen.heard:
        slower = counted(heard.handlers, "event handler")
        received = counted(heard.received, "delivery", "deliveries")
        message = MESSAGES[heard.number]
        findings.append(
            AuditFinding(
                "delivery_time",
                f"{message.name} at {consumed_at(model, heard.number, heard.place)}",
                not heard.over,
                _IN_TIME,
                f"{heard.over:,} of {slower} slower; {heard.slow:,} of {received}; "
                f"{DELIVERY_PERCENTILE}P of the slowest: {heard.p90_ns / 1e6:,.3f} ms",
                (interaction_of(heard.number), location_name(message.consumer, heard.place)),
            )
        )
    enabled = enabled_types(model)
    for count in sorted(seen.destinations, key=lambda count: (count.number, count.destination)):
        forgotten = seen.recovery is not None and not is_persistent(model, count.number)
        if count.number in enabled and not forgotten:
            findings += _destination_findings(model, count)
    # Messages left unsent because an earlier step did not finish.
    if 2 in interactions_on(model):
        finished = not seen.calls_open and not seen.calls_dropped
        expected = "every call with all of its offers, in the whole run"
        observed = f"{counted(seen.calls_open, 'call')} without all offers, "
        observed += f"{counted(seen.calls_dropped, 'offer')} dropped"
        findings.append(
            AuditFinding(
                "delivered", "calls for offers", finished, expected, observed, ("interaction 2",)
            )
        )
    if seen.unsent:
        expected = "all of it sent when the run ends"
        effects = "whose effects waited for the broker's acknowledgements"
        observed = f"{counted(seen.unsent, 'message')} {effects}"
        subject = "what messages cause"
        findings.append(AuditFinding("delivered", subject, False, expected, observed))
    if seen.recovery is None:
        return Audit(tuple(findings))
    judged = [finding for finding in findings if finding.test in RECOVERY_TESTS]
    complete, observed = seen.recovery.complete, seen.recovery.observed
    expected = f"all devices and persistent messages within {seen.recovery.limit_s:,.6g} s"
    judged.append(AuditFinding("recovery", "broker", complete, expected, observed))
    return Audit(tuple(judged), RECOVERY_TESTS)


def interaction_of(number: int) -> str:
    return f"interaction {MESSAGES[number].interaction}"


def is_persistent(model: Model, number: int) -> bool:
    """Return True if a type survives a failure: the broker keeps it for devices that are away."""
    options = model.messages[number]
    return options.qos > 0 and options.durable


def _within(observed: float, expected: float, slack: float) -> bool:
    """Return True if the value is within the tolerance, or within the slack."""
    return abs(observed - expected) <= max(expected * TOLERANCE_PERCENT / 100, slack)


def _interaction_findings(model: Model, seen: Observed, interaction: int) -> Iterator[AuditFinding]:
    subject = f"interaction {interaction}"
    rate = model.rates[interaction - 1]
    window_s = seen.window_s or 1.0
    wanted = rate * window_s
    inside, late = seen.inside[interaction - 1], seen.late[interaction - 1]
    # In a window that is shorter than the rules demand, one interaction more or less is tolerated:
    # only whole ones begin, and one may begin just outside.
    short = seen.window_s < RULES_S
    nearly = short and math.floor(wanted) - 1 <= inside <= math.ceil(wanted) + 1
    yield AuditFinding(
        "input_rate",
        subject,
        nearly or _within(inside, wanted, 0.0),
        f"{rate:,.6g}/s within {TOLERANCE_PERCENT} %",
        f"{inside / window_s:,.6g}/s",
        (subject,),
    )
    types = [seen.types[n] for n, m in enumerate(MESSAGES) if m.interaction == interaction]
    sent, received = sum(one.sent for one in types), sum(one.received for one in types)
    each = interaction_messages(model)[interaction - 1]
    # Each supplier drawn adds one message sent (its offer) and two received (call and offer).
    drawn = DRAW_SIGMAS * math.sqrt(wanted) * answers_to_calls(model)[1] * (interaction == 2)
    slack = (each.sent + drawn, each.received + 2 * drawn) if short else (0.0, 0.0)
    yield AuditFinding(
        "message_count",
        subject,
        _within(sent, wanted * each.sent, slack[0])
        and _within(received, wanted * each.received, slack[1]),
        f"{wanted * each.sent:,.0f} sent and {wanted * each.received:,.0f} received within "
        f"{TOLERANCE_PERCENT} %",
        f"{sent:,} sent and {received:,} received",
        (subject,),
    )
    begun = seen.types[FIRST_OF_INTERACTION[interaction - 1]].sent
    if begun:
        # In a short window, one late interaction is tolerated even if it exceeds the share.
        paced = late <= max(begun * MISSES_LIMIT_PERCENT / 100, short)
        kept = f"{100.0 * late / begun:.3g} % ({late:,} of {begun:,})"
    else:
        paced, kept = wanted < 2 and short, "none begun"
    expected = f"at most {MISSES_LIMIT_PERCENT} % begun late"
    yield AuditFinding("pacing", subject, paced, expected, kept, (subject,))


_IN_TIME: Final = (
    f"{DELIVERY_PERCENTILE} % of what each event handler received within {DELIVERY_LIMIT_MS:,} ms"
)


def _destination_findings(model: Model, count: DestinationCount) -> Iterator[AuditFinding]:
    name = MESSAGES[count.number].name
    destination = destination_name(model, count.number, count.destination)
    subject, parts = (
        f"{name} at {destination}",
        (interaction_of(count.number), destination.partition("_")[0]),
    )
    if count.expected and not count.received:
        nothing = "nothing was received"
        yield AuditFinding("delivery_time", subject, False, _IN_TIME, nothing, parts)
    lost = count.expected_in_all - count.received_in_all
    missing = f", {-lost:,} more than sent" if lost < 0 else ""
    if lost > 0:
        more = [f"and {count.missing_unnamed:,} more"] if count.missing_unnamed else []
        names = f": {', '.join([*count.missing, *more])}" if count.missing else ""
        missing = f", {lost:,} missing{names}"
    yield AuditFinding(
        "delivered",
        subject,
        not lost,
        f"{counted(count.expected_in_all, 'delivery', 'deliveries')} of "
        f"{counted(count.sent_in_all, 'message')} sent in the whole run",
        f"{count.received_in_all:,}{missing}",
        parts,
    )
