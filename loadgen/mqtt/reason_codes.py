"""Reason codes of MQTT 5 (spec 2.4) and CONNACK return codes of MQTT 3.1.1 (its table 3.1).

A reason code from 0x80 up is a failure. Packets carry plain integers: what a broker sends is kept
as it came, also when this table does not know it.
"""

from enum import IntEnum
from typing import Final

from loadgen.mqtt.constants import (
    AUTH,
    CONNACK,
    DISCONNECT,
    MQTT_3_1_1,
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)


class ReasonCode(IntEnum):
    """Spec 2.4. The three names of 0x00 are one member."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturnCode(IntEnum):
    """CONNACK of MQTT 3.1.1, table 3.1."""

    CONNECTION_ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


# Spec 2.4, last column: the codes that each packet may carry. It binds what we send, not what we
# accept.
REASON_CODES: Final[dict[int, frozenset[int]]] = {
    CONNACK: frozenset(
        (0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
    ),
    PUBACK: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PUBREC: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PUBREL: frozenset((0x00, 0x92)),
    PUBCOMP: frozenset((0x00, 0x92)),
    SUBACK: frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
    DISCONNECT: frozenset(
        (0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3))
    ),
    AUTH: frozenset((0x00, 0x18, 0x19)),
}

# The spec's own spelling where it is not the member's words in lower case.
_REASON_NAMES: Final = {
    ReasonCode.SUCCESS: "Success",
    ReasonCode.GRANTED_QOS_1: "Granted QoS 1",
    ReasonCode.GRANTED_QOS_2: "Granted QoS 2",
    ReasonCode.DISCONNECT_WITH_WILL_MESSAGE: "Disconnect with Will Message",
    ReasonCode.RE_AUTHENTICATE: "Re-authenticate",
    ReasonCode.MALFORMED_PACKET: "Malformed Packet",
    ReasonCode.PROTOCOL_ERROR: "Protocol Error",
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "Unsupported Protocol Version",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "Client Identifier not valid",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "Bad User Name or Password",
    ReasonCode.KEEP_ALIVE_TIMEOUT: "Keep Alive timeout",
    ReasonCode.TOPIC_FILTER_INVALID: "Topic Filter invalid",
    ReasonCode.TOPIC_NAME_INVALID: "Topic Name invalid",
    ReasonCode.PACKET_IDENTIFIER_IN_USE: "Packet Identifier in use",
    ReasonCode.PACKET_IDENTIFIER_NOT_FOUND: "Packet Identifier not found",
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: "Receive Maximum exceeded",
    ReasonCode.TOPIC_ALIAS_INVALID: "Topic Alias invalid",
    ReasonCode.QOS_NOT_SUPPORTED: "QoS not supported",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "Shared Subscriptions not supported",
    ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: "Subscription Identifiers not supported",
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "Wildcard Subscriptions not supported",
}

_RETURN_NAMES: Final = {
    ConnectReturnCode.CONNECTION_ACCEPTED: "Connection Accepted",
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION: (
        "Connection Refused, unacceptable protocol version"
    ),
    ConnectReturnCode.IDENTIFIER_REJECTED: "Connection Refused, identifier rejected",
    ConnectReturnCode.SERVER_UNAVAILABLE: "Connection Refused, Server unavailable",
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: "Connection Refused, bad user name or password",
    ConnectReturnCode.NOT_AUTHORIZED: "Connection Refused, not authorized",
}


def is_failure(code: int) -> bool:
    """Whether a reason code of MQTT 5 (or a SUBACK return code of 3.1.1) reports a failure."""
    return code >= 0x80


def reason_name(code: int, version: int = MQTT_5) -> str:
    """The name and number of a reason code, for people: `Server busy (0x89)`.

    With `version` 4 the code is read as a return code of CONNACK, except the SUBACK's 0x80. Codes
    that the specification does not know get a name that says so.
    """
    if version == MQTT_3_1_1 and code != ReasonCode.UNSPECIFIED_ERROR:
        try:
            return f"{_RETURN_NAMES[ConnectReturnCode(code)]} ({code})"
        except ValueError:
            return f"unknown return code ({code})"
    if version == MQTT_3_1_1:
        return "Failure (0x80)"
    try:
        member = ReasonCode(code)
    except ValueError:
        return f"unknown reason code (0x{code:02X})"
    words = member.name.replace("_", " ").capitalize()
    return f"{_REASON_NAMES.get(member, words)} (0x{code:02X})"
