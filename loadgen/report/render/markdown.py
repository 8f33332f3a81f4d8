"""A report as Markdown, for a page or a pull request; everything from outside is escaped."""

import re
from collections.abc import Iterable, Iterator, Sequence

from loadgen.plan.tables import Cell, DataTable, TableCell, as_cell
from loadgen.report.model import Block, Charts, Fold, Judged, Paragraph, Report
from loadgen.report.render.text import (
    COMMAND_CHARACTERS,
    NAME_CHARACTERS,
    NOTICE_CHARACTERS,
    name,
    text_of,
)

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~&$])")


def to_markdown(report: Report) -> bytes:
    """Return the report as UTF-8, without charts and folded parts."""
    lines = [f"# {escape(report.heading)}", "", *_blocks(report.lead)]
    for section in report.sections:
        lines += [f"## {escape(section.title)}", "", *_blocks(section.blocks)]
    return "\n".join(lines).encode()


def escape(text: object, limit: int = NAME_CHARACTERS) -> str:
    """Escape a text so that Markdown shows it literally, in a table cell too."""
    return _SPECIAL.sub(r"\\\1", name(text, limit))


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Paragraph():
                yield from _paragraph(block)
            case Judged():
                yield from _verdict(block)
            case DataTable():
                yield from _table(block)
            case Fold(title, folded, in_text=True):
                yield from (f"### {escape(title)}", "", *_blocks(folded))
            case Charts() | Fold():
                pass


def _paragraph(block: Paragraph) -> Iterator[str]:
    if block.style == "command":
        yield f"    {name(block.text, COMMAND_CHARACTERS)}"
    elif block.style in ("remark", "wrong"):
        yield f"**{escape(block.text, NOTICE_CHARACTERS)}**"
    else:
        yield escape(block.text, NOTICE_CHARACTERS)
    yield ""


def _verdict(entry: Judged) -> Iterator[str]:
    if entry.word:
        yield f"**{entry.word}** {escape(entry.title)}: {escape(entry.text)}"
        yield ""
    lines = [f"- {escape(code)}: {escape(detail)}" for code, detail in entry.reasons]
    lines += [f"- remark: {escape(remark)}" for remark in entry.remarks]
    yield from (*lines, "") if lines else ()


def _table(table: DataTable) -> Iterator[str]:
    if table.title:
        yield from (f"### {escape(table.title)}", "")
    if table.note:
        yield from (escape(table.note, NOTICE_CHARACTERS), "")
    if table.rows:
        yield from markdown_table(table.header, (tuple(map(_cell, row)) for row in table.rows))


def _cell(value: Cell | TableCell) -> str:
    cell = as_cell(value)
    if cell.value is None:
        return ""
    text = escape(" ".join(filter(None, (text_of(cell.value), cell.more))))
    notes = ", ".join(filter(None, cell.notes))
    return " ".join(
        filter(None, (text, escape(f"({notes})") if notes else "", escape(cell.remark)))
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose cells are escaped already."""
    return [
        f"| {' | '.join(map(escape, header))} |",
        f"|{'|'.join('---' for _ in header)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
