"""Tables of power logs: titles and rows of cells, from lines of text and from JSON.

A log is JSON, the output of a tool with a pattern for its lines, lines of names with values, or
lines of cells below a header. Only the latter have several candidates.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.report.power.formats import Format, words
from loadgen.report.power.times import LogError, is_time
from loadgen.report.power.units import unit_of
from loadgen.sentences import POWER_TEXT

_SEPARATORS = ("\t", ";", "|", ",", "")
"""Separators of columns; "" for blanks."""
_LONGEST_LINE = 20_000
HEAD_LINES = 60
_HEADER_BLOCK = 6
_PAIR = re.compile(r"\s*([^\W\d][^:\t,;|{}]*?)\s*:\s+(\S.*?)\s*")
"""A line of a tool with a name and a value."""
_SEVERAL = re.compile(r"\s{2,}(?=[^\W\d][^:]*:\s)")
"""The blanks between several pairs of one line."""
_ASSIGNED = re.compile(r'([^\W\d][\w.]*)=("[^"]*"|\S*)(?:\s+|$)')
"""A name and a value as in `time=2026-11-23T10:00:00Z power_w=135`."""
_TIMES = {"timestamp", "time"}
_BEGIN = re.compile(r"[{[]")
_DECODER = json.JSONDecoder()

Line = tuple[int, str]
"""The number of a line, and its text."""
Row = tuple[int, list[str]]
"""The number of a line, and its cells."""
Record = tuple[int, dict[str, str]]
"""The number of a line, and values by their titles."""


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and rows of a log, and the cells of its first rows.

    `separator` is None if numbers have decimal points, as in JSON. `make` is the make that the
    lines show.
    """

    titles: tuple[str, ...]
    rows: Iterable[Row]
    first: Sequence[Sequence[str]]
    make: Format | None = None
    separator: str | None = None


def lines_of(log: bytes, *, may_grow: bool = False) -> list[Line]:
    """Return the lines of a log that are not blank; if it `may_grow`, the last is incomplete.

    It is in UTF-8, UTF-16 as from spreadsheets, or the older encoding of Windows.
    """
    is_wide = log.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = log.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = log.decode("cp1252", "replace")
    lines = []
    texts = re.split("\r\n|\r|\n", text)
    for number, line in enumerate(texts[:-1] if may_grow else texts, 1):
        line = line.strip("\0 \ufeff")
        if len(line) > _LONGEST_LINE and line[0] not in "{[":
            raise LogError(POWER_TEXT.LINE_LONG, line=number, most=_LONGEST_LINE)
        if line.strip("\t;|, "):
            lines.append((number, line.replace("\0", "\ufffd")))
    return lines


def tables_in(lines: Sequence[Line], makes: Sequence[Format]) -> Iterator[Table]:
    """Yield the tables that a log may be; raise LogError for JSON that is not valid."""
    head = [line for _, line in lines[:HEAD_LINES]]
    if head[0][0] in "{[" or (head[0][-1] == "}" and "{" in head[0]):
        try:
            yield _of_records(_documents(lines))
            return
        except LogError:
            if "}" in head[0] or '"' in "".join(head[1:3]):
                raise  # other lines are such as [2013-04-26 10:04:05] 135
    line = next((line for line in head if line[0] != "#"), "")
    for make in makes:
        if make.line and re.fullmatch(make.line, line):
            pattern = re.compile(make.line)
            rows = [*_matches(lines, pattern)]
            yield Table(tuple(pattern.groupindex), rows, [cells for _, cells in rows], make)
            return
    for records, is_record in ((_blocks, _PAIR.fullmatch), (_assignments, _assigned)):
        fitting = sum(bool(is_record(line)) for line in head)
        if fitting > 1 and fitting >= 0.8 * len(head):
            yield _of_records(records(lines))
            return
    yield from _below_headers(lines, head)


