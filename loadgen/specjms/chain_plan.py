"""The groups of a supply chain for a plan, and the roles of its devices in a rehearsal."""

import math
from dataclasses import replace

from loadgen.plan.groups import Arrivals, DeviceGroup, Publishes, Subscribes
from loadgen.plan.plan import Plan
from loadgen.plan.rehearsal import Publication, Role, placed
from loadgen.specjms.chain_model import (
    ACKNOWLEDGED_AT_ONCE,
    Model,
    enabled_types,
    mean_received_by,
)
from loadgen.specjms.destinations import topic_of
from loadgen.specjms.expected import type_rates
from loadgen.specjms.layout import consumed_by, parts_of, subscriptions_at
from loadgen.specjms.messages import FIRST_OF_INTERACTION, outputs_of

RECEIVE_US = 8.0
CAUSE_US = 5.0
BEGIN_US = 10.0
"""Time of a core to receive a message, to send one that it causes, to begin an interaction."""


def groups_of_model(
    model: Model, arrivals: Arrivals = "constant", window: int = 100
) -> tuple[DeviceGroup, ...]:
    """Return the groups of a model; `window` is that of each driver."""
    groups = []
    for part in parts_of(model):
        publishes = subscribes = None
        consumed = consumed_by(model, part)
        durable = any(model.messages[n].durable for n in consumed)
        if part.role == "drivers":
            first = FIRST_OF_INTERACTION[part.subject - 1]
            options, rate = model.messages[first], model.rates[part.subject - 1]
            publishes = Publishes(
                topic=part.name,
                rate=rate,
                deliveries=math.ceil(mean_received_by(model, first)),
                qos=options.qos,
                size_bytes=(min(options.sizes_bytes), max(options.sizes_bytes)),
                arrivals=arrivals,
                window=window,
            )
            endpoints = {model.endpoints[part.subject - 1]}
            busy_us = rate / part.count * BEGIN_US
        else:
            qos = max(model.messages[n].qos for n in consumed)
            at_once = max(ACKNOWLEDGED_AT_ONCE[model.messages[n].acknowledgement] for n in consumed)
            subscribes = Subscribes((), qos, acknowledge_every=at_once)  # the model has filters
            endpoints = {model.messages[n].endpoint for n in consumed}
            rates = type_rates(model)
            caused_us = {n: RECEIVE_US + CAUSE_US * len(outputs_of(n)) for n in consumed}
            received_us = sum(rates[n].received * each_us for n, each_us in caused_us.items())
            busy_us = received_us / max(part.count, 1)
        groups.append(
            DeviceGroup(
                part.name,
                part.count,
                publishes=publishes,
                subscribes=subscribes,
                clean_start=not durable,
                targets=tuple(sorted(number - 1 for number in endpoints if number)),
                cores=busy_us * 1e-6,
                parts=part.places if part.count else 0,
                kind=part.kind.name,
            )
        )
    return tuple(groups)


def roles_of_supply_chain(plan: Plan) -> tuple[Role, ...]:
    """Return the roles of a rehearsal; the first driver publishes a message of each type."""
    model: Model = plan.model
    root = plan.root
    publications = tuple(
        Publication(
            topic_of(model, root, number, 0),
            model.messages[number].qos,
            max(model.messages[number].sizes_bytes),
        )
        for number in enabled_types(model)
    )
    roles: list[Role] = []
    for part, group in zip(parts_of(model), plan.groups, strict=True):
        packets, qos = subscriptions_at(model, root, part, 0)
        role = Role(group, 0, 0, packets[0] if packets else (), qos)
        roles += (
            replace(role, device=device, target=target)
            for device, target in placed(plan, group, 2 if role.shares else 1)
        )
    first = next(place for place, role in enumerate(roles) if role.group.publishes is not None)
    roles[first] = replace(roles[first], publications=publications)
    return tuple(roles)


def mixed_workers(plan: Plan) -> int:
    """Count the workers with agents of several kinds of locations."""
    parts = parts_of(plan.model)
    kinds = (
        {parts[share.group].kind for share in worker.shares if share.count}
        for worker in plan.workers
    )
    return sum(len(of_worker) > 1 for of_worker in kinds)
