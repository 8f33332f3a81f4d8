"""What pages draw of a run beside the numbers, from its record and views; see `model.Curves`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.errors import RunDirectoryError
from loadgen.metrics.histogram import percentiles
from loadgen.metrics.interval import COUNTERS, PHASES
from loadgen.metrics.reducer import reduce_table
from loadgen.scorecard.model import Curve, Curves, GroupTotals, Moment, ProcessMoment
from loadgen.scorecard.record import RunRecord
from loadgen.scorecard.views import TIMED, Views

_CURVE_STEPS_A_DECADE = 24

_SHORTEST_COVERED_S = 0.1
"""A shorter part of a second says nothing about a rate."""

_COUNTS = ("connects", "connect_failures", "disconnects", "connected")


def curves_of(
    record: RunRecord,
    views: Views,
    in_window: pa.Table,
    latency: Mapping[str, Mapping[str, Any]],
    window: tuple[int, int],
) -> Curves:
    """The curves of a run over a measurement window on the monotonic clock.

    `in_window` are the totals of counters in it, `latency` the merged row of each series.
    """
    start_ns, end_ns = window
    return Curves(
        wall_start_ns=record.wall_ns(start_ns),
        histograms=latency,
        phases=_phases(record, start_ns, end_ns),
        distribution=tuple(_distribution(*series) for series in latency.items()),
        course=_course(record, views.course, start_ns, end_ns),
        backlog=_backlog(record, start_ns),
        processes=_processes(views.processes, start_ns),
        groups=_groups(record, in_window),
    )


def _distribution(series: str, row: Mapping[str, Any]) -> Curve:
    """Percentiles evenly spaced on the axis 1/(1-p), as far out as the count allows."""
    count = int(row["count"])
    ps = [0.0]
    while (odds := 10 ** (len(ps) / _CURVE_STEPS_A_DECADE)) <= count:
        ps.append(100.0 * (1.0 - 1.0 / odds))
    values = percentiles(row["bucket_count"], ps, row["bucket"])
    highest_us = row["max_ns"] / 1000
    points = [(p, min(v / 1000, highest_us)) for p, v in zip(ps, values, strict=True)]
    points[0] = (0.0, row["min_ns"] / 1000)
    return Curve(series, count, (*points, (100.0, highest_us)))


def _phases(record: RunRecord, start_ns: int, end_ns: int) -> tuple[tuple[str, float, float], ...]:
    """Phase, its start and its end; one that was cut off ends with the window."""
    known = [(phase, *record.windows[phase]) for phase in PHASES if phase in record.windows]
    return tuple(
        (phase, (begin - start_ns) / 1e9, ((end or end_ns) - start_ns) / 1e9)
        for phase, begin, end in known
    )


def _course(record: RunRecord, course: pa.Table, start_ns: int, end_ns: int) -> tuple[Moment, ...]:
    """The seconds of a run, all groups together; latencies are those of timed groups."""
    due_s = (record.windows.get("warmup", (start_ns,))[0] - start_ns) / 1e9
    counters = course.filter(pc.equal(course["series"], ""))
    added = ("sent_per_s", "received_per_s", *_COUNTS)
    seconds = counters.group_by("second").aggregate(
        [("time_ns", "min"), ("span_ns", "max"), *((name, "sum") for name in added)]
    )
    timed = pc.and_(pc.equal(course["group"], TIMED), pc.equal(course["series"], "end_to_end"))
    latency = {row["second"]: row for row in course.filter(timed).to_pylist() if row["count"]}
    return tuple(
        _moment(row, latency.get(row["second"]), start_ns, (due_s, (end_ns - start_ns) / 1e9))
        for row in seconds.sort_by("time_ns_min").to_pylist()
    )


def _moment(
    row: Mapping[str, Any],
    latency: Mapping[str, Any] | None,
    start_ns: int,
    due: tuple[float, float],
) -> Moment:
    """One second; the first and the last of a schedule with the rate of their part that was due.

    `due` is from when until when messages were. Drawn as whole seconds they would dip where
    nothing dipped.
    """
    at_s, span_s = (row["time_ns_min"] - start_ns) / 1e9, row["span_ns_max"] / 1e9
    covered_at_s = max(at_s, due[0])
    covered_s = min(at_s + span_s, due[1]) - covered_at_s
    scale: float | None = 1.0
    if not 0 < covered_s < span_s:
        covered_at_s, covered_s = at_s, span_s
    else:
        scale = None if covered_s < _SHORTEST_COVERED_S else span_s / covered_s
    us: dict[str, Any] = {
        f"{level}_us": latency[f"{level}_ns"] / 1000 if latency else None
        for level in ("p50", "p99", "max")
    }
    return Moment(
        at_s=at_s,
        span_s=span_s,
        covered_at_s=covered_at_s,
        covered_s=covered_s,
        sent=None if scale is None else row["sent_per_s_sum"] * scale,
        received=None if scale is None else row["received_per_s_sum"] * scale,
        **{name: row[f"{name}_sum"] for name in _COUNTS},
        **us,
    )


def _backlog(record: RunRecord, start_ns: int) -> tuple[tuple[float, int, int], ...]:
    """Samples as run.json has them; raises RunDirectoryError for what is not a sample."""
    samples: Iterable[Sequence[Any]] = record.observed.get("backlog_samples") or ()
    try:
        return tuple(((int(t) - start_ns) / 1e9, int(o), int(w)) for t, o, w in samples)
    except (TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"run {record.id[:80]}: run.json is damaged: backlog_samples: {error}"
        ) from None


def _processes(processes: pa.Table, start_ns: int) -> tuple[ProcessMoment, ...]:
    return tuple(
        ProcessMoment(
            worker=f"{row['host']}/{row['worker']}",
            at_s=(row["time_ns"] - start_ns) / 1e9,
            used=row["cpu_ns"] / max(row["span_ns"], 1),
            waited=row["wait_ns"] / max(row["span_ns"], 1),
            resident_bytes=row["resident_bytes"],
        )
        for row in processes.to_pylist()
    )


def _groups(record: RunRecord, in_window: pa.Table) -> tuple[GroupTotals, ...]:
    """The groups of the plan, then others that rows have."""
    found = {row["group"]: row for row in reduce_table(in_window, ("group",)).to_pylist()}
    devices = {group.name: group.count for group in record.groups}
    return tuple(
        GroupTotals(
            name=name,
            devices=devices.get(name, 0),
            counters={counter: found.get(name, {}).get(counter, 0) for counter in COUNTERS},
        )
        for name in (*devices, *sorted(found.keys() - devices.keys()))
    )
