"""The reader of power logs: the samples of each outlet, in one pass over the lines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import reduce
from itertools import combinations, product, zip_longest
from math import inf, isfinite, nan
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power import columns
from loadgen.report.power.columns import NO_WATTS_THERE, Column, Layout, layout_of, words_of
from loadgen.report.power.formats import FIGURES, TITLES, Format, is_like, makes
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.power.tables import HEAD_LINES, Line, Table, lines_of, tables_in
from loadgen.report.power.times import UNCERTAIN, LogError, is_time, read_times, zone_in
from loadgen.report.power.units import expression, is_value, number_of, unit_of, words
from loadgen.sentences import POWER_TEXT, printable

_LARGEST_WATTS = 1e6
_MOST_OUTLETS = 1000
_COMPARED_LINES = 2000
_MOST = 0.9
"""Share of the lines that must agree: a meter may miss some, and read sums later than outlets."""
_TOTAL_SHARE = 0.05  # tolerated difference of a total from the sum of its outlets, such as losses
_TELLING = 4  # multiples of the rounding that tell a sum or a difference from chance
_MOST_COMPARED = 8  # outlets whose groups are compared with the others: about a thousand groups
_BURST = 10  # a spacing this many times the next one is the pause before a group of samples
_BURST_NS = 5 * 10**8
_FIRST_ROWS = 20
Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
_Rows = Sequence[Sequence[str]]


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

    @property
    def points(self) -> Points:
        points = self.watts or self.energy
        assert points is not None, "an outlet has a figure"
        return points


@dataclass(frozen=True, slots=True)
class LogSamples:
    """The samples of a log by the clock of its writer, in UTC nanoseconds.

    `used` are titles of columns; `unused` has (title, reason, True for watts) of the others.
    `local` is True if times name no zone, `are_alike` if outlets are of one kind.
    """

    outlets: tuple[Outlet, ...]
    format: Format
    used: tuple[str, ...]
    unused: tuple[tuple[str, str, bool], ...]
    local: bool
    are_alike: bool


def read_log(log: PduLog, settings: LogSettings) -> LogSamples:
    """Return the samples of the chosen outlets of a log, or of all; raise PowerLogError."""
    samples = samples_of(_bytes_of(log), str(log.path), settings)
    try:
        if log.outlets:
            named = tuple(_outlet_named(name, samples.outlets) for name in log.outlets)
            return replace(samples, outlets=named)
        names = tuple(printable(o.name or "(no name)", 60) for o in samples.outlets)[:8]
        if not samples.are_alike:
            raise LogError(POWER_TEXT.DIFFERENT_KINDS, names=names)
        if (made := _made_of_others(samples.outlets)) is not None:
            raise LogError(POWER_TEXT.SUM_OF_OTHERS, name=made.name, names=names)
        return samples
    except LogError as error:
        raise error.of(str(log.path)) from None


def require_files(settings: LogSettings | None) -> None:
    """Raise PowerLogError for the first log that cannot be opened."""
    for log in () if settings is None else settings.logs:
        _bytes_of(log, 1)


def require_readable(settings: LogSettings | None) -> None:
    """Raise PowerLogError for the first log that cannot be used so far; it may still grow."""
    if settings is not None:
        for log in settings.logs:
            samples_of(_bytes_of(log), str(log.path), settings, may_grow=True)


def _bytes_of(log: PduLog, most: int = -1) -> bytes:
    try:
        with log.path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise PowerLogError(POWER_TEXT.UNREADABLE(log=log.path, reason=error)) from None


def samples_of(
    log: bytes, name: str, settings: LogSettings, *, may_grow: bool = False
) -> LogSamples:
    """Return the samples of a log, without its last line if it may grow; raise PowerLogError."""
    files = (f for f in settings.formats if not f.logs or fnmatch(Path(name).name, f.logs))
    try:
        lines = lines_of(log, may_grow=may_grow)
        layout, table = _layout_in(lines, (*files, *makes()), settings.columns)
        return _read(layout, table, lines, settings.zone)
    except LogError as error:
        raise error.of(name) from None


def _outlet_named(name: str, outlets: Sequence[Outlet]) -> Outlet:
    """Find an outlet by its name, or by its number alone: 3 for Outlet 3."""
    matching = [o for o in outlets if o.name in (name, name.strip(columns.AROUND_NAMES))] or [
        outlet for outlet in outlets if words_of(outlet.name)[-1:] == [name.casefold()]
    ]
    if len(matching) == 1:
        return matching[0]
    names = tuple(printable(outlet.name, 60) for outlet in outlets[:10])
    sentence = POWER_TEXT.SEVERAL_OUTLETS if matching else POWER_TEXT.NO_OUTLET
    raise LogError(sentence, name=printable(name, 80), names=names)


def _made_of_others(outlets: Sequence[Outlet]) -> Outlet | None:
    """Find an outlet that is nearly always the sum, mean, least or most of others, else None."""
    points = [outlet.watts for outlet in outlets if outlet.watts is not None]
    if len(points) < 3 or len(points) < len(outlets):
        return None
    moments = reduce(np.intersect1d, [of.at[:_COMPARED_LINES] for of in points])
    if len(moments) > 2:
        table = np.array([p.values[np.searchsorted(p.at, moments)] for p in points])
    elif len({len(of.at) for of in points}) == 1 and len(points[0].at) > 2:
        table = np.array([of.values[:_COMPARED_LINES] for of in points])  # sampled in turn
    else:
        return None
    rounding = max(p.step for p in points) * (1 + 1e-6)
    least = _TELLING * rounding
    places = range(len(points))
    sizes = places[2:] if len(points) <= _MOST_COMPARED else places[-1:]
    for size, place in product(sizes, places):
        for others in combinations([p for p in places if p != place], size):
            of, total = table[list(others)], table[place]
            is_near = (np.abs(total - of.sum(axis=0)) <= _TOTAL_SHARE * total) & (total > 0)
            if size == places[-1] and is_near.mean() >= _MOST:
                return outlets[place]
            differ = (np.ptp(of, axis=0) > least) & (of.min(axis=0) > least)
            for figure, slack in ((of.sum, size), (of.mean, 1), (of.min, 0), (of.max, 0)):
                equal = np.abs(total - figure(axis=0)) <= slack * rounding
                if (equal & differ).mean() >= _MOST:
                    return outlets[place]
    return None


def _layout_in(
    lines: Sequence[Line], described: Sequence[Format], options: Format
) -> tuple[Layout, Table]:
    """Return the layout and the rows below the first header that has a time below it.

    Without a time, the first readable header counts, and the lines below it show the error.
    """
    head = [line for _, line in lines[:HEAD_LINES]]
    if not head:
        raise LogError(POWER_TEXT.NO_SAMPLE)
    refused: dict[str | None, LogError] = {}
    silent: tuple[Layout, Table] | None = None
    widest: Sequence[str] = max((re.split("[\t;|,]", line) for line in head), key=len)
    for table in tables_in(lines, described):
        if table.separator == "" and refused.keys() - {""}:
            break
        widest = max(table.titles, widest, key=len)
        by_title = zip_longest(table.titles, *table.first[:_FIRST_ROWS], fillvalue="")
        cells = [next(filter(is_value, below), "") for _, *below in by_title][: len(table.titles)]
        fitting = (f for f in described if f.logs or f.fits(table.titles))
        form = (table.make or next(fitting, Format())).with_options(options)
        try:
            layout = layout_of(table.titles, cells, form)
        except LogError as error:
            refused.setdefault(table.separator, error)
            continue
        if layout is None:
            continue
        if is_time(_time_in(table.first[0], layout), layout.format):
            return layout, table
        silent = silent or (layout, table)
    if silent is not None:
        return silent
    first = next(iter(refused.values()), None)
    if first is not None and not (head[0][0].isdigit() and first.sentence == POWER_TEXT.NO_TIME):
        raise first
    header = printable(", ".join(widest), 120)
    for pattern in (p for key in TITLES for p in getattr(options, key)):
        parts = [pattern, *pattern.split("+")]
        if not any(is_like(title, part) for title in widest for part in parts):
            raise LogError(POWER_TEXT.NO_COLUMN, column=printable(pattern, 80), header=header)
    if re.match(r"\W*\d", head[0]):
        raise LogError(POWER_TEXT.HEADER_MISSING, header=printable(head[0], 120))
    raise LogError(POWER_TEXT.HEADER_UNKNOWN, header=header)


def _time_in(cells: Sequence[str], layout: Layout) -> str:
    places = layout.places("time", "date", "zone")
    return " ".join([cells[place] for place in places if place < len(cells)])


def _rows_of(layout: Layout, table: Table) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield the line number, time and cells of each row; refuse sums and odd widths."""
    width, named = len(layout.titles), layout.places("outlet", "series", "value", "units")
    first: Sequence[str] = ()
    for line, cells in table.rows:
        if len(cells) < width or any(cells[width:]):
            values = {"line": line, "width": len(cells), "expected": width}
            raise LogError(POWER_TEXT.LINE_WIDTH, **values, text=printable(" ".join(cells), 80))
        for place, (cell, above) in enumerate(zip(cells, first, strict=False)):
            there = {word for word in words_of(cell) if word.isalpha()}
            if there and there <= words("summary") and place not in named and cell != above:
                raise LogError(POWER_TEXT.LINE_SUM, line=line, text=printable(cell, 40))
        first = first or cells
        yield line, _time_in(cells, layout), cells


