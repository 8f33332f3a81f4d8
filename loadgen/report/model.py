"""A report as data: sections of text, tables and charts in reading order.

Builders make a report of runs, of a sweep or of a history. Each renderer walks the blocks and does
not depend on the subject of the report.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadgen.plan.tables import DataTable
from loadgen.report.score_card import ScoreCard


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or more; a "command" is shown letter by letter."""

    text: str
    style: Literal["", "muted", "remark", "wrong", "command"] = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict in one word, with reasons as (code, detail) and remarks.

    `title` names the run or the side, `text` is its headline and `link` the anchor of its section.
    Without a word only reasons and remarks are shown.
    """

    word: str
    reasons: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    title: str = ""
    text: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure ({"data", "layout"} of plotly), how to read it, and its numbers as CSV."""

    title: str
    note: str
    figure: Mapping[str, Any]
    table: str
    height: int = 320


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts that are drawn when a page shows them."""

    draw: Callable[[], Sequence[Chart]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page shows when the reader opens them; a text has them only if `in_text`."""

    title: str
    blocks: tuple["Block", ...]
    in_text: bool = False


Block = Paragraph | Judged | DataTable | Charts | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report; `verdict` is the word next to its title, "" for none.

    A page opens a `folded` section on request, and leaves out those that do not fit.
    """

    title: str
    blocks: tuple[Block, ...]
    anchor: str = ""
    verdict: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A document: a title, a lead, and `sections()`, which are made when they are rendered.

    `document` is the same for programs: its functions are called when it is written. `header` and
    `rows()` are the lines of a CSV file. `cards` are the runs whose histograms are exported.
    """

    title: str
    heading: str
    lead: tuple[Block, ...]
    sections: Callable[[], Iterable[Section]] = tuple
    document: Any = None
    header: tuple[str, ...] = ()
    rows: Callable[[], Iterable[Sequence[object]]] = tuple
    cards: tuple[ScoreCard, ...] = ()
