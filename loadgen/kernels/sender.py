"""Sending of the due messages of publishers, in batches, and again after a connection broke.

`send_due` writes the due messages of a publisher to a buffer, and `record_sent` counts those that
the socket took and takes the others back. `redeliver_some` sends messages again (MQTT 5, 4.4).
"""

import numpy as np
import numpy.typing as npt

from loadgen.kernels import counting, in_flight
from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.arrays import copy_bytes
from loadgen.kernels.attention import mostly_stalled
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import phase_of, record, slot_of
from loadgen.kernels.crc import crc32
from loadgen.kernels.device import AWAY, BLOCKED, PUSHED_BACK, WAITING, WINDOW_FULL, Device
from loadgen.kernels.fleet import Fleet, GroupRecord, Sent
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.pacer import Publisher, advance, clock_of, heap_push, random_unit
from loadgen.kernels.payload import (
    COPIES_MOST,
    HEADER_BYTES,
    IN_FRONT,
    NOWHERE,
    SHORT_BYTES,
    fill_template,
    move_out,
    stamp,
    stamp_short,
)
from loadgen.mqtt.constants import PUBACK, PUBCOMP, PUBREL

BATCH_LIMIT = 1024
_SALT_CONTENT = 0x436F6E74  # so that contents do not depend on due times


@compiled
def requeue(fleet: Fleet, row: int) -> None:
    """Put a publisher that waited back into the heap; its unsent messages are due at once."""
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
    """Compute all due times again after a change of the program, and order the heap by them."""
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
    fleet: Fleet, number: int, now_ns: int, sent_ns: int, limit: int, handlers: Handlers
) -> tuple[int, int]:
    """Write the messages that a publisher has to send at `now_ns`, at most `limit`.

    `sent_ns` goes into the headers. Each message steps the schedule and has a row in `batch`. Set
    WINDOW_FULL if the window is full. Return (bytes written to `out`, messages).
    """
    publisher = fleet.publishers[number]
    device = fleet.devices[publisher.device]
    group = fleet.groups[device.group]
    room = len(fleet.out) - group.packet_most
    if group.body_apart:
        limit = 1
    earliest_ns = 0
    if publisher.period_ns == 0.0:
        earliest_ns = now_ns = sent_ns
    position, count = 0, 0
    while count < limit and position <= room:
        publisher.due_ns = due_ns = max(publisher.due_ns, earliest_ns)
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
    fleet: Fleet, device: Device, group: GroupRecord, sequence: int, due_ns: int, sent_ns: int
) -> int:
    """Return a Packet Identifier for the next message; 0 if it must wait for acknowledgements."""
    if group.unit > 1 and device.unit_sent >= group.unit:
        if fleet.senders[device.sender].in_flight > 0:
            return 0
        device.unit_sent = 0
    packet_id = in_flight.acquire(fleet, device.sender, group.qos, sequence, due_ns, sent_ns)
    if packet_id > 0:
        fleet.totals.in_flight += 1
        if group.unit > 1:
            device.unit_sent += 1
    return packet_id


@compiled
def record_sent(
    fleet: Fleet, number: int, count: int, sent: int, sent_ns: int, handlers: Handlers
) -> None:
    """Count the first `sent` of the `count` messages of a batch and take the others back."""
    publisher = fleet.publishers[number]
    device = fleet.devices[publisher.device]
    group = fleet.groups[device.group]
    counted = group.counts_as
    before = 0
    for index in range(sent):
        message = fleet.batch[index]
        phase = phase_of(fleet.run, message.due_ns)
        size_bytes = message.end - before + message.body_bytes
        counting.count_sent(fleet, counted, phase, message.deliveries, size_bytes)
        record(fleet, slot_of(counted, counting.S_SEND_DELAY, phase), sent_ns - message.due_ns)
        if device.flags & PUSHED_BACK and not mostly_stalled(fleet, message.due_ns, sent_ns):
            record(fleet, slot_of(counted, counting.S_PUSHED_BACK, phase), sent_ns - message.due_ns)
        handlers.on_sent(fleet, publisher.device, message, phase, sent_ns)
        before = message.end
    device.written_ns = sent_ns
    if publisher.due_ns > sent_ns:
        device.flags &= ~PUSHED_BACK
    if sent == count:
        publisher.sent = publisher.sequence
        return
    # Messages that are taken back leave the window.
    device.flags &= ~WINDOW_FULL
    for index in range(sent, count):
        message = fleet.batch[index]
        handlers.on_unsent(fleet, message)
        if message.packet_id > 0:
            in_flight.release(fleet, device.sender, message.packet_id)
            fleet.totals.in_flight -= 1
            if group.unit > 1:
                device.unit_sent -= 1
    first = fleet.batch[sent]
    publisher.sequence = first.sequence
    publisher.sent = first.sequence
    publisher.due_ns = first.due_ns
    publisher.load_ns = first.load_ns


@compiled
def write_due(
    fleet: Fleet, number: int, packet_id: int, sent_ns: int, position: int, sent: Sent
) -> int:
    publisher = fleet.publishers[number]
    sent.deliveries = publisher.deliveries
    sent.body_bytes = body_apart(fleet, number, publisher.sequence)
    return write_message(
        fleet, number, publisher.sequence, publisher.due_ns, sent_ns, packet_id, 0, 0, position
    )


