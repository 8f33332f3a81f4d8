"""Tables of power logs: titles and rows of cells, from lines of text and from JSON.

A log is JSON, the output of a tool with a pattern for its lines, lines of names with values, or
lines of cells below a header. Only the latter have several candidates.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from loadgen.report.power.formats import Format
from loadgen.report.power.times import LogError, is_time
from loadgen.report.power.units import unit_of
from loadgen.sentences import POWER_TEXT

_SEPARATORS = ("\t", ";", "|", ",", "")
"""Separators of columns; "" for blanks."""
_LONGEST_LINE = 20_000
_HEAD_LINES = 60
_HEADER_BLOCK = 6
_FIRST_RECORDS = 50
_PAIR = re.compile(r"\s*([^\W\d][^:\t,;|{}]*?)\s*:\s+(\S.*?)\s*")
"""A line of a tool with a name and a value."""
_SEVERAL = re.compile(r"\s{2,}(?=[^\W\d][^:]*:\s)")
"""The blanks between several pairs of one line."""
_ASSIGNED = re.compile(r'([^\W\d][\w.]*)=("[^"]*"|\S*)(?:\s+|$)')
"""A name and a value as in `time=2026-11-23T10:00:00Z power_w=135`."""
_TIMES = {"timestamp", "time"}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""
Record = tuple[int, dict[str, str]]
"""The number of a line, and values by their titles."""


@dataclass(frozen=True, slots=True)
class Source:
    """A log in a file or in memory; if it `may_grow`, its last line may be incomplete."""

    log: Path | bytes
    may_grow: bool = False

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the numbers and texts of all lines that are not blank."""
        stream = io.BytesIO(self.log) if isinstance(self.log, bytes) else self.log.open("rb")
        with stream:
            encoding = _encoding(stream.read(1 << 16))
            stream.seek(0)
            text = io.TextIOWrapper(stream, encoding, errors="replace", newline=None)
            for number, line in enumerate(text, 1):
                if self.may_grow and line[-1] != "\n":
                    return
                line = line.strip("\n\0 \ufeff")
                if len(line) > _LONGEST_LINE and line[0] not in "{[":
                    raise LogError(POWER_TEXT.LINE_LONG, line=number, most=_LONGEST_LINE)
                if line.strip("\t;|, "):
                    yield number, line.replace("\0", "\ufffd")

    def head(self) -> list[str]:
        return [line for _, line in islice(self.lines(), _HEAD_LINES)]


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and rows of a log, and the cells of its first rows.

    `separator` is None if numbers have decimal points, as in JSON. `make` is the make that the
    lines show.
    """

    titles: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]
    first: Sequence[Sequence[str]]
    make: Format | None = None
    separator: str | None = None


def tables_in(source: Source, head: Sequence[str], makes: Sequence[Format]) -> Iterator[Table]:
    """Yield the tables that a log may be; raise LogError for JSON that is not valid."""
    if head[0][0] in "{[" or (head[0][-1] == "}" and "{" in head[0]):
        try:
            yield _of_records(partial(_documents, source))
            return
        except LogError:
            if "}" in head[0] or '"' in "".join(head[1:3]):
                raise  # other lines are such as [2013-04-26 10:04:05] 135
    line = next((line for line in head if line[0] != "#"), "")
    for make in makes:
        if make.line and re.fullmatch(make.line, line):
            pattern = re.compile(make.line)
            rows = partial(_matches, source, pattern)
            first = [cells for _, cells in islice(rows(), _FIRST_RECORDS)]
            yield Table(tuple(pattern.groupindex), rows, first, make)
            return
    for records, is_record in ((_blocks, _PAIR.fullmatch), (_assignments, _assigned)):
        fitting = sum(bool(is_record(line)) for line in head)
        if fitting > 1 and fitting >= 0.8 * len(head):
            yield _of_records(partial(records, source))
            return
    yield from _below_headers(source, head)


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


def _encoding(head: bytes) -> str:
    """Return the encoding of a log: UTF-16 as from spreadsheets, UTF-8, or Windows' older one."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        # Every other byte of Latin letters in UTF-16 is zero.
        if len(head) >= 4 and head[:400][first::2].count(0) > 0.4 * len(head[:400]):
            return encoding
    try:
        head[: head.rfind(b"\n") + 1 or None].decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def _below_headers(source: Source, head: Sequence[str]) -> Iterator[Table]:
    """Yield the tables below each line that may end a header.

    A header has up to six lines of the same width, such as names, kinds and units; of those that
    end at one line, the highest is the first.
    """
    stated = re.fullmatch(r"sep=(.)", head[0], re.IGNORECASE)
    for separator in (stated[1],) if stated else _SEPARATORS:
        lines = [cells_of(line, separator) for line in head]
        for cells in lines:
            while cells and not cells[-1]:
                cells.pop()
        for below in range(1 + bool(stated), len(lines)):
            width = len(lines[below - 1])
            if width < 2 or any(map(is_time, lines[below - 1])):
                continue  # a line of samples, or of text
            top = below - 1
            while top > max(below - _HEADER_BLOCK, 0) and len(lines[top - 1]) == width:
                top -= 1
            for start in range(top, below):
                titles = []
                for column in zip(*lines[start:below], strict=True):
                    # A unit in a separate line gets brackets.
                    parts = [f"({c})" if len(column) > 1 and unit_of(c) else c for c in column]
                    titles.append(" ".join(filter(None, parts)).strip())
                header = frozenset(head[:below])
                rows = partial(_lines_below, source, separator, below, header)
                yield Table(tuple(titles), rows, lines[below:], separator=separator)


