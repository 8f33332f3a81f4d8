"""The kernels against codec.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import RemoteProtocolError
from loadgen.kernels import packet_bytes as kernels
from loadgen.mqtt import constants
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import Packet, PubAck, PubComp, Publish, PubRec, PubRel
from loadgen.mqtt.properties import NO_PROPERTIES, Properties, encode_properties
from loadgen.mqtt.wire import write_variable
from tests.mqtt.strategies import (
    QUICK,
    THOROUGH,
    acks,
    packet_ids,
    publishes,
    versioned_packets,
    versions,
)
from tests.tables import rows_of

_LIMIT = constants.MAX_REMAINING_LENGTH


def _array(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


class TestFrame:
    """Spec 2.1."""

    @given(versioned_packets, st.binary(max_size=5), st.binary(max_size=5))
    @QUICK
    def test_any_packet(self, case: tuple[Packet, int], before: bytes, after: bytes) -> None:
        packet, version = case
        data = encode(packet, version)
        start, end = len(before), len(before) + len(data)
        status, first_byte, body_start, packet_end = kernels.frame(
            _array(before + data + after), start, end + len(after), _LIMIT
        )
        assert (status, first_byte, packet_end) == (kernels.OK, data[0], end)
        assert first_byte >> 4 == packet.packet_type
        assert body_start == end - len(data) + (2 if len(data) < 130 else 3)

    @given(versioned_packets)
    @QUICK
    def test_every_prefix_is_incomplete(self, case: tuple[Packet, int]) -> None:
        data = encode(*case)
        header_bytes = 2 if len(data) < 130 else 3
        for end in range(len(data)):
            found = kernels.frame(_array(data), 0, end, _LIMIT)
            assert found[0] == kernels.INCOMPLETE
            assert found[3] == (len(data) if end >= header_bytes else 0)

    @given(st.binary(min_size=1, max_size=8), st.integers(0, 300))
    @THOROUGH
    def test_any_bytes_as_the_codec_sees_them(self, data: bytes, limit: int) -> None:
        status, *_, packet_end = kernels.frame(_array(data), 0, len(data), limit)
        try:
            found = decode(data, 0, len(data), 5, limit)
        except RemoteProtocolError as error:
            # A fault in the body is not one of the frame.
            if error.reason_code == 0x95:
                assert status == kernels.TOO_LARGE
            else:
                assert status in (kernels.MALFORMED, kernels.OK)
        else:
            assert status == (kernels.INCOMPLETE if found is None else kernels.OK)
            assert found is None or packet_end == found[1]

    @pytest.mark.parametrize("first_byte", range(256))
    def test_first_byte_as_the_codec_sees_it(self, first_byte: int) -> None:
        """Spec 2.1.2 and 2.1.3. With an incomplete length, the codec does not read the body."""
        data = bytes((first_byte,))
        status = kernels.frame(_array(data), 0, 1, _LIMIT)[0]
        try:
            assert decode(data, 0, 1, 5) is None
        except RemoteProtocolError:
            assert status == kernels.MALFORMED
        else:
            assert status == kernels.INCOMPLETE

    def test_limit(self) -> None:
        data = _array(bytes.fromhex("30 0a"))
        assert kernels.frame(data, 0, 2, 9)[0] == kernels.TOO_LARGE
        assert kernels.frame(data, 0, 2, 10)[0] == kernels.INCOMPLETE

    @pytest.mark.parametrize("data", ["30 80 00", "30 ff ff ff ff", "30 ff ff ff 80"])
    def test_bad_remaining_length(self, data: str) -> None:
        raw = _array(bytes.fromhex(data))
        assert kernels.frame(raw, 0, len(raw), _LIMIT)[0] == kernels.MALFORMED


def _read(data: bytes, version: int) -> tuple[int, ...]:
    """Return the fields that kernels read of a PUBLISH or an acknowledgement."""
    raw = _array(data)
    status, first_byte, body, end = kernels.frame(raw, 0, len(raw), _LIMIT)
    if status != kernels.OK:
        return (kernels.MALFORMED,)
    found: tuple[int, ...]
    if first_byte >> 4 == constants.PUBLISH:
        found = kernels.publish_fields(raw, first_byte, body, end, version)
        if found[0] == kernels.OK and not kernels.is_topic(raw, found[1], found[2]):
            return (kernels.MALFORMED,)
    else:
        found = kernels.ack_fields(raw, first_byte >> 4, body, end, version)
    return found


def _check(data: bytes, version: int) -> bool:
    """Check that kernels and codec agree on one packet; return True if they accept it."""
    status, *fields = _read(data, version)
    try:
        decoded = decode(data, 0, len(data), version)
    except RemoteProtocolError:
        assert status == kernels.MALFORMED, data.hex(" ")
        return False
    assert decoded is not None
    assert status == kernels.OK, data.hex(" ")
    packet = decoded[0]
    if isinstance(packet, Publish):
        start, end, packet_id, payload, properties = fields
        assert data[start:end].decode() == packet.topic_name
        assert (packet_id, data[payload:]) == (packet.packet_id, packet.payload)
        assert bool(properties) == (packet.properties != NO_PROPERTIES)
    else:
        assert isinstance(packet, PubAck | PubRec | PubRel | PubComp)
        assert fields == [packet.packet_id, packet.reason_code]
    return True


def _framed(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + write_variable(len(body), "length") + body


packets_read = versions.flatmap(
    lambda version: st.tuples(st.one_of(publishes(version), acks(version)), st.just(version))
)


class TestRead:
    """Kernels refuse what the codec refuses, and read the rest alike (spec 3.3 to 3.7)."""

    @given(packets_read)
    @QUICK
    def test_any_packet(self, case: tuple[Packet, int]) -> None:
        assert _check(encode(*case), case[1])

    @given(packets_read, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3))
    @THOROUGH
    def test_any_changed_packet(
        self, case: tuple[Packet, int], changes: list[tuple[int, int]]
    ) -> None:
        data = bytearray(encode(*case))
        for place, byte in changes:
            data[2 + place % (len(data) - 2)] = byte
        if data[1] < 0x80:
            _check(bytes(data), case[1])

    @given(st.sampled_from((0x30, 0x32, 0x3D, 0x40, 0x62)), st.binary(max_size=12), versions)
    @THOROUGH
    def test_any_body(self, first_byte: int, body: bytes, version: int) -> None:
        _check(_framed(first_byte, body), version)

    @pytest.mark.parametrize("properties", rows_of("mqtt.malformed_properties"))
    @pytest.mark.parametrize("first_byte", [0x30, 0x40])
    def test_malformed_properties(self, properties: str, first_byte: int) -> None:
        """Check each kind, unknown, repeated, cut short, out of range; also in PUBACK."""
        raw = bytes.fromhex(properties.replace(" ", ""))
        before = b"\0\1t" if first_byte == 0x30 else b"\0\1\0"
        reason_string = properties.startswith("1f") and first_byte == 0x40
        for length in (len(raw), len(raw) - 1, len(raw) + 1):
            accepted = _check(_framed(first_byte, before + bytes((length,)) + raw), 5)
            assert not accepted or length == 0 or (reason_string and length == len(raw))

    @pytest.mark.parametrize("topic", ["61 23", "2b", "61 00 62", "c3", "61" * 9 + "23", "2b" * 20])
    @pytest.mark.parametrize("version", [4, 5])
    def test_malformed_topics(self, topic: str, version: int) -> None:
        text = bytes.fromhex(topic.replace(" ", ""))
        assert not _check(_framed(0x30, len(text).to_bytes(2, "big") + text + b"\0"), version)

    @given(st.text(min_size=1, max_size=30).filter(lambda text: "\0" not in text))
    @QUICK
    def test_any_topic(self, topic: str) -> None:
        data = topic.encode("utf-8", "surrogatepass")
        _check(_framed(0x30, len(data).to_bytes(2, "big") + data), 4)


class TestWrite:
    """Spec 3.3 and 3.4.2.1: kernels write the same bytes as encode."""

    @given(
        versions.flatmap(lambda version: st.tuples(publishes(version), st.just(version))),
        st.sampled_from((0, 1, 110, 128, 16_370, 16_384, 2_097_152)),
        st.integers(0, 9),
        st.sampled_from((1, 1, 40, 300)),
    )
    @QUICK
    def test_publish(
        self, case: tuple[Publish, int], payload_bytes: int, position: int, repeat: int
    ) -> None:
        packet, version = case
        topic = packet.topic_name * repeat
        packet = replace(packet, topic_name=topic, payload=bytes(payload_bytes))
        self._check_publish(packet, version, position)

    @pytest.mark.parametrize("length", [0, 120, 124, 125, 16_380, 16_381, 65_535])
    def test_publish_with_long_properties(self, length: int) -> None:
        packet = Publish("t", b"12", properties=Properties(content_type="x" * length))
        self._check_publish(packet, 5, 1)

    def _check_publish(self, packet: Publish, version: int, position: int) -> None:
        expected = encode(packet, version)
        head_bytes = len(expected) - len(packet.payload)
        text = packet.topic_name.encode()
        topics = _array(b"other" + text + b"topics")
        carried = encode_properties(packet.properties, constants.PUBLISH)
        skipped = next(n for n, byte in enumerate(carried, 1) if byte < 0x80)
        flags = packet.dup << 3 | packet.qos << 1 | packet.retain
        out = np.full(position + len(expected) + 3, 0xEE, np.uint8)
        payload = kernels.write_publish(
            out, position, flags, topics[5 : 5 + len(text)], packet.packet_id, version,
            _array(carried)[skipped:], len(packet.payload),
        )  # fmt: skip
        assert payload == position + head_bytes
        assert out[position:payload].tobytes() == expected[:head_bytes]
        assert set(out[:position]) | set(out[payload:]) == {0xEE}

    @pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, _LIMIT])
    def test_variable(self, value: int) -> None:
        expected = write_variable(value, "value")
        out = np.full(7, 0xEE, np.uint8)
        end = kernels.write_variable(out, 1, value)
        assert out.tobytes() == b"\xee" + expected + b"\xee" * (7 - end)

    @given(packet_ids, versions)
    @QUICK
    def test_acknowledgements(self, packet_id: int, version: int) -> None:
        for make in (PubAck, PubRec, PubRel, PubComp):
            expected = encode(make(packet_id), version)
            out = np.zeros(6, np.uint8)
            assert kernels.write_ack(out, 1, make.packet_type, packet_id) == 5
            assert out.tobytes() == b"\0" + expected + b"\0"
