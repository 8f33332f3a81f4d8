"""The reader of power logs: the samples of each outlet, in one pass over the lines.

Numbers are read with decimal points; a line that proves a comma begins another pass.
"""

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
    KEYS,
    Heading,
    Layout,
    LogError,
    are_alike,
    heading_of,
    layout_of,
    with_unit,
    words_of,
    zone_in,
)
from loadgen.report.power.formats import MARKS, TITLES, Format, is_like, makes
from loadgen.report.power.messages import PowerMessage
from loadgen.report.power.numbers import MISSING, number_of
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.power.tables import SEPARATORS, Row, Source, Table, cells_of, table_of
from loadgen.report.power.times import UNCERTAIN, BadTimeError, Clock, UnclearDatesError
from loadgen.report.power.units import unit_of
from loadgen.run.redaction import printable

_LARGEST_WATTS = 1e6
_MOST_OUTLETS = 1000
_HEADER_BLOCK = 6
"""Most lines of a header: names, kinds, units."""
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

    `kind` is that of the column; `step` is the last decimal place of the numbers. `is_mean` is
    True for averages, `is_counter` for energy that its title or make states as a counter.
    """

    kind: str
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


@dataclass(slots=True)
class _Figure:
    """The readings of one column or series while a log is read: numbers of rows, and values."""

    heading: Heading
    read: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: "array[int]" = field(default_factory=lambda: array("I"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    step: float = inf


class _OtherMarkError(Exception):
    """A number that proves another decimal mark than that of this pass."""


def read_log(log: PduLog, settings: LogSettings) -> LogSamples:
    """Return the samples of the chosen outlets of a log, with the PDU's clock set to the host's.

    Raise PowerLogError if the log cannot be used.
    """
    samples = _read(log, settings)
    try:
        return _chosen(samples, log)
    except LogError as error:
        raise PowerLogError(error.sentence(log=str(log.path), **error.values)) from None


def require_readable(settings: LogSettings) -> None:
    """Raise PowerLogError for the first log that cannot be used so far; it may still grow."""
    for log in settings.logs:
        _read(log, settings, may_grow=True)


def _read(log: PduLog, settings: LogSettings, *, may_grow: bool = False) -> LogSamples:
    try:
        if log.path.exists() and not log.path.is_file():
            raise OSError("not a file")
        return samples_of(Source(log.path, may_grow), str(log.path), settings)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(PowerMessage.UNREADABLE(log=log.path, reason=reason)) from None


def samples_of(source: Source, name: str, settings: LogSettings) -> LogSamples:
    """Return the samples of a log; raise PowerLogError if it cannot be read."""
    try:
        header = _Header(source, name, settings)
        layout, table = header.table()
        decimal = layout.format.decimal or ("" if table.separator is not None else "point")
        try:
            return _Pass(layout, table, header.head, MARKS.get(decimal, ".")).run(settings.zone)
        except _OtherMarkError as first:
            if decimal:
                values = {"number": str(first), "decimal": decimal}
                raise LogError(PowerMessage.MARK_CONTRADICTED, **values) from None
            try:
                return _Pass(layout, table, header.head, ",").run(settings.zone)
            except _OtherMarkError as second:
                values = {"number": str(second), "other": str(first)}
                raise LogError(PowerMessage.MARKS_MIXED, **values) from None
    except LogError as error:
        raise PowerLogError(error.sentence(log=name, **error.values)) from None


def _chosen(samples: LogSamples, log: PduLog) -> LogSamples:
    """Return the outlets that the user chose, or all if these are certain to be added."""
    outlets = samples.outlets
    if log.outlets:
        chosen = tuple(_outlet_named(name, outlets) for name in log.outlets)
        return replace(samples, outlets=chosen)
    names = tuple(printable(outlet.name or "(no name)", 60) for outlet in outlets)
    if not samples.are_alike:
        raise LogError(PowerMessage.DIFFERENT_KINDS, names=names[:8])
    if (total := _sum_among(outlets)) is not None:
        raise LogError(PowerMessage.SUM_OF_OTHERS, name=total.name, names=names[:8])
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


class _Header:
    """Finds the columns of a log."""

    def __init__(self, source: Source, name: str, settings: LogSettings) -> None:
        files = (f for f in settings.formats if not f.logs or fnmatch(Path(name).name, f.logs))
        self._source, self._options = source, settings.columns
        self._makes = (*files, *makes())
        self.head = source.head()

    def table(self) -> tuple[Layout, Table]:
        """Return the layout and the rows of the log; raise LogError if they are not certain."""
        if not self.head:
            raise LogError(PowerMessage.NO_SAMPLE)
        table = table_of(self._source, self.head, self._makes)
        if table is None:
            return self._below_titles()
        layout = self._layout(table.titles, (cells for _, cells in table.rows()), table.format)
        if layout is None:
            raise self._unknown(table.titles, ", ".join(table.titles))
        return layout, table

    def _layout(
        self, titles: Sequence[str], rows: Iterable[list[str]], make: Format | None = None
    ) -> Layout | None:
        fitting = next((f for f in self._makes if f.logs or f.fits(titles)), Format())
        cells = [""] * len(titles)
        for row in islice(rows, _FIRST_ROWS):
            for place, text in enumerate(row[: len(cells)]):
                cells[place] = cells[place] or text * (text.casefold() not in MISSING)
        return layout_of(titles, cells, (make or fitting).with_options(self._options))

    def _below_titles(self) -> tuple[Layout, Table]:
        """Split header and rows at the first line with a time in the column that has its title.

        Without such a line, the first readable header counts; its lines then show the error.
        """
        stated = re.fullmatch(r"sep=(.)", self.head[0], re.IGNORECASE)
        unclear: LogError | None = None
        fallback: tuple[Layout, Table] | None = None
        if (bare := self._without_titles(self.head[:1])) is not None:
            return bare
        for separator in (stated[1],) if stated else SEPARATORS:
            if unclear is not None and not separator:
                break
            rows = [_trimmed(cells_of(line, separator)) for line in self.head]
            for first in range(1 + bool(stated), len(rows)):
                if any(map(_is_time, rows[first - 1])):
                    continue  # a line of samples
                try:
                    layout = self._layout_above(rows, first)
                except LogError as error:
                    unclear = unclear or error
                    continue
                if layout is None:
                    continue
                header = frozenset(self.head[:first])
                table = _table(self._source, layout.titles, separator, first, header)
                if _is_sample(layout, rows[first]):
                    return layout, table
                fallback = fallback or (layout, table)
        bare_lines = unclear is not None and unclear.sentence is PowerMessage.NO_TIME
        if unclear is not None and not (bare_lines and self.head[0][0].isdigit()):
            raise unclear
        fallback = fallback or self._without_titles(self.head)
        if fallback is not None:
            return fallback
        widest = max(self.head, key=lambda line: max(map(line.count, "\t;|,")))
        separator = max("\t;|,", key=widest.count)
        raise self._unknown(cells_of(widest, separator), widest)

    def _layout_above(self, rows: Sequence[list[str]], first: int) -> Layout | None:
        """Return the layout of the lines above a row, as many as have the same columns."""
        width = len(rows[first - 1])
        block: list[list[str]] = []
        for row in reversed(rows[max(first - _HEADER_BLOCK, 0) : first]):
            if len(row) != width or width < 2:
                break
            block.insert(0, row)
        unclear: LogError | None = None
        while block:
            titles = [_title(cells) for cells in zip(*block, strict=True)]
            try:
                layout = self._layout(titles, rows[first:])
            except LogError as error:
                unclear, layout = error, None
            if layout is not None:
                return layout
            block.pop(0)
        if unclear is not None:
            raise unclear
        return None

    def _without_titles(self, lines: Sequence[str]) -> tuple[Layout, Table] | None:
        """Return the layout of a make whose logs have no titles, if one of the lines is of it."""
        for make in self._makes:
            for first, line in enumerate(lines):
                if make.first and not self._options.named and re.fullmatch(make.first, line):
                    separator = next(mark for mark in line if mark in SEPARATORS)
                    table = _table(self._source, make.columns, separator, first, frozenset())
                    layout = self._layout(make.columns, (), make)
                    return None if layout is None else (layout, table)
        return None

    def _unknown(self, titles: Sequence[str], header: str) -> LogError:
        """Return the error for a log without a header that can be read."""
        shown = printable(header, 120)
        options = self._options
        for key in TITLES:
            for pattern in getattr(options, key):
                parts = [pattern, *pattern.split("+")]
                if not any(is_like(title, part) for title in titles for part in parts):
                    return LogError(
                        PowerMessage.NO_COLUMN, column=printable(pattern, 80), header=shown
                    )
        if re.match(r"\W*\d", self.head[0]):
            return LogError(PowerMessage.HEADER_MISSING, header=printable(self.head[0], 120))
        if len(titles) < 2:
            return LogError(PowerMessage.NOT_A_TABLE, header=shown)
        return LogError(PowerMessage.HEADER_UNKNOWN, header=shown)


def _table(
    source: Source, titles: Sequence[str], separator: str, first: int, header: frozenset[str]
) -> Table:
    """Return the table below a header, without lines that repeat it and comments."""

    def rows() -> Iterator[Row]:
        for number, line in islice(source.lines(), first, None):
            if line not in header and line[0] != "#":
                yield number, cells_of(line, separator)

    return Table(tuple(titles), rows, separator=separator)


def _trimmed(cells: list[str]) -> list[str]:
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _title(cells: Sequence[str]) -> str:
    """Join the cells of a column's header; a unit in its cell gets brackets."""
    parts = []
    for cell in cells:
        try:
            is_unit = len(cells) > 1 and unit_of(cell) is not None
        except ValueError:
            is_unit = True
        parts.append(f"({cell})" if is_unit else cell)
    return " ".join(filter(None, parts)).strip()


