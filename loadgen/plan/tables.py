"""Tables as data, made by cases for the report of their runs and by the report's builders.

Every rendering of a report shows any table, so a case needs no code for one of them.
"""

from dataclasses import dataclass

TableCell = str | float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell; `notes` are below its value in small print, and `remark` is about its row.

    A `wrong` cell is marked. `link` is the anchor of a section of the same report.
    """

    value: TableCell
    notes: tuple[str, ...] = ()
    remark: str = ""
    wrong: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table with a heading and a sentence; `texts` are the places of columns that hold words.

    `look` names the style of a page's table: "score", "sweep", "sides" or "facts".
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell | TableCell, ...], ...]
    texts: tuple[int, ...] = (0,)
    look: str = ""


def as_cell(value: Cell | TableCell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)
