"""What the devices of a worker do with bytes: the kernels of the hot path.

`receive` takes what one device got, accounts for every message in it and writes the
acknowledgements; `send_due` writes what a publisher owes and `record_sent` counts what was really
sent. What a message means, and what one looks like, is a case's own: `Handlers`. Those here are of
devices that publish, receive and respond; a supply chain has others (specjms/kernels.py).

Bytes and moments come in as arguments; sockets and clocks are the engine's.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.metrics.histogram import bucket_index
from loadgen.metrics.interval import SERIES
from loadgen.mqtt import kernels as mqtt
from loadgen.mqtt.constants import CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from loadgen.mqtt.in_flight import (
    AWAIT_PUBCOMP,
    accept_qos2,
    acquire,
    on_puback,
    on_pubcomp,
    on_pubrec,
    release_qos2,
)
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.workload.accounting import DUPLICATE, LATE, account
from loadgen.workload.attention import mostly_stalled
from loadgen.workload.device import (
    ACCEPT,
    AWAIT_CONNACK,
    BLOCKED,
    PUSHED_BACK,
    REFUSE,
    SHARED,
    WAITING,
    WINDOW_FULL,
    Device,
    transition,
)
from loadgen.workload.fleet import Fleet, Group, Run, Sent
from loadgen.workload.handlers import Handlers
from loadgen.workload.pacer import advance, clock_of, heap_push, random_unit
from loadgen.workload.payload import (
    HEADER_BYTES,
    crc32,
    is_intact,
    read_i64,
    read_u32,
    send_offset_ns,
    stamp,
)
from loadgen.workload.template import fill_template

Bytes = npt.NDArray[np.uint8]

_SALT_CONTENT = 0x436F6E74  # apart from what draws a message's moment

# Phase of a counter or slot: that in which the message was intended; connects have their own.
INTENDED_PHASES = ("warmup", "measure", "drain", "connect")
WARMUP, MEASURE, DRAIN, CONNECT_PHASE = range(4)

# Kinds of events.
CONTROL_PACKET = 1  # a packet other than PUBLISH and its acknowledgements; bytes in `control`
BROKEN = 2  # the peer broke the protocol; the value is the reason code for DISCONNECT
UNSENT = 3  # bytes in `control` must follow what was written
CLOSED_BY_PEER = 4  # the value is the errno, 0 for an orderly end
CONNECT_FAILED = 5  # the value is the errno
WRITABLE = 6  # a blocked connection takes bytes again
REFUSED_PACKET = 7  # an acknowledgement with a failure reason code, the value
UNANSWERED = 8  # a request for whose response the window had no room

EVENT_LIMIT = 4096
BATCH_LIMIT = 1024

_SERIES_COUNT = len(SERIES)
S_END_TO_END = SERIES.index("end_to_end")
S_TRANSIT = SERIES.index("transit")
S_SEND_DELAY = SERIES.index("send_delay")
S_ACKNOWLEDGE = SERIES.index("acknowledge")
S_CONNECT = SERIES.index("connect")
S_TCP = SERIES.index("tcp")
S_TLS = SERIES.index("tls")
S_CONNACK = SERIES.index("connack")
S_SUBACK = SERIES.index("suback")
S_RECONNECT = SERIES.index("reconnect")
S_OWN_DELAY = SERIES.index("own_delay")
S_PUSHED_BACK = SERIES.index("pushed_back")

_MALFORMED_PACKET = int(ReasonCode.MALFORMED_PACKET)
_PACKET_TOO_LARGE = int(ReasonCode.PACKET_TOO_LARGE)
_FAILURE = int(ReasonCode.UNSPECIFIED_ERROR)  # and above: any such reason code frees a slot
_FIXED_HEADER_BYTES = 5  # at most (2.1)


class Message(NamedTuple):
    """Where a PUBLISH lies in the buffer, and what its header says."""

    start: int
    topic_end: int
    payload: int
    end: int
    packet_id: int
    qos: int


# --- counting ----------------------------------------------------------------------------------


@compiled
def slot_of(group: int, series: int, phase: int) -> int:
    """Row in `histograms` and `stats`."""
    return (group * _SERIES_COUNT + series) * 4 + phase


@compiled
def record(fleet: Fleet, slot: int, value_ns: int) -> None:
    """Count one latency; clocks that disagree by less than nothing count as 0."""
    record_many(fleet, slot, value_ns, 1)


@compiled
def record_many(fleet: Fleet, slot: int, value_ns: int, count: int) -> None:
    """Count a latency that `count` messages share."""
    value = max(value_ns, 0)
    stat = fleet.stats[slot]
    fleet.histograms[slot, bucket_index(value)] += count
    if stat.count == 0 or value < stat.min_ns:
        stat.min_ns = value
    stat.count += count
    stat.sum_ns += value * count
    stat.max_ns = max(stat.max_ns, value)


@compiled
def phase_of(run: Run, intended_ns: int) -> int:
    """Phase in which a message was intended."""
    if intended_ns < run.measure_ns:
        return WARMUP
    if intended_ns < run.end_ns:
        return MEASURE
    return DRAIN


@compiled
def count_sent(fleet: Fleet, group: int, phase: int, deliveries: int, size_bytes: int) -> None:
    """A message is on its way."""
    counts = fleet.counters[group, phase]
    counts.sent += 1
    counts.sent_bytes += size_bytes
    counts.expected += deliveries


@compiled
def push_event(fleet: Fleet, kind: int, row: int, value: int, moment_ns: int) -> None:
    """Queue an event without bytes; the queue never fills because each step adds few."""
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
    """Queue an event with buffer[start:end]."""
    event = fleet.events[fleet.totals.events]
    push_event(fleet, kind, row, value, moment_ns)
    offset = fleet.totals.control_bytes
    fleet.control[offset : offset + end - start] = buffer[start:end]
    event.offset = offset
    event.length = end - start
    fleet.totals.control_bytes = offset + end - start


@compiled
def room_for_events(fleet: Fleet, size_bytes: int) -> bool:
    """Whether a step that queues a few events and `size_bytes` of bytes fits."""
    totals = fleet.totals
    return bool(
        totals.events + 4 < EVENT_LIMIT and totals.control_bytes + size_bytes <= len(fleet.control)
    )


# --- receiving ---------------------------------------------------------------------------------


@compiled
def receive_packets(
    fleet: Fleet, row: int, buffer: Bytes, end: int, now_ns: int, handlers: Handlers
) -> tuple[int, int]:
    """Handle every whole packet in buffer[:end] that a device received at `now_ns`.

    What it answers is written to `out`: 4 bytes a packet of at least 4, acknowledgements withheld
    before, and what the handlers write. Returns (where the first packet that is not whole begins,
    bytes written). A breach of the protocol is queued as BROKEN and ends the scan at `end`.
    """
    position = 0
    written = 0
    limit_bytes = fleet.run.packet_limit - _FIXED_HEADER_BYTES
    while position < end:
        status, first_byte, body, packet_end = mqtt.frame(buffer, position, end, limit_bytes)
        if status == mqtt.INCOMPLETE:
            break
        if status != mqtt.OK:
            reason = _PACKET_TOO_LARGE if status == mqtt.TOO_LARGE else _MALFORMED_PACKET
            push_event(fleet, BROKEN, row, reason, now_ns)
            return end, written
        kind = first_byte >> 4
        if kind == PUBLISH:
            status, _, topic_end, packet_id, payload = mqtt.publish_fields(
                buffer, first_byte, body, packet_end, fleet.run.version
            )
            if status == mqtt.OK:
                qos = (first_byte >> 1) & 3
                message = Message(position, topic_end, payload, packet_end, packet_id, qos)
                written = _publish(fleet, row, buffer, message, now_ns, written, handlers)
        elif PUBACK <= kind <= PUBCOMP:
            status, packet_id, reason = mqtt.ack_fields(buffer, body, packet_end)
            if status == mqtt.OK:
                written = _ack(fleet, row, kind, packet_id, reason, now_ns, written, handlers)
        elif kind == PINGRESP:
            fleet.devices[row].pinged_ns = 0
        else:
            if not room_for_events(fleet, packet_end - position):
                return position, written
            if kind == CONNACK and packet_end - body >= 2:
                _connack(fleet, row, int(np.int64(buffer[body + 1])), now_ns)
            push_bytes(fleet, CONTROL_PACKET, row, kind, now_ns, buffer, position, packet_end)
        if status != mqtt.OK:
            push_event(fleet, BROKEN, row, _MALFORMED_PACKET, now_ns)
            return end, written
        position = packet_end
    return position, written


@compiled
def _publish(
    fleet: Fleet,
    row: int,
    buffer: Bytes,
    message: Message,
    now_ns: int,
    position: int,
    handlers: Handlers,
) -> int:
    """A message of QoS 2 goes to its handler once, whatever comes again before PUBREL."""
    fleet.totals.publishes += 1
    if message.qos == 2:
        known = fleet.devices[row].qos2
        if known < 0 or not accept_qos2(fleet.received_ids, known, message.packet_id):
            return acknowledge(fleet, row, message, position)
    return int(handlers.on_message(fleet, row, buffer, message, now_ns, position))


@compiled
def acknowledge(fleet: Fleet, row: int, message: Message, position: int) -> int:
    """Write what answers a PUBLISH, or withhold it until the batch is full; the position after."""
    if message.qos == 0:
        return position
    if message.qos == 2:
        return mqtt.write_ack(fleet.out, position, PUBREC, message.packet_id)
    device = fleet.devices[row]
    if device.holder < 0:
        return mqtt.write_ack(fleet.out, position, PUBACK, message.packet_id)
    fleet.held_ids[device.holder, device.held] = message.packet_id
    device.held += 1
    if device.held < fleet.groups[device.group].acknowledge_every:
        return position
    return release_held(fleet, row, position)


@compiled
def release_held(fleet: Fleet, row: int, position: int) -> int:
    """Write the acknowledgements that a device withholds; the position after them."""
    device = fleet.devices[row]
    for index in range(device.held):
        packet_id = fleet.held_ids[device.holder, index]
        position = mqtt.write_ack(fleet.out, position, PUBACK, packet_id)
    device.held = 0
    return position


@compiled
def _ack(
    fleet: Fleet,
    row: int,
    kind: int,
    packet_id: int,
    reason: int,
    now_ns: int,
    position: int,
    handlers: Handlers,
) -> int:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; the position after what answers it."""
    device = fleet.devices[row]
    if kind == PUBREL:
        if device.qos2 >= 0:
            release_qos2(fleet.received_ids, device.qos2, packet_id)
        return mqtt.write_ack(fleet.out, position, PUBCOMP, packet_id)
    if device.sender < 0:
        return position
    if kind == PUBACK:
        status, sent_ns = on_puback(fleet.senders, fleet.window, device.sender, packet_id)
    elif kind == PUBREC:
        status, sent_ns = on_pubrec(fleet.senders, fleet.window, device.sender, packet_id, reason)
        if reason < _FAILURE:
            position = mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
    else:
        status, sent_ns = on_pubcomp(fleet.senders, fleet.window, device.sender, packet_id)
    if status == mqtt.OK and (kind != PUBREC or reason >= _FAILURE):
        # The handler may send a message in the slot that became free.
        phase = phase_of(fleet.run, fleet.window[device.sender, packet_id - 1]["intended_ns"])
        group, position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)
        fleet.counters[group, phase].acknowledged += 1
        fleet.totals.in_flight -= 1
        record(fleet, slot_of(group, S_ACKNOWLEDGE, phase), now_ns - sent_ns)
        _free_window(fleet, row)
    if reason >= _FAILURE and room_for_events(fleet, 0):
        push_event(fleet, REFUSED_PACKET, row, reason, now_ns)
    return position


