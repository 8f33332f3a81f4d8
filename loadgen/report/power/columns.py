"""The columns of power logs: times, outlets and figures, from the titles in the header.

A unit in a title, or in the cells below it, states the quantity. What is not stated is refused,
unless the user or a make names it. Every column of power is used or listed as unused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.report.power.formats import CHOICES, FIGURES, TITLES, Format, is_like, words
from loadgen.report.power.times import LogError, is_time, zone_in
from loadgen.report.power.units import UNITS, Unit, has_strange_unit, number_of, unit_in, unit_of
from loadgen.run.redaction import printable
from loadgen.sentences import POWER_TEXT

AROUND_NAMES = " -:/|,.()[]#"
_INDEX = re.compile(r"(\d+)(?!\d|[^\W_]|\s?(?:m?s|sec|m|min|h|hr|d)(?![^\W_]))")
"""The number of an outlet; not a span of time or a voltage, such as 5 min or 12V."""
_QUANTILE = re.compile(r"(?<![^\W_])p\d\d+(?![^\W_])", re.IGNORECASE)
_FUNCTION = re.compile(
    r"\b(?:i?rate|increase|i?delta|deriv|predict_linear|quantile|(?!avg)\w+_over_time)\("
)
"""A function of a series that has another unit than the series, or is no mean."""
_ROLES = {"other": 99, "kwh": 99, "watts": 99, "outlet": 2, "series": 2, "value": 1, "units": 1}
"""Roles by the words of a title, and the most words that a title of the role has."""
_OF_UNIT = {"power": "watts", "energy": "kwh"}
_NOT_REAL = "not real power"
NO_WATTS_THERE = "energy of an outlet without watts"
_FIGURE_WORDS = {"power": ("watts", "kwh"), "energy": ("kwh", "watts")}
_INSTEAD = ({"time", "date"}, {"outlet"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a series of a table with a line for each quantity.

    `role` is a key of titles, "zone", "other", "unused" or "". `outlet` is the name of the outlet.
    `statistic` is "mean", or a word such as max. `is_counter` is True if the title, or a make,
    states a counter. `is_named` is True if a key names the column, `why` the reason for leaving it
    out.
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

    @property
    def is_power(self) -> bool:
        return self.unit.kind == "power" if self.unit is not None else self.role == "watts"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a log's lines that are read, and those that have a reason to be left out.

    The columns of the time, and those that name the outlet of a line, are in the order in which
    their cells are joined. A table with a line for each quantity has a column of the role "value"
    and no figures.
    """

    format: Format
    titles: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def is_long(self) -> bool:
        return any(column.role == "value" for column in self.columns)

    @property
    def figures(self) -> list[Column]:
        roles = ("value",) if self.is_long else FIGURES
        return [column for column in self.columns if column.role in roles and not column.why]

    def places(self, *roles: str) -> list[int]:
        """Return the places of columns of these roles."""
        return [column.place for column in self.columns if column.role in roles]


# --- one title ------------------------------------------------------------------------------


def words_of(title: str) -> list[str]:
    """Split a title into its words, in lower case; activePower and active_power have two."""
    spaced = re.sub(r"(?<=[^\W\d_][^\W\d_])(?=[A-Z][a-zäöüé])|(?<=[a-zäöüé])(?=[A-Z])", " ", title)
    return [word.casefold() for word in re.findall(r"[^\W_]+", spaced)]


def column_of(title: str, form: Format, place: int = 0, cell: str = "") -> Column:
    """Return the column of a title; `cell` is a value below it, which may state the unit.

    Raise LogError if a title that a key names states another quantity.
    """
    unit, rest = unit_in(title)
    if unit is None and (number := number_of(cell)) is not None:
        unit = unit_of(number.unit)
    listed = words_of(re.sub("[€$£]", " price ", rest))
    there = frozenset(listed)
    statistic = next((word for word in listed if word in words("statistic")), "")
    column = Column(
        place,
        title,
        _role_of(unit, listed),
        unit,
        _outlet_in(rest),
        statistic or ("mean" if there & words("mean") else ""),
        bool(there & words("counter")),
    )
    key = next((k for k in TITLES if any(is_like(title, p) for p in getattr(form, k))), "")
    if key in FIGURES:
        counter = column.is_counter or key not in form.named
        statistic = "mean" if column.statistic == "mean" else ""
        column = replace(column, role=key, is_named=True, is_counter=counter, statistic=statistic)
        return with_unit(column, form)
    if key:
        return replace(column, role=key, is_named=True)
    if there & words("other_power"):
        column = replace(column, role="other", why=_NOT_REAL)
    elif _FUNCTION.search(title):
        column = replace(column, role="other", why="a function of another series")
    why = next((why for pattern, why in form.unused.items() if is_like(title, pattern)), "")
    return replace(column, role="unused", why=why) if why else column


