"""scorecard.md: verdict, published table, counts and latencies, for a page or a pull request."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from loadgen.scorecard.model import ScoreCard
from loadgen.scorecard.rows import in_report_order
from loadgen.scorecard.text import COMMAND_CHARACTERS, name, number

__all__ = ["escape", "to_markdown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~&$])")


def to_markdown(cards: Sequence[ScoreCard]) -> bytes:
    """UTF-8; everything that a run brought along is escaped."""
    lines = ["# Score card", ""]
    for card in cards:
        lines += _verdict(card, len(cards) > 1)
    lines += _table(
        ("Type", "Name", "Description", "VALUE", "AVG", "50P", "99P", "MAX", "STDV"),
        (
            (
                *(row.type, row.name, f"{row.description} ({row.unit})"),
                *(number(v) for v in (row.value, row.avg, row.p50, row.p99, row.max, row.stdev)),
            )
            for row in in_report_order(tuple(row for card in cards for row in card.rows))
        ),
    )
    for card in cards:
        lines += _details(card)
    return "\n".join(lines).encode()


def escape(text: object) -> str:
    """Text that Markdown shows as it is, in a table cell too."""
    return _SPECIAL.sub(r"\\\1", name(text))


def _verdict(card: ScoreCard, several: bool) -> list[str]:
    word = "VALID" if card.verdict.valid else "INVALID"
    about = f"{escape(card.run.case.upper())}: " if several else ""
    return [
        f"{about}**{word}**",
        "",
        *(f"- {escape(reason.code)}: {escape(reason.detail)}" for reason in card.verdict.reasons),
        *([""] if card.verdict.reasons else []),
    ]


def _details(card: ScoreCard) -> list[str]:
    run = card.run
    broker = f"{run.broker.get('name') or 'broker'} {run.broker.get('version') or ''}".strip()
    command = shlex.join(run.command)
    lines = [
        f"## {escape(run.case.upper())}",
        "",
        f"Run {escape(run.id)}, started {escape(run.started)}, {number(run.seconds)} s measured, "
        f"{escape(broker)}, {escape(run.protocol)}, {_counted(run.workers, 'worker')} on "
        f"{_counted(run.hosts, 'host')}.",
        "",
        *_table(
            ("count", "value"),
            ((key.replace("_", " "), number(value)) for key, value in asdict(card.counts).items()),
        ),
    ]
    if card.latency:
        lines += _table(
            ("latency, µs", "count", "avg", "50p", "90p", "99p", "99.9p", "max", "stdev"),
            (
                (series, *(number(value) for value in asdict(summary).values()))
                for series, summary in card.latency.items()
            ),
        )
    if card.power is not None:
        lines += _table(
            ("outlet", "watts", "samples", "coverage"),
            (
                (o.log, f"{o.watts:,.1f}", number(o.samples), f"{o.coverage:.0%}")
                for o in card.power.outlets
            ),
        )
    if command:
        lines += ["Run again:", "", f"    {name(command, COMMAND_CHARACTERS)}", ""]
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{'|'.join('---' for _ in header)}|",
        *(f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows),
        "",
    ]
