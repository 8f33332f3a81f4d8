"""Whether a run says something about the broker: VALID, or INVALID with every reason.

`judge` is a pure function of plain numbers, so that a run, a step of a search and a score card
made long afterwards come to the same verdict. Each bound is a constant with its reason.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from loadgen.judge.ledger import Ledger
from loadgen.judge.own_delay import (
    BUSY_SHARE_LIMIT,
    Bounds,
    OwnDelay,
    own_p99_us,
    remark,
    saturation,
)
from loadgen.plan.units import listed

Code = Literal[
    "INTERRUPTED",
    "WORKER_LOST",
    "CRASH",
    "CONNECT_FAILED",
    "SUBSCRIBE_FAILED",
    "DISCONNECTED",
    "GENERATOR_SATURATED",
    "PROTOCOL",
    "REFUSED",
    "UNACKNOWLEDGED",
    "RATE_MISSED",
    "FOREIGN",
    "MISROUTED",
    "CORRUPT",
    "LOST",
    "DUPLICATED",
    "OUT_OF_ORDER",
    "QOS",
    "BACKLOG_GROWS",
    "LATENCY_BOUND",
    "THRESHOLD",
    "CLOCK",
    "LEDGER",
    "AUDIT",
]
CODES: tuple[Code, ...] = get_args(Code)
"""In the order in which reasons are shown: what explains others comes first. AUDIT comes from the
audit of a workload that has one, not from `judge`."""

RemarkCode = Literal[
    "CLOCK",
    "BROKER",
    "OWN_DELAY",
    "SLOW",
    "STANDSTILL",
    "REPEATED",
    "GIVEN_UP",
    "BEFORE_WINDOW",
    "UNPROVEN",
]

RATE_TOLERANCE = 0.01
"""The published figures have two to three digits; one per cent less is another load."""
RATE_SIGMAS = 4
"""A schedule drawn at random misses its mean; four standard deviations are no fault of anyone."""
CONNECT_GRACE_S = 0.1
"""The last connect of a paced burst ends one round trip, not one spacing, after it began: that is
allowed for by twice the p99 of the connects and a moment of the host, at most this long."""
CONNECT_MOMENT_S = 0.005
SEND_DELAY_LIMIT_US = 100_000
"""A p99 of our own delay above this is no longer jitter of a busy host but a generator behind. A
case whose result contains the send delay has a lower limit of its own."""
BACKLOG_FLOOR_MESSAGES = 100
"""Messages on their way through buffers come and go in this number at any rate."""
BACKLOG_FLOOR_S = 0.1
"""A backlog that grew by less than this time's deliveries over the window is noise."""
BACKLOG_EDGE_NS = 500_000_000
BACKLOG_EDGE_SHARE = 0.05
BACKLOG_EDGE_SAMPLES = 3
"""How much stood at an end of the window is the median over half a second there, at most this share
of the window and no fewer samples: one alone, or a hiccup of the host, is no backlog."""
STANDSTILLS_SHOWN = 5
"""Times at which nothing came back that a sentence names."""
LOST_SHOWN = 3
"""Ranges of lost messages that a sentence names; run.json has more."""
STANDSTILL_END_S = 0.1
"""One that was seen so shortly before the end of the window lasted to its end."""
CLOCK_LIMIT_NS = 100_000_000
"""By how much the clocks of two hosts may differ (SPECjms2007 Run and Reporting Rules, 3.2)."""

BacklogSample = tuple[int, int, int]
"""Monotonic time in ns, messages owed by the generator, deliveries outstanding at the broker."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which nothing was received or acknowledged though something came due.

    In seconds into the window; `waiting` is how much came due meanwhile.
    """

    from_s: float
    until_s: float
    waiting: int


