"""Kinds of scenario fields: each reads a value, from text or TOML, and checks its bounds.

    topics: Annotated[int, Count(1, 100_000)] = 10

The description of a field is in the TOML file next to its module.
"""

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from decimal import Decimal
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from loadgen import sentences
from loadgen.errors import ScenarioError
from loadgen.plan.rate_steps import read_steps
from loadgen.plan.thresholds import FORMS, parse_threshold
from loadgen.plan.units import (
    parse_address,
    parse_count,
    parse_number,
    parse_seconds,
    parse_size,
    shown,
)
from loadgen.sentences import PLAN_TEXT

Part = Literal["", "fleet", "schedule", "messages", "window"]
"""Parts of the shared fields: for every run (""), devices that differ only by group and number, a
schedule of messages, devices that exchange messages, and publishers in a closed loop."""

Load = Literal["", "amount", "kind", "none"]
"""Effect of a field on the load: `amount` sets the amount of work or of devices, `kind` makes a
workload that is not compared with others, `none` is for judgement, observation and names, "" for
others."""

TEXT_LIMIT = 4096
LIST_LIMIT = 1024


@dataclass(frozen=True)
class FieldKind:
    """The meaning of a scenario field and the values that it may hold."""

    _: KW_ONLY
    text: str = ""  # the help; of an optional field with the meaning of None at its end
    optional: bool = False
    part: Part = ""  # only cases of this part have the shared field
    panel: str = ""  # heading in the help text, "" for that of the case
    everyday: int = 0  # place in the short help text, 0 if only the full one has it
    short: str = ""  # short form of the option
    needs: tuple[str, ...] = ()  # options; without one of them it has no effect
    load: Load = ""
    per_run: bool = False  # devices that an earlier run connected can stay if it differs
    name: str = ""
    default: Any = None

    repeatable: ClassVar[bool] = False
    """True if the option may be given several times."""
    absent: ClassVar[str | None] = None
    """A word that stands for None."""
    unit: ClassVar[str] = ""
    """Unit of the default in a help text."""

    @property
    def option(self) -> str:
        return option_of(self.name)

    @property
    def metavar(self) -> str:
        """The placeholder for the value in a help text."""
        raise NotImplementedError

    @property
    def allowed(self) -> str:
        """The values that the field may hold, as the end of a sentence."""
        raise NotImplementedError

    @property
    def shown_default(self) -> str:
        """The default as a help text shows it, "" for None."""
        if self.default is None:
            return ""
        text = f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        return text + self.unit

    def read(self, value: object) -> object:
        """Return the value as the scenario holds it; raise ValueError if it is wrong."""
        if self.optional and value in (None, self.absent):
            return None
        if value is None:
            raise ValueError("no value is given")
        return self.parse(value)

    def parse(self, value: object) -> object:
        """Return `read` of a value that is given."""
        raise NotImplementedError

    def of_type(self, annotation: object) -> Self:
        """Return this kind for a field with a type, which may be None in a union."""
        return replace(self, optional=NoneType in get_args(annotation))

    def of_field(self, owner: type, name: str, info: FieldInfo) -> Self:
        """Return this kind for a field of a class, with the help of the class and its bases."""
        about: dict[str, Any] = {}
        for base in reversed(owner.__mro__[:-1]):
            row = help_of(base.__module__).get(name, {})
            about |= {"text": row} if isinstance(row, str) else row
        return replace(self.of_type(info.annotation), name=name, default=info.default, **about)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        read = self.of_type(source).read
        return core_schema.no_info_before_validator_function(read, handler(source))


def option_of(name: str) -> str:
    return "--" + name.replace("_", "-")


@cache
def help_of(module: str) -> Mapping[str, Any]:
    """Return the help of a module's fields, a text or a table, from the TOML file of its name."""
    package, _, name = module.rpartition(".")
    with suppress(OSError):
        rows: Mapping[str, Any] = sentences.read_table(package, f"{name}.toml").get("help", {})
        return rows
    return {}


# Numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity(FieldKind):
    """A number from `minimum` to `maximum`; "auto" means that the field is not given."""

    minimum: float = 0
    maximum: float = 0

    absent = "auto"
    metavar = "N"

    @property
    def allowed(self) -> str:
        return f"{self.range}, or auto" if self.optional else self.range

    @property
    def range(self) -> str:
        return f"a number from {self.minimum:,g} to {self.maximum:,.0f}"

    def parse(self, value: object) -> float:
        return self.bounded(value, parse_number(value))

    def bounded(self, value: object, number: float) -> float:
        if number < self.minimum:
            raise ValueError(f"{shown(value)} is too small")
        if number > self.maximum:
            raise ValueError(f"{shown(value)} is too large")
        return number