def _read(layout: Layout, table: Table, lines: Sequence[Line], zone: ZoneInfo) -> LogSamples:
    """Return the samples of the figures that are used; raise LogError."""
    form, read = layout.format, [*_rows_of(layout, table)]
    numbers, times = [line for line, *_ in read], [time for _, time, _ in read]
    rows = [cells for *_, cells in read]
    head = [line for _, line in lines[:HEAD_LINES]]
    above = (zone_in(line) for line in head if expression("zone_line").search(line))
    # "(UTC+01:00) Amsterdam" may or may not include summer time.
    titles = [layout.titles[place] for place in layout.places("time", "date")]
    zones = [*map(zone_in, titles), *(zone for zone in above if not re.search(r"\d", zone))]
    stated = next(filter(None, zones), "")
    if form.start and "start" not in form.named:
        start = next((m[1] for line in head if (m := re.fullmatch(form.start, line))), "")
        form = replace(form, start=start)
    at, local = read_times(times, numbers, form, zone, stated, " ".join(titles))
    figures = columns.decided(_figures_in(layout, rows), form)
    mark = _decimal_mark(layout, table, rows)
    used, outlets = [], dict[str, dict[str, Points]]()
    for column in figures:
        points = None if column.why else _points(column, at, numbers, mark, form)
        if points is not None:
            figure = "watts" if column.role == "watts" else "energy"
            outlets.setdefault(column.outlet, {})[figure] = points
            used.append(column.title)
    unread = (c for c in (*layout.columns, *figures) if c.why)
    left_out = dict.fromkeys(
        (c.title, c.why, c.is_power or c.why == NO_WATTS_THERE) for c in unread
    )
    for pattern in (p for key in form.named & FIGURES.keys() for p in getattr(form, key)):
        if layout.is_long and not any(is_like(title, pattern) for title in used):
            shown = printable(", ".join((*used, *(title for title, *_ in left_out))), 120)
            raise LogError(POWER_TEXT.NO_COLUMN, column=pattern, header=shown)
    if not outlets and layout.is_long and left_out:
        raise LogError(POWER_TEXT.NO_WATTS, columns=tuple(of[0] for of in left_out)[:4])
    if not outlets:
        raise LogError(POWER_TEXT.NO_SAMPLE)
    is_named = bool(form.named & FIGURES.keys())
    is_named = is_named and (layout.is_long or not layout.places("outlet"))
    return LogSamples(
        tuple(Outlet(name, of.get("watts"), of.get("energy")) for name, of in outlets.items()),
        form,
        tuple(dict.fromkeys(used)),
        tuple(left_out),
        local,
        are_alike=is_named or _are_alike([*outlets]),
    )