def _lines_below(
    source: Source, separator: str, below: int, header: frozenset[str]
) -> Iterator[Row]:
    """Yield the rows below a header, without lines that repeat it, rules and comments."""
    for number, line in islice(source.lines(), below, None):
        if line not in header and line[0] != "#" and line.strip("|-:+= "):
            yield number, cells_of(line, separator)


def _matches(source: Source, pattern: re.Pattern[str]) -> Iterator[Row]:
    for number, line in source.lines():
        if match := pattern.fullmatch(line):
            yield number, [cell or "" for cell in match.groupdict().values()]
        elif line[0] != "#":
            yield number, [line]


# --- records --------------------------------------------------------------------------------


def _of_records(records: Callable[[], Iterator[Record]]) -> Table:
    first = [record for _, record in islice(records(), _FIRST_RECORDS)]
    titles = tuple(dict.fromkeys(key for record in first for key in record))

    def rows() -> Iterator[Row]:
        for number, record in records():
            yield number, [record.get(title, "") for title in titles]

    return Table(titles, rows, [[record.get(t, "") for t in titles] for record in first])


def _blocks(source: Source) -> Iterator[Record]:
    """Yield records of lines with a name and a value; a name that repeats begins a record."""
    record: dict[str, str] = {}
    first = 0
    for number, line in source.lines():
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


def _assignments(source: Source) -> Iterator[Record]:
    return ((number, _assigned(line)) for number, line in source.lines() if line[0] != "#")


def _documents(source: Source) -> Iterator[Record]:
    """Yield the samples of JSON documents, of a line each or of several, with joined names.

    What stands before a document in its line, such as a time and a topic, is part of its samples.
    """
    text, before, first, depth = "", "", 0, 0
    for number, line in source.lines():
        if not text:
            first, start = number, re.search(r"[{[]", line)
            before, line = (line[: start.start()], line[start.start() :]) if start else ("", line)
        text += line + "\n"
        bare = _QUOTED.sub("", line)
        depth += sum(bare.count(mark) for mark in "{[") - sum(bare.count(mark) for mark in "}]")
        if depth > 0:
            continue
        try:
            samples = [*_samples_in(orjson.loads(text))]
        except (ValueError, TypeError, AttributeError):
            break  # not JSON, or series with other parts
        for sample in samples:
            if before:
                times = [word for word in before.split() if is_time(word)]
                sample["topic"] = " ".join(word for word in before.split() if not is_time(word))
                if times and not any(name.lower().endswith("time") for name in sample):
                    sample["time"] = times[0]
            yield first, sample
        text, depth = "", 0
    if text:
        raise LogError(POWER_TEXT.LINE_JSON, line=first, text=text[:60])


def _samples_in(document: Any) -> Iterator[dict[str, str]]:
    """Yield the samples of a document: of series or tables in it, of lists, or itself."""
    if isinstance(document, list):
        if document and all(isinstance(part, dict) and "datapoints" in part for part in document):
            yield from _of_series(document)
            return
        for part in document:
            yield from _samples_in(part)
    if not isinstance(document, dict):
        return
    match document:
        case {"data": {"result": [*series]}}:
            yield from _of_series(series)
            return
        case {"metric": dict(), "values": list(), "timestamps": list()}:
            yield from _of_series([document])
            return
        case {"results": [*results]}:  # InfluxDB 1
            for series in (part for result in results for part in result.get("series", ())):
                for values in series.get("values", ()):
                    row = dict(zip(series.get("columns", ()), values, strict=False))
                    yield _flat(series.get("tags", {}) | row)
            return
    for value in document.values():
        samples = value if isinstance(value, list) else []
        titles = [{key.lower() for key in part} for part in samples if isinstance(part, dict)]
        if titles and len(titles) == len(samples) and all(_TIMES & of for of in titles):
            yield from map(_flat, value)
            return
    yield _flat(document)


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
    """Return nested values by their joined names."""
    if isinstance(value, dict | list):
        flat: dict[str, str] = {}
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            flat |= _flat(part, f"{name}.{key}" if name else str(key))
        return flat
    return {name: "" if value is None else repr(value) if isinstance(value, float) else str(value)}
