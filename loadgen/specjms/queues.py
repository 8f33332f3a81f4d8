"""Depth of the queues over time: messages sent and not yet received, by message type.

Depths are those of our ledger, since brokers do not report them for shared subscriptions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadgen.judge.backlog import backlog_growth, tolerated_growth
from loadgen.metrics.course import Course, Span, counted_in

NS: Final = 1_000_000_000

Depth = Sequence[tuple[int, int]]  # over time: (CLOCK_MONOTONIC ns, messages)

Depths = Mapping[str, Depth]  # at the end of each second, by message type


def unstable(
    depths: Depths, rates: Mapping[str, tuple[float, float]], window: Span
) -> dict[str, float]:
    """Return the growth, by message type, of each depth that grew by more than noise."""
    grown = {}
    window_s = (window[1] - window[0]) / NS
    for name, course in depths.items():
        inside = [(at, 0, depth) for at, depth in course if window[0] <= at <= window[1]]
        growth = backlog_growth(inside)
        if growth > tolerated_growth(*rates[name], window_s):
            grown[name] = growth
    return grown


def depth_at(course: Depth, moment_ns: int) -> int | None:
    """Return the last depth until this moment, None without an earlier one."""
    return next((depth for at_ns, depth in reversed(course) if at_ns <= moment_ns), None)


def periods(
    depths: Depths, stored: Depth, course: Course, windows: Sequence[Span], every_s: float
) -> list[dict[str, Any]]:
    """Return the progress of warm-up and measurement, a row for each `every_s` seconds of them."""
    rows = []
    start_ns = next((begin for begin, end in windows if end > begin), 0)
    for phase, (begin, end) in zip(("warm-up", "measurement"), windows, strict=True):
        every_ns = round(every_s * NS) or max(end - begin, 1)
        for from_ns in range(begin, end, every_ns):
            span = from_ns, min(from_ns + every_ns, end)
            most = {
                name: max((d for at, d in of if span[0] <= at <= span[1]), default=0)
                for name, of in depths.items()
            }
            deepest = max(most, key=lambda name: most[name], default="")
            rows.append(
                {
                    "phase": phase,
                    "from_s": (span[0] - start_ns) / NS,
                    "until_s": (span[1] - start_ns) / NS,
                    "received_per_s": counted_in(course, span) * NS / (span[1] - span[0]),
                    "depth_at_end": sum(depth_at(of, span[1]) or 0 for of in depths.values()),
                    "stored_at_end": depth_at(stored, span[1]),
                    "deepest": deepest,
                    "deepest_messages": most.get(deepest, 0),
                }
            )
    return rows
