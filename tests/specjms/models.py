"""Models of supply chains for tests."""

from typing import Any

from loadgen.specjms.build_model import model_of
from loadgen.specjms.chain_model import Model
from loadgen.specjms.scenario import SupplyChain


def model_with(**fields: Any) -> Model:
    """Return the model of a scenario with these fields."""
    return model_of(SupplyChain(**fields))
