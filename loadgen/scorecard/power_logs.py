"""Reads power logs into one table of samples, by pandas.

Imported only where there is a log to read, for pandas takes a while to load.
"""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from loadgen.control.redaction import printable
from loadgen.errors import PowerLogError
from loadgen.scorecard.power_formats import (
    IBM_DPI,
    IBM_DPI_COLUMNS,
    Layout,
    cells_of,
    layout_of,
    layout_without_header,
    separator_of,
)
from loadgen.scorecard.power_settings import Columns, LogSettings, PduLog

LONGEST_LOG_BYTES = 256 << 20
_LONGEST_LINE = 1000
_LARGEST_WATTS = 1e6
_HEADER_LINES = 20
_MOST_OUTLETS = 1000
_MILLISECONDS_ABOVE = 1e11
"""A time since the epoch above this is in milliseconds: in seconds it would be the year 5138."""

_FIRST_COLUMN = re.compile(r'^\s*["\']?\d')
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_OWN_OFFSET = r"[T ].*(?:Z|[+-]\d\d(?::?\d\d)?)$"
_MISSING = ("", "-")

Wrong = tuple[int, str]
"""Number of a line that cannot be used, and why."""

Check = Callable[["pd.Series[bool]", Callable[[int], str]], None]
"""Notes the first line that is not fine; the function says why, given its place."""


def read_log(log: PduLog, settings: LogSettings) -> pd.DataFrame:
    """The samples of the chosen outlets of a log, with the PDU's clock set to the host's.

    Columns as `parse_power_log` gives them; raises PowerLogError.
    """
    samples = read_power_log(log.path, settings.zone, settings.columns)
    known = samples["outlet"].unique()
    for outlet in log.outlets:
        if outlet not in known:
            names = ", ".join(name or "one without a name" for name in known[:10])
            raise PowerLogError(
                f"power log {log.path} has no outlet {printable(outlet, 80)!r}; "
                f"it has {printable(names, 200)}"
            )
    if log.outlets:
        samples = samples[samples["outlet"].isin(log.outlets)]
    return samples.assign(wall_ns=samples["wall_ns"] - settings.offset_ns)


def require_readable(settings: LogSettings) -> None:
    """Raises PowerLogError for the first log that cannot be used, as far as it is written."""
    for log in settings.logs:
        text = _read(log.path)
        # The last line may be half written.
        whole = text[: text.rfind(b"\n") + 1]
        parse_power_log(whole, str(log.path), settings.zone, settings.columns)


def read_power_log(path: Path, zone: ZoneInfo, columns: Columns | None = None) -> pd.DataFrame:
    """The samples of a log file, as `parse_power_log` gives them; raises PowerLogError."""
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


def parse_power_log(
    text: bytes, name: str, zone: ZoneInfo, columns: Columns | None = None
) -> pd.DataFrame:
    """The samples of a log, in its order; `columns` are those of `parse_columns`.

    Columns: outlet; wall_ns, UTC by the PDU's clock, nanoseconds since the epoch; watts; kwh, the
    outlet's counter, NaN where the log has none. Times without an offset of their own are in
    `zone`. Raises PowerLogError, naming log and line, at the first line that is not a sample, at
    a time that goes back, and at one that the zone's clock change makes ambiguous or skips; and
    without a line for a header of no known format, for a log without a sample, or with samples on
    both sides of a clock change.
    """
    decoded = text.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace").split("\n")
    lines = pd.Series(decoded, range(1, len(decoded) + 1), dtype=object)
    lines = lines.str[: _LONGEST_LINE + 1].str.strip("\r\n\0 ").str.replace("\0", "\ufffd")
    layout, lines = _layout(lines[lines != ""], name, columns or {})
    samples, wrong = _samples(lines, layout, zone) if layout else (pd.DataFrame(), [])
    if wrong:
        line, why = min(wrong, key=lambda one: one[0])
        raise PowerLogError(f"power log {name}, line {line}: {why}")
    if samples.empty:
        raise PowerLogError(
            f"power log {name} has no sample; expected lines of {', '.join(IBM_DPI_COLUMNS)}, or "
            "a header that names time and watts"
        )
    return samples


