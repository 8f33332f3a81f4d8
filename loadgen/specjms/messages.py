"""What the supply chain says: 19 message types, where each goes, and what it causes.

Types, destinations and properties: SPECjms2007 article, table 2, and jms2009-PS paper, table 1.
Destinations are called as the kit calls them (K. Sachs, thesis, TU Darmstadt 2010, page 124).
Flows: the article's step lists. A message type is consumed at one kind of location only, so a
reaction is known by the type alone.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

__all__ = [
    "FIRST_OF_INTERACTION",
    "GROUPS",
    "INTERACTIONS",
    "MESSAGES",
    "TYPES",
    "Group",
    "Kind",
    "MessageType",
    "group_of",
    "number_of",
    "outputs_of",
]


class Kind(IntEnum):
    """Kinds of locations, in the order in which every table has them."""

    SM = 0
    DC = 1
    SP = 2
    HQ = 3


Spread = Literal["one", "family", "all"]
"""To whom: one location, the suppliers of a product family, every supermarket."""

Group = Literal["a", "b", "c", "d"]
GROUPS: Final[tuple[Group, ...]] = ("a", "b", "c", "d")
"""The message mix: a pub/sub, not persistent; b pub/sub, persistent; c point to point, not
persistent; d point to point, persistent."""

INTERACTIONS: Final = (1, 2, 3, 4, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class MessageType:
    """One message type as SPECjms2007 has it.

    `destination` is its queue or topic without the location's name, `owner` the kind of location
    that the destination is named after, `consumer` the kind that receives from it. `persistent`,
    `transacted` and `durable` are the columns P, T and D. `size` names the quantity x of its size
    formula (sizes.py). `cause` is the type upon which it is sent, None for the first message of an
    interaction, which the kind `sender` sends by its schedule.
    """

    name: str
    interaction: int
    sender: Kind
    destination: str
    owner: Kind
    consumer: Kind
    cause: str | None
    spread: Spread = "one"
    persistent: bool = True
    transacted: bool = True
    durable: bool = False

    @property
    def pubsub(self) -> bool:
        """Whether SPECjms2007 sends it to a topic."""
        return self.spread != "one"


def _queue(
    name: str,
    interaction: int,
    sender: Kind,
    destination: str,
    consumer: Kind,
    cause: str | None,
    *,
    persistent: bool = True,
) -> MessageType:
    return MessageType(
        name,
        interaction,
        sender,
        destination,
        consumer,
        consumer,
        cause,
        persistent=persistent,
        transacted=persistent,
    )


_SM, _DC, _SP, _HQ = Kind.SM, Kind.DC, Kind.SP, Kind.HQ

MESSAGES: Final[tuple[MessageType, ...]] = (
    _queue("order", 1, _SM, "Order", _DC, None),
    _queue("orderConf", 1, _DC, "OrderConf", _SM, "order"),
    _queue("shipDep", 1, _DC, "ShipDep", _DC, "order"),
    _queue("statInfoOrderDC", 1, _DC, "Stats", _HQ, "order", persistent=False),
    _queue("shipInfo", 1, _DC, "ShipArr", _SM, "order"),
    _queue("shipConf", 1, _SM, "ShipConf", _DC, "shipInfo"),
    MessageType(
        "callForOffers", 2, _DC, "ProductFamily", _HQ, _SP, None, spread="family", durable=True
    ),
    _queue("offer", 2, _SP, "IncomingOffers", _DC, "callForOffers"),
    _queue("pOrder", 2, _DC, "POrder", _SP, "offer"),
    _queue("pOrderConf", 2, _SP, "POrderConf", _DC, "pOrder"),
    _queue("invoice", 2, _SP, "Invoice", _HQ, "pOrder"),
    _queue("pShipInfo", 2, _SP, "PShipArr", _DC, "pOrder"),
    _queue("pShipConf", 2, _DC, "ShipConf", _SP, "pShipInfo"),
    _queue("statInfoShipDC", 2, _DC, "ShipDCStats", _HQ, "pShipInfo", persistent=False),
    MessageType("priceUpdate", 3, _HQ, "PriceUpdate", _HQ, _SM, None, spread="all", durable=True),
    _queue("inventoryInfo", 4, _SM, "InvMovement", _SM, None),
    _queue("statInfoSM", 5, _SM, "SMStats", _HQ, None, persistent=False),
    MessageType(
        "productAnnouncement",
        6,
        _HQ,
        "ProductAnnouncement",
        _HQ,
        _SM,
        None,
        spread="all",
        persistent=False,
        transacted=False,
    ),
    MessageType(
        "creditCardHL",
        7,
        _HQ,
        "CreditCardHotlist",
        _HQ,
        _SM,
        None,
        spread="all",
        persistent=False,
        transacted=False,
    ),
)
"""Every message type, in the order of the published table; a type's number is its place here."""

TYPES: Final = tuple(message.name for message in MESSAGES)

FIRST_OF_INTERACTION: Final = tuple(
    next(
        number
        for number, message in enumerate(MESSAGES)
        if message.interaction == interaction and message.cause is None
    )
    for interaction in INTERACTIONS
)
"""Number of the message type that begins each interaction."""

_NUMBERS = {name: number for number, name in enumerate(TYPES)}


def number_of(name: str) -> int:
    """Number of a message type; raises KeyError for a name that is none."""
    return _NUMBERS[name]


def outputs_of(number: int) -> tuple[int, ...]:
    """Numbers of the types that a message of this type causes, in the order of sending.

    An `offer` causes its `pOrder` only when it is the last one of its call that arrives.
    """
    name = TYPES[number]
    return tuple(at for at, message in enumerate(MESSAGES) if message.cause == name)


def group_of(message: MessageType) -> Group:
    """Its part of the message mix."""
    if message.pubsub:
        return "b" if message.persistent else "a"
    return "d" if message.persistent else "c"
