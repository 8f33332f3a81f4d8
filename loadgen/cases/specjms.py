"""SPECJMS: the supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.

Functions import `loadgen.specjms` when they need it, because it comes with compiled kernels.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadgen.cases.case import Case, Conclusion, Evidence, Review, data_of
from loadgen.errors import ScenarioError
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.groups import DeviceGroup, Reconnect
from loadgen.plan.plan import BrokerNeeds, Crash, Plan, Storage, phases_of, plan_of
from loadgen.sentences import CASE_TEXT, percent
from loadgen.specjms.chain_model import NOTICE, TARGETS, Model, enabled_types, handlers_of
from loadgen.specjms.scenario import SupplyChain
from loadgen.specjms.tables import supply_tables

if TYPE_CHECKING:
    from loadgen.plan.rehearsal import Role


_RETURN = Reconnect(0.1, 1.0)


def _groups(chain: SupplyChain) -> tuple[DeviceGroup, ...]:
    from loadgen.specjms.build_model import model_of
    from loadgen.specjms.chain_plan import groups_of_model

    return groups_of_model(model_of(chain), chain.arrivals, chain.max_unacknowledged)


def _plan(chain: SupplyChain, groups: tuple[DeviceGroup, ...]) -> Plan:
    from loadgen.specjms.build_model import model_of

    model = model_of(chain)
    endpoint = max(*model.endpoints, *(options.endpoint for options in model.messages))
    if endpoint > len(chain.broker):
        raise ScenarioError(CASE_TEXT.ENDPOINT(endpoint=endpoint, count=len(chain.broker)))
    options = [model.messages[number] for number in enabled_types(model)]
    stores: Storage = "each change" if chain.save_each else "periodic"
    stops = chain.on_exception == "stop" and chain.recovery is None
    return plan_of(
        chain,
        groups,
        needs=_needs(chain, model),
        phases=replace(
            phases_of(chain),
            drain_s=max(chain.drain, chain.recovery or 0.0),
            stops_at_exception=stops,
        ),
        storage=stores if any(each.durable for each in options) else "none",
        reconnect=None if stops else _RETURN,
        crash=None if chain.recovery is None else Crash("broker", recovery_s=chain.recovery),
        report_every_s=chain.report_every,
        model=model,
    )


def _needs(chain: SupplyChain, model: Model) -> BrokerNeeds:
    types = enabled_types(model)
    options = [model.messages[number] for number in types]
    shares = any(handlers_of(model, number) > 1 for number in types)
    # Messages share a topic, and the broker selects.
    selects = model.selectors == "broker" and any(
        each.target != TARGETS[0] or each.subscription == "IN" for each in options if not each.queue
    )
    older = ["--mqtt 3.1.1" if chain.mqtt == "5" else "--mqtt 5"]
    if chain.mqtt == "5":
        older += ["--handlers 1"] * shares + ["--selectors broker"] * (model.selectors == "client")
    return BrokerNeeds(
        qos=max(each.qos for each in options),
        qos_option="""--messages '{{"all": {{"qos": {highest}}}}}'""",
        payload_bytes=max(max(each.sizes_bytes) for each in options),
        wildcards="which selectors at the broker need; use --selectors client" if selects else "",
        shared="which several event handlers of one queue need; use --handlers 1" if shares else "",
        older=f"use {' '.join(older)}",
    )


def _roles(plan: Plan) -> "tuple[Role, ...]":
    from loadgen.specjms.chain_plan import roles_of_supply_chain

    return roles_of_supply_chain(plan)


def _figures(scenario: Mapping[str, Any], broker_share: float | None) -> dict[str, float | None]:
    """Return BASE, and the broker's processor use in per cent, divided by BASE."""
    base = scenario.get("base")
    if not isinstance(base, int) or not base:
        return {"base": None, "broker_per_base": None}
    return {
        "base": None if scenario.get("topology") == "freeform" else float(base),
        "broker_per_base": None if broker_share is None else 100.0 * broker_share / base,
    }


def _review(evidence: Evidence) -> Review:
    from loadgen.specjms.audit import audit
    from loadgen.specjms.chain_plan import mixed_workers
    from loadgen.specjms.layout import parts_of
    from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES
    from loadgen.specjms.report import OF_FILE_ALONE, audit_summary, report
    from loadgen.specjms.review import recovery_of, supply_seen, without_forgotten

    plan: Plan = evidence.plan
    answers = [final["supply"] for final in evidence.finals.values() if final.get("supply")]
    model: Model = plan.model
    changed: tuple[str, ...] = ()
    if plan.phases.rates:
        model = replace(model, rates=tuple(rate * plan.mean_share for rate in model.rates))
        changed = (f"rate steps, on average {percent(plan.mean_share, 1)} of the rates",)
    limit_s = plan.crash.recovery_s if plan.crash is not None else None
    groups = {MESSAGES[p.subject].name: p.name for p in parts_of(model) if p.role == "handlers"}
    seen = supply_seen(
        model,
        answers,
        evidence.window_rows(),
        (evidence.windows.get("warmup", (0, 0)), evidence.windows.get("measure", (0, 0))),
        workers=len(plan.workers),
        progress_s=plan.report_every_s or 0.0,
        clock_ms=evidence.facts.service.clock_bound_ns / 1e6,
        recovery=None if limit_s is None else recovery_of(limit_s, evidence.broken, answers),
        course=evidence.course(),
        depths={name: evidence.counts.under_way((group,)) for name, group in groups.items()},
        stored=evidence.stored(),
        broker_is_local=evidence.broker_is_local(),
        broker_is_private=plan.brokers.private,
        mixed_workers=mixed_workers(plan),
        endpoints=any(group.targets for group in plan.groups),
        case_study=plan.scenario.case_study,
        changed=changed,
    )
    audited = audit(model, seen)

    def conclude(verdict: Verdict) -> Conclusion:
        document = report(model, seen, audited, verdict.codes, plan.root)
        short = {name: value for name, value in document.items() if name not in OF_FILE_ALONE}
        if failed := audited.failed:
            first = failed[0]
            detail = (
                f"{len(failed)} of {len(audited.findings)} tests failed; {first.test} of "
                f"{first.subject}: expected {first.expected}, observed {first.observed}"
            )
            verdict = verdict.with_reasons(Reason("AUDIT", detail))
        return Conclusion(verdict, short, audit_summary(audited), {_FILE_NAME: document})

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


_FILE_NAME = "specjms.json"

CASE = Case(
    scenario=SupplyChain,
    groups=_groups,
    plan=_plan,
    behaviour="loadgen.specjms.behaviour",
    roles=_roles,
    review=_review,
    tables=supply_tables,
    document=_FILE_NAME,
    disclosure="loadgen.specjms.disclosure",
    notice=NOTICE,
    case_figures=_figures,
    **data_of("specjms"),
)
