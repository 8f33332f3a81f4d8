"""SPECJMS: the supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.

Its model, formulas and audit are in `loadgen.specjms`. Functions import them when they need them,
because they come with compiled kernels.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from loadgen.cases.case import Case, ChartStyle, Conclusion, Evidence, Review, RowSpec, Variants
from loadgen.errors import ScenarioError
from loadgen.judge.verdict import Verdict, with_reason
from loadgen.plan.fields import Choice, Count, Flag, Seconds, TableText
from loadgen.plan.groups import DeviceGroup, Reconnect
from loadgen.plan.plan import BrokerNeeds, Crash, Plan, Storage, phases_of, plan_of
from loadgen.plan.scenario import (
    PRIVATE_BROKERS,
    Drain,
    Duration,
    MaxUnacknowledged,
    MqttVersion,
    SaveEach,
    Scenario,
    Warmup,
    save_each_complaints,
)
from loadgen.specjms.chain_model import (
    NOTICE,
    Model,
    highest_qos,
    shares_queues,
    stores,
    uses_wildcards,
)
from loadgen.specjms.tables import supply_tables

if TYPE_CHECKING:
    from loadgen.plan.rehearsal import Role
    from loadgen.specjms.audit import Audit
    from loadgen.specjms.build_model import Choices


class SupplyChain(Scenario):
    parts = ("schedule",)
    search_p99_s = None
    """None: only the audit's bound holds, 5 s for 90 % of each destination (run rules 3.6.2)."""

    case: Literal["specjms"] = "specjms"
    duration: Duration = 60.0
    warmup: Warmup = 10.0
    drain: Drain = 30.0
    mqtt: MqttVersion = "5"
    topology: Annotated[Literal["horizontal", "vertical", "freeform"], Choice(load="amount")] = (
        "horizontal"
    )
    """Growth of the supply chain with BASE: by locations, by the traffic of each, or by the
    scenario."""
    base: Annotated[int, Count(1, 20_000, everyday=20, load="amount")] = 10
    """BASE, the scale of the workload."""
    handlers: Annotated[int, Count(1, 100)] = 2
    """Event handlers of each queue and agent; several share a subscription."""
    drivers: Annotated[int, Count(1, 100)] = 1
    """Drivers of each interaction and agent, at the locations that begin it."""
    headquarters: Annotated[int, Count(1, 1_000, load="amount")] = 1
    """Instances of the headquarters, each with separate queues (freeform)."""
    case_study: Annotated[Literal["I", "II", "III"] | None, Choice()] = None
    """Scenario of the case study of jms2009-PS: queues (I), a topic for each message type (II), one
    topic for all (III); with one event handler each. [default: queues, and handlers as given]"""
    selectors: Annotated[Literal["broker", "client"], Choice()] = "broker"
    """Selection of messages that share a topic: by topic levels and filters at the broker, or by
    user properties at the client, which discards the rest."""
    messages: Annotated[str | None, TableText("table", load="amount")] = None
    """Options of message types, as order = {queue = false, target = 'Central'}: transacted,
    persistent, qos, durable, queue, target, subscription, handlers, endpoint; sizes, percent,
    acknowledgement (freeform). [default: those of SPECjms2007]"""
    interactions: Annotated[str | None, TableText("table", load="amount")] = None
    """Interactions by number: drivers, endpoint, and in freeform the rate, 0 for off. [default:
    all, at the rates of the topology]"""
    locations: Annotated[str | None, TableText("table", load="amount")] = None
    """Numbers of locations SM, DC, SP and HQ (freeform). [default: those of the horizontal
    topology]"""
    agents: Annotated[str | None, TableText("table")] = None
    """Agents of each location by its kind, as DC = 2. Each has the location's event handlers and
    drivers; they share its messages. [default: one agent a location]"""
    connections: Annotated[str | None, TableText("table")] = None
    """Connections that the event handlers of an agent share, by kind of location, as SM = 1.
    [default: one for each event handler]"""
    quantities: Annotated[str | None, TableText("table", load="amount")] = None
    """Quantities x of the message sizes, three values each, and percent, the share of each class
    (freeform). [default: documented defaults of about 2 KB a message]"""
    families: Annotated[int | None, Count(1, 100_000, load="amount")] = None
    """Product families, of which each is offered by two or three suppliers (freeform). [default:
    twice as many as suppliers]"""
    shared_connections: Annotated[bool, Flag()] = False
    """Use one connection for all event handlers of a location (freeform)."""
    check_every: Annotated[int, Count()] = 1
    """Check one of so many messages against its CRC-32 (freeform)."""
    report_every: Annotated[float, Seconds(1, 86_400)] = 300.0
    """Interval of reports of the run's progress, each a line and an event."""
    max_unacknowledged: MaxUnacknowledged = 100
    save_each: SaveEach = False
    on_exception: Annotated[Literal["stop", "go_on"], Choice()] = "stop"
    """Reaction to an exception, as a lost connection or a refused message: stop the run, as the run
    rules require, or go on with devices that reconnect."""
    recovery: Annotated[float | None, Seconds(0.1, 86_400)] = None
    """Kill the private broker in the middle of the window. Devices and persistent messages must
    return within this time; the rule of 15m is judged only with 15m or more. [default: nothing is
    killed]"""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.mqtt == "3.1":
            yield "mqtt: 3.1 is not played here; allowed: 3.1.1 or 5 for specjms"
        yield from save_each_complaints(self.save_each, self.broker)
        if self.recovery is not None and self.broker not in PRIVATE_BROKERS:
            yield "recovery: only a private broker may be killed; allowed: with broker mosquitto"


