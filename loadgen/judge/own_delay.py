"""The generator's own part in the figures of a window: its amount, limits and cause."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from loadgen.sentences import JUDGE_TEXT, Text, Values

BUSY_SHARE_LIMIT = 0.95
"""A loop that is idle for less than a twentieth of its time may be what limits the result."""
SEND_DELAY_LIMIT_US = 100_000  # highest p99 of the own delay that is jitter of a busy host
STALLED_SHARE_LIMIT = 0.01
"""A worker that stood still for more of the window than this determines the p99."""
STALLED_FLOOR_S = 0.1  # a shorter total is jitter, which the latency series show better
OWN_SHARE_LIMIT = 0.5
"""Share of own delay in a p99 above which that describes this host rather than the broker."""
OWN_FLOOR_SHARE = 0.2
"""Share of the send delay's limit below which own delay is tolerated: a time slice or two."""
REMARK_SHARE = 0.1
"""Share of the p99, and of the limits above, from which own delay is mentioned."""
REMARK_FLOOR_US = 1_000.0  # own delay up to this is not mentioned, whatever its share of the p99
CAUSE_SHARE = 0.5  # share of the lost time that a cause must explain
UNWATCHED_S = 0.5  # time without a watch in which a standstill of the broker can go unseen
LOSS_LIMIT = 0.005
"""Share of delayed segments that can determine a p99: up to every other one is an answer."""
FEW_LOST = 9  # lost segments that are no share
OTHER_HOSTS_TIMES = 3.0
"""A host with this many times the figure of another has another kind of network path."""
EDGE_SHARE = 0.05
EDGE_S = (0.2, 0.5)
"""Share of the window, within these bounds, that determines the backlog at each end. It must have
been watched for half of this time."""


@dataclass(frozen=True, slots=True)
class LongestStall:
    """The longest time in which one worker did not look at its sockets."""

    worker: int
    start_s: float  # since the window began
    seconds: float
    host: str = ""


@dataclass(frozen=True, slots=True)
class DelayGap:
    """A time in which a process of the generator did not run; it may reach beyond the window."""

    process: str
    start_s: float  # since the window began
    seconds: float
    watcher: bool = True  # its process samples the workers' counts, so samples are missing

    def within(self, from_s: float, until_s: float) -> float:
        return max(0.0, min(self.start_s + self.seconds, until_s) - max(self.start_s, from_s))


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """The use of the time that a worker did not spend on its sockets, in seconds; None: unknown."""

    steal: float | None = None  # the hypervisor had a processor, the one that it took most
    throttled: float | None = None  # a quota held the control group, added over its processors
    waited: float | None = None  # the worker could run and had no processor
    busy: float | None = None  # the worker ran


@dataclass(frozen=True, slots=True)
class HostDelay:
    """The delay of one load host and of its network path."""

    name: str = ""  # "" for the coordinator's
    messages: int = 0  # timed in the window
    read_p99_us: float | None = None  # readable to read
    send_p99_us: float | None = None  # send delay of publishers that could send
    pushed_back_p99_us: float | None = None  # the wait of publishers for their sockets
    segments: int = 0  # of TCP, sent by the host
    retransmitted: int = 0
    lost: int = 0  # segments, in the worse direction


@dataclass(frozen=True, slots=True)
class OwnDelay:
    """The part of a window's figures that is the generator's own delay."""

    stalled_s: float = 0.0  # of all stalls of the worker that stalled most
    longest: LongestStall | None = None  # of these stalls
    in_stalls: TimeTaken = TimeTaken()
    in_window: TimeTaken = TimeTaken()  # of the busiest worker
    # Of the timed groups of the slowest host; None without messages, or if the kernel does not
    # report it.
    read_p99_us: float | None = None  # readable to read
    send_p99_us: float | None = None  # send delay of publishers that did not wait for the broker
    slow_host: str = ""  # that host; "" for the coordinator's
    gaps: tuple[DelayGap, ...] = ()
    cuts: tuple[DelayGap, ...] = ()  # messages waited for the network of a host
    hosts: tuple[HostDelay, ...] = ()  # those with workers


