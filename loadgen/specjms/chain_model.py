"""The workload of one run, resolved: locations, rates, and how each message type is sent.

Every worker derives the same numbering of destinations, producers and streams from it (layout.py).
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from loadgen.specjms.messages import (
    CLASS_PERCENT,
    FIRST_OF_INTERACTION,
    INTERACTIONS,
    MESSAGES,
    LocationKind,
    number_of,
)
from loadgen.specjms.topology import Locations, Topology, families_of, suppliers_of

NOTICE: Final = (
    "SPECjms2007 is a trademark of the Standard Performance Evaluation Corporation (SPEC). The "
    "results or findings here have not been reviewed or accepted by SPEC, therefore no comparison "
    "nor performance inference can be made against any published SPEC result. The official web "
    "site for SPECjms2007 is located at http://www.spec.org/osg/jms2007."
)
"""Notice that the run rules require for research use, before any figure (section 2.2.2)."""

TRANSACTIONS: Final = (
    "Transacted messages are consumed and produced at least once as one unit: the input is "
    "acknowledged when all of its outputs are. MQTT has no atomic transaction."
)

TargetDestination = Literal[
    "LocationID-MessageType", "MessageType", "Interaction", "LocationType", "LocationID", "Central"
]
TARGETS: Final[tuple[TargetDestination, ...]] = get_args(TargetDestination)
"""Target destinations of jms2009-PS; they decide which messages share a topic (paper, table 2)."""

SubscriptionType = Literal["family", "IN", "OR", "SET"]
SUBSCRIPTION_TYPES: Final[tuple[SubscriptionType, ...]] = get_args(SubscriptionType)
"""Subscription to product families: a topic for each, or one and a selector (paper, 3.1)."""

Selectors = Literal["broker", "client"]

CaseStudy = Literal["I", "II", "III"]  # in the paper of jms2009-PS (section 4.2)

Acknowledgement = Literal["AUTO", "CLIENT", "DUPS_OK"]
ACKNOWLEDGED_AT_ONCE: Final[Mapping[Acknowledgement, int]] = {"AUTO": 1, "CLIENT": 1, "DUPS_OK": 10}
"""Messages that a handler acknowledges together, if not transacted (article, table 1)."""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Options of one message type: the parameters of jms2009-PS and of the kit."""

    qos: int  # 0 not persistent, 1 persistent, 2 on request
    durable: bool  # messages wait in the session while the device is away
    transacted: bool  # one unit: the input is acknowledged after its outputs
    queue: bool  # shared subscription of the handlers of a location, else a topic
    target: TargetDestination  # decides which messages share a topic, if not sent to a queue
    subscription: SubscriptionType  # of callForOffers
    handlers: int  # of each agent
    sizes_bytes: tuple[int, int, int]  # payload of the three size classes
    # Share of each class if the type draws a class for each message; None for the interaction's.
    class_percent: tuple[int, int, int] | None = None
    acknowledgement: Acknowledgement = "AUTO"  # if not transacted
    endpoint: int = 0  # number of the broker's address for its event handlers, 0 for all in turn


@dataclass(frozen=True, slots=True)
class Model:
    """The workload of the whole system: locations, rates, and options of each message type.

    `rates` are interactions begun per second in the whole system, 0 for one that is off. `drivers`
    are for each agent, by interaction; `agents` for each location, by its kind. The event handlers
    of an agent share `connections`, or have one each if that is 0. One message in `check_every` is
    checked against its CRC-32.
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
    endpoints: tuple[int, ...] = (0,) * 7  # of the drivers, by interaction
    check_every: int = 1
    class_percent: tuple[int, int, int] = CLASS_PERCENT

    def count_of(self, kind: LocationKind) -> int:
        return self.locations.of(kind)


def interactions_on(model: Model) -> tuple[int, ...]:
    return tuple(i for i in INTERACTIONS if model.rates[i - 1] > 0)


def enabled_types(model: Model) -> tuple[int, ...]:
    """Return the numbers of the message types of interactions that are not off."""
    return tuple(n for n, m in enumerate(MESSAGES) if model.rates[m.interaction - 1] > 0)


def families_at(model: Model, supplier: int) -> tuple[int, ...]:
    return families_of(model.locations.suppliers, model.families)[supplier]


@lru_cache(maxsize=8)
def answers_to_calls(model: Model) -> tuple[float, float]:
    """Return mean (z) and standard deviation of the suppliers that answer a call."""
    answers = [len(suppliers_of(f, model.locations.suppliers)) for f in range(model.families)]
    return statistics.fmean(answers), statistics.pstdev(answers)


def destinations_of(model: Model, number: int) -> int:
    """Count the destinations of a type: one per consuming location, one per family, or one."""
    message = MESSAGES[number]
    if message.spread == "family":
        return model.families
    return 1 if message.spread == "all" else model.count_of(message.consumer)


def received_by(model: Model, number: int, destination: int) -> int:
    """Count the consumers that must receive each message sent to this destination."""
    if MESSAGES[number].spread == "family":
        return len(suppliers_of(destination, model.locations.suppliers))
    return model.locations.supermarkets if MESSAGES[number].spread == "all" else 1


def mean_received_by(model: Model, number: int) -> float:
    """Return the mean number of consumers of a message, over the destinations of its type."""
    if MESSAGES[number].spread == "family":
        return answers_to_calls(model)[0]
    return float(received_by(model, number, 0))


def handlers_of(model: Model, number: int) -> int:
    """Count the consumers of a type at each location; one per agent if connections are shared."""
    kind = MESSAGES[number].consumer
    each = 1 if model.connections[kind] else model.messages[number].handlers
    return model.agents[kind] * each


def drivers_of(model: Model, interaction: int) -> int:
    """Count the drivers of an interaction at each location that begins it."""
    sender = MESSAGES[FIRST_OF_INTERACTION[interaction - 1]].sender
    return model.agents[sender] * model.drivers[interaction - 1]


def producers_of(model: Model, number: int) -> int:
    """Count the devices that send a message type: drivers, or the handlers of its cause."""
    message = MESSAGES[number]
    if message.cause is None:
        each = drivers_of(model, message.interaction)
    else:
        each = handlers_of(model, number_of(message.cause))
    return model.count_of(message.sender) * each
