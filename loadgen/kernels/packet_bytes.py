"""Packets as bytes in arrays: the same as mqtt/codec.py, in compiled code.

The functions allocate and raise nothing. Positions are indices into the buffer; `end` is one past
the last valid byte. Everything that the codec refuses is refused here.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.kernels.arrays import Bytes, read_i64, read_u8
from loadgen.kernels.compiled import compiled
from loadgen.mqtt.constants import MQTT_5, PUBLISH, PUBREL, SUBSCRIBE, UNSUBSCRIBE
from loadgen.mqtt.properties import PROPERTY_TABLE

OK: Final = 0
INCOMPLETE: Final = 1
MALFORMED: Final = -1
TOO_LARGE: Final = -2

_RESPONSE_TOPIC: Final = 0x08
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
TOPIC_ALIAS: Final = 0x23
USER_PROPERTY: Final = 0x26

# Kinds of the values of properties; an integer's kind is its size.
_VARIABLE, _TEXT, _BINARY, _PAIR = 5, 6, 7, 8
_KINDS: Final = {
    "Byte": 1,
    "Two Byte Integer": 2,
    "Four Byte Integer": 4,
    "Variable Byte Integer": _VARIABLE,
    "UTF-8 Encoded String": _TEXT,
    "Binary Data": _BINARY,
    "UTF-8 String Pair": _PAIR,
}
_KIND, _PACKETS, _REPEATABLE, _LOW, _HIGH = range(5)


def _bits(packet_types: frozenset[int]) -> int:
    return sum(1 << packet_type for packet_type in packet_types)


def _property_rules() -> NDArray[np.int64]:
    """Return rows by property identifier: kind, packets, packets that may repeat it, bounds."""
    rules = np.zeros((64, 5), np.int64)
    for row in PROPERTY_TABLE:
        high = (1 << 62) if row.high is None else row.high
        packets, repeatable = _bits(row.packets), _bits(row.repeatable_in)
        rules[row.identifier] = _KINDS[row.kind.name], packets, repeatable, row.low, high
    return rules


_RULES: Final = _property_rules()

# In each byte: 1, 0x80, all bits but the one in which '#' and '+' differ, '#'.
_ONES: Final = 0x0101010101010101
_TOPS: Final = -0x7F7F7F7F7F7F7F80
_WITHOUT_8: Final = -0x0808080808080809
_NUMBER_SIGNS: Final = 0x2323232323232323

# Bit n is set when packet type n must have the fixed header flags 0010 (spec 2.1.3).
_FLAGS_2: Final = 1 << PUBREL | 1 << SUBSCRIBE | 1 << UNSUBSCRIBE


@compiled
def read_variable(buffer: Bytes, start: int, end: int) -> tuple[int, int, int]:
    """Read a variable byte integer (spec 1.5.5); return status, value, position after it."""
    if start >= end:
        return INCOMPLETE, 0, start
    byte = read_u8(buffer, start)
    if byte < 0x80:
        return OK, byte, start + 1
    value = byte & 0x7F
    for count in range(1, 4):
        if start + count >= end:
            return INCOMPLETE, 0, start
        byte = read_u8(buffer, start + count)
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0:
                return MALFORMED, 0, start
            return OK, value, start + count + 1
    return MALFORMED, 0, start


@compiled
def frame(buffer: Bytes, start: int, end: int, limit_bytes: int) -> tuple[int, int, int, int]:
    """Read a fixed header (spec 2.1); return (status, first_byte, body_start, packet_end).

    OK: the packet is `buffer[start:packet_end]`. INCOMPLETE: more bytes are needed; the positions
    are `start` unless the fixed header is complete. TOO_LARGE: the Remaining Length is over
    `limit_bytes`. AUTH passes, since the version is not checked.
    """
    if start >= end:
        return INCOMPLETE, 0, start, start
    first_byte = read_u8(buffer, start)
    packet_type = first_byte >> 4
    if packet_type == PUBLISH:
        if first_byte & 0x06 == 0x06 or first_byte & 0x0E == 0x08:
            return MALFORMED, first_byte, start, start
    elif packet_type == 0 or first_byte & 0x0F != (_FLAGS_2 >> packet_type & 1) << 1:
        return MALFORMED, first_byte, start, start
    status, length, body_start = read_variable(buffer, start + 1, end)
    if status != OK:
        return status, first_byte, start, start
    if length > limit_bytes:
        return TOO_LARGE, first_byte, start, start
    if length > end - body_start:
        return INCOMPLETE, first_byte, body_start, body_start + length
    return OK, first_byte, body_start, body_start + length


@compiled
def _is_text(buffer: Bytes, start: int, end: int, is_topic: bool) -> bool:
    """Return True for UTF-8 without U+0000 (spec 1.5.4), and without wildcards in a topic."""
    position = start
    while position < end:
        byte = read_u8(buffer, position)
        position += 1
        if byte < 0x80:
            if byte == 0 or (is_topic and byte & 0xF7 == 0x23):
                return False
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else (2 if byte < 0xF0 else 3)
        if position + more > end:
            return False
        least = 0xA0 if byte == 0xE0 else (0x90 if byte == 0xF0 else 0x80)
        most = 0x9F if byte == 0xED else (0x8F if byte == 0xF4 else 0xBF)
        for offset in range(more):
            byte = read_u8(buffer, position + offset)
            if byte < least or byte > most:
                return False
            least, most = 0x80, 0xBF
        position += more
    return True


@compiled
def _oddities(word: int) -> int:
    """Return a word without the top bit of any byte if all are ASCII other than U+0000, # and +."""
    return int((word - _ONES) | (((word & _WITHOUT_8) ^ _NUMBER_SIGNS) - _ONES) | word)


