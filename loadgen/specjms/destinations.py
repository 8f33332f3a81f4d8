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
An MQTT filter cannot name a set: with `broker`, OR is one SUBSCRIBE with a filter for each family,
SET a SUBSCRIBE for each, and IN a single filter for all families, the receiver discarding the rest.
"""

from dataclasses import dataclass
from typing import Final

from loadgen.specjms.chain_model import Model, TargetDestination, families_at, handlers_of
from loadgen.specjms.messages import MESSAGES, LocationKind

_LEVELS: Final = ("LocationType", "TargetLocationID", "MessageType")
_FAMILY: Final = "ProductFamily"

_TARGETS: Final[dict[TargetDestination, tuple[str, tuple[str, ...]]]] = {
    "LocationID-MessageType": ("{target}/{destination}T", ()),
    "MessageType": ("{owner}_{destination}T", ("TargetLocationID",)),
    "Interaction": ("Interaction{interaction}_T", ("TargetLocationID", "MessageType")),
    "LocationType": ("{owner}_T", ("TargetLocationID", "MessageType")),
    "LocationID": ("{target}_T", ("MessageType",)),
    "Central": ("T", _LEVELS),
}
"""Topic of the messages of each target destination, and the properties that its selector names."""

Selector = tuple[tuple[bytes, ...], ...]
"""Terms that must all hold; a term holds where one of its encoded properties is present."""


@dataclass(frozen=True, slots=True)
class WantedFilters:
    """Subscriptions of a consumer: the filters of each SUBSCRIBE that it sends, in order."""

    packets: tuple[tuple[str, ...], ...]
    qos: int


def location_name(kind: LocationKind, number: int) -> str:
    """Return a location as people call it, such as DC3."""
    return f"{kind.name}{number}"


def destination_name(model: Model, number: int, destination: int) -> str:
    """Name of a destination as the kit's, such as DC3_OrderQ or HQ_ProductFamilyT4."""
    message = MESSAGES[number]
    family = str(destination) if message.spread == "family" else ""
    queue_or_topic = "Q" if _is_queue(model, number) else "T"
    return f"{_target(number, destination)}_{message.destination}{queue_or_topic}{family}"


def topic_of(model: Model, root: str, number: int, destination: int) -> str:
    """Return topic to which a message type is published for this destination."""
    base = _base(model, root, number, destination)
    if model.selectors == "client" or not _selected(model, number):
        return base
    return "/".join((base, *_properties(model, number, destination).values()))


def shared_topic_of(model: Model, root: str, number: int, destination: int) -> str:
    """The topic that messages to this destination share with others, without levels that select."""
    return _base(model, root, number, destination)


def properties_of(model: Model, number: int, destination: int) -> bytes:
    """Return user properties of a PUBLISH to this destination, without their length."""
    if model.selectors != "client":
        return b""
    values = _properties(model, number, destination)
    return b"".join(user_property(name, values[name]) for name in _selected(model, number))


def selector_of(model: Model, number: int, location: int) -> Selector:
    """Return what a consumer at this location keeps of what it receives; empty for all of it.

    A broker that selects leaves nothing to select, except with IN (see above), where the receiver
    finds the family in the payload.
    """
    if model.selectors != "client":
        return ()
    terms = []
    for name in _selected(model, number):
        if name == _FAMILY:
            values = [f"PF{family}" for family in families_at(model, location)]
        else:
            values = [_properties(model, number, location)[name]]
        terms.append(tuple(user_property(name, value) for value in values))
    return tuple(terms)


def subscriptions_of(model: Model, root: str, number: int, location: int) -> WantedFilters:
    """Return what a consumer of a message type at a location subscribes to."""
    packets: tuple[tuple[str, ...], ...]
    if MESSAGES[number].spread == "family":
        packets = _family_packets(model, root, number, location)
    else:
        packets = ((_filter(model, root, number, location),),)
    if handlers_of(model, number) > 1:
        share = consumed_at(model, number, location)
        packets = tuple(tuple(f"$share/{share}/{one}" for one in packet) for packet in packets)
    return WantedFilters(packets, model.messages[number].qos)


def consumed_at(model: Model, number: int, location: int) -> str:
    """Name of what a location consumes of a type: its queue, or its subscription to the topic."""
    message = MESSAGES[number]
    if not message.pubsub:
        return destination_name(model, number, location)
    return f"{location_name(message.consumer, location)}_{message.destination}"


def user_property(name: str, value: str) -> bytes:
    """An MQTT 5 user property as it stands in a packet (section 2.2.2.2, identifier 0x26)."""
    key, text = name.encode(), value.encode()
    return b"\x26" + len(key).to_bytes(2) + key + len(text).to_bytes(2) + text


def _target(number: int, destination: int) -> str:
    message = MESSAGES[number]
    return message.owner.name if message.pubsub else location_name(message.consumer, destination)


def _is_queue(model: Model, number: int) -> bool:
    return not MESSAGES[number].pubsub and model.messages[number].queue


def _families_share_a_topic(model: Model, number: int) -> bool:
    return MESSAGES[number].spread == "family" and model.messages[number].subscription != "family"


def _base(model: Model, root: str, number: int, destination: int) -> str:
    """Return the topic that messages share, without properties."""
    message, target = MESSAGES[number], _target(number, destination)
    if _is_queue(model, number):
        return f"{root}/{target}/{message.destination}Q"
    own_topic = message.spread == "family" and not _families_share_a_topic(model, number)
    family = str(destination) if own_topic else ""
    topic = _TARGETS[model.messages[number].target][0].format(
        owner=message.owner.name,
        destination=message.destination,
        interaction=message.interaction,
        target=target,
    )
    return f"{root}/{topic}{family}"


def _properties(model: Model, number: int, destination: int) -> dict[str, str]:
    """Return every property of a message to this destination."""
    message = MESSAGES[number]
    values = (message.owner.name, _target(number, destination), message.name)
    properties = dict(zip(_LEVELS, values, strict=True))
    if _families_share_a_topic(model, number):
        properties[_FAMILY] = f"PF{destination}"
    return properties


def _selected(model: Model, number: int) -> tuple[str, ...]:
    """Return names of the properties that a consumer selects by; empty for a topic of its own."""
    if _is_queue(model, number):
        return ()
    _, named = _TARGETS[model.messages[number].target]
    return (*named, _FAMILY) if _families_share_a_topic(model, number) else named


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
        # The families share a topic, and the receiver keeps its own.
        return ((_filter(model, root, number, families[0], any_family=True),),)
    filters = tuple(_filter(model, root, number, family) for family in families)
    return tuple((pattern,) for pattern in filters) if subscription == "SET" else (filters,)