def _figures_in(layout: Layout, rows: _Rows) -> list[Column]:
    """Return the figures with their cells, by outlet or by the quantity that lines name."""
    names, units = layout.places("outlet", "series"), layout.places("units")
    groups: dict[tuple[str, str], list[int]] = {}
    for row, cells in enumerate(rows):
        name = " ".join(filter(None, (cells[place] for place in names)))
        unit = unit_of(cells[units[0]]) if units else None
        groups.setdefault((name, unit.kind if unit else ""), []).append(row)
        if len(groups) > _MOST_OUTLETS:
            raise LogError(POWER_TEXT.TOO_MANY_OUTLETS, most=_MOST_OUTLETS)
    read = {column.place for column in layout.columns}
    unread = [place for place in range(len(layout.titles)) if place not in read]
    figures: list[Column] = []
    for (name, _), of_group in groups.items():
        outlet = printable(name, 100)
        for place in unread:
            _refuse_turns(layout, name, place, [rows[row][place] for row in of_group])
        for column in layout.columns:
            if column.why or column.role not in (*FIGURES, "value"):
                continue
            cells = [rows[row][column.place] for row in of_group]
            if layout.is_long:
                for place in units:
                    numbers = zip(of_group, cells, strict=True)
                    cells = [f"{n} {rows[row][place]}" if is_value(n) else n for row, n in numbers]
                shown = next(filter(is_value, cells), None)
                if shown is None:
                    continue
                column = columns.quantity_of(outlet, column, shown.strip(), layout.format)
            elif names:
                column = replace(column, outlet=outlet)
            figures.append(replace(column, rows=of_group, cells=cells))
    return figures