@dataclass(frozen=True, slots=True)
class Generator:
    """The load of the generator itself over the window."""

    busy_share: float = 0.0  # of the busiest worker: processor and run-queue time
    own_delay: OwnDelay = OwnDelay()
    send_delay_limit_us: float = SEND_DELAY_LIMIT_US  # p99 above which it sent too late
    send_tick_us: int = 0  # a wait before sending that the plan intends
    workers: int = 1  # the most on one host
    # (threshold of the user, own delay in µs that breaks it by itself)
    bounds_broken: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DelayBounds:
    window_s: float
    latency_p99_us: float | None
    limit_us: float
    tick_us: float = 0.0  # a wait before sending that is intended
    workers: int = 1


def saturated(generator: Generator, bounds: DelayBounds) -> bool:
    """Return True if the window describes the generator rather than the broker."""
    rules = (cut_off, stalled, unwatched, lossy, pressed, late, busy, dominant, breaks_bounds)
    return any(True for rule in rules for _ in rule(generator, bounds))


def stalled(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    delay = generator.own_delay
    if delay.stalled_s > max(STALLED_FLOOR_S, STALLED_SHARE_LIMIT * bounds.window_s):
        yield _stall_values(delay, bounds)


def unwatched(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find a process that stood still at an end of the window, or a watcher for UNWATCHED_S."""
    window_s = bounds.window_s
    edge_s = min(max(EDGE_SHARE * window_s, EDGE_S[0]), EDGE_S[1])
    for gap in generator.own_delay.gaps:
        at_edge_s = max(gap.within(0, edge_s), gap.within(window_s - edge_s, window_s))
        inside_s = gap.within(0, window_s)
        if at_edge_s >= edge_s / 2 or (gap.watcher and inside_s >= UNWATCHED_S):
            yield {"process": gap.process, "seconds": gap.seconds, "start_s": gap.start_s}
            return


def cut_off(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find hosts whose network was interrupted: messages waited there, not in the broker."""
    least_s = max(STALLED_FLOOR_S, STALLED_SHARE_LIMIT * bounds.window_s)
    longest: dict[str, DelayGap] = {}
    for cut in sorted(generator.own_delay.cuts, key=lambda cut: cut.seconds):
        if cut.within(0, bounds.window_s) >= min(UNWATCHED_S, least_s):
            longest[cut.process] = cut
    for host, cut in longest.items():
        yield {"host": host, "seconds": cut.seconds, "start_s": cut.start_s}


def lossy(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find hosts that lost far more segments than another, so that the broker is not to blame."""
    del bounds
    hosts = {host.name: host for host in generator.own_delay.hosts if host.segments}
    shares = {name: host.lost / max(host.segments, host.lost) for name, host in hosts.items()}
    yield from (v for v in _odd(shares, LOSS_LIMIT) if hosts[v["host"]].lost > FEW_LOST)


def pressed(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find hosts whose publishers waited far longer than another's: a slow broker delays all."""
    hosts = [one for one in generator.own_delay.hosts if one.send_p99_us or one.pushed_back_p99_us]
    waits = {host.name: host.pushed_back_p99_us or 0.0 for host in hosts}
    yield from _odd(waits, bounds.limit_us)


def _odd(figures: Mapping[str, float], limit: float) -> Iterator[Values]:
    """Find hosts with a figure above the limit and above several times the least of all hosts."""
    best = min(figures.values(), default=0.0)
    for host, figure in figures.items():
        if figure > max(limit, OTHER_HOSTS_TIMES * best):
            yield {"host": host, "figure": figure, "best": best}


def late(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    delay = generator.own_delay
    own_us = own_p99_us(delay, bounds)
    if own_us > bounds.limit_us:
        values = {"own_us": own_us, "limit_us": bounds.limit_us, "cause": cause_of(delay, bounds)}
        yield {"host": delay.slow_host, **values}


def busy(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    if generator.busy_share > BUSY_SHARE_LIMIT:
        cause = cause_of(generator.own_delay, bounds)
        yield {"share": generator.busy_share, "limit": BUSY_SHARE_LIMIT, "cause": cause}


def dominant(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find an own delay that is most of the measured latency."""
    own_us = own_p99_us(generator.own_delay, bounds)
    p99_us = bounds.latency_p99_us or 0.0
    if own_us > OWN_FLOOR_SHARE * bounds.limit_us and own_us > OWN_SHARE_LIMIT * p99_us:
        yield _share_values(generator.own_delay, bounds)


def breaks_bounds(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find the user's bounds that our own delay breaks."""
    for text, own_us in generator.bounds_broken[:1]:
        cause = cause_of(generator.own_delay, bounds)
        host = generator.own_delay.slow_host
        yield {"bound": text, "own_us": own_us, "host": host, "cause": cause}


def noticeable(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    """Find an own delay that is large, or half of the p99 of a sound window."""
    own_us, p99_us = own_p99_us(generator.own_delay, bounds), bounds.latency_p99_us or 0.0
    is_large = own_us > REMARK_SHARE * max(bounds.limit_us, p99_us)
    is_half = own_us > REMARK_FLOOR_US and own_us >= OWN_SHARE_LIMIT * p99_us
    if (is_large or is_half) and not saturated(generator, bounds):
        yield _share_values(generator.own_delay, bounds)


def noticeable_stalls(generator: Generator, bounds: DelayBounds) -> Iterator[Values]:
    delay = generator.own_delay
    if delay.stalled_s > STALLED_FLOOR_S / 2 and not saturated(generator, bounds):
        yield _stall_values(delay, bounds)


def own_p99_us(delay: OwnDelay, bounds: DelayBounds) -> float:
    """Return the p99 of our own delay at worst: that of reading plus that of sending."""
    return (delay.read_p99_us or 0.0) + max(0.0, (delay.send_p99_us or 0.0) - bounds.tick_us)


def own_part_us(delay: OwnDelay, bounds: DelayBounds) -> float:
    """Return the greatest part of the p99 that can be our own delay."""
    own_us = own_p99_us(delay, bounds)
    # The delays of both ends need not have met in one message.
    return min(own_us, bounds.latency_p99_us or own_us)


def late_s(generator: Generator, bounds: DelayBounds, unread: bool) -> float:
    """Return the longest time for which a saturated generator may have been late."""
    delay = generator.own_delay
    if not saturated(generator, bounds):
        return 0.0
    slow_path = any(True for rule in (lossy, pressed) for _ in rule(generator, bounds))
    if generator.busy_share > BUSY_SHARE_LIMIT or unread or slow_path:
        return bounds.window_s
    unseen = (*delay.cuts, *(gap for gap in delay.gaps if gap.watcher))
    unseen_s = sum(gap.within(0, bounds.window_s) for gap in unseen)
    return min(bounds.window_s, delay.stalled_s + unseen_s + own_p99_us(delay, bounds) / 1e6)


def _stall_values(delay: OwnDelay, bounds: DelayBounds) -> Values:
    longest = delay.longest or LongestStall(0, 0.0, delay.stalled_s)
    several = longest.seconds <= 0.95 * delay.stalled_s
    return {
        "worker": longest.worker,
        "host": longest.host,
        "stalled_s": delay.stalled_s,
        "window_s": bounds.window_s,
        "longest_s": longest.seconds if several else None,
        "start_s": longest.start_s,
        "cause": cause_of(delay, bounds),
    }


def _share_values(delay: OwnDelay, bounds: DelayBounds) -> Values:
    own_us, p99_us = own_part_us(delay, bounds), bounds.latency_p99_us
    return {
        "own_us": own_us,
        "host": delay.slow_host,
        "share": own_us / p99_us if p99_us else None,
        "p99_us": p99_us or None,
        "cause": cause_of(delay, bounds),
    }


def cause_of(delay: OwnDelay, bounds: DelayBounds) -> Text:
    # A hundredth of the window is what it takes to make the p99.
    lost_s = STALLED_SHARE_LIMIT * bounds.window_s
    stalled = delay.stalled_s >= CAUSE_SHARE * lost_s
    taken = delay.in_stalls if stalled else delay.in_window
    least_s = CAUSE_SHARE * (delay.stalled_s if stalled else lost_s)
    steal = JUDGE_TEXT.STEAL, taken.steal or 0.0
    throttled = JUDGE_TEXT.THROTTLED, taken.throttled or 0.0
    # A throttled worker waits for a processor, too.
    outside = max(steal, throttled, key=itemgetter(1)), (JUDGE_TEXT.WAITED, taken.waited or 0.0)
    for sentence, seconds in outside:
        if seconds >= least_s > 0:
            return sentence(seconds=seconds, several=bounds.workers if bounds.workers > 1 else None)
    could_be_busy_s = delay.stalled_s if stalled else bounds.window_s
    if taken.busy is None or taken.busy >= CAUSE_SHARE * could_be_busy_s:
        return JUDGE_TEXT.BUSY()
    return JUDGE_TEXT.STOPPED() if stalled else JUDGE_TEXT.WOKEN_LATE()