@compiled
def is_topic(buffer: Bytes, start: int, end: int) -> bool:
    """Return True if bytes are a Topic Name (spec 4.7); an empty one counts as such."""
    if end - start < 8:
        return _is_text(buffer, start, end, True)
    odd = _oddities(read_i64(buffer, end - 8))
    for position in range(start, end - 8, 8):
        odd |= _oddities(read_i64(buffer, position))
    return odd & _TOPS == 0 or _is_text(buffer, start, end, True)


@compiled
def is_same(a: Bytes, start: int, end: int, b: Bytes, first: int, last: int) -> bool:
    size = end - start
    if size != last - first:
        return False
    different = 0
    if size < 8:
        for offset in range(size):
            different |= read_u8(a, start + offset) ^ read_u8(b, first + offset)
        return different == 0
    # Eight bytes at a time, the last eight once more.
    offset = 0
    while offset + 8 <= size:
        different |= read_i64(a, start + offset) ^ read_i64(b, first + offset)
        offset += 8
    return different | (read_i64(a, end - 8) ^ read_i64(b, last - 8)) == 0


@compiled
def publish_fields(
    buffer: Bytes, first_byte: int, body_start: int, packet_end: int, version: int
) -> tuple[int, int, int, int, int, int]:
    """Read the body of a PUBLISH (spec 3.3) that `frame` found.

    Return (OK or MALFORMED, topic_start, topic_end, packet_id, payload_start, properties).
    `packet_id` is 0 for QoS 0; `properties` has a bit for each identifier. The text of a topic is
    left to `is_topic`.
    """
    topic_start = body_start + 2
    if topic_start > packet_end:
        return MALFORMED, 0, 0, 0, 0, 0
    topic_end = topic_start + (read_u8(buffer, body_start) << 8 | read_u8(buffer, body_start + 1))
    if topic_end > packet_end:
        return MALFORMED, 0, 0, 0, 0, 0
    position = topic_end
    packet_id = 0
    if first_byte & 0x06:
        position += 2
        if position > packet_end:
            return MALFORMED, 0, 0, 0, 0, 0
        packet_id = read_u8(buffer, position - 2) << 8 | read_u8(buffer, position - 1)
        if packet_id == 0:
            return MALFORMED, 0, 0, 0, 0, 0
    properties = 0
    if version == MQTT_5:
        if position < packet_end and read_u8(buffer, position) == 0:
            position += 1
        else:
            status, properties, position = read_properties(buffer, position, packet_end, PUBLISH)
            if status != OK:
                return MALFORMED, 0, 0, 0, 0, 0
    if topic_end == topic_start and not properties >> TOPIC_ALIAS & 1:
        return MALFORMED, 0, 0, 0, 0, 0
    return OK, topic_start, topic_end, packet_id, position, properties