@compiled
def _free_window(fleet: Fleet, row: int) -> None:
    """A publisher that waited for its window goes on, with a unit when the last one is through."""
    device = fleet.devices[row]
    if device.flags & WINDOW_FULL:
        if device.unit_sent > 0:
            if fleet.senders[device.sender]["in_flight"] > 0:
                return
            device.unit_sent = 0
        device.flags &= ~WINDOW_FULL
        requeue(fleet, row)


@compiled
def _connack(fleet: Fleet, row: int, code: int, now_ns: int) -> None:
    device = fleet.devices[row]
    if device.state != AWAIT_CONNACK:
        return
    if code != 0:
        transition(fleet, row, REFUSE)
        return
    transition(fleet, row, ACCEPT)
    if device.returned_ns != 0:
        device.returned_ns = now_ns
        # Nothing new before what was unacknowledged, which the caller sends again.
        device.flags |= BLOCKED
    fleet.counters[device.group, CONNECT_PHASE].connects += 1
    record(fleet, slot_of(device.group, S_CONNACK, CONNECT_PHASE), now_ns - device.tcp_ns)
    record(fleet, slot_of(device.group, S_CONNECT, CONNECT_PHASE), now_ns - device.syn_ns)


@compiled
def _on_message(
    fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int, position: int
) -> int:
    """Account for a message, and respond to it where the device does."""
    position = acknowledge(fleet, row, message, position)
    is_new = _take_message(fleet, row, buffer, message, now_ns)
    if is_new and fleet.devices[row].responses >= 0:
        position = _respond(fleet, row, buffer, message, now_ns, position)
    return position


