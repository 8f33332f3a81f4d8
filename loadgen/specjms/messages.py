"""Messages of the supply chain: 19 types, their destinations and effects.

Types, destinations and properties: SPECjms2007 article, table 2, and jms2009-PS paper, table 1.
Names of destinations: K. Sachs, thesis, TU Darmstadt 2010, page 124. Causes: the step lists of the
article. One kind of location consumes each type, so the type alone decides which types it causes.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, get_args


class LocationKind(IntEnum):
    """Kinds of locations, in the order of every table."""

    SM = 0
    DC = 1
    SP = 2
    HQ = 3


Spread = Literal["one", "family", "all"]
"""Receivers: one location, the suppliers of a product family, every supermarket."""

MixGroup = Literal["a", "b", "c", "d"]
GROUPS: Final[tuple[MixGroup, ...]] = get_args(MixGroup)
"""The message mix: a pub/sub, not persistent; b pub/sub, persistent; c point to point, not
persistent; d point to point, persistent."""

INTERACTIONS: Final = (1, 2, 3, 4, 5, 6, 7)


def group_of(*, pubsub: bool, persistent: bool) -> MixGroup:
    """Return the part of the message mix to which such messages belong."""
    return GROUPS[2 * (not pubsub) + persistent]


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message type as SPECjms2007 defines it.

    `destination` is its queue or topic without the location's name, `consumer` the kind of location
    that receives from it. `sender` sends this type when a message of type `cause` arrives. `cause`
    is None for the first message of an interaction, which is sent by schedule.
    """

    name: str
    interaction: int
    sender: LocationKind
    consumer: LocationKind
    destination: str
    cause: str | None
    spread: Spread = "one"
    persistent: bool = True

    @property
    def pubsub(self) -> bool:
        """True if SPECjms2007 sends it to a topic."""
        return self.spread != "one"

    @property
    def owner(self) -> LocationKind:
        """Kind of location that the destination is named after."""
        return LocationKind.HQ if self.pubsub else self.consumer

    @property
    def transacted(self) -> bool:
        """True if it is part of a transaction (column T), as each persistent type is."""
        return self.persistent

    @property
    def durable(self) -> bool:
        """True for a durable topic (column D); queues keep persistent messages in any case."""
        return self.pubsub and self.persistent

    @property
    def group(self) -> MixGroup:
        """Its published part of the message mix."""
        return group_of(pubsub=self.pubsub, persistent=self.persistent)


_SM, _DC, _SP, _HQ = LocationKind.SM, LocationKind.DC, LocationKind.SP, LocationKind.HQ

MESSAGES: Final = (
    MessageType("order", 1, _SM, _DC, "Order", None),
    MessageType("orderConf", 1, _DC, _SM, "OrderConf", "order"),
    MessageType("shipDep", 1, _DC, _DC, "ShipDep", "order"),
    MessageType("statInfoOrderDC", 1, _DC, _HQ, "Stats", "order", persistent=False),
    MessageType("shipInfo", 1, _DC, _SM, "ShipArr", "order"),
    MessageType("shipConf", 1, _SM, _DC, "ShipConf", "shipInfo"),
    MessageType("callForOffers", 2, _DC, _SP, "ProductFamily", None, "family"),
    MessageType("offer", 2, _SP, _DC, "IncomingOffers", "callForOffers"),
    MessageType("pOrder", 2, _DC, _SP, "POrder", "offer"),
    MessageType("pOrderConf", 2, _SP, _DC, "POrderConf", "pOrder"),
    MessageType("invoice", 2, _SP, _HQ, "Invoice", "pOrder"),
    MessageType("pShipInfo", 2, _SP, _DC, "PShipArr", "pOrder"),
    MessageType("pShipConf", 2, _DC, _SP, "ShipConf", "pShipInfo"),
    MessageType("statInfoShipDC", 2, _DC, _HQ, "ShipDCStats", "pShipInfo", persistent=False),
    MessageType("priceUpdate", 3, _HQ, _SM, "PriceUpdate", None, "all"),
    MessageType("inventoryInfo", 4, _SM, _SM, "InvMovement", None),
    MessageType("statInfoSM", 5, _SM, _HQ, "SMStats", None, persistent=False),
    MessageType("productAnnouncement", 6, _HQ, _SM, "ProductAnnouncement", None, "all", False),
    MessageType("creditCardHL", 7, _HQ, _SM, "CreditCardHotlist", None, "all", False),
)
"""Every message type, in the order of the published table; a type's number is its place here."""

TYPES: Final = tuple(message.name for message in MESSAGES)

FIRST_OF_INTERACTION: Final = tuple(n for n, m in enumerate(MESSAGES) if m.cause is None)
"""Number of the message type that begins each interaction."""


def number_of(name: str) -> int:
    """Return the number of a message type; raises ValueError for an unknown name."""
    return TYPES.index(name)


def outputs_of(number: int) -> tuple[int, ...]:
    """Return the numbers of the types that this type causes, in the order of sending.

    Only the last `offer` of a call causes a `pOrder`.
    """
    return tuple(at for at, message in enumerate(MESSAGES) if message.cause == TYPES[number])
