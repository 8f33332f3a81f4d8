"""The workload of one run, resolved: locations, rates, and how each message type is sent.

A `Model` is a few hundred bytes from which every worker derives the same numbering of
destinations, producers and streams (layout.py), so that a plan need not list them.
"""

import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    INTERACTIONS,
    MESSAGES,
    Kind,
    outputs_of,
)
from loadgen.specjms.sizes import CLASS_PERCENT
from loadgen.specjms.topology import Locations, Topology, families_of, suppliers_of

__all__ = [
    "BASE_LIMIT",
    "SUBSCRIPTION_TYPES",
    "TARGETS",
    "MessageOptions",
    "Model",
    "Selectors",
    "SubscriptionType",
    "Target",
    "destinations_of",
    "enabled_types",
    "highest_qos",
    "mean_suppliers",
    "received_by",
    "shares_queues",
    "spread_of_suppliers",
    "uses_wildcards",
]

Target = Literal[
    "LocationID-MessageType",
    "MessageType",
    "Interaction",
    "LocationType",
    "LocationID",
    "Central",
]
TARGETS: Final[tuple[Target, ...]] = (
    "LocationID-MessageType",
    "MessageType",
    "Interaction",
    "LocationType",
    "LocationID",
    "Central",
)
"""Target destinations of jms2009-PS: which messages share a topic (paper, table 2)."""

SubscriptionType = Literal["family", "IN", "OR", "SET"]
SUBSCRIPTION_TYPES: Final[tuple[SubscriptionType, ...]] = ("family", "IN", "OR", "SET")
"""How a supplier asks for its product families: a topic for each, or one topic for all and a
selector (paper, section 3.1)."""

Selectors = Literal["broker", "client"]

BASE_LIMIT: Final = 20_000


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How one message type is sent and received: the parameters of jms2009-PS and of the kit.

    qos           0 not persistent, 1 persistent, 2 on request
    durable       the subscription outlives its connection
    transacted    produced and consumed as one unit: the input waits for its outputs
    queue         shared subscription of the handlers of a location, else a topic
    target        which messages share a topic, for those not sent to a queue
    subscription  of callForOffers
    handlers      consumers at each location
    sizes_bytes   payload of the three size classes
    """

    qos: int
    durable: bool
    transacted: bool
    queue: bool
    target: Target
    subscription: SubscriptionType
    handlers: int
    sizes_bytes: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that decides what is sent to whom, and how often.

    `rates` are interactions begun a second in the whole system, 0 for one that is off; `drivers`
    those of each interaction at each location that begins it. `check_every` is how many messages
    go by until one is checked against its CRC-32.
    """

    topology: Topology
    base: int
    locations: Locations
    rates: tuple[float, ...]
    families: int
    messages: tuple[MessageOptions, ...]
    drivers: tuple[int, ...]
    selectors: Selectors = "broker"
    shared_connections: bool = False
    check_every: int = 1
    class_percent: tuple[int, int, int] = CLASS_PERCENT

    def count_of(self, kind: Kind) -> int:
        return self.locations.of(kind)


def enabled_types(model: Model) -> tuple[int, ...]:
    """Numbers of the message types that occur: those of interactions that are not off."""
    return tuple(
        number
        for number, message in enumerate(MESSAGES)
        if model.rates[message.interaction - 1] > 0
    )


@lru_cache(maxsize=8)
def mean_suppliers(suppliers: int, families: int) -> float:
    """Mean number of suppliers that answer a call for offers (z), over all families."""
    return sum(len(suppliers_of(family, suppliers)) for family in range(families)) / families


def spread_of_suppliers(model: Model) -> float:
    """Standard deviation of how many suppliers a call asks, the family being drawn."""
    places = model.locations.suppliers
    return statistics.pstdev(len(suppliers_of(f, places)) for f in range(model.families))


def destinations_of(model: Model, number: int) -> int:
    """How many destinations a message type has: one a consuming location, family, or in all."""
    message = MESSAGES[number]
    if message.spread == "family":
        return model.families
    return 1 if message.spread == "all" else model.count_of(message.consumer)


def received_by(model: Model, number: int, destination: int) -> int:
    """How many consumers must receive each message sent to this destination."""
    match MESSAGES[number].spread:
        case "family":
            return len(suppliers_of(destination, model.locations.suppliers))
        case "all":
            return model.locations.supermarkets
        case _:
            return 1


def producers_of(model: Model, number: int) -> int:
    """How many devices send a message type: drivers, or the handlers of what causes it."""
    message = MESSAGES[number]
    places = model.count_of(message.sender)
    if message.cause is None:
        return places * model.drivers[message.interaction - 1]
    return places * handlers_of(model, cause_of(number))


def handlers_of(model: Model, number: int) -> int:
    """Consumers of a message type at each location; one where connections are shared."""
    return 1 if model.shared_connections else model.messages[number].handlers


def cause_of(number: int) -> int:
    """Number of the type that causes this one; raises ValueError for a first message."""
    for cause in range(len(MESSAGES)):
        if number in outputs_of(cause):
            return cause
    raise ValueError(f"{MESSAGES[number].name} is caused by no message")


def families_at(model: Model, supplier: int) -> tuple[int, ...]:
    """Product families that a supplier offers."""
    return _families(model.locations.suppliers, model.families)[supplier]


@lru_cache(maxsize=8)
def _families(suppliers: int, families: int) -> tuple[tuple[int, ...], ...]:
    return families_of(suppliers, families)


def begins(number: int) -> bool:
    """Whether a message of this type begins an interaction."""
    return number in FIRST_OF_INTERACTION


def interactions_on(model: Model) -> tuple[int, ...]:
    """Interactions that are not off."""
    return tuple(i for i in INTERACTIONS if model.rates[i - 1] > 0)


def shares_queues(model: Model) -> bool:
    """Whether queues need shared subscriptions: some location has several handlers of one."""
    return any(
        handlers_of(model, n) > 1 for n in enabled_types(model) if MESSAGES[n].spread == "one"
    )


def uses_wildcards(model: Model) -> bool:
    """Whether filters with `+` are needed: messages share a topic and the broker selects."""
    if model.selectors == "client":
        return False
    return any(
        options.target != "LocationID-MessageType" or options.subscription == "IN"
        for options in (model.messages[n] for n in enabled_types(model))
        if not options.queue
    )


def highest_qos(model: Model) -> int:
    """Largest QoS that any message type asks for."""
    return max(model.messages[n].qos for n in enabled_types(model))
