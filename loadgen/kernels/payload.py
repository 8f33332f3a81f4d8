"""The header of 32 bytes, or of 16, by which every message accounts for itself. Little-endian:

    offset  size  field
    0       4     run tag           the run that this message belongs to
    4       4     stream            the publisher that sent it
    8       8     sequence          its number in the stream, from 0
    16      8     intended_ns       when it was due by the schedule (CLOCK_MONOTONIC)
    24      4     send offset       sent − intended in ns, IEEE 754 single; its sign bit marks
                                    a copy that was sent again after the connection broke, and
                                    its last four bits are then the number of the copy
    28      4     CRC-32            of the body (bytes 32 and on), then of bytes 0 to 27

A copy is marked if MQTT lets both arrive: at QoS 1, and at QoS 2 when the broker had lost the
session. The CRC of a captured message is `zlib.crc32(p[:28], zlib.crc32(p[32:]))`: body first, so
that a sender computes it once. A payload below 32 bytes has a short header of 16:

    0       1     lowest byte of the run tag
    1       3     stream
    4       4     sequence
    8       4.5   intended time in µs since the begin of the schedule
    12.5    1.5   send offset, 6 bits of exponent and 5 of fraction; its highest bit marks a copy,
                  and its last four bits are then the number of the copy
    14      2     low half of zlib.crc32(tag + p[:14] + bytes(10), zlib.crc32(p[16:]))
"""

import zlib

import numpy as np
import numpy.typing as npt

from loadgen.kernels import arrays
from loadgen.kernels.compiled import compiled
from loadgen.kernels.crc import crc32, crc32_of_28

HEADER_BYTES = 32
SHORT_BYTES = 16
_CRC_OFFSET = 28
_SIGN = 0x80000000
COPIES_MOST = 15
_MASK = 0xFFFFFFFF
_RANDOM_BYTES = 1 << 20
_EXACT_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 16


@compiled
def stamp(
    out: arrays.Bytes,
    position: int,
    run_tag: int,
    stream: int,
    sequence: int,
    intended_ns: int,
    sent_ns: int,
    body_crc: int,
    copy: int = 0,
) -> None:
    """Write the header at `position`, with the CRC-32 of its body and the number of a copy."""
    offset = int(np.int64(np.float32(max(sent_ns - intended_ns, 0)).view(np.uint32)))
    if copy:
        # With all bits above the sign, which the shift below drops.
        offset = offset & ~COPIES_MOST | copy | -_SIGN
    # In words of eight bytes after the run tag. The CRC takes them from here and not from memory,
    # where a word that was written in two parts would wait for both.
    second = stream | sequence << 32
    third = (sequence >> 32) & _MASK | intended_ns << 32
    fourth = (intended_ns >> 32) & _MASK | offset << 32
    arrays.write_u32(out, position, run_tag)
    arrays.write_i64(out, position + 4, second)
    arrays.write_i64(out, position + 12, third)
    arrays.write_i64(out, position + 20, fourth)
    arrays.write_u32(
        out, position + _CRC_OFFSET, crc32_of_28(body_crc, run_tag, second, third, fourth)
    )


@compiled
def send_offset_ns(buffer: arrays.Bytes, position: int) -> int:
    """Return sent − intended of the header at `position`, in ns."""
    offset = arrays.read_u32(buffer, position + 24) & ~_SIGN
    return int(np.int64(np.uint32(offset).view(np.float32)))


@compiled
def is_copy(buffer: arrays.Bytes, position: int) -> bool:
    """Return True if the header at `position` marks the message as sent again."""
    return arrays.read_u8(buffer, position + 27) >= 0x80


@compiled
def copy_number(buffer: arrays.Bytes, position: int) -> int:
    """Return the number of the copy from the header at `position`, 0 for an original."""
    return arrays.read_u8(buffer, position + 24) & COPIES_MOST if is_copy(buffer, position) else 0


@compiled
def is_intact(buffer: arrays.Bytes, start: int, end: int) -> bool:
    """Return True if the CRC of the payload buffer[start:end] (32 bytes or more) is correct."""
    return has_intact_header(buffer, start, crc32(0, buffer, start + HEADER_BYTES, end))


@compiled
def has_intact_header(buffer: arrays.Bytes, start: int, body_crc: int) -> bool:
    first, second = arrays.read_u32(buffer, start), arrays.read_i64(buffer, start + 4)
    third, fourth = arrays.read_i64(buffer, start + 12), arrays.read_i64(buffer, start + 20)
    crc = crc32_of_28(body_crc, first, second, third, fourth)
    return bool(crc == arrays.read_u32(buffer, start + _CRC_OFFSET))


