"""Topics, filters and properties of each message type: queues and the jms2009-PS options in MQTT.

A JMS queue is a topic with a shared subscription, a JMS topic a topic. Target destinations other
than the first put several types on one topic and select by properties (jms2009-PS paper, table 2):

    selectors "broker"   the properties are topic levels below the common topic, and a filter
                         has `+` for those that the selector does not name
    selectors "client"   the properties are MQTT 5 user properties, the subscription takes all of
                         the topic, and the receiver discards the rest

Pub/sub messages belong to "HQ", as in table 1 of the paper. With `broker`, OR is one SUBSCRIBE with
a filter for each family, SET a SUBSCRIBE for each, and IN a filter for all families, of which the
receiver discards the rest.
"""

from collections.abc import Collection
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
"""Terms that must all hold; a term holds if one of its encoded properties is present."""


def location_name(kind: LocationKind, number: int) -> str:
    return f"{kind.name}{number}"


def destination_name(model: Model, number: int, destination: int) -> str:
    """Return the kit's name of a destination, such as DC3_OrderQ or HQ_ProductFamilyT4."""
    message = MESSAGES[number]
    family = str(destination) if message.spread == "family" else ""
    queue_or_topic = "Q" if _is_queue(model, number) else "T"
    return f"{_target(number, destination)}_{message.destination}{queue_or_topic}{family}"


def topic_of(
    model: Model, root: str, number: int, destination: int, named: Collection[str] | None = None
) -> str:
    """Return the topic to which a message type is published for this destination.

    With `named`, return a filter that selects by these properties only.
    """
    base, selected = _shared_topic(model, root, number, destination), _selected(model, number)
    if model.selectors == "client" or not selected:
        return base
    levels = _properties(model, number, destination).items()
    return "/".join((base, *(v if named is None or name in named else "+" for name, v in levels)))


def _shared_topic(model: Model, root: str, number: int, destination: int) -> str:
    """Return the topic of messages to this destination, without the levels that select."""
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


def properties_of(model: Model, number: int, destination: int) -> bytes:
    """Return the user properties of a PUBLISH to this destination, without their length."""
    if model.selectors != "client":
        return b""
    values = _properties(model, number, destination)
    return b"".join(user_property(name, values[name]) for name in _selected(model, number))


def selector_of(model: Model, number: int, location: int) -> Selector:
    """Return the selector of a consumer at this location; an empty one accepts every message."""
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


def subscriptions_of(
    model: Model, root: str, number: int, location: int
) -> tuple[tuple[str, ...], ...]:
    """Return the filters of each SUBSCRIBE that a consumer of a type at a location sends."""
    options = model.messages[number]
    places: tuple[int, ...] = (location,)
    any_family = False
    if MESSAGES[number].spread == "family":
        places = families_at(model, location)
        # The families share a topic, and the receiver discards the others.
        any_family = options.subscription == "IN" or (
            options.subscription != "family" and model.selectors == "client"
        )
        places = places[:1] if any_family else places
    named = [n for n in _selected(model, number) if not (any_family and n == _FAMILY)]
    filters = [topic_of(model, root, number, place, named) for place in places]
    packets = [(text,) for text in filters] if options.subscription == "SET" else [filters]
    if handlers_of(model, number) > 1:
        share = consumed_at(model, number, location)
        packets = [[f"$share/{share}/{text}" for text in packet] for packet in packets]
    return tuple(tuple(packet) for packet in packets if packet)


def consumed_at(model: Model, number: int, location: int) -> str:
    """Return the name of a location's queue of a type, or of its subscription to the topic."""
    message = MESSAGES[number]
    if not message.pubsub:
        return destination_name(model, number, location)
    return f"{location_name(message.consumer, location)}_{message.destination}"


def user_property(name: str, value: str) -> bytes:
    """Return an MQTT 5 user property as encoded in a packet (section 2.2.2.2, identifier 0x26)."""
    key, text = name.encode(), value.encode()
    return b"\x26" + len(key).to_bytes(2) + key + len(text).to_bytes(2) + text


def _target(number: int, destination: int) -> str:
    message = MESSAGES[number]
    return message.owner.name if message.pubsub else location_name(message.consumer, destination)


def _is_queue(model: Model, number: int) -> bool:
    return not MESSAGES[number].pubsub and model.messages[number].queue


def _families_share_a_topic(model: Model, number: int) -> bool:
    return MESSAGES[number].spread == "family" and model.messages[number].subscription != "family"


def _properties(model: Model, number: int, destination: int) -> dict[str, str]:
    message = MESSAGES[number]
    values = (message.owner.name, _target(number, destination), message.name)
    properties = dict(zip(_LEVELS, values, strict=True))
    if _families_share_a_topic(model, number):
        properties[_FAMILY] = f"PF{destination}"
    return properties


def _selected(model: Model, number: int) -> tuple[str, ...]:
    """Return the names of the properties that a consumer selects by; empty for a separate topic."""
    if _is_queue(model, number):
        return ()
    _, named = _TARGETS[model.messages[number].target]
    return (*named, _FAMILY) if _families_share_a_topic(model, number) else named
