"""Facts of a run made up for tests, its messages given as what was counted of them."""

from dataclasses import fields, replace
from typing import Any

from loadgen.judge.ledger import Counted, ledger_of
from loadgen.judge.verdict import RunFacts
from loadgen.metrics.interval import COUNTERS

_MESSAGES = set(COUNTERS) - {field.name for field in fields(RunFacts)}


def facts_with(**given: Any) -> RunFacts:
    """The facts; names of interval counters, `confirmed`, `owed` and `held` make its ledgers."""
    return changed(RunFacts(), **given)


def changed(facts: RunFacts, **given: Any) -> RunFacts:
    """The facts with some of these replaced; both ledgers become those of the same counts."""
    ledger = facts.ledger
    counts = {
        **{name: getattr(ledger, name, 0) for name in _MESSAGES},
        "received": ledger.intact,
        "corrupt": ledger.damaged,
        "excused": ledger.repeated_allowed,
        "duplicated": ledger.repeated + ledger.repeated_allowed,
    }
    confirmed = ledger.acknowledged + ledger.refused + ledger.unacknowledged
    others = {"confirmed": confirmed, "owed": ledger.owed, "held": 0}
    for known in (counts, others):
        known.update({name: given.pop(name) for name in list(given) if name in known})
    facts = replace(facts, **given)
    made = ledger_of(Counted(counts, **others), observed=facts.observed)
    return replace(facts, ledger=made, run_ledger=made)