def quantity_of(name: str, value: Column, cell: str, form: Format) -> Column:
    """Return the column of a quantity that lines name; `cell` may state its unit."""
    column = replace(column_of(name, form, value.place, cell), title=name or value.title)
    if column.is_named:
        return column
    if column.unit is not None:
        column = replace(column, role=_OF_UNIT.get(column.unit.kind, "other"))
    why = column.why or ("another quantity" if column.role == "other" else "")
    if form.named & FIGURES.keys():
        why = "not named"
    role = column.role if column.role in FIGURES or why else "watts"
    return replace(column, role=role, title=printable(column.title, 100), why=why)


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


def with_unit(column: Column, form: Format) -> Column:
    """Return a column of a figure with its unit; raise LogError if it is not certain."""
    quantity, title, unit = FIGURES[column.role], column.title, column.unit
    key = "unit" if quantity == "power" else "counter_unit"
    is_option = key in form.named
    default = getattr(form, key) if column.is_named or is_option else ""
    problem = "" if unit is None else unit.problem
    there = frozenset(words_of(title))
    of_figure, of_other = (words(role) for role in _FIGURE_WORDS[quantity])
    is_other = unit is not None and unit.kind != quantity
    if unit is None and column.is_named and not there & of_figure:
        is_other = bool(there & (of_other | words("measured")))
    is_prefix_named = column.is_named and default[:1] in ("m", "M")
    is_contradicted = bool(default) and unit not in (None, UNITS.get(default))
    is_silent = unit is None and not default
    rules = (
        (POWER_TEXT.UNIT_SCALED, problem == "scaled"),
        (POWER_TEXT.NOT_THE_QUANTITY, is_other),
        (POWER_TEXT.UNIT_UNCLEAR, problem == "prefix" and not is_prefix_named),
        (POWER_TEXT.UNIT_CONTRADICTED, is_option and not problem and is_contradicted),
        (POWER_TEXT.UNIT_MISSING, is_silent and not column.is_named),
        (POWER_TEXT.UNIT_MISSING, is_silent and has_strange_unit(title)),
    )
    for sentence, applies in rules:
        if applies:
            choices = tuple(n for n in CHOICES[key] if n[0] in "mM" or problem != "prefix")
            values: dict[str, Any] = {"column": title, "key": column.role, "unit_key": key}
            raise LogError(sentence, **values, choices=choices, quantity=quantity, unit=default)
    if unit is not None and not problem:
        return column
    return replace(column, unit=UNITS[default or ("W" if quantity == "power" else "kWh")])


# --- a layout from titles -------------------------------------------------------------------


def layout_of(titles: Sequence[str], cells: Sequence[str], form: Format) -> Layout | None:
    """Return the layout of a log with these titles; None if they do not name time and figures.

    `cells` are those of the first line. Raise LogError if titles are ambiguous.
    """
    split: dict[str, Any] = {key: _split(getattr(form, key), titles) for key in TITLES}
    form = replace(form, **split)
    columns = _only_named(
        [
            column_of(title, form, place, cell)
            for place, (title, cell) in enumerate(zip(titles, cells, strict=True))
        ],
        form,
    )
    roles: dict[str, list[Column]] = {}
    for column in columns:
        roles.setdefault(column.role, []).append(column)
    figures = [column for role in FIGURES for column in roles.get(role, [])]
    value, units = roles.get("value", []), roles.get("units", [])
    if len(figures) == 1 and figures[0].unit is None and units:
        figures, value = [], [replace(figures[0], role="value")]
    is_long = not figures and len(value) == 1
    absent = {
        key
        for key in form.named.intersection(TITLES)
        for pattern in getattr(form, key)
        if not any(is_like(title, pattern) for title in titles)
    }
    time = _time_columns(columns, cells)
    others = [c for c in roles.get("other", []) if c.why == _NOT_REAL or (c.unit and not c.why)]
    if others and time and not (figures or value or absent):
        raise LogError(POWER_TEXT.NO_WATTS, columns=tuple(c.title for c in others[:4]))
    if (not figures and not is_long) or absent - (FIGURES.keys() if is_long else set()):
        return None
    figures = decided(figures, form)
    outlets = roles.get("outlet", [])
    names = [c for c in outlets if c.is_named] or outlets[:1]
    names += roles.get("series", []) if is_long else []
    if not time:
        raise LogError(POWER_TEXT.NO_TIME, header=", ".join(titles)[:120])
    for role in FIGURES if names else ():
        of_role = tuple(c.title for c in figures if c.role == role and not c.why)
        if len(of_role) > 1:
            raise LogError(POWER_TEXT.SEVERAL_COLUMNS, key=role, titles=of_role)
    read = [*time, *roles.get("zone", [])[:1], *names, *units[:1], *figures]
    read += roles.get("other", []) + (value if is_long else [])
    unused = [column for column in roles.get("unused", []) if column.why]
    return Layout(form, tuple(titles), (*unused, *read))


