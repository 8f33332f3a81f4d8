"""What power distribution units say about a run: their logs in, mean watts of every outlet out.

A log is text with a line a sample. Which format it has, its header tells (`FORMATS`):

- IBM DPI, as the MessageSight v1.0 report prints it (section PERSISTENT.MPW): one outlet; date
  mm/dd/yyyy, time hh:mm:ss, voltage (V), current (A), power factor, watts, cumulative kWh. Lines
  of seven such columns are known without a header too.
- ServerView, as Fujitsu's ServerView Resource Coordinator VE exports it (Operation Guide, 13.3):
  "Time", then a column "name(power)" an outlet, in watts; "-" where a sample is missing.
- named columns: any table whose columns `--pdu-columns` names, or whose header uses the plain
  names time (or date and time), watts, kwh and outlet.

Columns are separated by commas, tabs or semicolons. A sample holds until the next one of its
outlet. Where the next is much later than usual, the meter said nothing meanwhile: a sample holds
at most `HOLD_LIMIT` times the usual spacing of its outlet, the rest counts as not covered, and the
last sample holds for the usual spacing.
"""

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from loadgen.control.redaction import printable
from loadgen.errors import PowerLogError
from loadgen.workload.units import parse_seconds

__all__ = [
    "FORMATS",
    "HOLD_LIMIT",
    "LEAST_COVERAGE",
    "EnergyCheck",
    "LogSettings",
    "OutletPower",
    "PduLog",
    "PowerSample",
    "distinct_logs",
    "host_timezone",
    "log_settings",
    "outlet_power",
    "outlets_over",
    "parse_columns",
    "parse_offset",
    "parse_power_log",
    "pdu_log",
    "read_log",
    "read_power_log",
    "require_coverage",
    "require_readable",
    "time_zone",
]

HOLD_LIMIT = 2.5
"""How many times the usual spacing a sample is believed; one lost sample is bridged, two not."""

LEAST_COVERAGE = 0.9
"""Share of the measurement window that the samples of each outlet must cover."""

LARGEST_OFFSET_S = 366 * 86_400.0
LONGEST_LOG_BYTES = 256 << 20
_LONGEST_LINE = 1000
_LARGEST_WATTS = 1e6
_HEADER_LINES = 20
_MOST_OUTLETS = 1000
_DPI_COLUMNS = ("date", "time", "voltage", "current", "power factor", "watts", "cumulative kWh")
_FIRST_COLUMN = re.compile(r'^\s*["\']?\d')
_LATEST_S = 253_402_300_799.0  # the year 9999
_MILLISECONDS_ABOVE = 1e11
"""A time since the epoch above this is in milliseconds: in seconds it would be the year 5138."""

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
Columns = Mapping[str, str]
"""What is to be read (`_KEYS`) to the name of its column in the header."""


