"""Handling of the bytes that a device receives: messages, acknowledgements, CONNACK.

The meaning of a message depends on the case: `Handlers`. Sockets and clocks are in `reactor`.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.kernels import counting, in_flight
from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.accounting import has_come
from loadgen.kernels.arrays import copy_bytes, read_i64, read_u32
from loadgen.kernels.by_order import add_header
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import (
    BROKEN,
    CONNECT_PHASE,
    FAILURE,
    ReceivedMessage,
    phase_of,
    push_bytes,
    push_event,
    record,
    slot_of,
    violate,
)
from loadgen.kernels.crc import crc32
from loadgen.kernels.device import (
    ACCEPT,
    AWAIT_CONNACK,
    BLOCKED,
    CONNECTED,
    REFUSE,
    RESUMED,
    WINDOW_FULL,
    transition,
)
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.payload import (
    HEADER_BYTES,
    HEX_BYTES,
    IN_FIELD,
    IN_PROPERTY,
    NOWHERE,
    SHORT_BYTES,
    lengthen,
    move_in,
)
from loadgen.kernels.sender import on_return, on_sent, on_unsent, requeue, write_again, write_due
from loadgen.mqtt import violations
from loadgen.mqtt.constants import (
    CONNACK,
    MQTT_3_1,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
)
from loadgen.mqtt.reason_codes import REASON_CODES, ReasonCode

_MALFORMED_PACKET = int(ReasonCode.MALFORMED_PACKET)
_PROTOCOL_ERROR = int(ReasonCode.PROTOCOL_ERROR)
_PACKET_TOO_LARGE = int(ReasonCode.PACKET_TOO_LARGE)
_FIXED_HEADER_BYTES = 5  # at most (2.1)
SCRATCH_BYTES = HEADER_BYTES  # end of `buffer` for short headers; no read reaches it
_REPEATED_PUBREL = PUBREL << 4 | 0x0A
_NO_VIOLATION = -1
_ANSWERS = len(violations.ANSWERS)


def _reason_table() -> npt.NDArray[np.bool_]:
    table = np.zeros((PUBCOMP + 1, 256), np.bool_)
    for packet_type in range(PUBACK, PUBCOMP + 1):
        table[packet_type, list(REASON_CODES[packet_type])] = True
    return table


_IS_REASON = _reason_table()


class Acknowledgement(NamedTuple):
    """A PUBACK, PUBREC, PUBREL or PUBCOMP that a device received, at buffer[start:end]."""

    row: int
    now_ns: int
    start: int
    end: int
    kind: int
    packet_id: int
    reason: int


@compiled
def receive_packets(
    fleet: Fleet, row: int, end: int, now_ns: int, handlers: Handlers
) -> tuple[int, int]:
    """Handle every complete packet in fleet.buffer[:end] that a device received at `now_ns`.

    Return (begin of the first incomplete packet, bytes of answers in `out`). A violation of the
    protocol is queued as BROKEN and ends the scan at `end`.
    """
    buffer, device = fleet.buffer, fleet.devices[row]
    version = fleet.groups[device.group].version
    position, written = 0, 0
    limit_bytes = fleet.run.packet_limit - _FIXED_HEADER_BYTES
    is_first = device.state == AWAIT_CONNACK
    has_fresh = False  # True if these bytes have new messages of QoS 2: no PUBREC is sent yet
    unreleased = fleet.totals.unreleased
    if device.body_left > 0:
        position, written = _take_body(fleet, row, end, now_ns, handlers)
        has_fresh = fleet.totals.unreleased > unreleased
    while position < end:
        status, first_byte, body, packet_end = mqtt.frame(buffer, position, end, limit_bytes)
        kind = first_byte >> 4
        is_early = is_first and kind != CONNACK
        if status == mqtt.INCOMPLETE and not is_early:
            if packet_end - position > fleet.run.whole_limit and kind == PUBLISH:
                head = (first_byte, position, body, packet_end)
                position = _begin_body(fleet, row, head, end, now_ns)
            break
        if status == mqtt.TOO_LARGE:
            push_event(fleet, BROKEN, row, _PACKET_TOO_LARGE, now_ns)
            position = end
            continue
        if first_byte == _REPEATED_PUBREL and version == MQTT_3_1:
            buffer[position] = PUBREL << 4 | 2  # with DUP, as MQTT 3.1 allows in its section 2.1
            continue
        wrong = _NO_VIOLATION
        if status == mqtt.MALFORMED:
            is_dup_at_qos_0 = kind == PUBLISH and first_byte & 0x0E == 0x08
            wrong = violations.DUP_AT_QOS_0 if is_dup_at_qos_0 else violations.MALFORMED
        elif is_early:
            wrong = violations.UNEXPECTED_PACKET
        elif kind == PUBLISH:
            status, topic, topic_end, packet_id, payload, properties = mqtt.publish_fields(
                buffer, first_byte, body, packet_end, version
            )
            strays, before, unreleased = fleet.totals.strays, written, fleet.totals.unreleased
            if status == mqtt.OK:
                place = (position, topic, topic_end, payload, packet_end, packet_id)
                message = _message(row, now_ns, place, first_byte, -1)
                if len(fleet.header_places) > 0:
                    payload, body_end, body_crc = _header_of(fleet, message)
                    start = position + body_end - packet_end
                    place = (start, topic, topic_end, payload, body_end, packet_id)
                    message = _message(row, now_ns, place, first_byte, body_crc)
                written = _publish(fleet, message, written, handlers)
            has_fresh |= fleet.totals.unreleased > unreleased
            is_stray = status != mqtt.OK or fleet.totals.strays > strays
            if is_stray and (status != mqtt.OK or not mqtt.is_topic(buffer, topic, topic_end)):
                wrong, written = violations.MALFORMED, before
            elif properties:
                _check_properties(fleet, row, properties, now_ns)
        elif PUBACK <= kind <= PUBCOMP:
            status, packet_id, reason = mqtt.ack_fields(buffer, kind, body, packet_end, version)
            if status == mqtt.OK:
                may_be_early = kind == PUBREL and has_fresh
                if may_be_early and in_flight.is_unreleased(fleet.fresh_ids, 0, packet_id):
                    violate(fleet, row, violations.UNKNOWN_PUBREL, now_ns)
                ack = Acknowledgement(row, now_ns, position, packet_end, kind, packet_id, reason)
                written = _on_ack(fleet, ack, written, handlers)
            else:
                wrong = violations.MALFORMED
        elif kind == PINGRESP:
            device.pinged_ns = 0
            if body != packet_end:
                wrong = violations.MALFORMED
            elif device.pings > 0:
                device.pings -= 1
            else:
                violate(fleet, row, violations.UNREQUESTED_PINGRESP, now_ns)
        else:
            if not counting.room_for_events(fleet, packet_end - position):
                break
            is_first = False
            if kind == CONNACK and device.state == CONNECTED:
                wrong = violations.UNEXPECTED_PACKET
            elif kind != CONNACK or _on_connack(fleet, row, position, body, packet_end, now_ns):
                event = counting.CONTROL_PACKET
                push_bytes(fleet, event, row, kind, now_ns, buffer, position, packet_end)
        if wrong != _NO_VIOLATION:
            _break(fleet, row, wrong, now_ns)
        position = packet_end if wrong == _NO_VIOLATION else end
    if has_fresh:
        fleet.fresh_ids[0, :] = 0
    return position, written


@compiled
def _header_of(fleet: Fleet, message: ReceivedMessage) -> tuple[int, int, int]:
    """Move the header of a message in front of its body; return its begin, or the payload's.

    It was in a property or in a field of the payload. One that is short or nowhere is written at
    the end of the buffer. Return also the end of the body and its CRC, as in `ReceivedMessage`.
    """
    buffer, run_tag = fleet.buffer, fleet.run.run_tag
    payload, end, out = message.payload, message.end, len(fleet.buffer) - SCRATCH_BYTES
    if fleet.header_places[0] == NOWHERE:
        crc = add_header(fleet, message, out)
        return (out, out + HEADER_BYTES + end - payload, crc) if crc >= 0 else (payload, end, -1)
    if end - payload >= HEADER_BYTES and read_u32(buffer, payload) == run_tag:
        return payload, end, -1
    if SHORT_BYTES <= end - payload < HEADER_BYTES:
        crc = lengthen(buffer, payload, end, out, run_tag, fleet.program[0].clock_ns)
        if crc >= 0:
            return out, out + HEADER_BYTES + end - payload - SHORT_BYTES, crc
    properties = message.topic_end + 2 if message.qos else message.topic_end
    for place in fleet.header_places:
        text = payload + place - IN_FIELD
        if place == IN_PROPERTY:
            known_bytes = len(fleet.header_property) - HEX_BYTES
            text = mqtt.property_value(
                buffer, properties, payload, fleet.header_property, known_bytes
            )
        if text < 0 or text + HEX_BYTES > end:
            continue
        begin = move_in(buffer, payload, text, place, run_tag)
        if begin >= 0:
            return begin, end, -1
    return payload, end, -1


@compiled
def _break(fleet: Fleet, row: int, violation: int, now_ns: int) -> None:
    """Count a violation of the protocol, which ends the connection."""
    is_malformed = violation != violations.UNEXPECTED_PACKET
    violate(fleet, row, violation, now_ns)
    push_event(fleet, BROKEN, row, _MALFORMED_PACKET if is_malformed else _PROTOCOL_ERROR, now_ns)


@compiled
def _message(
    row: int, now_ns: int, place: tuple[int, int, int, int, int, int], first_byte: int, crc: int
) -> ReceivedMessage:
    start, topic, topic_end, payload, end, packet_id = place
    header = (packet_id, (first_byte >> 1) & 3, first_byte & 8, first_byte & 1)
    return ReceivedMessage(row, now_ns, start, topic, topic_end, payload, end, *header, crc)


@compiled
def _check_properties(fleet: Fleet, row: int, properties: int, now_ns: int) -> None:
    """Check that a message has no property that we never requested; others are its publisher's."""
    if properties >> mqtt.TOPIC_ALIAS & 1:
        violate(fleet, row, violations.TOPIC_ALIAS, now_ns)
    if properties >> mqtt.SUBSCRIPTION_IDENTIFIER & 1:
        violate(fleet, row, violations.SUBSCRIPTION_IDENTIFIER, now_ns)


