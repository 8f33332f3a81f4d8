"""The counts of a worker: messages by phase, latencies, violations, and events for Python.

A message counts in the phase in which it was intended, at its sender and at its receiver.
"""

from typing import NamedTuple

import numpy as np

from loadgen.kernels.accounting import DUPLICATE, NEW, account
from loadgen.kernels.arrays import Bytes, copy_bytes, read_i64, read_u8, read_u32
from loadgen.kernels.compiled import compiled
from loadgen.kernels.device import SHARED
from loadgen.kernels.fleet import (
    NO_NUMBER,
    TOPIC_NUMBER,
    CounterRecord,
    Fleet,
    GroupRecord,
    RunConstants,
    StreamRange,
    StreamSource,
)
from loadgen.kernels.packet_bytes import is_same
from loadgen.kernels.payload import (
    HEADER_BYTES,
    NOWHERE,
    copy_number,
    crc_of_body,
    has_intact_header,
    is_copy,
    is_intact,
    send_offset_ns,
)
from loadgen.kernels.repeats import is_excused, note_first_copy, note_late, note_owner
from loadgen.metrics.histogram import HALF_BITS, HIGHEST_RECORDABLE_NS, UNIT_MASK
from loadgen.metrics.interval import CONNECTED_AT, SERIES
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.mqtt.violations import DUP_ON_FIRST, QOS_RAISED, RETAIN_ON_LIVE, VIOLATIONS

# Phases of counters and slots: messages count in the intended one, connects in a separate one.
INTENDED_PHASES = ("warmup", "measure", "drain", "connect")
WARMUP, MEASURE, DRAIN, CONNECT_PHASE = range(4)

# Kinds of events.
CONTROL_PACKET = 1  # a packet other than PUBLISH and its acknowledgements; bytes in `control`
BROKEN = 2  # the peer broke the protocol; the value is the reason code for DISCONNECT
UNSENT = 3  # bytes in `control` must follow the written bytes
CLOSED_BY_PEER = 4  # the value is the errno, 0 for an orderly end
CONNECT_FAILED = 5  # the value is the errno
WRITABLE = 6  # a blocked connection takes bytes again
REFUSED_PACKET = 7  # the first acknowledgement with a failure code, the value; bytes in `control`
UNANSWERED = 8  # a request whose response did not fit into the window
VIOLATION = 9  # the first of its kind; the value is an index of `VIOLATIONS`
UNSENT_BODY = 10  # `length` bytes of `body`, from the value on, must follow the written bytes
READY = 11  # an event of a streamed connection's socket; the value is epoll's flags

EVENT_LIMIT = 4096

_SERIES_COUNT = len(SERIES)
_of = SERIES.index
S_END_TO_END, S_TRANSIT, S_SEND_DELAY = map(_of, ("end_to_end", "transit", "send_delay"))
S_ACKNOWLEDGE, S_CONNECT, S_TCP, S_TLS = map(_of, ("acknowledge", "connect", "tcp", "tls"))
S_CONNACK, S_SUBACK, S_RECONNECT = map(_of, ("connack", "suback", "reconnect"))
S_OWN_DELAY, S_PUSHED_BACK = map(_of, ("own_delay", "pushed_back"))
S_CONNECTED_AT = _of(CONNECTED_AT)
S_RESUBSCRIBE, S_UNSUBSCRIBE = map(_of, ("resubscribe", "unsubscribe"))
S_RETURN, S_CATCH_UP = map(_of, ("return", "catch_up"))

# The exponent field of a float64, above 52 bits of fraction, is 1022 + the bit length of its value.
# A bucket drops all but 11 bits, which the first 2048 buckets resolve: 1022 + 11 = 1033.
_FRACTION_BITS = 52
_EXPONENT_OFFSET = 1033

_IS_JUDGED = np.array([violation.is_judged for violation in VIOLATIONS])
CLOCKS_NS = 100_000_000  # most by which the clocks of two hosts differ

FAILURE = int(ReasonCode.UNSPECIFIED_ERROR)  # the lowest reason code of a failure


class ReceivedMessage(NamedTuple):
    """A PUBLISH in `fleet.buffer`; of a streamed one, its head and `body_crc` (-1 for others)."""

    row: int
    now_ns: int
    start: int
    topic: int
    topic_end: int
    payload: int
    end: int
    packet_id: int
    qos: int
    dup: int
    retain: int
    body_crc: int


@compiled
def slot_of(group: int, series: int, phase: int) -> int:
    return (group * _SERIES_COUNT + series) * 4 + phase


