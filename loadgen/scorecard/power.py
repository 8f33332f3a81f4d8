"""What a power distribution unit says about a run: samples from its logs, mean watts per outlet.

A log is text, one outlet, one sample a line: date mm/dd/yyyy, time hh:mm:ss, voltage (V), current
(A), power factor, watts (W), cumulative kilowatt-hours, separated by commas (tabs and semicolons
are understood too), with or without header lines above. That is how the PDUs of the MessageSight
v1.0 report print it (section PERSISTENT.MPW).

A sample holds until the next one. Where the next is much later than usual, the meter said nothing
meanwhile: a sample holds at most `HOLD_LIMIT` times the usual spacing of its log, the rest counts
as not covered, and the last sample holds for the usual spacing.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError

__all__ = [
    "HOLD_LIMIT",
    "LEAST_COVERAGE",
    "OutletPower",
    "PowerSample",
    "distinct_logs",
    "host_timezone",
    "outlet_power",
    "parse_power_log",
    "read_power_log",
    "require_coverage",
    "time_zone",
]

HOLD_LIMIT = 2.5
"""How many times the usual spacing a sample is believed; one lost sample is bridged, two not."""

LEAST_COVERAGE = 0.9
"""Share of the measurement window that the samples of each outlet must cover."""

LONGEST_LOG_BYTES = 256 << 20
_LONGEST_LINE = 1000
_LARGEST_WATTS = 1e6
_HEADER_LINES = 20
_COLUMNS = ("date", "time", "voltage", "current", "power factor", "watts", "cumulative kWh")
_FIRST_COLUMN = re.compile(r'^\s*["\']?\d')

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One line of a log; `wall_ns` is UTC, nanoseconds since the epoch."""

    wall_ns: int
    watts: float
    kilowatt_hours: float


@dataclass(frozen=True, slots=True)
class OutletPower:
    """One outlet over one measurement window.

    `watts` is the time-weighted mean over the covered part, `samples` how many of them hold in
    the window, `coverage` the covered share of it, 0 to 1. `curve` is the covered course: seconds
    since the window's start and watts, a step up to the next point.
    """

    log: str
    watts: float
    samples: int
    coverage: float
    curve: tuple[tuple[float, float], ...] = ()


def time_zone(name: str | None) -> ZoneInfo:
    """The zone with this IANA name; None is this host's. Raises PowerLogError."""
    key = host_timezone() if name is None else name
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PowerLogError(
            f"pdu_timezone {key[:80]!r} is not a time zone; give one such as Europe/Berlin or UTC"
        ) from None


