"""Units of power and energy in headers and cells of power logs. Pure."""

import re
from dataclasses import dataclass
from typing import Literal

_PREFIXES = {"": 1.0, "k": 1e3, "kilo": 1e3, "d": 0.1, "deci": 0.1, "milli": 1e-3, "mega": 1e6}
_SPELLED = (
    r"(?P<prefix>(?:kilo|milli|mega|deci)[\s._-]?(?=watt)|[kmd])?"
    r"(?:watts?|w)(?P<hours>[\s._·*-]?(?:hours?|hrs?|h))?"
)
_UNIT = re.compile(rf"(?<![^\W_]){_SPELLED}(?![^\W_])", re.IGNORECASE)
"""A unit of power or energy without a letter or digit directly before or after it."""

_OTHER = (
    r"[km]?(?:VA|VAR|V|A)h?|amp(?:ere)?s?|volts?|Hz|%|percent|°?\s?[CF]|BTU(?:/h)?|PF|rpm|cos ?φ"
)
_OTHER_UNIT = re.compile(_OTHER, re.IGNORECASE)
_OF_ANOTHER_SIZE = re.compile(
    r"\b(?:ten|hundred|thousand)ths?\b|\b(?:zehn|hundert|tausend)stel\b"
    r"|(?:(?<!\d)[x×*/]|\b10\^)\s*(?:-\d|0[.,]0*1\b|10+\b)|\b1\s?/\s?10+\s?[km]?W",
    re.IGNORECASE,
)
"""A factor next to a unit: "tenths of W", "W x10", "1/100 kWh"; not a number, as "Outlet 4/10"."""
_DIVIDED = re.compile(r"\s*(?:/|per\b)\s*\w", re.IGNORECASE)
"""A divisor after a unit: "W/m", "kWh per day"."""
_IN_BRACKETS = re.compile(r"[(\[]\s*([^()\[\]]*?)\s*[)\]]")


@dataclass(frozen=True, slots=True)
class Unit:
    """Quantity of a unit, and the `factor` that converts it to watts or kilowatt-hours."""

    kind: Literal["power", "energy", "other"]
    factor: float = 1.0


OTHER = Unit("other")
WATT = Unit("power")
KILOWATT_HOUR = Unit("energy")

UNITS = {
    "W": WATT,
    "kW": Unit("power", 1e3),
    "mW": Unit("power", 1e-3),
    "Wh": Unit("energy", 1e-3),
    "kWh": KILOWATT_HOUR,
    "MWh": Unit("energy", 1e3),
}
"""Units that an option can name for a log that does not state them."""


def unit_of(text: str) -> Unit | None:
    """Return the unit of a text such as "kW", "Watt-hours" or "V"; None for any other text.

    Raise ValueError for a unit that may be milli or mega.
    """
    match = _UNIT.fullmatch(text.strip())
    if match is not None:
        return _read(match, text)
    return OTHER if _OTHER_UNIT.fullmatch(text.strip()) else None


def unit_in(cell: str) -> tuple[Unit | None, str]:
    """Return the unit that a header cell states, and the cell without it.

    A unit in brackets has precedence, and a later unit over an earlier one. Raise ValueError for
    a unit that may be milli or mega, that has a number in its brackets, as in "(0.1 W)", or that
    is counted in tenths or divided by something.
    """
    for bracket in reversed([*_IN_BRACKETS.finditer(cell)]):
        inside = bracket[1]
        match = _UNIT.search(inside)
        unit = _read(match, cell) if match else None
        if match and re.search(r"\d", inside):
            raise ValueError(f"what does {inside!r} count?")
        if match:
            _require_whole(cell, match, inside)
        if unit is None and _OTHER_UNIT.fullmatch(inside):
            unit = OTHER
        if unit is not None:
            return unit, f"{cell[: bracket.start()]} {cell[bracket.end() :]}".strip()
    match = next(reversed([*_UNIT.finditer(cell)]), None)
    if match is None:
        return None, cell
    _require_whole(cell, match, cell)
    return _read(match, cell), f"{cell[: match.start()]} {cell[match.end() :]}".strip()


def _require_whole(cell: str, match: "re.Match[str]", around: str) -> None:
    """Raise ValueError if a cell multiplies or divides the unit that was `match` in `around`."""
    if _OF_ANOTHER_SIZE.search(cell) or _DIVIDED.match(around, match.end()):
        raise ValueError(f"what does {cell!r} count?")


def _read(match: "re.Match[str]", around: str) -> Unit:
    prefix, hours = (match["prefix"] or "").strip(" ._-\t"), bool(match["hours"])
    if prefix in ("m", "M"):
        # Only the case separates milli from mega, so the other letters must be in lower case.
        if match[0][1] == "w" or around == around.upper():
            raise ValueError(f"{match[0]!r} may be milli or mega")
        factor = 1e-3 if prefix == "m" else 1e6
    else:
        factor = _PREFIXES[prefix.casefold()]
    return Unit("energy", factor / 1e3) if hours else Unit("power", factor)
