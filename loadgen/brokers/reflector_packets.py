"""The bytes that the reflector writes: PUBLISH as it was received, acknowledgements, refusals.

The codec writes what the specification allows and checks it; here are the few forms that a broker
writes for every message, and those that it writes on purpose although the codec would not.
"""

from typing import Final, NamedTuple

from loadgen.mqtt.constants import MQTT_5, PUBLISH, PUBREL
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from loadgen.mqtt.wire import write_utf8, write_variable

_DUP: Final = 0x08

# What MQTT 3.1.1 says instead of an MQTT 5 reason code; 3.1.1, section 3.2.2.3.
_RETURN_CODES: Final[dict[int, int]] = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectReturnCode.NOT_AUTHORIZED,
    ReasonCode.BANNED: ConnectReturnCode.NOT_AUTHORIZED,
}


class Message(NamedTuple):
    """An application message; `properties` with their length, as MQTT 5 writes them."""

    topic: bytes
    payload: bytes
    properties: bytes = b"\0"

    @property
    def topic_text(self) -> str:
        """The Topic Name to be shown."""
        return self.topic.decode("utf-8", "replace")

    def with_topic_alias(self) -> "Message":
        """The message with the Topic Alias 1 (section 3.3.2.3.4)."""
        length, start = 0, 0
        while True:
            length |= (self.properties[start] & 0x7F) << 7 * start
            start += 1
            if self.properties[start - 1] < 0x80:
                break
        alias = write_variable(length + 3, "Property Length") + self.properties[start:]
        return self._replace(properties=alias + b"\x23\0\x01")


class Outgoing(NamedTuple):
    """One delivery with its QoS and RETAIN flag.

    `packet_id` and `dup` are those under which the broker behind a relay sent it; 0 means that it
    is of our own making.
    """

    message: Message
    qos: int
    retain: bool
    packet_id: int = 0
    dup: bool = False

    def made_up(self, message: Message | None = None, qos: int | None = None) -> "Outgoing":
        """A delivery like this one of which the broker behind a relay knows nothing."""
        return Outgoing(
            self.message if message is None else message,
            self.qos if qos is None else qos,
            self.retain,
        )

    @property
    def weight_bytes(self) -> int:
        """What it costs to hold it, roughly."""
        return len(self.message.payload) + 100


def publish_packet(item: Outgoing, packet_id: int, version: int, *, dup: bool) -> bytes:
    """A PUBLISH (section 3.3); `packet_id` is not written for QoS 0."""
    message = item.message
    parts = [len(message.topic).to_bytes(2, "big"), message.topic]
    if item.qos:
        parts.append(packet_id.to_bytes(2, "big"))
    if version == MQTT_5:
        parts.append(message.properties)
    parts.append(message.payload)
    body = b"".join(parts)
    flags = item.qos << 1 | item.retain | (_DUP if dup else 0)
    return bytes((PUBLISH << 4 | flags,)) + write_variable(len(body), "Remaining Length") + body


def acknowledgement(packet_type: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP with success, alike in both versions (section 3.4.2.1)."""
    flags = 2 if packet_type == PUBREL else 0
    return bytes((packet_type << 4 | flags, 2, packet_id >> 8, packet_id & 0xFF))


def rejection(packet_type: int, packet_id: int, reason_code: int, reason: str) -> bytes:
    """A PUBACK or PUBREC with a failure and a Reason String; any code, MQTT 5 only."""
    text = write_utf8(reason, "Reason String")
    properties = write_variable(len(text) + 1, "Property Length") + b"\x1f" + text
    body = packet_id.to_bytes(2, "big") + bytes((reason_code,)) + properties
    return bytes((packet_type << 4,)) + write_variable(len(body), "Remaining Length") + body


def disconnect(reason_code: int) -> bytes:
    """The DISCONNECT of an MQTT 5 server (section 3.14)."""
    return bytes((0xE0, 1, reason_code))


def refusal(reason_code: int, version: int) -> bytes:
    """A CONNACK with a failure; any code, also one that the specification lacks."""
    if version == MQTT_5:
        return bytes((0x20, 3, 0, reason_code, 0))
    code = _RETURN_CODES.get(reason_code, ConnectReturnCode.SERVER_UNAVAILABLE)
    return bytes((0x20, 2, 0, code))


def subscribe_refusal(packet_id: int, reason_code: int, count: int, version: int) -> bytes:
    """A SUBACK with a failure for each of `count` Topic Filters; any code."""
    properties = b"\0" if version == MQTT_5 else b""
    body = packet_id.to_bytes(2, "big") + properties + bytes((reason_code,)) * count
    return b"\x90" + write_variable(len(body), "Remaining Length") + body
