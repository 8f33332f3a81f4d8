"""Makes of power logs as data: how a log is recognised, and the columns that it has."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from loadgen.errors import PowerLogError
from loadgen.report.power.units import UNITS
from loadgen.sentences import POWER_TEXT, printable, read_table

FIGURES = {"watts": "power", "kwh": "energy", "interval": "energy"}
"""Keys of columns with figures, and the quantities of their units."""
TITLES = (*FIGURES, "time", "date", "outlet", "series", "value", "units")
"""Keys whose values are titles of columns."""
CHOICES: Mapping[str, Sequence[str]] = {
    "unit": [name for name, unit in UNITS.items() if unit.kind == "power"],
    "counter_unit": [name for name, unit in UNITS.items() if unit.kind == "energy"],
    "decimal": ["point", "comma"],
    "dates": ["dmy", "mdy", "ymd"],
    "stamp": ["start", "end"],
    "hold": ["change"],
}
KEYS = (*TITLES, *CHOICES, "format", "start")  # keys of `--pdu-columns`, and of a format

INSTEAD = (
    ({"time", "date"}, {"time", "date"}),
    ({"outlet"}, {"outlet"}),
    ({*FIGURES, "series", "value"}, {*FIGURES}),
    ({"series", "value"}, {"series", "value"}),
)
"""If a user gives one of the first keys, a make's values of the second keys are dropped."""


_ONE_OR_MORE = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
Titles = Annotated[tuple[str, ...], _ONE_OR_MORE]


@dataclass(frozen=True, slots=True)
class Format:
    """A make of power logs, or a user's description of one; the keys are those of `makes.toml`.

    `named` are the keys that the user gave. `logs` is a pattern of the files that a user's format
    is for, "" for all that have its header.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    header: Titles = ()
    line: str = ""
    time: Titles = ()
    date: Titles = ()
    outlet: Titles = ()
    series: Titles = ()
    value: Titles = ()
    units: Titles = ()
    watts: Titles = ()
    kwh: Titles = ()
    interval: Titles = ()
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
    name: str = ""

    def with_options(self, options: "Format") -> "Format":
        """Return the format with the keys of the user."""
        values: dict[str, Any] = {}
        for keys, instead in INSTEAD:
            if keys & options.named:
                values |= dict.fromkeys(instead, ())
        values |= {key: getattr(options, key) for key in options.named}
        return replace(self, **values, named=options.named)

    def fits(self, titles: Sequence[str]) -> bool:
        """Return True if a log with these titles is of this make."""
        if self.header:
            return all(any(is_like(title, pattern) for title in titles) for pattern in self.header)
        figures = (*self.watts, *self.kwh, *self.interval, *self.value)
        return not self.line and any(is_like(t, pattern) for t in titles for pattern in figures)


NO_OPTIONS = Format()
_FORMAT = TypeAdapter(Format)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    wild = re.escape(pattern).replace(re.escape("*"), ".*").replace(re.escape("{n}"), r"\d+")
    return re.compile(wild, re.IGNORECASE)


def is_like(title: str, pattern: str) -> bool:
    """Return True for a title that equals a pattern; * stands for any text, {n} for a number."""
    return title.casefold() == pattern.casefold() or bool(_expression(pattern).fullmatch(title))


@cache
def makes() -> tuple[Format, ...]:
    tables = read_table("loadgen.report.power", "makes.toml")
    return tuple(_format(name, table, "makes.toml") for name, table in tables.items())


def read_formats(path: Path) -> tuple[Format, ...]:
    """Return the formats of a user's file; raise PowerLogError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        formats = tuple(_format(name, table, str(path)) for name, table in document.items())
        for form in formats:
            re.compile(form.line)
    except (OSError, ValueError, re.error) as error:
        reason = printable(str(getattr(error, "strerror", None) or error), 120).lower()
        raise PowerLogError(POWER_TEXT.FORMAT_FILE(file=path, reason=reason)) from None
    return formats


def _format(name: str, table: Any, file: str) -> Format:
    try:
        form = replace(_FORMAT.validate_python(table), name=name)
    except ValidationError as error:
        places = error.errors()[0]["loc"]
        key = str(places[0]) if places else ""
        raise PowerLogError(POWER_TEXT.FORMAT_KEY(file=file, name=name, key=key)) from None
    if not table:
        raise PowerLogError(POWER_TEXT.FORMAT_KEY(file=file, name=name, key=""))
    for key, choices in CHOICES.items():
        value = getattr(form, key)
        if value and value not in choices:
            values = {"choices": tuple(choices), "value": printable(value, 40)}
            raise PowerLogError(POWER_TEXT.CHOICE(key=key, **values))
    return form


def parse_columns(text: str) -> Format:
    """Parse `KEY=VALUE,...` of `--pdu-columns`; raise PowerLogError."""
    values: dict[str, Any] = {}
    for part in re.split(rf",(?=\s*(?:{'|'.join(KEYS)})\s*=)", text):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key not in KEYS:
            raise PowerLogError(POWER_TEXT.COLUMNS_KEY(part=printable(part, 80), keys=KEYS))
        if key in values:
            raise PowerLogError(POWER_TEXT.COLUMNS_TWICE(key=key))
        values[key] = value
    return replace(_format("", values, ""), named=frozenset(values))
