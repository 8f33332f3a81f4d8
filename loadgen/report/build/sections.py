"""Tables that a score card shows below its figures.

A section is a small table that every rendering shows as it is. What a case alone observed comes
from its part of run.json; `observed.TABLES` says which of its keys become which table.
"""

from dataclasses import dataclass

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a heading and a sentence; `texts` are the places of columns that hold words."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: tuple[int, ...] = (0,)
