"""Words, numbers and units in titles and cells of power logs, in the notation of any country.

A comma can be a decimal mark or separate thousands, and so can a point. The whole log decides:
"0,5", "12,34" and "1.100,5" are unambiguous, "1,100" alone is not. An ambiguous log is refused.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from loadgen.sentences import read_table

_FOLDER = "loadgen.report.power"
_SPACES = " \u00a0\u202f\u2009'\u2019"


@cache
def words(key: str) -> frozenset[str]:
    value = read_table(_FOLDER, "words.toml")[key]
    return frozenset(value.split() if isinstance(value, str) else value)


@cache
def expression(key: str, mark: str = ".") -> re.Pattern[str]:
    """Return an expression of `patterns.toml`; `mark` is the decimal mark of numbers."""
    patterns = read_table(_FOLDER, "patterns.toml")
    values = {"month": patterns["month"], "space": _SPACES.replace(" ", "\\ "), "mark": mark}
    text = patterns[key]
    for name, value in (values | {"other": ",.".replace(mark, "")}).items():
        text = text.replace(f"{{{name}}}", value)
    return re.compile(text)


def is_value(cell: str) -> bool:
    """Return False for a cell that stands for a missing number."""
    return cell.casefold() not in words("missing")


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its decimal places and the text of its unit.

    `mark` is the decimal mark that the text proves, "" if it has none, "?" if it is ambiguous.
    """

    value: float
    places: int
    unit: str
    mark: str


def number_of(cell: str, ambiguous: str = ".") -> Number | None:
    """Return the number in a cell, None for another text; `ambiguous` is the mark of "1,100"."""
    match = expression("number").fullmatch(cell)
    if match is None:
        return None
    digits, exponent = match["digits"], match["exponent"] or ""
    read = {
        mark: re.sub(rf"[^\d{mark}]", "", digits).replace(mark, ".")
        for mark in ".,"
        if expression("digits", mark).fullmatch(digits)
    }
    if not read:
        return None
    # One mark that reads a number proves itself, such as in "12,34", "0,135" and "1.100.000".
    mark = next(iter(read)) if len(read) == 1 else "?" if re.search("[.,]", digits) else ""
    plain = read.get(mark, "") or read[ambiguous]
    places = len(plain.partition(".")[2]) - int(exponent[1:] or 0)
    value = float(f"{match['sign']}{plain}{exponent}")
    return Number(value, places, (match["unit"] or "").strip(), mark)


@dataclass(frozen=True, slots=True)
class Unit:
    """Quantity of a unit, and the `factor` that converts it to watts or kilowatt-hours.

    `problem` is "prefix" if the unit may be milli or mega, and "scaled" if the title counts
    tenths of it, divides it by something, or has a prefix that is not read.
    """

    kind: Literal["power", "energy", "other"]
    factor: float = 1.0
    problem: Literal["", "prefix", "scaled"] = ""


_PREFIXES = {"": 1.0, "k": 1e3, "kilo": 1e3, "mega": 1e6, "d": 0.1, "deci": 0.1, "milli": 1e-3}
_PREFIXES |= dict.fromkeys(("u", "µ", "μ", "micro"), 1e-6)
_JOULE_IN_KWH = 1 / 3.6e6
_TIMES_OF_WATTS = {"h": 1e-3, "m": 1 / 60e3, "s": _JOULE_IN_KWH}
"""Kilowatt-hours of a watt over an hour, a minute and a second, by the first letter of the time."""
_OTHER = Unit("other")


def unit_of(text: str) -> Unit | None:
    """Return the unit of a text such as "kW", "Watt-hours" or "V"; None for any other text."""
    match = expression("unit").fullmatch(text.strip())
    if match is not None:
        return _read(match, text)
    return _OTHER if expression("other_unit").fullmatch(text.strip()) else None


def unit_in(title: str) -> tuple[Unit | None, str]:
    """Return the unit that a title states, and the title without it.

    A unit in brackets has precedence, and a later unit over an earlier one.
    """
    title = expression("joined").sub(r" \g<0>", title)
    for bracket in reversed([*expression("in_brackets").finditer(title)]):
        inside = bracket[1]
        unit = _OTHER if expression("other_unit").fullmatch(inside) else None
        if expression("rare_prefix").fullmatch(inside):
            unit = Unit("power", problem="scaled")
        if match := expression("unit").search(inside):
            unit = _in_title(match, title)
            if re.search(r"\d", inside):
                unit = replace(unit, problem="scaled")
        if unit is not None:
            return unit, f"{title[: bracket.start()]} {title[bracket.end() :]}".strip()
    if expression("ends_in_other").search(title):
        return _OTHER, title
    # A lone J in a longer title is a name, such as that of a rack.
    matches = expression("unit").finditer(title)
    units = [match for match in matches if match[0] not in ("J", "j") or match[0] == title]
    if not units:
        return None, title
    before = re.sub(r"\bin\s*$", "", title[: units[-1].start()])
    return _in_title(units[-1], title), f"{before} {title[units[-1].end() :]}".strip()


def _in_title(match: re.Match[str], title: str) -> Unit:
    unit = _read(match, title)
    if expression("scaled").search(title) or expression("divided").match(match.string, match.end()):
        return replace(unit, problem="scaled")
    return unit


def _read(match: re.Match[str], around: str) -> Unit:
    prefix = (match["prefix"] or "").strip(" ._-\t")
    problem: Literal["", "prefix"] = ""
    if prefix in ("m", "M"):
        # Only the case separates milli from mega, so the other letters must be in lower case.
        problem = "prefix" if match[0][1] in "wj" or around == around.upper() else ""
        factor = 1e-3 if prefix == "m" else 1e6
    else:
        factor = _PREFIXES[prefix.casefold()]
    if match["joule"] and not match["per_second"]:
        return Unit("energy", factor * _JOULE_IN_KWH, problem)
    if match["time"]:
        return Unit("energy", factor * _TIMES_OF_WATTS[match["time"][0].lower()], problem)
    return Unit("power", factor, problem)


UNITS = {
    name: replace(unit, problem="")
    for name in (
        *("W", "kW", "MW", "mW", "µW", "uW"),
        *("Wh", "kWh", "MWh", "Wmin", "J", "kJ", "mJ", "µJ", "uJ"),
    )
    if (unit := unit_of(name)) is not None
}
"""Units that an option or a format can name for a log that does not state them."""
