"""What the devices of a worker do with bytes: the kernels of the hot path.

`receive` takes what one device got, accounts for every message in it and writes the
acknowledgements; `send_due` writes what a publisher owes and `record_sent` counts what was really
sent. What a message means, and what one looks like, is a case's own: `Handlers`. Those here are of
devices that publish, receive and respond; a case may have others
(plan/behaviour.py).

Bytes and moments come in as arguments; sockets and clocks are the engine's.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.accounting import DUPLICATE, NEW, account
from loadgen.kernels.arrays import copy_bytes
from loadgen.kernels.attention import mostly_stalled
from loadgen.kernels.compiled import compiled
from loadgen.kernels.crc import crc32
from loadgen.kernels.device import (
    ACCEPT,
    AWAIT_CONNACK,
    AWAY,
    BLOCKED,
    BODY,
    CONNECTED,
    PUSHED_BACK,
    REFUSE,
    RESUMED,
    SHARED,
    WAITING,
    WINDOW_FULL,
    Device,
    transition,
)
from loadgen.kernels.fleet import Counts, Fleet, Group, Run, Sent
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.in_flight import (
    AWAIT_PUBACK,
    AWAIT_PUBCOMP,
    FREE,
    UNKNOWN_PACKET_ID,
    accept_qos2,
    acquire,
    on_puback,
    on_pubcomp,
    on_pubrec,
    release,
    release_qos2,
    set_capacity,
)
from loadgen.kernels.pacer import Publisher, advance, clock_of, heap_push, random_unit
from loadgen.kernels.payload import (
    HEADER_BYTES,
    crc_of_body,
    has_intact_header,
    is_copy,
    is_intact,
    read_i64,
    read_u8,
    read_u32,
    send_offset_ns,
    stamp,
    write_u32,
)
from loadgen.kernels.template import fill_template
from loadgen.kernels.violations import (
    DUP_AT_QOS_0,
    EMPTY_TOPIC,
    FAILED_PUBCOMP,
    IDENTIFIER_IN_USE,
    MALFORMED,
    QOS_RAISED,
    TOPIC_ALIAS,
    UNEXPECTED_PACKET,
    UNKNOWN_ACKNOWLEDGEMENT,
    UNKNOWN_PUBREL,
    wrong_acknowledgement,
)
from loadgen.metrics.histogram import bucket_index
from loadgen.metrics.interval import CONNECTED_AT, SERIES
from loadgen.mqtt.constants import (
    CONNACK,
    MQTT_5,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
)
from loadgen.mqtt.reason_codes import ReasonCode

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
REFUSED_PACKET = 7  # the first acknowledgement with a failure code, the value; bytes in `control`
UNANSWERED = 8  # a request for whose response the window had no room
VIOLATION = 9  # the first of its kind; the value is the number in `violations.WORDS`
UNSENT_BODY = 10  # `length` bytes of `body`, from the value on, must follow what was written
READY = 11  # something happened to the socket of a streamed connection; the value is epoll's flags

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
S_CONNECTED_AT = SERIES.index(CONNECTED_AT)

_MALFORMED_PACKET = int(ReasonCode.MALFORMED_PACKET)
_PROTOCOL_ERROR = int(ReasonCode.PROTOCOL_ERROR)
_PACKET_TOO_LARGE = int(ReasonCode.PACKET_TOO_LARGE)
_FAILURE = int(ReasonCode.UNSPECIFIED_ERROR)  # and above: any such reason code frees a slot
_FIXED_HEADER_BYTES = 5  # at most (2.1)


class Message(NamedTuple):
    """Where a PUBLISH lies in the buffer, and what its header says.

    `body_crc` is the CRC-32 of a body that streamed through, of which the buffer has nothing: then
    `end` is where it would end. -1 where the buffer has it all.
    """

    start: int
    topic: int
    topic_end: int
    payload: int
    end: int
    packet_id: int
    qos: int
    dup: int
    body_crc: int


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
def phase_of_arrival(run: Run, now_ns: int) -> int:
    """Phase of what arrives now and whose intended moment is not known: the window's at most."""
    return phase_of(run, min(now_ns, run.end_ns - 1))


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
    copy_bytes(fleet.control, offset, buffer, start, end - start)
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