@compiled
def _begin_body(
    fleet: Fleet, row: int, head: tuple[int, int, int, int], end: int, now_ns: int
) -> int:
    """Store only the head of a long PUBLISH, with the payload's header, once it has arrived.

    `head` is the first byte of the packet, its begin, the begin of its body, and its end; it has
    arrived up to `end`. Return the begin of the bytes that the caller has to store.
    """
    buffer, device = fleet.buffer, fleet.devices[row]
    first_byte, start, body, packet_end = head
    status, topic, topic_end, _, payload, _ = mqtt.publish_fields(
        buffer, first_byte, body, end, fleet.groups[device.group].version
    )
    if status == mqtt.OK and not mqtt.is_topic(buffer, topic, topic_end):
        _break(fleet, row, violations.MALFORMED, now_ns)
        return end
    head_end = payload + HEADER_BYTES
    if status != mqtt.OK or head_end > end or head_end - start > fleet.run.whole_limit:
        return start
    device.body_left = packet_end - end
    device.body_crc = crc32(0, buffer, head_end, end)
    device.partial_bytes = head_end - start
    copy_bytes(fleet.partial[row], 0, buffer, start, head_end - start)
    return end


@compiled
def _take_body(
    fleet: Fleet, row: int, end: int, now_ns: int, handlers: Handlers
) -> tuple[int, int]:
    """Add bytes to the checksum of a body; return (begin of the next packet, bytes written)."""
    buffer = fleet.buffer
    device = fleet.devices[row]
    head_end = device.partial_bytes
    part_end = min(head_end + device.body_left, end)
    device.body_left -= part_end - head_end
    device.body_crc = crc32(device.body_crc, buffer, head_end, part_end)
    if device.body_left > 0:
        return end, 0
    _, first_byte, body, packet_end = mqtt.frame(buffer, 0, head_end, fleet.run.packet_limit)
    _, topic, topic_end, packet_id, payload, properties = mqtt.publish_fields(
        buffer, first_byte, body, packet_end, fleet.groups[device.group].version
    )
    if properties:
        _check_properties(fleet, row, properties, now_ns)
    place = (0, topic, topic_end, payload, packet_end, packet_id)
    message = _message(row, now_ns, place, first_byte, device.body_crc)
    return part_end, _publish(fleet, message, 0, handlers)


