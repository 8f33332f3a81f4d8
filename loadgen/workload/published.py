"""The published figures that a score card can be read against.

From "IBM MessageSight Appliance v1.0 Performance Benchmarks" (test date April 22, 2013), section
"Score card"; high-water marks from its section "Additional test results data". They were measured
on that report's appliance and network: a yardstick for what a case is about, no result of ours.
"""

from dataclasses import dataclass

from loadgen.workload.cases import Measure

__all__ = ["PUBLISHED", "PUBLISHED_SOURCE", "PublishedFigure"]

PUBLISHED_SOURCE = "IBM MessageSight Appliance v1.0 Performance Benchmarks, 2013"


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published row: name, what it measures, and its columns (None where the report's is empty).

    Latencies are in microseconds; `high_water_mark` is in messages.
    """

    name: str
    measure: Measure
    value: float | None = None
    avg: float | None = None
    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    stdev: float | None = None
    high_water_mark: int | None = None


PUBLISHED: tuple[PublishedFigure, ...] = (
    PublishedFigure("FANIN", "producers", value=400_000, high_water_mark=277),
    PublishedFigure("FANOUT", "ingress_rate", value=162_000),
    PublishedFigure("FANOUT", "egress_rate", value=16_200_000),
    PublishedFigure("PERSISTENT", "persistent_rate", value=460_000, high_water_mark=137),
    PublishedFigure("LATENCY", "latency", avg=84, p50=83, p99=144, max=427, stdev=25),
    PublishedFigure("CONNBURST", "connect_seconds", value=65),
    PublishedFigure("PERSISTENT.MPW", "messages_per_watt", value=1_523),
    PublishedFigure("PERSISTENT.MPU", "messages_per_rack_unit", value=230_000),
)
