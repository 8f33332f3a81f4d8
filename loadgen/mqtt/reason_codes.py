"""Reason codes of MQTT 5 (spec 2.4) and CONNACK return codes of MQTT 3.1.1 (its table 3.1).

A reason code from 0x80 up is a failure. Packets carry plain integers: codes from a broker are kept,
also if this table lacks them. Compiled code takes `ReasonCode.NAME.value`.
"""

import re
from enum import IntEnum
from typing import Final

from loadgen.mqtt.constants import CONNACK, MQTT_5, SUBACK, packet_types


class ReasonCode(IntEnum):
    """Spec 2.4: the code, and the packets that may carry it.

    This binds sent packets, not accepted ones. The three names of 0x00 are one member.
    """

    _value_: int
    packets: frozenset[int]

    def __new__(cls, code: int, packets: str = "") -> "ReasonCode":
        member = int.__new__(cls, code)
        member._value_ = code
        member.packets = packet_types(packets)
        return member

    SUCCESS = 0x00, "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH"
    NORMAL_DISCONNECTION = SUCCESS
    GRANTED_QOS_0 = SUCCESS
    GRANTED_QOS_1 = 0x01, "SUBACK"
    GRANTED_QOS_2 = 0x02, "SUBACK"
    DISCONNECT_WITH_WILL_MESSAGE = 0x04, "DISCONNECT"
    NO_MATCHING_SUBSCRIBERS = 0x10, "PUBACK PUBREC"
    NO_SUBSCRIPTION_EXISTED = 0x11, "UNSUBACK"
    CONTINUE_AUTHENTICATION = 0x18, "AUTH"
    RE_AUTHENTICATE = 0x19, "AUTH"
    UNSPECIFIED_ERROR = 0x80, "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT"
    MALFORMED_PACKET = 0x81, "CONNACK DISCONNECT"
    PROTOCOL_ERROR = 0x82, "CONNACK DISCONNECT"
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83, "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT"
    UNSUPPORTED_PROTOCOL_VERSION = 0x84, "CONNACK"
    CLIENT_IDENTIFIER_NOT_VALID = 0x85, "CONNACK"
    BAD_USER_NAME_OR_PASSWORD = 0x86, "CONNACK"
    NOT_AUTHORIZED = 0x87, "CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT"
    SERVER_UNAVAILABLE = 0x88, "CONNACK"
    SERVER_BUSY = 0x89, "CONNACK DISCONNECT"
    BANNED = 0x8A, "CONNACK"
    SERVER_SHUTTING_DOWN = 0x8B, "DISCONNECT"
    BAD_AUTHENTICATION_METHOD = 0x8C, "CONNACK DISCONNECT"
    KEEP_ALIVE_TIMEOUT = 0x8D, "DISCONNECT"
    SESSION_TAKEN_OVER = 0x8E, "DISCONNECT"
    TOPIC_FILTER_INVALID = 0x8F, "SUBACK UNSUBACK DISCONNECT"
    TOPIC_NAME_INVALID = 0x90, "CONNACK PUBACK PUBREC DISCONNECT"
    PACKET_IDENTIFIER_IN_USE = 0x91, "PUBACK PUBREC SUBACK UNSUBACK"
    PACKET_IDENTIFIER_NOT_FOUND = 0x92, "PUBREL PUBCOMP"
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, "DISCONNECT"
    TOPIC_ALIAS_INVALID = 0x94, "DISCONNECT"
    PACKET_TOO_LARGE = 0x95, "CONNACK DISCONNECT"
    MESSAGE_RATE_TOO_HIGH = 0x96, "DISCONNECT"
    QUOTA_EXCEEDED = 0x97, "CONNACK PUBACK PUBREC SUBACK DISCONNECT"
    ADMINISTRATIVE_ACTION = 0x98, "DISCONNECT"
    PAYLOAD_FORMAT_INVALID = 0x99, "CONNACK PUBACK PUBREC DISCONNECT"
    RETAIN_NOT_SUPPORTED = 0x9A, "CONNACK DISCONNECT"
    QOS_NOT_SUPPORTED = 0x9B, "CONNACK DISCONNECT"
    USE_ANOTHER_SERVER = 0x9C, "CONNACK DISCONNECT"
    SERVER_MOVED = 0x9D, "CONNACK DISCONNECT"
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E, "SUBACK DISCONNECT"
    CONNECTION_RATE_EXCEEDED = 0x9F, "CONNACK DISCONNECT"
    MAXIMUM_CONNECT_TIME = 0xA0, "DISCONNECT"
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1, "SUBACK DISCONNECT"
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2, "SUBACK DISCONNECT"


REASON_CODES: Final[dict[int, frozenset[int]]] = {
    packet: frozenset(code for code in ReasonCode if packet in code.packets)
    for packet in sorted(frozenset().union(*(code.packets for code in ReasonCode)))
}
"""The codes that each type of packet may carry."""


class ConnectReturnCode(IntEnum):
    """CONNACK of MQTT 3.1.1, table 3.1."""

    CONNECTION_ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


_RETURN_NAMES: Final = (
    "Connection Accepted",
    "Connection Refused, unacceptable protocol version",
    "Connection Refused, identifier rejected",
    "Connection Refused, Server unavailable",
    "Connection Refused, bad user name or password",
    "Connection Refused, not authorized",
)

# What the spec writes with capitals within a name.
_TERMS: Final = re.compile(
    "will message|malformed packet|protocol (?:error|version)|(?:client|packet) identifier"
    "|user name|password|keep alive|qos|topic (?:filter|name|alias)|receive maximum"
    "|(?:shared|wildcard) subscriptions|subscription identifiers",
    re.IGNORECASE,
)


def is_known(code: int, packet_type: int, version: int) -> bool:
    """Return True if the specification allows a packet of the server to carry this code."""
    if version == MQTT_5:
        return code in REASON_CODES[packet_type]
    if packet_type == CONNACK:
        return code < len(_RETURN_NAMES)
    return code in (0, 1, 2, ReasonCode.UNSPECIFIED_ERROR) if packet_type == SUBACK else code == 0


def is_failure(code: int) -> bool:
    """Return True if a reason code of MQTT 5, or a SUBACK return code of 3.1.1, is a failure."""
    return code >= ReasonCode.UNSPECIFIED_ERROR


def reason_name(code: int, version: int = MQTT_5) -> str:
    """Return the name and number of a reason code, for people: `Server busy (0x89)`.

    With `version` 3 or 4 the code is read as a return code of CONNACK, except the SUBACK's 0x80.
    Codes that the specification lacks are named as unknown.
    """
    if version != MQTT_5:
        if code == ReasonCode.UNSPECIFIED_ERROR:
            return "Failure (0x80)"
        known = code < len(_RETURN_NAMES)
        return f"{_RETURN_NAMES[code] if known else 'unknown return code'} ({code})"
    try:
        name = ReasonCode(code).name
    except ValueError:
        return f"unknown reason code (0x{code:02X})"
    words = name.replace("RE_AUTH", "RE-AUTH").replace("_", " ").capitalize()
    words = _TERMS.sub(lambda term: term[0].title(), words).replace("Qos", "QoS")
    return f"{words} (0x{code:02X})"
