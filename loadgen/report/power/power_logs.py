"""The reader of power logs: one table of samples, made by pandas.

Import it only for a log, because pandas takes a while to load.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.power_formats import (
    IBM_DPI,
    IBM_DPI_COLUMNS,
    OPTION,
    SEPARATORS,
    TOTALS,
    Column,
    HeaderError,
    Layout,
    Outlet,
    cells_of,
    layout_of,
    layout_without_header,
    outlet_named,
    words_of,
    zone_above,
)
from loadgen.report.power.power_numbers import MISSING, marks_in, numbers_of
from loadgen.report.power.power_settings import MARKS, Columns, LogSettings, PduLog
from loadgen.report.power.power_times import (
    UnclearDatesError,
    changes_of,
    foreign_zones,
    times_of,
    utc_ns,
)
from loadgen.report.power.power_units import Unit, unit_of
from loadgen.run.redaction import printable

LONGEST_LOG_BYTES = 256 << 20
_LONGEST_LINE = 1000
_LARGEST_WATTS = 1e6
_HEADER_LINES = 40
_HEADER_BLOCK = 6
"""Most lines of a header: names, kinds, units."""
_MOST_OUTLETS = 1000
_NEAR_CHANGE_NS = 86_400 * 10**9
"""A change of the clock within a day of a run makes the times of its samples doubtful."""
_TOTAL_SHARE = 0.05
"""Tolerated difference of a total from the sum of its outlets, such as losses."""
_COMPARED_SAMPLES = 1000
_COMPARED_LINES = 20_000
_MOST = 0.9
"""Share of the lines that must agree: a meter misses some, and takes its sums later."""

_GIVE_DECIMAL = "decimal=point or decimal=comma"

Wrong = tuple[int, str]
"""Number of a line that cannot be used, and the reason."""

Check = Callable[["pd.Series[bool]", Callable[[int], str]], None]
"""Records the first line that is not fine, with the reason that the function returns for it."""


# --- files ----------------------------------------------------------------------------------


def read_log(log: PduLog, settings: LogSettings) -> pd.DataFrame:
    """Return the samples of the chosen outlets of a log, with the PDU's clock set to the host's.

    The columns are those of `parse_power_log`. Raise PowerLogError if the log cannot be used.
    """
    samples = read_power_log(log.path, settings.zone, settings.columns)
    outlets = [*samples["outlet"].unique()]
    if log.outlets:
        chosen = [_outlet_of(log, outlet, outlets) for outlet in log.outlets]
        samples = samples[samples["outlet"].isin(chosen)]
    else:
        _refuse_totals(log, samples, outlets)
        _require_named_alike(log, samples, outlets)
    return samples.assign(wall_ns=samples["wall_ns"] - settings.offset_ns)


def _outlet_of(log: PduLog, outlet: str, outlets: Sequence[str]) -> str:
    """Find an outlet of a log by its name, or by its number alone: 3 for Outlet 3."""
    matching = [name for name in outlets if name == outlet] or [
        name for name in outlets if words_of(name)[-1:] == [outlet.casefold()]
    ]
    if len(matching) != 1:
        names = ", ".join(name or "one without a name" for name in outlets[:10])
        raise PowerLogError(
            f"power log {log.path} has {'several outlets' if matching else 'no outlet'} "
            f"{printable(outlet, 80)!r}; it has {printable(names, 200)}"
        )
    return matching[0]


def _refuse_totals(log: PduLog, samples: pd.DataFrame, outlets: Sequence[str]) -> None:
    """Raise PowerLogError if an outlet is the sum of others, which would be counted twice."""
    if len(outlets) < 2:
        return
    for words in TOTALS:
        totals = [name for name in outlets if words & set(words_of(name))]
        if 0 < len(totals) < len(outlets):
            break
    else:
        totals = _sums_among(samples) if len(outlets) > 2 else []
    if totals:
        parts = [name for name in outlets if name not in totals]
        raise PowerLogError(
            f"power log {log.path}: {printable(totals[0], 80)!r} seems to be the sum of other "
            f"outlets, which would be added twice; choose with {log.path}#OUTLET,... among "
            f"{printable(', '.join([*parts[:8], *totals[:2]]), 200)}"
        )


def _sums_among(samples: pd.DataFrame) -> list[str]:
    """Find outlets that equal the sum of all others at nearly every moment."""
    with_watts = samples[samples["watts"].notna()]
    early = with_watts[
        with_watts["wall_ns"].isin(with_watts["wall_ns"].unique()[:_COMPARED_SAMPLES])
    ]
    table = early.pivot(index="wall_ns", columns="outlet", values="watts").dropna()
    if len(table) < 3:
        return []
    sums = table.mul(-1).add(table.sum(axis=1), axis=0)
    near = (table - sums).abs() <= _TOTAL_SHARE * table
    return [str(name) for name in table.columns[(near & (table > 0)).mean() >= _MOST]]


def _require_named_alike(log: PduLog, samples: pd.DataFrame, outlets: Sequence[str]) -> None:
    """Raise PowerLogError if columns would be added that are not certain to be outlets."""
    if len(outlets) > 1 and not samples["named_alike"].all():
        raise PowerLogError(
            f"power log {log.path} has columns of power with names of several kinds, "
            f"{printable(', '.join(outlets[:8]), 200)}; choose those that are outlets, whose watts "
            f"are added, with {log.path}#OUTLET,..."
        )


def require_readable(settings: LogSettings) -> None:
    """Raise PowerLogError for the first log that cannot be used so far; it may still grow."""
    for log in settings.logs:
        text = _decoded(_read(log.path))
        # The last line may be incomplete.
        lines = text[: text.rfind("\n") + 1]
        _parse(lines, str(log.path), settings.zone, settings.columns)


def require_no_clock_change(
    log: PduLog, samples: pd.DataFrame, settings: LogSettings, window: tuple[int, int]
) -> None:
    """Raise PowerLogError, with the moment, if the clock of a log changes near a window.

    Times that name their zone are not affected.
    """
    local = samples["wall_ns"][samples["local"]]
    if local.empty:
        return
    start_ns, end_ns = window
    first_ns = max(int(local.min()), start_ns - _NEAR_CHANGE_NS)
    last_ns = min(int(local.max()), end_ns + _NEAR_CHANGE_NS)
    for change_ns in changes_of(settings.zone, first_ns, last_ns):
        raise PowerLogError(
            f"power log {log.path}: the clock of {settings.zone.key} changes near "
            f"{pd.Timestamp(change_ns, tz='UTC').tz_convert(settings.zone):%Y-%m-%d %H:%M}, "
            "within a day of the run; cut the log to one side of the change, or log in UTC"
        )


def read_power_log(path: Path, zone: ZoneInfo, columns: Columns | None = None) -> pd.DataFrame:
    """Return the samples of a log file, as `parse_power_log` does; raise PowerLogError."""
    return parse_power_log(_read(path), str(path), zone, columns)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LONGEST_LOG_BYTES:
            raise PowerLogError(
                f"power log {path} is larger than {LONGEST_LOG_BYTES >> 20} MiB; cut it to the run"
            )
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(f"power log {path} cannot be read: {reason}") from None


def _decoded(data: bytes) -> str:
    """Decode a log: UTF-16 as from spreadsheets, UTF-8, or Windows' older encoding."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    head = data[:400]
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        # Every other byte of Latin letters in UTF-16 is zero.
        if len(head) >= 4 and head[first::2].count(0) > 0.8 * len(head[first::2]):
            return data.decode(encoding, errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


# --- the whole log --------------------------------------------------------------------------


def parse_power_log(
    text: bytes, name: str, zone: ZoneInfo, columns: Columns | None = None
) -> pd.DataFrame:
    """Return the samples of a log, ascending in time; `columns` are those of `parse_columns`.

    Columns: outlet; wall_ns, UTC by the PDU's clock, nanoseconds since the epoch; watts; kwh, the
    outlet's counter; step_kwh, the last decimal of the counter; local, True for a time without a
    zone, which is read in `zone`. Figures that the log lacks are NaN. Samples in an hour that the
    zone's clock skips or repeats are omitted.

    Raise PowerLogError, with log and line, for a line that is not a sample, and for a second
    sample of an outlet at one moment. Without a line it stands for a header that is not
    sufficient, for ambiguous numbers or dates, and for a log without a sample.
    """
    return _parse(_decoded(text), name, zone, columns or {})


def _parse(text: str, name: str, zone: ZoneInfo, columns: Columns) -> pd.DataFrame:
    split = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    lines = pd.Series(split, range(1, len(split) + 1), dtype=object)
    lines = lines.str[: _LONGEST_LINE + 1].str.strip("\n\0 ").str.replace("\0", "\ufffd")
    lines = lines[lines.str.strip("\t;|, ") != ""]
    try:
        table = _table(lines, columns)
        if table is None:
            raise _unknown(lines, columns)
        layout, separator, data = table
        samples, wrong = _samples(data, layout, separator, zone, columns)
    except HeaderError as error:
        raise PowerLogError(f"power log {name} {error}") from None
    if wrong:
        line, why = min(wrong, key=lambda one: one[0])
        raise PowerLogError(f"power log {name}, line {line}: {why}")
    if samples.empty:
        raise PowerLogError(f"power log {name} {_NO_SAMPLE}")
    return samples


_NO_SAMPLE = (
    f"has no sample; expected lines of {', '.join(IBM_DPI_COLUMNS)}, or a header that names time "
    "and watts"
)

_Table = tuple[Layout, str, "pd.Series[str]"]
"""Layout, separator, and the lines of data."""


def _table(lines: "pd.Series[str]", columns: Columns) -> _Table | None:
    """Split header and data at the first line with a time in the column that the header gives it.

    Without such a line, the first readable header counts; the check of its lines then reports
    the error in them.
    """
    head = [*lines.iloc[: _HEADER_LINES + 1]]
    if head and (stated := re.fullmatch(r"sep=(.)", head[0], re.IGNORECASE)):
        lines, head = lines.iloc[1:], head[1:]
        separators: str = stated[1]
    else:
        separators = SEPARATORS
    fallback: _Table | None = None
    unclear: HeaderError | None = None
    for first in range(len(head)):
        for separator in separators if first else ():
            try:
                layout = _layout_before(head, first, separator, columns)
            except HeaderError as error:
                unclear = unclear or error
                continue
            # A line of samples above other samples is not a header.
            if layout is None or _has_time(head[first - 1], layout, separator, columns):
                continue
            if not layout.zone:
                layout = replace(layout, zone=zone_above(head[:first]))
            table = (layout, separator, _without(lines.iloc[first:], head[:first]))
            if _has_time(head[first], layout, separator, columns):
                return table
            fallback = fallback or table
        bare = layout_without_header(head[first])
        if bare is not None and not columns:
            return (*bare, lines.iloc[first:])
    if unclear is not None:
        raise unclear
    if fallback is None and head and re.match(r'\s*["\']?\d', head[0]):
        mark = next((mark for mark in SEPARATORS if mark in head[0]), "")
        if mark or not re.search(r"[^\W\d_]", head[0]):
            return IBM_DPI, mark or ",", lines
    return fallback


def _layout_before(
    head: Sequence[str], first: int, separator: str, columns: Columns
) -> Layout | None:
    """Return the layout that the lines before a line give, as many as have the same columns.

    Raise HeaderError if the line just before is ambiguous.
    """
    rows: list[list[str]] = []
    for line in reversed(head[max(first - _HEADER_BLOCK, 0) : first]):
        cells = cells_of(line, separator)
        if len(cells) < 2 or (rows and len(cells) != len(rows[0])):
            break
        rows.insert(0, cells)
    unclear: HeaderError | None = None
    while rows:
        try:
            layout = layout_of(rows, columns)
        except HeaderError as error:
            unclear, layout = error, None
        if layout is not None:
            return layout
        rows.pop(0)
    if unclear is not None:
        raise unclear
    return None


def _has_time(line: str, layout: Layout, separator: str, columns: Columns) -> bool:
    cells = cells_of(line, separator)
    if len(cells) <= max(layout.time):
        return False
    text = pd.Series([" ".join(cells[column] for column in layout.time)])
    try:
        return bool(times_of(text, layout.order, columns.get("format", "")).fine[0])
    except UnclearDatesError:
        return True


def _without(lines: "pd.Series[str]", header: Sequence[str]) -> "pd.Series[str]":
    """Omit lines that repeat the header, as in logs that were concatenated."""
    return lines[~lines.isin(header)]


def _unknown(lines: "pd.Series[str]", columns: Columns) -> HeaderError:
    """Return the error for a log without a header that can be read."""
    head = [line for line in lines.iloc[:_HEADER_LINES] if re.search(r"[^\W\d_]", line)]
    json = bool(head) and head[0][:1] in "{["
    if not head or (len(lines) < 2 and not columns and not json):
        return HeaderError(_NO_SAMPLE)
    header = max(head, key=lambda line: max(line.count(separator) for separator in SEPARATORS))
    shown = printable(header, 120)
    if json or not any(separator in header for separator in SEPARATORS):
        return HeaderError(
            "is no table: write it with a line for each sample, with columns such as time and "
            f"Power (W) and commas between them; it has: {shown}"
        )
    separator = next((one for one in SEPARATORS if one in header), ",")
    titles = {cell.casefold() for cell in cells_of(header, separator)}
    for key in ("time", "date", "watts", "kwh", "outlet"):
        if key in columns and columns[key].casefold() not in titles:
            wanted = printable(columns[key], 80)
            return HeaderError(f"has no column {wanted!r}; its header is: {shown}")
    return HeaderError(
        f"has a header of no known format; name its columns with {OPTION}, "
        f"for example time=NAME,watts=NAME; its header is: {shown}"
    )


# --- lines of data --------------------------------------------------------------------------


def _samples(
    lines: "pd.Series[str]", layout: Layout, separator: str, zone: ZoneInfo, columns: Columns
) -> tuple[pd.DataFrame, list[Wrong]]:
    """Return the samples of these lines, by number, and the first wrong line of each kind."""
    wrong: list[Wrong] = []

    def check(fine: "pd.Series[bool]", why: Callable[[int], str]) -> None:
        if not fine.all():
            place = int(np.argmin(fine.to_numpy()))
            wrong.append((int(fine.index[place]), why(place)))

    if lines.empty:
        return pd.DataFrame(), wrong
    check(lines.str.len() <= _LONGEST_LINE, lambda _: f"longer than {_LONGEST_LINE} characters")
    cells = _cells(lines, separator, layout.width, check)
    times = _times(cells, layout, zone, columns, check)
    mark = _decimal_mark(cells, layout, separator, columns)
    for title, column in layout.numbers:
        _figures(cells, Column(column, title), title, None, mark, layout, check)
    names: pd.Series[str] | None = None
    if layout.outlet_column is not None:
        names = cells[layout.outlet_column].map(lambda cell: printable(cell, 100))
        if layout.unit_column is not None:
            # Each sensor belongs to an outlet: "Outlet 1 Active Power", "Outlet 1 Active Energy".
            names = names.map({name: outlet_named(name) for name in names.unique()})
    samples = pd.concat(
        times.assign(
            outlet=outlet.name if names is None else names,
            named_alike=layout.named_alike,
            **_of_outlet(cells, outlet, mark, layout, check),
        )
        for outlet in layout.outlets
    ).sort_index(kind="stable")
    samples = samples[samples["fine"] & (samples["watts"].notna() | samples["kwh"].notna())]
    check(
        ~(samples["watts"] > _LARGEST_WATTS),
        lambda at: f"{samples['watts'].iloc[at]:g} watts at one outlet",
    )
    numbers = pd.Series(pd.factorize(samples["outlet"])[0], samples.index)
    check(
        numbers < _MOST_OUTLETS,
        lambda _: f"more than {_MOST_OUTLETS} outlets; is the right column named?",
    )
    ordered = _one_a_moment(samples, check)
    if not wrong:
        _refuse_merged(cells, samples, layout)
    return ordered, wrong


def _cells(lines: "pd.Series[str]", separator: str, width: int, check: Check) -> pd.DataFrame:
    """Split each line into `width` cells of text; empty ones may follow."""
    unquoted = lines
    if lines.str.contains('"', regex=False).any():
        # An unclosed quote, as in 19", is part of a name; as a quote it would join lines.
        odd = lines.str.count('"') % 2 == 1
        lines = lines.where(~odd, lines.str.replace('"', "\u201d"))
        mark = re.escape(separator)
        unquoted = lines.str.replace(rf'(^|{mark}) *"[^"]*"', r"\1", regex=True)
    unended = unquoted.str.replace(rf"(?:{re.escape(separator)}\s*)+$", "", regex=True)
    widths = unquoted.str.count(re.escape(separator)) + 1
    needed = unended.str.count(re.escape(separator)) + 1
    check(
        (widths >= width) & (needed <= width),
        lambda at: f"{widths.iloc[at]} columns instead of {width}: {lines.iloc[at][:80]!r}",
    )
    cells = pd.read_csv(
        io.StringIO("\n".join(lines)),
        sep=separator,
        header=None,
        names=range(max(int(widths.max()), width)),
        dtype=str,
        na_filter=False,
        skipinitialspace=separator != "\t",
        skip_blank_lines=False,
    )
    cells = cells.reindex(columns=range(width), fill_value="").set_index(lines.index)
    return cells.apply(lambda cell: cell.str.strip(" \t\"'"))


def _times(
    cells: pd.DataFrame, layout: Layout, zone: ZoneInfo, columns: Columns, check: Check
) -> pd.DataFrame:
    """Return wall_ns, `local` and `fine` of each line, with its text for messages."""
    texts = cells[layout.time[0]]
    for column in layout.time[1:]:
        texts = texts + " " + cells[column]
    form = columns.get("format", "")
    zoned = texts
    if layout.zone and not form:
        # A number since 1970 needs no zone, but the date and time 20130426100405 does.
        zone_stated = (
            r"(?:[zZ]|:\d\d.*[+-]\d\d?(?::?\d\d)?|[A-Za-z]{3,5}|/[A-Za-z_]+)$"
            r"|^(?!20\d{12}$)[\d.,]+$"
        )
        bare = ~texts.str.contains(zone_stated, regex=True)
        zoned = texts.where(~bare, texts + f" {layout.zone}")
    try:
        times = times_of(zoned, layout.order, form)
    except UnclearDatesError as error:
        raise HeaderError(
            f"has dates such as {printable(str(error), 40)!r}, which may begin with the day or the "
            f"month; give {OPTION} dates=dmy, dates=mdy or dates=ymd"
        ) from None
    words = form or ("mm/dd/yyyy hh:mm:ss" if layout.order == "mdy" else "a time")
    fine = pd.Series(times.fine, texts.index)
    check(fine, lambda at: f"{texts.iloc[at][:40]!r} is not {words}")
    wall_ns = utc_ns(times, zone)
    certain = wall_ns != np.iinfo(np.int64).min
    foreign = foreign_zones(times, wall_ns, zone) & times.fine & certain
    check(
        pd.Series(~foreign, texts.index),
        lambda at: (
            f"{zoned.iloc[at][:60]!r} is not in {zone.key}; give --pdu-timezone the zone it names"
        ),
    )
    if times.fine.any() and not certain[times.fine].any():
        raise HeaderError(f"has only times at which the clock of {zone.key} is changed")
    local = (times.zones != "utc").to_numpy()
    return pd.DataFrame(
        {"wall_ns": wall_ns, "local": local, "fine": times.fine & certain, "text": texts},
        texts.index,
    )


def _decimal_mark(cells: pd.DataFrame, layout: Layout, separator: str, columns: Columns) -> str:
    """Determine the decimal mark of a log; raise HeaderError if its numbers are ambiguous."""
    chosen = MARKS.get(columns.get("decimal", ""))
    figures = [c.place for o in layout.outlets for c in (o.watts, o.counter) if c is not None]
    places = [*figures, *(place for _, place in layout.numbers), *layout.other_numbers]
    proven: dict[str, str] = {}
    unclear: list[str] = []
    for place in dict.fromkeys(places):
        marks, doubtful = marks_in(cells[place])
        for mark, index in marks.items():
            proven.setdefault(mark, str(cells[place].loc[index]))
        if doubtful is not None and place in figures:
            unclear.append(str(cells[place].loc[doubtful]))
    if chosen is not None and proven.keys() <= {chosen}:
        return chosen
    if chosen is not None and len(proven) == 1:
        raise HeaderError(
            f"has numbers such as {printable(next(iter(proven.values())), 40)!r}, whose decimal "
            f"mark is not a {columns['decimal']} as {OPTION} says"
        )
    if chosen is not None:
        return chosen
    if len(proven) > 1:
        raise HeaderError(
            f"has decimal points and decimal commas, {printable(proven['.'], 40)!r} and "
            f"{printable(proven[','], 40)!r}; give {OPTION} {_GIVE_DECIMAL}"
        )
    if proven:
        return next(iter(proven))
    # If commas separate columns, numbers have a point.
    doubtful_text = next((text for text in unclear if "," in text or separator != ","), None)
    if doubtful_text is not None:
        raise HeaderError(
            f"has numbers such as {printable(doubtful_text, 40)!r}, whose mark may be a decimal "
            f"one or part thousands; give {OPTION} {_GIVE_DECIMAL}"
        )
    return "."


def _of_outlet(
    cells: pd.DataFrame, outlet: Outlet, mark: str, layout: Layout, check: Check
) -> Mapping[str, "pd.Series[float]"]:
    """Return watts, kwh and step_kwh of an outlet; its units split a single column of values."""
    nothing = pd.Series(np.nan, cells.index)
    watts, kwh, step_kwh = nothing, nothing, nothing
    counter = outlet.watts if layout.unit_column is not None else outlet.counter
    if outlet.watts is not None:
        watts, _ = _figures(cells, outlet.watts, "watts", "power", mark, layout, check)
    if counter is not None:
        kwh, step_kwh = _figures(cells, counter, "cumulative kWh", "energy", mark, layout, check)
    return {"watts": watts, "kwh": kwh, "step_kwh": step_kwh}


def _figures(
    cells: pd.DataFrame,
    column: Column,
    title: str,
    kind: Literal["power", "energy"] | None,
    mark: str,
    layout: Layout,
    check: Check,
) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return the numbers of a column in watts or kWh, NaN if missing, and the step of each.

    `kind` None is for numbers of any unit. Raise HeaderError if the unit is not stated.
    """
    texts = cells[column.place]
    missing = texts.str.casefold().isin(MISSING) & layout.gaps
    numbers = numbers_of(texts, mark)
    stated = numbers.units
    if layout.unit_column is not None:
        stated = stated.where(stated != "", cells[layout.unit_column])
    factors, strange = _factors(stated, column, kind)
    fine = (numbers.values >= 0) & np.isfinite(numbers.values) & factors.notna()
    if layout.unit_column is not None:
        missing |= strange
    quantity = {"power": "power", "energy": "energy", None: ""}[kind]
    check(
        missing | ~fine | ~strange,
        lambda at: f"{title} {texts.iloc[at][:40]!r} is not {quantity}: its unit is another one",
    )
    check(
        missing | fine, lambda at: f"{title} {texts.iloc[at][:40]!r} is not a number of 0 or more"
    )
    values = numbers.values.where(~missing & fine & ~strange) * factors
    steps = factors * 10.0**-numbers.decimals
    return values, steps.where(values.notna())


def _factors(
    stated: "pd.Series[str]", column: Column, kind: str | None
) -> tuple["pd.Series[float]", "pd.Series[bool]"]:
    """Return the factor of each number to watts or kWh, NaN without a valid unit, and the numbers
    of another quantity."""
    units: dict[str, Unit | None] = {}
    for text in stated.unique():
        try:
            units[text] = unit_of(text) if text else column.unit
        except ValueError as error:
            raise HeaderError(f"has numbers whose unit is not certain: {error}") from None
    if kind is None:
        return pd.Series(1.0, stated.index), pd.Series(False, stated.index)
    if "" in units and units[""] is None:
        key, ways = ("unit", "W, unit=kW") if kind == "power" else ("counter_unit", "kWh")
        raise HeaderError(
            f"does not say the unit of its column {printable(column.title, 60)!r}; give {OPTION} "
            f"{key}={ways} or another"
        )
    factors = {text: unit.factor if unit else np.nan for text, unit in units.items()}
    strange = {text: unit is not None and unit.kind != kind for text, unit in units.items()}
    return stated.map(factors).astype(float), stated.map(strange).astype(bool)


def _one_a_moment(samples: pd.DataFrame, check: Check) -> pd.DataFrame:
    """Sort samples by time; report a second sample of an outlet at one moment."""
    twice = np.zeros(len(samples), bool)
    for figure in ("watts", "kwh"):
        present = samples[figure].notna().to_numpy()
        twice[present] |= samples[present].duplicated(["outlet", "wall_ns"]).to_numpy(bool)
    check(
        pd.Series(~twice, samples.index),
        lambda at: (
            f"a second sample of {_outlet_words(samples['outlet'].iloc[at])} at "
            f"{printable(samples['text'].iloc[at], 40)}; if a column tells outlets apart, name it "
            f"with {OPTION} outlet=NAME"
        ),
    )
    ordered = samples.sort_values("wall_ns", kind="stable")
    columns = ["outlet", "wall_ns", "watts", "kwh", "step_kwh", "local", "named_alike"]
    if ordered.duplicated(["outlet", "wall_ns"]).any():
        # Power and energy on separate lines.
        ordered = ordered.groupby(["outlet", "wall_ns"], sort=False).first().reset_index()
    return ordered[columns].reset_index(drop=True)


def _refuse_merged(cells: pd.DataFrame, samples: pd.DataFrame, layout: Layout) -> None:
    """Raise HeaderError for an unread column that distinguishes samples of one outlet."""
    read = {*layout.time, layout.outlet_column, layout.unit_column, *layout.other_numbers}
    read |= {place for _, place in layout.numbers}
    read |= {
        column.place
        for o in layout.outlets
        for column in (o.watts, o.counter)
        if column is not None
    }
    figure = "watts" if samples["watts"].notna().any() else "kwh"
    lines = samples[samples[figure].notna() & ~samples.index.duplicated()]
    lines = lines.sort_values("wall_ns", kind="stable").iloc[:_COMPARED_LINES]
    for place in cells.columns.difference([*read]):
        texts = cells[place].loc[lines.index]
        numbers = bool(numbers_of(texts, ".").values.notna().any())
        for outlet, values in texts.groupby(lines["outlet"], sort=False):
            if not _take_turns(values.to_numpy(str), numbers):
                continue
            first, second = (printable(text, 40) for text in values.unique()[:2])
            raise HeaderError(
                f"has samples of {_outlet_words(str(outlet))} that differ in column {place + 1}, "
                f"{first!r} and {second!r} in turn; if it tells outlets apart, name it with "
                f"{OPTION} outlet=NAME, or give a log for each; else take it out"
            )


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


def _outlet_words(outlet: str) -> str:
    return f"outlet {printable(outlet, 60)!r}" if outlet else "the outlet"
