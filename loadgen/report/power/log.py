"""The reader of power logs: the samples of each outlet, in one pass over the lines."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from itertools import pairwise
from math import inf, isfinite, nan
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.columns import (
    AROUND_NAMES,
    NO_WATTS_THERE,
    Column,
    Layout,
    are_alike,
    chosen,
    column_of,
    layout_of,
    with_unit,
    words_of,
)
from loadgen.report.power.formats import FIGURES, TITLES, Format, is_like, makes
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.power.tables import Source, Table, tables_in
from loadgen.report.power.times import UNCERTAIN, Clock, LogError, is_time, zone_in
from loadgen.report.power.units import MISSING, number_of, unit_of
from loadgen.run.redaction import printable
from loadgen.sentences import POWER_TEXT

_LARGEST_WATTS = 1e6
_MOST_OUTLETS = 1000
_COMPARED_LINES = 2000
_MOST = 0.9
"""Share of the lines that must agree: a meter misses some, and takes its sums later."""
_TOTAL_SHARE = 0.05
"""Tolerated difference of a total from the sum of its outlets, such as losses."""
_BURST = 10
"""A spacing so many times the next one is the pause before a group of samples."""
_BURST_NS = 5 * 10**8
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
    """Return the samples of the chosen outlets of a log; raise PowerLogError.

    A log that may grow is not complete, so that all its outlets are returned.
    """
    try:
        if log.path.exists() and not log.path.is_file():
            raise OSError("not a file")
        samples = samples_of(Source(log.path, may_grow), str(log.path), settings)
        return samples if may_grow else _chosen_outlets(samples, log)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(POWER_TEXT.UNREADABLE(log=log.path, reason=reason)) from None
    except LogError as error:
        raise error.of(str(log.path)) from None


def require_readable(settings: LogSettings) -> None:
    """Raise PowerLogError for the first log that cannot be used so far; it may still grow."""
    for log in settings.logs:
        read_log(log, settings, may_grow=True)


def samples_of(source: Source, name: str, settings: LogSettings) -> LogSamples:
    """Return the samples of a log; raise PowerLogError if it cannot be read."""
    try:
        head = source.head()
        files = (f for f in settings.formats if not f.logs or fnmatch(Path(name).name, f.logs))
        layout, table = _layout_in(source, head, (*files, *makes()), settings.columns)
        return _Reader(layout, table, head).read(settings.zone)
    except LogError as error:
        raise error.of(name) from None


def _chosen_outlets(samples: LogSamples, log: PduLog) -> LogSamples:
    """Return the outlets that the user chose, or all if these are certain to be added."""
    outlets = samples.outlets
    if log.outlets:
        named = tuple(_outlet_named(name, outlets) for name in log.outlets)
        return replace(samples, outlets=named)
    names = tuple(printable(outlet.name or "(no name)", 60) for outlet in outlets)[:8]
    if not samples.are_alike:
        raise LogError(POWER_TEXT.DIFFERENT_KINDS, names=names)
    if (total := _sum_among(outlets)) is not None:
        raise LogError(POWER_TEXT.SUM_OF_OTHERS, name=total.name, names=names)
    return samples


def _outlet_named(name: str, outlets: Sequence[Outlet]) -> Outlet:
    """Find an outlet by its name, or by its number alone: 3 for Outlet 3."""
    matching = [o for o in outlets if o.name in (name, name.strip(AROUND_NAMES))] or [
        outlet for outlet in outlets if words_of(outlet.name)[-1:] == [name.casefold()]
    ]
    if len(matching) == 1:
        return matching[0]
    names = tuple(printable(outlet.name, 60) for outlet in outlets[:10])
    sentence = POWER_TEXT.SEVERAL_OUTLETS if matching else POWER_TEXT.NO_OUTLET
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


def _layout_in(
    source: Source, head: Sequence[str], described: Sequence[Format], options: Format
) -> tuple[Layout, Table]:
    """Return the layout and the rows of a log; raise LogError if they are not certain.

    The header is above the first line with a time in the column that has its title. Without such a
    line, the first readable header counts; the lines below it then show the error.
    """
    if not head:
        raise LogError(POWER_TEXT.NO_SAMPLE)
    refused: dict[str | None, LogError] = {}
    silent: tuple[Layout, Table] | None = None
    widest: Sequence[str] = max((re.split("[\t;|,]", line) for line in head), key=len)
    for table in tables_in(source, head, described):
        if table.separator == "" and refused.keys() - {""}:
            break
        widest = max(table.titles, widest, key=len)
        cells = [""] * len(table.titles)
        for shown in table.first[:_FIRST_ROWS]:
            for place, text in enumerate(shown[: len(cells)]):
                cells[place] = cells[place] or text * (text.casefold() not in MISSING)
        fitting = (f for f in described if f.logs or f.fits(table.titles))
        form = (table.make or next(fitting, Format())).with_options(options)
        try:
            layout = layout_of(table.titles, cells, form)
        except LogError as error:
            refused.setdefault(table.separator, error)
            continue
        if layout is None:
            continue
        row = table.first[0]
        places = layout.places("time", "date", "zone")
        text = " ".join(row[place] for place in places if place < len(row))
        start = "1970-01-01 00:00" if layout.format.start else ""
        if is_time(text, Clock("ymd", layout.format.format, start=start)):
            return layout, table
        silent = silent or (layout, table)
    if silent is not None:
        return silent
    first = next(iter(refused.values()), None)
    if first is not None and not (head[0][0].isdigit() and first.sentence == POWER_TEXT.NO_TIME):
        raise first
    raise _unknown(head, widest, options)


def _unknown(head: Sequence[str], titles: Sequence[str], options: Format) -> LogError:
    """Return the error for a log without a header that can be read."""
    shown = printable(", ".join(titles), 120)
    for pattern in (p for key in TITLES for p in getattr(options, key)):
        parts = [pattern, *pattern.split("+")]
        if not any(is_like(title, part) for title in titles for part in parts):
            return LogError(POWER_TEXT.NO_COLUMN, column=printable(pattern, 80), header=shown)
    if re.match(r"\W*\d", head[0]):
        return LogError(POWER_TEXT.HEADER_MISSING, header=printable(head[0], 120))
    unlike = POWER_TEXT.NOT_A_TABLE if len(titles) < 2 else POWER_TEXT.HEADER_UNKNOWN
    return LogError(unlike, header=shown)


# --- rows -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Series:
    """The readings of a column or a series at one outlet: numbers of rows, and values.

    `read` has the numbers of cells that recur, with their steps.
    """

    column: Column
    read: dict[str, tuple[float, float]] = field(default_factory=dict)
    rows: "array[int]" = field(default_factory=lambda: array("I"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    step: float = inf


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
        self._clock = Clock(form.dates, form.format, next(filter(None, zones), ""), start)
        self._layout, self._table = layout, table
        self._series: dict[tuple[str, int, str], _Series] = {}
        self._error: LogError | None = None
        self._time = layout.places("time", "date", "zone")
        self._names = layout.places("outlet", "series")
        self._units = next(iter(layout.places("units")), None)
        self._value = next(iter(layout.places("value")), None)
        self._figures = [c for c in layout.columns if c.role in FIGURES and not c.why]
        if self._value is not None:
            self._figures = [c for c in layout.columns if c.role == "value"]
        places = {column.place for column in layout.columns}
        self._unread = [place for place in range(len(layout.titles)) if place not in places]
        self._texts: dict[tuple[str, int], list[str]] = {}
        self._mark, self._proof = self._decimal_mark()

    def _decimal_mark(self) -> tuple[str, str]:
        """Return the decimal mark of the log's numbers, and the first number that proves it."""
        stated = {"point": ".", "comma": ","}.get(self._layout.format.decimal, "")
        if stated or self._table.separator is None:
            return stated or ".", ""
        places = [*(column.place for column in self._figures), *self._layout.places("other")]
        for _, cells in self._table.rows():
            for text in (cells[place] for place in places if place < len(cells)):
                number = number_of(text) if "." in text or "," in text else None
                if number is not None and number.mark in (".", ","):
                    return number.mark, printable(text, 40)
        return "", ""

    def read(self, zone: ZoneInfo) -> LogSamples:
        """Read all rows; raise LogError."""
        width = len(self._layout.titles)
        summary: tuple[int, list[str]] | None = None
        for line, cells in self._table.rows():
            text = " ".join([cells[place] for place in self._time if place < len(cells)])
            if self._table.separator is not None and not any(map(str.isdigit, text)):
                summary = summary or (line, cells)
                continue
            if summary is not None:
                break
            if len(cells) != width and (len(cells) < width or any(cells[width:])):
                text = printable(" ".join(cells), 80)
                values = {"line": line, "width": len(cells), "expected": width, "text": text}
                raise LogError(POWER_TEXT.LINE_WIDTH, **values)
            self._add_row(text, cells, line)
        else:
            if summary is None or len(self._clock):
                return self._samples(zone, summary)
        line, cells = summary
        raise LogError(POWER_TEXT.LINE_TIME, line=line, text=printable(cells[0], 40))

    def _add_row(self, time: str, cells: Sequence[str], line: int) -> None:
        row = len(self._clock)
        self._clock.add(time, line)
        name = " ".join(filter(None, (cells[place] for place in self._names)))
        unit = "" if self._units is None else cells[self._units]
        for column in self._figures:
            text = cells[column.place]
            is_missing = text.casefold() in MISSING
            if self._value is not None and not is_missing:
                text = f"{text} {unit}".strip()
            key = (name, column.place, unit)
            if (series := self._series.get(key)) is None:
                if is_missing and self._value is not None:
                    continue  # its unit is not certain
                series = self._series[key] = self._begun(column, name, text)
            if not series.column.why:
                self._add(series, row, text, line)
        for place in self._unread if row < _COMPARED_LINES else ():
            self._texts.setdefault((name, place), []).append(cells[place])

    def _begun(self, column: Column, name: str, text: str) -> _Series:
        """Begin the series of a column at an outlet, or of a quantity that a line names."""
        if len(self._series) >= _MOST_OUTLETS * len(self._figures):
            raise LogError(POWER_TEXT.TOO_MANY_OUTLETS, most=_MOST_OUTLETS)
        form, shown = self._layout.format, printable(name, 100)
        if self._value is None:
            return _Series(replace(column, outlet=shown) if self._names else column)
        column = column_of(name, form, column.place, text)
        if column.unit is not None and not column.is_named:
            roles = {"power": "watts", "energy": "kwh"}
            column = replace(column, role=roles.get(column.unit.kind, "other"))
        why = column.why or ("another quantity" if column.role == "other" else "")
        if form.named & FIGURES.keys() and not column.is_named:
            why = "not named"
        column = replace(column, title=shown, why=why)
        if not why:
            role = column.role if column.role in FIGURES else "watts"
            title = shown or self._layout.titles[column.place]
            try:
                column = with_unit(replace(column, role=role, title=title), form)
            except LogError as error:
                self._error = self._error or error
                column = replace(column, why="its unit is not certain")
        same = (series for series in self._series.values() if series.column.title == column.title)
        return next((s for s in same if s.column.role == column.role), None) or _Series(column)

    def _add(self, series: _Series, row: int, text: str, line: int) -> None:
        if (read := series.read.get(text)) is None:
            read = (nan, inf)
            if text.casefold() not in MISSING:
                read = self._number(text, series.column, line)
            if len(series.read) < _CACHED:
                series.read[text] = read
        value, step = read
        if value == value or self._layout.format.hold:
            series.rows.append(row)
            series.values.append(value)
            series.step = min(series.step, step)

    def _number(self, text: str, column: Column, line: int) -> tuple[float, float]:
        """Return the watts or kilowatt-hours of a cell, and their step."""
        # If commas separate columns, numbers have a point.
        is_point = self._table.separator == "," and "," not in text
        mark = self._mark or ("." if is_point else "")
        number = number_of(text, mark or ".")
        unit = column.unit if number is None or not number.unit else unit_of(number.unit)
        shown = printable(text, 40)
        values = {"line": line, "column": printable(column.title, 60), "text": text[:40]}
        if unit is not None and unit.kind != FIGURES[column.role]:
            raise LogError(POWER_TEXT.LINE_QUANTITY, **values, quantity=FIGURES[column.role])
        is_fine = number is not None and number.value >= 0 and isfinite(number.value)
        if number is None or unit is None or unit.problem or not is_fine:
            raise LogError(POWER_TEXT.LINE_NUMBER, **values)
        if number.mark == "?" and not mark:
            raise LogError(POWER_TEXT.MARK_UNCLEAR, number=shown)
        if number.mark in (".", ",") and number.mark != mark:
            if self._proof:
                raise LogError(POWER_TEXT.MARKS_MIXED, number=shown, other=self._proof)
            decimal = self._layout.format.decimal or "point"
            raise LogError(POWER_TEXT.MARK_CONTRADICTED, number=shown, decimal=decimal)
        return number.value * unit.factor, unit.factor * 10.0**-number.places

    def _samples(self, zone: ZoneInfo, summary: tuple[int, list[str]] | None) -> LogSamples:
        """Return the samples of the series that are chosen."""
        wall_ns, local = self._clock.resolve(zone)
        form, is_long = self._layout.format, self._value is not None
        distinct = [*{id(series): series for series in self._series.values()}.values()]
        points = {}
        for place, series in enumerate(distinct):
            if not series.column.why and (of := _points(series, wall_ns, form)) is not None:
                points[place] = of
        columns = [replace(distinct[place].column, place=place) for place in points]
        columns = chosen(columns) if is_long else columns
        outlets: dict[str, dict[str, Points]] = {}
        for column in columns:
            if not column.why:
                key = "watts" if column.role == "watts" else "energy"
                outlets.setdefault(column.outlet, {})[key] = points[column.place]
        if any("watts" in of for of in outlets.values()):
            outlets = {name: of for name, of in outlets.items() if "watts" in of}
        every = (*self._layout.columns, *columns, *(series.column for series in distinct))
        left_out = [
            *dict.fromkeys(
                (c.title, c.why, c.is_power or c.why == NO_WATTS_THERE) for c in every if c.why
            )
        ]
        if summary is not None:
            text = printable(" ".join(summary[1]), 40)
            left_out.append((f"line {summary[0]}: {text}", "below the samples", True))
        used = tuple(dict.fromkeys(column.title for column in columns if not column.why))
        for key in form.named & FIGURES.keys() if is_long else ():
            for pattern in getattr(form, key):
                if not any(is_like(title, pattern) for title in used):
                    shown = printable(", ".join((*used, *(of[0] for of in left_out))), 120)
                    raise LogError(POWER_TEXT.NO_COLUMN, column=pattern, header=shown)
        if not outlets:
            titles = tuple(title for title, *_ in left_out[:4])
            if is_long and titles and self._error is None:
                raise LogError(POWER_TEXT.NO_WATTS, columns=titles)
            raise self._error or LogError(POWER_TEXT.NO_SAMPLE)
        self._refuse_turns()
        is_chosen = bool(form.named & FIGURES.keys()) and (is_long or not self._names)
        return LogSamples(
            tuple(Outlet(name, of.get("watts"), of.get("energy")) for name, of in outlets.items()),
            form,
            used,
            tuple(left_out),
            local,
            are_alike=is_chosen or are_alike([*outlets]),
        )

    def _refuse_turns(self) -> None:
        """Raise LogError for an unread column that tells samples of one outlet apart."""
        for (name, place), texts in self._texts.items():
            if _take_turns(np.array(texts), any(number_of(text) for text in texts)):
                first, second = (printable(text, 40) for text in [*dict.fromkeys(texts)][:2])
                values = {"column": printable(self._layout.titles[place], 60), "second": second}
                shown = printable(name, 60)
                raise LogError(POWER_TEXT.IN_TURN, name=shown, first=first, **values)


