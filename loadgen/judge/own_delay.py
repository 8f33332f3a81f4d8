"""What the generator itself added to the figures of a window, whether that is too much, and why.

Messages left late because nobody wrote them, or lay in a socket because nobody read them. None of
it is the broker's. Pure: the facts are collected by run/own_delay_facts.py.
"""

from dataclasses import dataclass

BUSY_SHARE_LIMIT = 0.95
"""A loop with less than a twentieth of its time idle may be what limits the result."""
STALLED_SHARE_LIMIT = 0.01
"""A worker that stood still for more of the window than this has the p99 in its hands."""
STALLED_FLOOR_S = 0.1
"""Less than this in all is no loss of time but jitter, which the latency series tell better."""
OWN_SHARE_LIMIT = 0.5
"""Where more than half of the p99 is our own, it says more of this host than of the broker."""
OWN_FLOOR_SHARE = 0.2
"""Of the limit to the send delay: what is below it is a slice or two of a shared processor, however
fast the broker was. A case whose result is a latency has the strictest limit."""
REMARK_SHARE = 0.1
"""Of the p99, and of the limits above: less of our own is not worth a word."""
CAUSE_SHARE = 0.5
"""What explains at least half of the time lost is its cause."""


@dataclass(frozen=True, slots=True)
class LongestStall:
    """The longest time in which one worker did not look at its sockets."""

    worker: int
    start_s: float  # since the window began
    seconds: float


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """Who had the time that a worker did not spend on its sockets, in seconds; None: not known."""

    steal: float | None = None  # the hypervisor had a processor, the one that it took most
    throttled: float | None = None  # a quota held the control group, added over its processors
    waited: float | None = None  # the worker could run and had no processor
    busy: float | None = None  # the worker ran


@dataclass(frozen=True, slots=True)
class OwnDelay:
    """The part of a window's figures that is the generator's own.

    `stalled_s` is the time in which the worker that stood still most did not look at its sockets.
    """

    stalled_s: float = 0.0
    longest: LongestStall | None = None
    in_stalls: TimeTaken = TimeTaken()
    in_window: TimeTaken = TimeTaken()  # of the busiest worker
    # Of the timed groups; None without messages, or where the kernel does not say.
    read_p99_us: float | None = None  # readable to read
    send_p99_us: float | None = None  # send delay of publishers that did not wait for the broker


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a window of this kind allows; `tick_us` is a wait before sending that was intended."""

    window_s: float
    latency_p99_us: float | None
    limit_us: float
    tick_us: float = 0.0


def saturation(own: OwnDelay, busy_share: float, bounds: Bounds) -> str:
    """Why the window says more of the generator than of the broker; "" where it does not."""
    if _stalls_too_long(own, bounds):
        return f"{_stalled(own, bounds)}: {_cause(own, bounds)}"
    own_us, limit_us = own_p99_us(own, bounds), bounds.limit_us
    if own_us > limit_us:
        return (
            f"messages left or were read late by our own doing, p99 {own_us:,.0f} µs above "
            f"{limit_us:,.0f} µs: {_cause(own, bounds)}"
        )
    if busy_share > BUSY_SHARE_LIMIT:
        return (
            f"the busiest worker had {busy_share:.1%} of its time taken, above "
            f"{BUSY_SHARE_LIMIT:.0%}: {_cause(own, bounds)}"
        )
    if own_us > OWN_FLOOR_SHARE * limit_us and own_us > OWN_SHARE_LIMIT * _p99_us(bounds):
        return f"{_share(own_us, bounds)}: {_cause(own, bounds)}"
    return ""


def remark(own: OwnDelay, bounds: Bounds) -> str:
    """What of a window that is sound otherwise is the generator's own; "" for next to nothing."""
    own_us = own_p99_us(own, bounds)
    floor_us = REMARK_SHARE * bounds.limit_us
    if own_us > floor_us and own_us > REMARK_SHARE * _p99_us(bounds):
        return f"{_share(own_us, bounds)}: {_cause(own, bounds)}"
    if own.longest is not None and own.stalled_s > STALLED_FLOOR_S / 2:
        return (
            f"{_stalled(own, bounds)}, which the greatest latencies contain: {_cause(own, bounds)}"
        )
    return ""


def own_p99_us(own: OwnDelay, bounds: Bounds) -> float:
    """The p99 of our own delay, at most: both ends together."""
    return (own.read_p99_us or 0.0) + max(0.0, (own.send_p99_us or 0.0) - bounds.tick_us)


def _p99_us(bounds: Bounds) -> float:
    return bounds.latency_p99_us or 0.0


def _stalls_too_long(own: OwnDelay, bounds: Bounds) -> bool:
    return own.stalled_s > max(STALLED_FLOOR_S, STALLED_SHARE_LIMIT * bounds.window_s)


def _stalled(own: OwnDelay, bounds: Bounds) -> str:
    longest = own.longest
    if longest is None:
        return f"a worker stood still for {own.stalled_s:.2f} s of {bounds.window_s:.6g} s"
    said = (
        f"worker {longest.worker} stood still for {own.stalled_s:.2f} s of {bounds.window_s:.6g} s"
    )
    if longest.seconds > 0.95 * own.stalled_s:
        return f"{said}, from second {longest.start_s:.1f}"
    return f"{said}, longest {longest.seconds:.2f} s from second {longest.start_s:.1f}"


def _share(own_us: float, bounds: Bounds) -> str:
    p99_us = _p99_us(bounds)
    # The delays of both ends need not have met in one message.
    own_us = min(own_us, p99_us) if p99_us else own_us
    share = f" ({own_us / p99_us:.0%})" if p99_us else ""
    return f"up to {own_us:,.0f} µs{share} of the p99 of {p99_us:,.0f} µs are the generator's own"


_CAUSES = (
    (
        "steal",
        "the hypervisor took this host's processor for {:.2f} s; repeat it elsewhere or at another "
        "time",
    ),
    ("throttled", "a CPU quota throttled this host's generator for {:.2f} s; raise the quota"),
    ("waited", "it waited {:.2f} s for a processor; end what else runs here, or add cores"),
)


def _cause(own: OwnDelay, bounds: Bounds) -> str:
    """Who took the time, and what to do about it."""
    # A hundredth of the window is what it takes to make the p99.
    lost_s = STALLED_SHARE_LIMIT * bounds.window_s
    stalled = own.stalled_s >= CAUSE_SHARE * lost_s
    taken = own.in_stalls if stalled else own.in_window
    for name, words in _CAUSES:
        seconds = getattr(taken, name)
        if seconds is not None and seconds >= CAUSE_SHARE * (own.stalled_s if stalled else lost_s):
            return words.format(seconds)
    could_be_busy_s = own.stalled_s if stalled else bounds.window_s
    if taken.busy is None or taken.busy >= CAUSE_SHARE * could_be_busy_s:
        return "add workers or cores, or lower the load"
    if stalled:
        return "it was stopped, or waited for memory or a disk"
    return "this host woke it late; end what else runs here, or repeat it elsewhere"
