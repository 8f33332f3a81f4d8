"""Handling of the bytes that a device receives: messages, acknowledgements, CONNACK.

`receive_packets` handles every whole packet, accounts for messages and writes acknowledgements.
The meaning of a message depends on the case: `Handlers`. Those here are of devices that receive and
respond; a case may have others (plan/behaviour.py).

Bytes and times come in as arguments; sockets and clocks are those of `reactor`.
"""

import numpy as np
import numpy.typing as npt

from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.accounting import has_come
from loadgen.kernels.arrays import Bytes, copy_bytes
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import (
    BROKEN,
    CONNECT_PHASE,
    CONTROL_PACKET,
    FAILURE,
    REFUSED_PACKET,
    S_ACKNOWLEDGE,
    S_CONNACK,
    S_CONNECT,
    S_CONNECTED_AT,
    UNANSWERED,
    ReceivedMessage,
    count_sent,
    is_whole,
    pair_of,
    phase_of,
    phase_of_arrival,
    push_bytes,
    push_event,
    record,
    room_for_events,
    slot_of,
    take_message,
    violate,
)
from loadgen.kernels.crc import crc32
from loadgen.kernels.device import (
    ACCEPT,
    AWAIT_CONNACK,
    BLOCKED,
    BODY,
    CONNECTED,
    REFUSE,
    RESUMED,
    WINDOW_FULL,
    transition,
)
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.in_flight import (
    AWAIT_PUBCOMP,
    FREE,
    UNKNOWN_PACKET_ID,
    accept_qos2,
    acquire,
    forget_received,
    on_puback,
    on_pubcomp,
    on_pubrec,
    release,
    release_qos2,
    set_capacity,
    wrong_acknowledgement,
)
from loadgen.kernels.payload import HEADER_BYTES, read_i64, read_u32, write_u32
from loadgen.kernels.sender import requeue
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
from loadgen.mqtt.violations import (
    DUP_AT_QOS_0,
    FAILED_PUBCOMP,
    IDENTIFIER_IN_USE,
    MALFORMED,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    UNEXPECTED_PACKET,
    UNKNOWN_ACKNOWLEDGEMENT,
    UNKNOWN_PUBREL,
    UNKNOWN_REASON,
    UNREQUESTED_PINGRESP,
)

_MALFORMED_PACKET = int(ReasonCode.MALFORMED_PACKET)
_PROTOCOL_ERROR = int(ReasonCode.PROTOCOL_ERROR)
_PACKET_TOO_LARGE = int(ReasonCode.PACKET_TOO_LARGE)
_FIXED_HEADER_BYTES = 5  # at most (2.1)
_REPEATED_PUBREL = PUBREL << 4 | 0x0A


def _reason_table() -> npt.NDArray[np.bool_]:
    table = np.zeros((PUBCOMP + 1, 256), np.bool_)
    for packet_type in range(PUBACK, PUBCOMP + 1):
        table[packet_type, list(REASON_CODES[packet_type])] = True
    return table


_IS_REASON = _reason_table()


