"""scorecard.csv: the rows of every card, one line each, safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Sequence

from loadgen.scorecard.compare import Comparison
from loadgen.scorecard.model import ScoreCard
from loadgen.scorecard.text import name

COLUMNS = (
    *("Type", "Name", "Description", "Unit", "VALUE", "AVG", "50P", "99P", "MAX", "STDV"),
    *("Valid", "Reasons", "Case", "Run", "Started", "Seconds", "Broker"),
    *("Scenario digest", "Results digest"),
)

# OWASP, "CSV Injection": a spreadsheet takes a cell that begins so for a formula; the wide forms
# are what some of them make of the plain ones.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def to_csv(cards: Sequence[ScoreCard], _: Sequence[Comparison] = ()) -> bytes:
    """UTF-8, commas, CRLF; numbers in full precision and empty where there is none."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(COLUMNS)
    for card in cards:
        run = card.run
        about = (
            "VALID" if card.verdict.valid else "INVALID",
            " ".join(reason.code for reason in card.verdict.reasons),
            *(run.case, run.id, run.started, run.seconds),
            f"{run.broker.get('name') or ''} {run.broker.get('version') or ''}".strip(),
            *(card.integrity.digests.get(key) for key in ("scenario", "results")),
        )
        for row in card.rows:
            columns = (
                *(row.type, row.name, row.description, row.unit, row.value),
                *(row.avg, row.p50, row.p99, row.max, row.stdev),
            )
            writer.writerow([cell(value) for value in (*columns, *about)])
    return table.getvalue().encode()


def cell(value: object) -> object:
    """The value for one cell: numbers as they are, texts so that none is taken for a formula."""
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return value
    text = str(value)
    # The first character that is not a blank decides, and control characters do not survive.
    return f"'{name(text)}" if text.lstrip(" ").startswith(_FORMULA) else name(text)