@compiled
def violate(fleet: Fleet, row: int, kind: int, now_ns: int) -> None:
    """Count what the broker may not do; Python is told of the first of its kind."""
    phase = phase_of_arrival(fleet.run, now_ns)
    fleet.counters[fleet.devices[row].group, phase].violations += 1
    fleet.violations[kind] += 1
    if fleet.violations[kind] == 1:
        push_event(fleet, VIOLATION, row, kind, now_ns)


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
    if fleet.devices[row].flags & BODY:
        position, written = _take_body(fleet, row, buffer, end, now_ns, handlers)
    while position < end:
        status, first_byte, body, packet_end = mqtt.frame(buffer, position, end, limit_bytes)
        if status == mqtt.INCOMPLETE:
            if packet_end - position > fleet.run.whole_limit and first_byte >> 4 == PUBLISH:
                head = (first_byte, position, body, packet_end)
                position = _begin_body(fleet, row, buffer, head, end)
            break
        if status == mqtt.TOO_LARGE:
            push_event(fleet, BROKEN, row, _PACKET_TOO_LARGE, now_ns)
            return end, written
        kind = first_byte >> 4
        if status != mqtt.OK:
            is_dup_at_qos_0 = kind == PUBLISH and first_byte & 0x0E == 0x08
            violate(fleet, row, DUP_AT_QOS_0 if is_dup_at_qos_0 else MALFORMED, now_ns)
            push_event(fleet, BROKEN, row, _MALFORMED_PACKET, now_ns)
            return end, written
        if kind == PUBLISH:
            status, topic, topic_end, packet_id, payload = mqtt.publish_fields(
                buffer, first_byte, body, packet_end, fleet.run.version
            )
            if status == mqtt.OK:
                qos, dup = (first_byte >> 1) & 3, first_byte & 8
                message = Message(
                    position, topic, topic_end, payload, packet_end, packet_id, qos, dup, -1
                )
                written = _publish(fleet, row, buffer, message, now_ns, written, handlers)
        elif PUBACK <= kind <= PUBCOMP:
            status, packet_id, reason = mqtt.ack_fields(buffer, body, packet_end)
            if status == mqtt.OK:
                written = _ack(fleet, row, kind, packet_id, reason, now_ns, written, handlers)
                if reason >= _FAILURE:
                    _tell_refusal(fleet, row, reason, now_ns, buffer, position, packet_end)
        elif kind == PINGRESP:
            fleet.devices[row].pinged_ns = 0
        else:
            if not room_for_events(fleet, packet_end - position):
                return position, written
            if kind == CONNACK and fleet.devices[row].state == CONNECTED:
                violate(fleet, row, UNEXPECTED_PACKET, now_ns)
                push_event(fleet, BROKEN, row, _PROTOCOL_ERROR, now_ns)
                return end, written
            packet = (position, body, packet_end)
            if kind != CONNACK or _on_connack(fleet, row, buffer, packet, now_ns):
                push_bytes(fleet, CONTROL_PACKET, row, kind, now_ns, buffer, position, packet_end)
        if status != mqtt.OK:
            violate(fleet, row, MALFORMED, now_ns)
            push_event(fleet, BROKEN, row, _MALFORMED_PACKET, now_ns)
            return end, written
        position = packet_end
    return position, written


@compiled
def _begin_body(
    fleet: Fleet, row: int, buffer: Bytes, head: tuple[int, int, int, int], end: int
) -> int:
    """Keep only the head of a PUBLISH, with the payload's header, once it is there.

    The packet is too long to be kept until it is whole: `head` is its first byte, where it begins
    and ends, and its body between; it is there up to `end`. Returns where what the caller is to
    keep begins. A head that is itself too long to be kept is left to it as well.
    """
    first_byte, start, body, packet_end = head
    status, _, _, _, payload = mqtt.publish_fields(buffer, first_byte, body, end, fleet.run.version)
    head_end = payload + HEADER_BYTES
    if status != mqtt.OK or head_end > end or head_end - start > fleet.run.whole_limit:
        return start
    device = fleet.devices[row]
    kept = fleet.partial[row]
    device.flags |= BODY
    device.partial_bytes = head_end - start
    copy_bytes(kept, 0, buffer, start, head_end - start)
    _note_body(fleet, kept, packet_end - end, crc32(0, buffer, head_end, end))
    return end


