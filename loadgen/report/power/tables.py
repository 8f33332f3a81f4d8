"""Tables of power logs: titles and rows of cells, from lines of text and from JSON.

A log is JSON, the output of a tool with a pattern for its lines, lines of names with values, or
lines of cells below a header. Only the latter have several candidates.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.report.power.formats import Format
from loadgen.report.power.notation import expression, words
from loadgen.report.power.times import LogError, is_time
from loadgen.report.power.units import unit_of
from loadgen.sentences import POWER_TEXT

_SEPARATORS = ("\t", ";", "|", ",", "")
"""Separators of columns; "" for blanks."""
_LONGEST_LINE = 20_000
HEAD_LINES = 60
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
    pairs = sum(bool(expression("pair").fullmatch(line)) for line in head)
    if pairs > 1 and pairs >= 0.8 * len(head):
        yield _of_records(_blocks(lines))
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
    """Yield the tables below each line that may be a header, or the units of one above it."""
    stated = re.fullmatch(r"sep=(.)", head[0], re.IGNORECASE)
    for separator in (stated[1],) if stated else _SEPARATORS:
        above: list[str] = []
        for place, line in enumerate(head[bool(stated) : -1], 1 + bool(stated)):
            titles = cells_of(line, separator)
            while titles and not titles[-1]:
                titles.pop()
            units = [title.strip("()[]") for title in titles]
            if len(units) == len(above) and any(map(unit_of, units)) and not _names_time(titles):
                pairs = zip(above, units, strict=True)
                titles = [f"{title} ({unit})" if unit_of(unit) else title for title, unit in pairs]
            if len(titles) > 1 and not any(map(is_time, titles)):
                titles = _distinct(titles)
                rows = _rows_below(lines[place:], separator, frozenset(head[:place]))
                first = [cells_of(below, separator) for below in head[place:]]
                yield Table(tuple(titles), rows, first, separator=separator)
            above = titles


def _distinct(titles: Sequence[str]) -> list[str]:
    """Return titles of which those that repeat have their number, as W and W 2."""
    counts = Counter[str]()
    numbered = []
    for title in titles:
        counts[title] += 1
        numbered.append(f"{title} {counts[title]}" if title and counts[title] > 1 else title)
    return numbered


def _names_time(titles: Sequence[str]) -> bool:
    named = {word for title in titles for word in re.findall(r"[^\W_]+", title.casefold())}
    return bool(named & (words("time") | words("date")))


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
        for match in filter(
            None, map(expression("pair").fullmatch, expression("between_pairs").split(line))
        ):
            if match[1] in record:
                yield first, record
                record = {}
            first = first if record else number
            record[match[1]] = match[2]
    yield first, record


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
        parts = before.strip(" \t\n,").split()
        times = [part for part in parts if is_time(part)]
        for sample in samples:
            if parts:
                sample["topic"] = " ".join(part for part in parts if part not in times)
            if times and not any(name.lower().endswith("time") for name in sample):
                sample["time"] = times[0]
            yield lines[line][0], sample
        line += text.count("\n", begin.start(), place)
    if left := text[place:].strip(" \t\n,"):
        raise LogError(POWER_TEXT.LINE_JSON, line=lines[line][0], text=left[:60])


def _samples_in(document: Any) -> Iterator[dict[str, str]]:
    """Yield the samples of a document: of the series or a list in it, or itself."""
    match document:
        case [*parts]:
            for part in parts:
                yield from _samples_in(part)
        case {"data": {"result": [*series]}}:
            yield from _of_series(series)
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
    return isinstance(value, dict) and any(
        key.lower().strip("@") in ("time", "timestamp") or _has_time(part)
        for key, part in value.items()
    )


def _of_series(series: Sequence[Any]) -> Iterator[dict[str, str]]:
    """Yield the samples of Prometheus' series, named by the labels that tell them apart."""
    labels = [_flat(of["metric"]) for of in series]
    names = dict.fromkeys(name for label in labels for name in label)
    telling = [n for n in names if n == "__name__" or len({label.get(n) for label in labels}) > 1]
    for of, label in zip(series, labels, strict=True):
        name = " ".join(label[name] for name in telling if name in label)
        for time, value in of.get("values") or [of["value"]]:
            yield _flat({"time": time, "series": name, "value": value})


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return nested values by their joined names; a value with its unit has it in its name."""
    if isinstance(value, dict) and name and "value" in value:
        unit = next((key for key in value if key.casefold() in words("units")), "")
        if unit:
            return _flat(value["value"], f"{name} ({value[unit]})")
    if isinstance(value, list):
        value = dict(zip(_names_in(value) or range(len(value)), value, strict=True))
    if isinstance(value, dict):
        flat: dict[str, str] = {}
        for key, part in value.items():
            flat |= _flat(part, f"{name}.{key}" if name else str(key))
        return flat
    return {name: "" if value is None else repr(value) if isinstance(value, float) else str(value)}


def _names_in(parts: Sequence[Any]) -> list[str]:
    """Return the names of the parts of a list; empty unless all have a name that differs."""
    names = [
        next((str(part[key]) for key in part if key.casefold() == "name"), "")
        for part in parts
        if isinstance(part, dict)
    ]
    return names if all(names) and len({*names}) == len(parts) else []