def _is_sample(layout: Layout, cells: Sequence[str]) -> bool:
    if len(cells) <= max(layout.time):
        return False
    start = "1970-01-01 00:00" if layout.format.start else ""
    try:
        Clock("ymd", layout.format.format, start=start).add(_time_in(layout, cells), 0)
    except BadTimeError:
        return False
    return True


def _is_time(cell: str) -> bool:
    try:
        Clock().add(cell, 0)
    except BadTimeError:
        return False
    return True


def _time_in(layout: Layout, cells: Sequence[str]) -> str:
    return " ".join([cells[place] for place in layout.time])


# --- rows -----------------------------------------------------------------------------------


class _Pass:
    """One pass over the rows of a log, whose numbers have this decimal mark."""

    def __init__(self, layout: Layout, table: Table, head: Sequence[str], mark: str) -> None:
        form = layout.format
        above = (zone_in(line) for line in head if _ZONE_LINE.search(line))
        # "(UTC+01:00) Amsterdam" may or may not include summer time.
        zone = layout.zone or next((z for z in above if z and not re.search(r"\d", z)), "")
        start = form.start
        if start and "start" not in form.named:
            start = next((m[1] for line in head if (m := re.fullmatch(start, line))), "")
        try:
            self._clock = Clock(form.dates, form.format, zone, start)
        except BadTimeError as error:
            raise _bad_time(error) from None
        self._layout, self._table, self._mark = layout, table, mark
        self._proven, self._unclear = bool(form.decimal), ""
        self._figures: dict[str, list[_Figure]] = {}
        self._left_out = [(h.title, h.why, _is_power(h)) for h in layout.unused]
        self._error: LogError | None = None
        read = {*layout.time, *layout.names, *layout.numbers, layout.value, layout.unit}
        read |= {heading.place for heading in (*layout.figures, *layout.unused)}
        self._unread = [place for place in range(len(layout.titles)) if place not in read]
        self._texts: dict[tuple[str, int], list[str]] = {}

    def run(self, zone: ZoneInfo) -> LogSamples:
        """Read all rows; raise LogError, or _OtherMarkError if the mark is another one."""
        layout, width = self._layout, len(self._layout.titles)
        for line, cells in self._table.rows():
            if len(cells) != width and (len(cells) < width or any(cells[width:])):
                text = printable(" ".join(cells), 80)
                values = {"line": line, "width": len(cells), "expected": width, "text": text}
                raise LogError(PowerMessage.LINE_WIDTH, **values)
            try:
                self._clock.add(_time_in(layout, cells), line)
            except BadTimeError as error:
                raise _bad_time(error) from None
            name = " ".join([cells[place] for place in layout.names])
            row = len(self._clock) - 1
            if layout.value is None:
                for figure in self._figures.get(name) or self._outlet(name):
                    self._add(figure, row, cells[figure.heading.place], line)
            else:
                self._add_value(name, cells, row, line)
            if row < _COMPARED_LINES:
                self._compare(name, cells)
        if self._unclear and not self._proven and self._mark == ".":
            raise LogError(PowerMessage.MARK_UNCLEAR, number=printable(self._unclear, 40))
        return self._samples(zone)

    def _outlet(self, name: str) -> list["_Figure"]:
        """Begin an outlet, in a table with a column for each figure."""
        if len(self._figures) >= _MOST_OUTLETS:
            raise LogError(PowerMessage.TOO_MANY_OUTLETS, most=_MOST_OUTLETS)
        own_name = printable(name, 100)
        self._figures[name] = [
            _Figure(replace(heading, outlet=own_name) if self._layout.names else heading)
            for heading in self._layout.figures
        ]
        return self._figures[name]

    def _add_value(self, name: str, cells: Sequence[str], row: int, line: int) -> None:
        """Add the value of a row to its series."""
        text = cells[self._layout.value or 0]
        unit = "" if self._layout.unit is None else cells[self._layout.unit]
        key = f"{name}\0{unit}"
        is_missing = text.casefold() in MISSING
        if unit and not is_missing:
            text = f"{text} {unit}"
        if key not in self._figures and not is_missing:
            if len(self._figures) >= _MOST_OUTLETS:
                raise LogError(PowerMessage.TOO_MANY_OUTLETS, most=_MOST_OUTLETS)
            self._figures[key] = self._series(name, text)
        for figure in self._figures.get(key, ()):
            self._add(figure, row, text, line)

    def _series(self, name: str, text: str) -> list["_Figure"]:
        """Return the figure of a series by its name and a value; empty if it is not used."""
        form = self._layout.format
        shown = printable(name, 100)
        place = self._layout.value or 0
        heading = heading_of(name, form, place, text)
        if heading.unit is not None and not heading.named:
            heading = replace(heading, kind=heading.unit.kind)
        why = heading.why or ("another quantity" if heading.kind == "other" else "")
        if heading.statistic not in ("", "mean"):
            why = heading.statistic
        if not why:
            try:
                kind = heading.kind if heading.kind in KEYS else "power"
                heading = replace(heading, kind=kind, title=shown or self._layout.titles[place])
                heading = with_unit(heading, form, named=bool(heading.named))
            except LogError as error:
                self._error, why = self._error or error, "its unit is not certain"
        if why:
            self._left_out.append((shown, why, heading.kind == "power"))
            return []
        for figure in (figure for of in self._figures.values() for figure in of):
            other = figure.heading
            if (other.outlet, other.kind) == (heading.outlet, heading.kind):
                if other.title == heading.title:
                    return [figure]  # the same series in another unit
                heading = replace(heading, outlet=shown)
        return [_Figure(heading)]

    def _add(self, figure: "_Figure", row: int, text: str, line: int) -> None:
        known = figure.read.get(text)
        if known is None:
            known = self._number(text, figure.heading, line)
            if len(figure.read) < _CACHED:
                figure.read[text] = known
        value, step = known
        if value == value or self._layout.format.hold:
            figure.rows.append(row)
            figure.values.append(value)
        figure.step = min(figure.step, step)

    def _number(self, text: str, heading: Heading, line: int) -> tuple[float, float]:
        """Return a number in watts or kilowatt-hours and its last decimal place; NaN if missing."""
        if text.casefold() in MISSING:
            return nan, inf
        values = {"line": line, "column": printable(heading.title, 60), "text": text[:40]}
        number = number_of(text, self._mark)
        if number is None:
            raise LogError(PowerMessage.LINE_NUMBER, **values)
        self._prove(number.mark, text)
        try:
            unit = unit_of(number.unit) if number.unit else heading.unit
        except ValueError:
            unit = None
        quantity = "power" if heading.kind == "power" else "energy"
        if unit is not None and unit.kind != quantity:
            raise LogError(PowerMessage.LINE_QUANTITY, **values, quantity=quantity)
        if unit is None or number.value < 0 or not isfinite(number.value):
            raise LogError(PowerMessage.LINE_NUMBER, **values)
        value = number.value * unit.factor
        if quantity == "power" and value > _LARGEST_WATTS:
            raise LogError(PowerMessage.TOO_LARGE, line=line, watts=value)
        return value, unit.factor * 10.0**-number.places

    def _prove(self, mark: str, text: str) -> None:
        """Note whether a number proves the decimal mark; raise _OtherMarkError for another one."""
        if mark in (".", ","):
            if mark != self._mark:
                raise _OtherMarkError(printable(text, 40))
            self._proven = True
        # If commas separate columns, numbers have a point.
        elif mark == "?" and (self._table.separator != "," or "," in text):
            self._unclear = self._unclear or text

    def _compare(self, name: str, cells: Sequence[str]) -> None:
        """Keep what proves the decimal mark, and what may tell outlets apart."""
        for place in self._layout.numbers:
            number = number_of(cells[place], self._mark)
            if number is not None and number.mark in (".", ","):
                self._prove(number.mark, cells[place])
        for place in self._unread:
            self._texts.setdefault((name, place), []).append(cells[place])

    def _samples(self, zone: ZoneInfo) -> LogSamples:
        try:
            wall_ns, local, foreign = self._clock.resolve(zone)
        except UnclearDatesError as error:
            raise LogError(PowerMessage.DATES_UNCLEAR, date=printable(str(error), 40)) from None
        except BadTimeError as error:
            raise _bad_time(error) from None
        if foreign:
            raise LogError(PowerMessage.FOREIGN_ZONE, named=printable(foreign, 40), zone=zone.key)
        if len(wall_ns) and (wall_ns == UNCERTAIN).all():
            raise LogError(PowerMessage.ONLY_CHANGED_TIMES, zone=zone.key)
        outlets: dict[str, dict[str, Points]] = {}
        layout = self._layout
        used = []
        figures = {id(figure): figure for of in self._figures.values() for figure in of}
        for figure in figures.values():
            points = _points(figure, wall_ns)
            if points is not None:
                key = "watts" if points.kind == "power" else "energy"
                outlets.setdefault(figure.heading.outlet, {})[key] = points
                used.append(figure.heading.title)
        if any("watts" in of for of in outlets.values()):
            outlets = {name: of for name, of in outlets.items() if "watts" in of}
        if not outlets:
            raise self._error or LogError(PowerMessage.NO_SAMPLE)
        self._refuse_turns()
        chosen = layout.format.named & {*KEYS.values()} and not layout.names
        return LogSamples(
            tuple(Outlet(name, of.get("watts"), of.get("energy")) for name, of in outlets.items()),
            layout.format,
            used=tuple(dict.fromkeys(used)),
            unused=tuple(self._left_out),
            local=bool(local.any()),
            are_alike=bool(chosen) or are_alike([*outlets]),
        )

    def _refuse_turns(self) -> None:
        """Raise LogError for an unread column that tells samples of one outlet apart."""
        for (name, place), texts in self._texts.items():
            numbers = any(number_of(text, ".") for text in texts)
            if not _take_turns(np.array(texts), numbers):
                continue
            first, second = (printable(text, 40) for text in [*dict.fromkeys(texts)][:2])
            values = {"column": printable(self._layout.titles[place], 60), "second": second}
            raise LogError(PowerMessage.IN_TURN, name=printable(name, 60), first=first, **values)


def _is_power(heading: Heading) -> bool:
    return heading.unit.kind == "power" if heading.unit is not None else heading.kind == "power"


def _bad_time(error: BadTimeError) -> LogError:
    return LogError(PowerMessage.LINE_TIME, line=error.line, text=printable(str(error), 40))


def _points(figure: _Figure, wall_ns: Int64Array) -> Points | None:
    """Return the readings of a figure in order of time; raise LogError for two at one moment."""
    at = wall_ns[np.array(figure.rows, np.int64)]
    values = np.array(figure.values)
    certain = at != UNCERTAIN
    order = np.argsort(at[certain], kind="stable")
    at, values = at[certain][order], values[certain][order]
    if not len(at) or np.isnan(values).all():
        return None
    heading = figure.heading
    twice = np.flatnonzero(np.diff(at) == 0)
    if len(twice):
        time = datetime.fromtimestamp(int(at[twice[0]]) / 1e9, UTC)
        values_of = {"name": printable(heading.outlet, 60), "time": f"{time:%Y-%m-%d %H:%M:%S} UTC"}
        raise LogError(PowerMessage.TWICE, **values_of)
    is_mean = heading.statistic == "mean"
    return Points(heading.kind, at, values, figure.step, is_mean, heading.is_counter)


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
