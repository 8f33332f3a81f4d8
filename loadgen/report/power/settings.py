"""The power logs of a run and the settings to read them, from options and scenarios."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from loadgen.errors import PowerLogError
from loadgen.plan.units import parse_seconds
from loadgen.report.power.formats import NO_OPTIONS, Format, parse_columns, read_formats
from loadgen.sentences import POWER_TEXT, printable

LOG_OPTIONS = ("pdu_timezone", "pdu_columns", "pdu_offset", "pdu_format")
"""Fields of a scenario, and names of options, for the arguments of `log_settings`."""
LARGEST_OFFSET_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class PduLog:
    """A log as `[NODE=]FILE[#OUTLET,...]`: the machine that it feeds, and the chosen outlets."""

    path: Path
    node: str = ""
    outlets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The logs of a run and how to read them.

    `zone` applies to times without an offset; `zone_given` is True if the user named it.
    `columns` is the user's description of the logs, `formats` are those of the user's file.
    `offset_ns` is the lead of the PDU's clock over the host's.
    """

    logs: tuple[PduLog, ...]
    zone: ZoneInfo
    columns: Format = NO_OPTIONS
    offset_ns: int = 0
    zone_given: bool = True
    formats: tuple[Format, ...] = ()


def log_settings(
    logs: Sequence[str | Path],
    timezone: str | None = None,
    columns: str | None = None,
    offset: str | None = None,
    formats: "str | Path | None" = None,
) -> LogSettings | None:
    """Return the settings of these options, None without a log; raise PowerLogError."""
    offset_ns = parse_offset(offset) if offset else 0
    named = parse_columns(columns) if columns is not None else NO_OPTIONS
    of_user = read_formats(Path(formats)) if formats is not None else ()
    distinct = distinct_logs(logs)
    if not distinct:
        return None
    zone = time_zone(timezone)
    return LogSettings(distinct, zone, named, offset_ns, timezone is not None, of_user)


def parse_offset(text: str) -> int:
    """Parse a time with a sign, such as 1.5s, -2s or +500ms, in ns; raise PowerLogError."""
    sign = -1 if text.strip().startswith("-") else 1
    try:
        seconds = parse_seconds(text.strip().removeprefix("-").removeprefix("+"))
    except ValueError as error:
        raise PowerLogError(POWER_TEXT.OFFSET(reason=str(error))) from None
    if seconds > LARGEST_OFFSET_S:
        raise PowerLogError(POWER_TEXT.OFFSET(reason=f"{seconds:g} s"))
    return sign * round(seconds * 1e9)


def time_zone(name: str | None) -> ZoneInfo:
    """Return the zone with this IANA name, None for this host's; raise PowerLogError."""
    key = host_timezone() if name is None else name
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PowerLogError(POWER_TEXT.ZONE_UNKNOWN(zone=key[:80])) from None


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
        raise PowerLogError(POWER_TEXT.HOST_ZONE_UNKNOWN()) from None


def pdu_log(log: str | Path) -> PduLog:
    """Parse `[NODE=]FILE[#OUTLET,...]`; a text that is the path of a file is that file."""
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
        raise PowerLogError(POWER_TEXT.OUTLET_UNNAMED(log=printable(log, 200)))
    return PduLog(Path(path), node, chosen)


def distinct_logs(names: Sequence[str | Path]) -> tuple[PduLog, ...]:
    """Return the logs; raise PowerLogError for an outlet that would be added twice."""
    logs = tuple(pdu_log(log) for log in names)
    for log, other in combinations(logs, 2):
        is_chosen = log.outlets and other.outlets and not {*log.outlets} & {*other.outlets}
        if not is_chosen and log.path.resolve() == other.path.resolve():
            raise PowerLogError(POWER_TEXT.GIVEN_TWICE(log=other.path))
    return logs
