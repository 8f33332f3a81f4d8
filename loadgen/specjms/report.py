"""Result of a run of the supply chain, as one plain document: specjms.json.

Rates count the messages of interactions begun in the window, over its length.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from loadgen.sentences import counted
from loadgen.specjms import audit, expected
from loadgen.specjms.build_model import changed_options
from loadgen.specjms.chain_model import NOTICE, TRANSACTIONS, Model, enabled_types, interactions_on
from loadgen.specjms.destinations import (
    consumed_at,
    destination_name,
    topic_of,
)
from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    GROUPS,
    MESSAGES,
    SPECIFICATION,
    LocationKind,
    MixGroup,
)
from loadgen.specjms.queues import periods
from loadgen.specjms.rules import run_rules

_FINDINGS_SHOWN: Final = 200
_TOPICS_SHOWN: Final = 10
_COUNTED: Final = tuple(field.name for field in fields(audit.DestinationCount))[2:]
"""Fields of a destination's counts, after the two that identify the destination."""

_OPTIONS: Final = ("qos", "durable", "transacted", "queue", "target", "handlers")  # repeated here

_GROUP_NAMES: Final[dict[MixGroup, str]] = {
    "a": "pub/sub, not persistent",
    "b": "pub/sub, persistent",
    "c": "point to point, not persistent",
    "d": "point to point, persistent",
}


OF_FILE_ALONE: Final = ("destinations", "event_handlers", "topics", "findings")
"""Parts that stay in specjms.json, since they are megabytes of a large run."""


def report(
    model: Model,
    seen: audit.Observed,
    audited: audit.Audit,
    failures: Sequence[str] = (),
    root: str = "",
) -> dict[str, Any]:
    """Return the document of a run and its audit; `root` is the first level of its topics.

    `failures` are the codes of the run's verdict, without the audit's.
    """
    changed = [*changed_options(model), *seen.changed]
    rules = run_rules(seen, audited, failures, as_specified=not changed)
    topics = _topic_rows(model, seen, root)
    recovery = seen.recovery
    return {
        "schema": 1,
        "notice": NOTICE,
        "transactions": TRANSACTIONS,
        "topology": model.topology,
        "base": model.base,
        "locations": {kind.name: model.count_of(kind) for kind in LocationKind},
        "families": model.families,
        "selectors": model.selectors,
        "changed_options": changed,
        "case_study": seen.case_study,
        "figures": _figures(seen, topics, seen.case_study),
        "window_s": seen.window_s,
        "interactions": [
            {
                "interaction": number,
                "rate": model.rates[number - 1],
                "begun": seen.types[FIRST_OF_INTERACTION[number - 1]].sent,
                "begun_in_window": seen.inside[number - 1],
                "observed_rate": seen.inside[number - 1] / (seen.window_s or math.inf),
                "late": seen.late[number - 1],
            }
            for number in interactions_on(model)
        ],
        "types": [_type_row(model, seen, number) for number in enabled_types(model)],
        "groups": _group_rows(model, seen),
        "rules": [{"rule": it.rule, "kept": it.holds, "observed": it.observed} for it in rules],
        "notes": [*seen.notes, *_notes(model, seen)],
        "audit": _audit_rows(audited),
        "results": _results(audited),
        "periods": periods(seen.depths, seen.stored, seen.course, seen.windows, seen.progress_s),
        "findings": [{**asdict(one), "parts": list(one.parts)} for one in audited.findings],
        "traffic": _traffic(topics),
        "discarded": seen.discarded,
        "discarded_bytes": seen.discarded_bytes,
        "waited_for_window": seen.waited,
        "calls_without_all_offers": seen.calls_open,
        "offers_dropped": seen.calls_dropped,
        "messages_with_unsent_effects": seen.unsent,
        "workers_silent": seen.workers_silent,
        "redelivered": seen.redelivered,
        "recovery": recovery
        and {
            **asdict(recovery),
            "seconds": recovery.seconds,
            "complete": recovery.complete,
        },
        "topics": topics,
        "event_handlers": [
            {
                "message": MESSAGES[heard.number].name,
                "where": consumed_at(model, heard.number, heard.place),
                "event_handlers": heard.handlers,
                "over_limit": heard.over,
                "received": heard.received,
                "slow": heard.slow,
                "p90_us": heard.p90_ns / 1000,
            }
            for heard in seen.heard
        ],
        "destinations": [
            {
                "message": MESSAGES[count.number].name,
                "destination": destination_name(model, count.number, count.destination),
                "topic": topic_of(model, root, count.number, count.destination),
                **{name: getattr(count, name) for name in _COUNTED},
                "missing": list(count.missing),
            }
            for count in seen.destinations
        ],
        "compliant": all(rule.holds is True for rule in rules),
    }


def _figures(
    seen: audit.Observed, topics: Sequence[Mapping[str, Any]], case_study: object
) -> dict[str, float | None]:
    """Return the figures of the run for a sweep's table, with those of the paper."""
    known = [one.delivery for one in seen.types if one.delivery]
    count = sum(int(one["count"] or 0) for one in known)
    total = sum(float(one["avg"] or 0.0) * int(one["count"] or 0) for one in known)
    names = "published_base", "published_per_base", "published_delivery"
    return {
        "delivery": total / count / 1000 if count else None,
        "used_topics": float(len(topics)),
        "per_topic": _traffic(topics)["sent_per_s_mean"],
        **dict(zip(names, SPECIFICATION["case_study"].get(case_study, ()), strict=False)),
    }


