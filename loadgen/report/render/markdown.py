"""A report as Markdown, for a page or a pull request; everything from outside is escaped."""

import re
from collections.abc import Iterable, Iterator

from loadgen.plan.tables import Cell, DataTable, TableCell, as_cell
from loadgen.report.model import Block, Fold, Judged, Paragraph, Report
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
    for section in report.sections():
        lines += [f"## {escape(section.title)}", "", *_blocks(section.blocks)]
    return "\n".join(lines).encode()


def escape(text: object, limit: int = NAME_CHARACTERS) -> str:
    """Escape a text so that Markdown shows it literally, in a table cell too."""
    return _SPECIAL.sub(r"\\\1", name(text, limit))


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Paragraph(text, "command"):
                yield from (f"    {name(text, COMMAND_CHARACTERS)}", "")
            case Paragraph(text, style):
                bold = "**" if style in ("remark", "wrong") else ""
                yield from (f"{bold}{escape(text, NOTICE_CHARACTERS)}{bold}", "")
            case Judged(word, reasons, remarks, title, text):
                if word:
                    yield from (f"**{word}** {escape(title)}: {escape(text)}", "")
                lines = [f"- {escape(code)}: {escape(detail)}" for code, detail in reasons]
                lines += [f"- remark: {escape(remark)}" for remark in remarks]
                yield from (*lines, "") if lines else ()
            case DataTable(title, note, header, rows):
                yield from (f"### {escape(title)}", "") if title else ()
                yield from (escape(note, NOTICE_CHARACTERS), "") if note else ()
                if rows:
                    yield f"| {' | '.join(map(escape, header))} |"
                    yield f"|{'|'.join('---' for _ in header)}|"
                    yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)
                    yield ""
            case Fold(title, folded, in_text=True):
                yield from (f"### {escape(title)}", "", *_blocks(folded))


def _cell(value: Cell | TableCell) -> str:
    cell = as_cell(value)
    if cell.value is None:
        return ""
    notes = ", ".join(filter(None, cell.notes))
    parts = (text_of(cell.value), f"({notes})" if notes else "", cell.remark)
    return " ".join(filter(None, map(escape, parts)))
