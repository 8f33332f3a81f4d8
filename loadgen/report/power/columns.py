"""The columns of power logs: times, outlets and figures, from the titles in the header.

A unit in a title, or in the cells below it, states the quantity. What is not stated is refused,
unless the user or a make names it. Every column of power is used or listed as unused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import available_timezones

from loadgen.report.power.formats import CHOICES, Format, is_like, words
from loadgen.report.power.messages import PowerMessage
from loadgen.report.power.numbers import number_of
from loadgen.report.power.units import (
    KILOWATT_HOUR,
    UNITS,
    WATT,
    Unit,
    has_strange_unit,
    is_unit,
    unit_in,
    unit_of,
)

KEYS = {"power": "watts", "energy": "kwh", "interval": "interval"}
"""Kinds of columns with figures, and the keys that name such columns."""

AROUND_NAMES = " -:/|,.()[]#"
_INDEX = re.compile(r"(\d+)(?!\d|[^\W_]|\s?(?:m?s|sec|m|min|h|hr|d)(?![^\W_]))")
"""The number of an outlet; not a span of time or a voltage, such as 5 min or 12V."""
_QUANTILE = re.compile(r"p\d\d+", re.IGNORECASE)
_ZONE = re.compile(
    r"(?<![^\W_])(?:(?:utc|gmt)(?:\s?[+-]\d\d?(?::?\d\d)?)?|[a-z_]+/[a-z_/]+"
    r"|(?:ce|ee|m|p|c|e|ae|nz)(?:s|d)t|cet|eet|bst|ist|msk|jst|kst|hkt|sgt)(?![^\W_])",
    re.IGNORECASE,
)


class LogError(ValueError):
    """A log that cannot be used; `values` are those of the sentence without the log's name."""

    def __init__(self, sentence: PowerMessage, **values: Any) -> None:
        super().__init__(sentence.name)
        self.sentence, self.values = sentence, values


