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
    found = _UNIT.fullmatch(text.strip())
    if found is not None:
        return _read(found, text)
    return OTHER if _OTHER_UNIT.fullmatch(text.strip()) else None


def unit_in(cell: str) -> tuple[Unit | None, str]:
    """Return the unit that a header cell states, and the cell without it.

    A unit in brackets has precedence, and a later unit over an earlier one. Raise ValueError for
    a unit that may be milli or mega, that has a number in its brackets, as in "(0.1 W)", or that
    is counted in tenths or divided by something.
    """
    for bracket in reversed([*_IN_BRACKETS.finditer(cell)]):
        inside = bracket[1]
        found = _UNIT.search(inside)
        unit = _read(found, cell) if found else None
        if found and re.search(r"\d", inside):
            raise ValueError(f"what does {inside!r} count?")
        if found:
            _require_whole(cell, found, inside)
        if unit is None and _OTHER_UNIT.fullmatch(inside):
            unit = OTHER
        if unit is not None:
            return unit, f"{cell[: bracket.start()]} {cell[bracket.end() :]}".strip()
    found = next(reversed([*_UNIT.finditer(cell)]), None)
    if found is None:
        return None, cell
    _require_whole(cell, found, cell)
    return _read(found, cell), f"{cell[: found.start()]} {cell[found.end() :]}".strip()


def _require_whole(cell: str, found: "re.Match[str]", around: str) -> None:
    """Raise ValueError if a cell multiplies or divides the unit that was `found` in `around`."""
    if _OF_ANOTHER_SIZE.search(cell) or _DIVIDED.match(around, found.end()):
        raise ValueError(f"what does {cell!r} count?")


def _read(found: "re.Match[str]", around: str) -> Unit:
    prefix, hours = (found["prefix"] or "").strip(" ._-\t"), bool(found["hours"])
    if prefix in ("m", "M"):
        # Only the case separates milli from mega, so the other letters must be in lower case.
        if found[0][1] == "w" or around == around.upper():
            raise ValueError(f"{found[0]!r} may be milli or mega")
        factor = 1e-3 if prefix == "m" else 1e6
    else:
        factor = _PREFIXES[prefix.casefold()]
    return Unit("energy", factor / 1e3) if hours else Unit("power", factor)
