"""scorecard.json: one run as an object, several as {"schema", "runs": [...]} of such objects."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from loadgen.scorecard.model import Latency, Power, ScoreCard

__all__ = ["SCHEMA", "to_document", "to_json"]

SCHEMA = 1


def to_json(cards: Sequence[ScoreCard]) -> bytes:
    """The document of one card; of several, the cards in the order given under "runs"."""
    documents = [to_document(card) for card in cards]
    whole = documents[0] if len(documents) == 1 else {"schema": SCHEMA, "runs": documents}
    return orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def to_document(card: ScoreCard) -> dict[str, Any]:
    """One card as JSON values; keys in the order of the contract, then what was added to it."""
    run = asdict(card.run)
    run["command"] = list(card.run.command)
    return {
        "schema": SCHEMA,
        "run": run,
        "verdict": {
            "valid": card.verdict.valid,
            "reasons": [asdict(reason) for reason in card.verdict.reasons],
        },
        "rows": [asdict(row) for row in card.rows],
        "counts": asdict(card.counts),
        "latency": {series: _latency(summary) for series, summary in card.latency.items()},
        "power": None if card.power is None else _power(card.power),
        "audit": None if card.audit is None else dict(card.audit),
        "rates": dict(card.rates),
        "connect": asdict(card.connect),
        "network": dict(card.network),
    }


def _latency(summary: Latency) -> dict[str, float | None]:
    return {name.replace("_", "."): value for name, value in asdict(summary).items()}


def _power(power: Power) -> dict[str, Any]:
    return {
        "outlets": [
            {
                "log": outlet.log,
                "watts": outlet.watts,
                "samples": outlet.samples,
                "coverage": outlet.coverage,
            }
            for outlet in power.outlets
        ],
        "watts": power.watts,
        "messages_per_watt": power.messages_per_watt,
    }