@compiled
def _note_body(fleet: Fleet, kept: Bytes, left: int, crc: int) -> None:
    write_u32(kept, fleet.run.whole_limit, left)
    write_u32(kept, fleet.run.whole_limit + 4, crc)


@compiled
def _take_body(
    fleet: Fleet, row: int, buffer: Bytes, end: int, now_ns: int, handlers: Handlers
) -> tuple[int, int]:
    """Check what came of a body, behind its head; its last byte makes it a message.

    Returns where the next packet begins, and the bytes written.
    """
    device = fleet.devices[row]
    kept = fleet.partial[row]
    head_end = device.partial_bytes
    left = read_u32(kept, fleet.run.whole_limit)
    part_end = min(head_end + left, end)
    crc = crc32(read_u32(kept, fleet.run.whole_limit + 4), buffer, head_end, part_end)
    if part_end - head_end < left:
        _note_body(fleet, kept, left - (part_end - head_end), crc)
        return end, 0
    device.flags &= ~BODY
    _, first_byte, body, packet_end = mqtt.frame(buffer, 0, head_end, fleet.run.packet_limit)
    _, topic, topic_end, packet_id, payload = mqtt.publish_fields(
        buffer, first_byte, body, packet_end, fleet.run.version
    )
    qos, dup = (first_byte >> 1) & 3, first_byte & 8
    message = Message(0, topic, topic_end, payload, packet_end, packet_id, qos, dup, crc)
    return part_end, _publish(fleet, row, buffer, message, now_ns, 0, handlers)


@compiled
def is_whole(buffer: Bytes, message: Message) -> bool:
    """Whether the CRC of a message of 32 bytes or more is right."""
    if message.body_crc >= 0:
        return bool(has_intact_header(buffer, message.payload, message.body_crc))
    return bool(is_intact(buffer, message.payload, message.end))


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
    device = fleet.devices[row]
    fleet.totals.publishes += 1
    if fleet.run.version == MQTT_5 and (
        message.payload - message.topic_end > (3 if message.qos > 0 else 1)
        or message.topic == message.topic_end
    ):
        _check_alias(fleet, row, buffer, message, now_ns)
    if message.qos > 0:
        if device.flags & RESUMED and not message.dup:
            device.flags &= ~RESUMED
        known = device.qos2 if message.qos == 2 else -1
        if known >= 0 and not accept_qos2(fleet.received_ids, known, message.packet_id):
            _take_in_use(fleet, row, buffer, message, now_ns)
            return acknowledge(fleet, row, message, position)
    return int(handlers.on_message(fleet, row, buffer, message, now_ns, position))


@compiled
def _check_alias(fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int) -> None:
    """A topic is named, and by no alias, since we allow none (MQTT 5, 3.1.2.11.5)."""
    if message.topic == message.topic_end:
        violate(fleet, row, EMPTY_TOPIC, now_ns)
    position = message.topic_end + (2 if message.qos > 0 else 0)
    if message.payload - position > 1:
        while position < message.payload and buffer[position] >= 0x80:
            position += 1
        position += 1  # behind their length
        while 0 <= position < message.payload:
            if buffer[position] == mqtt.TOPIC_ALIAS:
                violate(fleet, row, TOPIC_ALIAS, now_ns)
                return
            position = mqtt.after_property(buffer, position, message.payload)


