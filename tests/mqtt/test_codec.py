"""Control packets on the wire (spec 2 and 3)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from loadgen.mqtt.properties import Properties
from tests.mqtt.strategies import QUICK, THOROUGH, VERSIONS, packets, versioned_packets, versions


def _decode_all(data: bytes, version: int) -> tuple[list[Packet], int]:
    """Every whole packet in `data`, and where the rest begins."""
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

    @pytest.mark.parametrize(
        ("packet", "version", "data"),
        [
            (Connect("c", 4), 4, "10 0d 0004 4d515454 04 02 0000 0001 63"),
            (Connect("c", 5, keep_alive=10), 5, "10 0e 0004 4d515454 05 02 000a 00 0001 63"),
            (
                Connect("", 5, False, 0, "u", b"p", Will("t", b"w", 2, True)),
                5,
                "10 1a 0004 4d515454 05 f4 0000 00 0000 00 0001 74 0001 77 0001 75 0001 70",
            ),
            (ConnAck(True, 0), 4, "20 02 01 00"),
            (ConnAck(False, 0x87), 5, "20 03 00 87 00"),
            (Publish("a/b", b"hi"), 4, "30 07 0003 612f62 6869"),
            (Publish("a", b"", 2, True, True, 0x1234), 4, "3d 05 0001 61 1234"),
            (Publish("a", b"x", 1, packet_id=7), 5, "32 07 0001 61 0007 00 78"),
            (
                Publish("", b"", properties=Properties(topic_alias=3)),
                5,
                "30 06 0000 03 23 0003",
            ),
            (PubAck(1), 4, "40 02 0001"),
            (PubAck(1), 5, "40 02 0001"),
            (PubAck(1, 0x10), 5, "40 03 0001 10"),
            (PubRec(1, 0x80, Properties(reason_string="n")), 5, "50 08 0001 80 04 1f 0001 6e"),
            (PubRel(2), 4, "62 02 0002"),
            (PubComp(2, 0x92), 5, "70 03 0002 92"),
            (Subscribe(1, (Subscription("#", 1),)), 4, "82 06 0001 0001 23 01"),
            (
                Subscribe(1, (Subscription("#", 2, True, True, 2),)),
                5,
                "82 07 0001 00 0001 23 2e",
            ),
            (SubAck(1, (0, 0x80)), 4, "90 04 0001 00 80"),
            (Unsubscribe(1, ("a",)), 4, "a2 05 0001 0001 61"),
            (UnsubAck(1), 4, "b0 02 0001"),
            (UnsubAck(1, (0x11,)), 5, "b0 04 0001 00 11"),
            (PingReq(), 4, "c0 00"),
            (PingResp(), 5, "d0 00"),
            (Disconnect(), 4, "e0 00"),
            (Disconnect(), 5, "e0 00"),
            (Disconnect(4), 5, "e0 01 04"),
            (Auth(), 5, "f0 00"),
            (Auth(0x18), 5, "f0 02 18 00"),
        ],
    )
    def test_bytes(self, packet: Packet, version: int, data: str) -> None:
        expected = bytes.fromhex(data)
        assert encode(packet, version) == expected
        assert decode(expected, 0, len(expected), version) == (packet, len(expected))

    @pytest.mark.parametrize(
        ("data", "packet"),
        [
            ("40 04 0001 00 00", PubAck(1)),  # all that could be left out is there
            ("40 03 0001 00", PubAck(1)),
            ("e0 02 00 00", Disconnect()),
            ("e0 01 00", Disconnect()),
            ("f0 02 00 00", Auth()),
        ],
    )
    def test_optional_parts_written_out(self, data: str, packet: Packet) -> None:
        """Spec 3.4.2.1, 3.14.2.1, 3.15.2.1."""
        raw = bytes.fromhex(data)
        assert decode(raw, 0, len(raw), 5) == (packet, len(raw))


class TestMqtt31:
    """Where MQTT 3.1 ("MQTT V3.1 Protocol Specification") is not MQTT 3.1.1."""

    def test_connect_has_its_own_name_and_level(self) -> None:
        data = bytes.fromhex("10 0f 0006 4d514973 6470 03 02 0000 0001 63")
        assert encode(Connect("c", 3), 3) == data
        assert decode(data, 0, len(data), 5) == (Connect("c", 3), len(data))

    @pytest.mark.parametrize("name", ["", "x" * 24])
    def test_a_client_identifier_has_1_to_23_characters(self, name: str) -> None:
        with pytest.raises(LocalProtocolError, match="1 to 23 characters"):
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
    """Spec 2 and 3: what was written is read, from any kind of buffer."""

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

    def test_connect_is_read_by_its_own_version(self) -> None:
        data = encode(Connect("c", 4), 4)
        assert decode(data, 0, len(data), 5) == (Connect("c", 4), len(data))

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
    """Spec 4.2: TCP cuts where it likes."""

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
    """Spec 4.13: nothing but RemoteProtocolError, whatever comes."""

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
        with pytest.raises(RemoteProtocolError, match="limit is 1000") as caught:
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


class TestMalformed:
    """One case for each rule, with the reason code that a DISCONNECT would carry."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize(
        "data",
        [
            "00 00",  # type 0 is reserved, spec 2.1.2
            "11 00",  # reserved flags, spec 2.1.3
            "60 02 0001",
            "80 06 0001 0001 23 01",
            "a0 05 0001 0001 61",
            "c1 00",
            "36 05 0001 61 0001",  # QoS 3, spec 3.3.1.2
            "38 03 0001 61",  # DUP with QoS 0, spec 3.3.1.1
            "30 80 00",  # longer than needed, spec 1.5.5
            "30 ff ff ff ff",
            "c0 01 00",  # trailing byte
            "20 01 00",  # too short
            "40 02 0000",  # packet identifier 0, spec 2.2.1
            "90 03 0000 00",
            "40 01 00",
            "10 0d 0004 4d515454 04 03 0000 0001 63",  # reserved connect flag, spec 3.1.2.3
            "10 0d 0004 4d515454 04 1e 0000 0001 63",  # will QoS 3
            "10 0d 0004 4d515454 04 0a 0000 0001 63",  # will QoS without will
            "10 0d 0004 4d515454 04 22 0000 0001 63",  # will retain without will
            "10 10 0004 4d515454 04 42 0000 0001 63 0001 70",  # password without user name
        ],
    )
    def test_in_all_versions(self, data: str, version: int) -> None:
        assert _refusal(bytes.fromhex(data), version) == 0x81

    @pytest.mark.parametrize(
        ("data", "reason_code"),
        [
            ("f0 00", 0x81),  # AUTH
            ("30 02 0000", 0x81),  # empty topic
            ("30 03 0001 2b", 0x81),  # wildcard in a topic name, spec 3.3.2.1
            ("32 05 0001 61 0000", 0x81),
            ("32 03 0001 61", 0x81),
            ("40 03 0001 00", 0x81),  # reason codes are MQTT 5
            ("e0 01 00", 0x81),
            ("20 03 00 00 00", 0x81),
            ("20 02 01 01", 0x82),  # session present in a refusal, spec 3.2.2.1.1
            ("90 02 0001", 0x82),
            ("b0 03 0001 00", 0x81),
            ("82 02 0001", 0x81),  # no filter, spec 3.8.3
            ("82 06 0001 0001 23 03", 0x82),  # QoS 3
            ("82 06 0001 0001 23 04", 0x81),  # options of MQTT 5
            ("82 07 0001 0002 2361 00", 0x81),  # '#' not last
            ("a2 02 0001", 0x81),
            ("10 0c 0004 4d515454 04 00 0000 0000", 0x85),  # no client identifier, 3.1.1 3.1.3.1
            ("10 0d 0004 4d515454 03 02 0000 0001 63", 0x84),
            ("10 0f 0006 4d514973 6470 04 02 0000 0001 63", 0x84),
            ("20 02 02 00", 0x81),  # reserved acknowledge flag, spec 3.2.2.1
        ],
    )
    def test_mqtt_3_1_1(self, data: str, reason_code: int) -> None:
        assert _refusal(bytes.fromhex(data), 4) == reason_code

    @pytest.mark.parametrize(
        ("data", "reason_code"),
        [
            ("30 03 0000 00", 0x82),  # neither topic nor alias, spec 3.3.2.1
            ("30 04 0001 23 00", 0x81),
            ("30 03 0001 61", 0x81),  # no property length
            ("40 05 0001 00 01 1f", 0x81),  # property cut
            ("40 05 0001 00 00 00", 0x81),  # trailing byte
            ("82 07 0001 00 0001 23 03", 0x82),
            ("82 07 0001 00 0001 23 30", 0x82),  # retain handling 3, spec 3.8.3.1
            ("82 07 0001 00 0001 23 40", 0x81),  # reserved option bit
            ("82 10 0001 00 000a 24736861 72652f67 2f61 04", 0x82),  # no local, shared
            ("b0 03 0001 00", 0x82),  # no reason code
            ("f0 01 18", 0x81),  # AUTH cut after its reason code
        ],
    )
    def test_mqtt_5(self, data: str, reason_code: int) -> None:
        assert _refusal(bytes.fromhex(data), 5) == reason_code

    def test_reason_codes_of_the_peer_are_kept_as_they_came(self) -> None:
        assert decode(b"\x20\x02\x00\xc7", 0, 4, 4) == (ConnAck(False, 0xC7), 4)
        assert decode(b"\x40\x03\x00\x01\xfe", 0, 5, 5) == (PubAck(1, 0xFE), 5)


