"""What a field of a scenario may hold: its kind, its bounds, and how a value is read.

A spec reads a value however it was given, text from a command line or a number from TOML, bounds
it, and says in one line what is allowed.
"""

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from loadgen.workload.rate_steps import read_steps
from loadgen.workload.units import parse_count, parse_number, parse_seconds, parse_size, shown

__all__ = ["CASES", "Case", "FieldSpec", "did_you_mean", "redact_url"]

Case = Literal[
    "fanin",
    "fanout",
    "persistent",
    "latency",
    "connburst",
    "queue",
    "bridge",
    "request",
    "specjms",
]
CASES: tuple[Case, ...] = get_args(Case)

TEXT_LIMIT = 4096
LIST_LIMIT = 1024

Kind = Literal[
    "choice",
    "count",
    "rate",
    "ratio",
    "seconds",
    "size",
    "flag",
    "text",
    "texts",
    "network",
    "table",
    "steps",
]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What one scenario field means and what it may hold.

    `minimum` and `maximum` are in `unit`; `cases` are those that understand the field; `absent`
    says what None means and is empty where None is not allowed. `name` and `default` are filled
    from the model (`FIELDS`) or the case (`fields_of`).
    """

    kind: Kind
    description: str
    unit: str = ""
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    cases: tuple[Case, ...] = CASES
    absent: str = ""
    whole: bool = False
    name: str = ""
    default: object = None

    @property
    def option(self) -> str:
        """The command-line option of this field."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeatable(self) -> bool:
        """Whether the option may be given several times."""
        return self.kind == "texts"

    @property
    def allowed(self) -> str:
        """What the field may hold, as the end of a sentence."""
        match self.kind:
            case "choice":
                return " or ".join(self.choices)
            case "count":
                text = f"a whole number from {self.minimum:,.0f} to {self.maximum:,.0f}"
            case "rate" | "ratio":
                text = f"a number from {self.minimum:,g} to {self.maximum:,.0f}"
            case "seconds":
                whole = "whole seconds" if self.whole else "a time"
                text = f"{whole} from {self.minimum:g} to {self.maximum:,.0f} s (10, 500ms, 5m)"
            case "size":
                text = f"{self.minimum:,.0f} to {self.maximum:,.0f} bytes, or MIN-MAX as 32-256"
            case "flag":
                return "true or false"
            case "network":
                return "local addresses as 127.0.0.0/16 or 192.0.2.7"
            case "text" | "texts":
                return "text of one line"
            case "steps":
                return "shares of the rate, each with its time, as 50%,75%:20s,100%"
            case "table":
                return "a table as TOML or JSON has it"
        return f"{text}, or auto" if self.absent else text

    def read(self, value: object) -> object:
        """The value as the model holds it; ValueError says in one line what is wrong with it."""
        if value is None or (value == "auto" and self.kind in _BOUNDED and self.absent):
            if not self.absent:
                raise ValueError("nothing is given")
            return None
        return _READERS[self.kind](self, value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


def _within(spec: FieldSpec, value: object, number: float) -> None:
    if number < spec.minimum:
        raise ValueError(f"{shown(value)} is too small")
    if number > spec.maximum:
        raise ValueError(f"{shown(value)} is too large")


def _read_count(spec: FieldSpec, value: object) -> int:
    # Not through Decimal limits: a seed may use all 63 bits of a TOML integer.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        number = value
    elif isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        number = int(value)
    else:
        number = parse_count(value)
    _within(spec, value, number)
    return number


def _read_number(spec: FieldSpec, value: object) -> float:
    number = parse_number(value)
    _within(spec, value, number)
    return number


def _read_seconds(spec: FieldSpec, value: object) -> float:
    seconds = parse_seconds(value)
    _within(spec, value, seconds)
    if spec.whole and seconds != int(seconds):
        raise ValueError(f"{shown(value)} is not in whole seconds")
    return seconds


def _read_size(spec: FieldSpec, value: object) -> tuple[int, int]:
    smallest, largest = parse_size(value)
    _within(spec, value, smallest)
    _within(spec, value, largest)
    return smallest, largest


def _read_choice(spec: FieldSpec, value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) and value is not True else value
    if isinstance(text, str) and text in spec.choices:
        return text
    raise ValueError(f"{shown(value)} is not one of them{did_you_mean(value, spec.choices)}")


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_flag(_spec: FieldSpec, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    raise ValueError(f"{shown(value)} is neither true nor false")


def _read_text(_spec: FieldSpec, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    if not value.strip():
        raise ValueError("nothing is given")
    if len(value) > TEXT_LIMIT:
        raise ValueError(f"the text is longer than {TEXT_LIMIT} characters")
    # A surrogate is an undecodable byte of the command line; neither fits into a TOML string.
    if any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in value) or any(
        0xD800 <= ord(character) < 0xE000 for character in value
    ):
        raise ValueError(f"{shown(redact_url(value))} holds control or undecodable characters")
    return value


def _read_texts(spec: FieldSpec, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"{shown(value)} is neither text nor a list of texts")
    if len(items) > LIST_LIMIT:
        raise ValueError(f"{len(items)} entries are more than {LIST_LIMIT}")
    return tuple(_read_text(spec, item) for item in items)


def _read_network(spec: FieldSpec, value: object) -> str:
    text = _read_text(spec, value)
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"{shown(value)} is not an address or network") from None


def _table_of_text(text: str) -> object:
    """JSON, or the lines of a TOML table."""
    for read in (json.loads, tomllib.loads):
        try:
            return read(text)
        except (ValueError, RecursionError):
            continue
    raise ValueError(f"{shown(text)} is neither JSON nor TOML")


def _read_table(_spec: FieldSpec, value: object) -> str:
    """A table as canonical JSON text: equal tables are equal texts."""
    if isinstance(value, str):
        if len(value) > TEXT_LIMIT * 16:
            raise ValueError("the text is too long")
        value = _table_of_text(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a table")
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("it holds something that is no text, number, list or table") from None
    if len(text) > TEXT_LIMIT * 16:
        raise ValueError("the table is too large")
    return text


_BOUNDED = ("count", "rate", "ratio", "seconds")
_READERS: Mapping[Kind, Callable[[FieldSpec, object], object]] = {
    "choice": _read_choice,
    "count": _read_count,
    "rate": _read_number,
    "ratio": _read_number,
    "seconds": _read_seconds,
    "size": _read_size,
    "flag": _read_flag,
    "text": _read_text,
    "texts": _read_texts,
    "network": _read_network,
    "table": _read_table,
    "steps": lambda _spec, value: read_steps(value),
}


def did_you_mean(value: object, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(value)[:TEXT_LIMIT], known, n=1) if value else []
    return f"; did you mean {close[0]!r}?" if close else ""


def redact_url(url: str) -> str:
    """The URL without its password (`user:secret@` becomes `user@`); other text stays.

    Greedy on purpose: a password that should have been percent-encoded must not show either.
    """
    return re.sub(r"^((?:[^:/]*://)?+[^:@]*):.*@", r"\1@", url, flags=re.DOTALL)