@compiled
def _take_in_use(fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int) -> None:
    """Count a QoS 2 message whose identifier waits for PUBREL: sent again, or it may not be."""
    start = message.payload
    phase = phase_of_arrival(fleet.run, now_ns)
    intact = message.end - start >= HEADER_BYTES and is_whole(buffer, message)
    if intact and read_u32(buffer, start) == fleet.run.run_tag:
        phase = phase_of(fleet.run, read_i64(buffer, start + 16))
    counts = fleet.counters[fleet.devices[row].group, phase]
    counts.duplicated += 1
    if message.dup:
        counts.excused += intact
    else:
        violate(fleet, row, IDENTIFIER_IN_USE, now_ns)


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
        # A device that is to receive none at QoS 2 does not remember identifiers.
        known = device.qos2 < 0 or release_qos2(fleet.received_ids, device.qos2, packet_id)
        # After its return a device may have answered before, on the connection that broke.
        if not known and device.returned_ns == 0:
            violate(fleet, row, UNKNOWN_PUBREL, now_ns)
        return mqtt.write_ack(fleet.out, position, PUBCOMP, packet_id)
    if device.sender < 0:
        violate(fleet, row, UNKNOWN_ACKNOWLEDGEMENT, now_ns)
        return position
    if kind == PUBACK:
        status, sent_ns = on_puback(fleet.senders, fleet.window, device.sender, packet_id)
    elif kind == PUBREC:
        status, sent_ns = on_pubrec(fleet.senders, fleet.window, device.sender, packet_id, reason)
        if status == mqtt.OK and reason < _FAILURE:
            return mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
    else:
        status, sent_ns = on_pubcomp(fleet.senders, fleet.window, device.sender, packet_id)
    if status != mqtt.OK:
        return _take_wrong_ack(fleet, row, kind, packet_id, status, now_ns, position, handlers)
    phase = phase_of(fleet.run, fleet.window[packet_id - 1, device.sender]["intended_ns"])
    if reason >= _FAILURE:
        return _take_refusal(fleet, row, kind, packet_id, reason, phase, now_ns, position, handlers)
    # The handler may send a message in the slot that became free.
    group, position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)
    fleet.counters[group, phase].acknowledged += 1
    fleet.totals.in_flight -= 1
    record(fleet, slot_of(group, S_ACKNOWLEDGE, phase), now_ns - sent_ns)
    _free_window(fleet, row)
    return position


@compiled
def _take_refusal(
    fleet: Fleet,
    row: int,
    kind: int,
    packet_id: int,
    reason: int,
    phase: int,
    now_ns: int,
    position: int,
    handlers: Handlers,
) -> int:
    """The broker did not take a message: nobody is to receive it; the position as in `_ack`."""
    deliveries = 0
    if kind == PUBCOMP:  # it had taken it
        violate(fleet, row, FAILED_PUBCOMP, now_ns)
    else:
        deliveries = handlers.on_refused(fleet, row, packet_id, phase)
    group, position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)
    counts = fleet.counters[group, phase]
    if kind == PUBCOMP:
        counts.given_up += 1
    else:
        counts.refused += 1
        counts.expected -= deliveries
        fleet.totals.withdrawn += deliveries
        fleet.refusals[reason].count += 1
    fleet.totals.in_flight -= 1
    _free_window(fleet, row)
    return position


@compiled
def _tell_refusal(
    fleet: Fleet, row: int, reason: int, now_ns: int, buffer: Bytes, start: int, end: int
) -> None:
    """Queue the first acknowledgement with this failure code, for its Reason String."""
    refusal = fleet.refusals[reason]
    if refusal.count > 0 and not refusal.told and room_for_events(fleet, end - start):
        refusal.told = 1
        push_bytes(fleet, REFUSED_PACKET, row, reason, now_ns, buffer, start, end)


@compiled
def _take_wrong_ack(
    fleet: Fleet,
    row: int,
    kind: int,
    packet_id: int,
    status: int,
    now_ns: int,
    position: int,
    handlers: Handlers,
) -> int:
    """An acknowledgement that nothing waits for; the position as in `_ack`.

    Where a message waits for another one, that will not come: it is given up, so that the window
    does not fill with such.
    """
    device = fleet.devices[row]
    state = FREE
    wrong = UNKNOWN_ACKNOWLEDGEMENT
    if status != UNKNOWN_PACKET_ID:
        state = int(np.int64(fleet.window[packet_id - 1, device.sender]["state"]))
        wrong = wrong_acknowledgement(state, kind)
    violate(fleet, row, wrong, now_ns)
    if kind == PUBREC and state in (FREE, AWAIT_PUBCOMP):
        # Perhaps ours was lost, and the broker waits for it.
        return mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
    if state == FREE:
        return position
    phase = phase_of(fleet.run, fleet.window[packet_id - 1, device.sender]["intended_ns"])
    release(fleet.senders, fleet.window, device.sender, packet_id)
    group, position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)
    fleet.counters[group, phase].given_up += 1
    fleet.totals.in_flight -= 1
    _free_window(fleet, row)
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
def _on_connack(
    fleet: Fleet, row: int, buffer: Bytes, packet: tuple[int, int, int], now_ns: int
) -> bool:
    """Accept or refuse a device; whether Python must look at the CONNACK.

    It need not where it has seen the same of another device of the group; the last that is waited
    for tells it that all have connected.
    """
    start, body, end = packet
    if end - body < 2:
        return True
    is_usual = _is_usual_connack(fleet, row, buffer, start, end)
    _connack(fleet, row, int(np.int64(buffer[body + 1])), int(np.int64(buffer[body])) & 1, now_ns)
    device = fleet.devices[row]
    if is_usual and device.sender >= 0:
        set_capacity(
            fleet.senders, fleet.window, device.sender, fleet.groups[device.group].capacity
        )
    return not is_usual or (fleet.totals.connecting == 0 and fleet.connects.count == 0)


