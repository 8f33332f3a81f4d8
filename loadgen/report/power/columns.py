"""The columns of power logs: times, outlets and figures, from the titles in the header.

A unit in a title, or in the cells below it, states the quantity. A column without one is refused
unless the user or a make names it. Every column of power is used or listed as unused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.report.power.formats import CHOICES, FIGURES, INSTEAD, TITLES, Format, is_like
from loadgen.report.power.times import LogError, is_time
from loadgen.report.power.units import UNITS, Unit, expression, number_of, unit_in, unit_of, words
from loadgen.sentences import POWER_TEXT

AROUND_NAMES = " -:/|,.()[]#"
_ROLES = {"other": 99, "kwh": 99, "watts": 99, "outlet": 2, "series": 2, "value": 1, "units": 1}
"""Roles by the words of a title, and the most words that a title of the role has."""
_OF_UNIT = {"power": "watts", "energy": "kwh"}
_NOT_REAL = "not real power"
NO_WATTS_THERE = "energy of an outlet without watts"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or its `cells` in the `rows` of one outlet or quantity.

    `role` is a key of titles, "zone", "other" or "", `statistic` "mean" or a word such as max, and
    `why` the reason for leaving the column out. `is_counter` is True if its title or make states a
    counter, `is_named` if a key names it.
    """

    place: int
    title: str
    role: str
    unit: Unit | None = None
    outlet: str = ""
    statistic: str = ""
    is_counter: bool = False
    is_named: bool = False
    why: str = ""
    rows: Sequence[int] = ()
    cells: Sequence[str] = ()

    @property
    def is_power(self) -> bool:
        return self.unit.kind == "power" if self.unit is not None else self.role == "watts"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a log that are read, and those with a reason to be left out.

    Cells of a time, or of an outlet's name, are joined in the order of their columns.
    """

    format: Format
    titles: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def is_long(self) -> bool:
        """True for a table with a line for each quantity, which has no column of a figure."""
        return any(column.role == "value" for column in self.columns)

    def places(self, *roles: str) -> list[int]:
        return [column.place for column in self.columns if column.role in roles]


def words_of(title: str) -> list[str]:
    """Split a title into its words, in lower case; activePower and active_power have two."""
    spaced = re.sub(r"(?<=[^\W\d_][^\W\d_])(?=[A-Z][a-zäöüé])|(?<=[a-zäöüé])(?=[A-Z])", " ", title)
    return [word.casefold() for word in re.findall(r"[^\W_]+", spaced)]


def column_of(title: str, form: Format, place: int = 0, cell: str = "") -> Column:
    """Return the column of a title; `cell` is a value below it, which may state the unit."""
    unit, rest = unit_in(title)
    if unit is None and (number := number_of(cell)) is not None:
        unit = unit_of(number.unit)
    listed = words_of(re.sub("[€$£]", " price ", rest))
    there = frozenset(listed)
    key = next((k for k in TITLES if any(is_like(title, p) for p in getattr(form, k))), "")
    reasons = [why for pattern, why in form.unused.items() if is_like(title, pattern)]
    if there & words("other_power"):
        reasons.append(_NOT_REAL)
    if expression("function").search(title):
        reasons.append("a part, or a function of another series")
    statistic = "mean" if there & words("mean") else ""
    if not key:
        quantiles = expression("quantile").findall(title)
        extremes = (word for word in listed if word in words("statistic"))
        statistic = next(iter((*extremes, *quantiles)), statistic)
    return Column(
        place,
        title,
        key or ("other" if reasons else _role_of(unit, listed)),
        unit,
        _outlet_in(rest),
        statistic,
        is_counter=bool({*words_of(title)} & words("counter")) or key not in {"", *form.named},
        is_named=bool(key),
        why="" if key or not reasons else reasons[0],
    )


def quantity_of(name: str, value: Column, cell: str, form: Format) -> Column:
    """Return the column of a quantity that lines name; `cell` may state its unit."""
    column = replace(column_of(name, form, value.place, cell), title=name or value.title)
    if column.is_named:
        return column
    role, why = column.role, column.why
    if column.unit is not None and not why:
        role = _OF_UNIT.get(column.unit.kind, "other")
    if role == "other" and not why:
        why = "another quantity"
    if form.named & FIGURES.keys():
        why = "not named"
    return replace(column, role=role if role in FIGURES or why else "watts", why=why)


def _role_of(unit: Unit | None, listed: Sequence[str]) -> str:
    """Return the role of a column by its unit, or else by the words of its title."""
    there = frozenset(listed)
    if there & words("price"):
        return "other"
    if unit is not None and (unit.kind != "other" or not there & words("time")):
        return _OF_UNIT.get(unit.kind, "other")
    if there & words("zone") or ("offset" in there and there & {"utc", "gmt"}):
        return "zone"
    if there & (words("time") | words("date")) and not there & words("no_time"):
        return "time" if there & words("time") else "date"
    fitting = (role for role, most in _ROLES.items() if there & words(role) and len(listed) <= most)
    return next(fitting, "")


def _outlet_in(rest: str) -> str:
    """Remove words for the quantity from a title; the rest names the outlet."""
    keys = ("noise", "watts", "kwh", "mean", "statistic")
    omitted = frozenset[str]().union(*map(words, keys))
    pieces = re.split(r"(\s+|[.()\[\]]|(?<=[a-z])(?=[A-Z]))", re.sub(r"_+", " ", rest))
    name = "".join(p for p in pieces if not (words_of(p) and set(words_of(p)) <= omitted))
    return re.sub(r"\s+", " ", name).strip(AROUND_NAMES)


def layout_of(titles: Sequence[str], cells: Sequence[str], form: Format) -> Layout | None:
    """Return the layout of a log with these titles; None if they do not name time and figures.

    `cells` are the first values below them. Raise LogError if titles are ambiguous.
    """
    split: dict[str, Any] = {key: _split(getattr(form, key), titles) for key in TITLES}
    form = replace(form, **split)
    pairs = enumerate(zip(titles, cells, strict=True))
    read = [column_of(title, form, place, cell) for place, (title, cell) in pairs]
    columns = _only_named(read, form)
    roles: dict[str, list[Column]] = {}
    for column in columns:
        roles.setdefault(column.role, []).append(column)
    figures = [column for role in FIGURES for column in roles.get(role, [])]
    value, units, different = (roles.get(role, []) for role in ("value", "units", "other"))
    if units and len(figures) == 1 and not (figures[0].unit or figures[0].is_named):
        figures, value = [], [replace(figures[0], role="value")]
    is_long = not figures and len(value) == 1
    absent = {
        key
        for key in form.named.intersection(TITLES)
        for pattern in getattr(form, key)
        if not any(is_like(title, pattern) for title in titles)
    }
    time = _time_columns(columns, cells)
    unlike = tuple(c.title for c in different if c.why == _NOT_REAL or (c.unit and not c.why))[:4]
    if unlike and time and not (figures or value or absent):
        raise LogError(POWER_TEXT.NO_WATTS, columns=unlike)
    if (not figures and not is_long) or absent - (FIGURES.keys() if is_long else set()):
        return None
    if not time:
        raise LogError(POWER_TEXT.NO_TIME, header=", ".join(titles)[:120])
    outlets = roles.get("outlet", [])
    outlets = [c for c in outlets if c.is_named] or outlets[:1]
    names = [*outlets, *(roles.get("series", []) if is_long else [])]
    used = [*time, *roles.get("zone", [])[:1], *names, *units[:1], *different]
    return Layout(form, tuple(titles), (*used, *(value if is_long else figures)))


def _split(patterns: Sequence[str], titles: Sequence[str]) -> tuple[str, ...]:
    """Split patterns of titles such as A+B into two, unless a title has this name."""
    split: list[str] = []
    for pattern in patterns:
        is_title = any(is_like(title, pattern) for title in titles)
        split += [pattern] if is_title else [part.strip() for part in pattern.split("+")]
    return tuple(split)


def _only_named(columns: Sequence[Column], form: Format) -> list[Column]:
    """Leave out columns if the user names different ones, or a make another time or outlet."""
    named = {column.role for column in columns if column.is_named}
    dropped: set[str] = set()
    for keys, instead in INSTEAD:
        if keys & (form.named if instead & FIGURES.keys() else named):
            dropped |= instead
    return [
        column
        if column.is_named or column.role not in dropped
        else replace(column, role="other", why="not named")
        if column.role in FIGURES
        else replace(column, role="")
        for column in columns
    ]


def _time_columns(columns: Sequence[Column], cells: Sequence[str]) -> list[Column]:
    """Choose the column of times, or those of dates and times, by titles or else by cells."""
    times, dates = ([c for c in columns if c.role == role] for role in ("time", "date"))
    if not times and not dates:
        silent = [c for c in columns if not c.role and ":" in cells[c.place]]
        times = [replace(c, role="time") for c in silent if is_time(cells[c.place])]
        return times if len(times) == 1 else []
    if len(times) == len(dates) == 1 and not is_time(cells[times[0].place]):
        return [dates[0], times[0]]
    complete = [c for c in times if is_time(cells[c.place])]
    for candidates in (times, complete, dates):
        if len(candidates) == 1:
            return candidates
    titles = tuple(column.title for column in (*times, *dates))
    raise LogError(POWER_TEXT.SEVERAL_COLUMNS, key="time", titles=titles[:8])


def decided(figures: Sequence[Column], form: Format) -> list[Column]:
    """Return figures with their units, unused ones with the reason; raise LogError.

    Momentary watts of an outlet have precedence over their mean, and watts over energy, which only
    confirms them. Columns of watts that are all named are all used.
    """
    stated = [c for c in figures if c.is_power and not c.why]
    if "unit" not in form.named:
        stated = [c for c in stated if c.is_named or (c.unit and not c.unit.problem)]
    unused, powers, energies = [], list[Column](), list[Column]()
    for column in figures:
        is_unstated = not column.is_named and (column.unit is None or bool(column.unit.problem))
        if column.why:
            unused.append(column)
        elif is_unstated and stated and _unit_key(column) not in form.named:
            unused.append(replace(column, why="no unit is stated"))
        else:
            (powers if column.role == "watts" else energies).append(_with_unit(column, form))
    if all(column.is_named for column in powers):
        names = [column.outlet for column in powers]
        powers = [c if names.count(c.outlet) == 1 else replace(c, outlet=c.title) for c in powers]
    else:
        powers = _momentary(powers)
    used = {column.outlet for column in powers if not column.why}
    paired = []
    for column in energies:
        same = tuple(c.title for c in energies if c.outlet == column.outlet)
        if len(used) == 1 and len(energies) == 1:
            column = replace(column, outlet=next(iter(used)))
        elif used and (column.outlet not in used or len(same) > 1):
            is_confirmed = any(column.outlet.startswith(outlet) for outlet in used)
            column = replace(column, why="watts are used" if is_confirmed else NO_WATTS_THERE)
        elif len(same) > 1:
            raise LogError(POWER_TEXT.SEVERAL_COLUMNS, key="kwh", titles=same)
        paired.append(column)
    return [*unused, *powers, *paired]


def _momentary(powers: Sequence[Column]) -> list[Column]:
    """Choose the momentary watts of each outlet, or else their mean; the others get a `why`."""
    best: dict[str, Column] = {}
    for statistic in ("", "mean"):
        outlets = {*best}
        for column in powers:
            if column.statistic == statistic and column.outlet not in outlets:
                other = best.setdefault(column.outlet, column)
                if other is not column:
                    titles = (other.title, column.title)
                    raise LogError(POWER_TEXT.SEVERAL_COLUMNS, key="watts", titles=titles)
    lonely = tuple(column.title for column in powers if column.outlet not in best)
    if lonely:
        raise LogError(POWER_TEXT.ONLY_STATISTICS, titles=lonely[:8])
    return [c if best[c.outlet] is c else replace(c, why=c.statistic) for c in powers]


def _unit_key(column: Column) -> str:
    return "unit" if FIGURES[column.role] == "power" else "counter_unit"


def _with_unit(column: Column, form: Format) -> Column:
    """Return a column of a figure with its unit; raise LogError if it is not certain."""
    quantity, title, unit, key = FIGURES[column.role], column.title, column.unit, _unit_key(column)
    is_option = key in form.named
    default = getattr(form, key) if column.is_named or is_option else ""
    problem = "" if unit is None else unit.problem
    is_other = unit is not None and unit.kind != quantity
    if unit is None and column.is_named:
        of_figure, of_other = ("watts", "kwh") if quantity == "power" else ("kwh", "watts")
        there = frozenset(words_of(title))
        is_other = bool(there & (words(of_other) | words("measured")))
        is_other = is_other and not there & words(of_figure)
    is_prefix_named = column.is_named and default[:1] in ("m", "M")
    is_contradicted = bool(default) and unit not in (None, UNITS.get(default))
    is_silent = unit is None and not default
    rules = (
        (POWER_TEXT.UNIT_SCALED, problem == "scaled"),
        (POWER_TEXT.NOT_THE_QUANTITY, is_other),
        (POWER_TEXT.UNIT_UNCLEAR, problem == "prefix" and not is_prefix_named),
        (POWER_TEXT.UNIT_CONTRADICTED, is_option and not problem and is_contradicted),
        (POWER_TEXT.UNIT_MISSING, is_silent and not column.is_named),
        (POWER_TEXT.UNIT_MISSING, is_silent and _has_strange_unit(title)),
    )
    for sentence, applies in rules:
        if applies:
            choices = tuple(n for n in CHOICES[key] if n[0] in "mM" or problem != "prefix")
            values: dict[str, Any] = {"column": title, "key": column.role, "unit_key": key}
            raise LogError(sentence, **values, choices=choices, quantity=quantity, unit=default)
    if unit is not None and not problem:
        return column
    return replace(column, unit=UNITS[default or ("W" if quantity == "power" else "kWh")])


def _has_strange_unit(title: str) -> bool:
    """Return True if a title has brackets, or a lone A or V at its end, that may be a unit."""
    lone = re.search(r"[\s_](?:A|V)$", title) and not re.search(r"outlet|power|psu", title, re.I)
    brackets = expression("in_brackets").finditer(title)
    return bool(lone) or any(re.search(r"[^\W\d]", bracket[1]) for bracket in brackets)