def _layout(
    lines: "pd.Series[str]", name: str, columns: Columns
) -> tuple[Layout | None, "pd.Series[str]"]:
    """The layout of a log, None for one without lines of data, and those lines."""
    header = ""
    layout: Layout | None = None
    for place, (number, line) in enumerate(lines.items()):
        is_text = int(str(number)) <= _HEADER_LINES and not _FIRST_COLUMN.match(line)
        if layout is not None and not (layout.units_below and is_text):
            return layout, lines[place:]
        if layout is None and is_text:
            header = line
            layout = layout_of(cells_of(line), columns)
        elif layout is None:
            layout = layout_without_header(line) if header else IBM_DPI
            if layout is None:
                raise _unknown_header(name, header, columns)
            return layout, lines[place:]
    return None, lines[:0]


def _unknown_header(log: str, header: str, columns: Columns) -> PowerLogError:
    shown = printable(header, 120)
    known = {cell.casefold() for cell in cells_of(header)}
    for key, name in columns.items():
        if key != "format" and name.casefold() not in known:
            return PowerLogError(
                f"power log {log} has no column {printable(name, 80)!r}; its header is: {shown}"
            )
    return PowerLogError(
        f"power log {log} has a header of no known format; name its columns with --pdu-columns, "
        f"for example time=NAME,watts=NAME; its header is: {shown}"
    )


# --- lines of data --------------------------------------------------------------------------


def _samples(
    lines: "pd.Series[str]", layout: Layout, zone: ZoneInfo
) -> tuple[pd.DataFrame, list[Wrong]]:
    """The samples of these lines, by number, and the first line wrong of each kind."""
    wrong: list[Wrong] = []

    def check(fine: "pd.Series[bool]", why: Callable[[int], str]) -> None:
        if not fine.all():
            place = int(np.argmin(fine.to_numpy()))
            wrong.append((int(fine.index[place]), why(place)))

    check(lines.str.len() <= _LONGEST_LINE, lambda _: f"longer than {_LONGEST_LINE} characters")
    cells, widths = _cells(lines)
    check(
        widths == layout.width,
        lambda at: f"{widths.iloc[at]} columns instead of {layout.width}: {lines.iloc[at][:80]!r}",
    )
    cells = cells.reindex(columns=range(layout.width), fill_value="")
    texts = cells[layout.time[0]]
    for column in layout.time[1:]:
        texts = texts + " " + cells[column]
    moments, in_utc = _moments(texts, layout)
    check(moments.notna(), lambda at: f"{texts.iloc[at][:40]!r} is not {layout.time_words}")
    names = None
    if layout.outlet_column is not None:
        names = cells[layout.outlet_column].map(lambda cell: printable(cell, 100))

    def number(
        title: str, texts: "pd.Series[str]", missing: Sequence[str] = ()
    ) -> "pd.Series[float]":
        values = texts.where(texts.str.fullmatch(_NUMBER), "nan").astype(float)
        check(
            texts.isin(missing) | ((values >= 0) & np.isfinite(values)),
            lambda at: f"{title} {texts.iloc[at][:40]!r} is not a number of 0 or more",
        )
        return values

    for title, column in layout.numbers:
        number(title, cells[column])
    samples = pd.concat(
        pd.DataFrame(
            {
                "outlet": outlet.name if names is None else names,
                "clock": moments,
                "in_utc": in_utc,
                "watts": cells[outlet.watts],
                "kwh": "" if outlet.kwh is None else cells[outlet.kwh],
            }
        )
        for outlet in layout.outlets
    ).sort_index(kind="stable")
    missing = _MISSING if layout.gaps else ()
    samples = samples[~samples["watts"].isin(missing) & samples["clock"].notna()]
    watts = number("watts", samples["watts"])
    check(~(watts > _LARGEST_WATTS), lambda at: f"{watts.iloc[at]:g} watts at one outlet")
    kwh = number("cumulative kWh", samples["kwh"], missing)
    return _on_one_clock(samples.assign(watts=watts, kwh=kwh), zone, check), wrong