@compiled
def bucket_index(value_ns: int) -> int:
    """Return the bucket of a value in ns, which is limited to 0 and HIGHEST_RECORDABLE_NS."""
    value = min(max(value_ns, 0), HIGHEST_RECORDABLE_NS)
    bits = (np.float64(value | UNIT_MASK).view(np.int64) >> _FRACTION_BITS) - _EXPONENT_OFFSET
    return int((bits << HALF_BITS) + (value >> bits))


@compiled
def record(fleet: Fleet, slot: int, value_ns: int, count: int = 1) -> None:
    """Count a latency of `count` messages; a negative one, from clocks that differ, counts as 0."""
    value = max(value_ns, 0)
    stat = fleet.stats[slot]
    fleet.histograms[slot, bucket_index(value)] += count
    if stat.count == 0 or value < stat.min_ns:
        stat.min_ns = value
    stat.count += count
    stat.sum_ns += value * count
    stat.max_ns = max(stat.max_ns, value)


@compiled
def phase_of(run: RunConstants, intended_ns: int) -> int:
    if intended_ns < run.measure_ns:
        return WARMUP
    if intended_ns < run.end_ns:
        return MEASURE
    return DRAIN


@compiled
def phase_of_arrival(run: RunConstants, now_ns: int) -> int:
    """Return the phase of an arrival without an intended time; the window is the last."""
    return phase_of(run, min(now_ns, run.end_ns - 1))


@compiled
def phase_of_surplus(fleet: Fleet, message: ReceivedMessage) -> int:
    """Return the phase of a delivery that was not due: that of its arrival, if it is later."""
    phase = phase_of(fleet.run, read_i64(fleet.buffer, message.payload + 16))
    return max(phase, phase_of_arrival(fleet.run, message.now_ns))


@compiled
def count_sent(fleet: Fleet, group: int, phase: int, deliveries: int, size_bytes: int) -> None:
    counts = fleet.counters[group, phase]
    counts.sent += 1
    counts.sent_bytes += size_bytes
    counts.expected += deliveries


@compiled
def push_event(fleet: Fleet, kind: int, row: int, value: int, moment_ns: int) -> None:
    """Queue an event without bytes; callers check `room_for_events` before each step."""
    event = fleet.events[fleet.totals.events]
    event.kind = kind
    event.device = row
    event.value = value
    event.length = 0
    event.moment_ns = moment_ns
    fleet.totals.events += 1


@compiled
def push_bytes(
    fleet: Fleet,
    kind: int,
    row: int,
    value: int,
    moment_ns: int,
    buffer: Bytes,
    start: int,
    end: int,
) -> None:
    event = fleet.events[fleet.totals.events]
    push_event(fleet, kind, row, value, moment_ns)
    offset = fleet.totals.control_bytes
    copy_bytes(fleet.control, offset, buffer, start, end - start)
    event.offset = offset
    event.length = end - start
    fleet.totals.control_bytes = offset + end - start


@compiled
def room_for_events(fleet: Fleet, size_bytes: int) -> bool:
    totals = fleet.totals
    return bool(
        totals.events + 4 < EVENT_LIMIT and totals.control_bytes + size_bytes <= len(fleet.control)
    )


@compiled
def violate(fleet: Fleet, row: int, kind: int, now_ns: int) -> None:
    """Count a violation by the broker, and report the first of its kind to Python."""
    if _IS_JUDGED[kind]:
        phase = phase_of_arrival(fleet.run, now_ns)
        fleet.counters[fleet.devices[row].group, phase].violations += 1
    fleet.violations[kind] += 1
    if fleet.violations[kind] == 1:
        push_event(fleet, VIOLATION, row, kind, now_ns)


@compiled
def is_whole(fleet: Fleet, message: ReceivedMessage) -> bool:
    """Return True if the CRC of a message of at least 32 bytes is correct."""
    if message.body_crc >= 0:
        return bool(has_intact_header(fleet.buffer, message.payload, message.body_crc))
    return bool(is_intact(fleet.buffer, message.payload, message.end))


