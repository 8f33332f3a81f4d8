"""Numbers, times and sizes in readable notation, from text or TOML; ValueErrors are one line."""

import math
import re
from decimal import Decimal

from loadgen.sentences import read_table

NUMBER_LIMIT = 10**15  # largest accepted number: no quantity of a load test is larger

SHOWN_CHARACTERS = 60

_NUMBER = re.compile(
    r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?) ?([A-Za-zµμ]*)", re.ASCII
)
_TEXT_LIMIT = 40

_UNITS = read_table("loadgen.plan", "units.toml")
_MULTIPLES: dict[str, int] = _UNITS["numbers"]
_SIZE_MULTIPLES: dict[str, int] = _MULTIPLES | _UNITS["bytes"]
_SECONDS = {unit: Decimal(seconds) for unit, seconds in _UNITS["seconds"].items()}


def shown(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """Format a value for a message: one printable line of at most `limit` characters."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of more than 77 digits"
    try:
        text = repr(value[: limit + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # a list with a huge integer or with deep nesting
        return "a list with too many levels or digits"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _parse(value: object, multiples: dict[str, int] | dict[str, Decimal], example: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{shown(value)} is not a {example}")
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise ValueError("no value is given")
        if re.match(r"-\s*[0-9.]", text):
            raise ValueError(f"{shown(value)} is negative")
        match = _NUMBER.fullmatch(text) if len(text) <= _TEXT_LIMIT else None
        if match is None:
            raise ValueError(f"{shown(value)} is not a {example}")
        multiple = multiples.get(match[2])
        if multiple is None:
            known = ", ".join(suffix for suffix in multiples if suffix)
            raise ValueError(f"{shown(value)} ends in an unknown unit (known: {known})")
        number = Decimal(match[1].replace("_", "")) * multiple
    else:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        if value < 0:
            raise ValueError(f"{shown(value)} is negative")
        # `repr` keeps 0.1 a tenth; an integer is limited first, for a huge one takes long to print.
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(min(value, 10**16))
    if number > NUMBER_LIMIT:
        raise ValueError(f"{shown(value)} is too large")
    return number


def _integer(value: object, number: Decimal, unit: str) -> int:
    if number != number.to_integral_value():
        raise ValueError(f"{shown(value)} is not a whole number{unit}")
    return int(number)


def parse_number(value: object) -> float:
    """Read a number of zero or more: `1000`, `"10k"`, `"2.5M"`, `"1e6"`, `"10_000"`."""
    return float(_parse(value, _MULTIPLES, "number such as 10k or 2.5M"))


def parse_count(value: object) -> int:
    """Read a whole number of zero or more, without rounding: `1000`, `"10k"`, `"2.5M"`."""
    return _integer(value, _parse(value, _MULTIPLES, "number such as 10k or 2.5M"), "")


def parse_seconds(value: object) -> float:
    """Read a time in seconds: `10`, `"500ms"`, `"5m"`, `"1h"`; the default unit is the second."""
    return float(_parse(value, _SECONDS, "time such as 500ms, 10s or 5m"))


def parse_bytes(value: object) -> int:
    """Read a whole number of bytes: `1024`, `"1KiB"`, `"64GiB"`."""
    return _integer(value, _parse(value, _SIZE_MULTIPLES, "size such as 32 or 32-256"), " of bytes")


def parse_size(value: object) -> tuple[int, int]:
    """Read smallest and largest size in bytes: `32`, `"32"`, `"32-256"`, `"1KiB"`, `(32, 256)`."""
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise ValueError(f"{shown(value)} is not a pair of a smallest and a largest size")
        low, high = value
    elif isinstance(value, str) and "-" in value.strip()[1:]:
        low, _, high = value.strip().partition("-")
    else:
        low = high = value
    smallest, largest = parse_bytes(low), parse_bytes(high)
    if smallest > largest:
        raise ValueError(f"{shown(value)} has its smallest size above its largest")
    return smallest, largest


def parse_address(value: object) -> tuple[str, int]:
    """Read HOST:PORT; an IPv6 address is in brackets, and HOST may be empty."""
    text = str(value)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ValueError(f"{shown(value)} has no port")
    if ":" in host and not (host[0] == "[" and host[-1] == "]"):
        raise ValueError(f"{shown(value)} has an address without brackets")
    return host.strip("[]"), int(port)
