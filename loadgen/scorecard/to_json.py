"""scorecard.json: one run as an object, several as {"schema", "runs": [...], "comparison": [...]}.

"runs" are such objects; "comparison" has an object for each case that has several runs. A run and
its repetition, played by one command, are an array of two such objects.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from loadgen.scorecard.broker import BrokerLoad
from loadgen.scorecard.compare import Comparison
from loadgen.scorecard.latency import Latency
from loadgen.scorecard.model import Power, ScoreCard

SCHEMA = 1


def to_json(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison] = ()) -> bytes:
    """The document of one card; of several, the cards in the order given under "runs"."""
    documents = [to_document(card) for card in cards]
    whole = documents[0]
    if len(documents) > 1:
        whole = {
            "schema": SCHEMA,
            "runs": documents,
            "comparison": [asdict(comparison) for comparison in comparisons],
        }
    return orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def to_json_array(cards: Sequence[ScoreCard]) -> bytes:
    """The documents of the cards, each whole, in one array."""
    documents = [to_document(card) for card in cards]
    return orjson.dumps(documents, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def to_document(card: ScoreCard) -> dict[str, Any]:
    """One card as JSON values; keys in the order of the contract, then what was added to it.

    Only a notice comes before them.
    """
    run = asdict(card.run)
    run["command"] = list(card.run.command)
    return {
        "schema": SCHEMA,
        # Of a case that needs one it precedes every figure, for a reader and for a stream.
        **({"notice": card.notice} if card.notice else {}),
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
        "broker_load": None if card.broker is None else _broker(card.broker),
        **card.details,
        "digest": {**card.integrity.digests, "state": card.integrity.state},
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
                "outlet": outlet.outlet,
                "node": outlet.node,
                "energy": None if outlet.energy is None else asdict(outlet.energy),
            }
            for outlet in power.outlets
        ],
        "nodes": [asdict(node) for node in power.nodes],
        "watts": power.watts,
        "messages_per_watt": power.messages_per_watt,
        "joules_per_message": power.joules_per_message,
        "watts_per_rack_unit": power.watts_per_rack_unit,
    }


def _broker(load: BrokerLoad) -> dict[str, Any]:
    """Everything but the course."""
    return {key: value for key, value in asdict(load).items() if key != "moments"}