@dataclass(frozen=True, slots=True)
class PduLog:
    """A log as it is given: `[NODE=]FILE[#OUTLET,...]`.

    `node` is the machine that the log's outlets feed, "" where none is named; `outlets` the ones
    to take, empty for all.
    """

    path: Path
    node: str = ""
    outlets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One sample; `wall_ns` is UTC by the PDU's clock, nanoseconds since the epoch.

    `kilowatt_hours` is the outlet's counter, None where the log has none.
    """

    wall_ns: int
    watts: float
    kilowatt_hours: float | None
    outlet: str = ""


@dataclass(frozen=True, slots=True)
class EnergyCheck:
    """An outlet's energy over the window by its watts and by its counter of kilowatt-hours.

    The counter shows steps of `resolution_kwh`, so a difference of one step says nothing, and
    5 % are granted on top. "too coarse": the step is so large that agreeing means little.
    """

    watts_kwh: float
    counter_kwh: float
    resolution_kwh: float
    result: Literal["agrees", "disagrees", "too coarse"]


@dataclass(frozen=True, slots=True)
class OutletPower:
    """One outlet over one measurement window.

    `watts` is the time-weighted mean over the covered part, `samples` how many of them hold in
    the window, `coverage` the covered share of it, 0 to 1. `curve` is the covered course: from
    and until (seconds since the window's start) and watts.
    """

    log: str
    watts: float
    samples: int
    coverage: float
    curve: tuple[tuple[float, float, float], ...] = ()
    outlet: str = ""
    node: str = ""
    energy: EnergyCheck | None = None

    @property
    def name(self) -> str:
        """Log and outlet, as a message names them."""
        return f"{self.log}#{self.outlet}" if self.outlet else self.log


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The logs of a run and how they are to be read.

    `offset_ns` is how much the PDU's clock is ahead of the host's.
    """

    logs: tuple[PduLog, ...]
    zone: ZoneInfo
    columns: Columns = field(default_factory=dict)
    offset_ns: int = 0


def log_settings(
    logs: Sequence["str | Path | PduLog"],
    timezone: str | None = None,
    columns: str | None = None,
    offset: str | None = None,
) -> LogSettings | None:
    """Settings from what the options say, None without a log; raises PowerLogError."""
    offset_ns = parse_offset(offset) if offset else 0
    named = parse_columns(columns) if columns else {}
    distinct = distinct_logs(logs)
    if not distinct:
        return None
    return LogSettings(distinct, time_zone(timezone), named, offset_ns)


def parse_offset(text: str) -> int:
    """Nanoseconds of a time with a sign, such as 1.5s, -2s or +500ms; raises PowerLogError."""
    sign = -1 if text.strip().startswith("-") else 1
    try:
        seconds = parse_seconds(text.strip().removeprefix("-").removeprefix("+"))
    except ValueError as error:
        raise PowerLogError(f"pdu_offset: {error}") from None
    if seconds > LARGEST_OFFSET_S:
        raise PowerLogError(f"pdu_offset: {seconds:g} s is more than a year")
    return sign * round(seconds * 1e9)


def pdu_log(given: "str | Path | PduLog") -> PduLog:
    """`[NODE=]FILE[#OUTLET,...]`; a text that is the name of a file as a whole is that file."""
    if isinstance(given, PduLog):
        return given
    if isinstance(given, Path) or Path(given).exists():
        return PduLog(Path(given))
    node, equals, file = given.partition("=")
    if not equals:
        node, file = "", given
    if Path(file).exists():
        return PduLog(Path(file), node)
    path, sharp, outlets = file.rpartition("#")
    if not sharp:
        return PduLog(Path(file), node)
    chosen = tuple(outlet.strip() for outlet in outlets.split(","))
    if not all(chosen):
        raise PowerLogError(f"power log {printable(given, 200)}: an outlet after # has no name")
    return PduLog(Path(path), node, chosen)


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


def distinct_logs(given: Sequence["str | Path | PduLog"]) -> tuple[PduLog, ...]:
    """The logs; raises PowerLogError where an outlet comes twice and would be added twice."""
    logs = tuple(pdu_log(one) for one in given)
    seen: dict[Path, list[PduLog]] = {}
    for log in logs:
        before = seen.setdefault(log.path.resolve(), [])
        for other in before:
            if not log.outlets or not other.outlets or set(log.outlets) & set(other.outlets):
                raise PowerLogError(f"power log {log.path} is given twice; name each outlet once")
        before.append(log)
    return logs


# --- columns --------------------------------------------------------------------------------

_KEYS = ("time", "date", "watts", "kwh", "outlet", "format")

_PLAIN_NAMES: Mapping[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "datetime", "date_time"),
    "date": ("date",),
    "watts": ("watts", "power_w", "active_power_w", "w"),
    "kwh": ("kwh", "energy_kwh", "active_energy_kwh"),
    "outlet": ("outlet", "receptacle", "socket"),
}
"""Headers that are understood without --pdu-columns; compared in `_plain` form."""


def parse_columns(text: str) -> Columns:
    """`time=NAME,watts=NAME[,date=NAME][,kwh=NAME][,outlet=NAME][,format=STRPTIME]`.

    Raises PowerLogError.
    """
    columns: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = part.partition("=")
        key = key.strip()
        if not equals or not name.strip() or key not in _KEYS:
            raise PowerLogError(
                f"pdu_columns: {printable(part, 80)!r} is none of "
                f"{', '.join(f'{k}=NAME' for k in _KEYS)}"
            )
        if key in columns:
            raise PowerLogError(f"pdu_columns: {key} is given twice")
        columns[key] = name.strip()
    if "time" not in columns or "watts" not in columns:
        raise PowerLogError("pdu_columns: needs at least time=NAME,watts=NAME")
    return columns


