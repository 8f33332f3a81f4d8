"""A score card for programs: the object of scorecard.json and the lines of scorecard.csv."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from loadgen.judge.ledger import Ledger
from loadgen.report.build.rows import FIGURES, PUBLISHED_FIGURES
from loadgen.report.score_card import LATENCY_FIGURES, ScoreCard

SCHEMA = 1

SERIES_TYPE = "Latency series"
"""Type of the lines of latencies; their name is that of the series in scorecard.json."""

_ROW = ("type", "name", "description", "unit", *FIGURES, "remark")
_RATES = {"asked": "Asked ingress", "ingress": "Ingress", "egress": "Egress"}
_STATES = ("intended", *(field.name for field in fields(Ledger)))

CSV_HEADER = (
    *("Type", "Name", "Description", "Unit", *PUBLISHED_FIGURES.values()),
    *("Valid", "Reasons", "Case", "Run", "Started", "Seconds", "Broker"),
    *("Scenario digest", "Results digest", "Remark"),
    *("Count", "MIN", "90P", "99.9P"),
    *(f"Ledger {state.replace('_', ' ')}" for state in _STATES),
    *_RATES.values(),
)
"""New columns come at the end."""


def card_document(card: ScoreCard) -> dict[str, Any]:
    """Return a card as JSON values: keys in the order of the contract, then newer ones.

    A notice precedes every figure, for a reader and for a stream.
    """
    return {
        "schema": SCHEMA,
        **({"notice": card.notice} if card.notice else {}),
        "run": asdict(card.run),
        "verdict": {
            "valid": card.verdict.valid,
            "reasons": [asdict(reason) for reason in card.verdict.reasons],
        },
        "rows": [{key.replace("_", "."): getattr(row, key) for key in _ROW} for row in card.rows],
        "counts": asdict(card.counts),
        "latency": {
            series: {key.replace("_", "."): getattr(timed, key) for key in LATENCY_FIGURES}
            for series, timed in card.latency.items()
        },
        "power": _without_courses(card.power),
        "audit": None if card.audit is None else dict(card.audit),
        "rates": dict(card.rates),
        "connect": asdict(card.connect),
        "network": dict(card.network),
        "broker_load": _without_courses(card.broker),
        **card.details,
        "ledger": card.ledger,
        "remarks": [asdict(remark) for remark in card.verdict.remarks],
        "digest": {**card.integrity.digests, "state": card.integrity.state},
    }


def _without_courses(part: Any) -> dict[str, Any] | None:
    """Return a part of the card, which may be None, without the data of charts."""
    drawn = ("curve", "moments")
    return part and asdict(part, dict_factory=lambda of: {k: v for k, v in of if k not in drawn})


def csv_lines(card: ScoreCard) -> Iterator[tuple[object, ...]]:
    """Yield a line for each row of the card, then one for each latency series.

    Each line repeats the columns of the run, also the ledger of its window.
    """
    run, digests = card.run, card.integrity.digests
    about = (
        *(card.verdict.word, " ".join(reason.code for reason in card.verdict.reasons)),
        *(run.case, run.id, run.started, run.seconds, run.broker_name),
        *(digests.get("scenario"), digests.get("results")),
    )
    window = (card.ledger or {}).get("window", {})
    last = (*(window.get(state) for state in _STATES), *(card.rates.get(key) for key in _RATES))
    for row in card.rows:
        yield (
            *(row.type, row.name, row.description, row.unit),
            *(getattr(row, key) for key in PUBLISHED_FIGURES),
            *(*about, row.remark, None, None, None, row.p99_9, *last),
        )
    for series, timed in card.latency.items():
        yield (
            *(SERIES_TYPE, series, "", "microseconds"),
            *(None, timed.avg, timed.p50, timed.p99, timed.max, timed.stdev),
            *(*about, "", timed.count, timed.min, timed.p90, timed.p99_9, *last),
        )