@compiled
def _take_message(fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int) -> bool:
    """Account for one message; whether it is one of the device's own that had not come before."""
    device = fleet.devices[row]
    group = device.group
    start = message.payload
    if message.end - start < HEADER_BYTES or read_u32(buffer, start) != fleet.run.run_tag:
        fleet.counters[group, MEASURE].foreign += 1
        return False
    if not is_intact(buffer, start, message.end):
        fleet.counters[group, MEASURE].corrupt += 1
        return False
    intended_ns = read_i64(buffer, start + 16)
    phase = phase_of(fleet.run, intended_ns)
    counts = fleet.counters[group, phase]
    offset = read_u32(buffer, start + 4) - device.stream_first
    if offset < 0 or offset >= device.stream_count:
        counts.foreign += 1
        return False
    pair = device.pair_first + offset
    sequence = read_i64(buffer, start + 8)
    outcome = account(fleet.pairs, fleet.gaps, fleet.gap_pool, pair, sequence)
    if outcome == DUPLICATE:
        counts.duplicated += 1
        return False
    if outcome == LATE and not device.flags & SHARED:
        counts.out_of_order += 1
    if phase == MEASURE:
        device.taken += 1
    counts.received += 1
    counts.received_bytes += message.end - message.start
    waited_ns = now_ns - intended_ns
    transit_ns = waited_ns - send_offset_ns(buffer, start)
    # What was sent since the device is back never waited for it, however late it was sent.
    if now_ns - transit_ns < device.returned_ns:
        record(fleet, slot_of(group, S_RECONNECT, phase), waited_ns)
        return True
    record(fleet, slot_of(group, S_END_TO_END, phase), waited_ns)
    record(fleet, slot_of(group, S_TRANSIT, phase), transit_ns)
    return True