@compiled
def _publish(fleet: Fleet, message: ReceivedMessage, position: int, handlers: Handlers) -> int:
    """Pass a message to its handler; one of QoS 2 only once before its PUBREL."""
    device = fleet.devices[message.row]
    in_use = False
    if message.qos == 1 and device.qos2 >= 0:
        in_use = in_flight.is_unreleased(fleet.received_ids, device.qos2, message.packet_id)
    for index in range(device.held if message.qos == 1 and not message.dup else 0):
        in_use |= fleet.held_ids[device.holder, index] == message.packet_id
    if in_use and mqtt.is_topic(fleet.buffer, message.topic, message.topic_end):
        violate(fleet, message.row, violations.IDENTIFIER_IN_USE, message.now_ns)
    if message.qos == 2 and device.qos2 >= 0:
        if not mqtt.is_topic(fleet.buffer, message.topic, message.topic_end):
            fleet.totals.strays += 1
            return position
        if not in_flight.accept_qos2(fleet.received_ids, device.qos2, message.packet_id):
            fleet.totals.publishes += 1
            _take_in_use(fleet, message)
            return acknowledge(fleet, message, position)
        in_flight.release_qos2(fleet.doubtful_ids, device.qos2, message.packet_id)
        in_flight.accept_qos2(fleet.fresh_ids, 0, message.packet_id)
        fleet.totals.unreleased += 1
    elif message.qos == 2:
        device.qos2 = -2
    fleet.totals.publishes += 1
    return int(handlers.on_message(fleet, message, position))


