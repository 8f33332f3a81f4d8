"""Packets as bytes in arrays: the same as mqtt/codec.py, in compiled code.

The functions allocate nothing, raise nothing, and can be inlined by LLVM. Positions are indices
into the buffer; `end` is one past the last valid byte. The text of a topic is not checked: the
receiver compares it with what was sent.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.kernels.compiled import compiled
from loadgen.mqtt.constants import MQTT_5, PUBLISH, PUBREL, SUBSCRIBE, UNSUBSCRIBE

OK: Final = 0
INCOMPLETE: Final = 1
MALFORMED: Final = -1
TOO_LARGE: Final = -2

TOPIC_ALIAS: Final = 0x23
USER_PROPERTY: Final = 0x26

# Bit n is set when packet type n must have the fixed header flags 0010 (spec 2.1.3).
_FLAGS_2: Final = 1 << PUBREL | 1 << SUBSCRIBE | 1 << UNSUBSCRIBE


@compiled
def _u8(buffer: NDArray[np.uint8], position: int) -> int:
    # The unsigned index avoids the check for negative indices. int64 keeps the callers' sums from
    # becoming unsigned, which numba would convert to floats.
    return int(np.int64(buffer[np.uint64(position)]))


@compiled
def _variable(buffer: NDArray[np.uint8], start: int, end: int) -> tuple[int, int, int]:
    """Read a variable byte integer (spec 1.5.5); return status, value, position after it."""
    if start >= end:
        return INCOMPLETE, 0, start
    byte = _u8(buffer, start)
    if byte < 0x80:
        return OK, byte, start + 1
    value = byte & 0x7F
    for count in range(1, 4):
        if start + count >= end:
            return INCOMPLETE, 0, start
        byte = _u8(buffer, start + count)
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0:
                return MALFORMED, 0, start
            return OK, value, start + count + 1
    return MALFORMED, 0, start


@compiled
def frame(
    buffer: NDArray[np.uint8], start: int, end: int, limit_bytes: int
) -> tuple[int, int, int, int]:
    """Read a fixed header (spec 2.1); return (status, first_byte, body_start, packet_end).

    OK: the complete packet is in `buffer[start:packet_end]`. INCOMPLETE: more bytes are needed; if
    the fixed header is complete, first_byte, body_start and packet_end are valid, otherwise all
    positions are `start`. MALFORMED: a reserved type, reserved flags, QoS 3, DUP with QoS 0, or a
    bad Remaining Length. TOO_LARGE: the Remaining Length is over `limit_bytes`. AUTH passes, since
    the version is not checked.
    """
    if start >= end:
        return INCOMPLETE, 0, start, start
    first_byte = _u8(buffer, start)
    packet_type = first_byte >> 4
    if packet_type == PUBLISH:
        if first_byte & 0x06 == 0x06 or first_byte & 0x0E == 0x08:
            return MALFORMED, first_byte, start, start
    elif packet_type == 0 or first_byte & 0x0F != (_FLAGS_2 >> packet_type & 1) << 1:
        return MALFORMED, first_byte, start, start
    status, length, body_start = _variable(buffer, start + 1, end)
    if status != OK:
        return status, first_byte, start, start
    if length > limit_bytes:
        return TOO_LARGE, first_byte, start, start
    if length > end - body_start:
        return INCOMPLETE, first_byte, body_start, body_start + length
    return OK, first_byte, body_start, body_start + length


@compiled
def publish_fields(
    buffer: NDArray[np.uint8], first_byte: int, body_start: int, packet_end: int, version: int
) -> tuple[int, int, int, int, int]:
    """Read the body of a PUBLISH (spec 3.3) that `frame` found.

    Return (status, topic_start, topic_end, packet_id, payload_start). Status is OK or MALFORMED.
    `packet_id` is 0 for QoS 0. The properties of version 5 are skipped, so that the caller has to
    check an empty topic (it stands for a Topic Alias).
    """
    topic_start = body_start + 2
    if topic_start > packet_end:
        return MALFORMED, 0, 0, 0, 0
    topic_end = topic_start + (_u8(buffer, body_start) << 8 | _u8(buffer, body_start + 1))
    if topic_end > packet_end or (topic_end == topic_start and version != MQTT_5):
        return MALFORMED, 0, 0, 0, 0
    position = topic_end
    packet_id = 0
    if first_byte & 0x06:
        position += 2
        if position > packet_end:
            return MALFORMED, 0, 0, 0, 0
        packet_id = _u8(buffer, position - 2) << 8 | _u8(buffer, position - 1)
        if packet_id == 0:
            return MALFORMED, 0, 0, 0, 0
    if version == MQTT_5:
        status, length, position = _variable(buffer, position, packet_end)
        if status != OK or length > packet_end - position:
            return MALFORMED, 0, 0, 0, 0
        position += length
    return OK, topic_start, topic_end, packet_id, position


@compiled
def after_property(buffer: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the position after a property of a PUBLISH (spec 3.3.2.3); -1 for any other."""
    name = _u8(buffer, position)
    if name == USER_PROPERTY:
        value = _after_string(buffer, position + 1, end)
        following = -1 if value < 0 else _after_string(buffer, value, end)
    elif name in (0x03, 0x08, 0x09):
        following = _after_string(buffer, position + 1, end)
    elif name == 0x01:
        following = position + 2
    elif name == 0x02:
        following = position + 5
    elif name == TOPIC_ALIAS:
        following = position + 3
    elif name == 0x0B:
        status, _, following = _variable(buffer, position + 1, end)
        if status != OK:
            following = -1
    else:
        following = -1
    return following if following <= end else -1


