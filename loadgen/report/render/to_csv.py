"""scorecard.csv: the rows and latencies of every card, safe to open in a spreadsheet.

A line a row of the card, then one for each latency series that was measured, of every case. What is
of the run stands in each of its lines, the ledger of its window too. Columns come at the end when
there are more.
"""

from collections.abc import Sequence
from dataclasses import fields

from loadgen.judge.ledger import Ledger
from loadgen.report.build.compare import Comparison
from loadgen.report.build.rows import FIGURES
from loadgen.report.model import ScoreCard
from loadgen.report.render.text import csv_of

SERIES_TYPE = "Latency series"
"""Type of the lines of latencies; their name is that of the series in scorecard.json."""

_STATES = ("intended", *(field.name for field in fields(Ledger)))

COLUMNS = (
    *("Type", "Name", "Description", "Unit", *FIGURES.values()),
    *("Valid", "Reasons", "Case", "Run", "Started", "Seconds", "Broker"),
    *("Scenario digest", "Results digest", "Remark"),
    *("Count", "MIN", "90P", "99.9P"),
    *(f"Ledger {state.replace('_', ' ')}" for state in _STATES),
)


def to_csv(cards: Sequence[ScoreCard], _: Sequence[Comparison] = ()) -> bytes:
    """UTF-8, commas, CRLF; numbers in full precision and empty where there is none."""
    rows: list[tuple[object, ...]] = []
    for card in cards:
        run, digests = card.run, card.integrity.digests
        about = (
            *(card.verdict.word, " ".join(reason.code for reason in card.verdict.reasons)),
            *(run.case, run.id, run.started, run.seconds, run.broker_name),
            *(digests.get("scenario"), digests.get("results")),
        )
        window = (card.ledger or {}).get("window", {})
        ledger = tuple(window.get(state) for state in _STATES)
        rows += [
            (
                *(row.type, row.name, row.description, row.unit, *row.figures),
                *(*about, row.remark, None, None, None, None, *ledger),
            )
            for row in card.rows
        ]
        rows += [
            (
                *(SERIES_TYPE, series, "", "microseconds"),
                *(None, timed.avg, timed.p50, timed.p99, timed.max, timed.stdev),
                *(*about, "", timed.count, timed.min, timed.p90, timed.p99_9, *ledger),
            )
            for series, timed in card.latency.items()
        ]
    return csv_of(COLUMNS, rows).encode()
