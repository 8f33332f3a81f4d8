"""The faults of a relay as a value, and its counts.

    lose=0.01,delay=50ms@1/10,only=plant/#,seed=7

This file knows how faults are written and drawn, not how they are carried out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from loadgen.plan.units import parse_number, parse_seconds


@dataclass(frozen=True, slots=True)
class Chance:
    """How often something happens: each time with `probability`, or exactly every `every`-th time.

    Written as `0.01` or `1/100`.
    """

    probability: float = 0.0
    every: int = 0

    def __bool__(self) -> bool:
        return bool(self.every or self.probability)


NEVER: Final = Chance()
ALWAYS: Final = Chance(every=1)


class Dice:
    """Draws one `Chance` again and again, the same way for the same seed."""

    __slots__ = ("_chance", "_count", "_random")

    def __init__(self, chance: Chance, seed: str) -> None:
        self._chance = chance
        self._count = 0
        self._random = random.Random(seed)

    def roll(self) -> bool:
        """Whether it happens this time."""
        if self._chance.every:
            self._count += 1
            return self._count % self._chance.every == 0
        return bool(self._chance.probability) and self._random.random() < self._chance.probability

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""
        return self._random.randrange(bound)

    def noise(self, size_bytes: int) -> bytes:
        """Bytes of no meaning."""
        return self._random.randbytes(size_bytes)


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on purpose; the default is nothing.

    Of the faults `ON_DELIVERIES` at most one happens to a delivery, tried in that order, so that
    their counts add up. They, `delay`, `drop`, `reject`, `withhold` and `unsolicited` concern only
    messages whose topic matches the filter `only` (empty: all).
    """

    lose: Chance = NEVER  # the delivery does not happen; the publisher is acknowledged all the same
    repeat: Chance = NEVER  # it happens twice
    reorder: Chance = NEVER  # it happens after the next one of its topic to the same subscriber
    corrupt: Chance = NEVER  # one byte of the payload is changed
    misroute: Chance = NEVER  # it goes to a client that did not ask for it, instead
    mislabel: Chance = NEVER  # it comes under another topic
    foreign: Chance = NEVER  # after it comes a message that nobody sent
    downgrade: Chance = NEVER  # it is made at QoS 0, though more was granted
    alias: Chance = NEVER  # it has a Topic Alias, which the client did not allow (MQTT 5)
    delay_ns: int = 0  # it happens later, and what follows to that subscriber waits behind it
    delay_share: Chance = ALWAYS
    drop: Chance = NEVER  # the connection that sent the message is closed once it is served
    reject: int = 0  # the message is answered with this reason code and not delivered (MQTT 5)
    reject_share: Chance = ALWAYS
    withhold: Chance = NEVER  # the message is delivered, but its PUBACK or PUBCOMP never sent
    unreleased: Chance = NEVER  # a delivery at QoS 2 gets no PUBREL
    unsolicited: Chance = NEVER  # beside the message's own, a PUBACK for which nobody waits is sent
    refuse: int = 0  # CONNECT is answered with this MQTT 5 reason code (section 3.2.2.2)
    refuse_share: Chance = ALWAYS
    close: Chance = NEVER  # the connection is closed at its CONNECT, without an answer
    session: Chance = NEVER  # CONNACK to a clean start says Session Present
    subrefuse: int = 0  # SUBSCRIBE is answered with this reason code (section 3.9.3)
    subrefuse_share: Chance = ALWAYS
    subgrant: int | None = None  # SUBSCRIBE is granted no more than this QoS
    subgrant_share: Chance = ALWAYS
    reset_ns: int = 0  # as often a client, drawn at random, is cut off as by a broken network
    stall_ns: int = 0  # nothing is read or written for as long, from now
    ceiling: float = 0.0  # PUBLISH packets served a second, over all connections; the rest waits
    only: str = ""
    seed: int = 1

    def chance(self, name: str) -> Chance:
        """How often the fault of this name happens."""
        field_name, _, share_name = _PARSERS[name]
        value = getattr(self, field_name)
        if share_name and value == getattr(_NO_FAULTS, field_name):
            return NEVER
        share = getattr(self, share_name or field_name)
        return share if isinstance(share, Chance) else Chance(every=bool(share))

    def dice(self, name: str) -> Dice:
        """Draws the fault of this name, from its beginning."""
        return Dice(self.chance(name), f"{name} {self.seed}")

    @property
    def on_deliveries(self) -> bool:
        """Whether any fault looks at single deliveries."""
        return any(map(self.chance, (*ON_DELIVERIES, "delay")))

    @property
    def on_publishes(self) -> bool:
        """Whether any fault looks at single messages of publishers."""
        return any(map(self.chance, ON_PUBLISHES))


