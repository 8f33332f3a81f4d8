"""Facts of a run made up for tests, its messages given as counts."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from loadgen.judge.facts import RunFacts
from loadgen.judge.ledger import Counted, ledger_of
from loadgen.metrics.interval import COUNTERS

_PARTS = {
    field.name: part.name
    for part in fields(RunFacts)
    if is_dataclass(default := part.default) and not isinstance(default, type)
    for field in fields(default)
}
"""The part of the facts that has each field."""
_MESSAGES = set(COUNTERS) - set(_PARTS)


def facts_with(**values: Any) -> RunFacts:
    """Return facts; names of interval counters, `confirmed` and `owed` make its ledgers."""
    return changed(RunFacts(), **values)


def changed(facts: RunFacts, **values: Any) -> RunFacts:
    """Return the facts with fields of its parts replaced, both ledgers made of the same counts."""
    window = facts.messages.window
    counts = {
        **{name: getattr(window, name, 0) for name in _MESSAGES},
        "received": window.intact,
        "corrupt": window.damaged,
        "excused": window.repeated_allowed,
        "duplicated": window.repeated + window.repeated_allowed,
    }
    confirmed = window.acknowledged + window.refused + window.unacknowledged
    states = {"confirmed": confirmed, "owed": window.owed, "waiting": 0}
    for table in (counts, states):
        table.update({name: values.pop(name) for name in list(values) if name in table})
    values["waiting"] = states["waiting"]
    facts = with_fields(facts, **values)
    ledger = ledger_of(Counted(counts, **states), observed=facts.ending.observed)
    return with_fields(facts, window=ledger, run=ledger)


def with_fields(facts: RunFacts, **values: Any) -> RunFacts:
    """Return the facts with fields of its parts replaced."""
    for name, value in values.items():
        if part := _PARTS.get(name):
            facts = replace(facts, **{part: replace(getattr(facts, part), **{name: value})})
        else:
            facts = replace(facts, **{name: value})
    return facts