def cells_of(line: str, separator: str) -> list[str]:
    """Split a line into cells; quotes may hold the separator."""
    if not separator:
        return line.lstrip("#").split()
    if '"' not in line:
        return [cell.strip(" \t'") for cell in line.split(separator)]
    if line.count('"') % 2:
        # An unclosed quote, as in 19", is part of a name; as a quote it would join lines.
        line = line.replace('"', "\u201d")
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=separator != "\t"))
    return [cell.strip(" \t'") for cell in cells]


def _below_headers(lines: Sequence[Line], head: Sequence[str]) -> Iterator[Table]:
    """Yield the tables below each line that may end a header.

    A header has up to six lines of the same width, such as names, kinds and units; of those that
    end at one line, the highest is the first.
    """
    stated = re.fullmatch(r"sep=(.)", head[0], re.IGNORECASE)
    for separator in (stated[1],) if stated else _SEPARATORS:
        cells = [cells_of(line, separator) for line in head]
        for of_line in cells:
            while of_line and not of_line[-1]:
                of_line.pop()
        for below in range(1 + bool(stated), len(cells)):
            width = len(cells[below - 1])
            if width < 2 or any(map(is_time, cells[below - 1])):
                continue  # a line of samples, or of text
            top = below - 1
            while top > max(below - _HEADER_BLOCK, 0) and len(cells[top - 1]) == width:
                top -= 1
            for start in range(top, below):
                titles = []
                for column in zip(*cells[start:below], strict=True):
                    # A unit in a separate line gets brackets.
                    parts = [f"({c})" if len(column) > 1 and unit_of(c) else c for c in column]
                    titles.append(" ".join(filter(None, parts)).strip())
                header = frozenset(head[:below])
                rows = _rows_below(lines[below:], separator, header)
                yield Table(tuple(titles), rows, cells[below:], separator=separator)


def _rows_below(lines: Sequence[Line], separator: str, header: frozenset[str]) -> Iterator[Row]:
    """Yield the rows below a header, without lines that repeat it, rules and comments."""
    for number, line in lines:
        if line not in header and line[0] != "#" and line.strip("|-:+= "):
            yield number, cells_of(line, separator)


def _matches(lines: Sequence[Line], pattern: re.Pattern[str]) -> Iterator[Row]:
    for number, line in lines:
        if match := pattern.fullmatch(line):
            yield number, [cell or "" for cell in match.groupdict().values()]
        elif line[0] != "#":
            yield number, [line]


# --- records --------------------------------------------------------------------------------


def _of_records(records: Iterator[Record]) -> Table:
    read = [*records]
    titles = tuple(dict.fromkeys(key for _, record in read for key in record))
    rows = [(number, [record.get(title, "") for title in titles]) for number, record in read]
    return Table(titles, rows, [cells for _, cells in rows])


def _blocks(lines: Sequence[Line]) -> Iterator[Record]:
    """Yield records of lines with a name and a value; a name that repeats begins a record."""
    record: dict[str, str] = {}
    first = 0
    for number, line in lines:
        for match in filter(None, map(_PAIR.fullmatch, _SEVERAL.split(line))):
            if match[1] in record:
                yield first, record
                record = {}
            first = first if record else number
            record[match[1]] = match[2]
    yield first, record


def _assigned(line: str) -> dict[str, str]:
    """Return the names and values of a line that has nothing else; empty for another line."""
    pairs = _ASSIGNED.findall(line)
    is_complete = len(pairs) > 1 and not _ASSIGNED.sub("", line)
    return {name: value.strip('"') for name, value in pairs} if is_complete else {}


def _assignments(lines: Sequence[Line]) -> Iterator[Record]:
    return ((number, _assigned(line)) for number, line in lines if line[0] != "#")