@dataclass(frozen=True)
class Count(Quantity):
    minimum: float = 1
    maximum: float = 1_000_000

    @property
    def range(self) -> str:
        return f"a whole number from {self.minimum:,} to {self.maximum:,}"

    def parse(self, value: object) -> int:
        # `parse_count` has a lower limit, and a seed may use all 63 bits of a TOML integer.
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            number = value
        elif isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
            number = int(value)
        else:
            number = parse_count(value)
        self.bounded(value, number)
        return number


@dataclass(frozen=True)
class Seconds(Quantity):
    """A time in seconds, with `whole_seconds` a whole number of them."""

    _: KW_ONLY
    whole_seconds: bool = False

    metavar = "TIME"
    unit = " s"

    @property
    def range(self) -> str:
        noun = "whole seconds" if self.whole_seconds else "a time"
        least = f"{Decimal(str(self.minimum)):f}"
        return f"{noun} from {least} to {self.maximum:,.0f} s (units: ms, s, m, h)"

    def parse(self, value: object) -> float:
        seconds = self.bounded(value, parse_seconds(value))
        if self.whole_seconds and seconds != int(seconds):
            raise ValueError(f"{shown(value)} is not in whole seconds")
        return seconds


class Size(Quantity):
    metavar = "BYTES"

    @property
    def range(self) -> str:
        return f"{self.minimum:,.0f} to {self.maximum:,.0f} bytes, or MIN-MAX such as 32-256"

    @property
    def shown_default(self) -> str:
        low, high = self.default
        return str(low) if low == high else f"{low}-{high}"

    def parse(self, value: object) -> tuple[int, int]:  # type: ignore[override]
        smallest, largest = parse_size(value)
        self.bounded(value, smallest)
        self.bounded(value, largest)
        return smallest, largest


# Words ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice(FieldKind):
    """A word from a short list: `choices`, by default those of the field's Literal type."""

    _: KW_ONLY
    choices: tuple[str, ...] = ()

    def of_type(self, annotation: object) -> Self:
        kind = super().of_type(annotation)
        literals = [
            part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal
        ]
        texts = tuple(text for literal in literals for text in get_args(literal))
        return kind if self.choices else replace(kind, choices=texts)

    @property
    def metavar(self) -> str:
        return "|".join(self.choices)

    @property
    def allowed(self) -> str:
        return " or ".join(filter(None, (", ".join(self.choices[:-1]), self.choices[-1])))

    def parse(self, value: object) -> str:
        text = str(value) if isinstance(value, (int, float)) and value is not True else value
        if isinstance(text, str) and text in self.choices:
            return text
        raise ValueError(f"{shown(value)} is not a choice")


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Flag(FieldKind):
    metavar = ""
    allowed = "true or false"

    @property
    def shown_default(self) -> str:
        return "on" if self.default else "off"

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _FLAGS:
            return _FLAGS[value.lower()]
        raise ValueError(f"{shown(value)} is neither true nor false")


@dataclass(frozen=True)
class TextLine(FieldKind):
    """One line of text; `word` is its placeholder in a help text."""

    word: str = "text"

    @property
    def metavar(self) -> str:
        return self.word.upper()

    allowed = "text of one line"

    def parse(self, value: object) -> object:
        return _line(value)


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    if not value.strip():
        raise ValueError("no value is given")
    if len(value) > TEXT_LIMIT:
        raise ValueError(f"the text is longer than {TEXT_LIMIT} characters")
    # A surrogate is an undecodable byte of the command line; neither fits into a TOML string.
    if any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in value) or any(
        0xD800 <= ord(character) < 0xE000 for character in value
    ):
        raise ValueError(f"{shown(redact_url(value))} contains control characters or is not UTF-8")
    return value


_SOURCE = re.compile(r"prompt|env:[A-Za-z_][A-Za-z0-9_]*|file:.+|command:.+")


class Secret(TextLine):
    """The source of a secret; the secret itself is not accepted as a value."""

    metavar = "SOURCE"
    allowed = "prompt, env:NAME, file:PATH or command:COMMAND"

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not _SOURCE.fullmatch(value):
            # The value is not shown because it may be the secret.
            raise ValueError("a secret is not accepted as a value")
        return _line(value)


class Texts(TextLine):
    """Several lines of text; a command line repeats the option for each."""

    repeatable = True

    @property
    def shown_default(self) -> str:
        return ", ".join(self.default)

    def parse(self, value: object) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ValueError(f"{shown(value)} is neither text nor a list of strings")
        if len(items) > LIST_LIMIT:
            raise ValueError(f"{len(items)} entries are more than {LIST_LIMIT}")
        return tuple(map(_line, items))


class Thresholds(Texts):
    allowed = FORMS

    def parse(self, value: object) -> tuple[str, ...]:
        texts = [part for text in super().parse(value) for part in text.split(",")]
        return tuple(parse_threshold(text).text for text in texts)


