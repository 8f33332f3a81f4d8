"""Times of power logs: the order of their dates, their zones, and changes of clocks. Pure.

04/05/2013 is in April or in May. The whole log decides, as soon as one of its days is above the
12th. An ambiguous log is refused.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_DAY_S = 86_400
_MINUTE_NS = 60 * 10**9
_UNITS_OF_EPOCH = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000), (np.inf, 1_000_000_000))
"""(upper bound, units per second) of times since 1970: seconds until the year 5138."""

_EPOCH = r"(?!20\d{12}$)\d{6,20}(?:[.,]\d+)?"
"""A number since 1970; 20130426100405 is a date and a time instead."""
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = (
    rf"\d{{1,4}}[-/.]\s?(?:\d{{1,2}}|{_MONTH})[-/.]\s?\d{{1,4}}|\d{{8}}"
    rf"|\d{{1,2}}\.?\s+{_MONTH},?\s+\d{{4}}|{_MONTH}\s+\d{{1,2}},?\s+\d{{4}}"
)
_TEXT = re.compile(
    r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?"
    rf"(?P<date>{_DATE})(?:\s*[T_,]\s*|\s+|(?<=^\d{{8}}))"
    r"(?P<hour>\d{1,2}):?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,:](?P<fraction>\d{1,9})\d*)?)?"
    r"\s*(?P<half>[ap]\.?m\.?(?![a-z]))?"
    r"\s*\(?(?P<zone>[a-z_]+/[a-z_/+-]+|[a-z]{1,5}|(?:utc|gmt)?\s?[+-]\d\d?(?::?\d\d)?)?\)?",
    re.IGNORECASE,
)
_OFFSET = re.compile(r"(?:utc|gmt)?\s?(?P<sign>[+-])(?P<hours>\d\d?):?(?P<minutes>\d\d)?")
_IN_UTC = ("z", "utc", "gmt")

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

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class UnclearDatesError(ValueError):
    """Dates that fit more than one order; its text is an example."""


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds since 1970 by the clock of each text; `fine` is False for other text.

    `zones` are the zones that the texts name, in lower case, "" for none. Times in UTC or with
    an offset are already converted and have "utc".
    """

    clock_ns: NDArray[np.int64]
    fine: NDArray[np.bool_]
    zones: "pd.Series[str]"


def times_of(texts: "pd.Series[str]", order: str = "", form: str = "") -> Times:
    """Parse the times in these texts.

    `order` is dmy, mdy or ymd, "" if unknown; `form` is a format of strptime for all of them.
    Raise UnclearDatesError if dates are ambiguous.
    """
    if form:
        return _by_form(texts, form)
    epoch = texts.str.fullmatch(_EPOCH)
    if epoch.any():
        clock_ns = _since_epoch(texts.where(epoch, "0"))
        return Times(clock_ns, epoch.to_numpy(bool), pd.Series("utc", texts.index))
    parts = texts.str.extract(rf"^(?:{_TEXT.pattern})$", flags=re.IGNORECASE).fillna("")
    days = _days(parts["date"], order)
    number = {
        key: pd.to_numeric(parts[key], errors="coerce").fillna(0).to_numpy(np.int64)
        for key in ("hour", "minute", "second")
    }
    half = parts["half"].str[:1].str.lower().to_numpy(str)
    hour = np.where(half == "", number["hour"], number["hour"] % 12 + 12 * (half == "p"))
    fine = (days.notna() & (parts["hour"] != "")).to_numpy(bool)
    fine &= (hour < 24) & (number["minute"] < 60) & (number["second"] < 60)
    fine &= (half == "") | ((number["hour"] > 0) & (number["hour"] <= 12))
    fraction_ns = parts["fraction"].str.ljust(9, "0").where(parts["fraction"] != "", "0")
    zones = parts["zone"].str.strip().str.lower()
    offset_s = _offsets(zones)
    clock_s = days.fillna(0).to_numpy(np.int64) * _DAY_S
    clock_s += hour * 3600 + number["minute"] * 60 + number["second"]
    clock_s -= offset_s.fillna(0).to_numpy(np.int64)
    return Times(
        clock_s * 1_000_000_000 + fraction_ns.to_numpy(np.int64),
        fine,
        zones.where(offset_s.isna(), "utc"),
    )


def _by_form(texts: "pd.Series[str]", form: str) -> Times:
    zones = pd.Series("utc" if "%z" in form else "", texts.index)
    try:
        read = pd.to_datetime(texts, format=form, errors="coerce", utc=True)
    except ValueError:  # not a format
        read = pd.Series(pd.NaT, texts.index, dtype="datetime64[ns, UTC]")
    clock = read.dt.tz_convert(None)
    fine = read.notna().to_numpy(bool)
    return Times(
        clock.fillna(pd.Timestamp(0)).astype("datetime64[ns]").to_numpy(np.int64), fine, zones
    )


