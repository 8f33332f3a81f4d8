"""The curves of a run that pages draw, from its record and views; see `score_card.Curves`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadgen.errors import RunDirectoryError
from loadgen.metrics.histogram import highest_values, percentiles
from loadgen.metrics.interval import CONNECTED_AT, PHASES
from loadgen.metrics.reducer import reduce_table
from loadgen.report.record import RunRecord
from loadgen.report.score_card import Curve, Curves
from loadgen.report.views import TIMED, Views
from loadgen.sentences import REPORT_TEXT

_CURVE_STEPS_A_DECADE = 24

_CONNECTS_APART_NS, _CONNECT_POINTS = 1_000_000, 2_000
"""Least distance of the points on the connection curve, and the most points."""

_SHORTEST_COVERED_S = 0.1  # shortest part of a second for which a rate is computed
_NEAR_S = 0.01  # longest part of a second outside the window for which its row is still used
_COUNTS = ("connects", "connect_failures", "disconnects", "connected")


def curves_of(
    record: RunRecord,
    views: Views,
    latency: Mapping[str, Mapping[str, Any]],
    window: tuple[int, int],
) -> Curves:
    """Return the curves of a run over a measurement window on the monotonic clock.

    `latency` has the merged row of each series. Raise RunDirectoryError for malformed samples of
    the backlog.
    """
    start_ns, end_ns = window
    windows = [(phase, *record.windows[phase]) for phase in PHASES if phase in record.windows]
    samples: Iterable[Sequence[Any]] = record.observed.get("backlog_samples") or ()
    try:
        backlog = tuple(((int(t) - start_ns) / 1e9, int(o), int(w)) for t, o, w in samples)
    except (TypeError, ValueError) as error:
        where = f"run {record.id[:80]}: run.json"
        reason = f"backlog_samples: {error}"
        raise RunDirectoryError(REPORT_TEXT.DAMAGED(where=where, reason=reason)) from None
    processes = views.processes
    workers = zip(processes["host"].to_pylist(), processes["worker"].to_pylist(), strict=True)
    span_ns = np.maximum(processes["span_ns"].to_numpy(), 1)
    return Curves(
        wall_start_ns=record.wall_ns(start_ns),
        histograms=latency,
        # A phase that was cut off ends with the window.
        phases=tuple(
            (phase, (begin - start_ns) / 1e9, ((end or end_ns) - start_ns) / 1e9)
            for phase, begin, end in windows
        ),
        distribution=tuple(_distribution(*series) for series in latency.items()),
        connected=_connected(views.totals),
        course=_course(record, views.course, start_ns, end_ns),
        backlog=backlog,
        processes=pa.table(
            {
                "worker": [f"{host}/{worker}" for host, worker in workers],
                "at_s": (processes["time_ns"].to_numpy() - start_ns) / 1e9,
                "used": processes["cpu_ns"].to_numpy() / span_ns,
                "waited": processes["wait_ns"].to_numpy() / span_ns,
                "resident_bytes": processes["resident_bytes"],
            }
        ),
    )


def rates_of(
    record: RunRecord, due: Mapping[str, float], course: pa.Table, seconds: float
) -> dict[str, float]:
    """Return the requested rate, and the rates into and out of the broker during the window.

    All are messages a second. In a VALID run the messages that were `due` in the window passed in
    it, within the bounds of the verdict. Rates of other runs are those of their full seconds.
    """
    rates = {"ingress": due["sent"], "egress": due["received"]}
    if not record.valid:
        of = {name: np.array(column, float) for name, column in course.to_pydict().items()}
        at_s, span_s = of["at_s"], of["span_s"]
        inside_s = np.minimum(at_s + span_s, seconds) - np.maximum(at_s, 0.0)
        inside_s = np.where(np.isnan(of["sent"]), 0.0, np.maximum(inside_s, 0.0))
        full = inside_s > span_s - _NEAR_S
        if span_s[full].sum() > 0.5 * seconds:  # else these few are the burst after a stall
            inside_s = inside_s * full
        counted_s = inside_s / np.maximum(span_s, 1e-9) * of["covered_s"]
        for rate, column in (("ingress", "sent"), ("egress", "received")) if inside_s.any() else ():
            rates[rate] = float(np.nansum(of[column] * counted_s) / inside_s.sum())
    if record.scenario.get("steps") is None and all(group.rate for group in record.publishing):
        rates["asked"] = sum(group.rate or 0.0 for group in record.publishing)
    return rates


def _distribution(series: str, row: Mapping[str, Any]) -> Curve:
    """Return percentiles evenly spaced on the axis 1/(1-p), as far out as the count allows."""
    count = int(row["count"])
    ps = [0.0]
    while (odds := 10 ** (len(ps) / _CURVE_STEPS_A_DECADE)) <= count:
        ps.append(100.0 * (1.0 - 1.0 / odds))
    values = percentiles(row["bucket_count"], ps, row["bucket"])
    highest_us = row["max_ns"] / 1000
    points = [(p, min(v / 1000, highest_us)) for p, v in zip(ps, values, strict=True)]
    points[0] = (0.0, row["min_ns"] / 1000)
    return Curve(series, count, (*points, (100.0, highest_us)))


def _connected(totals: pa.Table) -> tuple[tuple[float, int], ...]:
    """Return (seconds since the connect phase began, devices connected until then)."""
    moments = totals.filter(pc.equal(totals["series"], CONNECTED_AT))
    row = next(iter(reduce_table(moments, ("series",)).to_pylist()), {"count": 0})
    if not row["count"]:
        return ()
    at_ns = np.minimum(highest_values(row["bucket"]), row["max_ns"])
    counts = np.cumsum(row["bucket_count"])
    apart_ns = max(_CONNECTS_APART_NS, row["max_ns"] // _CONNECT_POINTS)
    last = np.append(np.diff(at_ns // apart_ns) > 0, True)
    points = zip((at_ns[last] / 1e9).tolist(), counts[last].tolist(), strict=True)
    return ((0.0, 0), *points)


def _course(record: RunRecord, course: pa.Table, start_ns: int, end_ns: int) -> pa.Table:
    """Return the seconds of a run, all groups together; latencies are those of timed groups."""
    counters = course.filter(pc.equal(course["series"], ""))
    added = ("sent_per_s", "received_per_s", *_COUNTS)
    seconds = counters.group_by("second").aggregate(
        [("time_ns", "min"), ("span_ns", "max"), *((name, "sum") for name in added)]
    )
    seconds = seconds.sort_by("time_ns_min")
    timed = pc.and_(pc.equal(course["group"], TIMED), pc.equal(course["series"], "end_to_end"))
    latency = {row["second"]: row for row in course.filter(timed).to_pylist() if row["count"]}
    timings = [latency.get(second) for second in seconds["second"].to_pylist()]
    at_s = (seconds["time_ns_min"].to_numpy() - start_ns) / 1e9
    span_s = seconds["span_ns_max"].to_numpy() / 1e9
    due_s = (record.windows.get("warmup", (start_ns,))[0] - start_ns) / 1e9
    # The rate over the full first or last second would show a dip that did not happen.
    covered_at_s = np.maximum(at_s, due_s)
    covered_s = np.minimum(at_s + span_s, (end_ns - start_ns) / 1e9) - covered_at_s
    partly = (covered_s > 0) & (covered_s < span_s)
    scale = np.divide(span_s, covered_s, out=np.ones_like(span_s), where=partly)
    scale[partly & (covered_s < _SHORTEST_COVERED_S)] = np.nan
    columns = {
        "at_s": at_s,
        "span_s": span_s,
        "covered_at_s": np.where(partly, covered_at_s, at_s),
        "covered_s": np.where(partly, covered_s, span_s),
        "sent": pa.array(seconds["sent_per_s_sum"].to_numpy() * scale, from_pandas=True),
        "received": pa.array(seconds["received_per_s_sum"].to_numpy() * scale, from_pandas=True),
        **{name: seconds[f"{name}_sum"] for name in _COUNTS},
        **{
            f"{level}_us": [
                # The highest value of a bucket can be above the greatest in it.
                row and min(row[f"{level}_ns"], row["max_ns"]) / 1000
                for row in timings
            ]
            for level in ("p50", "p99", "max")
        },
    }
    return pa.table(columns)
