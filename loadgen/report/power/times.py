"""Times of power logs: the order of their dates, their zones, and changes of clocks. Pure.

04/05/2013 is in April or in May. The whole log decides, as soon as one of its days is above the
12th. An ambiguous log is refused.
"""

import re
from array import array
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.run.redaction import printable
from loadgen.sentences import POWER_TEXT, Sentence


class LogError(ValueError):
    """A log that cannot be used; `values` are those of the sentence without the log's name."""

    def __init__(self, sentence: Sentence, **values: Any) -> None:
        super().__init__(sentence.code)
        self.sentence, self.values = sentence, values

    def of(self, log: str) -> PowerLogError:
        return PowerLogError(self.sentence(log=log, **self.values))


UNCERTAIN = np.iinfo(np.int64).min
"""A local time that a change of the clock skips or repeats."""

_DAY_NS = 86_400 * 10**9
_MINUTE_NS = 60 * 10**9
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_YEAR = 2200
_IN_UTC = 0

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?:{'|'.join(_MONTHS)})[a-z]*\.?"
_SINCE_1970 = re.compile(r"(?!20\d{12}$)(\d{9,20})(?:[.,](\d+))?")
"""A number since 1970; 20130426100405 is a date and a time instead."""
_ELAPSED = re.compile(r"\d{1,9}(?:[.,]\d+)?")
_TEXT = re.compile(
    r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?(?:"
    rf"(?P<date>\d{{1,4}}[-/.]\s?(?:\d{{1,2}}|{_MONTH})[-/.]\s?\d{{1,4}}|\d{{8}}"
    rf"|\d{{1,2}}\.?\s+{_MONTH},?\s+\d{{4}}|{_MONTH}\s+\d{{1,2}},?\s+\d{{4}})"
    rf"(?:\s*[T_,]\s*|\s+|(?<=^\d{{8}}))|(?P<day>{_MONTH}\s+\d{{1,2}})\s+(?=.*\s\d{{4}}$))"
    r"(?P<hour>\d{1,2}):?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,:](?P<fraction>\d{1,9})\d*)?)?"
    r"\s*(?P<half>[ap]\.?m\.?(?![a-z]))?"
    r"\s*\(?(?P<zone>[a-z_]+/[a-z_/+-]+|[a-z]{1,5}|(?:utc|gmt)?\s?[+-]\d\d?(?::?\d\d)?)?\)?"
    r"(?:\s+(?P<year>\d{4}))?",
    re.IGNORECASE,
)
_OFFSET = re.compile(r"(?:utc|gmt)?\s?(?P<sign>[+-])(?P<hours>\d\d?):?(?P<minutes>\d\d)?")
_ZONE = re.compile(
    r"(?<![^\W_])(?:(?:utc|gmt)(?:\s?[+-]\d\d?(?::?\d\d)?)?|[a-z_]+/[a-z_/]+"
    r"|(?:ce|ee|m|p|c|e|ae|nz)(?:s|d)t|cet|eet|bst|ist|msk|jst|kst|hkt|sgt)(?![^\W_])",
    re.IGNORECASE,
)
_ORDERS = {
    "ymd": r"(?P<y>\d{4})[-/.]?(?P<m>\d{1,2})[-/.]?(?P<d>\d{1,2})",
    "dmy": r"(?P<d>\d{1,2})[-/.](?P<m>\d{1,2})[-/.](?P<y>\d{4}|\d\d)",
    "mdy": r"(?P<m>\d{1,2})[-/](?P<d>\d{1,2})[-/](?P<y>\d{4}|\d\d)",
    "ymd, short": r"(?P<y>\d\d)[-/](?P<m>\d{1,2})[-/](?P<d>\d{1,2})",
    "day first, named": (
        rf"(?P<d>\d{{1,2}})(?:[-/]|\.?\s+)(?P<m>{_MONTH})(?:[-/]|,?\s+)(?P<y>\d{{4}}|\d\d)"
    ),
    "month first, named": rf"(?P<m>{_MONTH})[\s-](?P<d>\d{{1,2}}),?[\s-](?P<y>\d{{4}})",
}
"""Ways to write a date. Dates with points always begin with the day, so they are unambiguous."""


class Clock:
    """The times of a log's rows, in order; the zones of all, and the dates until all are read.

    `order` is dmy, mdy or ymd, "" if unknown; `form` is a format of strptime for all times;
    `zone` is that of times that name none, "" for that of `resolve`. With `start`, the texts are
    seconds since that time.
    """

    def __init__(self, order: str = "", form: str = "", zone: str = "", start: str = "") -> None:
        self._order, self._form, self._zone = order, form, zone
        self._ns, self._date, self._zones = array("q"), array("i"), array("b")
        self._names = ["utc", ""]
        self._dates: dict[str, tuple[int, int]] = {}
        self._start = self._parsed(start, 0) if start else None

    def __len__(self) -> int:
        return len(self._ns)

    def add(self, text: str, line: int) -> None:
        """Append a time; raise LogError."""
        if self._start is None:
            ns, day, zone = self._parsed(text, line)
        elif _ELAPSED.fullmatch(text):
            ns, day, zone = self._start
            ns += round(float(text.replace(",", ".")) * 1e9)
        else:
            raise _bad_time(text, line)
        self._ns.append(ns)
        self._date.append(day)
        self._zones.append(zone)

    def _parsed(self, text: str, line: int) -> tuple[int, int, int]:
        """Return nanoseconds, the number of a date that is still to be read or -1, and a zone."""
        with suppress(ValueError, re.error):
            read = None
            if self._form:
                read = datetime.strptime(text, self._form)
            elif text[4:5] == "-" and len(text) >= 16:
                read = datetime.fromisoformat(text)
            if read is not None and 1970 <= read.year <= _LAST_YEAR:
                zone, offset_ns = self._zone_of("utc" if read.tzinfo else self._zone)
                since = (read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH_UTC
                return _ns_of(since) - offset_ns, -1, zone
        if not self._form and (number := _SINCE_1970.fullmatch(text)):
            # Seconds until the year 5138; longer numbers are milli-, micro- or nanoseconds.
            places = 9 - 3 * sum(int(number[1]) >= least for least in (1e11, 1e14, 1e17))
            ns = int(number[1] + (number[2] or "")[:places].ljust(places, "0"))
            if ns < 1 << 63:
                return ns, -1, _IN_UTC
        match = None if self._form else _TEXT.fullmatch(text)
        if match is None or (match["year"] is None) != (match["day"] is None):
            raise _bad_time(text, line)
        hour, minute, second = (int(match[key] or 0) for key in ("hour", "minute", "second"))
        if half := match["half"]:
            hour = hour % 12 + 12 * (half[0] in "pP") if 0 < hour <= 12 else 24
        if hour > 23 or minute > 59 or second > 59:
            raise _bad_time(text, line)
        ns = ((hour * 60 + minute) * 60 + second) * 10**9
        ns += int((match["fraction"] or "").ljust(9, "0"))
        zone, offset_ns = self._zone_of((match["zone"] or self._zone).strip())
        day = match["date"] or f"{match['day']} {match['year']}"
        number_of_day, _ = self._dates.setdefault(day, (len(self._dates), line))
        return ns - offset_ns, number_of_day, zone

    def _zone_of(self, name: str) -> tuple[int, int]:
        """Return the number of a zone, and its offset in ns if its name states it."""
        name = name.lower()
        if name in ("z", "utc", "gmt"):
            return _IN_UTC, 0
        if match := _OFFSET.fullmatch(name):
            seconds = int(match["hours"]) * 3600 + int(match["minutes"] or 0) * 60
            return _IN_UTC, (-seconds if match["sign"] == "-" else seconds) * 10**9
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name), 0

    def resolve(self, zone: ZoneInfo) -> tuple[NDArray[np.int64], bool]:
        """Return all times in UTC, and True if some are in the zone of the user.

        `UNCERTAIN` stands for local times that a change of the clock skips or repeats. Raise
        LogError for ambiguous dates, a date of another order, or times of another zone.
        """
        clock = np.array(self._ns, np.int64)
        if self._dates:
            clock += np.array([*self._days(), 0], np.int64)[np.array(self._date)] * _DAY_NS
        zones = np.array(self._zones)
        local = zones != _IN_UTC
        # A zone's clock changes at full minutes; a conversion of each sample would take long.
        minutes, place = np.unique(clock[local] // _MINUTE_NS, return_inverse=True)
        if len(minutes):
            offsets = np.array([_offset_ns(zone, int(minute)) for minute in minutes], np.int64)
            offsets, is_certain = offsets[place], offsets[place] != UNCERTAIN
            clock[local] = np.where(is_certain, clock[local] - offsets, UNCERTAIN)
        for number, name in enumerate(self._names[2:], 2):
            hours = np.unique(clock[(zones == number) & (clock != UNCERTAIN)] // (60 * _MINUTE_NS))
            starts = (_EPOCH_UTC + timedelta(hours=int(hour)) for hour in hours)
            names = {(start.astimezone(zone).tzname() or "").lower() for start in starts}
            if name != zone.key.lower() and names - {name}:
                raise LogError(POWER_TEXT.FOREIGN_ZONE, named=printable(name, 40), zone=zone.key)
        if len(clock) and (clock == UNCERTAIN).all():
            raise LogError(POWER_TEXT.ONLY_CHANGED_TIMES, zone=zone.key)
        return clock, bool(local.any())

    def _days(self) -> list[int]:
        """Return the days since 1970 of each date; all dates of a log have the same order."""
        orders = [
            key for key in _ORDERS if not self._order or key[:3] == self._order or "named" in key
        ]
        if not self._order:
            orders.remove("ymd, short")
        read = [[_day(text, _ORDERS[key]) for text in self._dates] for key in orders]
        # An order that fits fewer dates than another one is wrong.
        least = min(days.count(None) for days in read)
        fitting = [days for days in read if days.count(None) == least]
        for (text, (_, line)), *days in zip(self._dates.items(), *fitting, strict=True):
            if len({day for day in days if day is not None}) > 1:
                raise LogError(POWER_TEXT.DATES_UNCLEAR, date=printable(text, 40))
            if days[0] is None:
                raise _bad_time(text, line)
        return [day for day in fitting[0] if day is not None]


def is_time(text: str, clock: Clock | None = None) -> bool:
    """Return True if a clock can read a text, by default one of dates with times."""
    try:
        (clock or Clock()).add(text, 0)
    except LogError:
        return False
    return True


def zone_in(text: str) -> str:
    """Find the zone that a text names, as UTC+02:00, CEST or Europe/Berlin; "" for none."""
    named = (zone[0] for zone in _ZONE.finditer(text))
    return next((zone for zone in named if "/" not in zone or zone in available_timezones()), "")


def first_change(zone: ZoneInfo, first_ns: int, last_ns: int) -> datetime | None:
    """Find the first change of the zone's clock between two moments in UTC nanoseconds."""
    offset = None
    for minute in range(first_ns // _MINUTE_NS, last_ns // _MINUTE_NS + 1):
        at = (_EPOCH_UTC + timedelta(minutes=minute)).astimezone(zone)
        if offset is not None and at.utcoffset() != offset:
            return at
        offset = at.utcoffset()
    return None


def _bad_time(text: str, line: int) -> LogError:
    return LogError(POWER_TEXT.LINE_TIME, line=line, text=printable(text, 40))


def _ns_of(since: timedelta) -> int:
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _offset_ns(zone: ZoneInfo, minute: int) -> int:
    """Return the offset of a minute of local time, or UNCERTAIN if it is skipped or repeated."""
    try:
        local = (_EPOCH_UTC + timedelta(minutes=minute)).replace(tzinfo=zone)
    except OverflowError:
        return UNCERTAIN
    first, second = local.utcoffset(), local.replace(fold=1).utcoffset()
    return _ns_of(first) if first is not None and first == second else UNCERTAIN


def _day(text: str, pattern: str) -> int | None:
    """Return the days since 1970 of a date, None if it is not written as the pattern."""
    match = re.fullmatch(pattern, text, re.IGNORECASE)
    if match is None:
        return None
    month, year = match["m"], int(match["y"])
    with suppress(ValueError):
        number = int(month) if month.isdigit() else _MONTHS.index(month[:3].lower()) + 1
        if year <= _LAST_YEAR:
            read = date(year + 2000 * (year < 100), number, int(match["d"]))
            return (read - date(1970, 1, 1)).days
    return None