def _split(patterns: Sequence[str], titles: Sequence[str]) -> tuple[str, ...]:
    """Return patterns of titles, of which A+B is two unless a title has this name."""
    split: list[str] = []
    for pattern in patterns:
        is_title = any(is_like(title, pattern) for title in titles)
        split += [pattern] if is_title else [part.strip() for part in pattern.split("+")]
    return tuple(split)


def _only_named(columns: Sequence[Column], form: Format) -> list[Column]:
    """Leave out columns in whose place the user or the make names others."""
    named = {column.role for column in columns if column.is_named}
    dropped = set().union(*(group for group in _INSTEAD if group & named))
    figures = {*FIGURES, "series", "value"} if form.named & {*FIGURES, "series", "value"} else set()
    if form.named.isdisjoint(("series", "value")) and not named & figures:
        figures -= {"series", "value"}
    return [
        column
        if column.is_named or column.role not in dropped | figures
        else replace(column, role="unused", why="not named" if column.role in figures else "")
        for column in columns
    ]


def decided(figures: Sequence[Column], form: Format) -> list[Column]:
    """Return figures with their units, those that are not used with `why`; raise LogError."""
    has_watts = any(
        c.is_power and ("unit" in form.named or (c.unit is not None and not c.unit.problem))
        for c in figures
        if not c.why
    )
    columns = []
    for column in figures:
        key = "unit" if column.role == "watts" else "counter_unit"
        is_unstated = column.unit is None or column.unit.problem
        if not column.why and not column.is_named:
            if is_unstated and has_watts and key not in form.named:
                column = replace(column, why="no unit is stated")
            else:
                column = with_unit(column, form)
        columns.append(column)
    return _chosen(columns)


def _chosen(figures: Sequence[Column]) -> list[Column]:
    """Choose the figures of each outlet; those with `why` are not used.

    The momentary watts of an outlet have precedence over their mean, and watts over energy, which
    only confirms them. Columns of watts that are all named are all used. Raise LogError if the
    choice is not clear.
    """
    powers = [c for c in figures if c.role == "watts" and not c.why]
    if all(column.is_named for column in powers):
        names = [column.outlet for column in powers]
        powers = [c if names.count(c.outlet) == 1 else replace(c, outlet=c.title) for c in powers]
    else:
        powers = _momentary(powers)
    energies = [c for c in figures if c.role != "watts" and not c.why]
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
    return [*(c for c in figures if c.why), *powers, *paired]


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


def _time_columns(columns: Sequence[Column], cells: Sequence[str]) -> list[Column]:
    """Choose the column of times, or those of dates and times; empty without one.

    If no title names a time, it is the only column of no other role whose cell is a date and time.
    """
    times, dates = ([c for c in columns if c.role == role] for role in ("time", "date"))
    if not times and not dates:
        silent = [c for c in columns if not c.role and ":" in cells[c.place]]
        times = [replace(c, role="time") for c in silent if is_time(cells[c.place])]
        return times if len(times) == 1 else []
    if len(times) == len(dates) == 1 and not is_time(cells[times[0].place]):
        return [dates[0], times[0]]
    complete = [c for c in times if is_time(cells[c.place])]
    for candidates in (times, complete, [c for c in complete if zone_in(c.title)], dates):
        if len(candidates) == 1:
            return [candidates[0]]
    if len(times) + len(dates) > 1:
        titles = tuple(column.title for column in (*times, *dates))
        raise LogError(POWER_TEXT.SEVERAL_COLUMNS, key="time", titles=titles[:8])
    return dates


def are_alike(names: Sequence[str]) -> bool:
    """Return True if names differ in one number and nothing else, so that they are of one kind."""
    if len(names) < 2:
        return True
    if any(_QUANTILE.search(name) for name in names):
        return False
    pieces = [_INDEX.split(name.casefold()) for name in names]
    if len({tuple(parts[::2]) for parts in pieces}) > 1:
        return False
    numbers = zip(*(parts[1::2] for parts in pieces), strict=True)
    return sum(len(set(column)) > 1 for column in numbers) == 1
