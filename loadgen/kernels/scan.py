"""Scanning of received packets for the reflector.

Positions are indices into the buffer.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.kernels.compiled import compiled
from loadgen.kernels.packet_bytes import (
    INCOMPLETE,
    OK,
    ack_fields,
    frame,
    publish_fields,
)
from loadgen.mqtt.constants import MQTT_5, PUBACK, PUBCOMP, PUBLISH

MORE: Final = 0
"""The next packet is not complete yet."""
RUN: Final = 1
"""Consecutive QoS 0 PUBLISH packets to one topic, without RETAIN and properties."""
SINGLE: Final = 2
"""Another PUBLISH without properties."""
ACK: Final = 3
"""PUBACK, PUBREC, PUBREL or PUBCOMP of the short form, which means success."""
OTHER: Final = 4
"""Any other packet, also malformed or too large, which the codec has to read."""


@compiled
def next_item(
    buffer: NDArray[np.uint8],
    start: int,
    end: int,
    version: int,
    limit_bytes: int,
    starts: NDArray[np.int64],
    payloads: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """Return the item that begins at `start`: (kind, item_end, a, b, c).

    RUN: a and b bound the topic of its first packet, c is the number of packets; packet i is
    `buffer[starts[i]:starts[i + 1]]` and its payload begins at `payloads[i]`. A run ends if
    `payloads` is full. SINGLE: a and b bound the topic, c is the Packet Identifier, and the payload
    begins at `payloads[0]`. ACK: a is the first byte, b the Packet Identifier.
    """
    status, first_byte, body_start, packet_end = frame(buffer, start, end, limit_bytes)
    if status == INCOMPLETE:
        return MORE, start, 0, 0, 0
    if status != OK:
        return OTHER, start, 0, 0, 0
    packet_type = first_byte >> 4
    if PUBACK <= packet_type <= PUBCOMP and packet_end - body_start == 2:
        status, packet_id, _ = ack_fields(buffer, packet_type, body_start, packet_end, version)
        if status != OK:
            return OTHER, start, 0, 0, 0
        return ACK, packet_end, first_byte, packet_id, 0
    if packet_type != PUBLISH:
        return OTHER, packet_end, 0, 0, 0
    status, topic_start, topic_end, packet_id, payload_start, _ = publish_fields(
        buffer, first_byte, body_start, packet_end, version
    )
    fixed = topic_end + (2 if first_byte & 0x06 else 0) + (1 if version == MQTT_5 else 0)
    if status != OK or topic_end == topic_start or payload_start != fixed:
        return OTHER, start, 0, 0, 0
    payloads[0] = payload_start
    if first_byte != PUBLISH << 4:
        return SINGLE, packet_end, topic_start, topic_end, packet_id
    starts[0] = start
    starts[1] = packet_end
    count = 1
    topic_bytes = topic_end - topic_start
    while count < len(payloads):
        run_end = packet_end
        status, first_byte, body_start, packet_end = frame(buffer, run_end, end, limit_bytes)
        if status != OK or first_byte != PUBLISH << 4:
            return RUN, run_end, topic_start, topic_end, count
        status, next_start, next_end, _, payload_start, _ = publish_fields(
            buffer, first_byte, body_start, packet_end, version
        )
        same = status == OK and next_end - next_start == topic_bytes
        same = same and payload_start == next_end + (1 if version == MQTT_5 else 0)
        if same:
            for offset in range(topic_bytes):
                if buffer[topic_start + offset] != buffer[next_start + offset]:
                    same = False
                    break
        if not same:
            return RUN, run_end, topic_start, topic_end, count
        payloads[count] = payload_start
        count += 1
        starts[count] = packet_end
    return RUN, packet_end, topic_start, topic_end, count
