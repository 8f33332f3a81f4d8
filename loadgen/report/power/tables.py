"""Tables of power logs: lines of cells, from tables of text, from JSON, and from lines of tools.

Every table can be read again, because a later line may show that numbers have a decimal comma.
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

from loadgen.report.power.columns import LogError
from loadgen.report.power.formats import Format
from loadgen.report.power.messages import PowerMessage

SEPARATORS = ("\t", ";", "|", ",", "")
"""Separators of columns; "" for blanks."""
_LONGEST_LINE = 20_000
_HEAD_LINES = 60
_PAIR = re.compile(r"\s*([^\W\d][^:\t,;|{}]*?)\s*:\s+(\S.*?)\s*")
"""A line of a tool with a name and a value."""

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""


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
    """Return the table of a log that is no lines of cells; None for any other log."""
    if head[0][:1] in ("{", "["):
        try:
            titles = dict.fromkeys(
                key for _, record in islice(_records(source), 50) for key in record
            )
        except LogError:
            if "}" in head[0] or '"' in "".join(head[1:3]):
                raise
            return None  # a line such as [2013-04-26 10:04:05] 135
        return Table(tuple(titles), lambda: _rows(_records(source), titles))
    for make in makes:
        if make.line and any(re.fullmatch(make.line, line) for line in head):
            expression = re.compile(make.line)
            rows = partial(_matches, source, expression)
            return Table(tuple(expression.groupindex), rows, make)
    pairs = [match for line in head if (match := _PAIR.fullmatch(line))]
    if len(pairs) > 1 and len(pairs) >= 0.8 * len(head):
        titles = dict.fromkeys(match[1] for match in pairs)
        return Table(tuple(titles), lambda: _rows(_blocks(source), titles))
    return None


def _rows(
    records: "Iterator[tuple[int, dict[str, str]]]", titles: Sequence[str] | Any
) -> Iterator[Row]:
    for number, record in records:
        yield number, [record.get(title, "") for title in titles]


def _matches(source: Source, expression: re.Pattern[str]) -> Iterator[Row]:
    for number, line in source.lines():
        if match := expression.fullmatch(line):
            yield number, [cell or "" for cell in match.groupdict().values()]


def _blocks(source: Source) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield records of lines with a name and a value; a name that repeats begins a record."""
    record: dict[str, str] = {}
    first = 0
    for number, line in source.lines():
        match = _PAIR.fullmatch(line)
        if match is None:
            continue
        if match[1] in record:
            yield first, record
            record = {}
        first = first if record else number
        record[match[1]] = match[2]
    yield first, record


# --- JSON -----------------------------------------------------------------------------------


def _records(source: Source) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the samples of JSON documents, of a line each or indented, with flat names."""
    text, first = "", 0
    for number, line in source.lines():
        first = first if text else number
        text += line + "\n"
        # The last line of an indented document begins with its closing bracket.
        if line[0] in "}]" or (first == number and line[-1] in "}]"):
            try:
                document = orjson.loads(text)
            except orjson.JSONDecodeError:
                if line[0] not in "}]":
                    continue
                raise LogError(PowerMessage.LINE_JSON, line=first, text=line[:60]) from None
            yield from ((first, record) for record in _samples_in(document))
            text = ""
    if text:
        raise LogError(PowerMessage.LINE_JSON, line=first, text=text[:60])


def _samples_in(document: Any) -> Iterator[dict[str, str]]:
    """Yield the samples of a document: series of Prometheus, lists of samples, or itself."""
    if isinstance(document, list):
        for part in document:
            yield from _samples_in(part)
        return
    if not isinstance(document, dict):
        return
    data = document.get("data")
    if isinstance(data, dict) and isinstance(data.get("result"), list):
        yield from _series_in(data["result"])
        return
    for value in document.values():
        if isinstance(value, list) and value and all(_has_time(part) for part in value):
            for part in value:
                yield _flat(part)
            return
    yield _flat(document)


def _has_time(part: Any) -> bool:
    return isinstance(part, dict) and any(key.lower() in ("timestamp", "time") for key in part)


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
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        flat: dict[str, str] = {}
        for key, part in parts:
            flat |= _flat(part, f"{name}.{key}" if name else str(key))
        return flat
    text = "" if value is None else repr(value) if isinstance(value, float) else str(value)
    return {name: text}
