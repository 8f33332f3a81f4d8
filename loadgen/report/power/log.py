"""The reader of power logs: the samples of each outlet, in one pass over the lines."""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from itertools import islice
from math import inf, isfinite, nan
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.columns import (
    AROUND_NAMES,
    Column,
    Layout,
    are_alike,
    column_of,
    layout_of,
    with_unit,
    words_of,
)
from loadgen.report.power.formats import FIGURES, TITLES, Format, is_like, makes
from loadgen.report.power.messages import LogError, PowerMessage
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.power.tables import SEPARATORS, Row, Source, Table, cells_of, table_of
from loadgen.report.power.times import UNCERTAIN, Clock, is_time, zone_in
from loadgen.report.power.units import MISSING, Number, number_of, unit_of
from loadgen.run.redaction import printable

_LARGEST_WATTS = 1e6
_MOST_OUTLETS = 1000
_HEADER_BLOCK = 6
_COMPARED_LINES = 2000
_MOST = 0.9
"""Share of the lines that must agree: a meter misses some, and takes its sums later."""
_TOTAL_SHARE = 0.05
"""Tolerated difference of a total from the sum of its outlets, such as losses."""
_FIRST_ROWS = 20
_CACHED = 100_000
_ZONE_LINE = re.compile(r"time\s?-?zone|zeitzone|times?\b.* in ", re.IGNORECASE)

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Points:
    """Readings of one figure in ascending time: watts, or kilowatt-hours.

    `role` is that of the column; `step` is the last decimal place of the numbers. `is_mean` is
    True for averages, `is_counter` for energy that its title or make states as a counter.
    """

    role: str
    at: Int64Array
    values: Float64Array
    step: float
    is_mean: bool = False
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class Outlet:
    """The samples of one outlet; either figure may be missing."""

    name: str
    watts: Points | None
    energy: Points | None


@dataclass(frozen=True, slots=True)
class LogSamples:
    """The samples of a log by the clock of its writer, in UTC nanoseconds.

    `used` are titles of columns, `unused` those that are not, each with the reason, and True if it
    has watts. `local` is True if times name no zone, `are_alike` if outlets are of one kind.
    """

    outlets: tuple[Outlet, ...]
    format: Format
    used: tuple[str, ...]
    unused: tuple[tuple[str, str, bool], ...]
    local: bool
    are_alike: bool


def read_log(log: PduLog, settings: LogSettings, *, may_grow: bool = False) -> LogSamples:
    """Return the samples of the chosen outlets of a log, with the PDU's clock set to the host's.

    Raise PowerLogError if the log cannot be used. A log that may grow is not complete, so that all
    its outlets are returned.
    """
    try:
        if log.path.exists() and not log.path.is_file():
            raise OSError("not a file")
        samples = samples_of(Source(log.path, may_grow), str(log.path), settings)
        return samples if may_grow else _chosen(samples, log)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(PowerMessage.UNREADABLE(log=log.path, reason=reason)) from None
    except LogError as error:
        raise PowerLogError(error.sentence(log=str(log.path), **error.values)) from None


def require_readable(settings: LogSettings) -> None:
    """Raise PowerLogError for the first log that cannot be used so far; it may still grow."""
    for log in settings.logs:
        read_log(log, settings, may_grow=True)


def samples_of(source: Source, name: str, settings: LogSettings) -> LogSamples:
    """Return the samples of a log; raise PowerLogError if it cannot be read."""
    try:
        head = source.head()
        files = (f for f in settings.formats if not f.logs or fnmatch(Path(name).name, f.logs))
        layout, table = _table_in(source, head, (*files, *makes()), settings.columns)
        return _Reader(layout, table, head).read(settings.zone)
    except LogError as error:
        raise PowerLogError(error.sentence(log=name, **error.values)) from None


