"""scorecard.md: verdict, published table, counts and latencies, for a page or a pull request."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from loadgen.report.build.broker_section import BrokerLoad
from loadgen.report.build.compare import Cell, Comparison, difference_text, spread_text
from loadgen.report.build.overview import about_lines, cell_text, is_merged, merged_rows
from loadgen.report.build.rows import FIGURES
from loadgen.report.model import LATENCY_FIGURES, NOTHING_SAID, About, ScoreCard
from loadgen.report.render.text import (
    COMMAND_CHARACTERS,
    NAME_CHARACTERS,
    NOTICE_CHARACTERS,
    counted,
    name,
    number,
    text_of,
)

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~&$])")


def to_markdown(
    cards: Sequence[ScoreCard],
    comparisons: Sequence[Comparison] = (),
    about: About = NOTHING_SAID,
) -> bytes:
    """UTF-8; everything that a run brought along is escaped. Of several runs a row is a side."""
    lines = [f"# {escape(about.title or 'Score card')}", ""]
    for said in (about.author, about.note):
        lines += [escape(said, NOTICE_CHARACTERS), ""] if said else []
    for notice in dict.fromkeys(card.notice for card in cards if card.notice):
        lines += [escape(notice, NOTICE_CHARACTERS), ""]
    several = len(cards) > 1
    lines += [*(f"- {escape(line)}" for line in about_lines(cards)), ""]
    verdicts = [line for card in cards for line in _verdict(card, several)]
    table = _results(cards, comparisons)
    lines += [*table, *verdicts] if is_merged(cards, comparisons) else [*verdicts, *table]
    for comparison in comparisons:
        lines += _comparison(comparison)
    for card in cards:
        lines += _details(card)
    return "\n".join(lines).encode()


def _results(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> list[str]:
    """A row a figure of each side, or of each run where runs are no repetitions."""
    merged = is_merged(cards, comparisons)
    title = ("Runs",) if merged else ("Run",) if len(cards) > 1 else ()
    return markdown_table(
        ("Type", "Name", *title, "Description", *FIGURES.values()),
        (
            (
                *(one.row.type, one.row.name),
                *(one.words if merged else cards[one.places[0]].run.id for _ in title),
                " ".join([f"{one.row.description} ({one.row.unit})", *one.remarks]),
                *map(cell_text, one.cells),
            )
            for one in merged_rows(cards, comparisons if merged else ())
        ),
    )


def escape(text: object, limit: int = NAME_CHARACTERS) -> str:
    """Text that Markdown shows as it is, in a table cell too."""
    return _SPECIAL.sub(r"\\\1", name(text, limit))


def _verdict(card: ScoreCard, several: bool) -> list[str]:
    about = f"{escape(card.run.case.upper())}: " if several else ""
    said = [f"- {escape(one.code)}: {escape(one.detail)}" for one in card.verdict.reasons]
    said += [f"- remark: {escape(one.detail)}" for one in card.verdict.remarks]
    return [f"{about}**{card.verdict.word}**", "", *said, *([""] if said else [])]


def _details(card: ScoreCard) -> list[str]:
    run = card.run
    broker = run.broker_name or "broker"
    command = shlex.join(run.command)
    lines = [
        f"## {escape(run.case.upper())}",
        "",
        f"Run {escape(run.id)}, started {escape(run.started)}, {number(run.seconds)} s measured, "
        f"{escape(broker)}, {escape(run.protocol)}, {counted(run.workers, 'worker')} on "
        f"{counted(run.hosts, 'host')}.",
        "",
        *markdown_table(
            ("count", "value"),
            ((key.replace("_", " "), number(value)) for key, value in asdict(card.counts).items()),
        ),
    ]
    for section in card.sections:
        lines += [f"### {escape(section.title)}", "", escape(section.note, NOTICE_CHARACTERS), ""]
        lines += markdown_table(section.header, (list(map(text_of, row)) for row in section.rows))
    if card.latency:
        lines += markdown_table(
            ("latency, µs", *LATENCY_FIGURES.values()),
            (
                (series, *(number(getattr(timed, key)) for key in LATENCY_FIGURES))
                for series, timed in card.latency.items()
            ),
        )
    if card.power is not None:
        lines += markdown_table(
            ("node", "outlet", "watts", "samples in the window", "coverage", "kWh counter"),
            (
                (
                    *(o.node, o.name, f"{o.watts:,.1f}", number(o.inside), f"{o.coverage:.0%}"),
                    "" if o.energy is None else o.energy.result,
                )
                for o in card.power.outlets
            ),
        )
    if card.broker is not None:
        lines += _broker(card.broker)
    if command:
        lines += ["Run again:", "", f"    {name(command, COMMAND_CHARACTERS)}", ""]
    sealed = card.integrity
    lines += [
        f"Results {sealed.state}"
        + "".join(f", {escape(key)} `{escape(value)}`" for key, value in sealed.digests.items())
        + ".",
        "",
    ]
    return lines


def _broker(load: BrokerLoad) -> list[str]:
    lines = markdown_table(
        ("broker over the window", "value"),
        (
            ("processor time, s", number(load.cpu_seconds)),
            ("processors in use", number(load.cores)),
            ("greatest memory, bytes", number(load.resident_bytes_max)),
            ("messages a core-second", number(load.messages_per_core_second)),
        ),
    )
    if load.counts:
        lines += markdown_table(
            ("the broker's own count", "broker", "ours", "under way", "agrees"),
            (
                (
                    *(check.topic, number(check.broker), number(check.ours)),
                    *(number(check.uncertain), "yes" if check.agrees else "NO"),
                )
                for check in load.counts
            ),
        )
    return lines


def _comparison(comparison: Comparison) -> list[str]:
    """The sides of one case next to each other."""
    first, *others = comparison.sides
    header = ["name", "", "unit", escape(first.label)]
    for side in others:
        header += [escape(side.label), "difference", "spread"]
    rows = []
    for line in comparison.lines:
        cells = [line.name, line.column, line.unit, _cell(line.cells[0])]
        for cell, difference in zip(line.cells[1:], line.differences, strict=True):
            mark = " REGRESSION" if difference and difference.regression else ""
            cells += [
                *(_cell(cell), f"{difference_text(difference)}{mark}", spread_text(difference)),
            ]
        rows.append(cells)
    remarks = [f"**{escape(remark, NOTICE_CHARACTERS)}**" for remark in comparison.remarks]
    return [
        *(f"## {escape(comparison.case.upper())} side by side", ""),
        *(line for remark in remarks for line in (remark, "")),
        *markdown_table(header, rows),
    ]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    about = "" if cell.stdev is None else f" ± {number(cell.stdev)} (n={len(cell.values)})"
    return f"{number(cell.mean)}{about}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table whose cells are escaped."""
    return [
        f"| {' | '.join(header)} |",
        f"|{'|'.join('---' for _ in header)}|",
        *(f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows),
        "",
    ]