@dataclass(slots=True)
class FaultCounts:
    """Counts of a relay since its start.

    With no reconnect and nothing in flight, `delivered + lost - repeated - injected` is the number
    of deliveries that the broker made to connected subscribers.
    """

    connects: int = 0
    disconnects: int = 0
    received: int = 0
    """PUBLISH packets served."""
    delivered: int = 0
    """PUBLISH packets written to subscribers, without redelivery after a reconnect."""
    redelivered: int = 0
    discarded: int = 0
    """Deliveries that waited for a client that left."""
    held: int = 0
    """Deliveries waiting now."""
    connected: int = 0
    """Clients connected now."""
    refused: int = 0
    """CONNECT answered with a failure."""
    dropped: int = 0
    """Connections closed by fault or by command."""
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    corrupted: int = 0
    misrouted: int = 0
    mislabelled: int = 0
    injected: int = 0
    """Messages without a publisher, by the fault `foreign`."""
    downgraded: int = 0
    aliased: int = 0
    delayed: int = 0
    rejected: int = 0
    """PUBLISH packets answered with a failure; `received` does not count them."""
    withheld: int = 0
    unreleased: int = 0
    unsolicited: int = 0
    sessions_claimed: int = 0
    """CONNACK with Session Present but without a session, by the fault `session`."""
    subscriptions_refused: int = 0
    """SUBSCRIBE packets answered with a failure."""
    subscriptions_lowered: int = 0
    """SUBSCRIBE packets that were granted less than they asked for."""
    waiting: int = 0
    """PUBLISH packets received but not passed on yet because of a ceiling."""


def parse_faults(text: str) -> Faults:
    """Faults written as `name=value,name=value`; empty or `none` means no faults.

    A fault is a share, `0.01` or `1/100`, or a value: a time in `ns us ms s m h` (delay, stall,
    reset), a reason code, `135` or `0x87` (refuse, reject, subrefuse), a QoS (subgrant), messages
    a second, `5000` or `5k` (ceiling). delay, refuse, reject, subrefuse and subgrant may be
    `VALUE@SHARE`, share 1 when absent. `only` is a topic filter, `seed` a number.
    Raises KeyError for an unknown name, ValueError for an unreadable value.
    """
    fields: dict[str, Any] = {}
    for part in [] if text.strip() in ("", "none") else text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        field_name, parse, share_name = _PARSERS[name]
        # Only some are `VALUE@SHARE`; a topic filter may hold the sign itself.
        value, at, share = value.partition("@") if share_name else (value, "", "")
        fields[field_name] = parse(value)
        if at:
            fields[share_name] = _parse_chance(share)
    return Faults(**fields)


def _parse_chance(value: str) -> Chance:
    if value.startswith("1/"):
        return Chance(every=int(value[2:]))
    return Chance(probability=float(value))


def _parse_time_ns(value: str) -> int:
    return round(parse_seconds(value) * 1e9)


ON_DELIVERIES: Final = {
    "lose": "lost",
    "repeat": "repeated",
    "reorder": "reordered",
    "corrupt": "corrupted",
    "misroute": "misrouted",
    "mislabel": "mislabelled",
    "foreign": "injected",
    "downgrade": "downgraded",
    "alias": "aliased",
}
"""Faults of single deliveries, in the order in which they are tried, and the count of each."""

ON_PUBLISHES: Final = {
    "reject": "rejected",
    "withhold": "withheld",
    "unsolicited": "unsolicited",
    "drop": "dropped",
}
"""Faults of single messages on their way to the broker, and the count of each."""

COUNTED_AS: Final = {
    **ON_DELIVERIES,
    **ON_PUBLISHES,
    "delay": "delayed",
    "reset": "dropped",
    "refuse": "refused",
    "close": "dropped",
    "unreleased": "unreleased",
    "session": "sessions_claimed",
    "subrefuse": "subscriptions_refused",
    "subgrant": "subscriptions_lowered",
}
"""The count of each fault."""


# Name to field, how its value is read, and the field of its share where it has one.
_PARSERS: Final[dict[str, tuple[str, Callable[[str], object], str]]] = {
    **{
        name: (name, _parse_chance, "")
        for name in (*ON_DELIVERIES, *ON_PUBLISHES, "unreleased", "close", "session")
        if name != "reject"
    },
    "delay": ("delay_ns", _parse_time_ns, "delay_share"),
    **{
        name: (name, lambda value: int(value, 0), f"{name}_share")
        for name in ("refuse", "reject", "subrefuse")
    },
    "subgrant": ("subgrant", int, "subgrant_share"),
    "reset": ("reset_ns", _parse_time_ns, ""),
    "stall": ("stall_ns", _parse_time_ns, ""),
    "ceiling": ("ceiling", parse_number, ""),
    "only": ("only", str, ""),
    "seed": ("seed", int, ""),
}

_NO_FAULTS: Final = Faults()