@compiled
def read_properties(buffer: Bytes, start: int, end: int, packet_type: int) -> tuple[int, int, int]:
    """Check properties (2.2.2); return (OK or MALFORMED, a bit for each, position after them)."""
    status, length, position = read_variable(buffer, start, end)
    if status != OK or length > end - position:
        return MALFORMED, 0, start
    end = position + length
    seen = 0
    while position < end:
        identifier = read_u8(buffer, position)
        if identifier >= len(_RULES) or not _RULES[identifier, _PACKETS] >> packet_type & 1:
            return MALFORMED, 0, start
        repeatable = _RULES[identifier, _REPEATABLE] >> packet_type & 1
        if seen >> identifier & 1 and not repeatable:
            return MALFORMED, 0, start
        seen |= 1 << identifier
        position = after_property(buffer, position, end)
        if position < 0:
            return MALFORMED, 0, start
    return OK, seen, end


@compiled
def property_value(buffer: Bytes, start: int, end: int, begin: Bytes, size: int) -> int:
    """Return the position of the value of the property that begins with begin[:size], or -1."""
    position = read_variable(buffer, start, end)[2]
    while position + size <= end:
        if is_same(buffer, position, position + size, begin, 0, size):
            return int(position + size)
        position = after_property(buffer, position, end)
    return -1


@compiled
def after_property(buffer: Bytes, position: int, end: int) -> int:
    """Return the position after a property whose identifier is known; -1 if it is malformed."""
    identifier = read_u8(buffer, position)
    kind = _RULES[identifier, _KIND]
    position += 1
    if kind >= _TEXT:
        position = _after_string(buffer, position, end, kind, identifier == _RESPONSE_TOPIC)
        if kind == _PAIR and position >= 0:
            position = _after_string(buffer, position, end, kind, False)
        return position
    value = 0
    if kind == _VARIABLE:
        status, value, position = read_variable(buffer, position, end)
        if status != OK:
            return -1
    elif position + kind > end:
        return -1
    else:
        for _ in range(kind):
            value = value << 8 | read_u8(buffer, position)
            position += 1
    if value < _RULES[identifier, _LOW] or value > _RULES[identifier, _HIGH]:
        return -1
    return position


@compiled
def _after_string(buffer: Bytes, position: int, end: int, kind: int, must_be_topic: bool) -> int:
    """Return the position after a string or binary data; -1 if it is malformed."""
    if position + 2 > end:
        return -1
    start = position + 2
    following = start + (read_u8(buffer, position) << 8 | read_u8(buffer, position + 1))
    if following > end or (must_be_topic and following == start):
        return -1
    if kind != _BINARY and not _is_text(buffer, start, following, must_be_topic):
        return -1
    return following


@compiled
def ack_fields(
    buffer: Bytes, packet_type: int, body_start: int, packet_end: int, version: int
) -> tuple[int, int, int]:
    """Read an acknowledgement (spec 3.4 to 3.7); return (OK or MALFORMED, packet_id, reason)."""
    length = packet_end - body_start
    if length < 2 or (length > 2 and version != MQTT_5):
        return MALFORMED, 0, 0
    packet_id = read_u8(buffer, body_start) << 8 | read_u8(buffer, body_start + 1)
    if packet_id == 0:
        return MALFORMED, 0, 0
    if length == 2:
        return OK, packet_id, 0
    reason_code = read_u8(buffer, body_start + 2)
    if length > 3:
        status, _, position = read_properties(buffer, body_start + 3, packet_end, packet_type)
        if status != OK or position != packet_end:
            return MALFORMED, 0, 0
    return OK, packet_id, reason_code


@compiled
def write_variable(out: Bytes, position: int, value: int) -> int:
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
    out: Bytes,
    position: int,
    flags: int,
    topic: Bytes,
    packet_id: int,
    version: int,
    properties: Bytes,
    payload_bytes: int,
) -> int:
    """Write a PUBLISH up to its payload (spec 3.3); return the position of the payload.

    `flags` are those of the fixed header: DUP << 3 | QoS << 1 | RETAIN. `packet_id` is written for
    QoS 1 and 2, and `properties`, without their length, for MQTT 5. All must fit in `out`.
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
def write_ack(out: Bytes, pos: int, packet_type: int, packet_id: int) -> int:
    """Write an acknowledgement with success in four bytes (spec 3.4.2.1); return their end."""
    out[pos] = packet_type << 4 | (2 if packet_type == PUBREL else 0)
    out[pos + 1] = 2
    out[pos + 2] = packet_id >> 8 & 0xFF
    out[pos + 3] = packet_id & 0xFF
    return pos + 4