def _decimal_mark(layout: Layout, table: Table, rows: _Rows) -> str:
    places = layout.places(*FIGURES, "value", "other")
    decimal = layout.format.decimal or ("point" if table.separator is None else "")
    proofs = {"." if decimal == "point" else ",": f"decimal={decimal}"} if decimal else {}
    for text in {cells[place]: None for place in places for cells in rows}:
        if (number := number_of(text)) is not None:
            # If commas separate columns, numbers have a point.
            is_point = table.separator == "," and "," not in text
            mark = "." if is_point and number.mark == "?" else number.mark
            proofs.setdefault(mark, printable(text, 40))
    if "." in proofs and "," in proofs:
        raise LogError(POWER_TEXT.MARKS_MIXED, number=proofs[","], other=proofs["."])
    if proofs.keys() == {"?"} or proofs.keys() == {"", "?"}:
        raise LogError(POWER_TEXT.MARK_UNCLEAR, number=proofs["?"])
    return "," if "," in proofs else "."


def _number(text: str, column: Column, mark: str, line: int) -> tuple[float, float]:
    """Return the watts or kilowatt-hours of a cell, and the step of its last decimal place."""
    if not is_value(text):
        return nan, inf
    number = number_of(text, mark)
    unit = column.unit if number is None or not number.unit else unit_of(number.unit)
    values = {"line": line, "column": printable(column.title, 60), "text": text[:40]}
    if unit is not None and unit.kind != FIGURES[column.role]:
        raise LogError(POWER_TEXT.LINE_QUANTITY, **values, quantity=FIGURES[column.role])
    is_fine = number is not None and number.value >= 0 and isfinite(number.value)
    if number is None or unit is None or unit.problem or not is_fine:
        raise LogError(POWER_TEXT.LINE_NUMBER, **values)
    return number.value * unit.factor, unit.factor * 10.0**-number.places


def _points(
    column: Column, at: Int64Array, lines: Sequence[int], mark: str, form: Format
) -> Points | None:
    """Return readings in order of time; raise LogError if they may be of several outlets."""
    read: dict[str, tuple[float, float]] = {}
    for row, text in zip(column.rows, column.cells, strict=True):
        if text not in read:
            read[text] = _number(text, column, mark, lines[row])
    at, values = at[np.array(column.rows)], np.array([read[text][0] for text in column.cells])
    is_read = (at != UNCERTAIN) & (~np.isnan(values) | bool(form.hold))
    at, values = at[is_read], values[is_read]
    if np.isnan(values).all():
        return None
    name = printable(column.outlet, 60)
    if column.role == "watts" and np.nanmax(values) > _LARGEST_WATTS:
        raise LogError(POWER_TEXT.TOO_LARGE, name=name, watts=float(np.nanmax(values)))
    steps: dict[str, float] = {}
    for text, (_, step) in read.items():
        unit = text.lstrip("+-.,0123456789 ")
        steps[unit] = min(step, steps.get(unit, inf))
    step = max(filter(isfinite, steps.values()), default=inf)
    back = at[1:][np.sign(np.diff(at)) == np.sign(at[0] - at[-1])]
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    spacing = np.diff(at)
    pauses = (spacing[:-1] > _BURST * spacing[1:]) & (spacing[1:] < _BURST_NS)
    *before, last = values.tolist()
    slack = len(before) * step
    is_sum = len(before) > 2 and abs(last - sum(before)) <= slack < min(before) / _TELLING
    rules = (
        (POWER_TEXT.LAST_IS_SUM, at[-1:] if is_sum and column.role != "kwh" else at[:0]),
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
    return Points(column.role, at, values, step, is_mean, column.is_counter)


def _refuse_turns(layout: Layout, name: str, place: int, cells: Sequence[str]) -> None:
    """Raise LogError if cells of an unread column alternate, as names of outlets do."""
    distinct = [*dict.fromkeys(cells[:_COMPARED_LINES])]
    _, codes = np.unique(cells[:_COMPARED_LINES], return_inverse=True)
    kinds = len(distinct)
    if kinds < 2 or len(codes) < 3 * kinds:
        return
    changes = codes[1:] != codes[:-1]
    are_turns = changes.sum() >= max(2 * kinds - 1, len(codes) / 10)
    if any(map(number_of, distinct)):
        back = codes[kinds:] == codes[:-kinds]
        are_turns = changes.mean() >= _MOST and back.mean() >= _MOST
    if are_turns:
        first, second = (printable(text, 40) for text in distinct[:2])
        column = printable(layout.titles[place], 60)
        values = {"first": first, "second": second, "column": column}
        raise LogError(POWER_TEXT.IN_TURN, name=printable(name, 60), **values)


def _are_alike(names: Sequence[str]) -> bool:
    """Return True if names differ in one number only, which is not that of a sensor."""
    if len(names) < 2:
        return True
    if len({tuple(expression("sensor_number").findall(name.casefold())) for name in names}) > 1:
        return False
    pieces = [expression("outlet_number").split(name.casefold()) for name in names]
    if len({tuple(parts[::2]) for parts in pieces}) > 1:
        return False
    numbers = zip(*(parts[1::2] for parts in pieces), strict=True)
    return sum(len(set(column)) > 1 for column in numbers) == 1
