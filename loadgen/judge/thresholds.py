"""The check of a run against the user's thresholds."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from loadgen.judge.ledger import Ledger
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.thresholds import SENDERS_STATES, Threshold
from loadgen.sentences import JUDGE_TEXT, Text

BETWEEN_HOSTS = ("end_to_end", "transit", "reconnect")
"""Series that begin at one device and end at another."""
GROWING = frozenset(
    {
        *("refused", "damaged", "repeated", "misrouted", "foreign", "out_of_order", "below_qos"),
        *("violations", "sent", "expected", "intact"),
    }
)
"""States that only grow while a run lasts."""
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


READ, SENT = "own_delay", "own_send"
OWN_SERIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("end_to_end", "reconnect"), (READ, SENT)),
    **dict.fromkeys(("transit", "acknowledge"), (READ,)),
    "send_delay": (SENT,),
    **{name: (name,) for name in (READ, SENT)},
}
"""Series of the generator's own delay in a latency; other latencies contain stalls of a worker."""
OWN_PART = 0.5  # share of a bound above which our own delay, rather than the broker, breaks it


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a window: its latencies by series, its ledger, its length."""

    latencies: Mapping[str, LatencySummary]
    ledger: Ledger
    sent: int | None  # by the schedule in time, without responses; None while the run lasts
    window_s: float
    clock_skew_us: float = 0.0  # greatest difference of two hosts' clocks
    stall_us: float = 0.0  # longest stall of a worker in the run

    def figure(self, threshold: Threshold) -> float | None:
        """Return the figure that the threshold names, None if it was not measured."""
        series, _, statistic = threshold.figure.partition(".")
        if threshold.is_latency:
            timed = self.latencies.get(series)
            return None if timed is None else timed.figure(statistic)
        if threshold.figure in ("sent_rate", "received_rate"):
            count = self.sent if threshold.figure == "sent_rate" else self.ledger.intact
            return count / self.window_s if count is not None and self.window_s else None
        state: int | None = getattr(self.ledger, threshold.figure)
        if state is None or not threshold.share:
            return state
        senders = threshold.figure in SENDERS_STATES
        total = self.ledger.intended if senders else self.ledger.expected
        return state / total if total else None


def missed(thresholds: Iterable[Threshold], measured: Measured) -> tuple[Text, ...]:
    """Return a sentence for each threshold that does not hold, with the measured value."""
    checked = (_check(threshold, measured) for threshold in thresholds)
    return tuple(text for text in checked if text is not None)


def broken_by_own_delay(
    thresholds: Iterable[Threshold], measured: Measured
) -> tuple[tuple[str, float], ...]:
    """Return each latency bound that is missed mostly by our own delay, with that delay in µs."""
    broken = []
    for threshold in thresholds:
        series, _, statistic = threshold.figure.partition(".")
        parts = (measured.latencies.get(name) for name in OWN_SERIES.get(series, ()))
        own_us = sum(part.figure(statistic) or 0.0 for part in parts if part is not None)
        if threshold.is_latency and series not in OWN_SERIES:
            own_us = measured.stall_us
        too_much = threshold.comparison[0] != ">" and own_us > OWN_PART * threshold.bound
        if too_much and _check(threshold, measured) is not None:
            broken.append((threshold.text, own_us))
    return tuple(broken)


def hopeless(thresholds: Iterable[Threshold], so_far: Measured) -> tuple[Text, ...]:
    """Return a sentence for each upper bound that the run so far exceeds for good."""
    # A state that only grows cannot come back; a latency could, and is judged all the same.
    upper = [
        replace(one, comparison="<=" if one.comparison == "==" else one.comparison)
        for one in thresholds
        if one.comparison in ("<", "<=", "==")
        and (one.is_latency or (one.figure in GROWING and not one.share))
    ]
    return missed([one for one in upper if so_far.figure(one) is not None], so_far)


def _check(threshold: Threshold, measured: Measured) -> Text | None:
    series, _, statistic = threshold.figure.partition(".")
    value = measured.figure(threshold)
    if value is None:
        summary = measured.latencies.get(series)
        if not threshold.is_latency or summary is None or not summary.count:
            return JUDGE_TEXT.THRESHOLD_NOT_MEASURED(threshold=threshold.text)
        return JUDGE_TEXT.THRESHOLD_FEW_VALUES(
            threshold=threshold.text,
            count=summary.count,
            statistic=statistic,
            max_us=summary.max_us,
        )
    skew_us = measured.clock_skew_us if series in BETWEEN_HOSTS else 0.0
    holds = _COMPARISONS[threshold.comparison]
    if all(holds(value + error, threshold.bound) for error in (-skew_us, skew_us)):
        return None
    unit = " µs" if threshold.is_latency else "%" if threshold.share else ""
    return JUDGE_TEXT.THRESHOLD_MISSED(
        threshold=threshold.text,
        value=value * 100 if threshold.share else value,
        unit=unit,
        skew_us=skew_us or None,
    )