_RETURN = Reconnect(0.1, 1.0)
"""Delays of a device that reconnects after it lost its connection."""

_TABLES = "locations", "agents", "connections", "interactions", "messages", "quantities"


def choices_of(scenario: SupplyChain) -> "Choices":
    """Return the choices of a scenario, with its tables parsed."""
    from loadgen.specjms.build_model import Choices

    values = {field.name: getattr(scenario, field.name) for field in fields(Choices)}
    for name in _TABLES:
        values[name] = json.loads(values[name] or "{}")
    return Choices(**values)


def model_of_scenario(scenario: SupplyChain) -> Model:
    """Return the model of a scenario; raises ScenarioError."""
    from loadgen.specjms.build_model import model_of

    return model_of(choices_of(scenario))


def _groups(scenario: SupplyChain) -> tuple[DeviceGroup, ...]:
    from loadgen.specjms.chain_plan import groups_of_model

    model = model_of_scenario(scenario)
    return groups_of_model(model, scenario.arrivals, scenario.max_unacknowledged)


def _storage(scenario: SupplyChain, model: Model) -> Storage:
    if not stores(model):
        return "none"
    return "each change" if scenario.save_each else "periodic"


def _plan(scenario: SupplyChain, groups: tuple[DeviceGroup, ...]) -> Plan:
    model = model_of_scenario(scenario)
    _require_endpoints(model, len(scenario.broker))
    recovery_s = scenario.recovery
    stops = scenario.on_exception == "stop" and recovery_s is None
    return plan_of(
        scenario,
        groups,
        needs=_needs(scenario, model),
        phases=replace(
            phases_of(scenario),
            drain_s=max(scenario.drain, recovery_s or 0.0),
            stops_at_exception=stops,
        ),
        storage=_storage(scenario, model),
        reconnect=None if stops else _RETURN,
        crash=None if recovery_s is None else Crash("broker", recovery_s=recovery_s),
        report_every_s=scenario.report_every,
        model=model,
    )


def _needs(scenario: SupplyChain, model: Model) -> BrokerNeeds:
    from loadgen.specjms.layout import largest_payload_bytes

    shares = shares_queues(model)
    older = ["--mqtt 3.1.1" if scenario.mqtt == "5" else "--mqtt 5"]
    if scenario.mqtt == "5":
        older += ["--handlers 1"] * shares + ["--selectors broker"] * (model.selectors == "client")
    return BrokerNeeds(
        qos=highest_qos(model),
        qos_option="""--messages '{{"all": {{"qos": {highest}}}}}'""",
        payload_bytes=largest_payload_bytes(model),
        wildcards="which selectors at the broker need; use --selectors client"
        if uses_wildcards(model)
        else "",
        shared="which several event handlers of one queue need; use --handlers 1" if shares else "",
        older=f"use {' '.join(older)}",
    )


def _require_endpoints(model: Model, addresses: int) -> None:
    asked = max(*model.endpoints, *(options.endpoint for options in model.messages))
    if asked > addresses:
        raise ScenarioError(
            f"endpoint: {asked} is asked for; allowed: 1 to {addresses}, the number of addresses "
            "that --broker gives"
        )


def _roles(plan: Plan) -> "tuple[Role, ...]":
    from loadgen.specjms.chain_plan import roles_of_supply_chain

    return roles_of_supply_chain(plan)


def _figures(scenario: Mapping[str, Any], broker_share: float | None) -> dict[str, float | None]:
    """Return BASE, and the broker's share of the processors for each BASE in per cent."""
    base = scenario.get("base")
    if not isinstance(base, int) or not base:
        return {"base": None, "broker_per_base": None}
    return {
        "base": None if scenario.get("topology") == "freeform" else float(base),
        "broker_per_base": None if broker_share is None else 100.0 * broker_share / base,
    }


# After the run ------------------------------------------------------------------------------------