def _chosen(samples: LogSamples, log: PduLog) -> LogSamples:
    """Return the outlets that the user chose, or all if these are certain to be added."""
    outlets = samples.outlets
    if log.outlets:
        chosen = tuple(_outlet_named(name, outlets) for name in log.outlets)
        return replace(samples, outlets=chosen)
    names = tuple(printable(outlet.name or "(no name)", 60) for outlet in outlets)[:8]
    if not samples.are_alike:
        raise LogError(PowerMessage.DIFFERENT_KINDS, names=names)
    if (total := _sum_among(outlets)) is not None:
        raise LogError(PowerMessage.SUM_OF_OTHERS, name=total.name, names=names)
    return samples


def _outlet_named(name: str, outlets: Sequence[Outlet]) -> Outlet:
    """Find an outlet by its name, or by its number alone: 3 for Outlet 3."""
    matching = [o for o in outlets if o.name in (name, name.strip(AROUND_NAMES))] or [
        outlet for outlet in outlets if words_of(outlet.name)[-1:] == [name.casefold()]
    ]
    if len(matching) == 1:
        return matching[0]
    names = tuple(printable(outlet.name, 60) for outlet in outlets[:10])
    sentence = PowerMessage.SEVERAL_OUTLETS if matching else PowerMessage.NO_OUTLET
    raise LogError(sentence, name=printable(name, 80), names=names)


def _sum_among(outlets: Sequence[Outlet]) -> Outlet | None:
    """Find an outlet that equals the sum of all others at nearly every moment."""
    points = [outlet.watts for outlet in outlets if outlet.watts is not None]
    if len(points) < 3 or len(points) < len(outlets):
        return None
    moments = points[0].at[:_COMPARED_LINES]
    for other in points[1:]:
        moments = np.intersect1d(moments, other.at)
    if len(moments) < 3:
        return None
    table = np.array([p.values[np.searchsorted(p.at, moments)] for p in points])
    near = np.abs(table - (table.sum(axis=0) - table)) <= _TOTAL_SHARE * table
    shares = (near & (table > 0)).mean(axis=1)
    return next((o for o, share in zip(outlets, shares, strict=True) if share >= _MOST), None)


# --- header ---------------------------------------------------------------------------------


def _table_in(
    source: Source, head: Sequence[str], described: Sequence[Format], options: Format
) -> tuple[Layout, Table]:
    """Return the layout and the rows of a log; raise LogError if they are not certain.

    The header is above the first line with a time in the column that has its title. Without such a
    line, the first readable header counts; the lines below it then show the error.
    """
    if not head:
        raise LogError(PowerMessage.NO_SAMPLE)
    table = table_of(source, head, described)
    if table is not None:
        rows = [cells for _, cells in islice(table.rows(), _FIRST_ROWS)]
        layout = _layout(table.titles, rows, described, options, table.format)
        if layout is None:
            raise _unknown(head, table.titles, ", ".join(table.titles), options)
        return layout, table
    errors: dict[tuple[str, int], LogError] = {}
    fallback: tuple[Layout, Table] | None = None
    settled = ("", 0)
    for separator, first, titles, rows in _headers(head):
        place = (separator, first)
        if not separator and any(other for other, _ in errors):
            break
        if place == settled:
            continue
        try:
            layout = _layout(titles, rows[:_FIRST_ROWS], described, options)
        except LogError as error:
            errors[place] = error
            continue
        if layout is not None:
            settled = place
            errors.pop(place, None)
            table = _table(source, layout.titles, separator, first, frozenset(head[:first]))
            places = layout.places("time", "date", "zone")
            text = " ".join(rows[0][place] for place in places if place < len(rows[0]))
            start = "1970-01-01 00:00" if layout.format.start else ""
            if is_time(text, Clock("ymd", layout.format.format, start=start)):
                return layout, table
            fallback = fallback or (layout, table)
    unclear = next(iter(errors.values()), None)
    bare_lines = unclear is not None and unclear.sentence is PowerMessage.NO_TIME
    if unclear is not None and not (bare_lines and head[0][0].isdigit()):
        raise unclear
    if fallback is not None:
        return fallback
    widest = max(head, key=lambda line: max(map(line.count, "\t;|,")))
    raise _unknown(head, cells_of(widest, max("\t;|,", key=widest.count)), widest, options)


