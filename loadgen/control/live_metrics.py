"""The live figures of a run for Prometheus: what the live page and the workers' reports say now.

Counters are read from the live page when they are asked for, so they are of that moment; latencies
come with the workers' reports, once a second. Nobody is asked anything, and no worker notices.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from loadgen.control.monitor import Monitor
from loadgen.errors import CannotRunError
from loadgen.metrics.histogram import highest_values
from loadgen.metrics.interval import Interval
from loadgen.workload.groups import RunPlan
from loadgen.workload.traffic import INTENDED_PHASES

MESSAGE_EVENTS = (
    *("sent", "acknowledged", "refused", "expected", "received", "duplicated", "out_of_order"),
    *("corrupt", "misrouted", "foreign", "below_qos"),
)
"""Counters of `metrics.interval` that count messages."""

BOUNDS_S = tuple(
    float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 2, 5)
)  # 10 us to 50 s
"""Upper bounds of the latency buckets. A value within a thousandth of a bound may be counted on
either side of it: that is the resolution of the recorded histograms."""

_LOCAL = "127.0.0.1"
_GAUGES = {
    "connected": "Devices that are connected now.",
    "connect_failures": "Devices whose connect failed.",
    "owed": "Messages due and not sent.",
}


class RunMetrics(Collector):
    """The metrics of one run; asked from another thread, it reads and changes nothing."""

    def __init__(self, plan: RunPlan, monitor: Monitor, about: dict[str, str]) -> None:
        self._groups = [group.name for group in plan.groups]
        self._monitor = monitor
        self._about = about

    def collect(self) -> Iterator[Metric]:
        page = self._monitor.page
        yield InfoMetricFamily("loadgen_run", "The run.", self._about)
        phase = GaugeMetricFamily("loadgen_phase", "1 for the phase of now.", labels=("phase",))
        phase.add_metric((self._monitor.phase,), 1)
        yield phase
        for name, meaning in _GAUGES.items():
            yield GaugeMetricFamily(f"loadgen_{name}", meaning, page.total(name))
        under_way = "Deliveries that may be at the broker, or in socket buffers."
        yield GaugeMetricFamily("loadgen_under_way", under_way, page.under_way())
        messages = CounterMetricFamily(
            "loadgen_messages",
            "Messages by what became of them, by the phase in which they were intended.",
            labels=("event", "group", "phase"),
        )
        counts = page.counts.copy()
        for event in MESSAGE_EVENTS if page.workers else ():
            totals = counts[event].sum(axis=0).tolist()
            for group, by_phase in zip(self._groups, totals, strict=True):
                for intended, total in zip(INTENDED_PHASES, by_phase, strict=True):
                    if total:
                        messages.add_metric((event, group, intended), total)
        yield messages
        yield self._latencies()

    def _latencies(self) -> Metric:
        family = HistogramMetricFamily(
            "loadgen_latency_seconds",
            "Latencies of a series, by the phase in which their messages were intended.",
            labels=("series", "phase"),
        )
        for (phase, series), row in sorted(self._monitor.state.tally.series.copy().items()):
            buckets = [*_cumulative(row), ("+Inf", float(row.count))]
            family.add_metric((series, phase), buckets, row.sum_ns / 1e9)
        return family


def _cumulative(row: Interval) -> Iterator[tuple[str, float]]:
    """(upper bound in seconds, how many latencies are not above it)."""
    highest_ns = highest_values(row.bucket)
    up_to = np.concatenate([[0], np.cumsum(row.bucket_count)])
    for bound_s in BOUNDS_S:
        place = int(np.searchsorted(highest_ns, round(bound_s * 1e9), side="right"))
        yield repr(bound_s), float(up_to[place])


@contextmanager
def served_metrics(
    address: str, plan: RunPlan, monitor: Monitor, about: dict[str, str]
) -> Iterator[None]:
    """Serve the run's metrics at `address`, HOST:PORT, while the block runs.

    Without HOST it is this host's own, 127.0.0.1. Raises CannotRunError where it cannot be listened
    at.
    """
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(plan, monitor, about))
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or _LOCAL, registry)
    except OSError as error:
        raise CannotRunError(
            f"metrics cannot be served at {address}: {(error.strerror or str(error)).lower()}; "
            "choose another port or address"
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
