"""One latency series as the score card shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.metrics.reducer import summarize


@dataclass(frozen=True, slots=True)
class Latency:
    """One series in microseconds; `p99_9` is called p99.9 in scorecard.json."""

    count: int
    avg: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p99_9: float | None
    max: float | None
    stdev: float | None


def latency_of(row: Mapping[str, Any]) -> Latency:
    """The series of a row of the reduced interval table (`metrics.reducer`)."""
    summary = summarize(row)
    return Latency(
        **{name: getattr(summary, name) for name in Latency.__dataclass_fields__},
    )
