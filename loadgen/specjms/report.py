"""What a run of the supply chain showed, as one plain document: specjms.json.

A pure function of the model, the counts and the audit. Rates count the messages of interactions
begun in the window, over its length, so that a run can be held against the formulas.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from loadgen.specjms.audit import (
    TESTS,
    TYPE_COUNTS,
    Audit,
    DestinationCount,
    Observed,
    Test,
    run_rules,
)
from loadgen.specjms.destinations import destination_name
from loadgen.specjms.expected import Rate, group_played, group_rates, mix, type_rates
from loadgen.specjms.messages import FIRST_OF_INTERACTION, GROUPS, MESSAGES, Group, Kind
from loadgen.specjms.model import NOTICE, Model, enabled_types, interactions_on
from loadgen.specjms.options import changed_options

FILE_NAME: Final = "specjms.json"

TRANSACTIONS: Final = (
    "Transacted messages are consumed and produced at least once as one unit: the input is "
    "acknowledged when all of its outputs are. MQTT has no atomic transaction."
)
_FINDINGS_SHOWN: Final = 200
_COUNTED: Final = tuple(one.name for one in fields(DestinationCount))[2:]
"""Fields of a destination's counts, after the two that say which destination it is."""

_GROUP_NAMES: Final[dict[Group, str]] = {
    "a": "pub/sub, not persistent",
    "b": "pub/sub, persistent",
    "c": "point to point, not persistent",
    "d": "point to point, persistent",
}


def report(
    model: Model,
    seen: Observed,
    found: Audit,
    *,
    also_changed: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of a run and its audit.

    `also_changed` names changes of the workload that the model does not show; `failures` are the
    codes of the run's verdict, without the audit's.
    """
    changed = [*changed_options(model), *also_changed]
    rules = [
        {"rule": rule, "kept": kept, "observed": observed}
        for rule, kept, observed in run_rules(seen, failures, as_specified=not changed)
    ]
    return {
        "schema": 1,
        "notice": NOTICE,
        "transactions": TRANSACTIONS,
        "topology": model.topology,
        "base": model.base,
        "locations": {kind.name: model.count_of(kind) for kind in Kind},
        "families": model.families,
        "selectors": model.selectors,
        "changed_options": changed,
        "window_s": seen.window_s,
        "interactions": [_interaction_row(model, seen, one) for one in interactions_on(model)],
        "types": [_type_row(model, seen, number) for number in enabled_types(model)],
        "groups": _group_rows(model, seen),
        "rules": rules,
        "notes": list(seen.notes),
        "audit": {test: _test_row(found, test) for test in TESTS},
        "discarded": seen.discarded,
        "discarded_bytes": seen.discarded_bytes,
        "waited_for_window": seen.waited,
        "calls_without_all_offers": seen.calls_open,
        "offers_dropped": seen.calls_dropped,
        "messages_with_unsent_effects": seen.unsent,
        "workers_silent": seen.workers_silent,
        "destinations": [_destination_row(model, one) for one in seen.destinations],
        "compliant": all(rule["kept"] for rule in rules) and found.passed,
    }


def audit_summary(found: Audit) -> dict[str, Any]:
    """The audit as scorecard.json has it: whether each test passed, and in how many cases."""
    summary: dict[str, Any] = {}
    for test in TESTS:
        findings = found.of(test)
        failed = [one for one in findings if not one.passed]
        details = f"{len(findings) - len(failed)} of {len(findings)} passed"
        if failed:
            first = failed[0]
            details += f"; {first.subject}: expected {first.expected}, observed {first.observed}"
        summary[test] = {"pass": not failed, "details": details}
    return summary


def _test_row(found: Audit, test: Test) -> dict[str, Any]:
    """A test with its findings: all of an interaction, of destinations those that failed."""
    findings = found.of(test)
    failed = [one for one in findings if not one.passed]
    shown = failed if test in ("delivery_time", "delivered") else findings
    return {
        "pass": not failed,
        "passed": len(findings) - len(failed),
        "failed": len(failed),
        "findings": [
            {
                "subject": one.subject,
                "pass": one.passed,
                "expected": one.expected,
                "observed": one.observed,
            }
            for one in shown[:_FINDINGS_SHOWN]
        ],
    }


def _interaction_row(model: Model, seen: Observed, interaction: int) -> dict[str, Any]:
    inside = seen.inside[interaction - 1]
    return {
        "interaction": interaction,
        "rate": model.rates[interaction - 1],
        "begun": seen.types[FIRST_OF_INTERACTION[interaction - 1]].sent,
        "begun_in_window": inside,
        "observed_rate": inside / seen.window_s if seen.window_s else 0.0,
        "late": seen.late[interaction - 1],
    }


def _type_row(model: Model, seen: Observed, number: int) -> dict[str, Any]:
    message, one = MESSAGES[number], seen.types[number]
    options, target = model.messages[number], type_rates(model)[number]
    window_s = seen.window_s or 1.0
    return {
        "interaction": message.interaction,
        "message": message.name,
        "group": group_played(model, number),
        "published_group": message.group,
        "qos": options.qos,
        "durable": options.durable,
        "transacted": options.transacted,
        "queue": options.queue,
        "target": options.target,
        "handlers": options.handlers,
        "sizes_bytes": list(options.sizes_bytes),
        **{name: getattr(one, name) for name in TYPE_COUNTS},
        "sent_per_s": one.sent / window_s,
        "received_per_s": one.received / window_s,
        "target_sent_per_s": target.sent,
        "target_received_per_s": target.received,
        "delivery_us": dict(one.delivery),
        "end_to_end_us": dict(one.end_to_end),
    }


def _destination_row(model: Model, one: DestinationCount) -> dict[str, Any]:
    return {
        "message": MESSAGES[one.number].name,
        "destination": destination_name(model, one.number, one.destination),
        **{name: getattr(one, name) for name in _COUNTED},
        "missing": list(one.missing),
    }


def _group_rows(model: Model, seen: Observed) -> list[dict[str, Any]]:
    """The message mix as it was played: rates, and shares of what was received."""
    window_s = seen.window_s or 1.0
    target = group_rates(model)
    observed = {group: Rate() for group in GROUPS}
    for number, one in enumerate(seen.types):
        played = group_played(model, number)
        observed[played] += Rate(one.sent / window_s, one.received / window_s)
    shares, wanted = mix(observed), mix(target)
    return [
        {
            "group": group,
            "name": _group_name(model, group),
            "sent_per_s": observed[group].sent,
            "received_per_s": observed[group].received,
            "target_sent_per_s": target[group].sent,
            "target_received_per_s": target[group].received,
            "percent": shares[group],
            "target_percent": wanted[group],
        }
        for group in GROUPS
    ]


def _group_name(model: Model, group: Group) -> str:
    """What the types of a group have in common, as they were played."""
    types = [n for n in enabled_types(model) if group_played(model, n) == group]
    durable = [model.messages[n].durable for n in types]
    if not any(durable):
        return _GROUP_NAMES[group]
    return f"{_GROUP_NAMES[group]}, {'durable' if all(durable) else 'durable in part'}"
