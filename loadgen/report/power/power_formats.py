"""The formats of power logs: the columns of times, outlets and figures, found from the header.

Most logs need no special format: the header names the columns, and units show the quantities.
`FORMATS` has the formats whose headers are insufficient, from their makers' documentation. Columns
are separated by commas, tabs, semicolons or bars.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zoneinfo import available_timezones

from loadgen.report.power.power_settings import Columns
from loadgen.report.power.power_units import KILOWATT_HOUR, OTHER, UNITS, WATT, Unit, unit_in

SEPARATORS = "\t;|,"

OPTION = "--pdu-columns"


class HeaderError(ValueError):
    """An ambiguous header; the text names the option that resolves it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers; `unit` is None if the header does not state it."""

    place: int
    title: str
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Outlet:
    """The columns of one outlet: its watts, its counter of energy, or both."""

    name: str
    watts: Column | None
    counter: Column | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a log's lines, numbered from 0.

    `time` are the columns that make up the time: a date, a time, a zone. `order` is the order of
    the dates (dmy, mdy or ymd), "" to infer it. `zone` is the zone in or above the header, "" for
    none. `width` is the number of columns of a line. `numbers` are further columns that must be
    numbers, `other_numbers` those of other quantities, such as volts. Each outlet has separate
    columns, or `outlet_column` names the outlet of a line; `unit_column` has the unit of a line.
    `named_alike` is True if the names of columns of power differ in an index alone, which makes
    them outlets for certain. Figures may be missing if `gaps`.
    """

    time: tuple[int, ...]
    outlets: tuple[Outlet, ...]
    width: int
    order: str = ""
    zone: str = ""
    numbers: tuple[tuple[str, int], ...] = ()
    outlet_column: int | None = None
    unit_column: int | None = None
    other_numbers: tuple[int, ...] = ()
    named_alike: bool = True
    gaps: bool = True


IBM_DPI_COLUMNS = ("date", "time", "voltage", "current", "power factor", "watts", "cumulative kWh")

IBM_DPI = Layout(
    time=(0, 1),
    outlets=(Outlet("", Column(5, "watts", WATT), Column(6, "cumulative kWh", KILOWATT_HOUR)),),
    width=len(IBM_DPI_COLUMNS),
    order="mdy",
    numbers=(("voltage", 2), ("current", 3), ("power factor", 4)),
    gaps=False,
)
"""IBM DPI, as in the MessageSight v1.0 report (section PERSISTENT.MPW): one outlet."""

_DPI_DATE = re.compile(r"\d{1,2}/\d{1,2}/\d{4}")


# --- the words of a header cell -------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TIME = _words(
    "time timestamp datetime yyyy zeit uhrzeit zeitstempel zeitpunkt heure horodatage hora"
)
_DATE = _words("date datum fecha")
_NO_TIME = _words("offset left remaining elapsed duration interval up run on")
_ZONES = _words("timezone zone zeitzone tz")
_OUTLET = _words("outlet receptacle socket plug port channel circuit sensor steckdose prise")
_OUTLET_KEYS = ("id", "number", "no", "nr", "num", "index", "", "name", "label")
"""Words next to the word for an outlet, the most distinctive first."""
_STATISTIC = _words(
    "max maximum peak min minimum low high limit threshold rated rating nominal capacity budget "
    "warning critical alarm allocated cost available stdev deviation std cap headroom setpoint "
    "target price tariff preis kosten eur usd gbp chf"
)
_NEITHER = _words(
    "apparent reactive factor voltage volts current amps frequency temperature humidity state "
    "status percent crest apparente aparente reactiva réactive reattiva scheinleistung "
    "blindleistung"
)
_POWER = _words("power watts leistung wirkleistung puissance potencia")
_ENERGY = _words("energy energie arbeit wirkarbeit energia consumption verbrauch")
_MEAN = _words("average avg mean mittelwert")
_NOISE = (
    _POWER
    | _ENERGY
    | _MEAN
    | _words(
        "active real true cumulative accumulated analog counter meter zähler reading value usage "
        "used in of the group load"
    )
)
"""Words for the quantity of a column, not for its outlet."""
_VALUE = _words("value reading wert measurement")
_UNITS = _words("unit units einheit uom")