@compiled
def _take_in_use(fleet: Fleet, message: ReceivedMessage) -> None:
    """Count a QoS 2 message whose identifier waits for PUBREL: a repetition or a violation."""
    start = message.payload
    device = fleet.devices[message.row]
    phase = counting.phase_of_arrival(fleet.run, message.now_ns)
    intact = message.end - start >= HEADER_BYTES and counting.is_whole(fleet, message)
    is_ours = intact and read_u32(fleet.buffer, start) == fleet.run.run_tag
    if is_ours:
        phase = counting.phase_of_surplus(fleet, message)
    counts = fleet.counters[device.group, phase]
    counts.duplicated += 1
    is_other = False
    if is_ours and device.range_count > 0:
        is_other = True
        number = counting.range_of(fleet, message)
        if number >= 0:
            pair = counting.pair_in(fleet, fleet.ranges[number], message)
            sequence = read_i64(fleet.buffer, start + 8)
            is_other = not has_come(fleet.pairs, fleet.gaps, pair, sequence)
    if is_other or not message.dup:
        violate(fleet, message.row, violations.IDENTIFIER_IN_USE, message.now_ns)
    elif intact and device.flags & RESUMED:
        doubted = in_flight.release_qos2(fleet.doubtful_ids, device.qos2, message.packet_id)
        counts.excused += doubted


@compiled
def acknowledge(fleet: Fleet, message: ReceivedMessage, position: int) -> int:
    """Write the answer to a PUBLISH, or withhold it until its batch is full."""
    if message.qos == 0:
        return position
    if message.qos == 2:
        return mqtt.write_ack(fleet.out, position, PUBREC, message.packet_id)
    device = fleet.devices[message.row]
    if device.holder < 0:
        return mqtt.write_ack(fleet.out, position, PUBACK, message.packet_id)
    fleet.held_ids[device.holder, device.held] = message.packet_id
    fleet.held_pairs[device.holder, device.held] = -1
    device.held += 1
    if device.held < device.acknowledge_every:
        return position
    return release_held(fleet, message.row, position)


@compiled
def release_held(fleet: Fleet, row: int, position: int) -> int:
    """Write the withheld acknowledgements of a device; return the position after them."""
    device = fleet.devices[row]
    for index in range(device.held):
        packet_id = fleet.held_ids[device.holder, index]
        position = mqtt.write_ack(fleet.out, position, PUBACK, packet_id)
    device.held = 0
    return position


