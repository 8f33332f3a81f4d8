"""One latency series as the score card shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.metrics.reducer import summarize

COLUMNS = ("count", "avg", "50p", "90p", "99p", "99.9p", "max", "stdev")
"""Titles of the figures of a series, in the order of `Latency`."""


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

    @property
    def figures(self) -> tuple[float | None, ...]:
        """In the order of `COLUMNS`."""
        return tuple(getattr(self, key) for key in self.__slots__)


def latency_of(row: Mapping[str, Any]) -> Latency:
    """The series of a row of the reduced interval table (`metrics.reducer`)."""
    summary = summarize(row)
    return Latency(*(getattr(summary, key) for key in Latency.__slots__))
