import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import RemoteProtocolError
from loadgen.kernels.scan import ACK, MORE, OTHER, RUN, SINGLE, next_item
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_5, PUBACK
from loadgen.mqtt.packets import (
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
)
from loadgen.mqtt.properties import Properties

_LIMIT = 1 << 20
_ids = st.integers(1, 65535)
_topics = st.sampled_from(["a", "b", "topic/of/some/length"])
_payloads = st.binary(max_size=8) | st.just(b"x" * 200)
_packets: st.SearchStrategy[Packet] = st.one_of(
    st.builds(Publish, _topics, _payloads),
    st.builds(Publish, _topics, _payloads, retain=st.booleans()),
    st.builds(Publish, _topics, _payloads, qos=st.integers(1, 2), packet_id=_ids),
    st.builds(PubAck, _ids),
    st.builds(PubRec, _ids),
    st.builds(PubRel, _ids),
    st.builds(PubComp, _ids),
    st.just(PingReq()),
    st.builds(Subscribe, _ids, st.just((Subscription("a/#"),))),
)


def _walk(data: bytes, version: int, room: int) -> tuple[list[Packet], int]:
    """The packets in `data` as the reflector finds them, and where they end."""
    buffer = np.frombuffer(data, np.uint8).copy()
    starts, payloads = np.zeros(room + 1, np.int64), np.zeros(room, np.int64)
    found: list[Packet] = []
    position = 0
    while position < len(data):
        kind, end, a, b, c = next_item(
            buffer, position, len(data), version, _LIMIT, starts, payloads
        )
        if kind == MORE:
            break
        if kind == RUN:
            assert starts[0] == position
            assert starts[c] == end
            topic = data[a:b].decode()
            found += [Publish(topic, data[payloads[i] : starts[i + 1]]) for i in range(c)]
        elif kind == SINGLE:
            flags = data[position]
            payload = data[payloads[0] : end]
            qos, retain, dup = flags >> 1 & 3, bool(flags & 1), bool(flags & 8)
            found.append(Publish(data[a:b].decode(), payload, qos, retain, dup, c))
        elif kind == ACK:
            acks = PubAck(b), PubRec(b), PubRel(b), PubComp(b)
            found.append(acks[(a >> 4) - PUBACK])
        else:
            assert kind == OTHER
            decoded = decode(data, position, len(data), version, _LIMIT)
            assert decoded is not None
            packet, end = decoded
            found.append(packet)
        position = end
    return found, position


@given(st.lists(_packets, max_size=12), st.sampled_from([4, 5]), st.integers(1, 5), st.data())
@settings(deadline=None, max_examples=150)
def test_finds_what_the_codec_wrote(
    packets: list[Packet], version: int, room: int, data: st.DataObject
) -> None:
    encoded = [encode(packet, version) for packet in packets]
    whole = b"".join(encoded)
    assert _walk(whole, version, room) == (packets, len(whole))
    cut = data.draw(st.integers(0, len(whole)))
    found, position = _walk(whole[:cut], version, room)
    assert found == packets[: len(found)]
    assert position == sum(map(len, encoded[: len(found)]))
    assert len(found) == len(packets) or position + len(encoded[len(found)]) > cut


def test_runs_are_long() -> None:
    one = encode(Publish("a/b", b"12345678"), MQTT_5)
    data = np.frombuffer(one * 100 + encode(Publish("a/c", b""), MQTT_5), np.uint8).copy()
    starts, payloads = np.zeros(201, np.int64), np.zeros(200, np.int64)
    kind, end, _, _, count = next_item(data, 0, len(data), MQTT_5, _LIMIT, starts, payloads)
    assert (kind, end, count) == (RUN, 100 * len(one), 100)


def test_properties_are_for_the_codec() -> None:
    packet = Publish("a", b"x", properties=Properties(content_type="t"))
    assert _walk(encode(packet, MQTT_5), MQTT_5, 4)[0] == [packet]


@given(st.binary(max_size=40), st.sampled_from([4, 5]))
@settings(deadline=None, max_examples=200)
def test_hostile_bytes_are_left_to_the_codec(data: bytes, version: int) -> None:
    try:
        found, position = _walk(data, version, 3)
    except RemoteProtocolError:
        return
    assert 0 <= position <= len(data)
    # What was taken is what the codec takes.
    start = 0
    for packet in found:
        try:
            decoded = decode(data, start, len(data), version, _LIMIT)
        except RemoteProtocolError:
            # The text of a topic is looked at once per topic, by the reflector itself.
            assert isinstance(packet, Publish)
            return
        assert decoded is not None
        assert decoded[0] == packet
        start = decoded[1]
