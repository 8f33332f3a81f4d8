"""scorecard.csv: the rows of every card, one line each, safe to open in a spreadsheet."""

from collections.abc import Sequence

from loadgen.scorecard.compare import Comparison
from loadgen.scorecard.model import ScoreCard
from loadgen.scorecard.rows import FIGURES
from loadgen.scorecard.text import csv_of

COLUMNS = (
    *("Type", "Name", "Description", "Unit", *FIGURES.values()),
    *("Valid", "Reasons", "Case", "Run", "Started", "Seconds", "Broker"),
    *("Scenario digest", "Results digest", "Remark"),
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
        rows += [
            (row.type, row.name, row.description, row.unit, *row.figures, *about, row.remark)
            for row in card.rows
        ]
    return csv_of(COLUMNS, rows).encode()