@compiled
def _after_string(buffer: NDArray[np.uint8], position: int, end: int) -> int:
    if position + 2 > end:
        return -1
    return position + 2 + (_u8(buffer, position) << 8 | _u8(buffer, position + 1))


@compiled
def ack_fields(buffer: NDArray[np.uint8], body_start: int, packet_end: int) -> tuple[int, int, int]:
    """Read the body of PUBACK, PUBREC, PUBREL or PUBCOMP (spec 3.4 to 3.7) of either version.

    Return (status, packet_id, reason). Status is OK or MALFORMED. MQTT 3.1.1 has only the two bytes
    of the identifier. Properties must end with the packet and are not read.
    """
    length = packet_end - body_start
    if length < 2:
        return MALFORMED, 0, 0
    packet_id = _u8(buffer, body_start) << 8 | _u8(buffer, body_start + 1)
    if packet_id == 0:
        return MALFORMED, 0, 0
    if length == 2:
        return OK, packet_id, 0
    reason_code = _u8(buffer, body_start + 2)
    if length > 3:
        status, properties_bytes, position = _variable(buffer, body_start + 3, packet_end)
        if status != OK or position + properties_bytes != packet_end:
            return MALFORMED, 0, 0
    return OK, packet_id, reason_code


@compiled
def write_variable(out: NDArray[np.uint8], position: int, value: int) -> int:
    """Write a variable byte integer (spec 1.5.5) and return the position after it."""
    while value >= 0x80:
        out[position] = value & 0x7F | 0x80
        position += 1
        value >>= 7
    out[position] = value
    return position + 1


@compiled
def _variable_size(value: int) -> int:
    return 1 + int(value >= 0x80) + int(value >= 0x4000) + int(value >= 0x20_0000)


@compiled
def write_publish(
    out: NDArray[np.uint8],
    position: int,
    flags: int,
    topic: NDArray[np.uint8],
    packet_id: int,
    version: int,
    properties: NDArray[np.uint8],
    payload_bytes: int,
) -> int:
    """Write a PUBLISH up to its payload (spec 3.3) and return where the payload belongs.

    `flags` are those of the fixed header: DUP << 3 | QoS << 1 | RETAIN. `packet_id` is not written
    for QoS 0, and version 4 ignores `properties`, which come without their length. The caller has
    checked that everything fits in `out` and that the topic is valid. Slices of arrays made by
    `carray` cost nothing; slices of numpy's own cost some 25 ns, as numba counts their references.
    """
    topic_bytes = len(topic)
    properties_bytes = len(properties)
    length = 2 + topic_bytes + payload_bytes
    if flags & 0x06:
        length += 2
    if version == MQTT_5:
        length += _variable_size(properties_bytes) + properties_bytes
    out[position] = PUBLISH << 4 | flags
    position = write_variable(out, position + 1, length)
    out[position] = topic_bytes >> 8
    out[position + 1] = topic_bytes & 0xFF
    position += 2
    for index in range(topic_bytes):
        out[position + index] = topic[index]
    position += topic_bytes
    if flags & 0x06:
        out[position] = packet_id >> 8
        out[position + 1] = packet_id & 0xFF
        position += 2
    if version == MQTT_5:
        position = write_variable(out, position, properties_bytes)
        for index in range(properties_bytes):
            out[position + index] = properties[index]
        position += properties_bytes
    return position


@compiled
def write_ack(out: NDArray[np.uint8], pos: int, packet_type: int, packet_id: int) -> int:
    """Write PUBACK, PUBREC, PUBREL or PUBCOMP with success, in the four bytes that both versions
    read alike (spec 3.4.2.1), at `out[pos]`; return the position after it.
    """
    out[pos] = packet_type << 4 | (2 if packet_type == PUBREL else 0)
    out[pos + 1] = 2
    out[pos + 2] = packet_id >> 8 & 0xFF
    out[pos + 3] = packet_id & 0xFF
    return pos + 4
