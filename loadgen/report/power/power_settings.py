"""The power logs of a run and the settings to read them, from options and scenarios."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from loadgen.errors import PowerLogError
from loadgen.plan.units import parse_seconds
from loadgen.report.power.power_units import UNITS
from loadgen.run.redaction import printable

LARGEST_OFFSET_S = 366 * 86_400.0

_NAMES = ("time", "date", "watts", "kwh", "outlet")
MARKS = {"point": ".", "comma": ","}
_CHOICES = {
    "unit": tuple(name for name, unit in UNITS.items() if unit.kind == "power"),
    "counter_unit": tuple(name for name, unit in UNITS.items() if unit.kind == "energy"),
    "decimal": tuple(MARKS),
    "dates": ("dmy", "mdy", "ymd"),
}
_KEYS = (*_NAMES, "format", *_CHOICES)

Columns = Mapping[str, str]
"""The user's description of a log: its columns by the names in its header (`_NAMES`), the format of
its times (`format`, for strptime), and choices that a log may leave open (`_CHOICES`)."""


@dataclass(frozen=True, slots=True)
class PduLog:
    """A log as the user gives it: `[NODE=]FILE[#OUTLET,...]`.

    `node` is the machine that the log's outlets feed, "" if unnamed; `outlets` are the chosen
    ones, empty for all.
    """

    path: Path
    node: str = ""
    outlets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The logs of a run and how to read them.

    `zone` applies to times without an offset; `zone_given` is True if the user named it.
    `offset_ns` is the lead of the PDU's clock over the host's.
    """

    logs: tuple[PduLog, ...]
    zone: ZoneInfo
    columns: Columns = field(default_factory=dict)
    offset_ns: int = 0
    zone_given: bool = True


def log_settings(
    logs: Sequence["str | Path | PduLog"],
    timezone: str | None = None,
    columns: str | None = None,
    offset: str | None = None,
) -> LogSettings | None:
    """Return the settings of these options, None without a log; raise PowerLogError."""
    offset_ns = parse_offset(offset) if offset else 0
    named = parse_columns(columns) if columns else {}
    distinct = distinct_logs(logs)
    if not distinct:
        return None
    return LogSettings(distinct, time_zone(timezone), named, offset_ns, timezone is not None)


def parse_offset(text: str) -> int:
    """Parse a time with a sign, such as 1.5s, -2s or +500ms, in ns; raise PowerLogError."""
    sign = -1 if text.strip().startswith("-") else 1
    try:
        seconds = parse_seconds(text.strip().removeprefix("-").removeprefix("+"))
    except ValueError as error:
        raise PowerLogError(f"pdu_offset: {error}") from None
    if seconds > LARGEST_OFFSET_S:
        raise PowerLogError(f"pdu_offset: {seconds:g} s is more than a year")
    return sign * round(seconds * 1e9)


def parse_columns(text: str) -> Columns:
    """Parse `KEY=VALUE,...`, whose keys are `_KEYS`; raise PowerLogError."""
    columns: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = part.partition("=")
        key = key.strip()
        if not equals or not name.strip() or key not in _KEYS:
            raise PowerLogError(
                f"pdu_columns: {printable(part, 80)!r} is not one of "
                f"{', '.join(f'{k}=NAME' for k in _NAMES)}, format=STRPTIME, "
                + ", ".join(f"{key}={'|'.join(of)}" for key, of in _CHOICES.items())
            )
        if key in columns:
            raise PowerLogError(f"pdu_columns: {key} is given twice")
        if key in _CHOICES and name.strip() not in _CHOICES[key]:
            raise PowerLogError(
                f"pdu_columns: {key} is one of {', '.join(_CHOICES[key])}, not "
                f"{printable(name.strip(), 40)!r}"
            )
        columns[key] = name.strip()
    return columns


def time_zone(name: str | None) -> ZoneInfo:
    """Return the zone with this IANA name, None for this host's; raise PowerLogError."""
    key = host_timezone() if name is None else name
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PowerLogError(
            f"pdu_timezone {key[:80]!r} is not a time zone; give one such as Europe/Berlin or UTC"
        ) from None


def host_timezone() -> str:
    """Find the IANA name of this host's time zone; raise PowerLogError if it has no name."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named and not named.startswith("/"):
        return named
    local = Path(named or "/etc/localtime")
    if not local.exists():
        return "UTC"
    _, is_zone, key = str(local.resolve()).partition("/zoneinfo/")
    if is_zone:
        return key
    try:
        return Path("/etc/timezone").read_text().strip()
    except OSError:
        raise PowerLogError(
            "the name of this host's time zone cannot be found; give --pdu-timezone"
        ) from None


def pdu_log(log: "str | Path | PduLog") -> PduLog:
    """Parse `[NODE=]FILE[#OUTLET,...]`; a text that is the path of a file is that file."""
    if isinstance(log, PduLog):
        return log
    if isinstance(log, Path) or Path(log).exists():
        return PduLog(Path(log))
    node, equals, file = log.partition("=")
    if not equals:
        node, file = "", log
    if Path(file).exists():
        return PduLog(Path(file), node)
    path, sharp, outlets = file.rpartition("#")
    if not sharp:
        return PduLog(Path(file), node)
    chosen = tuple(outlet.strip() for outlet in outlets.split(","))
    if not all(chosen):
        raise PowerLogError(f"power log {printable(log, 200)}: an outlet after # has no name")
    return PduLog(Path(path), node, chosen)


def distinct_logs(names: Sequence["str | Path | PduLog"]) -> tuple[PduLog, ...]:
    """Return the logs; raise PowerLogError for an outlet that would be added twice."""
    logs = tuple(pdu_log(log) for log in names)
    seen: dict[Path, list[PduLog]] = {}
    for log in logs:
        before = seen.setdefault(log.path.resolve(), [])
        for other in before:
            if not log.outlets or not other.outlets or set(log.outlets) & set(other.outlets):
                raise PowerLogError(f"power log {log.path} is given twice; name each outlet once")
        before.append(log)
    return logs