@compiled
def _on_ack(fleet: Fleet, ack: Acknowledgement, position: int, handlers: Handlers) -> int:
    """Handle PUBACK, PUBREC, PUBREL or PUBCOMP; return the position after the answer."""
    row, kind, packet_id = ack.row, ack.kind, ack.packet_id
    device = fleet.devices[row]
    if not _IS_REASON[kind, ack.reason]:
        violate(fleet, row, violations.UNKNOWN_REASON, ack.now_ns)
    if kind == PUBREL:
        # It may come again if the answer was sent on a connection that broke, or in an earlier run.
        resumed, again = device.flags & RESUMED > 0, device.returned_ns == 0
        is_open = device.qos2 < -1
        if device.qos2 >= 0:
            is_open = in_flight.release_qos2(fleet.received_ids, device.qos2, packet_id)
            fleet.totals.unreleased -= is_open
            again |= in_flight.release_qos2(fleet.doubtful_ids, device.qos2, packet_id)
            in_flight.accept_qos2(fleet.released_ids, device.qos2, packet_id)
        if not is_open and not (resumed and again):
            violate(fleet, row, violations.UNKNOWN_PUBREL, ack.now_ns)
        elif is_open and ack.reason >= FAILURE and not resumed:
            violate(fleet, row, violations.FAILED_PUBREL, ack.now_ns)
        return mqtt.write_ack(fleet.out, position, PUBCOMP, packet_id)
    awaited = in_flight.FREE
    if device.sender >= 0:
        awaited = in_flight.awaited_answer(fleet, device.sender, packet_id)
    is_failure = ack.reason >= FAILURE
    if awaited == kind:
        in_flight.answer(fleet, device.sender, packet_id, is_failure)
        if kind == PUBREC and not is_failure:
            return mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
    else:
        wrong = violations.UNKNOWN_ACKNOWLEDGEMENT
        if awaited != in_flight.FREE:
            state = min(awaited - PUBACK, 2)
            wrong = violations.WRONG_ACKNOWLEDGEMENT + _ANSWERS * state + kind - PUBACK
        violate(fleet, row, wrong, ack.now_ns)
        if kind == PUBREC and device.sender >= 0 and awaited in (in_flight.FREE, PUBCOMP):
            # The PUBREL may have been lost, and the broker waits for it.
            return mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
        if awaited == in_flight.FREE:
            return position
        in_flight.release(fleet, device.sender, packet_id)  # or it would stay in the window
    message = fleet.window[packet_id - 1, device.sender]
    sent_ns, phase = message.sent_ns, phase_of(fleet.run, message.intended_ns)
    # The broker had accepted the message of a PUBCOMP.
    is_refused = awaited == kind and is_failure and kind != PUBCOMP
    deliveries = handlers.on_refused(fleet, row, packet_id, phase) if is_refused else 0
    # The handler may send a message in the slot that became free.
    group, position = handlers.on_acknowledged(fleet, row, packet_id, ack.now_ns, position)
    counts = fleet.counters[group, phase]
    if is_refused:
        counts.refused += 1
        counts.expected -= deliveries
        fleet.totals.withdrawn += deliveries
        _note_refusal(fleet, ack)
    elif awaited == kind and not is_failure:
        counts.acknowledged += 1
        record(fleet, slot_of(group, counting.S_ACKNOWLEDGE, phase), ack.now_ns - sent_ns)
    else:
        counts.given_up += 1
        if awaited == kind:
            violate(fleet, row, violations.FAILED_PUBCOMP, ack.now_ns)
    fleet.totals.in_flight -= 1
    _free_window(fleet, row)
    return position


@compiled
def _note_refusal(fleet: Fleet, ack: Acknowledgement) -> None:
    """Queue the first acknowledgement with this failure code, for its Reason String."""
    refusal = fleet.refusals[ack.reason]
    refusal.count += 1
    if not refusal.reported and counting.room_for_events(fleet, ack.end - ack.start):
        refusal.reported = 1
        kind, buffer = counting.REFUSED_PACKET, fleet.buffer
        push_bytes(fleet, kind, ack.row, ack.reason, ack.now_ns, buffer, ack.start, ack.end)


@compiled
def _free_window(fleet: Fleet, row: int) -> None:
    """Continue a publisher that waited for its window, or for the end of its last unit."""
    device = fleet.devices[row]
    if device.flags & WINDOW_FULL:
        if device.unit_sent > 0:
            if fleet.senders[device.sender].in_flight > 0:
                return
            device.unit_sent = 0
        device.flags &= ~WINDOW_FULL
        requeue(fleet, row)


