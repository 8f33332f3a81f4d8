"""A run next to the limits of the harness on its host, if these were calibrated."""

from collections.abc import Mapping

from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.reading import figure, part
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.record import RunRecord
from loadgen.report.render.text import name


def ceiling_of(
    record: RunRecord, rates: Mapping[str, float], latency: Mapping[str, LatencySummary]
) -> tuple[DataTable, ...]:
    """Return a table of the run and of `environment.calibration`, if the host was calibrated.

    `rates` are messages a second of the whole run, `latency` its series in µs.
    """
    limits = part(record.environment, "calibration")
    if not limits:
        return ()
    workers = max(record.workers, 1)
    rows: list[tuple[TableCell, ...]] = []
    for done, direction in (("sent", "send"), ("received", "receive")):
        if rates.get(done):
            ceilings = (
                figure(part(limits, direction, kind), "per_s") for kind in ("single", "batched")
            )
            what = f"messages {done} a second, a worker"
            rows.append((what, rates[done] / workers, *ceilings))
    if record.connected and record.connect_seconds:
        each = record.connected / record.connect_seconds
        rows.append(("connects a second", each, figure(part(limits, "connect"), "per_s"), None))
    for series, where in (
        ("end_to_end", ("latency", "end_to_end_us")),
        ("transit", ("latency", "transit_us")),
        ("send_delay", ("send_delay", "single_us")),
    ):
        ours = latency.get(series)
        if ours is not None:
            harness = part(limits, *where)
            rows += [
                (f"{series} 50P, µs", ours.p50, figure(harness, "p50"), None),
                (f"{series} 99P, µs", ours.p99, figure(harness, "p99"), None),
            ]
    load = figure(limits, "load_average_before")
    busy = "" if load is None else f" (load average before it {load:g})"
    note = (
        f"loadgen calibrate of {name(limits.get('made'))}{busy}, against instruments of our own "
        "on this host: what one worker with a core to itself sends and receives, each message by "
        "its own write or in batches; connects; the latency of one pair through the reflector."
    )
    header = ("", "this run", "harness", "harness, in batches")
    return (
        (DataTable("Next to the limits of the harness", note, header, tuple(rows)),) if rows else ()
    )
