"""The formats of power logs: how each is recognised, and where its numbers stand.

A log is text with a line a sample. Its header says which format it has: `FORMATS` are asked in
turn. A new format is one more entry there, most often a call of `named_columns` or
`outlet_columns`. Columns are separated by commas, tabs or semicolons.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.scorecard.power_settings import Columns

ISO_WORDS = "an ISO 8601 time or seconds since 1970"


@dataclass(frozen=True, slots=True)
class Outlet:
    """Columns of one outlet's watts and of its counter of kilowatt-hours."""

    name: str
    watts: int
    kwh: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read the lines of a log. Columns are numbered from 0.

    `time` are the columns that make up the time, one or two; `time_format` is one of strptime, ""
    for ISO 8601 or seconds since the epoch, and `time_words` says the same to people. `width` is
    the number of columns of a line, `numbers` further columns that must be numbers. Outlets have
    columns of their own, or `outlet_column` names the outlet of a line. Lines of text may follow
    the header where `units_below`. Watts or kWh may be missing, as "" or "-", where `gaps`.
    """

    time: tuple[int, ...]
    outlets: tuple[Outlet, ...]
    width: int
    time_format: str = ""
    time_words: str = ISO_WORDS
    numbers: tuple[tuple[str, int], ...] = ()
    outlet_column: int | None = None
    units_below: bool = False
    gaps: bool = True


IBM_DPI_COLUMNS = ("date", "time", "voltage", "current", "power factor", "watts", "cumulative kWh")

IBM_DPI = Layout(
    time=(0, 1),
    outlets=(Outlet("", 5, 6),),
    width=len(IBM_DPI_COLUMNS),
    time_format="%m/%d/%Y %H:%M:%S",
    time_words="mm/dd/yyyy hh:mm:ss",
    numbers=(("voltage", 2), ("current", 3), ("power factor", 4)),
    units_below=True,
    gaps=False,
)
"""IBM DPI, as the MessageSight v1.0 report prints it (section PERSISTENT.MPW): one outlet."""

_DPI_DATE = re.compile(r"\d{1,2}/\d{1,2}/\d{4}")


def plain(cell: str) -> str:
    """A header cell in small letters and underscores: "Active Power (W)" is active_power_w."""
    return re.sub(r"[^a-z0-9]+", "_", cell.casefold()).strip("_")


def named_columns(
    header: Sequence[str],
    names: Mapping[str, Sequence[str]],
    *,
    needed: Sequence[str] = ("time", "watts"),
    spelled: Callable[[str], str] = plain,
    time_format: str = "",
) -> Layout | None:
    """A table whose columns have these names, by what they hold: time, date, watts, kwh, outlet.

    None where a needed column is missing or one is there twice.
    """
    cells = [spelled(cell) for cell in header]
    places: dict[str, int] = {}
    for key, known in names.items():
        found = [place for place, cell in enumerate(cells) if cell in known]
        if len(found) > 1 or (not found and key in needed):
            return None
        if found:
            places[key] = found[0]
    return Layout(
        time=tuple(places[key] for key in ("date", "time") if key in places),
        outlets=(Outlet("", places["watts"], places.get("kwh")),),
        width=len(header),
        time_format=time_format,
        time_words=time_format or ISO_WORDS,
        outlet_column=places.get("outlet"),
    )


def outlet_columns(
    header: Sequence[str], time: str, outlet: re.Pattern[str], kinds: Sequence[str]
) -> Layout | None:
    """A table of a column of times, first, and columns of watts, one an outlet.

    `outlet` matches every other column and finds its `name` and `kind`; of the kinds an outlet
    has, the first of `kinds` counts, and other kinds are passed over.
    """
    found = [outlet.fullmatch(cell) for cell in header[1:]]
    if not header or header[0] != time or not all(found):
        return None
    columns = [(match["name"], match["kind"]) for match in found if match]
    by_name = {name: [kind for own, kind in columns if own == name] for name, _ in columns}
    outlets = [
        Outlet(name, columns.index((name, kind)) + 1)
        for name, own in by_name.items()
        if (kind := next((kind for kind in kinds if kind in own), None)) is not None
    ]
    return Layout((0,), tuple(outlets), width=len(header)) if outlets else None


FORMATS: Mapping[str, Callable[[Sequence[str]], Layout | None]] = {
    "IBM DPI": lambda header: (
        IBM_DPI if {"log_date", "log_time"} <= {plain(cell) for cell in header} else None
    ),
    # Fujitsu ServerView Resource Coordinator VE, Operation Guide, 13.3.
    "ServerView": lambda header: outlet_columns(
        header,
        time="Time",
        outlet=re.compile(r"(?P<name>.{1,200})\((?P<kind>power|power-average|energy)\)"),
        kinds=("power", "power-average"),
    ),
    "plain names": lambda header: named_columns(
        header,
        {
            "time": ("time", "timestamp", "datetime", "date_time"),
            "date": ("date",),
            "watts": ("watts", "power_w", "active_power_w", "w"),
            "kwh": ("kwh", "energy_kwh", "active_energy_kwh"),
            "outlet": ("outlet", "receptacle", "socket"),
        },
    ),
}
"""Format to the layout of a header of that format, None for another; tried in this order."""


def layout_of(header: Sequence[str], columns: Columns) -> Layout | None:
    """The layout of a log with this header line; None where it is of no known format.

    `columns` are those that the user named; then plain names are not guessed.
    """
    if not columns:
        return next((found for fits in FORMATS.values() if (found := fits(header))), None)
    names = {key: (name.casefold(),) for key, name in columns.items() if key != "format"}
    by_user = named_columns(
        header,
        names,
        needed=tuple(names),
        spelled=str.casefold,
        time_format=columns.get("format", ""),
    )
    others = (fits(header) for name, fits in FORMATS.items() if name != "plain names")
    return by_user or next(filter(None, others), None)


def layout_without_header(line: str) -> Layout | None:
    """The layout of a log of which only a line of data is known; IBM DPI's is."""
    data = cells_of(line)
    fits = len(data) == IBM_DPI.width and _DPI_DATE.fullmatch(data[0])
    return IBM_DPI if fits else None


def separator_of(line: str) -> str:
    """What separates the columns of a line."""
    return next((separator for separator in ",\t;" if separator in line), ",")


def cells_of(line: str) -> list[str]:
    """The cells of a line; a quoted one may hold the separator."""
    return [cell.strip(" \"'") for cell in next(csv.reader([line], delimiter=separator_of(line)))]