def _review(evidence: Evidence) -> Review:
    from loadgen.specjms.audit import audit
    from loadgen.specjms.chain_plan import mixed_workers
    from loadgen.specjms.messages import FIRST_OF_INTERACTION
    from loadgen.specjms.report import OF_FILE_ALONE, audit_summary, report
    from loadgen.specjms.review import recovery_of, supply_seen, without_forgotten
    from loadgen.specjms.rules import Circumstances

    plan, model = evidence.plan, evidence.plan.model
    answers = [final["supply"] for final in evidence.finals.values() if final.get("supply")]
    is_local = evidence.broker_is_local()
    limit_s = plan.crash.recovery_s if plan.crash is not None else None
    seen = supply_seen(
        model,
        answers,
        len(plan.workers) - len(answers),
        evidence.windows,
        evidence.window_rows(),
        progress_s=plan.report_every_s or 0.0,
        clock_ms=evidence.facts.service.clock_bound_ns / 1e6,
        recovery=None if limit_s is None else recovery_of(limit_s, evidence.broken, answers),
    )
    also_changed: tuple[str, ...] = ()
    if plan.phases.rates:
        share = plan.mean_share
        model = replace(model, rates=tuple(rate * share for rate in model.rates))
        also_changed = (f"rate steps, {share:.1%} of the rates in the mean",)
    audited = audit(model, seen)

    def conclude(verdict: Verdict) -> Conclusion:
        around = Circumstances(
            failures=verdict.codes,
            course=evidence.course(),
            windows=(
                evidence.windows.get("warmup", (0, 0)),
                evidence.windows.get("measure", (0, 0)),
            ),
            broker_is_local=is_local,
            broker_is_private=plan.brokers.private,
            mixed_workers=mixed_workers(plan),
            workers=len(plan.workers),
            endpoints=any(group.targets for group in plan.groups),
            case_study=plan.scenario.case_study,
            changed=also_changed,
        )
        document = report(model, seen, audited, around, plan.root)
        short = {name: value for name, value in document.items() if name not in OF_FILE_ALONE}
        return Conclusion(
            _with_audit(verdict, audited), short, audit_summary(audited), {_FILE_NAME: document}
        )

    # Only messages of drivers are scheduled; most messages are sent at QoS 1.
    begun = sum(seen.types[first].sent for first in FIRST_OF_INTERACTION)
    facts = replace(
        evidence.facts,
        schedule=replace(evidence.facts.schedule, scheduled=begun),
        messages=replace(evidence.facts.messages, qos=1),
    )
    if seen.recovery is not None:
        facts = without_forgotten(facts, model, seen.destinations)
    return Review(facts, conclude)


def _with_audit(verdict: Verdict, audit: "Audit") -> Verdict:
    """Return the verdict, with the audit's reason if it failed."""
    failed = audit.failed
    if not failed:
        return verdict
    first = failed[0]
    detail = (
        f"{len(failed)} of {len(audit.findings)} tests failed; {first.test} of {first.subject}: "
        f"expected {first.expected}, observed {first.observed}"
    )
    return with_reason(verdict, "AUDIT", detail)


_FILE_NAME = "specjms.json"
_EXAMPLE = "--base 100 --duration 60"

CASE = Case(
    place=90,
    summary="The supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.",
    example=f"loadgen specjms horizontal {_EXAMPLE}",
    scenario=SupplyChain,
    groups=_groups,
    plan=_plan,
    behaviour="loadgen.specjms.behaviour",
    roles=_roles,
    review=_review,
    tables=supply_tables,
    rows=(
        RowSpec(
            "jms@{Topology}",
            "base",
            "BASE of the supply chain, {Topology} topology. Not reviewed or accepted by SPEC.",
        ),
        RowSpec("jms@{Topology}", "ingress_rate", "Sent rate.", unpublished=True),
        RowSpec("jms@{Topology}", "egress_rate", "Received rate.", unpublished=True),
    ),
    document=_FILE_NAME,
    disclosure="loadgen.specjms.disclosure",
    notice=NOTICE,
    charts=ChartStyle(
        (
            *("ingress", "egress", "delivery", "published_delivery"),
            *("broker_per_base", "published_per_base", "published_base"),
            *("used_topics", "per_topic", "p99"),
        ),
        extra_columns={
            "delivery": ("Mean delivery", "ms"),
            "published_delivery": ("Mean delivery, paper", "ms"),
            "broker_per_base": ("Broker processor per BASE", "% of all processors"),
            "published_per_base": ("Broker processor per BASE, paper", "% of 8 processors"),
            "published_base": ("Most BASE, paper", ""),
            "used_topics": ("Topics", ""),
            "per_topic": ("Sent to a topic", "msgs/sec"),
        },
    ),
    case_figures=_figures,
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
                "Locations, rates, sizes and options of your scenario.",
                "--scenario my.toml",
            ),
        },
    ),
)
