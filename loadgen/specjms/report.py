"""What a run of the supply chain showed, as one plain document: specjms.json.

A pure function of the model, the counts and the latencies. Rates are of messages that belong to
interactions begun in the window, over its length, so that a run can be held against the formulas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadgen.specjms.audit import (
    PROGRESS_LIMIT_S,
    TESTS,
    Audit,
    Conduct,
    DestinationCount,
    Observed,
    audit,
    run_rules,
)
from loadgen.specjms.destinations import destination_name
from loadgen.specjms.expected import Rate, group_played, group_rates, mix, type_rates
from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    GROUPS,
    MESSAGES,
    Group,
    Kind,
)
from loadgen.specjms.model import Model, enabled_types, interactions_on
from loadgen.specjms.options import changed_options

__all__ = [
    "NOTICE",
    "Latencies",
    "Seen",
    "Supply",
    "audit_of_supply",
    "audit_summary",
    "report",
]

NOTICE: Final = (
    "SPECjms2007 is a trademark of the Standard Performance Evaluation Corporation (SPEC). The "
    "results or findings here have not been reviewed or accepted by SPEC, therefore no comparison "
    "nor performance inference can be made against any published SPEC result. The official web "
    "site for SPECjms2007 is located at http://www.spec.org/osg/jms2007."
)
"""What the run rules ask of research use, before any figure (section 2.2.2)."""

TRANSACTIONS: Final = (
    "Transacted messages are consumed and produced at least once as one unit: the input is "
    "acknowledged when all of its outputs are. MQTT has no atomic transaction."
)
_FINDINGS_SHOWN: Final = 200

Latencies = Mapping[str, float | int | None]
"""One series in µs: count, avg, p50, p90, p99, max."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of one message type in the window, over all workers."""

    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    delivery: Latencies = field(default_factory=dict)
    end_to_end: Latencies = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Supply:
    """Everything that a run tells of its supply chain.

    `types` has one entry a message type, `inside` and `late` one an interaction (audit.Observed).
    `discarded` are deliveries of the window that a selector at the receiver refused. `duplicated`,
    `out_of_order`, `calls_open`, `calls_dropped` and `unsent` are of the whole run; `notes` say
    what else one must know of it.
    """

    window_s: float
    warmup_s: float
    clock_ms: float
    types: Sequence[Seen]
    inside: Sequence[int]
    late: Sequence[int]
    destinations: Sequence[DestinationCount]
    discarded: int = 0
    discarded_bytes: int = 0
    waited: int = 0
    calls_open: int = 0
    calls_dropped: int = 0
    unsent: int = 0
    workers_silent: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    progress_s: float = PROGRESS_LIMIT_S
    notes: Sequence[str] = ()


def audit_of_supply(model: Model, seen: Supply) -> Audit:
    """The audit of a run."""
    return audit(
        model,
        Observed(
            window_s=seen.window_s,
            sent=[one.sent for one in seen.types],
            received=[one.received for one in seen.types],
            inside=seen.inside,
            late=seen.late,
            p90_ms=[_milliseconds(one.delivery.get("p90")) for one in seen.types],
            destinations=seen.destinations,
            calls_open=seen.calls_open,
            calls_dropped=seen.calls_dropped,
            unsent=seen.unsent,
            workers_silent=seen.workers_silent,
        ),
    )


