"""Sends the live figures of a run to an OpenTelemetry collector: OTLP over HTTP, by its SDK.

Headers, certificates and compression are those of OTEL_EXPORTER_OTLP_*; headers may be a login and
are given to no process that we start.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from loadgen import __version__
from loadgen.errors import CannotRunError
from loadgen.plan.plan import Plan
from loadgen.run.live_metrics import BOUNDS_S, Distribution, Figure, figures
from loadgen.run.monitor import Monitor
from loadgen.run.secrets import otlp_headers
from loadgen.run.tasks import sampled
from loadgen.sentences import RUN_TEXT

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.util.re import parse_env_headers
except ImportError:
    raise CannotRunError(RUN_TEXT.NO_OTLP()) from None

_PATH = "/v1/metrics"
_TIMEOUT_S = 5.0  # for one delivery with its repetitions
_EVERY_MS = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_EVERY_S = 5.0


@asynccontextmanager
async def sent_metrics(
    url: str, plan: Plan, monitor: Monitor, about: dict[str, str]
) -> AsyncIterator[None]:
    """Send the run's figures every few seconds while the block runs, and once more at its end.

    `url` is the collector's, with or without the path of metrics. Raise CannotRunError if the
    collector refuses the first ones; a later refusal is an event of the run.
    """
    # Our errors say what it logs, and its log may have secrets.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    endpoint = url.rstrip("/").removesuffix(_PATH) + _PATH
    headers = parse_env_headers(otlp_headers(), liberal=True)
    exporter = OTLPMetricExporter(endpoint, headers=headers, timeout=_TIMEOUT_S)
    resource = Resource(
        {
            "service.name": "loadgen",
            "service.version": __version__,
            "service.instance.id": about["run"],
            **{f"loadgen.{key}": value for key, value in about.items()},
        }
    )
    began_ns = time.time_ns()

    async def send() -> None:
        """Send the present figures; raise CannotRunError if the collector does not take them."""
        now_ns = time.time_ns()
        known = (figure for figure in figures(plan, monitor) if figure.points)
        metrics = [_metric(figure, began_ns, now_ns) for figure in known]
        scope = sdk.ScopeMetrics(InstrumentationScope("loadgen", __version__), metrics, "")
        data = sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])
        result = await asyncio.to_thread(exporter.export, data)
        if result is not sdk.MetricExportResult.SUCCESS:
            raise CannotRunError(RUN_TEXT.NO_COLLECTOR(url=url))

    every_ms = os.environ.get(_EVERY_MS, "")
    every_s = max(int(every_ms) / 1000, 0.1) if every_ms.isdecimal() else _DEFAULT_EVERY_S
    try:
        async with sampled(send, partial(monitor.events.write, "otlp"), every_s):
            yield
    finally:
        exporter.shutdown()


def _metric(figure: Figure, began_ns: int, now_ns: int) -> Any:
    """Return the figure as the SDK has it; sums and histograms begin with the run."""
    times = {"start_time_unix_nano": began_ns, "time_unix_nano": now_ns}
    points = []
    for values, value in figure.points.items():
        about = {"attributes": dict(zip(figure.labels, values, strict=True)), **times}
        if isinstance(value, Distribution):
            counts = [after - before for before, after in pairwise((0, *value.up_to, value.count))]
            about |= {"count": value.count, "sum": value.sum_s, "min": value.min_s}
            about |= {"max": value.max_s, "bucket_counts": counts, "explicit_bounds": BOUNDS_S}
            points.append(sdk.HistogramDataPoint(**about))
        else:
            points.append(sdk.NumberDataPoint(**about, value=value))
    since, unit = sdk.AggregationTemporality.CUMULATIVE, "1"
    data: Any = sdk.Gauge(points)
    if figure.kind == "counter":
        data = sdk.Sum(points, since, is_monotonic=True)
    elif figure.kind == "histogram":
        data, unit = sdk.Histogram(points, since), "s"
    return sdk.Metric(figure.name, figure.meaning, unit, data)
