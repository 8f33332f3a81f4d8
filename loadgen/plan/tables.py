"""Tables as data: what a case adds to the report of its runs, and what the report's builders make.

A table is shown by every rendering of the report, so a case needs no code for any of them.
"""

from dataclasses import dataclass

TableCell = str | float | None


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table with a heading and a sentence; `texts` are the places of columns that hold words."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    texts: tuple[int, ...] = (0,)
