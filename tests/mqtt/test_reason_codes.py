"""Reason codes against the tables of paho-mqtt, an independent transcription of the spec."""

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from loadgen.mqtt.constants import CONNACK, DISCONNECT, PACKET_NAMES
from loadgen.mqtt.reason_codes import (
    REASON_CODES,
    ConnectReturnCode,
    ReasonCode,
    is_failure,
    reason_name,
)

_PAHO = PahoReasonCode(PacketTypes.CONNACK).names
# paho-mqtt differs from the OASIS text: Payload format invalid is also a CONNACK code (3.2.2.2).
_PAHO_LACKS = {(0x99, CONNACK)}


class TestTable:
    """Spec 2.4."""

    def test_every_code_is_known(self) -> None:
        assert frozenset().union(*REASON_CODES.values()) == set(_PAHO)
        assert {int(code) for code in ReasonCode} < set(_PAHO)

    @pytest.mark.parametrize("packet_type", sorted(REASON_CODES), ids=lambda t: PACKET_NAMES[t])
    def test_codes_of_a_packet(self, packet_type: int) -> None:
        by_paho = {
            code
            for code, names in _PAHO.items()
            if any(packet_type in where for where in names.values())
        }
        lacking = {code for code, where in _PAHO_LACKS if where == packet_type}
        assert REASON_CODES[packet_type] == by_paho | lacking

    @pytest.mark.parametrize("code", sorted(_PAHO))
    def test_names(self, code: int) -> None:
        # 0x11, 0x9E and 0xA2 are worded differently there, and its capitals are not the spec's.
        if code not in (0x11, 0x9E, 0xA2):
            names = {name.lower() for name in _PAHO[code]}
            assert reason_name(code).rsplit(" (", 1)[0].lower() in names

    def test_spelling_of_the_spec(self) -> None:
        assert reason_name(0x11) == "No subscription existed (0x11)"
        assert reason_name(0x87) == "Not authorized (0x87)"
        assert reason_name(0x9E) == "Shared Subscriptions not supported (0x9E)"
        assert reason_name(0xA2) == "Wildcard Subscriptions not supported (0xA2)"

    def test_failure_begins_at_0x80(self) -> None:
        assert [code for code in (0x00, 0x19, 0x7F, 0x80, 0xFF) if is_failure(code)] == [0x80, 0xFF]


class TestUnknown:
    """Codes that a broker may send and no table has."""

    @pytest.mark.parametrize("code", [code for code in range(256) if code not in _PAHO])
    def test_gets_a_readable_name(self, code: int) -> None:
        assert reason_name(code) == f"unknown reason code (0x{code:02X})"

    def test_disconnect_does_not_share_the_codes_of_connack(self) -> None:
        assert 0x85 in REASON_CODES[CONNACK] - REASON_CODES[DISCONNECT]


class TestReturnCodes:
    """MQTT 3.1.1, table 3.1 and 3.9.3."""

    def test_names(self) -> None:
        assert [int(code) for code in ConnectReturnCode] == [0, 1, 2, 3, 4, 5]
        assert reason_name(5, 4) == "Connection Refused, not authorized (5)"
        assert reason_name(0x80, 4) == "Failure (0x80)"
        assert reason_name(6, 4) == "unknown return code (6)"
