"""Units of power and energy in titles and cells of power logs. Pure."""

import re
from dataclasses import dataclass
from typing import Literal

_PREFIXES = {"": 1.0, "k": 1e3, "kilo": 1e3, "mega": 1e6, "d": 0.1, "deci": 0.1, "milli": 1e-3}
_PREFIXES |= dict.fromkeys(("u", "µ", "μ", "micro"), 1e-6)
_JOULE_IN_KWH = 1 / 3.6e6
_TIMES_OF_WATTS = {"h": 1e-3, "m": 1 / 60e3, "s": _JOULE_IN_KWH}
"""Kilowatt-hours of a watt over an hour, a minute and a second, by the first letter of the time."""

_UNIT = re.compile(
    r"(?<![^\W_])(?P<prefix>(?:kilo|mega|deci|milli|micro)[\s._-]?(?=watt|joule)|[kmduµμ])?"
    r"(?:(?P<watt>watts?|w)(?:[\s._·*-]?(?P<time>hours?|hrs?|h|minutes?|min|seconds?|sec|s))?"
    r"|(?P<joule>joules?|j)(?P<per_second>\s?/\s?s(?:ec)?)?)(?![^\W_])",
    re.IGNORECASE,
)
"""A unit of power or energy without a letter or digit directly before or after it."""

_OTHER_UNIT = re.compile(
    r"[kmµu]?(?:VA|VAR|V|A)h?|[kmd]?(?:V[\s·.*-]A)|(?:kilo|milli)?(?:amp(?:ere)?s?|volts?)"
    r"|volt[\s-]?amp(?:ere)?s?|[kMG]?Hz|%|percent|°?\s?[CF]|BTU(?:/h)?|hp|PF|rpm|cos ?φ|dBm"
    r"|m?s|sec(?:onds?)?|min(?:utes?)?|h(?:ours?)?",
    re.IGNORECASE,
)
_ENDS_IN_OTHER = re.compile(
    r"(?:^|[\s_,.])(?:[km]?VA|[km]?VAR|mA|mV|kV|V A|BTU/h|%)$", re.IGNORECASE
)
_OF_ANOTHER_SIZE = re.compile(
    r"\b(?:ten|hundred|thousand)ths?\b|\b(?:zehn|hundert|tausend)stel\b"
    r"|(?:(?<!\d)[x×*/]|\b10\^)\s*(?:-\d|0[.,]0*1\b|10+\b)|\b1\s?/\s?10+\s?[km]?W",
    re.IGNORECASE,
)
"""A factor next to a unit: "tenths of W", "W x10", "1/100 kWh"; not a number, as "Outlet 4/10"."""
_DIVIDED = re.compile(r"\s*(?:/|per\b)\s*\w", re.IGNORECASE)
"""A divisor after a unit: "W/m", "kWh per day"."""
_IN_BRACKETS = re.compile(r"[(\[]\s*([^()\[\]]*?)\s*[)\]]")
_JOINED = re.compile(r"(?<=[a-z]{2})(kWh?|MWh|Wh|(?:Kilo|Milli|Micro)?(?:Watt|Joule)s?)(?![a-z])")
"""A unit at the end of a joined word, as in PkgWatt and EnergykWh."""


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
    "MW": Unit("power", 1e6),
    "mW": Unit("power", 1e-3),
    "µW": Unit("power", 1e-6),
    "uW": Unit("power", 1e-6),
    "Wh": Unit("energy", 1e-3),
    "kWh": KILOWATT_HOUR,
    "MWh": Unit("energy", 1e3),
    "Wmin": Unit("energy", 1 / 60e3),
    "J": Unit("energy", _JOULE_IN_KWH),
    "kJ": Unit("energy", 1e3 * _JOULE_IN_KWH),
    "mJ": Unit("energy", 1e-3 * _JOULE_IN_KWH),
    "µJ": Unit("energy", 1e-6 * _JOULE_IN_KWH),
    "uJ": Unit("energy", 1e-6 * _JOULE_IN_KWH),
}
"""Units that an option or a format can name for a log that does not state them."""


def unit_of(text: str) -> Unit | None:
    """Return the unit of a text such as "kW", "Watt-hours" or "V"; None for any other text.

    Raise ValueError for a unit that may be milli or mega.
    """
    match = _UNIT.fullmatch(text.strip())
    if match is not None:
        return _read(match, text)
    return OTHER if _OTHER_UNIT.fullmatch(text.strip()) else None


def is_unit(text: str) -> bool:
    """Return True for a unit of power or energy, also if its prefix is ambiguous."""
    return _UNIT.fullmatch(text.strip()) is not None


def unit_in(title: str) -> tuple[Unit | None, str]:
    """Return the unit that a title states, and the title without it.

    A unit in brackets has precedence, and a later unit over an earlier one. Raise ValueError for
    a unit that may be milli or mega, that has a number in its brackets, as in "(0.1 W)", or that
    is counted in tenths or divided by something.
    """
    title = _JOINED.sub(r" \1", title)
    for bracket in reversed([*_IN_BRACKETS.finditer(title)]):
        inside = bracket[1]
        match = _UNIT.search(inside)
        unit = _read(match, title) if match else None
        if match:
            if re.search(r"\d", inside):
                raise ValueError(inside)
            _require_undivided(title, match, inside)
        if unit is None and _OTHER_UNIT.fullmatch(inside):
            unit = OTHER
        if unit is not None:
            return unit, f"{title[: bracket.start()]} {title[bracket.end() :]}".strip()
    if _ENDS_IN_OTHER.search(title):
        return OTHER, title
    # A lone J in a longer title is a name, such as that of a rack.
    units = [m for m in _UNIT.finditer(title) if m[0] not in ("J", "j") or m[0] == title]
    if not units:
        return None, title
    match = units[-1]
    _require_undivided(title, match, title)
    before = re.sub(r"\bin\s*$", "", title[: match.start()])
    return _read(match, title), f"{before} {title[match.end() :]}".strip()


def has_strange_unit(title: str) -> bool:
    """Return True if a title has brackets, or a lone A or V at its end, that may be a unit."""
    lone = re.search(r"[\s_](?:A|V)$", title) and not re.search(r"outlet|power|psu", title, re.I)
    return bool(lone) or any(re.search(r"[^\W\d]", b[1]) for b in _IN_BRACKETS.finditer(title))


def _require_undivided(title: str, match: "re.Match[str]", around: str) -> None:
    """Raise ValueError if a title multiplies or divides the unit that was `match` in `around`."""
    if _OF_ANOTHER_SIZE.search(title) or _DIVIDED.match(around, match.end()):
        raise ValueError(title)


def _read(match: "re.Match[str]", around: str) -> Unit:
    prefix = (match["prefix"] or "").strip(" ._-\t")
    if prefix in ("m", "M"):
        # Only the case separates milli from mega, so the other letters must be in lower case.
        if match[0][1] in "wj" or around == around.upper():
            raise ValueError(match[0])
        factor = 1e-3 if prefix == "m" else 1e6
    else:
        factor = _PREFIXES[prefix.casefold()]
    if match["joule"]:
        per_second = match["per_second"]
        return Unit("power", factor) if per_second else Unit("energy", factor * _JOULE_IN_KWH)
    time = match["time"]
    return (
        Unit("energy", factor * _TIMES_OF_WATTS[time[0].lower()]) if time else Unit("power", factor)
    )
