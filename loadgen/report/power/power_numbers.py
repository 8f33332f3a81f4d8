"""Numbers of power logs, in the notation of any country. Pure.

A comma can be a decimal mark or separate thousands, and so can a point. The whole log decides:
"0,5", "12,34" and "1.100,5" are unambiguous, "1,100" alone is not. An ambiguous log is refused.
"""

import re
from dataclasses import dataclass

import pandas as pd

MISSING = (
    *("", "-", "--", "---", "\u2013", "\u2014", "n/a", "na", "#n/a", "nan", "null", "none", "?"),
    *("not available", "unavailable", "no data", "invalid"),
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


@dataclass(frozen=True, slots=True)
class Numbers:
    """Cells as numbers, NaN for other text, with their decimal places and the text of the unit."""

    values: "pd.Series[float]"
    decimals: "pd.Series[int]"
    units: "pd.Series[str]"


def numbers_of(cells: "pd.Series[str]", mark: str) -> Numbers:
    """Return the numbers in these cells, whose decimal mark is `mark`; NaN for other text."""
    parts = cells.str.extract(rf"^{_CELL.pattern}$").fillna("")
    fine = parts["digits"].str.fullmatch(_WELL_FORMED[mark].pattern)
    digits = parts["digits"].where(fine, "")
    other = "," if mark == "." else "."
    plain = digits.str.replace(rf"[{_SPACES}{re.escape(other)}]", "", regex=True)
    if mark == ",":
        plain = plain.str.replace(",", ".", regex=False)
    texts = (parts["sign"] + plain + parts["exponent"]).where(fine, "nan")
    decimals = plain.str.partition(".")[2].str.len().fillna(0).astype(int)
    return Numbers(texts.astype(float), decimals, parts["unit"].str.strip())


def marks_in(cells: "pd.Series[str]") -> tuple[dict[str, int], int | None]:
    """Return the decimal marks that cells prove, and the first ambiguous cell.

    A proven mark comes with the index of the first cell that proves it. The index of the first
    ambiguous cell is None if all are clear.
    """
    digits = cells.str.extract(rf"^{_CELL.pattern}$")["digits"].dropna()
    formed = [digits.str.fullmatch(pattern.pattern) for pattern in _WELL_FORMED.values()]
    digits = digits[digits.str.contains("[.,]", regex=True) & (formed[0] | formed[1])]
    last = digits.str.extract(r"([.,])[^.,]*$")[0]
    first = digits.str.extract(r"^[^.,]*([.,])")[0]
    many = digits.str.count("[.,]") > 1
    before = digits.str.extract(r"^([^.,]*)")[0]
    after = digits.str.extract(r"([^.,]*)$")[0]
    # A single mark that cannot separate thousands is decimal: "12,34", "1234,567", "0,135".
    could_part = (after.str.len() == 3) & before.str.fullmatch(r"[1-9]\d{0,2}")
    mark = last.where(many & (first != last) | ~many & ~could_part, "")
    # A repeated mark separates thousands, so the other one is the decimal mark.
    mark = mark.where(~(many & (first == last)), last.map({".": ",", ",": "."}))
    proven = {one: int(mark.index[mark == one][0]) for one in (".", ",") if (mark == one).any()}
    unclear = mark.index[mark == ""]
    return proven, int(unclear[0]) if len(unclear) else None
