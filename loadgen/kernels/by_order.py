"""Messages without a header: each is known by its topic and its place in the order.

The n-th message of a stream that a device receives is taken for message n.
"""

import numpy as np

from loadgen.kernels.arrays import Bytes, read_u8
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import CLOCKS_NS, ReceivedMessage, has_topic
from loadgen.kernels.crc import crc32
from loadgen.kernels.fleet import DEVICE_NUMBER, NO_NUMBER, Fleet, GroupRecord, StreamSource
from loadgen.kernels.pacer import CONSTANT, clock_of, load_of
from loadgen.kernels.payload import HEADER_BYTES, stamp


@compiled
def add_header(fleet: Fleet, message: ReceivedMessage, out: int) -> int:
    """Write the header of a message to buffer[out:]; return the CRC-32 of its body.

    Return -1 if the topic is not of the run, or nothing was due on it yet. A message that comes
    before the next one is due repeats the last one. A wrong body makes the header's CRC wrong.
    """
    buffer, run = fleet.buffer, fleet.run
    for number in range(len(fleet.sources)):
        source = fleet.sources[number]
        sender = _sender_of(fleet, source, message)
        if sender < 0:
            continue
        stream, group = source.first_stream + sender, fleet.groups[source.group]
        sequence = _next_at(fleet, message.row, number, stream)
        due_ns = _due_ns(fleet, source, sender, sequence)
        if due_ns > message.now_ns + CLOCKS_NS or 0 < run.end_ns <= due_ns:
            sequence -= 1
            due_ns = _due_ns(fleet, source, sender, sequence)
        if sequence < 0:
            return -1
        size = max(message.end - message.payload, group.size_least - HEADER_BYTES)
        end = group.body_first + min(size, group.size_most - HEADER_BYTES)
        crc = _fixed_crc(fleet, group, fleet.body, group.body_first, end)
        stamp(buffer, out, run.run_tag, stream, sequence, due_ns, due_ns, crc)
        return int(_fixed_crc(fleet, group, buffer, message.payload, message.end))
    return -1


@compiled
def _sender_of(fleet: Fleet, source: StreamSource, message: ReceivedMessage) -> int:
    """Return the number of the publisher whose topic a message has, -1 if it is not in `source`."""
    position, sender, is_device = message.topic, 0, False
    for index in range(source.part, source.part_end):
        part = fleet.parts[index]
        position += part.end - part.start
        if part.number == NO_NUMBER:
            continue
        number, end = 0, min(message.topic_end, position + 12)
        while position < end and 48 <= read_u8(fleet.buffer, position) < 58:
            number = number * 10 + read_u8(fleet.buffer, position) - 48
            position += 1
        if not is_device:
            sender, is_device = number, part.number == DEVICE_NUMBER
    topic = sender * source.topics // source.senders
    if sender >= source.senders or not has_topic(fleet, source, topic, sender, message):
        return -1
    return int(sender)


@compiled
def _next_at(fleet: Fleet, row: int, source: int, stream: int) -> int:
    """Return the next message of a stream that a device expects; 0 if it must not receive it."""
    device = fleet.devices[row]
    for number in range(device.range_first, device.range_first + device.range_count):
        received = fleet.ranges[number]
        offset = stream - received.stream_first
        if received.source == source and 0 <= offset < received.stream_count:
            return int(fleet.pairs[received.pair_first + offset].expected)
    return 0


@compiled
def _due_ns(fleet: Fleet, source: StreamSource, sender: int, sequence: int) -> int:
    group, stream = fleet.groups[source.group], source.first_stream + sender
    phase_ns = 0
    if group.arrival == CONSTANT:
        phase_ns = int(sender / np.float64(source.senders) * group.period_ns)
    load_ns = load_of(stream, sequence, phase_ns, group.period_ns, group.arrival, fleet.run.seed)
    return int(clock_of(fleet.program, load_ns))


@compiled
def _fixed_crc(fleet: Fleet, group: GroupRecord, text: Bytes, start: int, end: int) -> int:
    """Return the CRC-32 of the body text[start:end], without the places that are filled."""
    crc, position = 0, start
    for number in range(group.place_first, group.place_end):
        place = fleet.template[number]
        crc = int(crc32(crc, text, position, min(start + place.offset, end)))
        position = min(start + place.offset + place.digits, end)
    return int(crc32(crc, text, position, end))