@dataclass(frozen=True, slots=True)
class Heading:
    """A column, or a series of a table with a line for each quantity.

    `kind` is one of `KEYS`, another kind of column, or "". `outlet` is the name of the outlet.
    `statistic` is "mean", or a word such as max. `is_counter` is True if the title, or a make,
    states a counter. `named` is the key that names the column, `why` the reason for leaving it out.
    """

    place: int
    title: str
    kind: str
    unit: Unit | None = None
    outlet: str = ""
    statistic: str = ""
    is_counter: bool = False
    unclear: str = ""
    named: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a log's lines, numbered from 0.

    `time` are the columns that make up the time, `zone` is the zone in the header. Each figure has
    its column, and `names` has the columns that name the outlet of a line. In a table with a line
    for each quantity, `value` has the number, `names` the quantity, and `unit` its unit.
    `numbers` are columns of other numbers, which may prove the decimal mark.
    """

    format: Format
    titles: tuple[str, ...]
    time: tuple[int, ...]
    zone: str
    figures: tuple[Heading, ...] = ()
    names: tuple[int, ...] = ()
    value: int | None = None
    unit: int | None = None
    numbers: tuple[int, ...] = ()
    unused: tuple[Heading, ...] = ()


# --- one title ------------------------------------------------------------------------------


def words_of(title: str) -> list[str]:
    """Split a title into its words, in lower case; activePower and active_power have two."""
    spaced = re.sub(r"(?<=[^\W\d_][^\W\d_])(?=[A-Z][a-zäöüé])|(?<=[a-zäöüé])(?=[A-Z])", " ", title)
    return [word.casefold() for word in re.findall(r"[^\W_]+", spaced)]


def heading_of(title: str, form: Format, place: int = 0, cell: str = "") -> Heading:
    """Return the heading of a title; `cell` is a value below it, which may state the unit.

    Raise LogError if a title that a key names states another quantity.
    """
    heading = _read_title(title, place, cell)
    key = next((k for k in _NAMING if any(is_like(title, p) for p in getattr(form, k))), "")
    if not key:
        why = next((why for pattern, why in form.unused.items() if is_like(title, pattern)), "")
        return replace(heading, kind="unused", why=why) if why else heading
    if key not in _QUANTITIES:
        return replace(heading, kind=key, named=key)
    kind = next(kind for kind, name in KEYS.items() if name == key)
    counter = heading.is_counter or key not in form.named
    statistic = heading.statistic if heading.statistic == "mean" else ""
    heading = replace(
        heading, kind=kind, named=key, is_counter=counter, statistic=statistic, why=""
    )
    return with_unit(heading, form, named=True)


_NAMING = (*KEYS.values(), "time", "date", "outlet", "series", "value")
_QUANTITIES = {"watts": "power", "kwh": "energy", "interval": "energy"}


def _read_title(title: str, place: int, cell: str) -> Heading:
    unit, unclear, rest = None, "", title
    try:
        unit, rest = unit_in(title)
        number = number_of(cell, ".") or number_of(cell, ",")
        if unit is None and number is not None:
            unit = unit_of(number.unit)
    except ValueError as error:
        unclear = str(error)
    listed = words_of(rest)
    there = frozenset(listed)
    extreme = next((word for word in listed if word in words("statistic")), "")
    kind, why = "", ""
    if there & words("other_power"):
        kind, why = "other", "not real power"
    elif re.search(r"\b(?:i?rate|increase|i?delta|deriv)\(", title):
        kind, why = "other", "a function of another series"
    elif unit is not None and (unit.kind != "other" or not there & words("time")):
        kind = unit.kind
    elif unclear:
        kind = "energy" if there & words("energy") else "power"
    else:
        kind = _kind_of(there, len(listed))
    statistic = extreme or ("mean" if there & words("mean") else "")
    outlet = _outlet_in(rest)
    is_counter = bool(there & words("counter"))
    return Heading(place, title, kind, unit, outlet, statistic, is_counter, unclear, why=why)


def _kind_of(there: frozenset[str], count: int) -> str:
    """Return the kind of a column by the words of its title."""
    if there & words("zone") or ("offset" in there and there & {"utc", "gmt"}):
        return "zone"
    if there & (words("time") | words("date")) and not there & words("no_time"):
        return "time" if there & words("time") else "date"
    for key in ("other", "energy", "power"):
        if there & words(key):
            return key
    for key, most in (("outlet", 2), ("series", 2), ("value", 1), ("unit", 1)):
        if there & words(key) and count <= most:
            return key
    return ""


def _outlet_in(rest: str) -> str:
    """Remove words for the quantity from a title; the rest names the outlet."""
    omitted = frozenset().union(
        *(words(key) for key in ("noise", "power", "energy", "mean", "statistic"))
    )
    pieces = [
        piece
        for piece in re.split(r"(\s+|[.()\[\]]|(?<=[a-z])(?=[A-Z]))", re.sub(r"_+", " ", rest))
        if not (words_of(piece) and set(words_of(piece)) <= omitted)
    ]
    return re.sub(r"\s+", " ", "".join(pieces)).strip(AROUND_NAMES)


def with_unit(heading: Heading, form: Format, *, named: bool) -> Heading:
    """Return a heading of a figure with its unit; raise LogError if it is not certain."""
    key = KEYS[heading.kind]
    quantity = _QUANTITIES[key]
    unit_key = "unit" if quantity == "power" else "counter_unit"
    default = getattr(form, unit_key) if named or unit_key in form.named else ""
    title, unit = heading.title, heading.unit
    if unit is not None and unit.kind != quantity:
        raise LogError(PowerMessage.NOT_THE_QUANTITY, column=title, quantity=quantity, key=key)
    if heading.unclear and not is_unit(heading.unclear):
        raise LogError(PowerMessage.UNIT_SCALED, column=title, unit=heading.unclear)
    # Only the prefix is open, so that a unit with another one contradicts the title.
    if heading.unclear and not (named and default[:1] in ("m", "M")):
        values: dict[str, Any] = {"column": title, "unit": heading.unclear}
        values |= {"key": key, "unit_key": unit_key}
        choices = tuple(name for name in CHOICES[unit_key] if name[0] in "mM")
        raise LogError(PowerMessage.UNIT_UNCLEAR, **values, choices=choices)
    if default and unit_key in form.named and unit not in (None, UNITS[default]):
        values = {"column": title, "unit_key": unit_key, "unit": default}
        raise LogError(PowerMessage.UNIT_CONTRADICTED, **values)
    there = set(words_of(title))
    own, energy = words(quantity), words("energy" if quantity == "power" else "power")
    if unit is None and named and there & (words("measured") | energy) and not there & own:
        raise LogError(PowerMessage.NOT_THE_QUANTITY, column=title, quantity=quantity, key=key)
    if unit is None and default:
        unit = UNITS[default]
    if unit is None:
        if not named or has_strange_unit(title):
            values = {"column": title, "key": unit_key, "choices": tuple(CHOICES[unit_key])}
            raise LogError(PowerMessage.UNIT_MISSING, **values)
        unit = WATT if quantity == "power" else KILOWATT_HOUR
    return replace(heading, unit=unit)


# --- a layout from titles -------------------------------------------------------------------


def layout_of(titles: Sequence[str], cells: Sequence[str], form: Format) -> Layout | None:
    """Return the layout of a log with these titles; None if they do not name time and figures.

    `cells` are those of the first line. Raise LogError if titles are ambiguous.
    """
    split: dict[str, Any] = {key: _patterns(getattr(form, key), titles) for key in _NAMING}
    form = replace(form, **split)
    if any(_missing(split[key], titles) for key in form.named & split.keys()):
        return None
    headings = [
        heading_of(title, form, place, cell)
        for place, (title, cell) in enumerate(zip(titles, cells, strict=True))
    ]
    headings = _only_named(headings, form)
    kinds: dict[str, list[Heading]] = {}
    for heading in headings:
        kinds.setdefault(heading.kind, []).append(heading)
    time = _time_columns(kinds.get("time", []), kinds.get("date", []))
    figures = [heading for kind in KEYS for heading in kinds.get(kind, [])]
    value = kinds.get("value", [])
    if len(figures) == 1 and figures[0].unit is None and kinds.get("unit"):
        figures, value = [], figures
    figures = _figures(figures, form)
    names = _names(kinds.get("outlet", []))
    if not figures and len(value) == 1:
        names = [*names, *kinds.get("series", [])]
    elif not figures:
        return None
    if not time:
        raise LogError(PowerMessage.NO_TIME, header=", ".join(titles)[:120])
    chosen = [heading for heading in figures if not heading.why]
    if names and chosen:
        _require_single(chosen)
    return Layout(
        form,
        tuple(titles),
        time=tuple(heading.place for heading in [*time, *kinds.get("zone", [])[:1]]),
        zone=next(filter(None, (zone_in(heading.title) for heading in time)), ""),
        figures=tuple(chosen),
        names=tuple(heading.place for heading in names),
        value=None if figures else value[0].place,
        unit=next((heading.place for heading in kinds.get("unit", [])), None),
        numbers=tuple(heading.place for heading in kinds.get("other", [])),
        unused=tuple(h for h in (*headings, *figures) if h.why),
    )


def _patterns(patterns: Sequence[str], titles: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of titles, of which A+B is two unless a title has this name."""
    split: list[str] = []
    for pattern in patterns:
        is_title = any(is_like(title, pattern) for title in titles)
        split += [pattern] if is_title else [part.strip() for part in pattern.split("+")]
    return tuple(split)