@compiled
def _on_connack(fleet: Fleet, row: int, start: int, body: int, end: int, now_ns: int) -> bool:
    """Accept or refuse a device; return True if Python must look at the CONNACK."""
    if end - body < 2:
        return True
    buffer = fleet.buffer
    device = fleet.devices[row]
    group = fleet.groups[device.group]
    is_usual = device.state == AWAIT_CONNACK and device.returned_ns == 0
    usual = fleet.connacks[device.group]
    is_usual = is_usual and mqtt.is_same(buffer, start, end, usual, 0, group.connack_bytes)
    _connack(fleet, row, int(np.int64(buffer[body + 1])), int(np.int64(buffer[body])) & 1, now_ns)
    if is_usual:
        device.keep_alive_ns = group.keep_alive_ns
        device.acknowledge_every = group.acknowledge_every
        if device.sender >= 0:
            in_flight.set_capacity(fleet, device.sender, group.capacity)
    return not is_usual or (fleet.totals.connecting == 0 and fleet.connects.count == 0)


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
        device.left_ns -= now_ns - device.tcp_ns
        if device.due_ns != 0:
            slot = slot_of(device.group, counting.S_RETURN, phase_of(fleet.run, device.due_ns))
            record(fleet, slot, now_ns - device.due_ns)
        # No new message before the unacknowledged ones, which the caller sends again.
        device.flags |= BLOCKED
        if not session_present and device.qos2 >= 0:
            forgotten = in_flight.forget_received(fleet.received_ids, device.qos2)
            fleet.totals.unreleased -= forgotten
    device.flags = device.flags & ~RESUMED | RESUMED * session_present
    group = device.group
    fleet.counters[group, CONNECT_PHASE].connects += 1
    record(fleet, slot_of(group, counting.S_CONNACK, CONNECT_PHASE), now_ns - device.tcp_ns)
    record(fleet, slot_of(group, counting.S_CONNECT, CONNECT_PHASE), now_ns - device.syn_ns)
    if fleet.run.connect_ns != 0:
        since_ns = now_ns - fleet.run.connect_ns
        record(fleet, slot_of(group, counting.S_CONNECTED_AT, CONNECT_PHASE), since_ns)


@compiled
def on_message(fleet: Fleet, message: ReceivedMessage, position: int) -> int:
    """Account for a message, and respond to it if the device is a responder."""
    position = acknowledge(fleet, message, position)
    is_new = counting.take_message(fleet, message)
    if is_new and fleet.devices[message.row].responses >= 0:
        position = _respond(fleet, message, position)
    return position


@compiled
def _respond(fleet: Fleet, message: ReceivedMessage, position: int) -> int:
    """Write the response to a request; return the position after it.

    It is the request's payload on the topic of the requesting device. So that device accounts for
    it, and its latency begins at the intended time of the request.
    """
    buffer, start, now_ns = fleet.buffer, message.payload, message.now_ns
    device = fleet.devices[message.row]
    group = fleet.groups[device.group]
    qos = group.qos
    intended_ns = read_i64(buffer, start + 16)
    packet_id = 0
    if qos > 0:
        sequence = read_i64(buffer, start + 8)
        packet_id = in_flight.acquire(fleet, device.sender, qos, sequence, intended_ns, now_ns)
        if packet_id == 0:
            if counting.room_for_events(fleet, 0):
                push_event(fleet, counting.UNANSWERED, message.row, 0, now_ns)
            return position
        fleet.totals.in_flight += 1
    first = fleet.ranges[device.range_first].stream_first
    number = device.responses + read_u32(buffer, start + 4) - first
    topic = fleet.topics[fleet.topic_ends[number] : fleet.topic_ends[number + 1]]
    size, version, nothing = message.end - start, group.version, fleet.topics[:0]
    payload = mqtt.write_publish(
        fleet.out, position, qos << 1, topic, packet_id, version, nothing, size
    )
    copy_bytes(fleet.out, payload, buffer, start, size)
    # Its delivery was counted as expected when the request was sent.
    phase = phase_of(fleet.run, intended_ns)
    counting.count_sent(fleet, device.group, phase, 0, payload + size - position)
    return int(payload + size)


@compiled
def on_acknowledged(
    fleet: Fleet, row: int, packet_id: int, now_ns: int, position: int
) -> tuple[int, int]:
    return fleet.devices[row].group, position


@compiled
def on_refused(fleet: Fleet, row: int, packet_id: int, phase: int) -> int:
    if fleet.devices[row].responses >= 0:
        return 1
    return int(fleet.publishers[fleet.devices[row].publisher].deliveries)


MESSAGING: Any = Handlers(
    on_message,
    on_acknowledged,
    on_refused,
    write_due,
    on_sent,
    on_unsent,
    write_again,
    on_return,
)
"""The handlers of devices that publish, receive and respond."""