# Of a short header: the bits of the time, those before the CRC, the mark of a copy, the bits of a
# single's fraction that are dropped, and the bias of the exponent before the others.
_TIME_BITS = 36
_BEFORE_CRC = (1 << 48) - 1
_IS_COPY = 0x800
_DROPPED, _BIAS = 18, 127 << 5


@compiled
def stamp_short(
    out: arrays.Bytes,
    position: int,
    run_tag: int,
    stream: int,
    sequence: int,
    since_start_ns: int,
    offset_ns: int,
    body_crc: int,
    copy: int,
) -> None:
    """Write a short header; `since_start_ns` is the intended time in the schedule."""
    offset = int(np.int64(np.float32(max(offset_ns, 1)).view(np.uint32)) >> _DROPPED) - _BIAS
    if copy:
        offset = offset & ~COPIES_MOST | copy | _IS_COPY
    first = run_tag & 0xFF | stream << 8 | sequence << 32
    second = since_start_ns // 1000 | offset << _TIME_BITS
    crc = crc32_of_28(body_crc, run_tag, first, second, 0)
    arrays.write_i64(out, position, first)
    arrays.write_i64(out, position + 8, second | crc << 48)


@compiled
def lengthen(
    buffer: arrays.Bytes, start: int, end: int, out: int, run_tag: int, begun_ns: int
) -> int:
    """Write the header of 32 bytes for the short one of buffer[start:end] to buffer[out:].

    Return the CRC-32 of the body, or -1 without the run's tag. `begun_ns` is the begin of the
    schedule. The new CRC is wrong if the old one was.
    """
    if arrays.read_u8(buffer, start) != run_tag & 0xFF:
        return -1
    first, word = arrays.read_i64(buffer, start), arrays.read_i64(buffer, start + 8)
    second = word & _BEFORE_CRC
    body_crc = int(crc32(0, buffer, start + SHORT_BYTES, end))
    fault = (crc32_of_28(body_crc, run_tag, first, second, 0) ^ word >> 48) & 0xFFFF
    offset, copy = second >> _TIME_BITS, 0
    if offset & _IS_COPY:
        copy = offset & COPIES_MOST
        offset &= ~(_IS_COPY | COPIES_MOST)
    offset_ns = int(np.int64(np.uint32(offset + _BIAS << _DROPPED).view(np.float32)))
    due_ns = begun_ns + (second & (1 << _TIME_BITS) - 1) * 1000
    stream, sequence = (first >> 8) & 0xFFFFFF, (first >> 32) & _MASK
    crc = body_crc ^ fault
    stamp(buffer, out, run_tag, stream, sequence, due_ns, due_ns + offset_ns, crc, copy)
    return body_crc


