"""Tables of power logs: titles and rows of cells, from lines of text and from JSON.

A log is JSON, the output of a tool with a pattern for its lines, lines of names with values, or
lines of cells below a header. Only the last can be read as several tables.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.report.power.formats import Format
from loadgen.report.power.times import LogError, is_time
from loadgen.report.power.units import expression, unit_of, words
from loadgen.sentences import POWER_TEXT

_SEPARATORS = ("\t", ";", "|", ",", "")  # separators of columns; "" for blanks
_LONGEST_LINE = 20_000
HEAD_LINES = 60
_BEGIN = re.compile(r"[{[]")
_DECODER = json.JSONDecoder()

# Each has the number of its line.
Line = tuple[int, str]
Row = tuple[int, list[str]]
Record = tuple[int, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and rows of a log, the cells of its first rows, and the make that its lines show.

    `separator` is None if numbers have decimal points, as in JSON.
    """

    titles: tuple[str, ...]
    rows: Iterable[Row]
    first: Sequence[Sequence[str]]
    make: Format | None = None
    separator: str | None = None


def lines_of(log: bytes, *, may_grow: bool = False) -> list[Line]:
    """Return the lines that are not blank, without an incomplete last one if the log `may_grow`."""
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
    if texts[-1].strip("\0") and lines and not may_grow:
        _require_complete(lines)
    return lines


def _require_complete(lines: Sequence[Line]) -> None:
    """Raise LogError if the last line, which has no end, may be cut inside its last number."""
    line, text = lines[-1]
    digits = "[\\d.,]+" if re.search("[;\t|]", text) else "[\\d.]+"
    *shapes, shape = [re.sub(digits, "0", other) for _, other in lines]
    similar = [other for (_, other), of in zip(lines, (*shapes, shape), strict=True) if of == shape]
    units = (of.removeprefix(shape) for of in shapes if of.startswith(shape))
    if shape not in shapes and any(map(re.compile(r"[^\W\d]").search, units)):
        raise LogError(POWER_TEXT.LINE_CUT, line=line, text=text[-40:])
    numbers = (re.search(f"{digits}$", other) for other in similar)
    ends = [re.split("[.,]", number[0]) for number in numbers if number]
    wholes = [len("".join(end)) for end in ends]
    places = [len(end[-1]) if len(end) > 1 else 0 for end in ends]
    if len(ends) < 2:
        return
    # A cut number has fewer decimal places, or without any is short for its size.
    is_least = all(int(ends[-1][0] or 0) < int(end[0] or 0) for end in ends[:-1])
    is_short = wholes[-1] < (max if is_least else min)(wholes[:-1])
    if (is_short and not places[-1]) or places[-1] < min(places[:-1]):
        raise LogError(POWER_TEXT.LINE_CUT, line=line, text=text[-40:])


def tables_in(lines: Sequence[Line], makes: Sequence[Format]) -> Iterator[Table]:
    """Yield the tables that a log may be; raise LogError for JSON that is not valid."""
    head = [line for _, line in lines[:HEAD_LINES]]
    is_dated = is_time(head[0]) and head[1:2] and head[1][0] == "{"
    if head[0][0] in "{[" or is_dated or (head[0][-1] == "}" and "{" in head[0]):
        try:
            yield _of_records(_documents(lines))
            return
        except LogError:
            if head[0][0] == "{" or '"' in "".join(head[1:3]):
                raise  # other lines are such as [2013-04-26 10:04:05] 135, or watts{host="a"}
    line = next((line for line in head if line[0] != "#"), "")
    for make in makes:
        if make.line and re.fullmatch(make.line, line):
            pattern = re.compile(make.line)
            rows = [*_matches(lines, pattern)]
            yield Table(tuple(pattern.groupindex), rows, [cells for _, cells in rows], make)
            return
    pairs = sum(len(_pairs_in(line)) > (":" not in line) for line in head)
    if pairs > 1 and pairs >= 0.8 * len(head):
        yield _of_records(_blocks(lines))
        return
    yield from _below_headers(lines, head)


def cells_of(line: str, separator: str) -> list[str]:
    """Split a line into cells; quotes may hold the separator."""
    if not separator:
        return re.sub(r":(?=\s)", "", line).lstrip("#").split()
    if '"' not in line:
        return [cell.strip(" \t'") for cell in line.split(separator)]
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=separator != "\t"))
    return [cell.strip(" \t'") for cell in cells]


def _below_headers(lines: Sequence[Line], head: Sequence[str]) -> Iterator[Table]:
    """Yield the tables below each line that may be a header, or the units of one above it."""
    stated, of_time = re.fullmatch(r"(?i)sep=(.)", head[0]), words("time") | words("date")
    for separator in (stated[1],) if stated else _SEPARATORS:
        above: list[str] = []
        for place, line in enumerate(head[bool(stated) : -1], 1 + bool(stated)):
            titles = cells_of(line, separator)
            while titles and not titles[-1]:
                titles.pop()
            units = [title.strip("()[]") for title in titles]
            named = {word for title in titles for word in re.findall(r"[^\W_]+", title.casefold())}
            if len(units) == len(above) and any(map(unit_of, units)) and not named & of_time:
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


def _of_records(records: Iterator[Record]) -> Table:
    read = [*records]
    titles = tuple(dict.fromkeys(key for _, record in read for key in record))
    rows = [(number, [record.get(title, "") for title in titles]) for number, record in read]
    return Table(titles, rows, [cells for _, cells in rows])


def _pairs_in(line: str) -> list[tuple[str, str]]:
    """Return names and values of a line such as `a: 1  b: 2` or `a=1 b="2"`."""
    if expression("logfmt").fullmatch(line):
        return [(name, value.strip('"')) for name, value in expression("equation").findall(line)]
    matches = map(expression("pair").fullmatch, expression("between_pairs").split(line))
    return [(match[1], match[2]) for match in matches if match]


def _blocks(lines: Sequence[Line]) -> Iterator[Record]:
    """Yield records of lines with names and values; a name that repeats begins a record."""
    record: dict[str, str] = {}
    first = 0
    for number, line in lines:
        for name, value in _pairs_in(line):
            if name in record:
                yield first, record
                record = {}
            first = first if record else number
            record[name] = value
    yield first, record


def _documents(lines: Sequence[Line]) -> Iterator[Record]:
    """Yield the samples of JSON documents, with the text before each, such as time and topic."""
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
        case {"metric": dict(metric), "values": [*values], "timestamps": [*times]}:
            yield from _of_pairs(" ".join(_flat(metric).values()), zip(times, values, strict=True))
        case {"target": str(target), "datapoints": [*points]}:
            yield from _of_pairs(target, ((time, value) for value, time in points))
        case {"results": [{"series": [{"columns": [*titles], "values": [*rows]}]}]}:
            yield from (_flat(dict(zip(titles, row, strict=True))) for row in rows)
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
    """Return True for an object that has a time, directly or in an inner object."""
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
        yield from _of_pairs(name, of.get("values") or [of["value"]])


def _of_pairs(name: str, pairs: Iterable[tuple[Any, Any]]) -> Iterator[dict[str, str]]:
    yield from (_flat({"time": time, "series": name, "value": value}) for time, value in pairs)


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