def _cells(lines: "pd.Series[str]") -> tuple[pd.DataFrame, "pd.Series[int]"]:
    """The cells of each line as texts, and how many columns it has."""
    separator = separator_of(lines.iloc[0])
    unquoted = lines
    if lines.str.contains('"', regex=False).any():
        # A quote that is not closed would take in the lines below: it is part of a name, as 19" is.
        odd = lines.str.count('"') % 2 == 1
        lines = lines.where(~odd, lines.str.replace('"', "\u201d"))
        unquoted = lines.str.replace(rf'(^|{separator}) *"[^"]*"', r"\1", regex=True)
    widths = unquoted.str.count(separator) + 1
    cells = pd.read_csv(
        io.StringIO("\n".join(lines)),
        sep=separator,
        header=None,
        names=range(widths.max()),
        dtype=str,
        na_filter=False,
        skipinitialspace=True,
        skip_blank_lines=False,
    )
    return cells.set_index(lines.index).apply(lambda cell: cell.str.strip(" \t\"'")), widths


def _moments(
    texts: "pd.Series[str]", layout: Layout
) -> tuple["pd.Series[pd.Timestamp]", "pd.Series[bool]"]:
    """Times without a zone, NaT for what is not a time, and which of them are in UTC."""
    if layout.time_format:
        in_utc = pd.Series("%z" in layout.time_format, texts.index)
        try:
            read = pd.to_datetime(texts, format=layout.time_format, errors="coerce", utc=True)
        except ValueError:  # not a format
            return pd.Series(pd.NaT, texts.index), in_utc
        return read.dt.tz_convert(None), in_utc
    since = texts.str.fullmatch(r"\d+(?:\.\d+)?")
    iso = texts.where(~since).str.replace(",", ".")
    read = pd.to_datetime(iso, format="ISO8601", errors="coerce", utc=True)
    seconds = texts.where(since).astype(float)
    seconds = seconds.where(seconds <= _MILLISECONDS_ABOVE, seconds / 1000)
    epoch = pd.to_datetime((seconds * 1e6).round(), unit="us", errors="coerce", utc=True)
    return read.where(~since, epoch).dt.tz_convert(None), since | texts.str.contains(_OWN_OFFSET)


def _on_one_clock(samples: pd.DataFrame, zone: ZoneInfo, check: Check) -> pd.DataFrame:
    """Samples in UTC: ascending by outlet, and on one side of every change of the zone's clock."""
    clock, in_utc = samples["clock"], samples["in_utc"]
    # A zone's clock changes at full minutes, and asking for every sample would take long.
    minutes = clock.where(~in_utc).dt.floor("min")
    known = pd.Series(minutes.dropna().unique(), dtype="datetime64[ns]")
    utc = known.dt.tz_localize(zone, ambiguous="NaT", nonexistent="NaT").dt.tz_convert(None)
    offsets = minutes.map(pd.Series((known - utc).array, known))
    at = clock.where(in_utc, clock - offsets)
    offset = offsets[~in_utc]
    check(
        in_utc | (offsets == (offset.iloc[0] if len(offset) else None)),
        lambda row: (
            f"the clock of {zone.key} changes near {clock.iloc[row]}; "
            "cut the log to one side of the change, or log in UTC"
        ),
    )
    before = clock.groupby(samples["outlet"]).shift()
    back = at.groupby(samples["outlet"]).diff() < pd.Timedelta(0)
    check(~back, lambda row: f"time goes back from {before.iloc[row]} to {clock.iloc[row]}")
    numbers = pd.Series(pd.factorize(samples["outlet"])[0], samples.index)
    check(
        numbers < _MOST_OUTLETS,
        lambda _: f"more than {_MOST_OUTLETS} outlets; is the right column named?",
    )
    whole = samples.assign(wall_ns=at.astype("datetime64[ns]").astype("int64"))
    return whole[["outlet", "wall_ns", "watts", "kwh"]].reset_index(drop=True)
