"""Makes of power logs as data: how a log is recognised, and the columns that it has."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from loadgen.errors import PowerLogError
from loadgen.report.power.messages import PowerMessage
from loadgen.report.power.units import UNITS
from loadgen.run.redaction import printable

MARKS = {"point": ".", "comma": ","}
TITLES = (*("time", "date", "outlet", "series", "value"), *("watts", "kwh", "interval"))
"""Keys whose values are titles of columns."""
CHOICES: Mapping[str, Sequence[str]] = {
    "unit": [name for name, unit in UNITS.items() if unit.kind == "power"],
    "counter_unit": [name for name, unit in UNITS.items() if unit.kind == "energy"],
    "decimal": [*MARKS],
    "dates": ["dmy", "mdy", "ymd"],
    "stamp": ["start", "end"],
    "hold": ["change"],
}
KEYS = (*TITLES, *CHOICES, "format", "start")
"""Keys of `--pdu-columns`, and of a format."""

_INSTEAD = ({"time", "date"}, {"watts", "kwh", "interval", "series", "value"}, {"outlet"})
"""Groups of keys: if a user gives a key of a group, the make's titles in it do not count."""


@dataclass(frozen=True, slots=True)
class Format:
    """A make of power logs, or a user's description of one; the keys are those of `makes.toml`.

    `named` are the keys that the user gave. `logs` is a pattern of the files that a user's format
    is for, "" for all that have its header.
    """

    name: str = ""
    header: tuple[str, ...] = ()
    line: str = ""
    columns: tuple[str, ...] = ()
    first: str = ""
    time: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    outlet: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    watts: tuple[str, ...] = ()
    kwh: tuple[str, ...] = ()
    interval: tuple[str, ...] = ()
    unit: str = ""
    counter_unit: str = ""
    decimal: str = ""
    dates: str = ""
    format: str = ""
    stamp: str = ""
    hold: str = ""
    start: str = ""
    logs: str = ""
    unused: Mapping[str, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()

    def with_options(self, options: "Format") -> "Format":
        """Return the format with what the user gave in its place."""
        given: dict[str, Any] = {key: getattr(options, key) for key in options.named}
        for group in _INSTEAD:
            if group & options.named:
                given |= dict.fromkeys(group - options.named, ())
        return replace(self, **given, named=options.named)

    def fits(self, titles: Sequence[str]) -> bool:
        """Return True if a log with these titles is of this make."""
        if self.line:
            return False
        if not self.header:
            figures = (*self.watts, *self.kwh, *self.interval, *self.value)
            return any(is_like(title, pattern) for title in titles for pattern in figures)
        return all(any(is_like(title, pattern) for title in titles) for pattern in self.header)


NO_OPTIONS = Format()


def is_like(title: str, pattern: str) -> bool:
    """Return True for a title that equals a pattern; * stands for any text, {n} for a number."""
    return title.casefold() == pattern.casefold() or bool(_expression(pattern).fullmatch(title))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    wild = re.escape(pattern).replace(re.escape("*"), ".*").replace(re.escape("{n}"), r"\d+")
    return re.compile(wild, re.IGNORECASE)


@cache
def makes() -> tuple[Format, ...]:
    """Return the makes of the package."""
    text = files("loadgen.report.power").joinpath("makes.toml").read_text("utf-8")
    return tuple(_format(name, table, "makes.toml") for name, table in tomllib.loads(text).items())


@cache
def words(key: str) -> frozenset[str]:
    """Return the words of titles that say this of a column."""
    return frozenset(_words()[key].split())


@cache
def _words() -> Mapping[str, str]:
    text = files("loadgen.report.power").joinpath("words.toml").read_text("utf-8")
    return tomllib.loads(text)


def read_formats(path: Path) -> tuple[Format, ...]:
    """Return the formats of a user's file; raise PowerLogError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PowerLogError(PowerMessage.FORMAT_FILE(file=path, reason=reason)) from None
    except ValueError as error:
        reason = printable(str(error), 120)
        raise PowerLogError(PowerMessage.FORMAT_FILE(file=path, reason=reason)) from None
    return tuple(_format(name, table, str(path)) for name, table in document.items())


def _format(name: str, table: Any, file: str) -> Format:
    kinds = {f.name: f.type for f in fields(Format) if f.name not in ("name", "named")}
    values: dict[str, Any] = {}
    for key, value in table.items() if isinstance(table, dict) else ():
        is_text = isinstance(value, str) and key in kinds and key != "unused"
        listed = isinstance(value, list) and all(isinstance(part, str) for part in value)
        is_list = listed and "tuple" in str(kinds.get(key))
        is_table = key == "unused" and isinstance(value, dict)
        if not (is_text or is_list or is_table):
            raise PowerLogError(PowerMessage.FORMAT_KEY(file=file, name=name, key=key))
        if key in CHOICES and value not in CHOICES[key]:
            raise _wrong_choice(key, value)
        one_title = "tuple" in str(kinds[key]) and is_text
        values[key] = (value,) if one_title else tuple(value) if is_list else value
    try:
        for key in ("line", "first"):
            re.compile(values.get(key, ""))
    except re.error as error:
        raise PowerLogError(PowerMessage.FORMAT_FILE(file=file, reason=str(error))) from None
    if not values:
        raise PowerLogError(PowerMessage.FORMAT_KEY(file=file, name=name, key=""))
    return Format(name=name, **values)


def parse_columns(text: str) -> Format:
    """Parse `KEY=VALUE,...`; raise PowerLogError.

    Values of titles may have several, with plus signs between: watts=PSU 1 (W)+PSU 2 (W).
    """
    values: dict[str, Any] = {}
    for part in re.split(rf",(?=\s*(?:{'|'.join(KEYS)})\s*=)", text):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key not in KEYS:
            raise PowerLogError(PowerMessage.COLUMNS_KEY(part=printable(part, 80), keys=KEYS))
        if key in values:
            raise PowerLogError(PowerMessage.COLUMNS_TWICE(key=key))
        if key in CHOICES and value not in CHOICES[key]:
            raise _wrong_choice(key, value)
        values[key] = (value,) if key in TITLES else value
    return Format(**values, named=frozenset(values))


def _wrong_choice(key: str, value: object) -> PowerLogError:
    choices = tuple(CHOICES[key])
    return PowerLogError(
        PowerMessage.CHOICE(key=key, choices=choices, value=printable(str(value), 40))
    )