def _documents(lines: Sequence[Line]) -> Iterator[Record]:
    """Yield the samples of JSON documents, of a line each or of several, with joined names.

    What stands before a document, such as a time and a topic, is part of its samples.
    """
    text, place, line = "\n".join(line for _, line in lines), 0, 0
    while begin := _BEGIN.search(text, place):
        before = text[place : begin.start()]
        line += before.count("\n")
        try:
            document, place = _DECODER.raw_decode(text, begin.start())
            samples = [*_samples_in(document)]
        except (ValueError, TypeError, AttributeError):
            break  # not JSON, or series with other parts
        words = before.strip(" \t\n,").split()
        times = [word for word in words if is_time(word)]
        for sample in samples:
            if words:
                sample["topic"] = " ".join(word for word in words if word not in times)
            if times and not any(name.lower().endswith("time") for name in sample):
                sample["time"] = times[0]
            yield lines[line][0], sample
        line += text.count("\n", begin.start(), place)
    if left := text[place:].strip(" \t\n,"):
        raise LogError(POWER_TEXT.LINE_JSON, line=lines[line][0], text=left[:60])


def _samples_in(document: Any) -> Iterator[dict[str, str]]:
    """Yield the samples of a document: of series or tables in it, of lists, or itself."""
    match document:
        case [{"datapoints": _}, *_]:
            yield from _of_series(document)
        case [*parts]:
            for part in parts:
                yield from _samples_in(part)
        case {"data": {"result": [*series]}}:
            yield from _of_series(series)
        case {"metric": dict(), "values": list(), "timestamps": list()}:
            yield from _of_series([document])
        case {"results": [*results]}:  # InfluxDB 1
            for series in (part for result in results for part in result.get("series", ())):
                for values in series.get("values", ()):
                    row = dict(zip(series.get("columns", ()), values, strict=False))
                    yield _flat(series.get("tags", {}) | row)
        case dict():
            # What is around the samples is part of each, so that no watts are dropped.
            around = _flat(document)
            for name, parts in _lists_in(document):
                if parts and all(map(_has_time, parts)):
                    around = {k: v for k, v in around.items() if not k.startswith(f"{name}.")}
                    yield from (around | _flat(part) for part in parts)
                    return
            yield around


def _lists_in(value: dict[str, Any], name: str = "") -> Iterator[tuple[str, list[Any]]]:
    for key, part in value.items():
        if isinstance(part, list):
            yield f"{name}{key}", part
        elif isinstance(part, dict):
            yield from _lists_in(part, f"{name}{key}.")


def _has_time(value: Any) -> bool:
    """Return True for an object with a time, in itself or in an object of it."""
    if not isinstance(value, dict):
        return False
    return any(key.lower().strip("@") in _TIMES or _has_time(of) for key, of in value.items())


def _of_series(series: Sequence[Any]) -> Iterator[dict[str, str]]:
    """Yield the samples of series, named by the labels that tell them apart.

    Prometheus has `values` of (time, value), Graphite `datapoints` of (value, time).
    """
    labels = [_flat(of.get("metric", {"target": of.get("target", "")})) for of in series]
    names = dict.fromkeys(name for label in labels for name in label)
    stated = ("__name__", "target")
    telling = [n for n in names if n in stated or len({label.get(n) for label in labels}) > 1]
    for of, label in zip(series, labels, strict=True):
        points = of.get("values") or [of.get("value", ("", ""))]
        if "datapoints" in of:
            points = [point[::-1] for point in of["datapoints"]]
        elif "timestamps" in of:
            points = zip(of["timestamps"], points, strict=False)
        name = " ".join(label[name] for name in telling if name in label)
        for time, value in points:
            yield _flat({"time": time, "series": name, "value": value})


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return nested values by their joined names; a value with its unit has it in its name."""
    if isinstance(value, dict) and name and "value" in value:
        unit = next((key for key in value if key.casefold() in words("units")), "")
        if unit:
            return _flat(value["value"], f"{name} ({value[unit]})")
    if isinstance(value, dict | list):
        flat: dict[str, str] = {}
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            flat |= _flat(part, f"{name}.{key}" if name else str(key))
        return flat
    return {name: "" if value is None else repr(value) if isinstance(value, float) else str(value)}
