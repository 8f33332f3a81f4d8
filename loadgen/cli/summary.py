"""A score card as a few lines of text for a terminal."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.scorecard.model import ScoreCard

_WIDTH = 100


def summary_lines(card: "ScoreCard") -> list[str]:
    """Verdict with its reasons, the score card's rows, latencies and counts."""
    from loadgen.scorecard.sections import told as cell
    from loadgen.scorecard.text import name, notice_lines, number

    broker = f"{card.run.broker.get('name') or ''} {card.run.broker.get('version') or ''}".strip()
    verdict = "VALID" if card.verdict.valid else "INVALID"
    lines = [
        *notice_lines(card.notice),
        f"{card.run.case.upper()}  {verdict}  {name(broker)}, {name(card.run.protocol)}, "
        f"{number(card.run.seconds)} s, {card.run.workers} workers",
    ]
    lines += [f"  {reason.code}: {name(reason.detail)}" for reason in card.verdict.reasons]
    if card.rows:
        head = ("", "VALUE", "AVG", "50P", "99P", "MAX", "STDV", "")
        rows = [
            (
                row.name,
                *(number(v) for v in (row.value, row.avg, row.p50, row.p99, row.max, row.stdev)),
                f"{row.unit}  {name(row.description)}",
            )
            for row in card.rows
        ]
        lines += ["", *_aligned([head, *rows], left=(0, 7))]
    if card.latency:
        titles = ("latency, µs", "COUNT", "AVG", "50P", "90P", "99P", "99.9P", "MAX", "STDV")
        series_rows = [
            (
                series,
                *map(
                    number,
                    (s.count, s.avg, s.p50, s.p90, s.p99, s.p99_9, s.max, s.stdev),
                ),
            )
            for series, s in card.latency.items()
        ]
        lines += ["", *_aligned([titles, *series_rows], left=(0,))]
    for section in card.sections:
        lines += ["", *wrap(f"{section.title}. {section.note}", _WIDTH)]
        cells = [[cell(value) for value in row] for row in section.rows]
        lines += _aligned([section.header, *cells], left=section.texts)
    counts = card.counts
    told = [
        ("sent", counts.sent),
        ("received", counts.received),
        ("expected", counts.expected),
        ("lost", counts.lost),
        ("duplicated", counts.duplicated),
        ("out of order", counts.out_of_order),
        ("corrupt", counts.corrupt),
        ("connected", card.connect.connected),
        ("connect failures", counts.connect_failures),
        ("disconnects", counts.disconnects),
    ]
    if counts.high_water_mark is not None:
        told.append(("high-water mark", counts.high_water_mark))
    if card.power is not None:
        told.append(("watts", round(card.power.watts)))
    lines += ["", ", ".join(f"{label} {number(value)}" for label, value in told)]
    trouble = [f"{key.replace('_', ' ')} {number(n)}" for key, n in card.network.items() if n]
    if trouble:
        lines.append(f"TCP of this host meanwhile: {', '.join(trouble)}")
    return lines


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Columns side by side, numbers to the right; a column empty but for its head is left out."""
    kept = [c for c in range(len(rows[0])) if c in left or any(row[c] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in kept}
    return [
        "  ".join(
            row[c].ljust(widths[c]) if c in left else row[c].rjust(widths[c]) for c in kept
        ).rstrip()
        for row in rows
    ]
