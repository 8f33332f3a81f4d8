"""Topics, filters and properties of each message type: queues and the jms2009-PS options in MQTT.

A JMS queue is a topic with a shared subscription, a JMS topic a topic. Without selectors every
location and message type has a topic of its own; the other target destinations put several on one
topic and select by properties (jms2009-PS paper, table 2):

    selectors "broker"   each message carries LocationType, TargetLocationID and MessageType as
                         topic levels below the common topic, and the subscription is a filter with
                         `+` for those that the selector does not name
    selectors "client"   the properties of the selector are MQTT 5 user properties, the
                         subscription takes all of the topic, and the receiver discards the rest

A message to one location has that location as its target. Pub/sub messages belong to "HQ", as in
table 1 of the paper. ProductFamily is one more level or property where all families share a topic.
MQTT filters know no set: with `broker`, OR is one SUBSCRIBE with a filter for each family, SET a
SUBSCRIBE for each, and IN a single filter for all families, the receiver discarding the others.
"""

from dataclasses import dataclass
from typing import Final

from loadgen.specjms.messages import MESSAGES, Kind
from loadgen.specjms.model import Model, families_at, handlers_of

__all__ = [
    "Selector",
    "Subscriptions",
    "destination_name",
    "location_name",
    "properties_of",
    "selector_of",
    "subscriptions_of",
    "topic_of",
    "user_property",
]

_LEVELS: Final = ("LocationType", "TargetLocationID", "MessageType")
_SELECTED: Final[dict[str, tuple[str, ...]]] = {
    "LocationID-MessageType": (),
    "MessageType": ("TargetLocationID",),
    "Interaction": ("TargetLocationID", "MessageType"),
    "LocationType": ("TargetLocationID", "MessageType"),
    "LocationID": ("MessageType",),
    "Central": _LEVELS,
}
"""Properties that the selector of each target destination names."""
_FAMILY: Final = "ProductFamily"

Selector = tuple[tuple[bytes, ...], ...]
"""Terms of which each must hold; a term is the encoded properties of which one must be there."""


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """What a consumer asks for: the filters of each SUBSCRIBE that it sends, in order."""

    packets: tuple[tuple[str, ...], ...]
    qos: int


def location_name(kind: Kind, number: int) -> str:
    """A location as people call it, such as DC3."""
    return f"{kind.name}{number}"


def _target(number: int, destination: int) -> str:
    message = MESSAGES[number]
    if message.spread != "one":
        return message.owner.name
    return location_name(message.consumer, destination)


def _is_queue(model: Model, number: int) -> bool:
    return MESSAGES[number].spread == "one" and model.messages[number].queue


def _one_topic_of_families(model: Model, number: int) -> bool:
    return MESSAGES[number].spread == "family" and model.messages[number].subscription != "family"


def destination_name(model: Model, number: int, destination: int) -> str:
    """Name of a destination as the kit's, such as DC3_OrderQ or HQ_ProductFamilyT4."""
    message = MESSAGES[number]
    kind = "Q" if _is_queue(model, number) else "T"
    family = str(destination) if message.spread == "family" else ""
    return f"{_target(number, destination)}_{message.destination}{kind}{family}"


def _base(model: Model, root: str, number: int, destination: int) -> str:
    """The topic that messages share, without properties."""
    message = MESSAGES[number]
    options = model.messages[number]
    target = _target(number, destination)
    kind = "Q" if _is_queue(model, number) else "T"
    family = ""
    if message.spread == "family" and not _one_topic_of_families(model, number):
        family = str(destination)
    if kind == "Q" or options.target == "LocationID-MessageType":
        return f"{root}/{target}/{message.destination}{kind}{family}"
    shared = {
        "MessageType": f"{message.owner.name}_{message.destination}T",
        "Interaction": f"Interaction{message.interaction}_T",
        "LocationType": f"{message.owner.name}_T",
        "LocationID": f"{target}_T",
        "Central": "T",
    }[options.target]
    return f"{root}/{shared}{family}"