_SUMS = _words("total sum all overall aggregate gesamt summe totale")
TOTALS = (
    _SUMS,
    _SUMS | _words("inlet input infeed feed unit pdu phase bank branch line mains"),
)
"""Words for the sum of other outlets: first the certain ones, then the possible ones too."""

_INDEX = re.compile(
    r"(?:(?<![^\W\d_])[^\W\d_]{1,2})?\d+(?!\d|\s?(?:m?s|sec|m|min|h|hr|d)(?![^\W_]))|\b[^\W\d_]\b",
    re.IGNORECASE,
)
"""The index in an outlet's name: 3, A, AA3; not a span of time, such as 5 min."""
_QUANTILE = re.compile(r"p\d\d+", re.IGNORECASE)

_ZONE = re.compile(
    r"(?<![^\W_])(?:(?:utc|gmt)(?:\s?[+-]\d\d?(?::?\d\d)?)?|[a-z_]+/[a-z_/]+"
    r"|(?:ce|ee|m|p|c|e|ae|nz)(?:s|d)t|cet|eet|bst|ist|msk|jst|kst|hkt|sgt)(?![^\W_])",
    re.IGNORECASE,
)
_ZONE_LINE = re.compile(r"time\s?-?zone|zeitzone|times?\b.* in ", re.IGNORECASE)


def zone_in(text: str) -> str:
    """Find the zone that a text names, as UTC+02:00, CEST or Europe/Berlin; "" for none."""
    named = (zone[0] for zone in _ZONE.finditer(text))
    return next((zone for zone in named if "/" not in zone or zone in available_timezones()), "")


def zone_above(lines: Sequence[str]) -> str:
    """Find the zone that a line above a header names, as "Time zone: Europe/Berlin"; "" for none.

    "(UTC+01:00) Amsterdam" does not count: it may or may not include summer time.
    """
    named = (zone_in(line) for line in lines if _ZONE_LINE.search(line))
    return next((zone for zone in named if zone and not re.search(r"\d", zone)), "")


def words_of(cell: str) -> list[str]:
    """Split a cell into its words, in lower case; activePower and active_power have two."""
    spaced = re.sub(r"(?<=[^\W\d_][^\W\d_])(?=[A-Z][a-zäöüé])|(?<=[a-zäöüé])(?=[A-Z])", " ", cell)
    return [word.casefold() for word in re.findall(r"[^\W_]+", spaced)]


@dataclass(frozen=True, slots=True)
class _Heading:
    """A parsed header cell: the `kind` of its column, its unit, and the outlet that it names."""

    place: int
    cell: str
    kind: str
    unit: Unit | None = None
    outlet: str = ""
    mean: bool = False


def _heading(place: int, cell: str) -> _Heading:
    try:
        unit, rest = unit_in(cell)
    except ValueError as error:
        raise HeaderError(
            f"column {cell[:80]!r} does not say its unit for certain ({error}); give {OPTION} "
            f"watts=NAME,unit=W (or kW, mW) where that is its unit, else convert it"
        ) from None
    words = words_of(rest)
    kind, distinct = "", frozenset(words)
    if distinct & _STATISTIC:
        kind = ""
    elif distinct & _NEITHER or unit == OTHER:
        kind = "other"
    elif unit is not None:
        kind = unit.kind
    elif distinct & _ZONES or ("offset" in distinct and distinct & {"utc", "gmt"}):
        kind = "zone"
    elif distinct & (_TIME | _DATE) and not distinct & _NO_TIME:
        kind = "time" if distinct & _TIME else "date"
    elif distinct & _ENERGY:
        kind = "energy"
    elif distinct & _POWER:
        kind = "power"
    elif distinct & _OUTLET and len(words) <= 2:
        kind = "outlet"
    elif len(words) == 1 and distinct & _VALUE:
        kind = "value"
    elif len(words) == 1 and distinct & _UNITS:
        kind = "unit"
    return _Heading(place, cell, kind, unit, outlet_named(rest), bool(distinct & _MEAN))


