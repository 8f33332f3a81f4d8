"""Packets that a relay passes on, or writes although a broker or the codec would not."""

from typing import Final, NamedTuple

from loadgen.mqtt.constants import MQTT_5, PUBLISH, PUBREL
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode
from loadgen.mqtt.wire import write_utf8, write_variable

# The return codes of MQTT 3.1.1 (section 3.2.2.3) for MQTT 5 reason codes.
_RETURN_CODES: Final[dict[int, int]] = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectReturnCode.NOT_AUTHORIZED,
    0x8A: ConnectReturnCode.NOT_AUTHORIZED,
}


class StoredMessage(NamedTuple):
    """An application message; `properties` with their length, as MQTT 5 writes them."""

    topic: bytes
    payload: bytes
    properties: bytes = b"\0"


def publish_packet(message: StoredMessage, flags: int, packet_id: int, version: int) -> bytes:
    """Return a PUBLISH (section 3.3) with DUP, QoS and RETAIN of `flags`."""
    parts = [len(message.topic).to_bytes(2, "big"), message.topic]
    if flags & 0x06:
        parts.append(packet_id.to_bytes(2, "big"))
    if version == MQTT_5:
        parts.append(message.properties)
    parts.append(message.payload)
    body = b"".join(parts)
    return bytes((PUBLISH << 4 | flags,)) + write_variable(len(body), "Remaining Length") + body


def acknowledgement(packet_type: int, packet_id: int) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP with success, equal in both versions."""
    flags = 2 if packet_type == PUBREL else 0
    return bytes((packet_type << 4 | flags, 2, packet_id >> 8, packet_id & 0xFF))


class Delivery(NamedTuple):
    """A PUBLISH that passes the relay.

    `packet_id` and `dup` are those of the broker; a packet identifier of 0 means that the relay
    made the delivery.
    """

    message: StoredMessage
    qos: int
    retain: bool
    packet_id: int = 0
    dup: bool = False

    @property
    def topic(self) -> str:
        """The Topic Name as text."""
        return self.message.topic.decode("utf-8", "replace")

    def made_up(self, message: StoredMessage | None = None, qos: int | None = None) -> "Delivery":
        """Return a similar delivery that the broker did not make."""
        return Delivery(
            self.message if message is None else message,
            self.qos if qos is None else qos,
            self.retain,
        )

    def packet(self, packet_id: int, version: int) -> bytes:
        """Return the PUBLISH with this packet identifier."""
        flags = self.dup << 3 | self.qos << 1 | self.retain
        return publish_packet(self.message, flags, packet_id, version)


def with_topic_alias(message: StoredMessage) -> StoredMessage:
    """Return the message with the Topic Alias 1 (section 3.3.2.3.4)."""
    length, start = 0, 0
    while True:
        length |= (message.properties[start] & 0x7F) << 7 * start
        start += 1
        if message.properties[start - 1] < 0x80:
            break
    alias = write_variable(length + 3, "Property Length") + message.properties[start:]
    return message._replace(properties=alias + b"\x23\0\x01")


def rejection(packet_type: int, packet_id: int, reason_code: int, reason: str) -> bytes:
    """Return a PUBACK or PUBREC of MQTT 5 with any failure and a Reason String."""
    text = write_utf8(reason, "Reason String")
    properties = write_variable(len(text) + 1, "Property Length") + b"\x1f" + text
    body = packet_id.to_bytes(2, "big") + bytes((reason_code,)) + properties
    return bytes((packet_type << 4,)) + write_variable(len(body), "Remaining Length") + body


def refusal(reason_code: int, version: int) -> bytes:
    """Return a CONNACK with any failure, also one that the specification lacks."""
    if version == MQTT_5:
        return bytes((0x20, 3, 0, reason_code, 0))
    code = _RETURN_CODES.get(reason_code, ConnectReturnCode.SERVER_UNAVAILABLE)
    return bytes((0x20, 2, 0, code))


def subscribe_refusal(packet_id: int, reason_code: int, count: int, version: int) -> bytes:
    """Return a SUBACK with any failure for each of `count` Topic Filters."""
    properties = b"\0" if version == MQTT_5 else b""
    body = packet_id.to_bytes(2, "big") + properties + bytes((reason_code,)) * count
    return b"\x90" + write_variable(len(body), "Remaining Length") + body