@compiled
def receive_packets(
    fleet: Fleet, row: int, buffer: Bytes, end: int, now_ns: int, handlers: Handlers
) -> tuple[int, int]:
    """Handle every complete packet in buffer[:end] that a device received at `now_ns`.

    Answers are written to `out`: at most 4 bytes for each packet, acknowledgements withheld before,
    and what the handlers write. Return (begin of the first incomplete packet, bytes written). A
    violation of the protocol is queued as BROKEN and ends the scan at `end`.
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
                position = _begin_body(fleet, row, buffer, head, end, now_ns)
            break
        if status == mqtt.TOO_LARGE:
            push_event(fleet, BROKEN, row, _PACKET_TOO_LARGE, now_ns)
            return end, written
        kind = first_byte >> 4
        if first_byte == _REPEATED_PUBREL and fleet.run.version == MQTT_3_1:
            buffer[position] = PUBREL << 4 | 2  # with DUP, as MQTT 3.1 allows in its section 2.1
            continue
        if status != mqtt.OK:
            is_dup_at_qos_0 = kind == PUBLISH and first_byte & 0x0E == 0x08
            violate(fleet, row, DUP_AT_QOS_0 if is_dup_at_qos_0 else MALFORMED, now_ns)
            push_event(fleet, BROKEN, row, _MALFORMED_PACKET, now_ns)
            return end, written
        if kind == PUBLISH:
            status, topic, topic_end, packet_id, payload, properties = mqtt.publish_fields(
                buffer, first_byte, body, packet_end, fleet.run.version
            )
            if status == mqtt.OK:
                place = (position, topic, topic_end, payload, packet_end, packet_id)
                message = _message(place, first_byte, -1)
                strays, before = fleet.totals.strays, written
                written = _publish(fleet, row, buffer, message, now_ns, written, handlers)
                if fleet.totals.strays > strays and not mqtt.is_topic(buffer, topic, topic_end):
                    status, written = mqtt.MALFORMED, before
                elif properties:
                    _check_properties(fleet, row, properties, now_ns)
        elif PUBACK <= kind <= PUBCOMP:
            status, packet_id, reason = mqtt.ack_fields(
                buffer, kind, body, packet_end, fleet.run.version
            )
            if status == mqtt.OK:
                if not _IS_REASON[kind, reason]:
                    violate(fleet, row, UNKNOWN_REASON, now_ns)
                written = _ack(fleet, row, kind, packet_id, reason, now_ns, written, handlers)
                if reason >= FAILURE:
                    _tell_refusal(fleet, row, reason, now_ns, buffer, position, packet_end)
        elif kind == PINGRESP and body == packet_end:
            _pingresp(fleet, row, now_ns)
        elif kind == PINGRESP:
            status = mqtt.MALFORMED
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
def _message(
    place: tuple[int, int, int, int, int, int], first_byte: int, body_crc: int
) -> ReceivedMessage:
    start, topic, topic_end, payload, end, packet_id = place
    qos, dup, retain = (first_byte >> 1) & 3, first_byte & 8, first_byte & 1
    return ReceivedMessage(
        start, topic, topic_end, payload, end, packet_id, qos, dup, retain, body_crc
    )


@compiled
def _check_properties(fleet: Fleet, row: int, properties: int, now_ns: int) -> None:
    """Check that a message has no property that we never requested; others are its publisher's."""
    if properties >> mqtt.TOPIC_ALIAS & 1:
        violate(fleet, row, TOPIC_ALIAS, now_ns)
    if properties >> mqtt.SUBSCRIPTION_IDENTIFIER & 1:
        violate(fleet, row, SUBSCRIPTION_IDENTIFIER, now_ns)


@compiled
def _pingresp(fleet: Fleet, row: int, now_ns: int) -> None:
    device = fleet.devices[row]
    device.pinged_ns = 0
    if device.pings > 0:
        device.pings -= 1
    else:
        violate(fleet, row, UNREQUESTED_PINGRESP, now_ns)


@compiled
def _begin_body(
    fleet: Fleet, row: int, buffer: Bytes, head: tuple[int, int, int, int], end: int, now_ns: int
) -> int:
    """Store only the head of a long PUBLISH, with the payload's header, once it has arrived.

    `head` is the first byte of the packet, its begin, the begin of its body, and its end; it has
    arrived up to `end`. Return the begin of the bytes that the caller has to store: the packet if
    its head is incomplete or too long.
    """
    first_byte, start, body, packet_end = head
    status, topic, topic_end, _, payload, _ = mqtt.publish_fields(
        buffer, first_byte, body, end, fleet.run.version
    )
    if status == mqtt.OK and not mqtt.is_topic(buffer, topic, topic_end):
        violate(fleet, row, MALFORMED, now_ns)
        push_event(fleet, BROKEN, row, _MALFORMED_PACKET, now_ns)
        return end
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
    """Add the bytes of a body to its checksum; the last byte completes the message.

    Return the begin of the next packet, and the bytes written.
    """
    device = fleet.devices[row]
    stored = fleet.partial[row]
    head_end = device.partial_bytes
    left = read_u32(stored, fleet.run.whole_limit)
    part_end = min(head_end + left, end)
    crc = crc32(read_u32(stored, fleet.run.whole_limit + 4), buffer, head_end, part_end)
    if part_end - head_end < left:
        _note_body(fleet, stored, left - (part_end - head_end), crc)
        return end, 0
    device.flags &= ~BODY
    _, first_byte, body, packet_end = mqtt.frame(buffer, 0, head_end, fleet.run.packet_limit)
    _, topic, topic_end, packet_id, payload, properties = mqtt.publish_fields(
        buffer, first_byte, body, packet_end, fleet.run.version
    )
    if properties:
        _check_properties(fleet, row, properties, now_ns)
    place = (0, topic, topic_end, payload, packet_end, packet_id)
    message = _message(place, first_byte, crc)
    return part_end, _publish(fleet, row, buffer, message, now_ns, 0, handlers)