# --- formats --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outlet:
    """Where an outlet's numbers stand in a line."""

    name: str
    watts: int
    kwh: int | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How to read the lines of a log. Columns are numbered from 0.

    `time` are one or two columns that make up the time, `time_format` how it is written ("" for
    ISO 8601 or seconds since the epoch), `time_shape` the same for people. `width` is how many
    columns a line must have, `checked` columns that must be numbers too. `outlet_column` names
    the outlet of a line. Lines whose watts are empty or "-" are no sample where `gaps`.
    """

    time: tuple[int, ...]
    time_format: str
    time_shape: str
    outlets: tuple[_Outlet, ...]
    width: int | None = None
    checked: tuple[tuple[int, str], ...] = ()
    outlet_column: int | None = None
    gaps: bool = True


_DPI_LAYOUT = _Layout(
    time=(0, 1),
    time_format="%m/%d/%Y %H:%M:%S",
    time_shape="mm/dd/yyyy hh:mm:ss",
    outlets=(_Outlet("", 5, 6),),
    width=len(_DPI_COLUMNS),
    checked=tuple((place, _DPI_COLUMNS[place]) for place in (2, 3, 4)),
    gaps=False,
)

_ISO_SHAPE = "an ISO 8601 time or seconds since 1970"
_SERVERVIEW_COLUMN = re.compile(r"(.{1,200})\((power|power-average|energy)\)")
_DPI_DATE = re.compile(r"\d{1,2}/\d{1,2}/\d{4}")


def _dpi(header: Sequence[str], _: Columns) -> _Layout | None:
    plain = [_plain(cell) for cell in header]
    return _DPI_LAYOUT if {"log_date", "log_time"} <= set(plain) else None


def _serverview(header: Sequence[str], _: Columns) -> _Layout | None:
    if len(header) < 2 or header[0].strip() != "Time":
        return None
    found = [_SERVERVIEW_COLUMN.fullmatch(cell.strip()) for cell in header[1:]]
    if not all(found):
        return None
    outlets: dict[str, _Outlet] = {}
    for place, column in enumerate(found, start=1):
        assert column is not None
        name, kind = column.groups()
        # Power as sampled where it is exported, else its average.
        if kind == "power" or (kind == "power-average" and name not in outlets):
            outlets[name] = _Outlet(name, place)
    if not outlets:
        return None
    return _Layout((0,), "", _ISO_SHAPE, tuple(outlets.values()), width=len(header))


def _named(header: Sequence[str], columns: Columns) -> _Layout | None:
    """Columns of these names, each once; None where the header lacks one."""
    place: dict[str, int] = {}
    for key, name in columns.items():
        if key == "format":
            continue
        found = [i for i, cell in enumerate(header) if cell.strip().casefold() == name.casefold()]
        if len(found) != 1:
            return None
        place[key] = found[0]
    return _table(place, columns.get("format", ""), len(header))


def _plainly_named(header: Sequence[str], _: Columns) -> _Layout | None:
    plain = [_plain(cell) for cell in header]
    place: dict[str, int] = {}
    for key, names in _PLAIN_NAMES.items():
        found = [i for i, cell in enumerate(plain) if cell in names]
        if len(found) > 1:
            return None
        if found:
            place[key] = found[0]
    if not {"time", "watts"} <= place.keys():
        return None
    return _table(place, "", len(header))


def _table(place: Mapping[str, int], time_format: str, width: int) -> _Layout:
    return _Layout(
        time=(place["date"], place["time"]) if "date" in place else (place["time"],),
        time_format=time_format,
        time_shape=time_format or _ISO_SHAPE,
        outlets=(_Outlet("", place["watts"], place.get("kwh")),),
        width=width,
        outlet_column=place.get("outlet"),
    )


FORMATS: Mapping[str, Callable[[Sequence[str], Columns], _Layout | None]] = {
    "named columns": lambda header, columns: _named(header, columns) if columns else None,
    "IBM DPI": _dpi,
    "ServerView": _serverview,
    "plain names": lambda header, columns: None if columns else _plainly_named(header, columns),
}
"""Formats in the order in which a header is tried; each gives a layout or None."""


def _plain(cell: str) -> str:
    """A header cell in small letters and underscores: "Active Power (W)" is active_power_w."""
    return re.sub(r"[^a-z0-9]+", "_", cell.casefold()).strip("_")


def _tells(line: str, columns: Columns) -> _Layout | None:
    """The layout that one header line tells."""
    cells = _cells(line)
    return next((found for read in FORMATS.values() if (found := read(cells, columns))), None)


def _without_header(header: Sequence[str], first: str, columns: Columns, log: str) -> _Layout:
    """The layout of a log whose header tells nothing, from its first line of data."""
    data = _cells(first)
    if not header or (len(data) == len(_DPI_COLUMNS) and _DPI_DATE.fullmatch(data[0])):
        return _DPI_LAYOUT
    shown = printable(header[-1], 120)
    there = {cell.casefold() for cell in _cells(header[-1])}
    for key, name in columns.items():
        if key != "format" and name.casefold() not in there:
            raise PowerLogError(
                f"power log {log} has no column {printable(name, 80)!r}; its header is: {shown}"
            )
    raise PowerLogError(
        f"power log {log} has a header of no known format; name its columns with --pdu-columns, "
        f"for example time=NAME,watts=NAME; its header is: {shown}"
    )


# --- reading --------------------------------------------------------------------------------


def read_log(log: PduLog, settings: LogSettings) -> list[PowerSample]:
    """The samples of the chosen outlets of a log, with the PDU's clock set to the host's.

    In the log's order; raises PowerLogError.
    """
    samples = read_power_log(log.path, settings.zone, settings.columns)
    if log.outlets:
        there = dict.fromkeys(sample.outlet for sample in samples)
        for outlet in log.outlets:
            if outlet not in there:
                known = ", ".join(name or "one without a name" for name in [*there][:10])
                raise PowerLogError(
                    f"power log {log.path} has no outlet {printable(outlet, 80)!r}; "
                    f"it has {printable(known, 200)}"
                )
        samples = [sample for sample in samples if sample.outlet in log.outlets]
    shift = settings.offset_ns
    if not shift:
        return samples
    return [PowerSample(s.wall_ns - shift, s.watts, s.kilowatt_hours, s.outlet) for s in samples]


def read_power_log(path: Path, zone: ZoneInfo, columns: Columns | None = None) -> list[PowerSample]:
    """The samples of a log file, in its order; raises PowerLogError."""
    return parse_power_log(_read(path), str(path), zone, columns)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LONGEST_LOG_BYTES:
            raise PowerLogError(
                f"power log {path} is larger than {LONGEST_LOG_BYTES >> 20} MiB; cut it to the run"
            )
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(f"power log {path} cannot be read: {reason}") from None


def require_readable(settings: LogSettings) -> None:
    """Raises PowerLogError for the first log that cannot be used, as far as it is written."""
    for log in settings.logs:
        text = _read(log.path)
        # The last line may be half written.
        parse_power_log(
            text[: text.rfind(b"\n") + 1], str(log.path), settings.zone, settings.columns
        )


def parse_power_log(
    text: bytes, name: str, zone: ZoneInfo, columns: Columns | None = None
) -> list[PowerSample]:
    """The samples of a log, in its order; `columns` are those of `parse_columns`.

    Times without an offset of their own are in `zone`. Raises PowerLogError, naming log and line,
    at the first line that is no sample, at a time that goes back, and at one that the zone's
    clock change makes ambiguous or skips; and without a line for a header of no known format, for
    a log with no sample, or with samples on both sides of a clock change.
    """
    samples: list[PowerSample] = []
    header: list[str] = []
    layout: _Layout | None = None
    clock = _Clock(name, zone)
    for number, raw in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        line = raw[: _LONGEST_LINE + 1].decode("utf-8", errors="replace").strip("\r\n\0 ")
        if not line:
            continue
        is_text = number <= _HEADER_LINES and not _FIRST_COLUMN.match(line)
        if layout is None:
            if is_text:
                header.append(line)
                layout = _tells(line, columns or {})
                continue
            layout = _without_header(header, line, columns or {}, name)
        elif layout is _DPI_LAYOUT and not samples and is_text:
            # The units below the names.
            continue
        try:
            samples += _samples(line, layout, clock)
        except ValueError as error:
            raise PowerLogError(f"power log {name}, line {number}: {error}") from None
    if not samples:
        raise PowerLogError(
            f"power log {name} has no sample; expected lines of {', '.join(_DPI_COLUMNS)}, or a "
            "header that names time and watts"
        )
    return samples


class _Clock:
    """Times of a log: ascending by outlet, and on one side of every change of the zone's clock."""

    def __init__(self, log: str, zone: ZoneInfo) -> None:
        self._zone = zone
        self._offsets: set[object] = set()
        self._previous: dict[str, datetime] = {}

    def wall_ns(self, told: datetime, outlet: str) -> int:
        """UTC nanoseconds of a time of this outlet; ValueError says why it cannot be."""
        here = told
        if told.tzinfo is None:
            here = told.replace(tzinfo=self._zone)
            self._offsets.add(here.utcoffset())
            if len(self._offsets) > 1 or here.utcoffset() != here.replace(fold=1).utcoffset():
                raise ValueError(
                    f"the clock of {self._zone.key} changes near {told}; "
                    "cut the log to one side of the change, or log in UTC"
                )
        previous = self._previous.get(outlet)
        if previous is not None and here < previous:
            before = previous.replace(tzinfo=None) if told.tzinfo is None else previous
            raise ValueError(f"time goes back from {before} to {told}")
        self._previous[outlet] = here
        if len(self._previous) > _MOST_OUTLETS:
            raise ValueError(f"more than {_MOST_OUTLETS} outlets; is the right column named?")
        seconds = math.floor(here.timestamp())
        return seconds * 1_000_000_000 + here.microsecond * 1000


