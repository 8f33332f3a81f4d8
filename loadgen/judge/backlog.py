"""The growth of the backlog over a window: messages unsent or undelivered, end minus start."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BACKLOG_FLOOR_S = 0.1
BACKLOG_FLOOR_SHARE = 0.03
"""Growth over the window that counts as noise: the deliveries of this time, but at most of this
share of the window, else short windows would hold loads far above the limit."""
BACKLOG_FLOOR_MESSAGES = 100
BACKLOG_FEW = 2
BACKLOG_SIGMAS = 4
"""At low rates, noise is this many standard deviations of the messages of that time at both ends,
and a few messages, but at most the floor."""
BACKLOG_EDGE_NS = 500_000_000
BACKLOG_EDGE_SHARE = 0.05
BACKLOG_EDGE_SAMPLES = 3
"""The level at an end of the window is the median over this time, share or number of samples: a
hiccup of the host is not a backlog."""
BACKLOG_WAIT_S = 0.5
BACKLOG_WAIT_SHARE = 0.1
"""Longest wait of the oldest message at the end of the window, as time or share of the window: at
low rates, few messages can be a backlog."""
STANDSTILL_END_S = 0.1
"""Least time between the end of a standstill and that of the window, if it ended inside."""

BacklogSample = tuple[int, int, int]
"""Monotonic time in ns, messages due and not sent, deliveries outstanding at the broker."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which nothing was received or acknowledged although something was due."""

    from_s: float  # since the window began
    until_s: float
    waiting: int  # messages that came due in it


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of the backlog over the window, in messages."""

    messages: float
    tolerated: float  # the part that counts as noise
    late: float  # most messages that waited because the generator was late
    is_old: bool = False  # half of the backlog is new, and its oldest message waited too long

    @property
    def excessive(self) -> bool:
        return self.is_old or self.messages > self.tolerated + self.late


def tolerated_s(window_s: float) -> float:
    """Return the time whose deliveries are noise over such a window, in seconds."""
    return min(BACKLOG_FLOOR_S, BACKLOG_FLOOR_SHARE * window_s)


def tolerated_growth(message_rate: float, delivery_rate: float, window_s: float) -> float:
    """Return the growth over the window that is noise at these rates a second, in messages."""
    floor_s = tolerated_s(window_s)
    chance = BACKLOG_FEW + BACKLOG_SIGMAS * math.sqrt(2 * floor_s * message_rate)
    copies = max(delivery_rate / message_rate, 1.0) if message_rate else 1.0
    return max(floor_s * delivery_rate, min(BACKLOG_FLOOR_MESSAGES, chance * copies))


def waits_too_long(
    samples: Sequence[BacklogSample], waited_s: float, window_s: float, late_s: float
) -> bool:
    """Return True if a few messages count as a backlog because the oldest has waited too long."""
    levels = backlog_levels(samples)
    if levels is None or waited_s <= max(BACKLOG_WAIT_S, BACKLOG_WAIT_SHARE * window_s) + late_s:
        return False
    return levels[1][1] - levels[0][1] >= max(BACKLOG_FEW, levels[1][1] / 2)


def backlog_levels(
    samples: Sequence[BacklogSample],
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return (ns, messages that wait), as medians, at both ends; None for too few samples."""
    if len(samples) < 2 * BACKLOG_EDGE_SAMPLES:
        return None
    start_ns, end_ns = samples[0][0], samples[-1][0]
    edge_ns = min((end_ns - start_ns) * BACKLOG_EDGE_SHARE, BACKLOG_EDGE_NS)
    first = [sample for sample in samples if sample[0] - start_ns <= edge_ns]
    last = [sample for sample in samples if end_ns - sample[0] <= edge_ns]
    return (
        _level(max(first, samples[:BACKLOG_EDGE_SAMPLES], key=len)),
        _level(max(last, samples[-BACKLOG_EDGE_SAMPLES:], key=len)),
    )


def _level(samples: Sequence[BacklogSample]) -> tuple[float, float]:
    return (
        statistics.median(time_ns for time_ns, _, _ in samples),
        statistics.median(unsent + outstanding for _, unsent, outstanding in samples),
    )


def backlog_growth(samples: Sequence[BacklogSample]) -> float:
    """Return the growth from the start of the samples to their end; 0.0 for too few samples."""
    levels = backlog_levels(samples)
    return 0.0 if levels is None else levels[1][1] - levels[0][1]


def lasting(standstills: Sequence[Standstill], window_s: float) -> tuple[Standstill, ...]:
    return tuple(s for s in standstills[-1:] if window_s - s.until_s < STANDSTILL_END_S)