_LONG = "x" * 65_536


class TestOurFault:
    """The same rules where we break them: LocalProtocolError."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize(
        "packet",
        [
            lambda version: Publish("a", qos=1),  # packet identifier 0
            lambda version: Publish("a", qos=1, packet_id=65_536),
            lambda version: Publish("a", packet_id=1),
            lambda version: Publish("a", qos=3, packet_id=1),
            lambda version: Publish("a", dup=True),
            lambda version: Publish(""),
            lambda version: Publish("a/#"),
            lambda version: Publish("+"),
            lambda version: Publish("a\0"),
            lambda version: Publish("\ud800"),
            lambda version: Publish(_LONG),
            lambda version: PubAck(0),
            lambda version: PubRel(1, 0x80),
            lambda version: Subscribe(1, ()),
            lambda version: Subscribe(0, (Subscription("a"),)),
            lambda version: Subscribe(1, (Subscription("a", 3),)),
            lambda version: Subscribe(1, (Subscription("a#"),)),
            lambda version: Subscribe(1, (Subscription("a", retain_handling=3),)),
            lambda version: SubAck(1, ()),
            lambda version: SubAck(1, (3,)),
            lambda version: Unsubscribe(1, ()),
            lambda version: Unsubscribe(1, ("",)),
            lambda version: ConnAck(True, 1),
            lambda version: ConnAck(False, 0x7F),
            lambda version: Disconnect(0x01),
            lambda version: Connect("c", 9 - version),
            lambda version: Connect("c", version, keep_alive=65_536),
            lambda version: Connect(_LONG, version),
            lambda version: Connect("c", version, will=Will("a/+", b"")),
            lambda version: Connect("c", version, will=Will("a", b"", 3)),
            lambda version: Connect("c", version, will=Will("a", bytes(65_536))),
        ],
    )
    def test_in_all_versions(self, packet: Callable[[int], Packet], version: int) -> None:
        with pytest.raises(LocalProtocolError):
            encode(packet(version), version)

    @pytest.mark.parametrize(
        "packet",
        [
            Connect("", 4, clean_start=False),
            Connect("c", 4, password=b"p"),
            Connect("c", 4, properties=Properties(receive_maximum=1)),
            Connect("c", 4, will=Will("a", b"", properties=Properties(will_delay_interval=1))),
            PubAck(1, 0x10),
            Subscribe(1, (Subscription("a", no_local=True),)),
            UnsubAck(1, (0,)),
            Disconnect(0x04),
            Auth(),
        ],
    )
    def test_what_mqtt_3_1_1_cannot_say(self, packet: Packet) -> None:
        with pytest.raises(LocalProtocolError):
            encode(packet, 4)
        if not isinstance(packet, Connect):
            assert encode(packet, 5)

    @pytest.mark.parametrize(
        "packet",
        [
            Subscribe(1, (Subscription("$share/g/a", no_local=True),)),
            Subscribe(1, (Subscription("$share/g"),)),
            UnsubAck(1),
            Auth(0x80),
        ],
    )
    def test_mqtt_5(self, packet: Packet) -> None:
        with pytest.raises(LocalProtocolError):
            encode(packet, 5)

    def test_unknown_version(self) -> None:
        with pytest.raises(LocalProtocolError, match="version 2"):
            encode(PingReq(), 2)

    def test_remaining_length_beyond_what_mqtt_can_say(self) -> None:
        packet = Publish("a", b"")
        assert encode(packet, 4)
        with pytest.raises(LocalProtocolError, match="Remaining Length of PUBLISH"):
            encode(replace(packet, payload=bytes(268_435_453)), 4)

    def test_secrets_are_not_in_messages(self) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            encode(Connect("c", 4, password=b"hunter2"), 4)
        assert "hunter2" not in str(caught.value)