@compiled
def _is_usual_connack(fleet: Fleet, row: int, buffer: Bytes, start: int, end: int) -> bool:
    """Whether a device, never away before, is answered like others of its group."""
    device = fleet.devices[row]
    length = end - start
    if device.state != AWAIT_CONNACK or device.returned_ns != 0:
        return False
    if fleet.groups[device.group].connack_bytes != length:
        return False
    usual, same = fleet.connacks[device.group], 0
    while same < length and usual[same] == buffer[start + same]:
        same += 1
    return same == length


@compiled
def _connack(fleet: Fleet, row: int, code: int, session_present: int, now_ns: int) -> None:
    device = fleet.devices[row]
    if device.state != AWAIT_CONNACK:
        return
    if code != 0:
        transition(fleet, row, REFUSE)
        return
    transition(fleet, row, ACCEPT)
    fleet.connects.accepted_ns = now_ns
    if device.returned_ns != 0:
        device.returned_ns = now_ns
        # Nothing new before what was unacknowledged, which the caller sends again.
        device.flags |= BLOCKED
        if session_present:
            device.flags |= RESUMED
        else:
            device.flags &= ~RESUMED
    fleet.counters[device.group, CONNECT_PHASE].connects += 1
    record(fleet, slot_of(device.group, S_CONNACK, CONNECT_PHASE), now_ns - device.tcp_ns)
    record(fleet, slot_of(device.group, S_CONNECT, CONNECT_PHASE), now_ns - device.syn_ns)
    if fleet.run.connect_ns != 0:
        since_ns = now_ns - fleet.run.connect_ns
        record(fleet, slot_of(device.group, S_CONNECTED_AT, CONNECT_PHASE), since_ns)


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
    start = message.payload
    if (
        message.end - start < HEADER_BYTES
        or read_u32(buffer, start) != fleet.run.run_tag
        or not is_whole(buffer, message)
    ):
        _take_damaged(fleet, row, buffer, message, now_ns)
        return False
    intended_ns = read_i64(buffer, start + 16)
    phase = phase_of(fleet.run, intended_ns)
    counts = fleet.counters[device.group, phase]
    pair = _pair_of(fleet, device, buffer, message)
    if pair < 0:
        counts.misrouted += 1
        return False
    outcome = account(fleet.pairs, fleet.gaps, fleet.totals, pair, read_i64(buffer, start + 8))
    if outcome != NEW:
        if outcome == DUPLICATE:
            count_repeated(counts, device, buffer, message)
            return False
        if not device.flags & SHARED:
            counts.out_of_order += 1
    if message.qos != device.qos:
        check_qos(fleet, row, counts, message, device.qos, now_ns)
    if phase == MEASURE:
        device.taken += 1
    counts.received += 1
    counts.received_bytes += message.end - message.start
    waited_ns = now_ns - intended_ns
    transit_ns = waited_ns - send_offset_ns(buffer, start)
    # What was sent since the device is back never waited for it, however late it was sent.
    if now_ns - transit_ns < device.returned_ns:
        record(fleet, slot_of(device.group, S_RECONNECT, phase), waited_ns)
        return True
    record(fleet, slot_of(device.group, S_END_TO_END, phase), waited_ns)
    record(fleet, slot_of(device.group, S_TRANSIT, phase), transit_ns)
    return True