@compiled
def _publish(
    fleet: Fleet,
    row: int,
    buffer: Bytes,
    message: ReceivedMessage,
    now_ns: int,
    position: int,
    handlers: Handlers,
) -> int:
    """Pass a message to its handler; one of QoS 2 only once before its PUBREL."""
    device = fleet.devices[row]
    if message.qos == 2 and device.qos2 >= 0:
        if not mqtt.is_topic(buffer, message.topic, message.topic_end):
            fleet.totals.strays += 1
            return position
        if not accept_qos2(fleet.received_ids, device.qos2, message.packet_id):
            fleet.totals.publishes += 1
            _take_in_use(fleet, row, buffer, message, now_ns)
            return acknowledge(fleet, row, message, position)
        fleet.totals.unreleased += 1
    fleet.totals.publishes += 1
    return int(handlers.on_message(fleet, row, buffer, message, now_ns, position))


@compiled
def _take_in_use(
    fleet: Fleet, row: int, buffer: Bytes, message: ReceivedMessage, now_ns: int
) -> None:
    """Count a QoS 2 message whose identifier waits for PUBREL: a repetition or a violation.

    The message may be repeated once after its connection broke, since the PUBREC may be lost.
    """
    start = message.payload
    device = fleet.devices[row]
    phase = phase_of_arrival(fleet.run, now_ns)
    intact = message.end - start >= HEADER_BYTES and is_whole(buffer, message)
    is_ours = intact and read_u32(buffer, start) == fleet.run.run_tag
    if is_ours:
        phase = phase_of(fleet.run, read_i64(buffer, start + 16))
    counts = fleet.counters[device.group, phase]
    counts.duplicated += 1
    is_other = False
    if is_ours and device.stream_count > 0:
        pair = pair_of(fleet, device, buffer, message)
        sequence = read_i64(buffer, start + 8)
        is_other = pair < 0 or not has_come(fleet.pairs, fleet.gaps, pair, sequence)
    if is_other or not message.dup:
        violate(fleet, row, IDENTIFIER_IN_USE, now_ns)
    elif intact and device.flags & RESUMED:
        doubted = release_qos2(fleet.doubtful_ids, device.qos2, message.packet_id)
        counts.excused += doubted


@compiled
def acknowledge(fleet: Fleet, row: int, message: ReceivedMessage, position: int) -> int:
    """Write the answer to a PUBLISH, or withhold it until its batch is full."""
    if message.qos == 0:
        return position
    if message.qos == 2:
        return mqtt.write_ack(fleet.out, position, PUBREC, message.packet_id)
    device = fleet.devices[row]
    if device.holder < 0:
        return mqtt.write_ack(fleet.out, position, PUBACK, message.packet_id)
    fleet.held_ids[device.holder, device.held] = message.packet_id
    fleet.held_pairs[device.holder, device.held] = -1
    device.held += 1
    if device.held < device.acknowledge_every:
        return position
    return release_held(fleet, row, position)


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
    """Handle PUBACK, PUBREC, PUBREL or PUBCOMP; return the position after the answer."""
    device = fleet.devices[row]
    if kind == PUBREL:
        # A device that expects no QoS 2 does not remember identifiers.
        known = device.qos2 >= 0 and release_qos2(fleet.received_ids, device.qos2, packet_id)
        fleet.totals.unreleased -= known
        # A device with a resumed session may have answered on the connection that broke.
        if not known and device.qos2 >= 0 and not device.flags & RESUMED:
            violate(fleet, row, UNKNOWN_PUBREL, now_ns)
        return mqtt.write_ack(fleet.out, position, PUBCOMP, packet_id)
    if device.sender < 0:
        violate(fleet, row, UNKNOWN_ACKNOWLEDGEMENT, now_ns)
        return position
    if kind == PUBACK:
        status, sent_ns = on_puback(fleet.senders, fleet.window, device.sender, packet_id)
    elif kind == PUBREC:
        status, sent_ns = on_pubrec(fleet.senders, fleet.window, device.sender, packet_id, reason)
        if status == mqtt.OK and reason < FAILURE:
            return mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
    else:
        status, sent_ns = on_pubcomp(fleet.senders, fleet.window, device.sender, packet_id)
    if status != mqtt.OK:
        return _take_wrong_ack(fleet, row, kind, packet_id, status, now_ns, position, handlers)
    phase = phase_of(fleet.run, fleet.window[packet_id - 1, device.sender]["intended_ns"])
    if reason >= FAILURE:
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
    """Count a message that the broker refused; return the position as in `_ack`."""
    deliveries = 0
    if kind == PUBCOMP:  # the broker had accepted it
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
    if refusal.count > 0 and not refusal.reported and room_for_events(fleet, end - start):
        refusal.reported = 1
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
    """Count an unexpected acknowledgement; return the position as in `_ack`.

    A message that waits for another one is given up, so that the window does not fill with such
    messages.
    """
    device = fleet.devices[row]
    state = FREE
    wrong = UNKNOWN_ACKNOWLEDGEMENT
    if status != UNKNOWN_PACKET_ID:
        state = int(np.int64(fleet.window[packet_id - 1, device.sender]["state"]))
        wrong = wrong_acknowledgement(state, kind)
    violate(fleet, row, wrong, now_ns)
    if kind == PUBREC and state in (FREE, AWAIT_PUBCOMP):
        # The PUBREL may have been lost, and the broker waits for it.
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
    """Continue a publisher that waited for its window, or for the end of its last unit."""
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
    """Accept or refuse a device; return True if Python must look at the CONNACK.

    That is not so if another device of the group had the same; but the last CONNACK is always
    shown, so that Python sees that all devices have connected.
    """
    start, body, end = packet
    if end - body < 2:
        return True
    is_usual = _is_usual_connack(fleet, row, buffer, start, end)
    _connack(fleet, row, int(np.int64(buffer[body + 1])), int(np.int64(buffer[body])) & 1, now_ns)
    device = fleet.devices[row]
    if is_usual:
        group = fleet.groups[device.group]
        device.keep_alive_ns = group.keep_alive_ns
        device.acknowledge_every = group.acknowledge_every
        if device.sender >= 0:
            set_capacity(fleet.senders, fleet.window, device.sender, group.capacity)
    return not is_usual or (fleet.totals.connecting == 0 and fleet.connects.count == 0)


