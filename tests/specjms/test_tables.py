"""The tables of a score card, from the document of a run."""

import json
from typing import Any

import pytest

from loadgen.plan.tables import DataTable
from loadgen.specjms.audit import DestinationCount, audit
from loadgen.specjms.messages import number_of
from loadgen.specjms.report import report
from loadgen.specjms.tables import supply_tables
from tests.specjms.models import model_with, observed


def sections(messages: dict[str, Any], **changed: Any) -> dict[str, DataTable]:
    model = model_with(topology="freeform", base=5, messages=messages)
    seen = observed(model, 10.0, **{"warmup_s": 1.0, **changed})
    document = json.loads(json.dumps(report(model, seen, audit(model, seen))))
    return {table.title: table for table in supply_tables(document)}


def test_rules_and_notes_are_shown() -> None:
    rules = sections({}, duplicated=2, notes=["The broker ran here."])["Run rules"]
    assert rules.note == (
        "The run is not compliant: 7 are kept, 6 are not, 8 were not judged. The broker ran here."
    )
    assert ("messages in order and not duplicated (4.2)", "NOT KEPT") in [
        row[:2] for row in rules.rows
    ]
    usual = sections({})
    assert "delivered covers the whole run" in usual["Audit"].note
    assert usual["Message mix"].rows[0][0] == "a: pub/sub, not persistent"


@pytest.mark.parametrize(("selectors", "at_broker"), [("broker", 5 + 1 + 2 + 1), ("client", 1)])
def test_topics_are_counted_as_the_broker_has_them(selectors: str, at_broker: int) -> None:
    model = model_with(base=5, case_study="III", selectors=selectors)
    places = [("inventoryInfo", 5), ("offer", 1), ("pOrder", 2), ("priceUpdate", 1)]
    counts = [
        DestinationCount(number_of(name), place) for name, count in places for place in range(count)
    ]
    seen = observed(model, 10.0, destinations=counts)
    traffic = report(model, seen, audit(model, seen))["traffic"]
    assert traffic["topics"] == at_broker