@compiled
def write_message(
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
    """Write a PUBLISH, or only its head if the body is sent separately; return the new position."""
    publisher = fleet.publishers[number]
    group = fleet.groups[fleet.devices[publisher.device].group]
    out = fleet.out
    size = _size_of(fleet, publisher, group, sequence)
    outside_bytes = group.outside_bytes
    payload = mqtt.write_publish(
        out,
        position,
        dup << 3 | group.qos << 1 | group.retain,
        fleet.topics[fleet.topic_ends[number] : fleet.topic_ends[number + 1]],
        packet_id,
        group.version,
        fleet.properties[group.property_first : group.property_end],
        size - outside_bytes,
    )
    payload -= outside_bytes
    header_bytes = HEADER_BYTES if size >= HEADER_BYTES else SHORT_BYTES
    extra = size - header_bytes
    crc = counting.body_crc(fleet, group, extra)
    body = payload + header_bytes
    if group.body_apart:
        size = HEADER_BYTES
    elif extra > 0:
        copy_bytes(out, body, fleet.body, group.body_first, extra)
    if group.place_end > group.place_first:
        device = publisher.stream - group.first_stream
        wall_ms = (intended_ns + fleet.run.wall_ns) // 1_000_000
        drawn = _chance(fleet.run.seed, publisher.stream, sequence)
        template = fleet.template[group.place_first : group.place_end]
        fill_template(out, body, template, device, sequence, wall_ms, drawn)
        crc = crc32(0, out, body, body + extra)
    if group.header_place == NOWHERE:
        return int(payload + size)
    run_tag, stream = fleet.run.run_tag, publisher.stream
    if size < HEADER_BYTES:
        since_ns, offset_ns = intended_ns - fleet.program[0].clock_ns, sent_ns - intended_ns
        stamp_short(out, payload, run_tag, stream, sequence, since_ns, offset_ns, crc, copy)
        return int(payload + size)
    stamp(out, payload, run_tag, stream, sequence, intended_ns, sent_ns, crc, copy)
    if group.header_place != IN_FRONT:
        move_out(out, payload, group.header_place)
    return int(payload + size)


@compiled
def _size_of(fleet: Fleet, publisher: Publisher, group: GroupRecord, sequence: int) -> int:
    """Return the size of a message's payload, the same each time it is written."""
    size = group.size_least
    if group.size_most > size:
        drawn = _chance(fleet.run.seed, publisher.stream, sequence)
        size += drawn % (group.size_most - size + 1)
    return int(size)


@compiled
def body_apart(fleet: Fleet, number: int, sequence: int) -> int:
    """Return the bytes of `body` that must follow the head of a message; 0 if `out` has them."""
    publisher = fleet.publishers[number]
    group = fleet.groups[fleet.devices[publisher.device].group]
    if not group.body_apart:
        return 0
    return int(_size_of(fleet, publisher, group, sequence) - HEADER_BYTES)


@compiled
def _chance(seed: int, stream: int, sequence: int) -> int:
    """Return 32 random bits of a message, the same each time it is written."""
    return int(random_unit(seed ^ _SALT_CONTENT, stream, sequence) * 4294967296.0)


@compiled
def on_sent(fleet: Fleet, row: int, sent: Sent, phase: int, sent_ns: int) -> None:
    pass


@compiled
def on_unsent(fleet: Fleet, sent: Sent) -> None:
    pass


@compiled
def write_again(fleet: Fleet, row: int, packet_id: int, dup: int, copy: int, position: int) -> int:
    device = fleet.devices[row]
    message = fleet.window[packet_id - 1, device.sender]
    number, sequence, sent_ns = device.publisher, message.sequence, message.sent_ns
    return write_message(
        fleet, number, sequence, message.intended_ns, sent_ns, packet_id, dup, copy, position
    )


@compiled
def on_return(fleet: Fleet, row: int) -> None:
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
    """Write again the messages that were unacknowledged when the connection broke.

    `slots[:count]` are those of `redelivery_order`. If the broker lost the session, messages are
    sent as new ones, and those that it had accepted are given up. The payload is marked as a copy
    if a receiver may get both. Return (slots handled, bytes written to `out`, bytes of `body` that
    must follow); fewer slots than `count` if `out` is full or a body must follow.
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
        packet_id = slots[index] + 1
        message = fleet.window[slots[index], device.sender]
        if AWAY < device.returned_ns <= message.sent_ns:
            continue  # it was first sent on this connection
        if message.awaits != PUBCOMP:
            copy = 0
            if message.awaits == PUBACK or not session_present:
                copy = min(message.copies + 1, COPIES_MOST)
                message.copies = copy
            position = handlers.write_again(fleet, row, packet_id, dup, copy, position)
            if group.body_apart:
                body_bytes = body_apart(fleet, device.publisher, message.sequence)
                return index + 1, position, body_bytes
        elif session_present:
            position = mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
        else:
            _give_up(fleet, row, packet_id)
            position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)[1]
    return count, position, 0


@compiled
def _give_up(fleet: Fleet, row: int, packet_id: int) -> None:
    """End a handshake that was lost with the session."""
    device = fleet.devices[row]
    phase = phase_of(fleet.run, fleet.window[packet_id - 1, device.sender].intended_ns)
    fleet.counters[device.group, phase].given_up += 1
    in_flight.release(fleet, device.sender, packet_id)
    fleet.totals.in_flight -= 1


@compiled
def give_up_all(fleet: Fleet, row: int) -> None:
    """End all handshakes of a device, whose messages are not sent again."""
    sender = fleet.devices[row].sender
    for slot in range(fleet.senders[sender].cursor):
        if fleet.window[slot, sender].awaits != in_flight.FREE:
            _give_up(fleet, row, slot + 1)
