"""A score card as a few lines of text for a terminal."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.report.score_card import ScoreCard

_WIDTH = 100


def summary_lines(card: "ScoreCard") -> list[str]:
    """Return verdict, reasons, remarks, rows, latencies and counts as lines."""
    from loadgen.plan.tables import as_cell
    from loadgen.report.build.rows import FIGURES
    from loadgen.report.render.text import name, notice_lines, number, text_of
    from loadgen.report.score_card import LATENCY_FIGURES

    run = card.run
    lines = [
        *notice_lines(card.notice),
        f"{run.case.upper()}  {card.verdict.word}  {name(run.broker_name)}, {name(run.protocol)}, "
        f"{number(run.seconds)} s, {run.workers} workers",
    ]
    lines += [f"  {reason.code}: {name(reason.detail)}" for reason in card.verdict.reasons]
    lines += [f"  remark: {name(remark.detail)}" for remark in card.verdict.remarks]
    if card.rows:
        rows = [
            (row.name, *map(number, row.figures), f"{row.unit}  {name(row.description)}")
            for row in card.rows
        ]
        remarks = [f"  {row.name}: {name(row.remark)}" for row in card.rows if row.remark]
        lines += ["", *_aligned([("", *FIGURES.values(), ""), *rows], left=(0, 7)), *remarks]
    if card.latency:
        titles = (
            "latency, µs",
            *map(str.upper, [*LATENCY_FIGURES.values()][:-1]),
            FIGURES["stdev"],
        )
        series = [
            (name, *(number(getattr(timed, key)) for key in LATENCY_FIGURES))
            for name, timed in card.latency.items()
        ]
        lines += ["", *_aligned([titles, *series], left=(0,))]
    for section in card.sections:
        lines += ["", *wrap(f"{section.title}. {section.note}", _WIDTH)]
        cells = [[text_of(as_cell(value).value) for value in row] for row in section.rows]
        lines += _aligned([section.header, *cells], left=section.texts)
    lines += ["", ", ".join(f"{label} {number(value)}" for label, value in _counts(card))]
    trouble = [f"{key.replace('_', ' ')} {number(n)}" for key, n in card.network.items() if n]
    if trouble:
        lines.append(f"TCP of this host during the run: {', '.join(trouble)}")
    return lines


def _counts(card: "ScoreCard") -> list[tuple[str, int]]:
    counts = card.counts
    keys = ("sent", "received", "expected", "lost", "duplicated", "out_of_order", "corrupt")
    labelled = [
        *((key.replace("_", " "), getattr(counts, key)) for key in keys),
        ("connected", card.connect.connected),
        ("connect failures", counts.connect_failures),
        ("disconnects", counts.disconnects),
        ("high-water mark", counts.high_water_mark),
        ("of one subscription", counts.subscription_high_water_mark),
        ("watts", None if card.power is None else round(card.power.watts)),
    ]
    return [(label, value) for label, value in labelled if value is not None]


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Lay out columns, numbers to the right; leave out a column that has only a head."""
    kept = [c for c in range(len(rows[0])) if c in left or any(row[c] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in kept}
    return [
        "  ".join(
            row[c].ljust(widths[c]) if c in left else row[c].rjust(widths[c]) for c in kept
        ).rstrip()
        for row in rows
    ]
