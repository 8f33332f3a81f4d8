"""Numbers of power logs, in the notation of any country. Pure.

A comma can be a decimal mark or separate thousands, and so can a point. The whole log decides:
"0,5", "12,34" and "1.100,5" are unambiguous, "1,100" alone is not. An ambiguous log is refused.
"""

import re
from dataclasses import dataclass

MISSING = frozenset(
    (
        *("", "-", "--", "---", "\u2013", "\u2014", "n/a", "na", "#n/a", "nan", "null", "none"),
        *("?", "not available", "unavailable", "unknown", "no data", "invalid", "[n/a]"),
        *("[not supported]", "<not counted>", "<not supported>", "undefined"),
    )
)
"""Cells that stand for a missing number, in lower case."""

_SPACES = " \u00a0\u202f\u2009'\u2019"
"""Separators of thousands besides commas and points: spaces of all kinds, and the apostrophe."""

_CELL = re.compile(
    rf"(?P<sign>[+-]?)(?P<digits>\d[\d.,{_SPACES}]*(?<![{_SPACES}])|[.,]\d+)"
    r"(?P<exponent>[eE][+-]?\d{1,3})?\s*(?P<unit>[^\d\s].*)?"
)
_WELL_FORMED = {
    mark: re.compile(
        rf"(?:\d+|\d{{1,3}}(?:(?P<part>[{_SPACES}{other}])\d{{3}}(?:(?P=part)\d{{3}})*)"
        # Indian notation: 1,35,000.
        rf"|\d{{1,2}}(?:{re.escape(other)}\d\d)+{re.escape(other)}\d{{3}})"
        rf"(?:{re.escape(mark)}\d*)?|{re.escape(mark)}\d+"
    )
    for mark, other in ((".", ","), (",", "."))
}
_THOUSANDS = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its decimal places and the text of its unit.

    `mark` is the decimal mark that the text proves, "" if it has none, "?" if it is ambiguous.
    """

    value: float
    places: int
    unit: str
    mark: str


def number_of(cell: str, mark: str) -> Number | None:
    """Return the number in a cell if its decimal mark is `mark`; None for any other text."""
    match = _CELL.fullmatch(cell)
    digits = match["digits"] if match else ""
    if match is None or not any(form.fullmatch(digits) for form in _WELL_FORMED.values()):
        return None
    proven = _mark_of(digits)
    unit = (match["unit"] or "").strip()
    if proven in (".", ",") and proven != mark:
        return Number(0.0, 0, unit, proven)
    other = "," if mark == "." else "."
    plain = re.sub(rf"[{_SPACES}{other}]", "", digits).replace(mark, ".")
    exponent = match["exponent"] or ""
    places = len(plain.partition(".")[2]) - int(exponent[1:] or 0)
    value = float(f"{match['sign']}{plain}{exponent}")
    return Number(value, places, unit, proven)


def _mark_of(digits: str) -> str:
    marks = re.findall("[.,]", digits)
    if not marks:
        return ""
    if len(marks) == 1:
        # A single mark that cannot separate thousands is decimal: "12,34", "1234,567", "0,135".
        return "?" if _THOUSANDS.fullmatch(digits) else str(marks[0])
    if marks[0] != marks[-1]:
        return str(marks[-1])
    # A repeated mark separates thousands, so the other one is the decimal mark.
    return "," if marks[0] == "." else "."