def outlet_named(rest: str) -> str:
    """Remove the words for the quantity from a header cell; the rest names the outlet."""
    pieces = [
        piece
        for piece in re.split(r"(\s+|(?<=[a-z])(?=[A-Z]))", re.sub(r"_+", " ", rest))
        if not (words_of(piece) and set(words_of(piece)) <= _NOISE)
    ]
    return re.sub(r"\s+", " ", "".join(pieces)).strip(" -:/|,.()[]#")


# --- a layout from a header -----------------------------------------------------------------

_NAMED_KINDS = {
    "time": "time",
    "date": "date",
    "watts": "power",
    "kwh": "energy",
    "outlet": "outlet",
}
"""The user's keys to the kinds of their columns."""

_INSTEAD = ({"time", "date"}, {"power", "energy", "value"}, {"outlet"})
"""Groups of kinds: if the user names a column of a group, only named columns of it count."""


def layout_of(lines: Sequence[Sequence[str]], columns: Columns) -> Layout | None:
    """Return the layout of a log with this header of one or more lines; None if it is not a header.

    `columns` are those that the user named. Raise HeaderError if the header is ambiguous.
    """
    if not columns.keys() & _NAMED_KINDS.keys():
        special = next((layout for fits in FORMATS.values() if (layout := fits(lines[0]))), None)
        if special is not None:
            return special
    cells = [" ".join(filter(None, column)).strip() for column in zip(*lines, strict=True)]
    named = _named(lines, columns)
    if named is None:
        return None
    taken = {heading.kind for heading in named.values()}
    dropped = set().union(*(kinds for kinds in _INSTEAD if kinds & taken))
    read = (named.get(place) or _heading(place, cell) for place, cell in enumerate(cells))
    headings = [
        heading for heading in read if heading.place in named or heading.kind not in dropped
    ]
    return _layout(headings, len(cells), columns)


def _named(lines: Sequence[Sequence[str]], columns: Columns) -> dict[int, _Heading] | None:
    """Return the columns that the user named, by place; None if one is missing or there twice."""
    named: dict[int, _Heading] = {}
    for key, kind in _NAMED_KINDS.items():
        wanted = columns.get(key)
        if wanted is None:
            continue
        places = {
            place
            for line in lines
            for place, cell in enumerate(line)
            if cell.casefold() == wanted.casefold()
        }
        if len(places) != 1:
            return None
        (place,) = places
        unit = None
        if kind in ("power", "energy"):
            unit = _stated_unit([line[place] for line in lines], kind)
        named[place] = _Heading(place, wanted, kind, unit)
    return named


def _stated_unit(cells: Sequence[str], kind: str) -> Unit:
    """Return the unit that a named column states, else the default for its key in the option."""
    for cell in cells:
        try:
            unit, _ = unit_in(cell)
        except ValueError:
            unit = None
        if unit is not None and unit.kind == kind:
            return unit
    return WATT if kind == "power" else KILOWATT_HOUR


def _layout(headings: Sequence[_Heading], width: int, columns: Columns) -> Layout | None:
    kinds: dict[str, list[_Heading]] = {}
    for heading in headings:
        kinds.setdefault(heading.kind, []).append(heading)
    time = _time_columns(kinds.get("time", []), kinds.get("date", []))
    powers, energies = _plain(kinds.get("power", [])), kinds.get("energy", [])
    if not powers and not energies and len(kinds.get("value", [])) == 1:
        powers = kinds["value"]
    if not time or not (powers or energies):
        return None
    unit_column = None
    if len(powers) == 1 and not energies:
        unit_column = next((heading.place for heading in kinds.get("unit", [])), None)
    powers = [_in_unit(heading, "unit", columns) for heading in powers]
    energies = [_in_unit(heading, "counter_unit", columns) for heading in energies]
    outlet = _outlet_column(kinds.get("outlet", []))
    outlets = _outlets(powers, energies) if outlet is None else (_only_outlet(powers, energies),)
    return Layout(
        time=tuple(heading.place for heading in [*time, *kinds.get("zone", [])[:1]]),
        outlets=outlets,
        width=width,
        order=columns.get("dates", ""),
        zone=next(filter(None, (zone_in(heading.cell) for heading in time)), ""),
        outlet_column=None if outlet is None else outlet.place,
        unit_column=unit_column,
        other_numbers=tuple(heading.place for heading in kinds.get("other", [])),
        named_alike=len({_without_index(outlet.name) for outlet in outlets}) == 1,
    )


