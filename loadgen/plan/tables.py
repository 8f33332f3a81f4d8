"""Tables as data, which every rendering of a report shows."""

from dataclasses import dataclass

TableCell = str | float | None


@dataclass(frozen=True, slots=True)
class Cell:
    value: TableCell
    notes: tuple[str, ...] = ()  # below it, in small print
    remark: str = ""  # a sentence about the row
    wrong: bool = False  # the cell is marked
    link: str = ""  # anchor of a section of the same report


@dataclass(frozen=True, slots=True)
class DataTable:
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell | TableCell, ...], ...]
    texts: tuple[int, ...] = (0,)  # places of columns that hold words
    look: str = ""  # style on a page: "score", "sweep", "sides" or "facts"


def as_cell(value: Cell | TableCell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)