def _since_epoch(texts: "pd.Series[str]") -> NDArray[np.int64]:
    """Split digits before they become floats, which cannot hold nanoseconds of this century."""
    parts = texts.str.replace(",", ".", regex=False).str.partition(".")
    integral = parts[0].astype(float).to_numpy()
    scale = np.select(
        [integral < below for below, _ in _UNITS_OF_EPOCH], [u for _, u in _UNITS_OF_EPOCH]
    )
    fraction = ("0." + parts[2].where(parts[2] != "", "0")).astype(float).to_numpy()
    exact = np.array([int(text) for text in parts[0]], object)
    nanoseconds = exact * (1_000_000_000 // scale).astype(object)
    nanoseconds += np.rint(fraction * (1_000_000_000 // scale)).astype(np.int64).astype(object)
    limit = np.iinfo(np.int64).max
    bounded: NDArray[np.int64] = np.minimum(nanoseconds, limit).astype(np.int64)
    return bounded


def _offsets(zones: "pd.Series[str]") -> "pd.Series[float]":
    """Return the offsets that zones state, in seconds east of UTC; NaN for a name or no zone."""
    offsets: dict[str, float] = dict.fromkeys(_IN_UTC, 0.0)
    for zone in zones.unique():
        if match := _OFFSET.fullmatch(zone):
            seconds = int(match["hours"]) * 3600 + int(match["minutes"] or 0) * 60
            offsets[zone] = -seconds if match["sign"] == "-" else seconds
    return zones.map(offsets).astype(float)


# --- dates ----------------------------------------------------------------------------------


def _days(dates: "pd.Series[str]", order: str) -> "pd.Series[float]":
    """Return the days since 1970 of each date, NaN for other text; raise UnclearDatesError."""
    distinct = pd.Series(dates.unique(), dtype=object)
    distinct = distinct[distinct != ""]
    allowed = [key for key in _ORDERS if not order or key[:3] == order or "named" in key]
    if order == "ymd":
        allowed.append("ymd, short")
    read = {key: _days_in(distinct, _ORDERS[key]) for key in dict.fromkeys(allowed)}
    # All dates of a log have the same order, so an order that fits fewer of them is wrong.
    most = max((int(days.notna().sum()) for days in read.values()), default=0)
    fitting = [days for days in read.values() if days.notna().sum() == most]
    if not most:
        return pd.Series(np.nan, dates.index)
    first = fitting[0]
    for other in fitting[1:]:
        differing = (first != other) & first.notna() & other.notna()
        if differing.any():
            raise UnclearDatesError(str(distinct[differing].iloc[0]))
    return dates.map(dict(zip(distinct, first, strict=True))).astype(float)


def _days_in(dates: "pd.Series[str]", pattern: str) -> "pd.Series[float]":
    parts = dates.str.extract(rf"^(?:{pattern})$", flags=re.IGNORECASE)
    months = parts["m"].str[:3].str.lower().map({name: i for i, name in enumerate(_MONTHS, 1)})
    numbers = {key: pd.to_numeric(parts[key], errors="coerce") for key in "ymd"}
    year = numbers["y"] + np.where(parts["y"].str.len() == 2, 2000, 0)
    table = pd.DataFrame({"year": year, "month": numbers["m"].fillna(months), "day": numbers["d"]})
    moments = pd.to_datetime(table, errors="coerce")
    return (moments - pd.Timestamp(0)) / pd.Timedelta(days=1)


# --- clocks ---------------------------------------------------------------------------------


def utc_ns(times: Times, zone: ZoneInfo) -> NDArray[np.int64]:
    """Convert times to UTC; times without a zone are in `zone`.

    The least int64 marks a local time that a change of the clock skips or repeats.
    """
    local = times.zones.to_numpy() != "utc"
    # A zone's clock changes at full minutes; a conversion of each sample would take long.
    minute = times.clock_ns // _MINUTE_NS
    distinct, place = np.unique(minute[local], return_inverse=True)
    clock = pd.Series(distinct * 60).astype("datetime64[s]")
    read = clock.dt.tz_localize(zone, ambiguous="NaT", nonexistent="NaT").dt.tz_convert(None)
    offset_s = (clock - read) / pd.Timedelta(seconds=1)
    moments = times.clock_ns.copy()
    zone_offset_s = offset_s.to_numpy(float)[place]
    unclear = np.isnan(zone_offset_s)
    moments[local] -= np.where(unclear, 0, zone_offset_s).astype(np.int64) * 1_000_000_000
    moments[np.flatnonzero(local)[unclear]] = np.iinfo(np.int64).min
    return moments


def changes_of(zone: ZoneInfo, first_ns: int, last_ns: int) -> list[int]:
    """List the changes of the zone's clock between two moments, all in UTC nanoseconds."""
    # A zone's clock changes at full minutes.
    minutes = pd.Series(np.arange(first_ns // _MINUTE_NS, last_ns // _MINUTE_NS + 1) * 60)
    clock = pd.to_datetime(minutes, unit="s", utc=True).dt.tz_convert(zone).dt.tz_localize(None)
    changed = (clock.astype("datetime64[s]").astype(np.int64) - minutes).diff().fillna(0) != 0
    return [minute * 10**9 for minute in minutes[changed].tolist()]


def foreign_zones(times: Times, wall_ns: NDArray[np.int64], zone: ZoneInfo) -> NDArray[np.bool_]:
    """Mark times that name a zone, such as PDT, other than `zone` and its abbreviation then."""
    named = ~times.zones.isin(("", "utc", zone.key.casefold())).to_numpy()
    foreign = np.zeros(len(named), bool)
    hours = wall_ns[named] // 3_600_000_000_000
    pairs = pd.DataFrame({"hour": hours, "zone": times.zones[named].to_numpy()})
    abbreviations = {
        pair: datetime.fromtimestamp(pair[0] * 3600, UTC).astimezone(zone).tzname()
        for pair in pairs.drop_duplicates().itertuples(index=False, name=None)
        if pair[0] > 0
    }
    foreign[named] = [
        (abbreviations.get(pair) or pair[1]).casefold() != pair[1]
        for pair in pairs.itertuples(index=False, name=None)
    ]
    return foreign