@compiled
def _is_usual_connack(fleet: Fleet, row: int, buffer: Bytes, start: int, end: int) -> bool:
    """Return True if a device that was never away got the usual CONNACK of its group."""
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
        device.left_ns -= now_ns - device.tcp_ns
        # No new message before the unacknowledged ones, which the caller sends again.
        device.flags |= BLOCKED
        if session_present:
            device.flags |= RESUMED
        else:
            device.flags &= ~RESUMED
            if device.qos2 >= 0:
                fleet.totals.unreleased -= forget_received(fleet.received_ids, device.qos2)
    fleet.counters[device.group, CONNECT_PHASE].connects += 1
    record(fleet, slot_of(device.group, S_CONNACK, CONNECT_PHASE), now_ns - device.tcp_ns)
    record(fleet, slot_of(device.group, S_CONNECT, CONNECT_PHASE), now_ns - device.syn_ns)
    if fleet.run.connect_ns != 0:
        since_ns = now_ns - fleet.run.connect_ns
        record(fleet, slot_of(device.group, S_CONNECTED_AT, CONNECT_PHASE), since_ns)


@compiled
def on_message(
    fleet: Fleet, row: int, buffer: Bytes, message: ReceivedMessage, now_ns: int, position: int
) -> int:
    """Account for a message, and respond to it if the device is a responder."""
    position = acknowledge(fleet, row, message, position)
    is_new = take_message(fleet, row, buffer, message, now_ns)
    if is_new and fleet.devices[row].responses >= 0:
        position = _respond(fleet, row, buffer, message, now_ns, position)
    return position


@compiled
def _respond(
    fleet: Fleet, row: int, buffer: Bytes, message: ReceivedMessage, now_ns: int, position: int
) -> int:
    """Write the response to a request; return the position after it.

    It is the request's payload on the topic of the requesting device. So that device accounts for
    it, and its latency begins at the intended time of the request.
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
    # Its delivery was counted as expected when the request was sent.
    count_sent(fleet, device.group, phase, 0, payload + size - position)
    return int(payload + size)


@compiled
def on_acknowledged(
    fleet: Fleet, row: int, packet_id: int, now_ns: int, position: int
) -> tuple[int, int]:
    return fleet.devices[row].group, position


@compiled
def on_refused(fleet: Fleet, row: int, packet_id: int, phase: int) -> int:
    device = fleet.devices[row]
    return 1 if device.responses >= 0 else fleet.groups[device.group].deliveries