def report(
    model: Model,
    seen: Supply,
    found: Audit,
    *,
    also_changed: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of a run and its audit.

    `also_changed` is what the model does not tell; `failures` are the codes of the run's verdict,
    without the audit's.
    """
    changed = (*changed_options(model), *also_changed)
    places = model.locations
    document: dict[str, Any] = {
        "schema": 1,
        "notice": NOTICE,
        "transactions": TRANSACTIONS,
        "topology": model.topology,
        "base": model.base,
        "locations": {kind.name: places.of(kind) for kind in Kind},
        "families": model.families,
        "selectors": model.selectors,
        "changed_options": list(changed),
        "window_s": seen.window_s,
        "interactions": _interaction_rows(model, seen),
        "types": [_type_row(model, seen, number) for number in enabled_types(model)],
        "groups": _group_rows(model, seen),
        "rules": [
            {"rule": rule, "kept": kept, "observed": observed}
            for rule, kept, observed in run_rules(
                Conduct(
                    warmup_s=seen.warmup_s,
                    measure_s=seen.window_s,
                    clock_ms=seen.clock_ms,
                    duplicated=seen.duplicated,
                    out_of_order=seen.out_of_order,
                    failures=failures,
                    progress_s=seen.progress_s,
                    default_options=not changed,
                )
            )
        ],
        "notes": list(seen.notes),
        "audit": _findings(found),
        "discarded": seen.discarded,
        "discarded_bytes": seen.discarded_bytes,
        "waited_for_window": seen.waited,
        "calls_without_all_offers": seen.calls_open,
        "offers_dropped": seen.calls_dropped,
        "messages_with_unsent_effects": seen.unsent,
        "workers_silent": seen.workers_silent,
        "destinations": [
            {
                "message": MESSAGES[one.number].name,
                "destination": destination_name(model, one.number, one.destination),
                "sent": one.sent,
                "expected": one.expected,
                "received": one.received,
                "duplicated": one.duplicated,
                "slow": one.slow,
                "sent_in_all": one.all_sent,
                "expected_in_all": one.all_expected,
                "received_in_all": one.all_received,
                "missing": list(one.missing),
                "missing_unnamed": one.unnamed,
            }
            for one in seen.destinations
        ],
    }
    document["compliant"] = all(rule["kept"] for rule in document["rules"]) and found.passed
    return document


def audit_summary(found: Audit) -> dict[str, Any]:
    """The audit as scorecard.json has it: whether each test passed, and in how many cases."""
    summary: dict[str, Any] = {}
    for test in TESTS:
        findings = found.of(test)
        failed = [one for one in findings if not one.passed]
        told = f"{len(findings) - len(failed)} of {len(findings)} passed"
        if failed:
            first = failed[0]
            told += f"; {first.subject}: expected {first.expected}, observed {first.observed}"
        summary[test] = {"pass": not failed, "details": told}
    return summary


def _findings(found: Audit) -> dict[str, Any]:
    """Every test with its findings: all of an interaction, of destinations those that failed."""
    document: dict[str, Any] = {}
    for test in TESTS:
        findings = found.of(test)
        failed = [one for one in findings if not one.passed]
        shown = failed if test in ("delivery_time", "delivered") else findings
        document[test] = {
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
    return document


def _milliseconds(value_us: float | int | None) -> float | None:
    return None if value_us is None else value_us / 1000


def _interaction_rows(model: Model, seen: Supply) -> list[dict[str, Any]]:
    rows = []
    for interaction in interactions_on(model):
        first = FIRST_OF_INTERACTION[interaction - 1]
        begun = seen.types[first].sent
        inside = seen.inside[interaction - 1]
        rows.append(
            {
                "interaction": interaction,
                "rate": model.rates[interaction - 1],
                "begun": begun,
                "begun_in_window": inside,
                "observed_rate": inside / seen.window_s if seen.window_s else 0.0,
                "late": seen.late[interaction - 1],
            }
        )
    return rows


def _type_row(model: Model, seen: Supply, number: int) -> dict[str, Any]:
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
        "sent": one.sent,
        "expected": one.expected,
        "received": one.received,
        "duplicated": one.duplicated,
        "out_of_order": one.out_of_order,
        "sent_per_s": one.sent / window_s,
        "received_per_s": one.received / window_s,
        "target_sent_per_s": target.sent,
        "target_received_per_s": target.received,
        "delivery_us": dict(one.delivery),
        "end_to_end_us": dict(one.end_to_end),
    }


def _group_rows(model: Model, seen: Supply) -> list[dict[str, Any]]:
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


_GROUP_NAMES: Final[dict[Group, str]] = {
    "a": "pub/sub, not persistent",
    "b": "pub/sub, persistent",
    "c": "point to point, not persistent",
    "d": "point to point, persistent",
}


def _group_name(model: Model, group: Group) -> str:
    """What the types of a group have in common, as they were played."""
    types = [n for n in enabled_types(model) if group_played(model, n) == group]
    durable = [model.messages[n].durable for n in types]
    if not any(durable):
        return _GROUP_NAMES[group]
    return f"{_GROUP_NAMES[group]}, {'durable' if all(durable) else 'durable in part'}"