@compiled
def _pair_of(fleet: Fleet, device: Device, buffer: Bytes, message: Message) -> int:
    """The pair of an intact message's stream at a device.

    -1 where the device is not to receive the stream, or the topic is not that of the stream.
    """
    stream = read_u32(buffer, message.payload + 4)
    offset = stream - device.stream_first
    if offset < 0 or offset >= device.stream_count:
        return -1
    group = fleet.groups[device.group]
    number = device.topic
    if number < 0:
        number = stream - group.senders_first
        if group.senders_topics != group.senders:
            number = number * group.senders_topics // group.senders
    figures = message.topic + group.prefix_end - group.prefix
    if _number_in(buffer, figures, message.topic_end) != number:
        return -1
    if not is_same(buffer, message.topic, figures, fleet.prefixes, group.prefix, group.prefix_end):
        return -1
    return device.pair_first + offset


@compiled
def _number_in(buffer: Bytes, start: int, end: int) -> int:
    """The number whose decimal figures are buffer[start:end]; -1 for anything else."""
    figures = end - start
    if figures < 1 or figures > 12 or (figures > 1 and read_u8(buffer, start) == 48):
        return -1
    number = 0
    for position in range(start, end):
        figure = read_u8(buffer, position) - 48
        if figure < 0 or figure > 9:
            return -1
        number = number * 10 + figure
    return number


@compiled
def is_same(a: Bytes, start: int, end: int, b: Bytes, first: int, last: int) -> bool:
    """Whether a[start:end] and b[first:last] are the same bytes."""
    size = end - start
    if size != last - first:
        return False
    different = 0
    if size < 8:
        for offset in range(size):
            different |= read_u8(a, start + offset) ^ read_u8(b, first + offset)
        return different == 0
    # Eight at a time, the last eight once more.
    offset = 0
    while offset + 8 <= size:
        different |= read_i64(a, start + offset) ^ read_i64(b, first + offset)
        offset += 8
    return different | (read_i64(a, end - 8) ^ read_i64(b, last - 8)) == 0


@compiled
def count_repeated(counts: Counts, device: Device, buffer: Bytes, message: Message) -> None:
    """Count an intact message that came before.

    MQTT allows it at QoS 1 after the device resumed its session, until the first PUBLISH that is
    not sent again, and where our publisher sent it twice.
    """
    counts.duplicated += 1
    resumed = message.qos == 1 and message.dup != 0 and (device.flags & RESUMED) != 0
    if resumed or is_copy(buffer, message.payload):
        counts.excused += 1


@compiled
def check_qos(
    fleet: Fleet, row: int, counts: Counts, message: Message, qos: int, now_ns: int
) -> None:
    """Compare a received message's QoS with the one with which it must come."""
    if message.qos < qos:
        counts.below_qos += 1
    elif message.qos > qos:
        violate(fleet, row, QOS_RAISED, now_ns)


@compiled
def _take_damaged(fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int) -> None:
    """Account for a message that is not an intact one of this run.

    Where only the body is damaged the header tells its place. No other header is believed.
    """
    start = message.payload
    if not _body_alone_is_damaged(fleet, buffer, message):
        count_doubtful(fleet, row, buffer, message, now_ns)
        return
    device = fleet.devices[row]
    counts = fleet.counters[device.group, phase_of(fleet.run, read_i64(buffer, start + 16))]
    pair = _pair_of(fleet, device, buffer, message)
    if pair < 0:
        counts.misrouted += 1
        return
    count_damaged(fleet, counts, buffer, message, pair)


@compiled
def count_damaged(fleet: Fleet, counts: Counts, buffer: Bytes, message: Message, pair: int) -> None:
    """Count a damaged message whose place is known."""
    sequence = read_i64(buffer, message.payload + 8)
    if account(fleet.pairs, fleet.gaps, fleet.totals, pair, sequence) == DUPLICATE:
        counts.duplicated += 1  # MQTT allows some repeats, and no damaged one
    else:
        counts.corrupt += 1
        fleet.totals.damaged += 1


@compiled
def _body_alone_is_damaged(fleet: Fleet, buffer: Bytes, message: Message) -> bool:
    """Whether the header is this run's and right with the body that was sent.

    That is known where all messages have one content, of the size that came or of the largest.
    """
    start = message.payload
    size = message.end - start
    if size < HEADER_BYTES or read_u32(buffer, start) != fleet.run.run_tag:
        return False
    if len(fleet.template) > 0:
        return False
    whole = len(fleet.body)
    extra = min(size - HEADER_BYTES, whole)
    if has_intact_header(buffer, start, crc_of_body(fleet.body_crc, fleet.body, extra)):
        return True
    return bool(has_intact_header(buffer, start, crc_of_body(fleet.body_crc, fleet.body, whole)))


