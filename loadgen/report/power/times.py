"""Times of power logs: the order of their dates, their zones, and changes of clocks. Pure.

04/05/2013 is in April or in May. The whole log decides, as soon as one of its days is above the
12th. An ambiguous log is refused.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.formats import NO_OPTIONS, Format
from loadgen.report.power.units import expression
from loadgen.sentences import POWER_TEXT, Sentence, printable


class LogError(ValueError):
    """A log that cannot be used; `values` are those of the sentence without the log's name."""

    def __init__(self, sentence: Sentence, **values: Any) -> None:
        super().__init__(sentence.code)
        self.sentence = sentence
        self.values = {name: _shown(value) for name, value in values.items()}

    def of(self, log: str) -> PowerLogError:
        return PowerLogError(self.sentence(log=log, **self.values))


def _shown(value: Any) -> Any:
    """Return a value of a sentence; text of a log is shortened and escaped."""
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return printable(value, 160) if isinstance(value, str) else value


UNCERTAIN = np.iinfo(np.int64).min  # a local time that a change of the clock skips or repeats
_DAY_NS = 86_400 * 10**9
_MINUTE_NS = 60 * 10**9
_MICROSECOND = timedelta(microseconds=1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_YEAR = 2200
_UTC = "utc"
_ZONES = {"mez": "cet", "mesz": "cest", "z": _UTC, "gmt": _UTC}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ORDERS = ("ymd", "dmy", "mdy", "short ymd", "named dmy", "named mdy")
"""Ways to write a date, as in `patterns.toml`."""
_ELAPSED_NS = {"us": 10**3, "µs": 10**3, "ms": 10**6, "min": _MINUTE_NS, "minutes": _MINUTE_NS}
_ELAPSED_NS |= dict.fromkeys(("h", "hrs", "hours"), 60 * _MINUTE_NS)
"""Nanoseconds of the units of elapsed times in titles; without one they are seconds."""

_Moment = tuple[int, str, str]
"""Nanoseconds since 1970, or since the date that follows if it is not ""; and the zone."""


def read_times(
    texts: Sequence[str],
    lines: Sequence[int],
    form: Format,
    zone: ZoneInfo,
    stated: str = "",
    title: str = "",
) -> tuple[NDArray[np.int64], bool]:
    """Return times in UTC nanoseconds or UNCERTAIN, and True if some are in the zone of the user.

    `stated` is the zone of times that name none, "" for `zone`. The `title` of their column may
    name the unit of times since a start. Raise LogError for texts that are not times, ambiguous
    dates, and times of another zone.
    """
    start = _moment(form.start, form, stated) if form.start else None
    if form.start and start is None:
        raise _bad_time(form.start, 0)
    units = (_ELAPSED_NS.get(word) for word in re.findall(r"[^\W\d_]+", title.lower()))
    unit_ns = next(filter(None, units), 10**9)
    moments: list[_Moment] = []
    first_lines: dict[str, int] = {}
    for text, line in zip(texts, lines, strict=True):
        moment = _moment(text, form, stated) if start is None else _later(start, text, unit_ns)
        if moment is None:
            raise _bad_time(text, line)
        moments.append(moment)
        first_lines.setdefault(moment[1], line)
    days = _days(first_lines, form.dates)
    clock = np.array([ns + days[date] * _DAY_NS for ns, date, _ in moments], np.int64)
    zones = np.array([named for *_, named in moments], object)
    local = zones != _UTC
    # A zone's clock changes at full minutes; a conversion of each sample would take long.
    minutes, place = np.unique(clock[local] // _MINUTE_NS, return_inverse=True)
    offsets = np.array([_offset_ns(zone, int(minute)) for minute in minutes], np.int64)[place]
    clock[local] = np.where(offsets != UNCERTAIN, clock[local] - offsets, UNCERTAIN)
    for name in {*zones[local]} - {""}:
        hours = np.unique(clock[(zones == name) & (clock != UNCERTAIN)] // (60 * _MINUTE_NS))
        starts = (_EPOCH_UTC + timedelta(hours=int(hour)) for hour in hours)
        used = {(start.astimezone(zone).tzname() or "").lower() for start in starts}
        if name != zone.key.lower() and used - {name}:
            raise LogError(POWER_TEXT.FOREIGN_ZONE, named=printable(name, 40), zone=zone.key)
    if len(clock) and (clock == UNCERTAIN).all():
        raise LogError(POWER_TEXT.ONLY_CHANGED_TIMES, zone=zone.key)
    return clock, bool(local.any())


def _moment(text: str, form: Format, stated: str) -> _Moment | None:
    """Return the moment that a text states, None if it is not one."""
    with suppress(ValueError, re.error):
        read = None
        if form.format:
            read = datetime.strptime(text, form.format)
        elif text[4:5] == "-" and len(text) >= 16:
            read = datetime.fromisoformat(text)
        if read is not None and 1970 <= read.year <= _LAST_YEAR:
            offset_ns, zone = _zone(_UTC if read.tzinfo else stated)
            since = (read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH_UTC
            return since // _MICROSECOND * 1000 - offset_ns, "", zone
    if form.format:
        return None
    if number := expression("since_1970").fullmatch(text):
        # Seconds until the year 5138; longer numbers are milli-, micro- or nanoseconds.
        places = 9 - 3 * sum(int(number[1]) >= least for least in (1e11, 1e14, 1e17))
        ns = int(number[1] + (number[2] or "")[:places].ljust(places, "0"))
        if ns < 1 << 63:
            return ns, "", _UTC
    match = expression("time").fullmatch(text)
    if match is None or (match["year"] is None) != (match["day"] is None):
        return None
    hour, minute, second = (int(match[key] or 0) for key in ("hour", "minute", "second"))
    if half := match["half"]:
        hour = hour % 12 + 12 * (half[0] in "pP") if 0 < hour <= 12 else 24
    if hour > 23 or minute > 59 or second > 59:
        return None
    ns = ((hour * 60 + minute) * 60 + second) * 10**9
    ns += int((match["fraction"] or "").ljust(9, "0"))
    offset_ns, zone = _zone((match["zone"] or stated).strip())
    return ns - offset_ns, match["date"] or f"{match['day']} {match['year']}", zone


def _later(start: _Moment, text: str, unit_ns: int) -> _Moment | None:
    """Return the moment of a time since a start."""
    if not (match := expression("elapsed").fullmatch(text)):
        return None
    number = float(match[3].replace(",", "."))
    if match[2]:
        number, unit_ns = number + 60 * int(match[2]) + 3600 * int(match[1] or 0), 10**9
    return start[0] + round(number * unit_ns), *start[1:]


def _zone(name: str) -> tuple[int, str]:
    """Return the offset in ns and the UTC zone if a name states the offset, or else its name."""
    name = _ZONES.get(name.lower(), name.lower())
    if match := expression("offset").fullmatch(name):
        seconds = int(match["hours"]) * 3600 + int(match["minutes"] or 0) * 60
        return (-seconds if match["sign"] == "-" else seconds) * 10**9, _UTC
    return 0, name


def _days(dates: Mapping[str, int], order: str) -> dict[str, int]:
    """Return the days since 1970 of each date, which has a line; all have the same order."""
    orders = [key for key in _ORDERS if key.endswith(order)]
    if not order:
        orders.remove("short ymd")
    read = [{text: _day(text, key) for text in dates} for key in orders]
    # An order that fits fewer dates than another one is wrong.
    least = min([*days.values()].count(None) for days in read)
    fitting = [days for days in read if [*days.values()].count(None) == least]
    for text, line in dates.items():
        if len({days[text] for days in fitting} - {None}) > 1:
            raise LogError(POWER_TEXT.DATES_UNCLEAR, date=printable(text, 40))
        if fitting[0][text] is None:
            raise _bad_time(text, line)
    return {text: day for text, day in fitting[0].items() if day is not None}


def is_time(text: str, form: Format = NO_OPTIONS) -> bool:
    """Return True if a text is a date with a time, or seconds if `form` has their start."""
    return bool(expression("elapsed").fullmatch(text) if form.start else _moment(text, form, ""))


def zone_in(text: str) -> str:
    """Find the zone that a text names, as UTC+02:00, CEST or Europe/Berlin; "" for none."""
    named = (zone[0] for zone in expression("zone").finditer(text))
    return next((zone for zone in named if "/" not in zone or zone in available_timezones()), "")


def _bad_time(text: str, line: int) -> LogError:
    return LogError(POWER_TEXT.LINE_TIME, line=line, text=printable(text, 40))


def _offset_ns(zone: ZoneInfo, minute: int) -> int:
    """Return the offset of a minute of local time, or UNCERTAIN if it is skipped or repeated."""
    try:
        local = (_EPOCH_UTC + timedelta(minutes=minute)).replace(tzinfo=zone)
    except OverflowError:
        return UNCERTAIN
    first, second = local.utcoffset(), local.replace(fold=1).utcoffset()
    return first // _MICROSECOND * 1000 if first is not None and first == second else UNCERTAIN


def _day(text: str, order: str) -> int | None:
    """Return the days since 1970 of a date, 0 of none; None if it has another order."""
    match = expression(order).fullmatch(text)
    if match is None:
        return None if text else 0
    month, year = match["m"], int(match["y"])
    with suppress(ValueError):
        number = int(month) if month.isdigit() else _MONTHS.index(month[:3].lower()) + 1
        if year <= _LAST_YEAR:
            read = date(year + 2000 * (year < 100), number, int(match["d"]))
            return (read - date(1970, 1, 1)).days
    return None
