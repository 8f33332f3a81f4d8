"""Control packets on the wire (spec 2 and 3)."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt import packets as packet_types
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import ConnAck, Connect, Packet, PingReq, PubAck, Publish, Will
from tests.mqtt.strategies import QUICK, THOROUGH, VERSIONS, packets, versioned_packets, versions
from tests.tables import rows_of


def packet_of(fields: dict[str, Any]) -> Packet:
    """Return the packet of a table."""
    kind = getattr(packet_types, fields["packet"])
    made: Packet = TypeAdapter(kind).validate_python({**fields, "packet": None})
    return made


def _decode_all(data: bytes, version: int) -> tuple[list[Packet], int]:
    """Return every complete packet in `data`, and the begin of the rest."""
    found, position = [], 0
    while (one := decode(data, position, len(data), version)) is not None:
        packet, position = one
        found.append(packet)
    return found, position


def _refusal(data: bytes, version: int) -> int:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(data, 0, len(data), version)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 1000
    return caught.value.reason_code


class TestWire:
    """Examples written by hand from the figures of the spec."""

    @pytest.mark.parametrize(("fields", "version", "data"), rows_of("mqtt.wire"))
    def test_bytes(self, fields: dict[str, Any], version: int, data: str) -> None:
        packet, expected = packet_of(fields), bytes.fromhex(data)
        assert encode(packet, version) == expected
        assert decode(expected, 0, len(expected), version) == (packet, len(expected))

    @pytest.mark.parametrize(("data", "fields"), rows_of("mqtt.written_out"))
    def test_optional_parts_written_out(self, data: str, fields: dict[str, Any]) -> None:
        """Spec 3.4.2.1, 3.14.2.1, 3.15.2.1."""
        raw = bytes.fromhex(data)
        assert decode(raw, 0, len(raw), 5) == (packet_of(fields), len(raw))


class TestMqtt31:
    """Differences of MQTT 3.1 ("MQTT V3.1 Protocol Specification") from MQTT 3.1.1."""

    def test_connect_has_its_own_name_and_level(self) -> None:
        data = bytes.fromhex("10 0f 0006 4d514973 6470 03 02 0000 0001 63")
        assert encode(Connect("c", 3), 3) == data
        assert decode(data, 0, len(data), 5) == (Connect("c", 3), len(data))

    @pytest.mark.parametrize("name", ["", "x" * 24])
    def test_a_client_identifier_has_1_to_23_characters(self, name: str) -> None:
        with pytest.raises(LocalProtocolError):
            encode(Connect(name, 3), 3)
        ours = encode(Connect("x" * 23, 3), 3)
        length = bytes((0, len(name)))
        theirs = ours[:14] + length + name.encode()
        theirs = theirs[:1] + bytes((len(theirs) - 2,)) + theirs[2:]
        assert _refusal(theirs, 3) == 0x85

    def test_connack_says_nothing_of_a_session(self) -> None:
        assert encode(ConnAck(True, 0), 3) == bytes.fromhex("20 02 00 00")
        for flags in ("00", "01", "ff"):
            data = bytes.fromhex(f"20 02 {flags} 00")
            assert decode(data, 0, 4, 3) == (ConnAck(False, 0), 4)

    @pytest.mark.parametrize("data", ["6a 02 0001", "8a 06 0001 0001 61 00", "aa 05 0001 0001 61"])
    def test_more_than_publish_may_be_sent_again_with_dup(self, data: str) -> None:
        packet = bytes.fromhex(data)
        assert decode(packet, 0, len(packet), 3) is not None
        assert _refusal(packet, 4) == 0x81


class TestRoundTrip:
    """Spec 2 and 3: written packets can be read, from any kind of buffer."""

    @given(versioned_packets)
    @THOROUGH
    def test_any_packet(self, case: tuple[Packet, int]) -> None:
        packet, version = case
        data = encode(packet, version)
        assert decode(data, 0, len(data), version) == (packet, len(data))

    @given(versioned_packets, st.binary(max_size=4), st.binary(max_size=4))
    @QUICK
    def test_inside_a_buffer(self, case: tuple[Packet, int], before: bytes, after: bytes) -> None:
        packet, version = case
        data = before + encode(packet, version) + after
        start, end = len(before), len(data) - len(after)
        for buffer in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
            assert decode(buffer, start, end, version) == (packet, end)

    def test_keeps_no_reference_to_the_buffer(self) -> None:
        buffer = bytearray(encode(Publish("a", b"payload"), 5))
        found = decode(buffer, 0, len(buffer), 5)
        assert found is not None
        buffer.clear()
        assert found[0] == Publish("a", b"payload")

    @pytest.mark.parametrize("payload_bytes", [0, 120, 124, 125, 16_379, 16_380, 2_097_148])
    def test_lengths_about_the_steps_of_remaining_length(self, payload_bytes: int) -> None:
        """Spec 2.1.4."""
        data = encode(Publish("a", bytes(payload_bytes)), 4)
        assert decode(data, 0, len(data), 4) == (Publish("a", bytes(payload_bytes)), len(data))


class TestSplit:
    """Spec 4.2: TCP may cut anywhere."""

    @given(versioned_packets)
    @QUICK
    def test_every_prefix_is_incomplete(self, case: tuple[Packet, int]) -> None:
        packet, version = case
        data = encode(packet, version)
        for end in range(len(data)):
            assert decode(data, 0, end, version) is None

    @given(versions.flatmap(lambda v: st.tuples(st.lists(packets(v), max_size=5), st.just(v))))
    @QUICK
    def test_a_row_of_packets(self, case: tuple[list[Packet], int]) -> None:
        several, version = case
        data = b"".join(encode(packet, version) for packet in several)
        assert _decode_all(data, version) == (several, len(data))


class TestHostileBytes:
    """Spec 4.13: any bytes raise RemoteProtocolError, or nothing."""

    @given(st.binary(max_size=60), versions)
    @THOROUGH
    @example(b"\x10\x0a\x00\x04MQTT\x05\x02\x00\x00\x00", 5)
    def test_random_bytes(self, data: bytes, version: int) -> None:
        try:
            _decode_all(data, version)
        except RemoteProtocolError as error:
            assert error.reason_code >= 0x80
            assert str(error).isprintable()

    @given(versioned_packets, st.data())
    @THOROUGH
    def test_damaged_packets(self, case: tuple[Packet, int], data: st.DataObject) -> None:
        packet, version = case
        raw = bytearray(encode(packet, version))
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        try:
            found, position = _decode_all(bytes(raw), version)
        except RemoteProtocolError as error:
            assert error.reason_code >= 0x80
            assert str(error).isprintable()
        else:
            assert position <= len(raw)
            assert all(one.packet_type for one in found)

    def test_length_over_the_limit_is_refused_before_the_body(self) -> None:
        """Spec 3.1.2.11.4: the header is enough."""
        header = bytes.fromhex("30 ffffff7f")
        with pytest.raises(RemoteProtocolError) as caught:
            decode(header, 0, len(header), 4, 1000)
        assert caught.value.reason_code == 0x95

    def test_limit_is_on_the_remaining_length(self) -> None:
        data = encode(Publish("a", b"xyz"), 4)
        assert decode(data, 0, len(data), 4, 6) == (Publish("a", b"xyz"), 8)
        with pytest.raises(RemoteProtocolError):
            decode(data, 0, len(data), 4, 5)

    def test_text_of_the_peer_is_bounded_and_escaped(self) -> None:
        topic = b"\x1b[31m\xe2\x80\xae" + b"x" * 5000 + b"#"
        body = len(topic).to_bytes(2, "big") + topic
        data = bytes((0x30, len(body) & 0x7F | 0x80, len(body) >> 7)) + body
        with pytest.raises(RemoteProtocolError) as caught:
            decode(data, 0, len(data), 4)
        assert len(str(caught.value)) < 300
        assert str(caught.value).isascii()
        assert str(caught.value).isprintable()


MALFORMED = tomllib.loads(Path(__file__).with_name("malformed.toml").read_text())
CASES = [
    *((data, version) for version in VERSIONS for data in MALFORMED["all_versions"].items()),
    *((data, 4) for data in MALFORMED["mqtt_3_1_1"].items()),
    *((data, 5) for data in MALFORMED["mqtt_5"].items()),
]


class TestMalformed:
    """One case for each rule, with the reason code that a DISCONNECT would carry."""

    @pytest.mark.parametrize(("case", "version"), CASES)
    def test_a_rule(self, case: tuple[str, int], version: int) -> None:
        data, reason_code = case
        assert _refusal(bytes.fromhex(data), version) == reason_code

    def test_reason_codes_of_the_peer_are_kept_as_they_came(self) -> None:
        assert decode(b"\x20\x02\x00\xc7", 0, 4, 4) == (ConnAck(False, 0xC7), 4)
        assert decode(b"\x40\x03\x00\x01\xfe", 0, 5, 5) == (PubAck(1, 0xFE), 5)


_LONG = "x" * 65_536


class TestOurFault:
    """The same rules for packets that we send: LocalProtocolError."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("fields", rows_of("mqtt.ours_in_all_versions"))
    def test_in_all_versions(self, fields: dict[str, Any], version: int) -> None:
        with pytest.raises(LocalProtocolError):
            encode(packet_of(fields), version)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_connects_and_texts_in_all_versions(self, version: int) -> None:
        for packet in (
            Publish("\ud800"),
            Publish(_LONG),
            Connect("c", 9 - version),
            Connect("c", version, keep_alive=65_536),
            Connect(_LONG, version),
            Connect("c", version, will=Will("a/+", b"")),
            Connect("c", version, will=Will("a", b"", 3)),
            Connect("c", version, will=Will("a", bytes(65_536))),
        ):
            with pytest.raises(LocalProtocolError):
                encode(packet, version)

    @pytest.mark.parametrize("fields", rows_of("mqtt.ours_in_mqtt_3_1_1"))
    def test_what_mqtt_3_1_1_cannot_say(self, fields: dict[str, Any]) -> None:
        packet = packet_of(fields)
        with pytest.raises(LocalProtocolError):
            encode(packet, 4)
        if not isinstance(packet, Connect):
            assert encode(packet, 5)

    @pytest.mark.parametrize("fields", rows_of("mqtt.ours_in_mqtt_5"))
    def test_mqtt_5(self, fields: dict[str, Any]) -> None:
        with pytest.raises(LocalProtocolError):
            encode(packet_of(fields), 5)

    def test_unknown_version(self) -> None:
        with pytest.raises(LocalProtocolError):
            encode(PingReq(), 2)

    def test_remaining_length_beyond_what_mqtt_can_say(self) -> None:
        packet = Publish("a", b"")
        assert encode(packet, 4)
        with pytest.raises(LocalProtocolError):
            encode(replace(packet, payload=bytes(268_435_453)), 4)

    def test_secrets_are_not_in_messages(self) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            encode(Connect("c", 4, password=b"hunter2"), 4)
        assert "hunter2" not in str(caught.value)
