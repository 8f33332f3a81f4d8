"""The headline of a result: its rates, latencies and losses in one line, for people."""

from typing import TYPE_CHECKING

from loadgen.report.render.text import number

if TYPE_CHECKING:
    from loadgen.report.score_card import ScoreCard

_LEVELS = {"p50": "p50", "p99": "p99", "p99_9": "p99.9", "max": "max"}
"""Figures of a latency series, and their titles in a headline."""

_UNITS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
"""Units of a duration, and the microseconds of each."""


def headline(card: "ScoreCard") -> str:
    """Return rates, end-to-end latencies and losses of a run in one line.

    500 msg/s in and out · p50 0.17 ms · p99 3.7 ms · p99.9 9 ms · max 22 ms · 0 lost of 5,000

    A run without messages has its connects instead.
    """
    counts = card.counts
    if card.has_messages:
        series, parts = "end_to_end", [_rates(card)]
        losses = f"{counts.lost:,} lost of {counts.expected:,}"
    else:
        series, parts = "connect", [_connects(card)]
        losses = f"{counts.connect_failures:,} failed"
    timed = card.latency.get(series)
    levels = ((title, getattr(timed, key, None)) for key, title in _LEVELS.items())
    parts += [f"{title} {duration(us)}" for title, us in levels if us is not None]
    return " · ".join([*parts, losses])


def duration(microseconds: float) -> str:
    """Return a time in µs, ms or s, with two digits or more: 82 µs, 0.17 ms, 3.7 ms, 1.2 s."""
    unit, size = next((u for u in _UNITS if microseconds >= 0.1 * u[1]), _UNITS[-1])
    value = microseconds / size
    return f"{value:,.0f} {unit}" if value >= 99.5 else f"{value:.2g} {unit}"


def _rates(card: "ScoreCard") -> str:
    sent, received = number(card.rates["sent"]), number(card.rates["received"])
    if sent == received:
        return f"{sent} msg/s in and out"
    return f"{sent} msg/s in, {received} msg/s out"


def _connects(card: "ScoreCard") -> str:
    seconds = card.connect.seconds
    text = f"{card.connect.connected:,} connected"
    if not seconds:
        return text
    return f"{text} in {duration(1e6 * seconds)}, {number(card.connect.connected / seconds)}/s"