@compiled
def _respond(
    fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int, position: int
) -> int:
    """Write the response to a request; the position after it.

    It is the request's payload on the topic of the device that asked, so that this device accounts
    for it, and times it from the moment at which the request was intended.
    """
    device = fleet.devices[row]
    qos = fleet.groups[device.group].qos
    start = message.payload
    intended_ns = read_i64(buffer, start + 16)
    packet_id = 0
    if qos > 0:
        sequence = read_i64(buffer, start + 8)
        packet_id = acquire(
            fleet.senders, fleet.window, device.sender, qos, sequence, intended_ns, now_ns
        )
        if packet_id == 0:
            if room_for_events(fleet, 0):
                push_event(fleet, UNANSWERED, row, 0, now_ns)
            return position
        fleet.totals.in_flight += 1
    asking = read_u32(buffer, start + 4) - device.stream_first
    topic = device.responses + asking
    size = message.end - start
    payload = mqtt.write_publish(
        fleet.out,
        position,
        qos << 1,
        fleet.topics[fleet.topic_ends[topic] : fleet.topic_ends[topic + 1]],
        packet_id,
        fleet.run.version,
        fleet.topics[:0],
        size,
    )
    fleet.out[payload : payload + size] = buffer[start : message.end]
    phase = phase_of(fleet.run, intended_ns)
    count_sent(fleet, device.group, phase, 1, payload + size - position)
    return int(payload + size)


@compiled
def _on_acknowledged(
    fleet: Fleet, row: int, packet_id: int, now_ns: int, position: int
) -> tuple[int, int]:
    return fleet.devices[row].group, position


# --- sending -----------------------------------------------------------------------------------


@compiled
def requeue(fleet: Fleet, row: int) -> None:
    """Put a publisher that waited back into the heap; what it owes is due at once."""
    device = fleet.devices[row]
    flags = device.flags
    if device.publisher < 0 or not flags & WAITING or flags & (BLOCKED | WINDOW_FULL):
        return
    device.flags = flags & ~WAITING
    totals = fleet.totals
    due_ns = fleet.publishers[device.publisher].due_ns
    if due_ns >= fleet.run.end_ns:
        totals.scheduled -= 1
    else:
        if due_ns < fleet.attention.seen_ns:
            device.flags |= PUSHED_BACK
        totals.heap_size = heap_push(fleet.heap, totals.heap_size, due_ns, device.publisher)
        totals.rearm = 1