@dataclass(frozen=True, slots=True, order=True)
class LostRange:
    """Messages that the broker had acknowledged and a subscriber did not get."""

    stream: int
    first: int
    last: int
    group: str
    device: int

    @property
    def messages(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        which = f"{self.first:,}" if self.first == self.last else f"{self.first:,}-{self.last:,}"
        return f"{which} of stream {self.stream:,} to {self.group} {self.device:,}"


@dataclass(frozen=True, slots=True)
class SlowFacts:
    """Subscribers that read slowly on request, and what the broker did to them.

    Deliveries are of the window's messages; `waited` of them had not been read when it ended.
    """

    devices: int
    bytes_per_s: float
    expected: int
    received: int
    waited: int
    disconnects: int

    @property
    def dropped(self) -> int:
        return max(self.expected - self.received, 0)

    def excused(self, qos: int) -> int:
        """Deliveries that a broker may drop: of QoS 0, or of a connection that it ended.

        Of such a connection no more than all that one device was to get.
        """
        if qos == 0:
            return self.dropped
        each = self.expected / max(self.devices, 1)
        most = each + RATE_SIGMAS * math.sqrt(each)  # topics may differ where times are drawn
        return min(self.dropped, math.ceil(self.disconnects * most))


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend of a bridge."""

    number: int  # from 1 on
    url: str  # without a password
    consumers: int  # planned; connect_failures and disconnects are theirs
    connect_failures: int = 0
    disconnects: int = 0
    expected: int = 0  # deliveries of the window's messages on its topics
    received: int = 0  # those that came, damaged ones too
    # Most messages between producers and its consumers, in samples a second apart.
    high_water_mark: int = 0
    growth: float = 0.0  # by how many messages that number rose over the window
    busy_share: float | None = None  # of its process, None where it is not known

    @property
    def name(self) -> str:
        return f"backend {self.number} ({self.url})"


def by_backend(
    backends: Sequence[BackendFacts], count: Callable[[BackendFacts], int], what: str
) -> str:
    """`; 5 connections at backend 2 (URL)` for each backend that counts any; "" for none."""
    counts = [f"{count(b):,} {what} {b.name}" for b in backends if count(b) > 0]
    return f"; {', '.join(counts)}" if counts else ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What `judge` needs to know of a run; counts are of messages intended inside the window."""

    qos: int = 0  # of the scenario
    connects_only: bool = False  # no messages: the rate is that of the connects
    # The p99 of our own delay above which the generator was too late.
    send_delay_limit_us: float = SEND_DELAY_LIMIT_US
    devices: int = 0  # planned
    connected: int = 0  # those that connected (and subscribed if asked)
    connect_failures: int = 0  # failed connects
    connect_failure: str = ""  # the reason that most of them had, "" where none is known
    subscribe_failures: int = 0  # devices whose subscription was refused or not answered
    subscribe_failure: str = ""  # the reason that most of them had, "" where none is known
    closed_at_subscribe: int = 0  # of these, those whose connection ended with it
    lost_to_absent: int = 0  # lost deliveries of the run to devices that were never there
    disconnects: int = 0  # connections lost after they were made, until the drain's end
    disconnect: str = ""  # the reason of the first of them, "" where none is known
    reconnects: int = 0  # connections made again after a loss (they explain QoS 1 duplicates)
    returned: int = 0  # of the reconnects, those of devices that had left on request
    disconnects_planned: bool = False  # devices that lose their connection are meant to come back
    owed_by_leave: float = 0.0  # messages that publishers which left on request may owe at a time
    connect_rate: float | None = None  # connects a second asked for; None: as fast as possible
    connect_seconds: float = 0.0  # first SYN to last CONNACK
    window_s: float = 0.0  # length of the window, as played (shorter where interrupted)
    target_rate: float = 0.0  # messages a second over all publishers that the scenario asks for
    arrivals_random: bool = False  # whether the schedule is drawn at random (uniform, Poisson)
    publishers: int = 0  # publishing devices
    ledger: Ledger = Ledger()  # noqa: RUF009 (frozen, never changed)
    run_ledger: Ledger = Ledger()  # of the whole run, warm-up and drain included  # noqa: RUF009
    imbalances: tuple[str, ...] = ()  # sums of the ledgers that do not close
    proven: bool = True  # whether every worker bore witness to the sums
    refusals: Mapping[str, int] = field(default_factory=dict)  # of the run, by reason code's name
    refusal: str = ""  # the first of them, with the broker's Reason String
    violation: str = ""  # the first breach of the specification, in words
    # Of the messages sent, those with a moment of their own; None where all have one, and no
    # message is caused by another.
    scheduled: int | None = None
    owed_at_window_end: int = 0  # messages due and not sent when the window ended
    busy_share: float = 0.0  # of the busiest worker: processor and run-queue time over the window
    own_delay: OwnDelay = OwnDelay()  # of the window  # noqa: RUF009 (frozen, never changed)
    send_tick_us: int = 0  # of the plan: a wait that was intended
    backlog: tuple[BacklogSample, ...] = ()  # samples within the window, in time order
    standstills: tuple[Standstill, ...] = ()  # in the window, in time order
    # Of the case's result (end to end, or connect), None without any.
    latency_p99_us: float | None = None
    latency_bound_us: float | None = None  # None where latency is not judged
    thresholds_missed: tuple[str, ...] = ()  # of those that the user set, with what was measured
    clock_bound_ns: int = 0  # by how much the clocks of two hosts differed, at most; 0 on one host
    timed_between_hosts: bool = False  # whether latencies of the result are measured by two clocks
    workers_lost: tuple[int, ...] = ()  # numbers of those that ended or fell silent before the stop
    hosts_of_lost: tuple[str, ...] = ()  # names of theirs, but for the coordinator's own
    interrupted: bool = False
    unread: int = 0  # connections on which bytes had come that no worker had read at the end
    abandoned: bool = False  # whether nobody waited for what was under way at the end
    backends: tuple[BackendFacts, ...] = ()  # of a bridge, each by itself
    lost_named: tuple[LostRange, ...] = ()  # the first of the run's lost and acknowledged messages
    slow: SlowFacts | None = None
    crash_failure: str = ""  # why the broker did not crash as asked, "" where it did
    held_when_cut: int = 0  # messages that a consumer had not acknowledged when it was cut off

    @property
    def observed(self) -> bool:
        """Whether what is missing at the end is missing, and not merely not seen."""
        return not (self.workers_lost or self.abandoned or self.unread)

    @property
    def apart_us(self) -> float:
        """By how much a latency of the result may be wrong because two clocks measured it."""
        return self.clock_bound_ns / 1000 if self.timed_between_hosts else 0.0

    @property
    def could_not_connect(self) -> bool:
        return self.connected < self.devices or self.connect_failures > 0

    @property
    def lost_by_absence(self) -> bool:
        """Whether all that was lost went to devices that could not connect or subscribe."""
        caused = self.could_not_connect or self.subscribe_failures > 0
        return caused and 0 < self.run_ledger.lost <= self.lost_to_absent

    @property
    def begun(self) -> int:
        """Messages sent by the schedule, which `target_rate` speaks of."""
        return self.ledger.sent if self.scheduled is None else self.scheduled


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not valid: the contract's code and one sentence with the numbers.

    HOST_LIMIT is a search's: it says that a load does not fit on this host. CHANGED and RUNNING are
    a score card's: the run is not what it was when it ended, or goes on.
    """

    code: Code | Literal["HOST_LIMIT", "CHANGED", "RUNNING"]
    detail: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What a reader of the figures should know though it speaks against nothing."""

    code: RemarkCode
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """VALID exactly when there is no reason against it."""

    reasons: tuple[Reason, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.reasons

    @property
    def word(self) -> str:
        if self.codes == ("RUNNING",):
            return "RUNNING"
        return "VALID" if self.valid else "INVALID"

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(reason.code for reason in self.reasons)


def judge(facts: RunFacts) -> Verdict:
    """The verdict over a run, its reasons in the order of `CODES`."""
    checks = (_ended_early, _connections, _generator, _handshakes, _deliveries, _service, _proof)
    reasons = (reason for check in checks for reason in check(facts))
    return Verdict(in_order(reasons), tuple(_remarks(facts)))


def with_reason(verdict: Verdict, code: Code, detail: str) -> Verdict:
    """The verdict with one reason more, in its place."""
    return replace(verdict, reasons=in_order((*verdict.reasons, Reason(code, detail))))


def in_order(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Reasons in the order of `CODES`."""
    return tuple(sorted(reasons, key=lambda reason: CODES.index(reason.code)))


def backlog_levels(
    samples: Sequence[BacklogSample],
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """(ns, messages owed and outstanding) at the start and at the end of the samples.

    Each is the median of those nearest to that end; None where they would share samples.
    """
    if len(samples) < 2 * BACKLOG_EDGE_SAMPLES:
        return None
    edge_ns = min((samples[-1][0] - samples[0][0]) * BACKLOG_EDGE_SHARE, BACKLOG_EDGE_NS)
    first = [one for one in samples if one[0] - samples[0][0] <= edge_ns]
    last = [one for one in samples if samples[-1][0] - one[0] <= edge_ns]
    return (
        _level(max(first, samples[:BACKLOG_EDGE_SAMPLES], key=len)),
        _level(max(last, samples[-BACKLOG_EDGE_SAMPLES:], key=len)),
    )


def _level(samples: Sequence[BacklogSample]) -> tuple[float, float]:
    return (
        statistics.median(time_ns for time_ns, _, _ in samples),
        statistics.median(owed + outstanding for _, owed, outstanding in samples),
    )


def backlog_growth(samples: Sequence[BacklogSample]) -> float:
    """By how much more was owed and outstanding at the end of the samples than at their start.

    What came and went in between is not in it. 0.0 for too few samples.
    """
    levels = backlog_levels(samples)
    return 0.0 if levels is None else levels[1][1] - levels[0][1]


def _ended_early(facts: RunFacts) -> Iterator[Reason]:
    if facts.interrupted:
        yield Reason(
            "INTERRUPTED",
            f"stopped before its end, after {facts.window_s:.1f} s of the measurement window",
        )
    if facts.workers_lost:
        which, hosts = listed([*map(str, facts.workers_lost)], 10), facts.hosts_of_lost
        where = f" on host{'s' if len(hosts) > 1 else ''} {listed(hosts, 5)}" if hosts else ""
        yield Reason(
            "WORKER_LOST",
            f"lost workers: {which}{where}; each ended or fell silent before the stop",
        )

    if facts.crash_failure:
        yield Reason("CRASH", f"the broker was not crashed as asked: {facts.crash_failure}")


def _connections(facts: RunFacts) -> Iterator[Reason]:
    ledger, so_lost = facts.ledger, ""
    if facts.lost_by_absence and ledger.lost:
        so_lost = f"; for that {ledger.lost:,} of {ledger.expected:,} deliveries did not arrive"
    if facts.could_not_connect:
        which = by_backend(facts.backends, lambda b: b.connect_failures, "of them at")
        why = f"; most often: {facts.connect_failure}" if facts.connect_failure else ""
        yield Reason(
            "CONNECT_FAILED",
            f"{facts.connected:,} of {facts.devices:,} devices connected, "
            f"{facts.connect_failures:,} attempts failed{which}{why}{so_lost}",
        )
        so_lost = ""
    if facts.subscribe_failures:
        why = f"; most often: {facts.subscribe_failure}" if facts.subscribe_failure else ""
        yield Reason(
            "SUBSCRIBE_FAILED",
            f"{facts.subscribe_failures:,} of {facts.connected:,} connected devices could not "
            f"subscribe{why}{so_lost}",
        )
    # What a broker does to slow subscribers is told, and is no fault of it.
    lost = facts.disconnects - (facts.slow.disconnects if facts.slow is not None else 0)
    others = lost - facts.closed_at_subscribe
    # Of those that come back, slow ones must, too: nobody knows whose reconnects these are.
    missing = facts.disconnects - (facts.reconnects - facts.returned)
    if others > 0 and not facts.disconnects_planned:
        which = by_backend(facts.backends, lambda b: b.disconnects, "of them to")
        why = f"; the first: {facts.disconnect}" if facts.disconnect and others == lost else ""
        yield Reason(
            "DISCONNECTED", f"{others:,} connections were lost after they had been made{which}{why}"
        )
    elif facts.disconnects_planned and missing > 0:
        yield Reason(
            "DISCONNECTED", f"{missing:,} of {facts.disconnects:,} devices did not come back"
        )


def _generator(facts: RunFacts) -> Iterator[Reason]:
    if saturated := _saturated(facts):
        yield Reason("GENERATOR_SATURATED", saturated)
    elif facts.unread:
        yield Reason(
            "GENERATOR_SATURATED",
            f"on {facts.unread:,} connections bytes had come that no worker had read when the run "
            "ended: add workers or cores, or lower the load",
        )
    missed = _connect_rate_missed(facts) if facts.connects_only else _rate_missed(facts)
    if missed:
        yield Reason("RATE_MISSED", missed)


def _saturated(facts: RunFacts) -> str:
    return saturation(facts.own_delay, facts.busy_share, _bounds(facts))


def _bounds(facts: RunFacts) -> Bounds:
    """What the generator's own delay is held against."""
    limit_us = facts.send_delay_limit_us
    bound_us, p99_us = facts.latency_bound_us, facts.latency_p99_us
    if bound_us is not None and (p99_us or 0.0) > bound_us:
        # A bound that is missed by our own delay says nothing of the broker.
        limit_us = min(limit_us, bound_us / 2)
    return Bounds(facts.window_s, p99_us, limit_us, facts.send_tick_us)


def _rate_missed(facts: RunFacts) -> str:
    target = facts.target_rate * facts.window_s
    if target > 0 and not facts.begun:
        return f"none of {target:,.0f} messages was sent"
    excused = min(facts.owed_at_window_end, facts.owed_by_leave)
    on_time = facts.begun + facts.ledger.owed - facts.owed_at_window_end + excused
    if target - on_time > _rate_allowance(facts, target):
        share = on_time / target
        return (
            f"{on_time:,.0f} of {target:,.0f} messages were sent in time, {share:.1%} of "
            f"{facts.target_rate:,.6g}/s; {facts.owed_at_window_end:,} were owed at the end"
        )
    if facts.ledger.owed > facts.owed_by_leave:
        return f"{facts.ledger.owed:,} messages were still owed after the drain"
    return ""


def _rate_allowance(facts: RunFacts, target: float) -> float:
    """Messages by which a sound run may fall short of rate times window."""
    # Poisson counts have their mean as variance. A publisher with a constant schedule sends the
    # whole number below or above its mean, with the fraction as the chance of the one above.
    if facts.arrivals_random:
        variance = target
    else:
        fraction = math.modf(target / facts.publishers)[0] if facts.publishers else 0.0
        variance = facts.publishers * fraction * (1 - fraction)
    return max(1.0, RATE_TOLERANCE * target, RATE_SIGMAS * math.sqrt(variance))


def _connect_rate_missed(facts: RunFacts) -> str:
    if facts.connect_rate is None:
        return ""
    asked_s = facts.devices / facts.connect_rate
    grace_s = CONNECT_GRACE_S
    if facts.latency_p99_us is not None:
        grace_s = min(grace_s, 2e-6 * facts.latency_p99_us + CONNECT_MOMENT_S)
    if facts.connect_seconds <= asked_s * (1 + RATE_TOLERANCE) + grace_s:
        return ""
    return (
        f"{facts.devices:,} connects took {facts.connect_seconds:.2f} s and "
        f"{facts.connect_rate:,.6g}/s allows {asked_s:.2f} s"
    )


def _handshakes(facts: RunFacts) -> Iterator[Reason]:
    ledger, run = facts.ledger, facts.run_ledger
    if run.violations:
        # In any phase: a broker that breaks the specification has no phase in which it may.
        why = f"; the first: {facts.violation}" if facts.violation else ""
        yield Reason(
            "PROTOCOL",
            f"the broker did {run.violations:,} times what the specification forbids{why}",
        )
    if ledger.refused:
        codes = ", ".join(f"{count:,} {name}" for name, count in facts.refusals.items())
        of_run = f"; over the whole run: {codes}" if codes else ""
        why = f"; the first: {facts.refusal}" if facts.refusal else ""
        yield Reason(
            "REFUSED",
            f"the broker refused {ledger.refused:,} of {ledger.sent:,} messages{of_run}{why}",
        )
    # What a lost worker had in flight nobody can know any more.
    if ledger.unfinished and facts.observed:
        yield Reason(
            "UNACKNOWLEDGED",
            f"{ledger.unfinished:,} of {ledger.sent:,} messages were not acknowledged by the end "
            "of the drain",
        )


_OF_COUNTS: Mapping[str, tuple[Code, str]] = {
    "foreign": ("FOREIGN", "messages came that nobody of this run sent"),
    "misrouted": (
        "MISROUTED",
        "messages came on another topic than their own, or to a device that had not subscribed to "
        "it",
    ),
    "damaged": ("CORRUPT", "deliveries arrived with a damaged payload"),
    "out_of_order": (
        "OUT_OF_ORDER",
        "deliveries arrived after a later message of their publisher",
    ),
    "below_qos": ("QOS", "deliveries had a lower QoS than was granted"),
}
"""States of the window's ledger that are reasons by themselves, and what follows their number."""


def _deliveries(facts: RunFacts) -> Iterator[Reason]:
    ledger = facts.ledger
    for state, (code, words) in _OF_COUNTS.items():
        if count := getattr(ledger, state):
            yield Reason(code, f"{count:,} {words}")
    yield from _missing(facts)
    if ledger.repeated:
        why = f", {ledger.repeated_allowed:,} more as it may" if ledger.repeated_allowed else ""
        yield Reason(
            "DUPLICATED",
            f"{ledger.repeated:,} deliveries arrived more than once, which QoS {facts.qos} does "
            f"not allow here{why}",
        )


def _missing(facts: RunFacts) -> Iterator[Reason]:
    ledger, run = facts.ledger, facts.run_ledger
    # Not acknowledged is not consumed, even if it was seen: such a message must come again.
    missing = facts.held_when_cut - run.repeated - run.repeated_allowed
    excused = facts.slow.excused(facts.qos) if facts.slow is not None else 0
    if ledger.lost > excused and not facts.lost_by_absence:  # else it is told with its cause
        which = by_backend(facts.backends, lambda b: b.expected - b.received, "of them from")
        share = f"({ledger.lost / ledger.expected:.2%})"
        known = ""
        if ledger.lost_acknowledged is not None:
            known = f"; of these the broker had acknowledged {ledger.lost_acknowledged:,}"
            if facts.lost_named:
                first = ", ".join(map(str, facts.lost_named[:LOST_SHOWN]))
                known += f", the first: {first}"
        yield Reason(
            "LOST",
            f"{ledger.lost:,} of {ledger.expected:,} deliveries did not arrive {share}{known}"
            f"{which}",
        )
    elif missing > 0:
        yield Reason(
            "LOST",
            f"{missing:,} of {facts.held_when_cut:,} messages that a consumer had not "
            "acknowledged when it was cut off were not delivered again",
        )


def _growth(facts: RunFacts) -> tuple[float, float]:
    """By how much the backlog grew, and how much of that is none; 0.0 where it is nobody's."""
    samples = facts.backlog
    if facts.connected < facts.devices or facts.disconnects > facts.reconnects:
        # What devices owe that have no connection does not wait for the broker.
        samples = tuple((time_ns, 0, outstanding) for time_ns, _, outstanding in samples)
    growth = backlog_growth(samples)
    limit = max(
        BACKLOG_FLOOR_MESSAGES, BACKLOG_FLOOR_S * facts.ledger.expected / (facts.window_s or 1.0)
    )
    limit += facts.owed_by_leave
    # What piles up while the generator has no time says nothing of the broker.
    own = _own_time_s(facts) * facts.ledger.expected / (facts.window_s or 1.0)
    grew = growth > limit + (own if _saturated(facts) else 0.0)
    return (growth if grew else 0.0), limit


def _own_time_s(facts: RunFacts) -> float:
    """For how long, at most, the generator had no time for the broker."""
    own = facts.own_delay
    if facts.busy_share > BUSY_SHARE_LIMIT or facts.unread:
        return facts.window_s
    return min(facts.window_s, own.stalled_s + own_p99_us(own, _bounds(facts)) / 1e6)


def _service(facts: RunFacts) -> Iterator[Reason]:
    growth, limit = _growth(facts)
    if growth:
        why = f"; {_in_words(still)}" if (still := _at_the_end(facts)) else ""
        yield Reason(
            "BACKLOG_GROWS",
            f"{growth:,.0f} more messages were owed and outstanding at the end of the window than "
            f"at its start, above {limit:,.0f}: the broker took less than was sent{why}",
        )
    p99_us, bound_us = facts.latency_p99_us, facts.latency_bound_us
    if bound_us is not None and p99_us is None:
        yield Reason(
            "LATENCY_BOUND",
            f"no latency was measured that could be held against the bound of {bound_us:,.6g} µs",
        )
    elif bound_us is not None and p99_us is not None and p99_us + facts.apart_us > bound_us:
        clocks = f" give or take {facts.apart_us:,.1f} µs of two clocks" if facts.apart_us else ""
        yield Reason(
            "LATENCY_BOUND",
            f"p99 latency is {p99_us:,.1f} µs{clocks}, above the bound of {bound_us:,.6g} µs",
        )
    yield from (Reason("THRESHOLD", text) for text in facts.thresholds_missed)
    if facts.clock_bound_ns > CLOCK_LIMIT_NS:
        yield Reason(
            "CLOCK",
            f"clocks of two hosts may differ by {facts.clock_bound_ns / 1e6:,.1f} ms, above "
            f"{CLOCK_LIMIT_NS / 1e6:,.1f} ms",
        )


def _proof(facts: RunFacts) -> Iterator[Reason]:
    if facts.imbalances:
        more = len(facts.imbalances) - 1
        and_more = f"; and {more} more" if more else ""
        yield Reason("LEDGER", f"the counts do not close: {facts.imbalances[0]}{and_more}")


def _at_the_end(facts: RunFacts) -> tuple[Standstill, ...]:
    """The standstill in which the window ended, if it did in one."""
    still = facts.standstills[-1:]
    return still if still and facts.window_s - still[0].until_s < STANDSTILL_END_S else ()


def _is_our_own(standstill: Standstill, facts: RunFacts) -> bool:
    """Whether a worker of ours stood for most of the time."""
    longest = facts.own_delay.longest
    if longest is None:
        return False
    from_s = max(standstill.from_s, longest.start_s)
    until_s = min(standstill.until_s, longest.start_s + longest.seconds)
    return until_s - from_s > (standstill.until_s - standstill.from_s) / 2


def _in_words(standstills: Sequence[Standstill]) -> str:
    """When nothing came, and what waited."""
    shown = [
        f"from {one.from_s:.1f} s to {one.until_s:.1f} s (while {one.waiting:,} waited)"
        for one in standstills
    ]
    return f"nothing came back in the window {listed(shown, STANDSTILLS_SHOWN, 'more times')}"


_SESSION_LOST = "their session was lost"
_WRONG = ("refused", "unacknowledged", "damaged", "lost", "repeated", "misrouted", "foreign")


def _remarks(facts: RunFacts) -> Iterator[Remark]:
    ledger, run = facts.ledger, facts.run_ledger
    # What made the backlog grow is told there, and what was our own is no standstill.
    told = _at_the_end(facts) if _growth(facts)[0] else ()
    if still := [o for o in facts.standstills if o not in told and not _is_our_own(o, facts)]:
        yield Remark("STANDSTILL", _in_words(still))
    if (slow := facts.slow) is not None:
        others = max(ledger.lost - slow.dropped, 0)
        yield Remark(
            "SLOW",
            f"{slow.devices:,} slow subscribers read {slow.bytes_per_s:,.6g} bytes/s at most: when "
            f"the window ended {slow.waited:,} deliveries to them waited; of the window's "
            f"{slow.expected:,} {slow.dropped:,} never came, and {slow.disconnects:,} of their "
            f"connections were lost. Of {ledger.expected - slow.expected:,} deliveries to the "
            f"others {others:,} were lost",
        )
    if (own := remark(facts.own_delay, _bounds(facts))) and not _saturated(facts):
        yield Remark("OWN_DELAY", own)
    if ledger.repeated_allowed:
        yield Remark(
            "REPEATED",
            f"{ledger.repeated_allowed:,} deliveries came again after a reconnect, as QoS 1 allows",
        )
    if ledger.given_up:
        causes = {"the broker answered wrongly": run.violations, _SESSION_LOST: facts.disconnects}
        why = " or ".join(cause for cause, count in causes.items() if count) or _SESSION_LOST
        yield Remark(
            "GIVEN_UP", f"the handshakes of {ledger.given_up:,} messages were given up: {why}"
        )
    if facts.timed_between_hosts and facts.latency_p99_us is not None:
        bound_us = facts.clock_bound_ns / 1000
        short = facts.latency_p99_us < bound_us
        yield Remark(
            "CLOCK",
            f"latencies between two hosts are known to within {bound_us:,.1f} µs"
            + (", which is more than their 99th percentile" if short else ""),
        )
    # What is wrong with messages of the warm-up disturbed nothing that was measured.
    early = {name: getattr(run, name) - getattr(ledger, name) for name in _WRONG}
    if any(early.values()):
        found = ", ".join(f"{count:,} {name}" for name, count in early.items() if count)
        yield Remark("BEFORE_WINDOW", f"of messages intended before the window: {found}")
    if not facts.proven:
        yield Remark(
            "UNPROVEN",
            "the sums of the ledger could not be proven: not every worker gave its last answer",
        )
