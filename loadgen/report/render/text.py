"""Numbers and names for readers, and the notice before them."""

import csv
import io
from collections.abc import Iterable, Sequence
from textwrap import wrap

from loadgen.cases.registry import CASES
from loadgen.sentences import printable

NAME_CHARACTERS = 300  # longest text of a broker, file or scenario that a rendering repeats
NOTICE_CHARACTERS = 2000
"""Longest notice, which must be shown in full, and longest sentence above a table."""
COMMAND_CHARACTERS = 4000  # longest command line
_WIDTH = 100


def notice_for(case: str) -> str:
    """Return the notice before any figure of this case's runs; "" for a case without one."""
    return CASES[case].notice if case in CASES else ""


def notice_lines(notice: str, width: int = _WIDTH) -> list[str]:
    """Return the notice as the first lines of a text, with an empty line after it."""
    return [*wrap(notice, min(width, _WIDTH)), ""] if notice else []


def number(value: float | None) -> str:
    """Return a number for a table: thousands separated, about four digits; "" for None."""
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:,.{1 if abs(value) >= 100 else 2}f}".removesuffix(".0").removesuffix(".00")
    return f"{value:.3g}"


# OWASP, "CSV Injection": a spreadsheet takes such a cell for a formula; some read the wide forms.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def text_of(value: str | float | None) -> str:
    return number(value) if isinstance(value, (int, float)) else name(value or "")


def cell(value: object) -> object:
    """Return the value for a CSV cell: numbers as they are, texts never as a formula."""
    if isinstance(value, (int, float)):
        return value
    text = "" if value is None else str(value)
    # The first character that is not a blank decides, and control characters do not survive.
    return f"'{name(text)}" if text.lstrip(" ").startswith(_FORMULA) else name(text)


def csv_of(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV: CRLF, numbers in full precision, empty cells for None."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    return table.getvalue()


def name(text: object, limit: int = NAME_CHARACTERS) -> str:
    """Return a text from outside in one printable, bounded line; renderers escape it."""
    return printable(str(text), limit)
