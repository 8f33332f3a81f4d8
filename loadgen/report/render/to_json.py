"""scorecard.json: one run as an object, several as {"schema", "runs": [...], "comparison": [...]}.

"runs" are such objects; "comparison" has an object for each case that has several runs. A run and
its repetition, played by one command, are an array of two such objects.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from loadgen.report.build.compare import Comparison
from loadgen.report.build.rows import FIGURES
from loadgen.report.model import LATENCY_FIGURES, NOTHING_SAID, About, ScoreCard

SCHEMA = 1

_ROW = ("type", "name", "description", "unit", *FIGURES, "remark")


def to_json(
    cards: Sequence[ScoreCard],
    comparisons: Sequence[Comparison] = (),
    about: About = NOTHING_SAID,
) -> bytes:
    """The document of one card; of several, the cards in the order given under "runs"."""
    documents = [to_document(card) for card in cards]
    said = {"about": asdict(about)} if about != NOTHING_SAID else {}
    if len(documents) == 1:
        return indented(documents[0] | said)
    comparison = [asdict(comparison) for comparison in comparisons]
    return indented({"schema": SCHEMA, "runs": documents, "comparison": comparison} | said)


def to_json_array(cards: Sequence[ScoreCard]) -> bytes:
    """The documents of the cards, each whole, in one array."""
    return indented([to_document(card) for card in cards])


def indented(document: object) -> bytes:
    """A document as the files hold it."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def to_document(card: ScoreCard) -> dict[str, Any]:
    """One card as JSON values; keys in the order of the contract, then what was added to it.

    Only a notice comes before them.
    """
    return {
        "schema": SCHEMA,
        # Of a case that needs one it precedes every figure, for a reader and for a stream.
        **({"notice": card.notice} if card.notice else {}),
        "run": asdict(card.run),
        "verdict": {
            "valid": card.verdict.valid,
            "reasons": [asdict(reason) for reason in card.verdict.reasons],
        },
        "rows": [{key: getattr(row, key) for key in _ROW} for row in card.rows],
        "counts": asdict(card.counts),
        "latency": {
            series: {key.replace("_", "."): getattr(timed, key) for key in LATENCY_FIGURES}
            for series, timed in card.latency.items()
        },
        "power": _but_course(card.power),
        "audit": None if card.audit is None else dict(card.audit),
        "rates": dict(card.rates),
        "connect": asdict(card.connect),
        "network": dict(card.network),
        "broker_load": _but_course(card.broker),
        **card.details,
        "ledger": card.ledger,
        "remarks": [asdict(remark) for remark in card.verdict.remarks],
        "digest": {**card.integrity.digests, "state": card.integrity.state},
    }


def _but_course(part: Any) -> dict[str, Any] | None:
    """A part of the card, which may be None, without what is drawn of it."""
    drawn = ("curve", "moments")
    return part and asdict(part, dict_factory=lambda of: {k: v for k, v in of if k not in drawn})