def _missing(patterns: Sequence[str], titles: Sequence[str]) -> list[str]:
    return [p for p in patterns if not any(is_like(title, p) for title in titles)]


def _only_named(headings: Sequence[Heading], form: Format) -> list[Heading]:
    """Leave out columns in whose place the user or the make names others."""
    figures = {*KEYS, "value", "series"}
    named = {heading.kind for heading in headings if heading.named}
    dropped: set[str] = set()
    for group in ({"time", "date"}, {"outlet"}):
        dropped |= group if group & named else set()
    if form.named & {*KEYS.values(), "value", "series"}:
        dropped |= figures
    return [
        heading
        if heading.named or heading.kind not in dropped
        else replace(heading, kind="unused", why="not named" if heading.kind in figures else "")
        for heading in headings
    ]


def _figures(figures: Sequence[Heading], form: Format) -> list[Heading]:
    """Return the columns of figures with their units; those with `why` are not used."""
    stated = any(h.kind == "power" and h.unit is not None and not h.unclear for h in figures)
    read = []
    for heading in figures:
        unstated = heading.unit is None and not heading.named
        if unstated and stated and KEYS[heading.kind] not in form.named:
            read.append(replace(heading, why="no unit is stated"))
        else:
            read.append(heading if heading.named else with_unit(heading, form, named=False))
    powers = _momentary([h for h in read if h.kind == "power" and not h.why])
    energies = [h for h in read if h.kind != "power" and not h.why]
    used = {heading.outlet for heading in powers if not heading.why}
    pair = len(used) == 1 and len(energies) == 1
    paired = []
    for heading in energies:
        same = [h for h in energies if h.outlet == heading.outlet]
        if pair:
            heading = replace(heading, outlet=next(iter(used)))
        elif used and (heading.outlet not in used or len(same) > 1):
            heading = replace(heading, why="watts are used")
        elif len(same) > 1:
            titles = tuple(h.title for h in same)
            raise LogError(PowerMessage.SEVERAL_COLUMNS, key="kwh", titles=titles)
        paired.append(heading)
    return [*(h for h in read if h.why), *powers, *paired]