def _headers(head: Sequence[str]) -> Iterator[tuple[str, int, list[str], list[list[str]]]]:
    """Yield separators, lines below a possible header, its titles, and the rows from that line on.

    A header has up to six lines of the same width, such as names, kinds and units; of those that
    end at one line, the highest is the first.
    """
    stated = re.fullmatch(r"sep=(.)", head[0], re.IGNORECASE)
    for separator in (stated[1],) if stated else SEPARATORS:
        rows = [cells_of(line, separator) for line in head]
        for row in rows:
            while row and not row[-1]:
                row.pop()
        for first in range(1 + bool(stated), len(rows)):
            width = len(rows[first - 1])
            if width < 2 or any(map(is_time, rows[first - 1])):
                continue  # a line of samples, or of text
            top = first - 1
            while top > max(first - _HEADER_BLOCK, 0) and len(rows[top - 1]) == width:
                top -= 1
            for start in range(top, first):
                titles = []
                for cells in zip(*rows[start:first], strict=True):
                    # A unit in a separate line gets brackets.
                    parts = [f"({c})" if len(cells) > 1 and unit_of(c) else c for c in cells]
                    titles.append(" ".join(filter(None, parts)).strip())
                yield separator, first, titles, rows[first:]


def _layout(
    titles: Sequence[str],
    rows: Iterable[list[str]],
    described: Sequence[Format],
    options: Format,
    make: Format | None = None,
) -> Layout | None:
    cells = [""] * len(titles)
    for row in rows:
        for place, text in enumerate(row[: len(cells)]):
            cells[place] = cells[place] or text * (text.casefold() not in MISSING)
    fitting = make or next((f for f in described if f.logs or f.fits(titles)), Format())
    return layout_of(titles, cells, fitting.with_options(options))


def _unknown(head: Sequence[str], titles: Sequence[str], header: str, options: Format) -> LogError:
    """Return the error for a log without a header that can be read."""
    shown = printable(header, 120)
    for pattern in (p for key in TITLES for p in getattr(options, key)):
        parts = [pattern, *pattern.split("+")]
        if not any(is_like(title, part) for title in titles for part in parts):
            return LogError(PowerMessage.NO_COLUMN, column=printable(pattern, 80), header=shown)
    if re.match(r"\W*\d", head[0]):
        return LogError(PowerMessage.HEADER_MISSING, header=printable(head[0], 120))
    unlike = PowerMessage.NOT_A_TABLE if len(titles) < 2 else PowerMessage.HEADER_UNKNOWN
    return LogError(unlike, header=shown)


def _table(
    source: Source, titles: Sequence[str], separator: str, first: int, header: frozenset[str]
) -> Table:
    """Return the table below a header, without lines that repeat it and comments."""

    def rows() -> Iterator[Row]:
        for number, line in islice(source.lines(), first, None):
            if line not in header and line[0] != "#":
                yield number, cells_of(line, separator)

    return Table(tuple(titles), rows, separator=separator)