def _time_columns(times: Sequence[_Heading], dates: Sequence[_Heading]) -> list[_Heading]:
    """Choose the column of times, or those of dates and times; empty if both are missing."""
    complete = [
        heading for heading in times if {"timestamp", "datetime"} & set(words_of(heading.cell))
    ]
    in_utc = [heading for heading in times if zone_in(heading.cell)]
    for candidates in (times, complete, in_utc):
        if len(candidates) == 1:
            alone = candidates is not times or len(dates) != 1 or {*words_of(times[0].cell)} & _DATE
            return (
                [candidates[0]] if alone or candidates[0] in complete else [dates[0], candidates[0]]
            )
    if not times and len(dates) == 1:
        return [dates[0]]
    if len(times) + len(dates) > 1:
        raise HeaderError(
            f"has several columns of time ({_titles([*times, *dates])}); {_give('time')}"
        )
    return []


def _plain(powers: Sequence[_Heading]) -> list[_Heading]:
    """Omit the means of outlets that also have a column of momentary power."""
    now = {heading.outlet for heading in powers if not heading.mean}
    return [heading for heading in powers if not heading.mean or heading.outlet not in now]


def _in_unit(heading: _Heading, key: str, columns: Columns) -> _Heading:
    """Apply the unit that the user gave; raise HeaderError if the column states another one."""
    if key not in columns:
        return heading
    unit = UNITS[columns[key]]
    named = columns.get("watts" if key == "unit" else "kwh")
    if heading.unit not in (None, unit) and heading.cell != named:
        raise HeaderError(
            f"says the unit of its column {heading.cell[:60]!r} itself, and {OPTION} "
            f"{key}={columns[key]} another one; leave {key} out"
        )
    return replace(heading, unit=unit)


def _outlet_column(headings: Sequence[_Heading]) -> _Heading | None:
    """Choose the most distinctive column of outlets: an id before a name."""

    def place(heading: _Heading) -> int:
        keys = [word for word in words_of(heading.cell) if word not in _OUTLET]
        ranks = [_OUTLET_KEYS.index(key) for key in keys or [""] if key in _OUTLET_KEYS]
        return min(ranks, default=len(_OUTLET_KEYS))

    return min(headings, key=place, default=None)


def _only_outlet(powers: Sequence[_Heading], energies: Sequence[_Heading]) -> Outlet:
    """Return the columns of a table that names the outlet of each line."""
    if len(powers) > 1:
        raise HeaderError(f"has several columns of power ({_titles(powers)}); {_give('watts')}")
    if len(energies) > 1:
        raise HeaderError(f"has several columns of energy ({_titles(energies)}); {_give('kwh')}")
    return Outlet("", _column(powers), _column(energies))


