"""The workload of one run, resolved: locations, rates, and how each message type is sent.

A `Model` is a few hundred bytes from which every worker derives the same numbering of
destinations, producers and streams (layout.py), so that a plan need not list them.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    INTERACTIONS,
    MESSAGES,
    LocationKind,
    number_of,
)
from loadgen.specjms.sizes import CLASS_PERCENT
from loadgen.specjms.topology import Locations, Topology, families_of, suppliers_of

NOTICE: Final = (
    "SPECjms2007 is a trademark of the Standard Performance Evaluation Corporation (SPEC). The "
    "results or findings here have not been reviewed or accepted by SPEC, therefore no comparison "
    "nor performance inference can be made against any published SPEC result. The official web "
    "site for SPECjms2007 is located at http://www.spec.org/osg/jms2007."
)
"""Notice that the run rules require for research use, before any figure (section 2.2.2)."""

TargetDestination = Literal[
    "LocationID-MessageType", "MessageType", "Interaction", "LocationType", "LocationID", "Central"
]
TARGETS: Final[tuple[TargetDestination, ...]] = get_args(TargetDestination)
"""Target destinations of jms2009-PS: which messages share a topic (paper, table 2)."""

SubscriptionType = Literal["family", "IN", "OR", "SET"]
SUBSCRIPTION_TYPES: Final[tuple[SubscriptionType, ...]] = get_args(SubscriptionType)
"""Subscription of a supplier to its product families: a topic for each, or one topic for all and a
selector (paper, section 3.1)."""

Selectors = Literal["broker", "client"]

CaseStudy = Literal["I", "II", "III"]
"""Scenarios of the case study in the paper of jms2009-PS (section 4.2)."""

Acknowledgement = Literal["AUTO", "CLIENT", "DUPS_OK"]
ACKNOWLEDGED_AT_ONCE: Final[Mapping[Acknowledgement, int]] = {"AUTO": 1, "CLIENT": 1, "DUPS_OK": 10}
"""Messages that an event handler acknowledges together, by the mode of a session that is not
transacted (SPECjms2007 article, table 1): each behind what it causes, or, lazily, ten at a time."""

BASE_LIMIT: Final = 20_000


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Options of one message type: the parameters of jms2009-PS and of the kit."""

    qos: int  # 0 not persistent, 1 persistent, 2 on request
    durable: bool  # messages wait in the session while the device is away
    transacted: bool  # produced and consumed as one unit: the input waits for its outputs
    queue: bool  # shared subscription of the handlers of a location, else a topic
    target: TargetDestination  # which messages share a topic, for those not sent to a queue
    subscription: SubscriptionType  # of callForOffers
    handlers: int  # of each agent
    sizes_bytes: tuple[int, int, int]  # payload of the three size classes
    # Share of each class where the type draws its own; None to use the interaction's.
    class_percent: tuple[int, int, int] | None = None
    acknowledgement: Acknowledgement = "AUTO"  # where it is not transacted
    endpoint: int = 0  # number of the broker's address for its event handlers, 0 for all in turn


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that decides what is sent to whom, and how often.

    `rates` are interactions begun per second in the whole system, 0 for one that is off; `drivers`
    those of each interaction and agent. `agents` of a location, by its kind, play it together; the
    event handlers of one share `connections`, or each has its own where that is 0. One message in
    `check_every` is checked against its CRC-32.
    """

    topology: Topology
    base: int
    locations: Locations
    rates: tuple[float, ...]
    families: int
    messages: tuple[MessageOptions, ...]
    drivers: tuple[int, ...]
    selectors: Selectors = "broker"
    agents: tuple[int, ...] = (1, 1, 1, 1)
    connections: tuple[int, ...] = (0, 0, 0, 0)
    endpoints: tuple[int, ...] = (0,) * 7  # of each interaction's drivers, as a type's
    check_every: int = 1
    class_percent: tuple[int, int, int] = CLASS_PERCENT

    def count_of(self, kind: LocationKind) -> int:
        return self.locations.of(kind)


def interactions_on(model: Model) -> tuple[int, ...]:
    """Return interactions that are not off."""
    return tuple(i for i in INTERACTIONS if model.rates[i - 1] > 0)


def enabled_types(model: Model) -> tuple[int, ...]:
    """Return numbers of the message types that occur: those of interactions that are not off."""
    return tuple(n for n, m in enumerate(MESSAGES) if model.rates[m.interaction - 1] > 0)


# Suppliers and families -------------------------------------------------------------------------


def families_at(model: Model, supplier: int) -> tuple[int, ...]:
    """Return product families that a supplier offers."""
    return families_of(model.locations.suppliers, model.families)[supplier]


@lru_cache(maxsize=8)
def answers_to_calls(model: Model) -> tuple[float, float]:
    """Mean (z) and standard deviation, over all families, of how many suppliers answer a call."""
    answers = [len(suppliers_of(f, model.locations.suppliers)) for f in range(model.families)]
    return statistics.fmean(answers), statistics.pstdev(answers)


# Destinations, consumers and producers ----------------------------------------------------------


def destinations_of(model: Model, number: int) -> int:
    """How many destinations a message type has: one a consuming location, family, or in all."""
    message = MESSAGES[number]
    if message.spread == "family":
        return model.families
    return 1 if message.spread == "all" else model.count_of(message.consumer)


def received_by(model: Model, number: int, destination: int) -> int:
    """Return how many consumers must receive each message sent to this destination."""
    if MESSAGES[number].spread == "family":
        return len(suppliers_of(destination, model.locations.suppliers))
    return model.locations.supermarkets if MESSAGES[number].spread == "all" else 1


def mean_received_by(model: Model, number: int) -> float:
    """How many consumers receive a message of this type, as the mean over its destinations."""
    if MESSAGES[number].spread == "family":
        return answers_to_calls(model)[0]
    return float(received_by(model, number, 0))


def handlers_of(model: Model, number: int) -> int:
    """Consumers of a message type at each location; one an agent where connections are shared."""
    kind = MESSAGES[number].consumer
    each = 1 if model.connections[kind] else model.messages[number].handlers
    return model.agents[kind] * each


def drivers_of(model: Model, interaction: int) -> int:
    """Return drivers of an interaction at each location that begins it."""
    sender = MESSAGES[FIRST_OF_INTERACTION[interaction - 1]].sender
    return model.agents[sender] * model.drivers[interaction - 1]


def producers_of(model: Model, number: int) -> int:
    """Return how many devices send a message type: drivers, or the handlers of what causes it."""
    message = MESSAGES[number]
    if message.cause is None:
        each = drivers_of(model, message.interaction)
    else:
        each = handlers_of(model, number_of(message.cause))
    return model.count_of(message.sender) * each


# What a broker must offer -----------------------------------------------------------------------


def shares_queues(model: Model) -> bool:
    """Whether shared subscriptions are needed: some location has several handlers of a type."""
    return any(handlers_of(model, n) > 1 for n in enabled_types(model))


def stores(model: Model) -> bool:
    """Return True if the broker keeps messages for handlers that are away."""
    return any(model.messages[n].durable for n in enabled_types(model))


def uses_wildcards(model: Model) -> bool:
    """Return True if filters with `+` are needed: messages share a topic and the broker selects."""
    topics = [options for n in enabled_types(model) if not (options := model.messages[n]).queue]
    return model.selectors == "broker" and any(
        options.target != "LocationID-MessageType" or options.subscription == "IN"
        for options in topics
    )


def highest_qos(model: Model) -> int:
    """Return largest QoS that any message type asks for."""
    return max(model.messages[n].qos for n in enabled_types(model))
