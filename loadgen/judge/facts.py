"""The facts of a run that rules judge, in parts: each rule gets the parts that it needs.

Counts of messages are of those intended inside the measurement window, unless they say otherwise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.judge.backlog import (
    BACKLOG_FEW,
    BacklogSample,
    Growth,
    Standstill,
    backlog_growth,
    tolerated_growth,
    waits_too_long,
)
from loadgen.judge.ledger import Ledger
from loadgen.judge.own_delay import DelayBounds, Generator, late_s
from loadgen.sentences import counted

RATE_SIGMAS = 4  # standard deviations by which a random schedule may miss its mean


@dataclass(frozen=True, slots=True)
class Ending:
    interrupted: bool = False
    abandoned: bool = False  # the run ended without waiting for messages in flight
    drain_s: float = 0.0  # time for which it waited for them at most
    workers_lost: tuple[int, ...] = ()  # numbers of those that ended or fell silent before the stop
    hosts_of_lost: tuple[str, ...] = ()  # their hosts, without the coordinator's
    loss: str = ""  # how the first of them was lost
    unread: int = 0  # connections with bytes that no worker had read at the end
    crash_failure: str = ""  # why the broker did not crash as requested, "" if it did

    @property
    def observed(self) -> bool:
        """True if messages that are missing at the end are lost, and not merely unseen."""
        return not (self.workers_lost or self.abandoned or self.unread)


@dataclass(frozen=True, slots=True)
class Connects:
    devices: int = 0  # planned
    connected: int = 0  # devices that connected, and subscribed if planned
    connect_failures: int = 0  # failed attempts
    connect_failure: str = ""  # most frequent reason of these, "" if unknown
    connect_rate: float | None = None  # requested connects a second; None: as fast as possible
    connect_seconds: float = 0.0  # first SYN to last CONNACK
    subscribe_failures: int = 0  # devices with a subscription that was refused or not answered
    subscribe_failure: str = ""  # most frequent reason of these, "" if unknown
    closed_at_subscribe: int = 0  # of these, devices that lost their connection with it
    lost_to_absent: int = 0  # lost deliveries of the run to devices that were never connected
    disconnects: int = 0  # connections lost until the drain's end
    disconnect: str = ""  # reason of the first of these, "" if unknown
    disconnects_planned: bool = False  # devices that lose their connection must come back
    reconnects: int = 0  # connections made again after a loss
    overdue: int = 0  # devices away at the end though their first attempt to return was due
    resubscribe_rate: float = 0.0  # requested SUBSCRIBE and UNSUBSCRIBE packets a second
    resubscribed: int = 0  # those of the window that were answered
    resubscribe_slack: int = 0  # those that a sound run may lack at the ends of the window

    @property
    def failed(self) -> bool:
        return self.connected < self.devices or self.connect_failures > 0

    @property
    def all_present(self) -> bool:
        """True if every device had a connection when the run ended, or left on request."""
        gone = self.overdue or (self.disconnects and not self.disconnects_planned)
        return self.connected >= self.devices and not gone


@dataclass(frozen=True, slots=True)
class Schedule:
    connects_only: bool = False  # no messages: the rate is that of the connects
    target_rate: float = 0.0  # messages a second over all publishers
    arrivals_random: bool = False  # drawn at random (uniform, Poisson)
    publishers: int = 0
    # Messages sent by the schedule; None if no message is caused by another: all are.
    scheduled: int | None = None
    owed_at_window_end: int = 0  # messages due and not sent when the window ended
    owed_by_leave: float = 0.0  # messages that publishers away on request may leave unsent
    waiting_by_leave: float = 0.0  # deliveries that may wait for subscribers away on request
    short_bytes: int = 0  # size of the smallest payloads if they are below 32 bytes
    by_order: bool = False  # messages have no header and are known by topic and order
    closed_window: int = 0  # messages that a publisher of a closed loop may have unacknowledged


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
        lost = f"{counted(self.messages, 'message')} of stream {self.stream:,}"
        return f"{lost} from number {self.first:,} on, to device {self.device:,} of {self.group}"


@dataclass(frozen=True, slots=True)
class Messages:
    """The ledgers, and the first of what went wrong."""

    qos: int = 0  # of the scenario
    window: Ledger = Ledger()  # noqa: RUF009 (frozen, never changed)
    run: Ledger = Ledger()  # of the whole run, warm-up and drain included  # noqa: RUF009
    imbalances: tuple[str, ...] = ()  # sums of the ledgers that do not close
    proven: bool = True  # every worker confirmed the sums
    refusals: Mapping[str, int] = field(default_factory=dict)  # of the run, by reason code's name
    refusal: str = ""  # the first of them, with the broker's Reason String
    violation: str = ""  # the first violation of the specification
    lost_named: tuple[LostRange, ...] = ()  # the first of the run's lost and acknowledged messages
    held_when_cut: int = 0  # messages that a consumer had not acknowledged when it was cut off
    redelivered: int = 0  # of these, those that came again
    unreleased: int = 0  # messages of QoS 2 that were received and had no PUBREL at the end
    remarked: Mapping[str, int] = field(default_factory=dict)  # violations that are not judged
    sessions_lost: int = 0  # returns to a session that the broker had to store and had not
    waiting: int = 0  # deliveries missing after a drain in which messages arrived to the end


@dataclass(frozen=True, slots=True)
class SlowFacts:
    """Subscribers that read slowly on request, and deliveries to them of the window's messages."""

    devices: int
    bytes_per_s: float
    expected: int
    received: int
    waited: int  # had not been read when the window ended
    disconnects: int

    @property
    def dropped(self) -> int:
        return max(self.expected - self.received, 0)

    def excused(self, qos: int) -> int:
        """Return the deliveries that a broker may drop: of QoS 0, or of a connection it ended."""
        if qos == 0:
            return self.dropped
        each = self.expected / max(self.devices, 1)
        most = each + RATE_SIGMAS * math.sqrt(each)  # topics may differ where times are drawn
        return min(self.dropped, math.ceil(self.disconnects * most))


