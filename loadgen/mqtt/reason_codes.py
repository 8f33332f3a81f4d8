"""Reason codes of MQTT 5 (spec 2.4) and CONNACK return codes of MQTT 3.1.1 (its table 3.1).

Packets carry plain integers: codes from a broker are kept, also if this table lacks them.
"""

from enum import IntEnum
from typing import Final

from loadgen.mqtt.constants import CONNACK, MQTT_5, SUBACK, packet_types
from loadgen.sentences import read_table


class ReasonCode(IntEnum):
    """The codes that this program names; `reason_codes.toml` has all of them."""

    SUCCESS = 0x00
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97


_CODES: Final = read_table("loadgen.mqtt", "reason_codes.toml")
_NAMES: Final[dict[int, str]] = {row["code"]: name for name, row in _CODES.items()}
REASON_CODES: Final[dict[int, frozenset[int]]] = {
    packet: frozenset(
        row["code"] for row in _CODES.values() if packet in packet_types(row["packets"])
    )
    for packet in packet_types(" ".join(row["packets"] for row in _CODES.values()))
}
"""The codes that each type of packet may carry. Only sent packets must comply."""


class ConnectReturnCode(IntEnum):
    CONNECTION_ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


_RETURN_NAMES: Final = (
    "Connection Accepted",
    *(
        f"Connection Refused, {one.name.lower().replace('_', ' ')}"
        for one in ConnectReturnCode
        if one
    ),
)


def is_known(code: int, packet_type: int, version: int) -> bool:
    """Return True if the specification allows a packet of the server to carry this code."""
    if version == MQTT_5:
        return code in REASON_CODES[packet_type] and code != 4  # a DISCONNECT of a client
    if packet_type == CONNACK:
        return code < len(_RETURN_NAMES)
    return code in (0, 1, 2, ReasonCode.UNSPECIFIED_ERROR) if packet_type == SUBACK else code == 0


def is_failure(code: int) -> bool:
    """Return True if a reason code of MQTT 5, or a SUBACK return code of 3.1.1, is a failure."""
    return code >= ReasonCode.UNSPECIFIED_ERROR


def reason_name(code: int, version: int = MQTT_5) -> str:
    """Return the name and number of a reason code, for people: `Server busy (0x89)`.

    With `version` 3 or 4 the code is read as a return code of CONNACK, except the SUBACK's 0x80.
    """
    if version != MQTT_5:
        if code == ReasonCode.UNSPECIFIED_ERROR:
            return "Failure (0x80)"
        known = code < len(_RETURN_NAMES)
        return f"{_RETURN_NAMES[code] if known else 'unknown return code'} ({code})"
    return f"{_NAMES.get(code, 'unknown reason code')} (0x{code:02X})"