@compiled
def take_message(fleet: Fleet, message: ReceivedMessage) -> bool:
    """Account for a message; return True if it was expected and is not a duplicate."""
    buffer, start, now_ns = fleet.buffer, message.payload, message.now_ns
    device = fleet.devices[message.row]
    is_ours = message.end - start >= HEADER_BYTES
    is_ours = is_ours and read_u32(buffer, start) == fleet.run.run_tag
    is_damaged = is_ours and not is_whole(fleet, message)
    if not is_ours or (is_damaged and not _body_alone_is_damaged(fleet, message)):
        count_doubtful(fleet, message)
        return False
    intended_ns = read_i64(buffer, start + 16)
    phase = phase_of(fleet.run, intended_ns)
    counts = fleet.counters[device.group, phase]
    number = range_of(fleet, message)
    if number < 0:
        count_misrouted(fleet, message)
        return False
    received = fleet.ranges[number]
    pair = pair_in(fleet, received, message)
    if is_damaged:
        count_damaged(fleet, counts, message, pair)
        return False
    sequence = read_i64(buffer, start + 8)
    if device.held > 0:
        fleet.held_pairs[device.holder, device.held - 1] = pair
        fleet.held_sequences[device.holder, device.held - 1] = sequence
    outcome = account(fleet.pairs, fleet.gaps, fleet.totals, pair, sequence)
    if outcome != NEW:
        if outcome == DUPLICATE:
            count_repeated(fleet, device.group, message, pair)
            return False
        note_late(fleet, pair, sequence)
        if not device.flags & SHARED:
            counts.out_of_order += 1
    if device.flags & SHARED:
        note_owner(fleet, message.row, pair, sequence)
    if message.qos != received.qos:
        check_qos(fleet, counts, message, received.qos)
    if phase == MEASURE:
        device.taken += 1
    counts.received += 1
    counts.received_bytes += message.end - message.start
    waited_ns = now_ns - intended_ns
    transit_ns = waited_ns - send_offset_ns(buffer, start)
    if message.dup | message.retain or is_copy(buffer, start):
        note_delivery(fleet, message, pair, now_ns - transit_ns)
    # Only these messages waited for the device; those before its absence waited for the broker.
    if device.left_ns <= intended_ns < device.returned_ns:
        record(fleet, slot_of(device.group, S_RECONNECT, phase), waited_ns)
        if device.due_ns != 0:
            slot = slot_of(device.group, S_CATCH_UP, phase_of(fleet.run, device.due_ns))
            record(fleet, slot, now_ns - device.due_ns)
        return True
    record(fleet, slot_of(device.group, S_END_TO_END, phase), waited_ns)
    record(fleet, slot_of(device.group, S_TRANSIT, phase), transit_ns)
    return True


@compiled
def count_misrouted(fleet: Fleet, message: ReceivedMessage) -> None:
    """Count a message of the run on a wrong topic, or at a device that did not subscribe."""
    counts = fleet.counters[fleet.devices[message.row].group, phase_of_surplus(fleet, message)]
    counts.misrouted += 1
    fleet.totals.strays += 1


@compiled
def note_delivery(fleet: Fleet, message: ReceivedMessage, pair: int, sent_ns: int) -> None:
    """Check DUP and RETAIN of the first delivery of an intact message, and note a copy.

    RETAIN is wrong if the message was sent after the SUBACK, as we never request Retain As
    Published. DUP is wrong if it was sent after the CONNACK, so on no earlier connection.
    """
    if is_copy(fleet.buffer, message.payload):
        sequence = read_i64(fleet.buffer, message.payload + 8)
        note_first_copy(fleet, pair, sequence, copy_number(fleet.buffer, message.payload))
    device = fleet.devices[message.row]
    sent_ns -= CLOCKS_NS
    if message.retain and device.request_ns == 0 and sent_ns > device.subscribed_ns:
        violate(fleet, message.row, RETAIN_ON_LIVE, message.now_ns)
    # A queue's message may have been tried at another consumer.
    if message.dup and not device.flags & SHARED and sent_ns > device.returned_ns:
        violate(fleet, message.row, DUP_ON_FIRST, message.now_ns)


@compiled
def range_of(fleet: Fleet, message: ReceivedMessage) -> int:
    """Return the row in `ranges` of a message's stream, -1 if the device must not receive it."""
    device = fleet.devices[message.row]
    stream = read_u32(fleet.buffer, message.payload + 4)
    for number in range(device.range_first, device.range_first + device.range_count):
        received = fleet.ranges[number]
        offset = stream - received.stream_first
        if offset < 0 or offset >= received.stream_count:
            continue
        source = fleet.sources[received.source]
        sender = stream - source.first_stream
        topic = received.topic
        if topic < 0:
            topic = sender
            if source.topics != source.senders:
                topic = sender * source.topics // source.senders
        if has_topic(fleet, source, topic, sender, message):
            return int(number)
    return -1


@compiled
def pair_in(fleet: Fleet, received: StreamRange, message: ReceivedMessage) -> int:
    """Return the pair of a message's stream, which is in the range `received`."""
    stream = read_u32(fleet.buffer, message.payload + 4)
    return stream - received.stream_first + received.pair_first


