"""Sending of the due messages of publishers, in batches.

`send_due` writes the due messages of a publisher to a buffer, and `record_sent` counts those that
the socket took and takes the others back.
"""

from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.arrays import copy_bytes
from loadgen.kernels.attention import mostly_stalled
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import (
    FAILURE,
    S_PUSHED_BACK,
    S_SEND_DELAY,
    count_sent,
    phase_of,
    record,
    slot_of,
)
from loadgen.kernels.crc import crc32
from loadgen.kernels.device import BLOCKED, PUSHED_BACK, WAITING, WINDOW_FULL, Device
from loadgen.kernels.fleet import Fleet, GroupRecord, Sent
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.in_flight import acquire, on_puback, on_pubrec
from loadgen.kernels.pacer import Publisher, advance, clock_of, heap_push, random_unit
from loadgen.kernels.payload import HEADER_BYTES, crc_of_body, stamp
from loadgen.kernels.template import fill_template

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
    fleet: Fleet,
    number: int,
    now_ns: int,
    sent_ns: int,
    limit: int,
    position: int,
    handlers: Handlers,
) -> tuple[int, int]:
    """Write the messages that a publisher has to send at `now_ns`, at most `limit`.

    `sent_ns` goes into the headers. Step the schedule and take packet identifiers; each message
    has a row in `batch`. Set WINDOW_FULL if the window is full. Return (end of the bytes written to
    `out` from `position` on, messages).
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
    fleet: Fleet, device: Device, group: GroupRecord, sequence: int, due_ns: int, sent_ns: int
) -> int:
    """Return a Packet Identifier for the next message; 0 if the window is full or the unit sent."""
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

    `start` is the begin of the batch in the buffer. Messages that are taken back stay due, with the
    same sequence and intended time. PUSHED_BACK stays until no message is unsent.
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
    # Messages that are taken back leave the window.
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
        on_pubrec(fleet.senders, fleet.window, device.sender, packet_id, FAILURE)
    fleet.totals.in_flight -= 1
    if group.unit > 1:
        device.unit_sent -= 1


@compiled
def write_due(
    fleet: Fleet, number: int, packet_id: int, sent_ns: int, position: int, sent: Sent
) -> int:
    publisher = fleet.publishers[number]
    sent.deliveries = fleet.groups[fleet.devices[publisher.device].group].deliveries
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
    """Write a PUBLISH, or only its head if the body is sent separately; return the new position.

    The bytes are the same each time, except for `dup` and `copy` of the payload's header.
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
