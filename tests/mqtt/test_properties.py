"""Properties (spec 2.2.2), the table checked against the one of paho-mqtt."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from pydantic import TypeAdapter

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt import constants
from loadgen.mqtt.constants import AUTH, CONNECT, PACKET_NAMES, PINGREQ, PINGRESP, PUBLISH, WILL
from loadgen.mqtt.properties import (
    NO_PROPERTIES,
    PROPERTY_TABLE,
    Properties,
    decode_properties,
    encode_properties,
)
from loadgen.mqtt.wire import Reader
from tests.mqtt.strategies import QUICK, properties
from tests.tables import rows_of

_CARRIERS = [t for t in range(WILL, AUTH + 1) if t not in (PINGREQ, PINGRESP)]
_paho_properties: Any = PahoProperties
_PAHO = _paho_properties(PacketTypes.CONNECT)


def _decoded(data: bytes, packet_type: int) -> Properties:
    reader = Reader(data, PACKET_NAMES[packet_type])
    found = decode_properties(reader, packet_type)
    reader.finish()
    return found


def _refused(data: bytes, packet_type: int) -> int:
    with pytest.raises(RemoteProtocolError) as caught:
        _decoded(bytes((len(data),)) + data, packet_type)
    return caught.value.reason_code


class TestTable:
    """Spec 2.2.2.2, table 2-4."""

    def test_is_the_table_of_paho(self) -> None:
        ours = {
            row.identifier: (
                row.name,
                row.kind.name,
                {PacketTypes.WILLMESSAGE if packet == WILL else packet for packet in row.packets},
            )
            for row in PROPERTY_TABLE
        }
        names = {identifier: name for name, identifier in _PAHO.names.items()}
        theirs = {
            identifier: (names[identifier], _PAHO.types[kind], set(packets))
            for identifier, (kind, packets) in _PAHO.properties.items()
        }
        assert ours == theirs

    def test_every_row_has_its_field(self) -> None:
        assert [row.attribute for row in PROPERTY_TABLE] == [one.name for one in fields(Properties)]

    def test_repeatable(self) -> None:
        repeatable = {row.name: row.repeatable_in for row in PROPERTY_TABLE if row.repeatable_in}
        assert repeatable == {"User Property": set(_CARRIERS), "Subscription Identifier": {PUBLISH}}


class TestRoundTrip:
    """Spec 2.2.2."""

    @pytest.mark.parametrize("packet_type", _CARRIERS, ids=lambda t: PACKET_NAMES[t])
    def test_any(self, packet_type: int) -> None:
        @given(properties(packet_type))
        @QUICK
        def check(given_properties: Properties) -> None:
            data = encode_properties(given_properties, packet_type)
            assert _decoded(data, packet_type) == given_properties

        check()

    @given(st.data())
    @QUICK
    def test_bytes_of_paho(self, data: st.DataObject) -> None:
        ours = data.draw(properties(CONNECT))
        # paho-mqtt refuses more, though the spec gives all four bytes (3.1.2.11.4).
        assume((ours.maximum_packet_size or 1) <= 268_435_455)
        theirs = _paho_properties(PacketTypes.CONNECT)
        for row in PROPERTY_TABLE:
            value = getattr(ours, row.attribute)
            if value not in (None, ()):
                value = list(value) if row.repeatable_in else value
                setattr(theirs, row.name.replace(" ", ""), value)
        assert _decoded(theirs.pack(), CONNECT) == ours

    def test_user_properties_keep_order_and_repetitions(self) -> None:
        pairs = (("b", "1"), ("a", "2"), ("b", "1"))
        data = encode_properties(Properties(user_property=pairs), CONNECT)
        assert _decoded(data, CONNECT).user_property == pairs

    def test_absent_is_one_zero(self) -> None:
        assert encode_properties(NO_PROPERTIES, CONNECT) == encode_properties(Properties(), CONNECT)
        assert encode_properties(NO_PROPERTIES, CONNECT) == b"\0"
        assert _decoded(b"\0", CONNECT) is NO_PROPERTIES

    def test_authentication_data_is_not_shown(self) -> None:
        shown = repr(Properties(authentication_method="m", authentication_data=b"hunter2"))
        assert "hunter2" not in shown


class TestFromPeer:
    """Spec 2.2.2.2 and the section of each property."""

    def test_every_property_in_every_wrong_packet(self) -> None:
        sample: dict[str, Any] = {
            "UTF-8 Encoded String": b"\0\1t",
            "Binary Data": b"\0\1b",
            "UTF-8 String Pair": b"\0\1n\0\1v",
            "Byte": b"\1",
            "Two Byte Integer": b"\0\1",
            "Four Byte Integer": b"\0\0\0\1",
            "Variable Byte Integer": b"\1",
        }
        wrong = 0
        for row in PROPERTY_TABLE:
            for packet_type in _CARRIERS:
                data = bytes((row.identifier,)) + sample[row.kind.name]
                if packet_type not in row.packets:
                    assert _refused(data, packet_type) == 0x81
                    wrong += 1
                elif packet_type not in row.repeatable_in:
                    assert _refused(data + data, packet_type) == 0x82
        assert wrong == sum(len(_CARRIERS) - len(row.packets) for row in PROPERTY_TABLE) > 0

    @pytest.mark.parametrize("identifier", [0x00, 0x04, 0x7F])
    def test_unknown_identifier(self, identifier: int) -> None:
        assert _refused(bytes((identifier, 0)), CONNECT) == 0x81

    @pytest.mark.parametrize(("data", "packet", "reason_code"), rows_of("mqtt.properties_refused"))
    def test_refused(self, data: str, packet: str, reason_code: int) -> None:
        assert _refused(bytes.fromhex(data), getattr(constants, packet)) == reason_code

    def test_length_beyond_the_packet(self) -> None:
        with pytest.raises(RemoteProtocolError, check=lambda error: error.reason_code == 0x81):
            _decoded(b"\x05\x21\0\1", CONNECT)


class TestFromUs:
    """The same rules for properties that we send."""

    @pytest.mark.parametrize(("fields", "packet", "match"), rows_of("mqtt.properties_of_ours"))
    def test_refused(self, fields: dict[str, Any], packet: str, match: str) -> None:
        ours = TypeAdapter(Properties).validate_python(fields)
        with pytest.raises(LocalProtocolError, match=match):
            encode_properties(ours, getattr(constants, packet))