@compiled
def has_topic(
    fleet: Fleet, source: StreamSource, topic: int, sender: int, message: ReceivedMessage
) -> bool:
    """Return True if the topic of a message is one of a source with these numbers, -1 for any."""
    buffer, position = fleet.buffer, message.topic
    for index in range(source.part, source.part_end):
        part = fleet.parts[index]
        end = position + part.end - part.start
        if end > message.topic_end:
            return False
        if not is_same(buffer, position, end, fleet.pattern_text, part.start, part.end):
            return False
        position = end
        if part.number != NO_NUMBER:
            wanted = topic if part.number == TOPIC_NUMBER else sender
            position = _after_number(buffer, position, message.topic_end, wanted)
            if position < 0:
                return False
    return bool(position == message.topic_end)


@compiled
def _after_number(buffer: Bytes, start: int, end: int, wanted: int) -> int:
    """Return the end of the number that begins at `start`, -1 unless it is `wanted` (-1: any)."""
    number = 0
    position = start
    while position < min(end, start + 12):
        figure = read_u8(buffer, position) - 48
        if figure < 0 or figure > 9:
            break
        number = number * 10 + figure
        position += 1
    figures = position - start
    if figures < 1 or (figures > 1 and read_u8(buffer, start) == 48):
        return -1
    return position if wanted < 0 or number == wanted else -1


@compiled
def count_repeated(fleet: Fleet, group: int, message: ReceivedMessage, pair: int) -> None:
    """Count an intact duplicate, and whether MQTT allows it (repeats.py)."""
    counts = fleet.counters[group, phase_of_surplus(fleet, message)]
    counts.duplicated += 1
    counts.excused += is_excused(fleet, message, pair)


@compiled
def check_qos(fleet: Fleet, counts: CounterRecord, message: ReceivedMessage, qos: int) -> None:
    if message.qos < qos:
        counts.below_qos += 1
    elif message.qos > qos:
        violate(fleet, message.row, QOS_RAISED, message.now_ns)


@compiled
def count_damaged(fleet: Fleet, counts: CounterRecord, message: ReceivedMessage, pair: int) -> None:
    """Count a damaged message whose pair and sequence are intact."""
    sequence = read_i64(fleet.buffer, message.payload + 8)
    if account(fleet.pairs, fleet.gaps, fleet.totals, pair, sequence) == DUPLICATE:
        counts.duplicated += 1  # MQTT allows some duplicates, but not a damaged one
    else:
        counts.corrupt += 1
        fleet.totals.damaged += 1


@compiled
def _body_alone_is_damaged(fleet: Fleet, message: ReceivedMessage) -> bool:
    """Return True if the header has the CRC of an undamaged body of this, or the largest, size."""
    start = message.payload
    if len(fleet.header_places) > 0 and fleet.header_places[0] == NOWHERE:
        return True  # the header was added here
    for number in range(len(fleet.groups)):
        group = fleet.groups[number]
        whole = group.body_end - group.body_first
        if group.place_end > group.place_first:
            continue
        for size in (message.end - start - HEADER_BYTES, whole):
            crc = body_crc(fleet, group, min(size, whole))
            if has_intact_header(fleet.buffer, start, crc):
                return True
    return False


@compiled
def body_crc(fleet: Fleet, group: GroupRecord, length: int) -> int:
    body = fleet.body[group.body_first : group.body_end]
    return int(crc_of_body(fleet.body_crc[group.crc_first :], body, length))


@compiled
def count_doubtful(fleet: Fleet, message: ReceivedMessage) -> None:
    """Count a message with a damaged header: corrupt if it was ours, else foreign.

    It was ours if it has the run's tag, or is not intact and has an intended time of the run. If
    less than the tag is left, it was ours on one of our topics.
    """
    fleet.totals.strays += 1
    start, device = message.payload, fleet.devices[message.row]
    size = message.end - start
    is_ours = True
    for offset in range(min(size, 4)):
        tag_byte = fleet.run.run_tag >> 8 * offset & 0xFF
        is_ours = is_ours and read_u8(fleet.buffer, start + offset) == tag_byte
    if size < 4 and is_ours:
        is_ours = _is_received(fleet, message)
    if not is_ours and size >= 24:
        begun_ns = fleet.program[0].clock_ns
        is_ours = 0 < begun_ns <= read_i64(fleet.buffer, start + 16) <= message.now_ns
        if size >= HEADER_BYTES and is_whole(fleet, message):
            is_ours = False
    counts = fleet.counters[device.group, phase_of_arrival(fleet.run, message.now_ns)]
    counts.corrupt += is_ours
    counts.foreign += not is_ours


@compiled
def _is_received(fleet: Fleet, message: ReceivedMessage) -> bool:
    """Return True if the device of a message receives messages of its topic."""
    device = fleet.devices[message.row]
    for number in range(device.range_first, device.range_first + device.range_count):
        received = fleet.ranges[number]
        source = fleet.sources[received.source]
        if has_topic(fleet, source, received.topic, -1, message):
            return True
    return False