def _momentary(powers: Sequence[Heading]) -> list[Heading]:
    """Choose the momentary watts of each outlet, or else their mean; the others get a `why`.

    Raise LogError if that is not clear.
    """
    if any(heading.named for heading in powers) and all(heading.named for heading in powers):
        return _distinct(powers)
    chosen: dict[str, Heading] = {}
    for statistics in ({""}, {"mean"}):
        for heading in powers:
            if heading.statistic not in statistics or (
                statistics == {"mean"} and heading.outlet in chosen
            ):
                continue
            other = chosen.setdefault(heading.outlet, heading)
            if other is not heading:
                titles = (other.title, heading.title)
                raise LogError(PowerMessage.SEVERAL_COLUMNS, key="watts", titles=titles)
    lonely = tuple(heading.title for heading in powers if heading.outlet not in chosen)
    if lonely:
        raise LogError(PowerMessage.ONLY_STATISTICS, titles=lonely[:8])
    return [
        heading if chosen[heading.outlet] is heading else replace(heading, why=heading.statistic)
        for heading in powers
    ]


def _distinct(powers: Sequence[Heading]) -> list[Heading]:
    """Return columns that were named, with their titles as names of outlets where these repeat."""
    names = [heading.outlet for heading in powers]
    return [
        heading if names.count(heading.outlet) == 1 else replace(heading, outlet=heading.title)
        for heading in powers
    ]


def _require_single(figures: Sequence[Heading]) -> None:
    """Raise LogError for two columns of a kind in a table that names the outlet of each line."""
    for kind, key in KEYS.items():
        titles = tuple(heading.title for heading in figures if heading.kind == kind)
        if len(titles) > 1:
            raise LogError(PowerMessage.SEVERAL_COLUMNS, key=key, titles=titles)


def _names(outlets: Sequence[Heading]) -> list[Heading]:
    """Choose the most distinctive column of outlets: an id before a name; all that are named."""
    named = [heading for heading in outlets if heading.named]
    keys = ("id", "number", "no", "nr", "num", "index", "name", "label")

    def rank(heading: Heading) -> int:
        ranks = [keys.index(word) for word in words_of(heading.title) if word in keys]
        return min(ranks, default=keys.index("index"))

    return named or sorted(outlets, key=rank)[:1]


def _time_columns(times: Sequence[Heading], dates: Sequence[Heading]) -> list[Heading]:
    """Choose the column of times, or those of dates and times; empty if both are missing."""
    if len(times) == len(dates) == 1:
        complete = {"timestamp", "datetime"} | words("date")
        alone = complete & set(words_of(times[0].title)) and not dates[0].named
        return [times[0]] if alone else [dates[0], times[0]]
    complete_times = [h for h in times if {"timestamp", "datetime"} & set(words_of(h.title))]
    for candidates in (times, complete_times, [h for h in times if zone_in(h.title)]):
        if len(candidates) == 1:
            return [candidates[0]]
    if not times and len(dates) == 1:
        return [dates[0]]
    if len(times) + len(dates) > 1:
        titles = tuple(heading.title for heading in (*times, *dates))
        raise LogError(PowerMessage.SEVERAL_TIMES, titles=titles[:8])
    return []


def zone_in(text: str) -> str:
    """Find the zone that a text names, as UTC+02:00, CEST or Europe/Berlin; "" for none."""
    named = (zone[0] for zone in _ZONE.finditer(text))
    return next((zone for zone in named if "/" not in zone or zone in available_timezones()), "")


def are_alike(names: Sequence[str]) -> bool:
    """Return True if names differ in one number and nothing else, so that they are of one kind."""
    if len(names) < 2:
        return True
    if any(_QUANTILE.fullmatch(name) for name in names):
        return False
    pieces = [_INDEX.split(name.casefold()) for name in names]
    texts = {tuple(parts[::2]) for parts in pieces}
    if len(texts) > 1:
        return False
    numbers = list(zip(*(parts[1::2] for parts in pieces), strict=True))
    return sum(len(set(column)) > 1 for column in numbers) == 1