@compiled
def count_doubtful(fleet: Fleet, row: int, buffer: Bytes, message: Message, now_ns: int) -> None:
    """Count a message whose header is not to be believed: damaged if it was ours, else foreign.

    It was ours if it has the run's tag, or is not intact and has an intended moment of the run.
    """
    start = message.payload
    size = message.end - start
    is_ours = size >= 4 and read_u32(buffer, start) == fleet.run.run_tag
    if not is_ours and size >= 24:
        begun_ns = fleet.program[0].clock_ns
        is_ours = 0 < begun_ns <= read_i64(buffer, start + 16) <= now_ns
        if size >= HEADER_BYTES and is_whole(buffer, message):
            is_ours = False
    counts = fleet.counters[fleet.devices[row].group, phase_of_arrival(fleet.run, now_ns)]
    if is_ours:
        counts.corrupt += 1
    else:
        counts.foreign += 1


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
    copy_bytes(fleet.out, payload, buffer, start, size)
    phase = phase_of(fleet.run, intended_ns)
    # That it is to be received was expected when the request was sent.
    count_sent(fleet, device.group, phase, 0, payload + size - position)
    return int(payload + size)


@compiled
def _on_acknowledged(
    fleet: Fleet, row: int, packet_id: int, now_ns: int, position: int
) -> tuple[int, int]:
    return fleet.devices[row].group, position


@compiled
def _on_refused(fleet: Fleet, row: int, packet_id: int, phase: int) -> int:
    device = fleet.devices[row]
    return 1 if device.responses >= 0 else fleet.groups[device.group].deliveries


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
    if group.body_apart:
        limit = 1
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
        size_bytes = message.end - before + message.body_bytes
        count_sent(fleet, counted, phase, message.deliveries, size_bytes)
        record(fleet, slot_of(counted, S_SEND_DELAY, phase), sent_ns - message.due_ns)
        if device.flags & PUSHED_BACK and not mostly_stalled(fleet, message.due_ns, sent_ns):
            record(fleet, slot_of(counted, S_PUSHED_BACK, phase), sent_ns - message.due_ns)
        handlers.on_sent(fleet, publisher.device, message, phase, sent_ns)
        before = message.end
    device.written_ns = sent_ns
    if publisher.due_ns > sent_ns:
        device.flags &= ~PUSHED_BACK
    if sent == count:
        publisher.sent = publisher.sequence
        return
    # With messages taken back the window has room again.
    device.flags &= ~WINDOW_FULL
    for index in range(sent, count):
        handlers.on_unsent(fleet, fleet.batch[index])
        _give_back_packet_id(fleet, device, fleet.batch[index].packet_id)
    first = fleet.batch[sent]
    publisher.sequence = first.sequence
    publisher.sent = first.sequence
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
    sent.body_bytes = _body_apart(fleet, number, publisher.sequence)
    return _write_message(
        fleet, number, publisher.sequence, publisher.due_ns, sent_ns, packet_id, 0, 0, position
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
    copy: int,
    position: int,
) -> int:
    """Write one whole PUBLISH, or its head where the body is sent apart; the position after it.

    The same bytes each time, but for `dup` and for `copy` of the payload's header.
    """
    publisher = fleet.publishers[number]
    group = fleet.groups[fleet.devices[publisher.device].group]
    out = fleet.out
    size = _size_of(fleet, publisher, group, sequence)
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
    crc = crc_of_body(fleet.body_crc, fleet.body, extra)
    body = payload + HEADER_BYTES
    if group.body_apart:
        size = HEADER_BYTES
    elif extra > 0:
        copy_bytes(out, body, fleet.body, 0, extra)
    if len(fleet.template) > 0:
        device = publisher.stream - group.first_stream
        wall_ms = (intended_ns + fleet.run.wall_ns) // 1_000_000
        drawn = _chance(fleet.run.seed, publisher.stream, sequence)
        fill_template(out, body, fleet.template, device, sequence, wall_ms, drawn)
        crc = crc32(0, out, body, body + extra)
    run_tag = fleet.run.run_tag
    stamp(out, payload, run_tag, publisher.stream, sequence, intended_ns, sent_ns, crc, copy)
    return int(payload + size)


