"""The live figures of a run, from the live page and the workers' reports of each second.

No worker is asked or slowed. Prometheus fetches the figures here; `run.otlp` sends the same ones.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import numpy as np

from loadgen.errors import CannotRunError
from loadgen.kernels.counting import INTENDED_PHASES
from loadgen.metrics.histogram import highest_values
from loadgen.plan.plan import Plan
from loadgen.run.live_page import PageApplication
from loadgen.run.monitor import Monitor
from loadgen.sentences import RUN_TEXT

MESSAGE_EVENTS = (
    *("sent", "acknowledged", "refused", "expected", "received", "duplicated", "out_of_order"),
    *("corrupt", "misrouted", "foreign", "below_qos"),
)
"""Counters of `metrics.interval` that count messages."""

BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 2, 5))
"""Upper bounds of the latency buckets, 10 us to 50 s. A value within a thousandth of a bound, the
resolution of the recorded histograms, may be counted on either side of it."""
_BOUNDS_NS = np.array([round(bound_s * 1e9) for bound_s in BOUNDS_S])
_LOCAL = "127.0.0.1"
_LOOK_S = 0.1  # longest time until the server notices the end of the run
_GAUGES = {
    "connected": "Devices that are connected now.",
    "connect_failures": "Devices whose connect failed.",
    "owed": "Messages due and not sent.",
    "under_way": "Deliveries that may be at the broker, or in socket buffers.",
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The numbers of latencies up to each of BOUNDS_S, and of all."""

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
        "loadgen_phase", "1 for the current phase.", "gauge", ("phase",), {(monitor.phase,): 1}
    )
    for name, meaning in _GAUGES.items():
        value = page.under_way() if name == "under_way" else page.total(name)
        yield Figure(f"loadgen_{name}", meaning, "gauge", (), {(): value})
    counts = page.counts.copy()
    yield Figure(
        "loadgen_messages",
        "Messages by event, and by the phase in which they were intended.",
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
    meaning = "Latencies of a series, by the phase in which their messages were intended."
    yield Figure("loadgen_latency_seconds", meaning, "histogram", ("series", "phase"), latencies)


_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def exposition(plan: Plan, monitor: Monitor, about: Mapping[str, str]) -> str:
    lines = [
        *("# HELP loadgen_run_info The run.", "# TYPE loadgen_run_info gauge"),
        _sample("loadgen_run_info", about, 1),
    ]
    for figure in figures(plan, monitor):
        name = f"{figure.name}_total" if figure.kind == "counter" else figure.name
        lines += [f"# HELP {name} {figure.meaning}", f"# TYPE {name} {figure.kind}"]
        for values, value in figure.points.items():
            labels = dict(zip(figure.labels, values, strict=True))
            if isinstance(value, Distribution):
                buckets = [*zip(map(repr, BOUNDS_S), value.up_to, strict=True)]
                for bound, count in [*buckets, ("+Inf", value.count)]:
                    lines.append(_sample(f"{name}_bucket", {**labels, "le": bound}, count))
                lines.append(_sample(f"{name}_count", labels, value.count))
                lines.append(_sample(f"{name}_sum", labels, value.sum_s))
            else:
                lines.append(_sample(name, labels, value))
    return "".join(f"{line}\n" for line in lines)


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no request: stderr is for the progress of the run."""


@contextmanager
def served_metrics(
    address: str, plan: Plan, monitor: Monitor, about: dict[str, str], directory: Path
) -> Iterator[None]:
    """Serve the run's metrics and its page at `address`, HOST:PORT, while the block runs.

    Without HOST it is 127.0.0.1. Raise CannotRunError if the address cannot be used.
    """
    host, _, port = address.rpartition(":")

    def metrics() -> tuple[str, bytes]:
        return _TEXT, exposition(plan, monitor, about).encode()

    try:
        where = socket.getaddrinfo(host.strip("[]") or _LOCAL, int(port), type=socket.SOCK_STREAM)
        family, *_, (name, number, *_) = where[0]
        to_this_host = ip_address(str(name)).is_loopback
        application = PageApplication(about["run"], directory, metrics, to_this_host=to_this_host)
        settings = {"address_family": family, "daemon_threads": True}
        kind = type("Server", (ThreadingMixIn, WSGIServer), settings)
        server: WSGIServer = make_server(str(name), int(number), application, kind, _Quiet)
    except OSError as error:
        raise CannotRunError(RUN_TEXT.NO_METRICS(address=address, reason=error)) from None
    thread = Thread(target=server.serve_forever, args=(_LOOK_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        application.close()
        server.shutdown()
        server.server_close()
        thread.join()