def _notes(model: Model, seen: audit.Observed) -> list[str]:
    notes = [note] if (note := expected.mix_note(model)) else []
    if seen.recovery is not None:
        lost = sum(
            count.expected_in_all - count.received_in_all
            for count in seen.destinations
            if not audit.is_persistent(model, count.number)
        )
        notes.append(
            "The broker was killed in the window and lost "
            f"{counted(lost, 'delivery', 'deliveries')} of messages that are not persistent, which "
            "no rule forbids. Only delivery and recovery are judged."
        )
    return notes


def _topic_rows(model: Model, seen: audit.Observed, root: str) -> list[dict[str, Any]]:
    """Return the topics at the broker, with the levels by which it selects, the busiest first."""
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    types: dict[str, set[str]] = {}
    for count in seen.destinations:
        topic = topic_of(model, root, count.number, count.destination)
        sent[topic] += count.sent
        received[topic] += count.received
        types.setdefault(topic, set()).add(MESSAGES[count.number].name)
    window_s = seen.window_s or 1.0
    return [
        {
            "topic": topic,
            "message_types": len(types[topic]),
            "sent_per_s": messages / window_s,
            "received_per_s": received[topic] / window_s,
        }
        for topic, messages in sent.most_common()
    ]


def _traffic(topics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rates = [one["sent_per_s"] for one in topics]
    return {
        "topics": len(topics),
        "sent_per_s_mean": sum(rates) / max(len(rates), 1),
        "sent_per_s_most": max(rates, default=0.0),
        "busiest": topics[:_TOPICS_SHOWN],
    }


def audit_summary(audited: audit.Audit) -> dict[str, Any]:
    """Return the audit for scorecard.json: the result of each test, and the number that passed."""
    summary: dict[str, Any] = {}
    for test in audited.tests:
        findings = audited.of(test)
        failed = [finding for finding in findings if not finding.passed]
        details = f"{len(findings) - len(failed)} of {len(findings)} passed"
        if failed:
            first = failed[0]
            details += f"; {first.subject}: expected {first.expected}, observed {first.observed}"
        summary[test] = {"pass": not failed, "details": details}
    return summary


def _audit_rows(audited: audit.Audit) -> dict[str, Any]:
    """Return the tests with all findings of interactions, but only failed ones of destinations."""
    rows: dict[str, Any] = {}
    for test in audited.tests:
        findings = audited.of(test)
        failed = [finding for finding in findings if not finding.passed]
        shown = failed if test in ("delivery_time", "delivered") else findings
        rows[test] = {
            "pass": not failed,
            "passed": len(findings) - len(failed),
            "failed": len(failed),
            "findings": [
                {
                    "subject": finding.subject,
                    "pass": finding.passed,
                    "expected": finding.expected,
                    "observed": finding.observed,
                }
                for finding in shown[:_FINDINGS_SHOWN]
            ],
        }
    return rows


def _results(audited: audit.Audit) -> list[dict[str, Any]]:
    """Return the tests passed and made of each interaction and agent, failed agents first."""
    parts: dict[str, dict[str, list[bool]]] = {}
    for finding in audited.findings:
        for part in finding.parts:
            parts.setdefault(part, {}).setdefault(finding.test, []).append(finding.passed)
    rows = [
        {
            "part": part,
            "pass": all(map(all, tests.values())),
            "tests": {test: [sum(passed), len(passed)] for test, passed in tests.items()},
        }
        for part, tests in parts.items()
    ]
    rows.sort(key=lambda row: (not str(row["part"]).startswith("interaction"), row["pass"]))
    return rows[:_FINDINGS_SHOWN]


def _type_row(model: Model, seen: audit.Observed, number: int) -> dict[str, Any]:
    message, count = MESSAGES[number], seen.types[number]
    options, target = model.messages[number], expected.type_rates(model)[number]
    window_s = seen.window_s or 1.0
    return {
        "interaction": message.interaction,
        "message": message.name,
        "group": expected.group_played(model, number),
        "published_group": message.group,
        **{name: getattr(options, name) for name in _OPTIONS},
        "sizes_bytes": list(options.sizes_bytes),
        "body": message.body,
        "handler_p90_us": max(
            (heard.p90_ns / 1000 for heard in seen.heard if heard.number == number), default=None
        ),
        **{name: getattr(count, name) for name in audit.TYPE_COUNTS},
        "sent_per_s": count.sent / window_s,
        "received_per_s": count.received / window_s,
        "target_sent_per_s": target.sent,
        "target_received_per_s": target.received,
        "delivery_us": dict(count.delivery),
        "end_to_end_us": dict(count.end_to_end),
    }


def _group_rows(model: Model, seen: audit.Observed) -> list[dict[str, Any]]:
    """Return the message mix that was played: rates, and shares of the messages received."""
    window_s = seen.window_s or 1.0
    target = expected.group_rates(model)
    observed = {group: expected.MessageRate() for group in GROUPS}
    for number, count in enumerate(seen.types):
        played = expected.group_played(model, number)
        observed[played] += expected.MessageRate(count.sent / window_s, count.received / window_s)
    shares, wanted = expected.mix(observed), expected.mix(target)
    names = dict(_GROUP_NAMES)
    for group in ("a", "b"):
        types = [n for n in enabled_types(model) if expected.group_played(model, n) == group]
        durable = [model.messages[n].durable for n in types]
        if any(durable):
            names[group] += ", durable" if all(durable) else ", durable in part"
    return [
        {
            "group": group,
            "name": names[group],
            "sent_per_s": observed[group].sent,
            "received_per_s": observed[group].received,
            "target_sent_per_s": target[group].sent,
            "target_received_per_s": target[group].received,
            "percent": shares[group],
            "target_percent": wanted[group],
        }
        for group in GROUPS
    ]
