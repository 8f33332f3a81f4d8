"""The headline of a result: its rates, latencies and losses in one line, for people."""

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

from loadgen.report.render.text import number
from loadgen.sentences import duration

if TYPE_CHECKING:
    from loadgen.report.score_card import ScoreCard

AS_ASKED = 0.98  # share of the requested rate above which the requested one is not shown


def headline(*cards: "ScoreCard") -> str:
    """Return rates, end-to-end latencies and losses of a run in one line.

    500 msg/s in and out · p50 0.17 ms · p99 3.7 ms · p99.9 9 ms · max 22 ms · 0 lost of 5,000

    A rate below the requested one is shown with it, and connects for a run without messages.
    Figures of repetitions are medians; losses are added up.
    """
    counts = [card.counts for card in cards]
    if cards[0].has_messages:
        series = "end_to_end"
        ingress, egress, asked = (
            median_of(card.rates.get(rate) for card in cards) or 0.0
            for rate in ("ingress", "egress", "asked")
        )
        rate_in, rate_out = _rate(ingress), _rate(egress)
        if ingress < AS_ASKED * asked:
            rate_in += f" of {number(asked)}"
        same = rate_in == rate_out
        parts = [f"{rate_in} msg/s in and out" if same else f"{rate_in} msg/s in, {rate_out} out"]
        expected = sum(count.expected for count in counts)
        losses = f"{sum(count.lost for count in counts):,} lost of {expected:,}"
    else:
        series = "connect"
        connected = round(median_of(card.connect.connected for card in cards) or 0)
        seconds = median_of(card.connect.seconds for card in cards)
        pace = f" in {duration(1e6 * seconds)}, {number(connected / seconds)}/s" if seconds else ""
        parts = [f"{connected:,} connected{pace}"]
        losses = f"{sum(count.connect_failures for count in counts):,} failed"
    latencies = [card.latency[series] for card in cards if series in card.latency]
    for key in ("p50", "p99", "p99.9", "max"):
        level_us = median_of(timed.figure(key) for timed in latencies)
        if level_us is not None:
            parts.append(f"{key} {duration(level_us)}")
    return " · ".join([*parts, losses])


def _rate(per_s: float) -> str:
    """Return a rate, without a fraction if that is less than a percent: 200 and not 199.98."""
    return number(round(per_s) if per_s >= 100 else per_s)


def median_of(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