@compiled
def reschedule(fleet: Fleet) -> None:
    """Work out every due moment anew after the program changed, and order the heap by them."""
    totals = fleet.totals
    totals.heap_size = 0
    totals.scheduled = 0
    for number in range(len(fleet.publishers)):
        publisher = fleet.publishers[number]
        publisher.due_ns = clock_of(fleet.program, publisher.load_ns)
        if publisher.due_ns >= fleet.run.end_ns:
            continue
        totals.scheduled += 1
        if not fleet.devices[publisher.device].flags & WAITING:
            totals.heap_size = heap_push(fleet.heap, totals.heap_size, publisher.due_ns, number)


@compiled
def send_due(
    fleet: Fleet,
    number: int,
    now_ns: int,
    sent_ns: int,
    limit: int,
    position: int,
    handlers: Handlers,
) -> tuple[int, int]:
    """Write the messages that a publisher owes at `now_ns`, as many as fit, at most `limit`.

    `sent_ns` goes into the headers. Steps the schedule and takes packet identifiers; each message
    has a row in `batch`. Sets WINDOW_FULL when the window stopped it. Returns (end of what was
    written to `out` from `position` on, messages).
    """
    publisher = fleet.publishers[number]
    device = fleet.devices[publisher.device]
    group = fleet.groups[device.group]
    room = len(fleet.out) - group.packet_most
    count = 0
    while count < limit and position <= room:
        due_ns = publisher.due_ns
        if due_ns > now_ns or due_ns >= fleet.run.end_ns:
            break
        packet_id = 0
        if group.qos > 0:
            packet_id = _take_packet_id(fleet, device, group, publisher.sequence, due_ns, sent_ns)
            if packet_id == 0:
                device.flags |= WINDOW_FULL
                break
        sent = fleet.batch[count]
        position = handlers.write_due(fleet, number, packet_id, sent_ns, position, sent)
        sent.sequence = publisher.sequence
        sent.due_ns = due_ns
        sent.load_ns = publisher.load_ns
        sent.end = position
        sent.packet_id = packet_id
        count += 1
        advance(publisher, fleet.program, fleet.run.seed)
    return position, count


@compiled
def _take_packet_id(
    fleet: Fleet, device: Device, group: Group, sequence: int, due_ns: int, sent_ns: int
) -> int:
    """A Packet Identifier for the next message; 0 when the window is full or the unit sent."""
    if group.unit > 1 and device.unit_sent >= group.unit:
        if fleet.senders[device.sender]["in_flight"] > 0:
            return 0
        device.unit_sent = 0
    packet_id = acquire(
        fleet.senders, fleet.window, device.sender, group.qos, sequence, due_ns, sent_ns
    )
    if packet_id > 0:
        fleet.totals.in_flight += 1
        if group.unit > 1:
            device.unit_sent += 1
    return packet_id


@compiled
def record_sent(
    fleet: Fleet,
    number: int,
    count: int,
    sent: int,
    sent_ns: int,
    start: int,
    handlers: Handlers,
) -> None:
    """Count the first `sent` of the `count` messages of a batch and take the others back.

    `start` is where the batch began in the buffer. What is taken back stays due, with the same
    sequence and intended moment. A publisher that was pushed back stays so until it owes nothing.
    """
    publisher = fleet.publishers[number]
    device = fleet.devices[publisher.device]
    counted = fleet.groups[device.group].counts_as
    before = start
    for index in range(sent):
        message = fleet.batch[index]
        phase = phase_of(fleet.run, message.due_ns)
        count_sent(fleet, counted, phase, message.deliveries, message.end - before)
        record(fleet, slot_of(counted, S_SEND_DELAY, phase), sent_ns - message.due_ns)
        if device.flags & PUSHED_BACK and not mostly_stalled(fleet, message.due_ns, sent_ns):
            record(fleet, slot_of(counted, S_PUSHED_BACK, phase), sent_ns - message.due_ns)
        handlers.on_sent(fleet, publisher.device, message, phase, sent_ns)
        before = message.end
    device.written_ns = sent_ns
    if publisher.due_ns > sent_ns:
        device.flags &= ~PUSHED_BACK
    if sent == count:
        return
    # With messages taken back the window has room again.
    device.flags &= ~WINDOW_FULL
    for index in range(sent, count):
        handlers.on_unsent(fleet, fleet.batch[index])
        _give_back_packet_id(fleet, device, fleet.batch[index].packet_id)
    first = fleet.batch[sent]
    publisher.sequence = first.sequence
    publisher.due_ns = first.due_ns
    publisher.load_ns = first.load_ns


