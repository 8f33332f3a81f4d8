"""The few forms of packets that the reflector writes for every message, without the codec."""

from typing import Final, NamedTuple

from loadgen.mqtt.constants import MQTT_5, PUBLISH, PUBREL
from loadgen.mqtt.wire import write_variable

_DUP: Final = 0x08


class StoredMessage(NamedTuple):
    """An application message; `properties` with their length, as MQTT 5 writes them."""

    topic: bytes
    payload: bytes
    properties: bytes = b"\0"


class QueuedMessage(NamedTuple):
    """A delivery with its QoS and RETAIN flag."""

    message: StoredMessage
    qos: int
    retain: bool

    @property
    def weight_bytes(self) -> int:
        """The approximate memory that it takes while it waits."""
        return len(self.message.payload) + 100


def publish_packet(item: QueuedMessage, packet_id: int, version: int, *, dup: bool) -> bytes:
    """Return a PUBLISH (section 3.3); `packet_id` is not written for QoS 0."""
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
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP with success, equal in both versions."""
    flags = 2 if packet_type == PUBREL else 0
    return bytes((packet_type << 4 | flags, 2, packet_id >> 8, packet_id & 0xFF))


def disconnect(reason_code: int) -> bytes:
    """Return the DISCONNECT of an MQTT 5 server (section 3.14)."""
    return bytes((0xE0, 1, reason_code))