@dataclass(frozen=True, slots=True)
class BackendFacts:
    number: int  # from 1 on
    url: str  # without a password
    consumers: int  # planned; connect_failures and disconnects are theirs
    connect_failures: int = 0
    disconnects: int = 0
    expected: int = 0  # deliveries of the window's messages on its topics
    received: int = 0  # those that came, damaged ones too
    # Most messages between producers and its consumers, in samples a second apart.
    high_water_mark: int = 0
    growth: float = 0.0  # of that number over the window, in messages
    busy_share: float | None = None  # of its process, None if unknown

    @property
    def name(self) -> str:
        return f"backend {self.number} ({self.url})"


@dataclass(frozen=True, slots=True)
class Service:
    """The broker's service: waiting messages, and the latency of the case's result."""

    backlog: tuple[BacklogSample, ...] = ()  # samples within the window, in time order
    arrived: int | None = None  # deliveries in the window, of any message; None if unknown
    waited_s: float = 0.0  # the oldest waiting message, when the window ended
    standstills: tuple[Standstill, ...] = ()  # in the window, in time order
    latency_p99_us: float | None = None  # end to end, or connect; None without any
    latency_bound_us: float | None = None  # None if latency is not judged
    thresholds_missed: tuple[str, ...] = ()  # the user's, with the measured values
    ended_by_threshold: bool = False
    clock_bound_ns: int = 0  # greatest difference between two hosts' clocks; 0 on one host
    clock_hosts: tuple[str, ...] = ()  # these two
    timed_between_hosts: bool = False  # latencies of the result are measured by two clocks

    @property
    def clock_skew_us(self) -> float:
        """Greatest error of the result's latencies through two clocks."""
        return self.clock_bound_ns / 1000 if self.timed_between_hosts else 0.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    window_s: float = 0.0  # length of the window, shorter if the run was interrupted
    ending: Ending = Ending()
    connects: Connects = Connects()
    schedule: Schedule = Schedule()
    messages: Messages = Messages()
    generator: Generator = Generator()  # noqa: RUF009 (frozen)
    service: Service = Service()
    slow: SlowFacts | None = None
    backends: tuple[BackendFacts, ...] = ()  # of a bridge

    @property
    def begun(self) -> int:
        """Messages sent by the schedule, to which `target_rate` refers."""
        scheduled = self.schedule.scheduled
        return self.messages.window.sent if scheduled is None else scheduled

    @property
    def on_time(self) -> int:
        """Messages of the schedule that were sent in the window, those of the warm-up first."""
        return max(self.begun + self.messages.window.owed - self.schedule.owed_at_window_end, 0)

    @property
    def bounds(self) -> DelayBounds:
        limit_us = self.generator.send_delay_limit_us
        bound_us, p99_us = self.service.latency_bound_us, self.service.latency_p99_us
        if bound_us is not None and (p99_us or 0.0) > bound_us:
            # A bound that is missed through own delay does not describe the broker.
            limit_us = min(limit_us, bound_us / 2)
        own = self.generator
        return DelayBounds(self.window_s, p99_us, limit_us, own.send_tick_us, own.workers)

    @property
    def growth(self) -> Growth:
        samples = self.service.backlog
        if not self.connects.all_present:
            # Unsent messages of devices without a connection do not wait for the broker.
            samples = tuple((time_ns, 0, outstanding) for time_ns, _, outstanding in samples)
        window, window_s = self.messages.window, self.window_s or 1.0
        delivery_rate = window.expected / window_s
        tolerated = tolerated_growth(window.sent / window_s, delivery_rate, window_s)
        if self.service.arrived == 0:
            # If nothing arrived, no growth is noise.
            tolerated = min(tolerated, BACKLOG_FEW - 1)
        excused = self.schedule.owed_by_leave + self.schedule.waiting_by_leave
        own_s = late_s(self.generator, self.bounds, self.ending.unread > 0)
        is_old = waits_too_long(samples, self.service.waited_s, window_s, own_s)
        return Growth(
            backlog_growth(samples),
            tolerated + excused,
            own_s * delivery_rate,
            is_old=is_old and self.connects.all_present and not excused,
        )
