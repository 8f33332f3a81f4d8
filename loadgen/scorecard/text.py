"""Numbers and names as people read them."""

from loadgen.control.redaction import printable

__all__ = ["COMMAND_CHARACTERS", "NAME_CHARACTERS", "NOTICE_CHARACTERS", "name", "number"]

NAME_CHARACTERS = 300
"""Longest text of a broker, file or scenario that a rendering repeats."""

NOTICE_CHARACTERS = 2000
"""The same of a notice that must be shown whole, and of a sentence over a table."""

COMMAND_CHARACTERS = 4000
"""The same of a command line."""


def number(value: float | None) -> str:
    """A number for a table: thousands apart, about four significant digits; "" for None."""
    if value is None:
        return ""
    if isinstance(value, int) or float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}"
    return f"{value:.3g}"


def name(text: object, limit: int = NAME_CHARACTERS) -> str:
    """A text from outside in one printable, bounded line; a renderer escapes it on top."""
    return printable(str(text), limit)
