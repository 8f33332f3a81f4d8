"""The live figures of a run, from the live page and the workers' reports.

Counters are read from the live page on request and are those of that moment; latencies come with
the workers' reports, once a second. No worker is asked or slowed. Prometheus fetches the figures
here; `run.otlp` sends the same ones.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import numpy as np
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from loadgen.errors import CannotRunError
from loadgen.kernels.counting import INTENDED_PHASES
from loadgen.metrics.histogram import highest_values
from loadgen.plan.plan import Plan
from loadgen.run.live_page import PageApplication
from loadgen.run.messages import RunMessage
from loadgen.run.monitor import Monitor

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

_BOUNDS_NS = np.array([round(bound_s * 1e9) for bound_s in BOUNDS_S])
_LOCAL = "127.0.0.1"
_LOOK_S = 0.1
"""Longest time until the server notices the end of the run."""
_GAUGES = {
    "connected": "Devices that are connected now.",
    "connect_failures": "Devices whose connect failed.",
    "owed": "Messages due and not sent.",
    "under_way": "Deliveries that may be at the broker, or in socket buffers.",
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Some latencies: how many are not above each of BOUNDS_S, and how many there are."""

    up_to: tuple[int, ...]
    count: int
    sum_s: float
    min_s: float
    max_s: float


Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric: its points by the values of its labels; those of a histogram are Distributions."""

    name: str
    meaning: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels
    points: Mapping[Labels, float | Distribution]


def figures(plan: Plan, monitor: Monitor) -> Iterator[Figure]:
    """Yield the figures of this moment; it can be called from any thread and changes nothing."""
    page = monitor.page
    yield Figure(
        "loadgen_phase", "1 for the phase of now.", "gauge", ("phase",), {(monitor.phase,): 1}
    )
    for name, meaning in _GAUGES.items():
        value = page.under_way() if name == "under_way" else page.total(name)
        yield Figure(f"loadgen_{name}", meaning, "gauge", (), {(): value})
    counts = page.counts.copy()
    yield Figure(
        "loadgen_messages",
        "Messages by what became of them, by the phase in which they were intended.",
        "counter",
        ("event", "group", "phase"),
        {
            (event, group.name, intended): total
            for event in (MESSAGE_EVENTS if page.workers else ())
            for group, by_phase in zip(plan.groups, counts[event].sum(axis=0).tolist(), strict=True)
            for intended, total in zip(INTENDED_PHASES, by_phase, strict=True)
            if total
        },
    )
    latencies: dict[Labels, float | Distribution] = {}
    for (intended, series), row in sorted(monitor.state.tally.series.copy().items()):
        places = np.searchsorted(highest_values(row.bucket), _BOUNDS_NS, side="right")
        up_to = np.concatenate([[0], np.cumsum(row.bucket_count)])[places]
        seconds = (row.sum_ns / 1e9, row.min_ns / 1e9, row.max_ns / 1e9)
        latencies[series, intended] = Distribution(tuple(up_to.tolist()), int(row.count), *seconds)
    yield Figure(
        "loadgen_latency_seconds",
        "Latencies of a series, by the phase in which their messages were intended.",
        "histogram",
        ("series", "phase"),
        latencies,
    )


_FAMILIES = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class RunMetrics(Collector):
    """The figures of one run as Prometheus has them."""

    def __init__(self, plan: Plan, monitor: Monitor, about: dict[str, str]) -> None:
        self._plan = plan
        self._monitor = monitor
        self._about = about

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("loadgen_run", "The run.", self._about)
        for figure in figures(self._plan, self._monitor):
            family = _FAMILIES[figure.kind](figure.name, figure.meaning, labels=figure.labels)
            for labels, value in figure.points.items():
                if isinstance(value, Distribution):
                    buckets = [*zip(map(repr, BOUNDS_S), value.up_to, strict=True)]
                    family.add_metric(labels, [*buckets, ("+Inf", value.count)], value.sum_s)
                else:
                    family.add_metric(labels, value)
            yield family


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no request: stderr is for the progress of the run."""


@contextmanager
def served_metrics(
    address: str, plan: Plan, monitor: Monitor, about: dict[str, str], directory: Path
) -> Iterator[None]:
    """Serve the run's metrics and its page at `address`, HOST:PORT, while the block runs.

    Without HOST it is this host's own, 127.0.0.1. Raises CannotRunError where it cannot be listened
    at.
    """
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(plan, monitor, about))
    metrics = make_wsgi_app(registry)
    try:
        where = socket.getaddrinfo(host.strip("[]") or _LOCAL, int(port), type=socket.SOCK_STREAM)
        family, *_, (name, number, *_) = where[0]
        to_this_host = ip_address(str(name)).is_loopback
        application = PageApplication(about["run"], directory, metrics, to_this_host=to_this_host)
        kind = type("Server", (ThreadingWSGIServer,), {"address_family": family})
        server: WSGIServer = make_server(str(name), int(number), application, kind, _Quiet)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CannotRunError(RunMessage.NO_METRICS(address=address, reason=reason)) from None
    thread = Thread(target=server.serve_forever, args=(_LOOK_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        application.close()
        server.shutdown()
        server.server_close()
        thread.join()
