"""Models of supply chains for tests, and the observations of correct runs."""

from typing import Any

from loadgen.specjms.audit import Observed, TypeCount
from loadgen.specjms.build_model import model_of
from loadgen.specjms.chain_model import Model
from loadgen.specjms.expected import type_rates
from loadgen.specjms.scenario import SupplyChain

DELIVERY = {"count": 5, "avg": 1.0, "p50": 900.0, "p90": 1500.0, "p99": 9e3, "max": 1e4}


def model_with(**fields: Any) -> Model:
    """Return the model of a scenario with these fields."""
    return model_of(SupplyChain(**fields))


def observed(model: Model, window_s: float, /, **changed: Any) -> Observed:
    """Return the observations of a correct run of the model, with changes."""
    counts = [
        (round(rate.sent * window_s), round(rate.received * window_s)) for rate in type_rates(model)
    ]
    fields: dict[str, Any] = {
        "window_s": window_s,
        "warmup_s": 600.0,
        "clock_ms": 0.0,
        "types": [
            TypeCount(sent=sent, expected=received, received=received, delivery=DELIVERY)
            for sent, received in counts
        ],
        "inside": [round(rate * window_s) for rate in model.rates],
        "late": [0] * 7,
        "destinations": (),
    }
    return Observed(**{**fields, **changed})
