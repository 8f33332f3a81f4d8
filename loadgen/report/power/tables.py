"""Tables of power logs: rows of cells, from lines of text, JSON, and the output of tools."""

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
from loadgen.report.power.messages import LogError, PowerMessage
from loadgen.report.power.times import is_time

SEPARATORS = ("\t", ";", "|", ",", "")
"""Separators of columns; "" for blanks."""
_LONGEST_LINE = 20_000
_HEAD_LINES = 60
_FIRST_RECORDS = 50
_PAIR = re.compile(r"\s*([^\W\d][^:\t,;|{}]*?)\s*:\s+(\S.*?)\s*")
"""A line of a tool with a name and a value."""
_SEVERAL = re.compile(r"\s{2,}(?=[^\W\d][^:]*:\s)")
"""The blanks between several pairs of one line."""
_TIMES = {"timestamp", "time"}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""
Record = tuple[int, dict[str, str]]
"""The number of a line, and values by their titles."""


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and rows of a log; without a `separator`, the numbers have decimal points."""

    titles: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]
    format: Format | None = None
    separator: str | None = None


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
                    raise LogError(PowerMessage.LINE_LONG, line=number, most=_LONGEST_LINE)
                if line.strip("\t;|, "):
                    yield number, line.replace("\0", "\ufffd")

    def head(self) -> list[str]:
        return [line for _, line in islice(self.lines(), _HEAD_LINES)]


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


def table_of(source: Source, head: Sequence[str], makes: Sequence[Format]) -> Table | None:
    """Return the table of a log that is not lines of cells; None for any other log."""
    if head[0][0] in "{[" or (head[0][-1] == "}" and "{" in head[0]):
        try:
            return _table_of_records(lambda: _documents(source))
        except LogError:
            if "}" in head[0] or '"' in "".join(head[1:3]):
                raise
            return None  # a line such as [2013-04-26 10:04:05] 135
    first = next((line for line in head if line[0] != "#"), "")
    for make in makes:
        if make.line and re.fullmatch(make.line, first):
            expression = re.compile(make.line)
            return Table(tuple(expression.groupindex), partial(_matches, source, expression), make)
    pairs = sum(_PAIR.fullmatch(line) is not None for line in head)
    if pairs > 1 and pairs >= 0.8 * len(head):
        return _table_of_records(lambda: _blocks(source))
    return None


def _table_of_records(records: Callable[[], Iterator[Record]]) -> Table:
    titles = dict.fromkeys(key for _, of in islice(records(), _FIRST_RECORDS) for key in of)

    def rows() -> Iterator[Row]:
        for number, record in records():
            yield number, [record.get(title, "") for title in titles]

    return Table(tuple(titles), rows)


def _matches(source: Source, expression: re.Pattern[str]) -> Iterator[Row]:
    for number, line in source.lines():
        if match := expression.fullmatch(line):
            yield number, [cell or "" for cell in match.groupdict().values()]
        elif line[0] != "#":
            yield number, [line]


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


# --- JSON -----------------------------------------------------------------------------------


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
        except orjson.JSONDecodeError:
            break
        for sample in samples:
            if before:
                times = [word for word in before.split() if is_time(word)]
                sample["topic"] = " ".join(word for word in before.split() if not is_time(word))
                if times and not any(name.lower().endswith("time") for name in sample):
                    sample["time"] = times[0]
            yield first, sample
        text, depth = "", 0
    if text:
        raise LogError(PowerMessage.LINE_JSON, line=first, text=text[:60])


def _samples_in(document: Any) -> Iterator[dict[str, str]]:
    """Yield the samples of a document: series of Prometheus, lists of samples, or itself."""
    if isinstance(document, list):
        for part in document:
            yield from _samples_in(part)
    if not isinstance(document, dict):
        return
    data = document.get("data")
    if isinstance(data, dict) and isinstance(data.get("result"), list):
        yield from _series_in(data["result"])
        return
    for value in document.values():
        samples = value if isinstance(value, list) else []
        titles = [{key.lower() for key in part} for part in samples if isinstance(part, dict)]
        if titles and len(titles) == len(samples) and all(_TIMES & of for of in titles):
            yield from map(_flat, value)
            return
    yield _flat(document)


def _series_in(results: Sequence[Any]) -> Iterator[dict[str, str]]:
    """Yield the samples of Prometheus' series, named by the labels that tell them apart."""
    labels = [_flat(result.get("metric", {})) for result in results]
    names = dict.fromkeys(key for of_one in labels for key in of_one)
    telling = [n for n in names if len({of_one.get(n) for of_one in labels}) > 1 or n == "__name__"]
    for result, of_one in zip(results, labels, strict=True):
        series = " ".join(of_one[name] for name in telling if name in of_one)
        for time, value in result.get("values") or [result.get("value", ("", ""))]:
            yield {"time": str(time), "series": series, "value": str(value)}


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return nested values by their joined names."""
    if isinstance(value, dict | list):
        flat: dict[str, str] = {}
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            flat |= _flat(part, f"{name}.{key}" if name else str(key))
        return flat
    return {name: "" if value is None else repr(value) if isinstance(value, float) else str(value)}