@compiled
def _size_of(fleet: Fleet, publisher: Publisher, group: Group, sequence: int) -> int:
    """Bytes of a message's payload, the same whenever it is written."""
    size = group.size_least
    if group.size_most > size:
        drawn = _chance(fleet.run.seed, publisher.stream, sequence)
        size += drawn % (group.size_most - size + 1)
    return int(size)


@compiled
def _body_apart(fleet: Fleet, number: int, sequence: int) -> int:
    """Bytes of `body` that are to follow the head of a message; 0 where `out` has it whole."""
    publisher = fleet.publishers[number]
    group = fleet.groups[fleet.devices[publisher.device].group]
    if not group.body_apart:
        return 0
    return int(_size_of(fleet, publisher, group, sequence) - HEADER_BYTES)


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
def _write_again(fleet: Fleet, row: int, packet_id: int, dup: int, copy: int, position: int) -> int:
    device = fleet.devices[row]
    message = fleet.window[packet_id - 1, device.sender]
    sequence, intended_ns = int(np.int64(message["sequence"])), message["intended_ns"]
    sent_ns = message["sent_ns"]
    return _write_message(
        fleet, device.publisher, sequence, intended_ns, sent_ns, packet_id, dup, copy, position
    )


@compiled
def _on_return(fleet: Fleet, row: int) -> None:
    pass


@compiled
def redeliver_some(
    fleet: Fleet,
    row: int,
    session_present: bool,
    slots: npt.NDArray[np.int64],
    count: int,
    now_ns: int,
    handlers: Handlers,
) -> tuple[int, int, int]:
    """Write again what was unacknowledged when the connection broke (MQTT 5, 4.4).

    The payload says so where a receiver may get both (payload.py).

    `slots[:count]` are those of `redelivery_order`. With the session present at the broker a
    PUBLISH carries DUP and what waits for PUBCOMP gets its PUBREL; without, messages are sent as
    new ones, and those that the broker had taken over are given up. Returns (slots handled, bytes
    written to `out`, bytes of `body` that must follow); fewer slots than `count` when `out` is
    full, or a body must follow.
    """
    device = fleet.devices[row]
    group = fleet.groups[device.group]
    room = len(fleet.out) - group.packet_most
    dup = 1 if session_present else 0
    position = 0
    handlers.on_return(fleet, row)
    for index in range(count):
        if position > room:
            return index, position, 0
        slot = slots[index]
        message = fleet.window[slot, device.sender]
        packet_id = slot + 1
        if AWAY < device.returned_ns <= message["sent_ns"]:
            continue  # it was first sent on this connection
        if message["state"] != AWAIT_PUBCOMP:
            copy = 1 if message["state"] == AWAIT_PUBACK or not session_present else 0
            position = handlers.write_again(fleet, row, packet_id, dup, copy, position)
            if group.body_apart:
                sequence = int(np.int64(message["sequence"]))
                return index + 1, position, _body_apart(fleet, device.publisher, sequence)
        elif session_present:
            position = mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
        else:
            _give_up(fleet, row, packet_id)
            position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)[1]
    return count, position, 0


@compiled
def _give_up(fleet: Fleet, row: int, packet_id: int) -> None:
    """End a handshake that the session took with it."""
    device = fleet.devices[row]
    phase = phase_of(fleet.run, fleet.window[packet_id - 1, device.sender]["intended_ns"])
    fleet.counters[device.group, phase].given_up += 1
    release(fleet.senders, fleet.window, device.sender, packet_id)
    fleet.totals.in_flight -= 1


@compiled
def give_up_all(fleet: Fleet, row: int) -> None:
    """End every handshake of a device: what it sent is not kept to be sent again."""
    sender = fleet.devices[row].sender
    for slot in range(np.int64(fleet.senders[sender]["cursor"])):
        if fleet.window[slot, sender]["state"] != FREE:
            _give_up(fleet, row, slot + 1)


MESSAGING: Any = Handlers(
    _on_message,
    _on_acknowledged,
    _on_refused,
    _write_due,
    _on_sent,
    _on_unsent,
    _write_again,
    _on_return,
)