# --- rows -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Figure:
    """The readings of one column or series while a log is read: numbers of rows, and values."""

    column: Column
    read: dict[str, tuple[Number, float]] = field(default_factory=dict)
    rows: "array[int]" = field(default_factory=lambda: array("I"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    step: float = inf

    def add(self, row: int, value: float, step: float) -> None:
        self.rows.append(row)
        self.values.append(value)
        self.step = min(self.step, step)


class _Reader:
    """Reads the rows of a log."""

    def __init__(self, layout: Layout, table: Table, head: Sequence[str]) -> None:
        form = layout.format
        above = (zone_in(line) for line in head if _ZONE_LINE.search(line))
        # "(UTC+01:00) Amsterdam" may or may not include summer time.
        zones = [zone_in(layout.titles[place]) for place in layout.places("time", "date")]
        zones += [zone for zone in above if not re.search(r"\d", zone)]
        start = form.start
        if start and "start" not in form.named:
            start = next((m[1] for line in head if (m := re.fullmatch(start, line))), "")
        zone = next(filter(None, zones), "")
        self._clock = Clock(form.dates, form.format, zone, start)
        self._layout, self._table = layout, table
        self._figures: dict[tuple[str, str], list[_Figure]] = {}
        self._left_out = [(c.title, c.why, c.is_power) for c in layout.columns if c.why]
        self._columns = [c for c in layout.columns if c.role in FIGURES and not c.why]
        self._time = layout.places("time", "date", "zone")
        self._names = layout.places("outlet", "series")
        self._numbers = layout.places("other")
        self._value = next(iter(layout.places("value")), None)
        self._units = next(iter(layout.places("units")), None)
        self._error: LogError | None = None
        self._mark = {"point": ".", "comma": ","}.get(form.decimal, "")
        if table.separator is None:
            self._mark = self._mark or "."
        self._proof = ""
        self._ambiguous: list[tuple[_Figure, int, str]] = []
        read = {column.place for column in layout.columns}
        self._unread = [place for place in range(len(layout.titles)) if place not in read]
        self._texts: dict[tuple[str, int], list[str]] = {}

    def read(self, zone: ZoneInfo) -> LogSamples:
        """Read all rows; raise LogError."""
        width = len(self._layout.titles)
        for line, cells in self._table.rows():
            if len(cells) != width and (len(cells) < width or any(cells[width:])):
                text = printable(" ".join(cells), 80)
                values = {"line": line, "width": len(cells), "expected": width, "text": text}
                raise LogError(PowerMessage.LINE_WIDTH, **values)
            row = len(self._clock)
            self._clock.add(" ".join([cells[place] for place in self._time]), line)
            name = " ".join(filter(None, (cells[place] for place in self._names)))
            if self._value is not None:
                self._add_value(name, cells, row, line)
            else:
                if (name, "") not in self._figures:
                    shown = printable(name, 100)
                    figures = [
                        _Figure(replace(column, outlet=shown) if self._names else column)
                        for column in self._columns
                    ]
                    self._remember((name, ""), figures)
                for figure in self._figures[name, ""]:
                    self._add(figure, row, cells[figure.column.place], line)
            if row < _COMPARED_LINES:
                for place in self._numbers:
                    if (number := number_of(cells[place])) is not None:
                        self._prove(number.mark, cells[place])
                for place in self._unread:
                    self._texts.setdefault((name, place), []).append(cells[place])
        self._settle_marks()
        return self._samples(zone)

    def _remember(self, key: tuple[str, str], figures: list[_Figure]) -> None:
        if len(self._figures) >= _MOST_OUTLETS:
            raise LogError(PowerMessage.TOO_MANY_OUTLETS, most=_MOST_OUTLETS)
        self._figures[key] = figures

    def _add_value(self, name: str, cells: Sequence[str], row: int, line: int) -> None:
        """Add the value of a row to its series."""
        text = cells[self._value or 0]
        unit = "" if self._units is None else cells[self._units]
        if text.casefold() not in MISSING:
            text = f"{text} {unit}".strip()
            if (name, unit) not in self._figures:
                self._remember((name, unit), self._series(name, text))
        for figure in self._figures.get((name, unit), ()):
            self._add(figure, row, text, line)

    def _series(self, name: str, text: str) -> list[_Figure]:
        """Return the figure of a series by its name and a value; empty if it is not used."""
        form = self._layout.format
        shown = printable(name, 100)
        column = column_of(name, form, self._value or 0, text)
        if column.unit is not None and not column.is_named:
            roles = {"power": "watts", "energy": "kwh"}
            column = replace(column, role=roles.get(column.unit.kind, "other"))
        why = column.why or ("another quantity" if column.role == "other" else "")
        if column.statistic not in ("", "mean"):
            why = column.statistic
        if form.named & FIGURES.keys() and not column.is_named:
            why = "not named"
        if not why:
            try:
                role = column.role if column.role in FIGURES else "watts"
                title = shown or self._layout.titles[column.place]
                column = with_unit(replace(column, role=role, title=title), form)
            except LogError as error:
                self._error, why = self._error or error, "its unit is not certain"
        if why:
            self._left_out.append((shown, why, column.role == "watts"))
            return []
        for figure in (figure for of in self._figures.values() for figure in of):
            other = figure.column
            if (other.outlet, other.role) == (column.outlet, column.role):
                if other.title == column.title:
                    return [figure]  # the same series in another unit
                column = replace(column, outlet=shown)
        return [_Figure(column)]

    def _add(self, figure: _Figure, row: int, text: str, line: int) -> None:
        """Add the number in a cell; an ambiguous one is read when its mark is certain."""
        if (cached := figure.read.get(text)) is None:
            if text.casefold() in MISSING:
                cached = Number(nan, 0, "", ""), inf
            else:
                cached = self._number(text, figure.column, line)
            if len(figure.read) < _CACHED:
                figure.read[text] = cached
        number, factor = cached
        step = factor * 10.0**-number.places
        if number.mark == "?" and self._mark != ".":
            self._ambiguous.append((figure, len(figure.rows), text))
            step = inf
        if number.value == number.value or self._layout.format.hold:
            figure.add(row, number.value * factor, step)

    def _number(self, text: str, column: Column, line: int) -> tuple[Number, float]:
        """Return the number in a cell, and the factor to watts or kilowatt-hours."""
        values = {"line": line, "column": printable(column.title, 60), "text": text[:40]}
        number = number_of(text)
        unit = column.unit if number is None or not number.unit else unit_of(number.unit)
        quantity = FIGURES[column.role]
        if unit is not None and unit.kind != quantity:
            raise LogError(PowerMessage.LINE_QUANTITY, **values, quantity=quantity)
        is_fine = number is not None and number.value >= 0 and isfinite(number.value)
        if number is None or unit is None or unit.problem or not is_fine:
            raise LogError(PowerMessage.LINE_NUMBER, **values)
        self._prove(number.mark, text)
        return number, unit.factor

    def _prove(self, mark: str, text: str) -> None:
        """Note whether a number proves the decimal mark; raise LogError for another one."""
        if mark not in (".", ","):
            return
        number = printable(text, 40)
        if self._mark not in (mark, "") and self._proof:
            raise LogError(PowerMessage.MARKS_MIXED, number=number, other=self._proof)
        if self._mark not in (mark, ""):
            decimal = self._layout.format.decimal or "point"
            raise LogError(PowerMessage.MARK_CONTRADICTED, number=number, decimal=decimal)
        self._mark, self._proof = mark, self._proof or number

    def _settle_marks(self) -> None:
        """Read the numbers with ambiguous marks; raise LogError if the log does not settle them."""
        for figure, place, text in self._ambiguous:
            # If commas separate columns, numbers have a point.
            mark = self._mark or ("." if self._table.separator == "," and "," not in text else "")
            if not mark:
                raise LogError(PowerMessage.MARK_UNCLEAR, number=printable(text, 40))
            _, factor = figure.read.get(text) or self._number(text, figure.column, 0)
            number = number_of(text, mark)
            assert number is not None, "an ambiguous number is well-formed with either mark"
            figure.values[place] = number.value * factor
            figure.step = min(figure.step, factor * 10.0**-number.places)

    def _samples(self, zone: ZoneInfo) -> LogSamples:
        wall_ns, local = self._clock.resolve(zone)
        layout = self._layout
        outlets: dict[str, dict[str, Points]] = {}
        used = []
        figures = {id(figure): figure for of in self._figures.values() for figure in of}
        for figure in figures.values():
            points = _points(figure, wall_ns)
            if points is not None:
                key = "watts" if points.role == "watts" else "energy"
                outlets.setdefault(figure.column.outlet, {})[key] = points
                used.append(figure.column.title)
        if any("watts" in of for of in outlets.values()):
            outlets = {name: of for name, of in outlets.items() if "watts" in of}
        for key in layout.format.named & FIGURES.keys():
            for pattern in getattr(layout.format, key) if self._value is not None else ():
                if not any(is_like(title, pattern) for title in used):
                    titles = (title for title, *_ in self._left_out)
                    shown = printable(", ".join((*used, *titles)), 120)
                    raise LogError(PowerMessage.NO_COLUMN, column=pattern, header=shown)
        if not outlets:
            left_out = tuple(title for title, *_ in self._left_out[:4])
            if self._value is not None and left_out and self._error is None:
                raise LogError(PowerMessage.NO_WATTS, columns=left_out)
            raise self._error or LogError(PowerMessage.NO_SAMPLE)
        self._refuse_turns()
        chosen = layout.format.named & FIGURES.keys()
        is_summed = self._value is not None or not self._names
        return LogSamples(
            tuple(Outlet(name, of.get("watts"), of.get("energy")) for name, of in outlets.items()),
            layout.format,
            used=tuple(dict.fromkeys(used)),
            unused=tuple(self._left_out),
            local=local,
            are_alike=bool(chosen and is_summed) or are_alike([*outlets]),
        )

    def _refuse_turns(self) -> None:
        """Raise LogError for an unread column that tells samples of one outlet apart."""
        for (name, place), texts in self._texts.items():
            numbers = any(number_of(text) for text in texts)
            if not _take_turns(np.array(texts), numbers):
                continue
            first, second = (printable(text, 40) for text in [*dict.fromkeys(texts)][:2])
            values = {"column": printable(self._layout.titles[place], 60), "second": second}
            raise LogError(PowerMessage.IN_TURN, name=printable(name, 60), first=first, **values)


def _points(figure: _Figure, wall_ns: Int64Array) -> Points | None:
    """Return the readings of a figure in order of time; raise LogError for two at one moment."""
    at = wall_ns[np.array(figure.rows, np.int64)]
    values = np.array(figure.values)
    certain = at != UNCERTAIN
    order = np.argsort(at[certain], kind="stable")
    at, values = at[certain][order], values[certain][order]
    if not len(at) or np.isnan(values).all():
        return None
    column = figure.column
    name = printable(column.outlet, 60)
    if column.role == "watts" and np.nanmax(values) > _LARGEST_WATTS:
        raise LogError(PowerMessage.TOO_LARGE, name=name, watts=float(np.nanmax(values)))
    twice = np.flatnonzero(np.diff(at) == 0)
    if len(twice):
        time = f"{datetime.fromtimestamp(int(at[twice[0]]) / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
        raise LogError(PowerMessage.TWICE, name=name, time=time)
    is_mean = column.statistic == "mean"
    return Points(column.role, at, values, figure.step, is_mean, column.is_counter)


def _take_turns(texts: NDArray[np.str_], numbers: bool) -> bool:
    """Return True if these values recur, as names do; numbers must recur in the same order."""
    _, codes = np.unique(texts, return_inverse=True)
    kinds = int(codes.max(initial=0)) + 1
    if kinds < 2 or len(codes) < 3 * kinds:
        return False
    changes = codes[1:] != codes[:-1]
    if numbers:
        back = codes[kinds:] == codes[:-kinds]
        return bool(changes.mean() >= _MOST and back.mean() >= _MOST)
    return bool(changes.sum() >= max(2 * kinds - 1, len(codes) / 10))