def make_body(size_bytes: int, seed: int) -> arrays.Bytes:
    """Return printable filler for the bodies of a run, which repeats itself after a MiB."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
    random = np.random.default_rng(seed).integers(0, len(letters), min(size_bytes, _RANDOM_BYTES))
    return np.resize(letters[random], size_bytes)


def body_crc_states(body: arrays.Bytes) -> npt.NDArray[np.int64]:
    """Return the CRC-32 of prefixes of the body, for `crc_of_body`.

    Entry n is that of the first n bytes, up to 256 KiB; then there is one for each 64 KiB more.
    """
    data = memoryview(np.ascontiguousarray(body).data)
    exact = min(len(data), _EXACT_BYTES)
    states = np.zeros(exact + 1 + (len(data) - exact) // _BLOCK_BYTES, np.int64)
    position = 0
    for number in range(1, len(states)):
        end = position + (1 if number <= exact else _BLOCK_BYTES)
        states[number] = zlib.crc32(data[position:end], int(states[number - 1]))
        position = end
    return states


@compiled
def crc_of_body(states: npt.NDArray[np.int64], body: arrays.Bytes, length: int) -> int:
    """Return the CRC-32 of body[:length]; `states` are those of `body_crc_states`."""
    if length <= _EXACT_BYTES:
        return int(states[length])
    blocks = (length - _EXACT_BYTES) // _BLOCK_BYTES
    known = _EXACT_BYTES + blocks * _BLOCK_BYTES
    return int(crc32(states[_EXACT_BYTES + blocks], body, known, length))


HEX_BYTES = 2 * HEADER_BYTES  # of a header as hexadecimal digits
IN_FRONT, IN_PROPERTY, NOWHERE, SHORT, IN_FIELD = range(5)
"""Places of the header. SHORT is one of 16 bytes in front, IN_FIELD + n a field that begins after n
bytes of the payload. NOWHERE: topic and order stand for it (by_order.py)."""
HEADER_PROPERTY = b"\x26\0\x07loadgen\0\x40" + b"0" * HEX_BYTES
"""The User Property of a header (MQTT 5, 3.3.2.3.7), with its digits still to be written."""


@compiled
def move_out(out: arrays.Bytes, start: int, place: int) -> None:
    """Move the header at out[start:] into the property before its body, or a field of it."""
    words = (
        arrays.read_i64(out, start),
        arrays.read_i64(out, start + 8),
        arrays.read_i64(out, start + 16),
        arrays.read_i64(out, start + 24),
    )
    text = start + HEADER_BYTES - HEX_BYTES
    if place >= IN_FIELD:
        text = start + place - IN_FIELD
        for index in range(start, text):
            out[index] = out[index + HEADER_BYTES]
    for word in words:
        for index in range(16):
            digit = word >> 4 * (index ^ 1) & 15
            out[text + index] = digit + 48 if digit < 10 else digit + 87
        text += 16


@compiled
def move_in(buffer: arrays.Bytes, payload: int, text: int, place: int, run_tag: int) -> int:
    """Undo `move_out` for a header whose digits begin at `text`; return its begin, or -1."""
    begin = payload if place >= IN_FIELD else payload - HEADER_BYTES
    first, first_is_good = _word(buffer, text)
    second, second_is_good = _word(buffer, text + 16)
    third, third_is_good = _word(buffer, text + 32)
    fourth, fourth_is_good = _word(buffer, text + 48)
    if first & _MASK != run_tag:
        return -1
    if not (first_is_good and second_is_good and third_is_good and fourth_is_good):
        fourth = ~fourth  # with a checksum that is wrong
    if place >= IN_FIELD:
        for index in range(text - 1, payload - 1, -1):
            buffer[index + HEADER_BYTES] = buffer[index]
        for index in range(text + HEADER_BYTES, text + HEX_BYTES):
            buffer[index] = ZERO
    arrays.write_i64(buffer, begin, first)
    arrays.write_i64(buffer, begin + 8, second)
    arrays.write_i64(buffer, begin + 16, third)
    arrays.write_i64(buffer, begin + 24, fourth)
    return begin


@compiled
def _word(buffer: arrays.Bytes, position: int) -> tuple[int, bool]:
    """Return eight bytes from sixteen hexadecimal digits, and False if one is not a digit."""
    word, is_good = 0, True
    for index in range(16):
        figure = arrays.read_u8(buffer, position + index)
        digit = figure - 48 if figure < 58 else figure - 87
        is_good = is_good and 0 <= digit < 16 and (digit < 10) == (figure < 58)
        word |= (digit & 15) << 4 * (index ^ 1)
    return word, is_good


class Place(arrays.Record):
    """A place in a body, with the number that fills it and its digits."""

    offset: arrays.Int64
    digits: arrays.Int64
    source: arrays.Int64
    fill: arrays.Int64  # character before the digits of the number


SOURCES = ("device", "sequence", "time_ms", "random")  # numbers for a `Place`, by its source
DEVICE, SEQUENCE, TIME_MS = 0, 1, 2
SPACE, ZERO = 0x20, 0x30


@compiled
def fill_template(
    out: arrays.Bytes,
    start: int,
    places: arrays.Rows[Place],
    device: int,
    sequence: int,
    time_ms: int,
    random: int,
) -> None:
    """Write the numbers of one message into the body that begins at out[start]."""
    for number in range(len(places)):
        place = places[number]
        source = place.source
        if source == DEVICE:
            value = device
        elif source == SEQUENCE:
            value = sequence
        elif source == TIME_MS:
            value = time_ms
        else:
            # Multiplied (Knuth, TAOCP 3.3.4) and folded twice: after one product alone two places
            # of a message would differ by a constant.
            value = random * 6364136223846793005 + (number + 1) * 1442695040888963407
            value = (value >> 11) & 0xFFFFFFFFFFFFF
            value ^= value >> 27
            value = ((value * 3935559000370003845) >> 11) & 0xFFFFFFFFFFFFF
            value ^= value >> 29
        first = start + place.offset
        position = first + place.digits - 1
        fill = ZERO if source > TIME_MS else place.fill
        while position >= first:
            out[position] = ZERO + value % 10
            value //= 10
            position -= 1
            if value == 0:
                break
        while position >= first:
            out[position] = fill
            position -= 1