def _samples(line: str, layout: _Layout, clock: _Clock) -> list[PowerSample]:
    """The samples of one line; ValueError says what is wrong with it."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"longer than {_LONGEST_LINE} characters")
    cells = _cells(line)
    if layout.width is not None and len(cells) != layout.width:
        raise ValueError(f"{len(cells)} columns instead of {layout.width}: {line[:80]!r}")
    told = _time(" ".join(cells[place] for place in layout.time), layout)
    for place, name in layout.checked:
        _number(name, cells[place])
    samples = []
    for outlet in layout.outlets:
        if layout.gaps and cells[outlet.watts] in ("", "-"):
            continue
        name = outlet.name
        if layout.outlet_column is not None:
            name = printable(cells[layout.outlet_column], 100)
        watts = _number("watts", cells[outlet.watts])
        if watts > _LARGEST_WATTS:
            raise ValueError(f"{watts:g} watts at one outlet")
        kilowatt_hours = None
        if outlet.kwh is not None and not (layout.gaps and cells[outlet.kwh] in ("", "-")):
            kilowatt_hours = _number("cumulative kWh", cells[outlet.kwh])
        samples.append(PowerSample(clock.wall_ns(told, name), watts, kilowatt_hours, name))
    return samples


def _cells(line: str) -> list[str]:
    separator = next((s for s in ",\t;" if s in line), ",")
    if '"' in line:
        # A quoted name may hold the separator.
        return [cell.strip(" \"'") for cell in next(csv.reader([line], delimiter=separator))]
    return [cell.strip(" \"'") for cell in line.split(separator)]


def _time(text: str, layout: _Layout) -> datetime:
    """Local time without a zone, or a time that knows its own."""
    try:
        if layout.time_format:
            return datetime.strptime(text, layout.time_format)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            since = float(text)
            since = since / 1000 if since > _MILLISECONDS_ABOVE else since
            return datetime.fromtimestamp(min(since, _LATEST_S), UTC)
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text[:40]!r} is not {layout.time_shape}") from None


def _number(column: str, cell: str) -> float:
    """A finite number that is not negative."""
    try:
        value = float("" if "_" in cell else cell)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{column} {cell[:40]!r} is not a number of 0 or more")
    return value


# --- means ----------------------------------------------------------------------------------


def outlets_over(settings: LogSettings, start_ns: int, end_ns: int) -> list[OutletPower]:
    """Every outlet of the logs over a window in UTC, in the order of logs and of their outlets."""
    outlets = []
    for log in settings.logs:
        samples = read_log(log, settings)
        for name in dict.fromkeys(sample.outlet for sample in samples):
            own = [sample for sample in samples if sample.outlet == name]
            outlets.append(
                outlet_power(
                    str(log.path),
                    [sample.wall_ns for sample in own],
                    [sample.watts for sample in own],
                    start_ns,
                    end_ns,
                    kilowatt_hours=[sample.kilowatt_hours for sample in own],
                    outlet=name,
                    node=log.node,
                )
            )
    return outlets


def outlet_power(
    log: str,
    wall_ns: Sequence[int],
    watts: Sequence[float],
    start_ns: int,
    end_ns: int,
    *,
    kilowatt_hours: Sequence[float | None] | None = None,
    outlet: str = "",
    node: str = "",
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
    until_ns = np.clip(until, start_ns, end_ns)
    covered_ns: Int64Array = np.maximum(until_ns - since_ns, 0)
    total_ns = int(covered_ns.sum())
    used = covered_ns > 0
    mean = float((level * covered_ns).sum() / total_ns) if total_ns else 0.0
    return OutletPower(
        log=log,
        watts=mean,
        samples=int(used.sum()),
        coverage=total_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(
            (float(a), float(b), float(w))
            for a, b, w in zip(
                (since_ns[used] - start_ns) / 1e9,
                (until_ns[used] - start_ns) / 1e9,
                level[used],
                strict=True,
            )
        ),
        outlet=outlet,
        node=node,
        energy=_energy(at, level, kilowatt_hours, start_ns, end_ns),
    )


def require_coverage(outlets: Iterable[OutletPower], run: str) -> None:
    """Raises PowerLogError for the first outlet whose samples leave too much of the run open."""
    for outlet in outlets:
        if outlet.coverage < LEAST_COVERAGE:
            raise PowerLogError(
                f"power log {outlet.name} covers {outlet.coverage:.0%} of the measurement window "
                f"of run {run}; at least {LEAST_COVERAGE:.0%} is needed (are pdu_timezone and "
                "pdu_offset right?)"
            )


_GRANTED = 0.05
_COARSE = 0.2
"""A counter whose step is more than this share of the energy cannot confirm it."""


def _energy(
    at: Int64Array,
    watts: Float64Array,
    kilowatt_hours: Sequence[float | None] | None,
    start_ns: int,
    end_ns: int,
) -> EnergyCheck | None:
    """Watts against the counter, from the first sample in the window to the last."""
    if kilowatt_hours is None:
        return None
    told = np.asarray([math.nan if k is None else k for k in kilowatt_hours], np.float64)
    inside = np.flatnonzero((at >= start_ns) & (at <= end_ns) & ~np.isnan(told))
    if len(inside) < 2:
        return None
    first, last = int(inside[0]), int(inside[-1])
    hold = np.diff(at[first : last + 1]).astype(np.float64)
    by_watts = float((watts[first:last] * hold).sum()) / 3.6e15
    by_counter = float(told[last] - told[first])
    step = _resolution(told[inside])
    result: Literal["agrees", "disagrees", "too coarse"] = "agrees"
    if abs(by_counter - by_watts) > step + _GRANTED * by_watts:
        result = "disagrees"
    elif step > _COARSE * by_watts:
        result = "too coarse"
    return EnergyCheck(by_watts, by_counter, step, result)


def _resolution(values: Float64Array) -> float:
    """The step in which a counter is told: that of its last decimal."""
    for decimals in range(7):
        if np.allclose(values, np.round(values, decimals), rtol=0, atol=1e-9):
            return float(10.0**-decimals)
    return 0.0


def _hold_ns(at: Int64Array) -> Int64Array:
    """How long each sample holds, without regard to any window."""
    spacing = np.diff(at)
    usual_ns = int(np.median(spacing[spacing > 0])) if np.any(spacing > 0) else 0
    hold: Int64Array = np.append(np.minimum(spacing, int(HOLD_LIMIT * usual_ns)), usual_ns)
    return hold
