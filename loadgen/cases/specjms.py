"""SPECJMS: the supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.

Its model, formulas and audit are `loadgen.specjms`; they are imported where they are needed,
because they come with compiled kernels.
"""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Literal

from loadgen.specjms.model import NOTICE, Model, highest_qos, shares_queues, uses_wildcards
from loadgen.workload.case import Case, Conclusion, Evidence, Review, RowSpec, Variants
from loadgen.workload.fields import Choice, Count, Flag, Seconds, Table
from loadgen.workload.groups import DeviceGroup, RunPlan
from loadgen.workload.scenario import (
    DRAIN,
    DURATION,
    MAX_UNACKNOWLEDGED,
    PROTOCOL,
    WARMUP,
    PublishingScenario,
)
from loadgen.workload.verdict import Verdict, with_reason
from loadgen.workload.workload import Workload

if TYPE_CHECKING:
    from loadgen.specjms.audit import Audit
    from loadgen.specjms.options import Choices
    from loadgen.workload.rehearsal import Role


class SupplyChain(PublishingScenario):
    """Fields of the supply chain."""

    search_p99_s = None
    """Its audit's bound alone, 5 s for 90 % of each destination (SPECjms2007, run rules 3.6.2)."""

    case: Literal["specjms"] = "specjms"
    duration: float = DURATION.field(60.0)
    warmup: float = WARMUP.field(10.0)
    drain: float = DRAIN.field(30.0)
    mqtt: Literal["3.1", "3.1.1", "5"] = PROTOCOL.field("5")
    topology: Literal["horizontal", "vertical", "freeform"] = Choice(
        "How the supply chain grows with base: by locations, by traffic of each, or as the "
        "scenario says.",
        choices=("horizontal", "vertical", "freeform"),
    ).field("horizontal")
    base: int = Count("BASE, by which the workload is scaled.", 1, 20_000).field(10)
    handlers: int = Count(
        "Event handlers of each queue at each location; several share a subscription.", 1, 100
    ).field(2)
    drivers: int = Count(
        "Drivers of each interaction at each location that begins it.", 1, 100
    ).field(1)
    headquarters: int = Count(
        "Instances of the headquarters, each with queues of its own.", 1, 1_000
    ).field(1)
    selectors: Literal["broker", "client"] = Choice(
        "Where messages that share a topic are selected: by topic levels and filters, or by "
        "user properties at the receiver, which discards the rest.",
        choices=("broker", "client"),
    ).field("broker")
    messages: str | None = Table(
        "Options of message types, as order = {queue = false, target = 'Central'}: "
        "transacted, persistent, qos, durable, queue, target, subscription, handlers; sizes "
        "(freeform).",
        "table",
        absent="as SPECjms2007 has them",
    ).field()
    interactions: str | None = Table(
        "Interactions by number: drivers, and in freeform the rate, 0 for off.",
        "table",
        absent="all, at the rates of the topology",
    ).field()
    locations: str | None = Table(
        "Numbers of locations SM, DC, SP and HQ (freeform).",
        "table",
        absent="those of the horizontal topology",
    ).field()
    quantities: str | None = Table(
        "Quantities x of the message sizes, three values each, and percent, the share of each "
        "class (freeform).",
        "table",
        absent="documented defaults of about 2 KB a message",
    ).field()
    families: int | None = Count(
        "Product families, of which each is offered by two or three suppliers (freeform).",
        1,
        100_000,
        absent="twice as many as suppliers",
    ).field()
    shared_connections: bool = Flag(
        "All event handlers of a location use one connection (freeform)."
    ).field(False)
    check_every: int = Count(
        "Messages of which one is checked against its CRC-32 (freeform)."
    ).field(1)
    report_every: float = Seconds(
        "How often the run's progress is reported as a line and an event.", 1, 86_400
    ).field(300.0)
    max_unacknowledged: int = MAX_UNACKNOWLEDGED.field(100)

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.mqtt == "3.1":
            yield "mqtt: 3.1 is not played here; allowed: 3.1.1 or 5 for specjms"


def choices_of(scenario: SupplyChain) -> "Choices":
    """What a scenario says of the supply chain, its tables read."""
    from loadgen.specjms.options import Choices

    values = {field.name: getattr(scenario, field.name) for field in fields(Choices)}
    for name in ("locations", "interactions", "messages", "quantities"):
        values[name] = json.loads(values[name] or "{}")
    return Choices(**values)


def model_of_scenario(scenario: SupplyChain) -> Model:
    """The model of a scenario; raises ScenarioError."""
    from loadgen.specjms.options import model_of

    return model_of(choices_of(scenario))


def _groups(scenario: SupplyChain) -> tuple[DeviceGroup, ...]:
    from loadgen.specjms.plan import groups_of_model

    model = model_of_scenario(scenario)
    return groups_of_model(model, scenario.arrivals, scenario.max_unacknowledged)