def _points(series: _Series, wall_ns: Int64Array, form: Format) -> Points | None:
    """Return readings in order of time; raise LogError if they may be of several outlets."""
    column = series.column
    at, values = wall_ns[np.array(series.rows, np.int64)], np.array(series.values)
    at, values = at[at != UNCERTAIN], values[at != UNCERTAIN]
    if not len(at) or np.isnan(values).all():
        return None
    name = printable(column.outlet, 60)
    if column.role == "watts" and np.nanmax(values) > _LARGEST_WATTS:
        raise LogError(POWER_TEXT.TOO_LARGE, name=name, watts=float(np.nanmax(values)))
    back = _overlap(at)
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    spacing = np.diff(at)
    pauses = (spacing[:-1] > _BURST * spacing[1:]) & (spacing[1:] < _BURST_NS)
    rules = (
        (POWER_TEXT.TWICE, at[1:][spacing == 0]),
        (POWER_TEXT.OVERLAP, back),
        (POWER_TEXT.BURSTS, at[1:-1][pauses] if not form.hold else at[:0]),
    )
    for sentence, moments in rules:
        is_rare = sentence == POWER_TEXT.BURSTS and len(moments) < max(3, 0.1 * len(at))
        if len(moments) and not is_rare:
            time = f"{datetime.fromtimestamp(int(moments[0]) / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
            raise LogError(sentence, name=name, time=time)
    is_mean = column.statistic == "mean"
    return Points(column.role, at, values, series.step, is_mean, column.is_counter)


def _overlap(at: Int64Array) -> Int64Array:
    """Return moments to which a log goes back between earlier samples, if read from either end."""
    overlaps = []
    for of in (at, at[::-1]):
        begins = np.flatnonzero(np.diff(of, prepend=of[:1]) < 0)
        passes = sorted((int(part[0]), int(part[-1])) for part in np.split(of, begins))
        overlaps.append([later[0] for first, later in pairwise(passes) if later[0] < first[1]])
    return np.array(min(overlaps, key=len), np.int64)


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
