"""Messages of the supply chain: 19 types, their destinations, effects and sizes.

The tables are in specification.toml, with their sources. Size in KB = m · x + b, where x is a
quantity such as the lines of an order, in three classes: 95 % small, 4 % medium, 1 % large, drawn
once when an interaction begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, get_args

from loadgen.sentences import read_table

SPECIFICATION: Final[Mapping[str, Any]] = read_table("loadgen.specjms", "specification.toml")
"""The published tables, by name."""


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

BodyType = Literal["object", "text", "XML", "stream", "map"]

Quantities = Mapping[str, tuple[float, float, float]]  # values of each x: small, medium, large

DEFAULT_QUANTITIES: Final[Quantities] = SPECIFICATION["quantities"]
CLASS_PERCENT: Final = (95, 4, 1)
INTERACTIONS: Final = (1, 2, 3, 4, 5, 6, 7)


def group_of(*, pubsub: bool, persistent: bool) -> MixGroup:
    """Return the part of the message mix to which such messages belong."""
    return GROUPS[2 * (not pubsub) + persistent]


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message type as SPECjms2007 defines it.

    `destination` is its queue or topic without the location's name. `sender` sends this type when a
    message of type `cause` arrives, or by schedule if that is None. `line` is the kind of the lines
    in its `body`. `kb` and `kb_each` are b and, by quantity, m of its size.
    """

    name: str
    interaction: int
    sender: LocationKind
    consumer: LocationKind
    destination: str
    body: BodyType
    line: str
    kb: float
    kb_each: Mapping[str, float] = field(default_factory=dict)
    cause: str | None = None
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
        """True for a durable topic (column D)."""
        return self.pubsub and self.persistent

    @property
    def group(self) -> MixGroup:
        return group_of(pubsub=self.pubsub, persistent=self.persistent)


MESSAGES: Final = tuple(
    MessageType(**row | {name: LocationKind[row[name]] for name in ("sender", "consumer")})
    for row in SPECIFICATION["messages"]
)
"""Every message type, in the order of the published table; a type's number is its place here."""

TYPES: Final = tuple(message.name for message in MESSAGES)

FIRST_OF_INTERACTION: Final = tuple(n for n, m in enumerate(MESSAGES) if m.cause is None)
"""Number of the message type that begins each interaction."""


def number_of(name: str) -> int:
    """Return the number of a message type; raises ValueError for an unknown name."""
    return TYPES.index(name)


def outputs_of(number: int) -> tuple[int, ...]:
    """Return the numbers of the types that this type causes, in the order of sending."""
    return tuple(at for at, message in enumerate(MESSAGES) if message.cause == TYPES[number])


def message_sizes(quantities: Quantities = DEFAULT_QUANTITIES) -> tuple[tuple[int, int, int], ...]:
    """Return the payload bytes of each message type in each class, shape (types, 3)."""
    return tuple(
        (_bytes(one, quantities, 0), _bytes(one, quantities, 1), _bytes(one, quantities, 2))
        for one in MESSAGES
    )


def _bytes(message: MessageType, quantities: Quantities, size_class: int) -> int:
    variable = sum(each * quantities[x][size_class] for x, each in message.kb_each.items())
    return round(1024 * (message.kb + variable))