@compiled
def _give_back_packet_id(fleet: Fleet, device: Device, packet_id: int) -> None:
    if packet_id == 0:
        return
    group = fleet.groups[device.group]
    if group.qos == 1:
        on_puback(fleet.senders, fleet.window, device.sender, packet_id)
    else:
        on_pubrec(fleet.senders, fleet.window, device.sender, packet_id, _FAILURE)
    fleet.totals.in_flight -= 1
    if group.unit > 1:
        device.unit_sent -= 1


@compiled
def _write_due(
    fleet: Fleet, number: int, packet_id: int, sent_ns: int, position: int, sent: Sent
) -> int:
    publisher = fleet.publishers[number]
    sent.deliveries = fleet.groups[fleet.devices[publisher.device].group].deliveries
    return _write_message(
        fleet, number, publisher.sequence, publisher.due_ns, sent_ns, packet_id, 0, position
    )


@compiled
def _write_message(
    fleet: Fleet,
    number: int,
    sequence: int,
    intended_ns: int,
    sent_ns: int,
    packet_id: int,
    dup: int,
    position: int,
) -> int:
    """Write one whole PUBLISH, the same bytes each time but for `dup`; the position after it."""
    publisher = fleet.publishers[number]
    group = fleet.groups[fleet.devices[publisher.device].group]
    out = fleet.out
    size = group.size_least
    if group.size_most > size:
        drawn = _chance(fleet.run.seed, publisher.stream, sequence)
        size += drawn % (group.size_most - size + 1)
    payload = mqtt.write_publish(
        out,
        position,
        dup << 3 | group.qos << 1 | group.retain,
        fleet.topics[fleet.topic_ends[number] : fleet.topic_ends[number + 1]],
        packet_id,
        fleet.run.version,
        fleet.topics[:0],
        size,
    )
    extra = size - HEADER_BYTES
    crc = fleet.body_crc[extra]
    body = payload + HEADER_BYTES
    if extra > 0:
        out[body : payload + size] = fleet.body[:extra]
    if len(fleet.template) > 0:
        device = publisher.stream - group.first_stream
        wall_ms = (intended_ns + fleet.run.wall_ns) // 1_000_000
        drawn = _chance(fleet.run.seed, publisher.stream, sequence)
        fill_template(out, body, fleet.template, device, sequence, wall_ms, drawn)
        crc = crc32(0, out, body, body + extra)
    run_tag = fleet.run.run_tag
    stamp(out, payload, run_tag, publisher.stream, sequence, intended_ns, sent_ns, crc)
    return int(payload + size)


@compiled
def _chance(seed: int, stream: int, sequence: int) -> int:
    """32 random bits of a message, the same whenever it is written; not those of its arrival."""
    return int(random_unit(seed ^ _SALT_CONTENT, stream, sequence) * 4294967296.0)


@compiled
def _on_sent(fleet: Fleet, row: int, sent: Sent, phase: int, sent_ns: int) -> None:
    pass


@compiled
def _on_unsent(fleet: Fleet, sent: Sent) -> None:
    pass


@compiled
def redeliver(
    fleet: Fleet, number: int, session_present: bool, slots: npt.NDArray[np.int64], count: int
) -> tuple[int, int]:
    """Write again what was unacknowledged when the connection broke (MQTT 5, 4.4).

    `slots[:count]` are those of `redelivery_order`. With the session present at the broker a
    PUBLISH carries DUP and what waits for PUBCOMP gets its PUBREL; without, messages are sent as
    new ones, and those that the broker had taken over are given up. Returns (slots handled, bytes
    written to `out`); fewer slots than `count` when `out` is full.
    """
    device = fleet.devices[fleet.publishers[number].device]
    room = len(fleet.out) - fleet.groups[device.group].packet_most
    position = 0
    for index in range(count):
        if position > room:
            return index, position
        slot = slots[index]
        message = fleet.window[device.sender, slot]
        packet_id = slot + 1
        if message["state"] != AWAIT_PUBCOMP:
            sequence, intended_ns = int(np.int64(message["sequence"])), message["intended_ns"]
            sent_ns, dup = message["sent_ns"], 1 if session_present else 0
            position = _write_message(
                fleet, number, sequence, intended_ns, sent_ns, packet_id, dup, position
            )
        elif session_present:
            position = mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
        else:
            on_pubcomp(fleet.senders, fleet.window, device.sender, packet_id)
            fleet.totals.in_flight -= 1
    return count, position


MESSAGING: Any = Handlers(_on_message, _on_acknowledged, _write_due, _on_sent, _on_unsent)