def _outlets(powers: Sequence[_Heading], energies: Sequence[_Heading]) -> tuple[Outlet, ...]:
    """Return the outlets of a table with a column for each; a counter belongs to its namesake."""
    if len(powers) == len(energies) == 1:
        return (Outlet(powers[0].outlet, _column(powers), _column(energies)),)
    by_name: dict[str, tuple[list[_Heading], list[_Heading]]] = {}
    for place, headings in enumerate((powers, energies if not powers else [])):
        for heading in headings:
            by_name.setdefault(heading.outlet, ([], []))[place].append(heading)
    for heading in energies if powers else ():
        if heading.outlet in by_name:
            by_name[heading.outlet][1].append(heading)
    if len(by_name) > 1 and "" in by_name:
        # An outlet without a name could not be chosen with #OUTLET.
        watts, _ = by_name[""]
        by_name = {watts[0].cell if not name and watts else name: v for name, v in by_name.items()}
    for name, (watts, counters) in by_name.items():
        for headings, key in ((watts, "watts"), (counters, "kwh")):
            if len(headings) > 1:
                of = f" of outlet {name!r}" if name else ""
                titles = _titles(headings)
                raise HeaderError(
                    f"has several columns{of} that count the same ({titles}); {_give(key)}"
                )
    return tuple(
        Outlet(name, _column(watts), _column(counters))
        for name, (watts, counters) in by_name.items()
    )


def _without_index(name: str) -> str:
    """Return an outlet's name up to its index: the part that outlets of one kind share."""
    index = None if _QUANTILE.fullmatch(name) else _INDEX.search(name)
    return (name if index is None else f"{name[: index.start()]}#").casefold()


def _column(headings: Sequence[_Heading]) -> Column | None:
    return Column(headings[0].place, headings[0].cell, headings[0].unit) if headings else None


def _titles(headings: Sequence[_Heading]) -> str:
    return ", ".join(repr(heading.cell[:60]) for heading in headings[:4])


def _give(key: str) -> str:
    return f"name one with {OPTION} {key}=NAME"


# --- special formats ------------------------------------------------------------------------


def outlet_columns(
    header: Sequence[str], time: str, outlet: re.Pattern[str], kinds: Sequence[str]
) -> Layout | None:
    """Return the layout of a column of times, followed by columns of watts, one per outlet.

    `outlet` matches each of these columns with its `name` and `kind`. An outlet's column is the
    first of `kinds` that it has; columns of other kinds are ignored.
    """
    matches = [outlet.fullmatch(cell) for cell in header[1:]]
    if not header or header[0] != time or not all(matches):
        return None
    columns = [(match["name"], match["kind"]) for match in matches if match]
    by_name = {name: [kind for title, kind in columns if title == name] for name, _ in columns}
    outlets = [
        Outlet(name, Column(columns.index((name, kind)) + 1, f"{name}({kind})", WATT))
        for name, kinds_there in by_name.items()
        if (kind := next((kind for kind in kinds if kind in kinds_there), None)) is not None
    ]
    return Layout((0,), tuple(outlets), width=len(header)) if outlets else None


def _ibm_dpi(header: Sequence[str]) -> Layout | None:
    names = {" ".join(words_of(cell)) for cell in header}
    return IBM_DPI if {"log date", "log time"} <= names and len(header) == IBM_DPI.width else None


FORMATS: Mapping[str, Callable[[Sequence[str]], Layout | None]] = {
    "IBM DPI": _ibm_dpi,
    # Fujitsu ServerView Resource Coordinator VE, Operation Guide, 13.3.
    "ServerView": lambda header: outlet_columns(
        header,
        time="Time",
        outlet=re.compile(r"(?P<name>.{1,200})\((?P<kind>power|power-average|energy)\)"),
        kinds=("power", "power-average"),
    ),
}
"""Functions that return the layout of a header of their format, else None; tried in this order."""


def layout_without_header(line: str) -> tuple[Layout, str] | None:
    """Return the layout and the separator of a log without a header, from a line of its data."""
    for separator in SEPARATORS:
        cells = cells_of(line, separator)
        if len(cells) == IBM_DPI.width and _DPI_DATE.fullmatch(cells[0]):
            return IBM_DPI, separator
    return None


def cells_of(line: str, separator: str) -> list[str]:
    """Split a line into cells; quotes may hold the separator; trailing empty cells go."""
    cells = [cell.strip(" \"'#") for cell in next(csv.reader([line], delimiter=separator), [])]
    while cells and not cells[-1]:
        cells.pop()
    return cells