def _properties(model: Model, number: int, destination: int) -> dict[str, str]:
    """Every property of a message to this destination."""
    message = MESSAGES[number]
    values = {
        "LocationType": message.owner.name,
        "TargetLocationID": _target(number, destination),
        "MessageType": message.name,
    }
    if _one_topic_of_families(model, number):
        values[_FAMILY] = f"PF{destination}"
    return values


def _selected(model: Model, number: int) -> tuple[str, ...]:
    """Names of the properties that a consumer selects by; empty for a topic of its own."""
    if _is_queue(model, number):
        return ()
    named = _SELECTED[model.messages[number].target]
    return (*named, _FAMILY) if _one_topic_of_families(model, number) else named


def topic_of(model: Model, root: str, number: int, destination: int) -> str:
    """Topic to which a message type is published for this destination."""
    base = _base(model, root, number, destination)
    if model.selectors == "client" or not _selected(model, number):
        return base
    return "/".join((base, *_properties(model, number, destination).values()))


def user_property(name: str, value: str) -> bytes:
    """An MQTT 5 user property as it stands in a packet (section 2.2.2.2, identifier 0x26)."""
    key, text = name.encode(), value.encode()
    return b"\x26" + len(key).to_bytes(2) + key + len(text).to_bytes(2) + text


def properties_of(model: Model, number: int, destination: int) -> bytes:
    """User properties of a PUBLISH to this destination, without their length."""
    if model.selectors != "client":
        return b""
    values = _properties(model, number, destination)
    return b"".join(user_property(name, values[name]) for name in _selected(model, number))


def selector_of(model: Model, number: int, location: int) -> Selector:
    """What a consumer at this location keeps of what it receives; empty for all of it.

    With selectors at the broker nothing is left to select, but for IN (see above), whose
    families are told apart by the payload.
    """
    if model.selectors != "client":
        return ()
    terms = []
    for name in _selected(model, number):
        if name == _FAMILY:
            families = families_at(model, location)
            terms.append(tuple(user_property(name, f"PF{family}") for family in families))
        else:
            value = _properties(model, number, location)[name]
            terms.append((user_property(name, value),))
    return tuple(terms)


def subscriptions_of(model: Model, root: str, number: int, location: int) -> Subscriptions:
    """What a consumer of a message type at a location subscribes to."""
    message = MESSAGES[number]
    options = model.messages[number]
    if message.spread == "family":
        packets = _family_packets(model, root, number, location)
    else:
        packets = ((_filter(model, root, number, location),),)
    shared = handlers_of(model, number) > 1 and message.spread == "one"
    if shared:
        name = destination_name(model, number, location)
        packets = tuple(
            tuple(f"$share/{name}/{pattern}" for pattern in filters) for filters in packets
        )
    return Subscriptions(packets, options.qos)


def _filter(
    model: Model, root: str, number: int, destination: int, *, any_family: bool = False
) -> str:
    """Filter for what is published to one destination, or to that of any family."""
    base = _base(model, root, number, destination)
    selected = _selected(model, number)
    if model.selectors == "client" or not selected:
        return base
    levels = [
        value if name in selected and not (any_family and name == _FAMILY) else "+"
        for name, value in _properties(model, number, destination).items()
    ]
    return "/".join((base, *levels))


def _family_packets(
    model: Model, root: str, number: int, supplier: int
) -> tuple[tuple[str, ...], ...]:
    families = families_at(model, supplier)
    if not families:
        return ()
    subscription = model.messages[number].subscription
    if subscription == "IN" or (subscription != "family" and model.selectors == "client"):
        # The families share a topic: which of them counts is the receiver's to say.
        return ((_filter(model, root, number, families[0], any_family=True),),)
    filters = tuple(_filter(model, root, number, family) for family in families)
    if subscription == "SET":
        return tuple((pattern,) for pattern in filters)
    return (filters,)