class Networks(TextLine):
    """Local addresses: one network, or one for each host."""

    allowed = "addresses of this host such as 127.0.0.0/16 or 192.0.2.7, with commas between hosts"

    def parse(self, value: object) -> str:
        networks = _line(value).split(",")
        try:
            return ",".join(str(ipaddress.ip_network(one.strip(), False)) for one in networks)
        except ValueError:
            raise ValueError(f"{shown(value)} is not an address or network") from None


class ListenAddress(TextLine):
    allowed = "HOST:PORT with a port from 1 to 65535, such as :9464, 0.0.0.0:9464 or [::]:9464"

    def parse(self, value: object) -> str:
        text = _line(value)
        parse_address(text)
        return text


_COLLECTOR = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]+)(:[0-9]{1,5})?(/\S*)?")


class Collector(TextLine):
    allowed = (
        "http:// or https:// with host, port and perhaps a path, such as http://127.0.0.1:4318"
    )

    def parse(self, value: object) -> str:
        text = _line(value)
        if "@" in text or "?" in text or "#" in text:
            # The text is not shown because it may contain a secret.
            raise ValueError(
                "a login or token has no place in the URL; set OTEL_EXPORTER_OTLP_HEADERS instead"
            )
        if not _COLLECTOR.fullmatch(text):
            raise ValueError(f"{shown(text)} is not the URL of a collector")
        return text


class MetricsPages(Texts):
    allowed = "a URL such as http://broker:9100/metrics, or command:COMMAND"

    def parse(self, value: object) -> tuple[str, ...]:
        pages = super().parse(value)
        for page in pages:
            is_url = "@" not in page and _COLLECTOR.fullmatch(page)
            if not is_url and not page.startswith("command:"):
                # It is not shown because it may contain a login.
                raise ValueError("a value is not a URL, or contains a login")
        return pages


class Placement(Texts):
    allowed = "a group and its hosts by number or label, such as publishers=0 subscribers=1,left"
    shown_default = "every group on all hosts"

    def parse(self, value: object) -> tuple[str, ...]:
        entries = [entry for text in super().parse(value) for entry in text.split()]
        for entry in entries:
            if not re.fullmatch(
                r"[A-Za-z0-9][A-Za-z0-9_.-]*=[A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*", entry
            ):
                raise ValueError(f"{shown(entry)} is not a group with its hosts")
        return tuple(entries)


class RateSteps(TextLine):
    allowed = "shares of the rate, with times if needed, such as 50%,75%:20s,100%"

    def parse(self, value: object) -> str:
        return read_steps(value)


class TableText(TextLine):
    """A table as canonical JSON text, so that equal tables have equal texts."""

    allowed = "a table in TOML or JSON"

    def parse(self, value: object) -> str:
        if isinstance(value, str):
            if len(value) > TEXT_LIMIT * 16:
                raise ValueError("the text is too long")
            value = _table_of_text(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"{shown(value)} is not a table")
        try:
            text = json.dumps(value, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                "it holds something other than text, numbers, lists and tables"
            ) from None
        if len(text) > TEXT_LIMIT * 16:
            raise ValueError("the table is too large")
        return text


def _table_of_text(text: str) -> object:
    for read in (json.loads, tomllib.loads):
        try:
            return read(text)
        except (ValueError, RecursionError):
            continue
    raise ValueError(f"{shown(text)} is neither JSON nor TOML")


def read_table(
    where: str, values: object, kinds: Mapping[str, FieldKind | Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the values of a table, each read by the kind, or as the table, of its name."""
    if not isinstance(values, Mapping):
        raise ScenarioError(
            PLAN_TEXT.NOT_A_TABLE(where=where, value=shown(values), keys=tuple(kinds))
        )
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            hint = did_you_mean(name, tuple(kinds))
            keys = () if hint else tuple(kinds)
            raise ScenarioError(
                PLAN_TEXT.UNKNOWN_LINE(where=where, key=shown(name), hint=hint, keys=keys)
            )
        kind, place = kinds[name], f"{where}.{name}"
        if not isinstance(kind, FieldKind):
            read[name] = read_table(place, value, kind)
            continue
        try:
            read[name] = kind.read(value)
        except ValueError as error:
            sentence = PLAN_TEXT.VALUE(option=place, fault=error.args[0], allowed=kind.allowed)
            raise ScenarioError(sentence) from None
    return read


def did_you_mean(value: object, known: tuple[str, ...]) -> str:
    """Return `; did you mean 'rate'?` with the closest known word, "" if none is close."""
    close = difflib.get_close_matches(str(value)[:TEXT_LIMIT], known, n=1) if value else []
    return f"; did you mean {close[0]!r}?" if close else ""


def redact_url(url: str) -> str:
    """Remove the password of a URL (`user:secret@` becomes `user@`); other text stays."""
    # Greedy, so that a password that should have been percent-encoded is removed, too.
    return re.sub(r"^((?:[^:/]*://)?+[^:@]*):.*@", r"\1@", url, flags=re.DOTALL)
