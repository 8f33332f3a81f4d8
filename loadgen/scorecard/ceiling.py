"""How far a run is from what the harness itself can do on its host, where that was calibrated."""

from collections.abc import Mapping
from typing import Any, Protocol

from loadgen.scorecard.record import RunRecord
from loadgen.scorecard.sections import Cell, Section
from loadgen.scorecard.text import name


class _Percentiles(Protocol):
    @property
    def p50(self) -> float | None: ...
    @property
    def p99(self) -> float | None: ...


def ceiling_of(
    record: RunRecord, rates: Mapping[str, float], latency: Mapping[str, _Percentiles]
) -> tuple[Section, ...]:
    """The section that sets a run beside `environment.calibration`; none without a calibration.

    `rates` are messages a second of the whole run, `latency` its series in µs.
    """
    found = record.environment.get("calibration")
    if not isinstance(found, Mapping):
        return ()
    workers = max(record.workers, 1)
    rows: list[tuple[Cell, ...]] = []
    for told, direction in (("sent", "send"), ("received", "receive")):
        if rates.get(told):
            singly, batched = (
                _number(found, direction, kind, "per_s") for kind in ("single", "batched")
            )
            rows.append(
                (f"messages {told} a second, a worker", rates[told] / workers, singly, batched)
            )
    if record.connected and record.connect_seconds:
        each = record.connected / record.connect_seconds
        rows.append(("connects a second", each, _number(found, "connect", "per_s"), None))
    for series, where in (
        ("end_to_end", ("latency", "end_to_end_us")),
        ("transit", ("latency", "transit_us")),
        ("send_delay", ("send_delay", "single_us")),
    ):
        ours = latency.get(series)
        if ours is not None:
            rows += [
                (f"{series} 50P, µs", ours.p50, _number(found, *where, "p50"), None),
                (f"{series} 99P, µs", ours.p99, _number(found, *where, "p99"), None),
            ]
    load = _number(found, "load_average_before")
    busy = "" if load is None else f" (load average before it {load:g})"
    note = (
        f"loadgen calibrate of {name(found.get('made'))}{busy}, against instruments of our own "
        "on this host: what one worker with a core to itself sends and receives, each message by "
        "its own write or in batches; connects; the latency of one pair through the reflector."
    )
    header = ("", "this run", "harness", "harness, in batches")
    return (Section("Beside the harness's own ceiling", note, header, tuple(rows)),) if rows else ()


def _number(found: Mapping[str, Any], *path: str) -> float | None:
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