def host_timezone() -> str:
    """IANA name of this host's time zone; raises PowerLogError when the host does not tell."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named and not named.startswith("/"):
        return named
    local = Path(named or "/etc/localtime")
    if not local.exists():
        return "UTC"
    _, found, key = str(local.resolve()).partition("/zoneinfo/")
    if found:
        return key
    try:
        return Path("/etc/timezone").read_text().strip()
    except OSError:
        raise PowerLogError(
            "this host does not tell the name of its time zone; give --pdu-timezone"
        ) from None


def distinct_logs(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The paths; raises PowerLogError where one comes twice and would be added twice."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise PowerLogError(f"power log {path} is given twice; name each outlet once")
        seen.add(path.resolve())
    return tuple(paths)


def read_power_log(path: Path, zone: ZoneInfo) -> list[PowerSample]:
    """The samples of a log file, in its order; raises PowerLogError."""
    try:
        if path.stat().st_size > LONGEST_LOG_BYTES:
            raise PowerLogError(
                f"power log {path} is larger than {LONGEST_LOG_BYTES >> 20} MiB; cut it to the run"
            )
        text = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(f"power log {path} cannot be read: {reason}") from None
    return parse_power_log(text, str(path), zone)


def parse_power_log(text: bytes, name: str, zone: ZoneInfo) -> list[PowerSample]:
    """The samples of a log, in its order.

    Raises PowerLogError, naming log and line, at the first line that is no sample, at a time that
    goes back, and at one that the zone's clock change makes ambiguous or skips; and without a
    line for a log with no sample, or with samples on both sides of a clock change.
    """
    samples: list[PowerSample] = []
    offsets = set()
    previous: datetime | None = None
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, raw in enumerate(lines, start=1):
        line = raw[: _LONGEST_LINE + 1].decode("utf-8", errors="replace").strip("\r\n\0 ")
        if not line:
            continue
        if not samples and number <= _HEADER_LINES and not _FIRST_COLUMN.match(line):
            continue
        try:
            local, watts, kilowatt_hours = _sample(line)
        except ValueError as error:
            raise PowerLogError(f"power log {name}, line {number}: {error}") from None
        if previous is not None and local < previous:
            raise PowerLogError(
                f"power log {name}, line {number}: time goes back from {previous} to {local}"
            )
        previous = local
        here = local.replace(tzinfo=zone)
        offsets.add(here.utcoffset())
        if len(offsets) > 1 or here.utcoffset() != here.replace(fold=1).utcoffset():
            raise PowerLogError(
                f"power log {name}, line {number}: the clock of {zone.key} changes near {local}; "
                "cut the log to one side of the change, or log in UTC"
            )
        samples.append(PowerSample(_wall_ns(here), watts, kilowatt_hours))
    if not samples:
        raise PowerLogError(
            f"power log {name} has no sample; expected lines of {', '.join(_COLUMNS)}"
        )
    return samples


def outlet_power(
    log: str, wall_ns: Sequence[int], watts: Sequence[float], start_ns: int, end_ns: int
) -> OutletPower:
    """Time-weighted mean of one outlet's samples over a window.

    `wall_ns` ascends and has the length of `watts`; `start_ns` and `end_ns` are on the same
    clock. How long a sample holds is settled before the window cuts it, so that the sample from
    before the window counts for the window's beginning. With nothing covered, watts is 0.
    """
    at = np.asarray(wall_ns, np.int64)
    level = np.asarray(watts, np.float64)
    until = at + _hold_ns(at)
    since_ns = np.clip(at, start_ns, end_ns)
    covered_ns: Int64Array = np.maximum(np.clip(until, start_ns, end_ns) - since_ns, 0)
    total_ns = int(covered_ns.sum())
    used = covered_ns > 0
    curve = [
        (float(t), float(w))
        for t, w in zip((since_ns[used] - start_ns) / 1e9, level[used], strict=True)
    ]
    if curve:
        curve.append(((int(until[used].max()) - start_ns) / 1e9, curve[-1][1]))
        curve[-1] = (min(curve[-1][0], (end_ns - start_ns) / 1e9), curve[-1][1])
    return OutletPower(
        log=log,
        watts=float((level * covered_ns).sum() / total_ns) if total_ns else 0.0,
        samples=int(used.sum()),
        coverage=total_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(curve),
    )


def require_coverage(outlets: Iterable[OutletPower], run: str) -> None:
    """Raises PowerLogError for the first outlet whose samples leave too much of the run open."""
    for outlet in outlets:
        if outlet.coverage < LEAST_COVERAGE:
            raise PowerLogError(
                f"power log {outlet.log} covers {outlet.coverage:.0%} of the measurement window "
                f"of run {run}; at least {LEAST_COVERAGE:.0%} is needed (is pdu_timezone right?)"
            )


def _hold_ns(at: Int64Array) -> Int64Array:
    """How long each sample holds, without regard to any window."""
    spacing = np.diff(at)
    usual_ns = int(np.median(spacing[spacing > 0])) if np.any(spacing > 0) else 0
    hold: Int64Array = np.append(np.minimum(spacing, int(HOLD_LIMIT * usual_ns)), usual_ns)
    return hold


def _sample(line: str) -> tuple[datetime, float, float]:
    """Local time, watts and kilowatt-hours of a line; ValueError says what is wrong with it."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"longer than {_LONGEST_LINE} characters")
    separator = next((s for s in ",\t;" if s in line), None)
    fields = [field.strip(" \"'") for field in line.split(separator)]
    if len(fields) != len(_COLUMNS):
        raise ValueError(f"{len(fields)} columns instead of {len(_COLUMNS)}: {line[:80]!r}")
    try:
        local = datetime.strptime(f"{fields[0]} {fields[1]}", "%m/%d/%Y %H:%M:%S")
    except ValueError:
        raise ValueError(
            f"{f'{fields[0]} {fields[1]}'[:40]!r} is not mm/dd/yyyy hh:mm:ss"
        ) from None
    numbers = [_number(*named) for named in zip(_COLUMNS[2:], fields[2:], strict=True)]
    watts, kilowatt_hours = numbers[3], numbers[4]
    if watts > _LARGEST_WATTS:
        raise ValueError(f"{watts:g} watts at one outlet")
    return local, watts, kilowatt_hours


def _number(column: str, field: str) -> float:
    """A finite number that is not negative."""
    try:
        value = float("" if "_" in field else field)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{column} {field[:40]!r} is not a number of 0 or more")
    return value


def _wall_ns(here: datetime) -> int:
    return int(here.timestamp()) * 1_000_000_000
