"""Hypothesis strategies: every control packet in any version, as the spec allows it."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from loadgen.mqtt import constants
from loadgen.mqtt import packets as mqtt
from loadgen.mqtt.properties import NO_PROPERTIES, PROPERTY_TABLE, Properties
from loadgen.mqtt.reason_codes import REASON_CODES
from tests.examples import examples

QUICK = examples(100)
THOROUGH = examples(400)

VERSIONS = (constants.MQTT_3_1, constants.MQTT_3_1_1, constants.MQTT_5)
versions = st.sampled_from(VERSIONS)
packet_ids = st.integers(1, 0xFFFF)
qos_levels = st.integers(0, 2)
payloads = st.binary(max_size=300)


def _text(without: str = "", min_size: int = 0) -> st.SearchStrategy[str]:
    alphabet = st.characters(codec="utf-8", exclude_characters="\0" + without)
    return st.text(alphabet, min_size=min_size, max_size=20)


texts = _text()
topic_names = _text("+#", min_size=1)
_levels = st.one_of(st.just("+"), _text("+#/$", min_size=1))
_plain_filters = st.builds(
    lambda levels, rest: "/".join(levels + rest),
    st.lists(_levels, min_size=1, max_size=4),
    st.sampled_from(([], ["#"], [""])),
)
_shared_filters = st.builds("$share/{}/{}".format, _text("+#/", min_size=1), _plain_filters)

_values: dict[str, st.SearchStrategy[Any]] = {
    "Byte": st.integers(0, 1),
    "Two Byte Integer": st.integers(1, 0xFFFF),
    "Four Byte Integer": st.integers(1, 0xFFFF_FFFF),
    "Variable Byte Integer": st.integers(1, 268_435_455),
    "UTF-8 Encoded String": texts,
    "Binary Data": st.binary(max_size=20),
    "UTF-8 String Pair": st.tuples(texts, texts),
}


@st.composite
def properties(draw: st.DrawFn, packet_type: int, version: int = constants.MQTT_5) -> Properties:
    """Draw properties that a packet (or WILL) may have."""
    if version != constants.MQTT_5 or draw(st.booleans()):
        return NO_PROPERTIES
    found: dict[str, Any] = {}
    allowed = [row for row in PROPERTY_TABLE if packet_type in row.packets]
    for row in draw(st.lists(st.sampled_from(allowed), unique_by=lambda row: row.identifier)):
        value = topic_names if row.name == "Response Topic" else _values[row.kind.name]
        if packet_type in row.repeatable_in:
            found[row.attribute] = tuple(draw(st.lists(value, max_size=3)))
        else:
            found[row.attribute] = (draw(value),) if row.repeatable_in else draw(value)
    if "authentication_data" in found:
        found.setdefault("authentication_method", draw(texts))
    return Properties(**found)


def topic_filters(version: int) -> st.SearchStrategy[str]:
    return (
        st.one_of(_plain_filters, _shared_filters)
        if version == constants.MQTT_5
        else _plain_filters
    )


def wills(version: int) -> st.SearchStrategy[mqtt.Will]:
    return st.builds(
        mqtt.Will,
        topic_names,
        payloads,
        qos_levels,
        st.booleans(),
        properties(constants.WILL, version),
    )


@st.composite
def connects(draw: st.DrawFn, version: int) -> mqtt.Connect:
    user_name = draw(st.none() | texts)
    clean_start = draw(st.booleans())
    may_have_password = user_name is not None or version == constants.MQTT_5
    needs_client_id = version == constants.MQTT_3_1_1 and not clean_start
    return mqtt.Connect(
        client_id=draw(
            _text(min_size=1).filter(lambda text: len(text) <= 23)
            if version == constants.MQTT_3_1
            else _text(min_size=int(needs_client_id))
        ),
        protocol_version=version,
        clean_start=clean_start,
        keep_alive=draw(st.integers(0, 0xFFFF)),
        user_name=user_name,
        password=draw(st.none() | st.binary(max_size=20)) if may_have_password else None,
        will=draw(st.none() | wills(version)),
        properties=draw(properties(constants.CONNECT, version)),
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> mqtt.ConnAck:
    codes = REASON_CODES[constants.CONNACK] if version == constants.MQTT_5 else range(6)
    reason_code = draw(st.sampled_from(sorted(codes)))
    present = version != constants.MQTT_3_1 and reason_code == 0 and draw(st.booleans())
    return mqtt.ConnAck(present, reason_code, draw(properties(constants.CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> mqtt.Publish:
    qos = draw(qos_levels)
    carried = draw(properties(constants.PUBLISH, version))
    return mqtt.Publish(
        topic_name="" if carried.topic_alias and draw(st.booleans()) else draw(topic_names),
        payload=draw(payloads),
        qos=qos,
        retain=draw(st.booleans()),
        dup=qos > 0 and draw(st.booleans()),
        packet_id=draw(packet_ids) if qos else 0,
        properties=carried,
    )


@st.composite
def acks(draw: st.DrawFn, version: int) -> mqtt.Packet:
    acknowledgements: tuple[tuple[Callable[..., mqtt.Packet], int], ...] = (
        (mqtt.PubAck, constants.PUBACK),
        (mqtt.PubRec, constants.PUBREC),
        (mqtt.PubRel, constants.PUBREL),
        (mqtt.PubComp, constants.PUBCOMP),
    )
    make, packet_type = draw(st.sampled_from(acknowledgements))
    codes = REASON_CODES[packet_type] if version == constants.MQTT_5 else {0}
    packet: mqtt.Packet = make(
        draw(packet_ids),
        draw(st.sampled_from(sorted(codes))),
        draw(properties(packet_type, version)),
    )
    return packet


@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> mqtt.Subscription:
    topic_filter = draw(topic_filters(version))
    if version != constants.MQTT_5:
        return mqtt.Subscription(topic_filter, draw(qos_levels))
    return mqtt.Subscription(
        topic_filter,
        draw(qos_levels),
        no_local=not topic_filter.startswith("$share/") and draw(st.booleans()),
        retain_as_published=draw(st.booleans()),
        retain_handling=draw(st.integers(0, 2)),
    )


def subscribes(version: int) -> st.SearchStrategy[mqtt.Subscribe]:
    several = st.lists(subscriptions(version), min_size=1, max_size=3).map(tuple)
    return st.builds(mqtt.Subscribe, packet_ids, several, properties(constants.SUBSCRIBE, version))


def subacks(version: int) -> st.SearchStrategy[mqtt.SubAck]:
    codes = REASON_CODES[constants.SUBACK] if version == constants.MQTT_5 else {0, 1, 2, 0x80}
    several = st.lists(st.sampled_from(sorted(codes)), min_size=1, max_size=4).map(tuple)
    return st.builds(mqtt.SubAck, packet_ids, several, properties(constants.SUBACK, version))


def unsubscribes(version: int) -> st.SearchStrategy[mqtt.Unsubscribe]:
    several = st.lists(topic_filters(version), min_size=1, max_size=3).map(tuple)
    return st.builds(
        mqtt.Unsubscribe, packet_ids, several, properties(constants.UNSUBSCRIBE, version)
    )


def unsubacks(version: int) -> st.SearchStrategy[mqtt.UnsubAck]:
    if version != constants.MQTT_5:
        return st.builds(mqtt.UnsubAck, packet_ids)
    codes = st.sampled_from(sorted(REASON_CODES[constants.UNSUBACK]))
    several = st.lists(codes, min_size=1, max_size=4).map(tuple)
    return st.builds(mqtt.UnsubAck, packet_ids, several, properties(constants.UNSUBACK, version))


def disconnects(version: int) -> st.SearchStrategy[mqtt.Disconnect]:
    codes = REASON_CODES[constants.DISCONNECT] if version == constants.MQTT_5 else {0}
    return st.builds(
        mqtt.Disconnect, st.sampled_from(sorted(codes)), properties(constants.DISCONNECT, version)
    )


def auths() -> st.SearchStrategy[mqtt.Auth]:
    return st.builds(
        mqtt.Auth, st.sampled_from(sorted(REASON_CODES[constants.AUTH])), properties(constants.AUTH)
    )


def packets(version: int) -> st.SearchStrategy[mqtt.Packet]:
    """Draw a packet of a version, of each type equally often."""
    both: list[st.SearchStrategy[Any]] = [
        connects(version),
        connacks(version),
        publishes(version),
        acks(version),
        subscribes(version),
        subacks(version),
        unsubscribes(version),
        unsubacks(version),
        disconnects(version),
        st.just(mqtt.PingReq()),
        st.just(mqtt.PingResp()),
    ]
    return st.one_of([*both, auths()] if version == constants.MQTT_5 else both)


versioned_packets = versions.flatmap(lambda version: st.tuples(packets(version), st.just(version)))
