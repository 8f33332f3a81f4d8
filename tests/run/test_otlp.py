"""The metrics of a run for an OpenTelemetry collector, decoded as a collector decodes them."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from loadgen.run.otlp import sent_metrics
from loadgen.worker.shared_counts import private_page
from tests.refusals import refused
from tests.run.test_live_metrics import LATENCIES, Samples, scraped, watched

ABOUT = {"run": "r", "case": "fanin", "broker": "b"}
TOKEN = "correct-horse-battery"


class Receiver:
    """A collector that answers `status`: the decoded requests and their headers."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    @property
    def resource(self) -> dict[str, str]:
        (sent,) = self.requests[-1].resource_metrics
        return {one.key: one.value.string_value for one in sent.resource.attributes}

    def samples(self) -> Samples:
        """Return the last samples, named as Prometheus names them."""
        found: Samples = {}
        (sent,) = self.requests[-1].resource_metrics
        for metric in sent.scope_metrics[0].metrics:
            kind = metric.WhichOneof("data")
            for point in getattr(metric, kind).data_points:
                labels = {one.key: one.value.string_value for one in point.attributes}
                for name, more, value in _values(metric.name, kind, point):
                    found[name, tuple(sorted({**labels, **more}.items()))] = value
        return found


def _values(name: str, kind: str, point: Any) -> Iterator[tuple[str, dict[str, str], float]]:
    if kind != "histogram":
        suffix = "_total" if kind == "sum" else ""
        yield f"{name}{suffix}", {}, getattr(point, point.WhichOneof("value"))
        return
    bounds = [*map(repr, point.explicit_bounds), "+Inf"]
    for bound, up_to in zip(bounds, accumulate(point.bucket_counts), strict=True):
        yield f"{name}_bucket", {"le": bound}, up_to
    yield f"{name}_count", {}, point.count
    yield f"{name}_sum", {}, point.sum


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = found.status if self.path == "/v1/metrics" else 404
            if status == 200:
                found.requests.append(ExportMetricsServiceRequest.FromString(body))
                found.headers.append({key.lower(): value for key, value in self.headers.items()})
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield found
        server.shutdown()
        thread.join()


async def test_a_collector_is_sent_what_prometheus_reads(receiver: Receiver) -> None:
    with watched() as (plan, monitor, address):
        monitor.page = private_page(2, len(plan.groups))
        monitor.page.counts["sent"][:] = 7
        monitor.page.totals["connected"][:] = 2
        monitor.state.tally.series["measure", "end_to_end"] = LATENCIES
        async with sent_metrics(receiver.url, plan, monitor, ABOUT):
            pass
        expected = scraped(address)
    expected = {key: value for key, value in expected.items() if key[0] != "loadgen_run_info"}
    expected = {key: value for key, value in expected.items() if not key[0].endswith("_created")}
    assert receiver.samples() == expected
    assert len(expected) > 20
    assert receiver.resource.items() >= {
        ("service.name", "loadgen"),
        ("service.instance.id", "r"),
        ("loadgen.case", "fanin"),
        ("loadgen.broker", "b"),
    }


async def test_figures_are_sent_every_few_seconds_and_at_the_end(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    with watched() as (plan, monitor, _):
        async with sent_metrics(f"{receiver.url}/v1/metrics/", plan, monitor, ABOUT):
            while len(receiver.requests) < 3:
                await asyncio.sleep(0.02)
            monitor.page = private_page(1, len(plan.groups))
            monitor.page.totals["connected"][:] = 9
    assert receiver.samples()["loadgen_connected", ()] == 9


async def test_a_collector_that_takes_nothing_is_told_before_the_run(receiver: Receiver) -> None:
    receiver.status = 401
    failed = refused("NO_COLLECTOR")
    with watched() as (plan, monitor, _), failed:
        async with sent_metrics(receiver.url, plan, monitor, ABOUT):
            raise AssertionError("the run began")


async def test_a_collector_that_goes_away_is_an_event_and_no_failure(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    noted: list[tuple[str, ...]] = []
    with watched() as (plan, monitor, _):
        monkeypatch.setattr(monitor.events, "write", lambda *event: noted.append(event))
        async with sent_metrics(receiver.url, plan, monitor, ABOUT):
            receiver.status = 400
            while not noted:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
    ((kind, error),) = noted
    assert kind == "otlp" and receiver.url in error
    assert capfd.readouterr().err == ""


@contextmanager
def without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "loadgen.run.otlp")
        for name in [one for one in sys.modules if one.startswith("opentelemetry")]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "opentelemetry", None)
        yield


def test_without_the_sdk_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_the_sdk(monkeypatch), refused("NO_OTLP"):
        import loadgen.run.otlp  # noqa: F401


@pytest.mark.parametrize("url", [f"http://me:{TOKEN}@host:4318", f"http://host/?token={TOKEN}"])
def test_a_secret_in_the_url_is_refused_and_not_shown(url: str) -> None:
    command = [sys.executable, "-m", "loadgen", "fanin", "--otlp", url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "OTEL_EXPORTER_OTLP_HEADERS" in ended.stderr and TOKEN not in ended.stderr