def _resolve(scenario: SupplyChain, workload: Workload) -> Workload:
    from loadgen.specjms.layout import largest_payload_bytes

    model = model_of_scenario(scenario)
    shares = shares_queues(model)
    older = ["--mqtt 3.1.1" if workload.version == 5 else "--mqtt 5"]
    if workload.version == 5:
        older += ["--handlers 1"] * shares + ["--selectors broker"] * (model.selectors == "client")
    needs = replace(
        workload.needs,
        qos=highest_qos(model),
        qos_option="""--messages '{{"all": {{"qos": {highest}}}}}'""",
        payload_bytes=largest_payload_bytes(model),
        wildcards="which selectors at the broker need; use --selectors client"
        if uses_wildcards(model)
        else "",
        shared="which several event handlers of one queue need; use --handlers 1" if shares else "",
        older=f"use {' '.join(older)}",
    )
    return replace(workload, needs=needs, report_every_s=scenario.report_every, model=model)


def _plan(workload: Workload, plan: RunPlan) -> RunPlan:
    from loadgen.specjms.plan import supply_plan

    return supply_plan(plan, workload.model)


def _roles(plan: RunPlan) -> "tuple[Role, ...]":
    from loadgen.specjms.plan import roles_of_supply_chain

    return roles_of_supply_chain(plan)


# After the run ------------------------------------------------------------------------------------


def _review(evidence: Evidence) -> Review:
    from loadgen.specjms.audit import audit
    from loadgen.specjms.messages import FIRST_OF_INTERACTION
    from loadgen.specjms.report import FILE_NAME, audit_summary, report
    from loadgen.specjms.review import supply_seen

    workload, model = evidence.workload, evidence.workload.model
    answers = [final["supply"] for final in evidence.finals.values() if final.get("supply")]
    local = "The broker ran on the client's host, which a submission must not do (3.9)."
    seen = supply_seen(
        model,
        answers,
        len(evidence.plan.workers) - len(answers),
        evidence.windows,
        evidence.window_rows(),
        progress_s=workload.report_every_s or 0.0,
        notes=[local] if evidence.broker_is_local() else [],
    )
    also_changed: tuple[str, ...] = ()
    if workload.phases.rates:
        share = workload.mean_share
        model = replace(model, rates=tuple(rate * share for rate in model.rates))
        also_changed = (f"rate steps, {share:.1%} of the rates in the mean",)
    audited = audit(model, seen)

    def conclude(verdict: Verdict) -> Conclusion:
        document = report(model, seen, audited, also_changed=also_changed, failures=verdict.codes)
        # Of a large run the destinations alone are megabytes; they stay in their file.
        short = {name: value for name, value in document.items() if name != "destinations"}
        return Conclusion(
            _with_audit(verdict, audited), short, audit_summary(audited), {FILE_NAME: document}
        )

    # What a handler sends is caused, not scheduled; most is sent at QoS 1.
    begun = sum(seen.types[first].sent for first in FIRST_OF_INTERACTION)
    return Review(replace(evidence.facts, scheduled=begun, qos=1), conclude)


def _with_audit(verdict: Verdict, audit: "Audit") -> Verdict:
    """The verdict with the audit's reason, where it has one."""
    failed = audit.failed
    if not failed:
        return verdict
    first = failed[0]
    detail = (
        f"{len(failed)} of {len(audit.findings)} tests failed; {first.test} of {first.subject}: "
        f"expected {first.expected}, observed {first.observed}"
    )
    return with_reason(verdict, "AUDIT", detail)


_EXAMPLE = "--base 100 --duration 60"

CASE = Case(
    place=90,
    summary="The supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.",
    example=f"loadgen specjms horizontal {_EXAMPLE}",
    scenario=SupplyChain,
    groups=_groups,
    resolve=_resolve,
    plan=_plan,
    behaviour="supply_chain",
    roles=_roles,
    review=_review,
    rows=(
        RowSpec(
            "jms@{topology}",
            "base",
            "BASE of the supply chain, {topology} topology. Not reviewed or accepted by SPEC.",
        ),
        RowSpec("jms@{topology}", "ingress_rate", "Sent rate.", beside=True),
        RowSpec("jms@{topology}", "egress_rate", "Received rate.", beside=True),
    ),
    notice=NOTICE,
    variants=Variants(
        "topology",
        {
            "horizontal": (
                "Scale by locations: BASE supermarkets, traffic of each location fixed.",
                _EXAMPLE,
            ),
            "vertical": (
                "Scale by traffic: ten supermarkets, rates that grow with BASE.",
                _EXAMPLE,
            ),
            "freeform": (
                "Locations, rates, sizes and options as the scenario says.",
                "--scenario my.toml",
            ),
        },
    ),
)
