"""The hot path of the supply chain: drivers begin interactions, event handlers carry them on.

`begin_interactions` writes what a driver owes, as `traffic.fill_batch` does for other cases, and
`settle_interactions` records what was really sent. `receive` takes what a handler's connection
got: a message is checked, accounted for and answered by the messages that it causes, on the same
connection and in the same step. Nothing here waits for a moment; a message leaves because another
one came.

    input accepted ── action of its type ── outputs, each with a slot of the in-flight window
                          │                     └ no slot: the note waits in line for PUBACKs
                          └ join: offers wait until the call has all of them

A transacted input is acknowledged when every transacted output is (`transactions`), any other at
once. At most once each and at least once together: MQTT has no unit of both.

Arrays beside those of `traffic` (int64 unless said otherwise):

    types         (19, TYPE_FIELDS)       one row a message type
    outputs       (n,)                    types that a type causes, end to end
    roles         (devices, ROLE_FIELDS)  what a device is
    bases         (devices, 19)           first accounting pair of a type at a device, -1 for none
    sequences     (streams,)              next sequence of each stream sent by this worker
    offered       (n,)                    product families of each supplier, end to end
    answers       (families,)             suppliers that offer a family
    terms         (n, 3)                  selector terms: term, start, end in `term_bytes` (uint8)
    topics, topic_ends, properties, property_ends   by destination; bytes are uint8
    joins         as in joins.py
    waiting       (n, NOTE_FIELDS)        notes whose outputs wait for the window
    transactions  (n, TRANSACTION_FIELDS)
    causes        (senders, window, 2)    type and transaction of each message under way
    seen          (destinations, SEEN_FIELDS)   counts of the window's interactions, and of all
    begins        (2, 7)                  by interaction: begun behind schedule, begun in the window
    state         (STATE_FIELDS,)
    note          (2, NOTE_FIELDS)        scratch
    begun         (BATCH_LIMIT, 3)        stream, destination and deliveries of a batch's messages
"""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.mqtt import kernels as mqtt
from loadgen.mqtt.in_flight import (
    accept_qos2,
    acquire,
    on_puback,
    on_pubcomp,
    on_pubrec,
    release_qos2,
)
from loadgen.specjms.joins import COMPLETE, FULL, join_offer
from loadgen.specjms.trailer import (
    FAMILY,
    INTENDED_NS,
    INTERACTION,
    LINK,
    NEXT,
    NOTE_FIELDS,
    NUMBER,
    PLACE,
    PRICE,
    SIZE_CLASS,
    SUPPLIER_PLACE,
    SUPPLIERS,
    TRAILER_BYTES,
    TRANSACTION,
    TYPE,
    read_note,
    write_note,
)
from loadgen.workload import traffic
from loadgen.workload.accounting import DUPLICATE, LATE, account
from loadgen.workload.pacer import DUE_NS, LOAD_NS, SEQUENCE, STREAM, advance, random_unit
from loadgen.workload.payload import (
    HEADER_BYTES,
    crc32,
    is_intact,
    read_i64,
    read_u32,
    send_offset_ns,
    stamp,
)
from loadgen.workload.traffic import (
    BATCH_DUE_NS,
    BATCH_END,
    BATCH_LOAD_NS,
    BATCH_PACKET_ID,
    BATCH_SEQUENCE,
    BROKEN,
    C_ACKNOWLEDGED,
    C_CORRUPT,
    C_DUPLICATED,
    C_EXPECTED,
    C_FOREIGN,
    C_OUT_OF_ORDER,
    C_RECEIVED,
    C_RECEIVED_BYTES,
    C_SENT,
    C_SENT_BYTES,
    END_NS,
    EXPECTED,
    FLAGS,
    IN_FLIGHT,
    MEASURE,
    MEASURE_NS,
    PACKET_LIMIT,
    PUBLISHER,
    QOS2,
    RECEIVED,
    REFUSED_PACKET,
    RUN_TAG,
    S_ACKNOWLEDGE,
    S_END_TO_END,
    S_SEND_DELAY,
    S_TRANSIT,
    SEED,
    SENDER,
    SENT,
    VERSION,
    WINDOW_FULL,
    WRITTEN_NS,
    phase_of,
    push_event,
    record,
    requeue,
    room_for_events,
    slot_of,
)

__all__ = ["begin_interactions", "receive", "settle_interactions"]

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint32]
Records = npt.NDArray[np.void]

# Columns of `types`.
T_QOS = 0
T_TRANSACTED = 1  # 1 when it counts for the transaction of what caused it
T_KIND = 2  # kind of the location it goes to, or ALL or FAMILIES
T_GROUP = 3  # row of its counters, -1 when its interaction is off
T_INTERACTION = 4
T_STREAM_FIRST = 5
T_STREAMS = 6
T_PRODUCERS = 7
T_FIXED = 8  # 1 when each producer sends to one destination only
T_DESTINATION = 9  # number of its first destination
T_DELIVERIES = 10  # consumers of each message, 0 where the family decides
T_SIZES = 11  # and the two columns behind it: payload bytes by size class
T_OUTPUT_FIRST = 14
T_OUTPUTS = 15
T_HELD = 16  # transacted outputs for which the acknowledgement of the input waits
T_ACTION = 17
T_ORDERED = 18  # 1 when one consumer receives all of a stream, so that order means something
T_BEGINS = 19  # 1 when it begins an interaction
T_MOST = 20  # bytes that no PUBLISH of the type exceeds
TYPE_FIELDS = 21

ALL, FAMILIES = -1, -2
NO_ACTION, MAKE_OFFER, JOIN_OFFERS = 0, 1, 2

# Columns of `roles`.
R_PLACE = 0  # number of the device's location
R_PRODUCER = 1  # number among the producers of what it sends
R_FIRST = 2  # type that a driver begins with, -1 for a handler
R_FAMILY_FIRST = 3
R_FAMILIES = 4
R_TERM_FIRST = 5
R_TERMS = 6
R_WAIT_HEAD = 7
R_WAIT_TAIL = 8
R_LATE_NS = 9  # a driver that sends later than this missed its time
R_CENTER = 10  # distribution centre of a supermarket
R_HEADQUARTERS = 11
ROLE_FIELDS = 12

# Columns of `transactions`.
X_OPEN = 0  # outputs not yet acknowledged
X_PACKET_ID = 1
X_ANSWER = 2
X_LINK = 3
TRANSACTION_FIELDS = 4

# Columns of `seen`: of interactions begun in the window, then of the whole run. A row is as long as
# a line of the processor's cache, so that the second account of a message costs next to nothing.
SEEN_SENT, SEEN_EXPECTED, SEEN_RECEIVED, SEEN_DUPLICATED, SEEN_SLOW = 0, 1, 2, 3, 4
SEEN_ALL_SENT, SEEN_ALL_EXPECTED, SEEN_ALL_RECEIVED = 5, 6, 7
SEEN_FIELDS = 8

# Rows of `begins`.
BEGUN_LATE, BEGUN_INSIDE = 0, 1

# Entries of `state`.
FREE_WAITING = 0
FREE_TRANSACTION = 1
CHECKED = 2  # messages until the next one is checked
CHECK_EVERY = 3
ORDER = 4  # grows with each message sent, as the in-flight window wants it
DISCARDED = 5  # deliveries of the window that a selector at the receiver refused
DISCARDED_BYTES = 6
CALLS_DROPPED = 7  # offers that found no place to wait in
SLOW_NS = 8
SMALL_PERCENT = 9
MEDIUM_PERCENT = 10
WAITED = 11  # messages that had to wait for the window
DUPLICATED = 12  # deliveries of the whole run that came again, and that came too late
OUT_OF_ORDER = 13
STATE_FIELDS = 16

_FIXED_HEADER_BYTES = 5
_SALT_FAMILY = 0x5EED
_SALT_PRICE = 0xB1D
_PRICES = 1_000_000
_NONE = -1
_MQTT_5 = 5
_USER_PROPERTY = 0x26
_QUOTA_EXCEEDED = 0x97


# --- writing -----------------------------------------------------------------------------------


@compiled
def _variable(out: Bytes, position: int, value: int) -> int:
    """Write a variable byte integer (1.5.5); the position after it."""
    while value >= 0x80:
        out[position] = value & 0x7F | 0x80
        position += 1
        value >>= 7
    out[position] = value
    return position + 1


@compiled
def _route(types: Table, note: Numbers, number: int) -> int:
    """Destination of an output, counted from the first one of its type."""
    kind = types[number, T_KIND]
    if kind >= 0:
        return int(note[PLACE + kind])
    return int(note[FAMILY]) if kind == FAMILIES else 0


@compiled
def _stream(types: Table, roles: Table, number: int, destination: int, connection: int) -> int:
    producer = roles[connection, R_PRODUCER]
    if types[number, T_FIXED] == 0:
        producer += destination * types[number, T_PRODUCERS]
    return int(types[number, T_STREAM_FIRST] + producer)


@compiled
def _write_message(
    note: Numbers,
    number: int,
    destination: int,
    stream: int,
    sequence: int,
    packet_id: int,
    sent_ns: int,
    run: Table,
    types: Table,
    topics: Bytes,
    topic_ends: Table,
    properties: Bytes,
    property_ends: Table,
    body: Bytes,
    body_crc: Table,
    out: Bytes,
    position: int,
) -> int:
    """Write one whole PUBLISH of a type; the position after it."""
    place = types[number, T_DESTINATION] + destination
    topic_start, topic_end = topic_ends[place], topic_ends[place + 1]
    property_start, property_end = property_ends[place], property_ends[place + 1]
    property_bytes = property_end - property_start
    qos = types[number, T_QOS]
    size = types[number, T_SIZES + note[SIZE_CLASS]]
    length = 2 + topic_end - topic_start + size
    if qos > 0:
        length += 2
    if run[VERSION] == _MQTT_5:
        length += 1 + property_bytes
        if property_bytes >= 0x80:
            length += 1
    out[position] = mqtt.PUBLISH << 4 | qos << 1
    position = _variable(out, position + 1, length)
    out[position] = (topic_end - topic_start) >> 8
    out[position + 1] = (topic_end - topic_start) & 0xFF
    position += 2
    out[position : position + topic_end - topic_start] = topics[topic_start:topic_end]
    position += topic_end - topic_start
    if qos > 0:
        out[position] = packet_id >> 8
        out[position + 1] = packet_id & 0xFF
        position += 2
    if run[VERSION] == _MQTT_5:
        position = _variable(out, position, property_bytes)
        out[position : position + property_bytes] = properties[property_start:property_end]
        position += property_bytes
    filler = size - HEADER_BYTES - TRAILER_BYTES
    trailer = position + size - TRAILER_BYTES
    out[position + HEADER_BYTES : trailer] = body[:filler]
    write_note(out, trailer, note, number)
    crc = crc32(body_crc[filler], out, trailer, trailer + TRAILER_BYTES)
    stamp(out, position, run[RUN_TAG], stream, sequence, note[INTENDED_NS], sent_ns, crc)
    return int(position + size)


@compiled
def _count_sent(
    group: int,
    phase: int,
    place: int,
    deliveries: int,
    size_bytes: int,
    totals: Table,
    counters: Table,
    seen: Table,
) -> None:
    counters[group, phase, C_SENT] += 1
    counters[group, phase, C_SENT_BYTES] += size_bytes
    counters[group, phase, C_EXPECTED] += deliveries
    totals[SENT] += 1
    totals[EXPECTED] += deliveries
    seen[place, SEEN_ALL_SENT] += 1
    seen[place, SEEN_ALL_EXPECTED] += deliveries
    if phase == MEASURE:
        seen[place, SEEN_SENT] += 1
        seen[place, SEEN_EXPECTED] += deliveries


# --- handlers ----------------------------------------------------------------------------------


@compiled
def _send_outputs(
    note: Numbers,
    connection: int,
    now_ns: int,
    connections: Table,
    run: Table,
    totals: Table,
    counters: Table,
    senders: Records,
    window: Records,
    types: Table,
    outputs: Numbers,
    roles: Table,
    sequences: Numbers,
    topics: Bytes,
    topic_ends: Table,
    properties: Bytes,
    property_ends: Table,
    causes: Table,
    seen: Table,
    state: Numbers,
    body: Bytes,
    body_crc: Table,
    out: Bytes,
    position: int,
) -> tuple[int, bool]:
    """Send what is left of a note's outputs: (position, whether all are sent).

    Stops where the window of the connection is full; NEXT tells where to go on.
    """
    number = note[TYPE]
    row = connections[connection, SENDER]
    phase = phase_of(run, note[INTENDED_NS])
    while note[NEXT] < types[number, T_OUTPUTS]:
        output = outputs[types[number, T_OUTPUT_FIRST] + note[NEXT]]
        destination = _route(types, note, output)
        stream = _stream(types, roles, output, destination, connection)
        packet_id = 0
        qos = types[output, T_QOS]
        if qos > 0:
            state[ORDER] += 1
            packet_id = acquire(senders, window, row, qos, state[ORDER], note[INTENDED_NS], now_ns)
            if packet_id == 0:
                return position, False
            totals[IN_FLIGHT] += 1
            causes[row, packet_id - 1, 0] = output
            causes[row, packet_id - 1, 1] = _NONE
            if types[output, T_TRANSACTED]:
                causes[row, packet_id - 1, 1] = note[TRANSACTION]
        before = position
        position = _write_message(
            note,
            output,
            destination,
            stream,
            sequences[stream],
            packet_id,
            now_ns,
            run,
            types,
            topics,
            topic_ends,
            properties,
            property_ends,
            body,
            body_crc,
            out,
            position,
        )
        sequences[stream] += 1
        _count_sent(
            types[output, T_GROUP],
            phase,
            types[output, T_DESTINATION] + destination,
            types[output, T_DELIVERIES],
            position - before,
            totals,
            counters,
            seen,
        )
        note[NEXT] += 1
    return position, True


@compiled
def _line_up(
    note: Numbers,
    connection: int,
    totals: Table,
    roles: Table,
    waiting: Table,
    state: Numbers,
) -> bool:
    """Put a note at the end of the connection's line; False when there is no place left.

    While it waits it is one delivery to be expected: the run must not be thought to be over.
    """
    row = state[FREE_WAITING]
    if row == _NONE:
        return False
    state[FREE_WAITING] = waiting[row, LINK]
    state[WAITED] += 1
    totals[EXPECTED] += 1
    waiting[row, :] = note
    waiting[row, LINK] = _NONE
    tail = roles[connection, R_WAIT_TAIL]
    if tail == _NONE:
        roles[connection, R_WAIT_HEAD] = row
    else:
        waiting[tail, LINK] = row
    roles[connection, R_WAIT_TAIL] = row
    return True


@compiled
def _leave_line(
    connection: int, totals: Table, roles: Table, waiting: Table, state: Numbers
) -> None:
    totals[EXPECTED] -= 1
    row = roles[connection, R_WAIT_HEAD]
    following = waiting[row, LINK]
    roles[connection, R_WAIT_HEAD] = following
    if following == _NONE:
        roles[connection, R_WAIT_TAIL] = _NONE
    waiting[row, LINK] = state[FREE_WAITING]
    state[FREE_WAITING] = row


@compiled
def _prepare(
    note: Numbers,
    connection: int,
    run: Table,
    types: Table,
    roles: Table,
    joins: Table,
    state: Numbers,
) -> bool:
    """What a handler does before it sends; False when this message causes nothing (yet)."""
    action = types[note[TYPE], T_ACTION]
    if action == MAKE_OFFER:
        supplier = roles[connection, R_PLACE]
        note[SUPPLIER_PLACE] = supplier
        unit = random_unit(run[SEED] ^ _SALT_PRICE, supplier, note[NUMBER])
        note[PRICE] = np.int64(unit * _PRICES)
    elif action == JOIN_OFFERS:
        outcome, supplier = join_offer(
            joins, note[NUMBER], note[SUPPLIERS], note[PRICE], note[SUPPLIER_PLACE]
        )
        if outcome != COMPLETE:
            if outcome == FULL:
                state[CALLS_DROPPED] += 1
            return False
        note[SUPPLIER_PLACE] = supplier
    return bool(types[note[TYPE], T_OUTPUTS] > 0)


@compiled
def _selected(
    buffer: Bytes,
    start: int,
    end: int,
    connection: int,
    roles: Table,
    terms: Table,
    term_bytes: Bytes,
) -> bool:
    """Whether the properties buffer[start:end] of a PUBLISH satisfy the device's selector."""
    first = roles[connection, R_TERM_FIRST]
    last = first + roles[connection, R_TERMS]
    wanted = _NONE
    held = True
    for row in range(first, last):
        if terms[row, 0] != wanted:
            if not held:
                return False
            wanted = terms[row, 0]
            held = False
        if not held:
            held = _has_property(buffer, start, end, term_bytes, terms[row, 1], terms[row, 2])
    return held


@compiled
def _u16(buffer: Bytes, position: int) -> int:
    return int(np.int64(buffer[position])) << 8 | int(np.int64(buffer[position + 1]))


@compiled
def _has_property(
    buffer: Bytes, start: int, end: int, wanted: Bytes, wanted_start: int, wanted_end: int
) -> bool:
    """Whether a user property (2.2.2.2) is among the properties, byte for byte."""
    position = start
    while position < end:
        name = int(np.int64(buffer[position]))
        if name == _USER_PROPERTY and position + 5 <= end:
            key = _u16(buffer, position + 1)
            value_at = position + 3 + key
            if value_at + 2 > end:
                return False
            value = _u16(buffer, value_at)
            following = value_at + 2 + value
            if following > end:
                return False
            if following - position == wanted_end - wanted_start:
                same = True
                for offset in range(wanted_end - wanted_start):
                    if buffer[position + offset] != wanted[wanted_start + offset]:
                        same = False
                        break
                if same:
                    return True
            position = following
        elif name == 0x01:
            position += 2
        elif name == 0x02:
            position += 5
        elif name == 0x23:
            position += 3
        elif name == 0x0B:
            position += 1
            while position < end and buffer[position] >= 0x80:
                position += 1
            position += 1
        elif (name == 0x03 or name == 0x08 or name == 0x09) and position + 3 <= end:
            position += 3 + _u16(buffer, position + 1)
        else:
            return False
    return False


@compiled
def _pair_of(
    note: Numbers,
    number: int,
    stream: int,
    connection: int,
    types: Table,
    roles: Table,
    bases: Table,
    offered: Numbers,
) -> int:
    """Accounting pair of a message at a device: -1 for a foreign one, -2 for another's family."""
    base = bases[connection, number]
    offset = stream - types[number, T_STREAM_FIRST]
    if base < 0 or offset < 0 or offset >= types[number, T_STREAMS]:
        return -1
    kind = types[number, T_KIND]
    if kind >= 0:
        if note[PLACE + kind] != roles[connection, R_PLACE]:
            return -1
        return int(base + offset)
    if kind == ALL:
        return int(base + offset)
    # A supplier has the streams of its own families only, in the order in which it offers them.
    producers = types[number, T_PRODUCERS]
    first = roles[connection, R_FAMILY_FIRST]
    for place in range(roles[connection, R_FAMILIES]):
        if offered[first + place] == note[FAMILY]:
            return int(base + place * producers + offset % producers)
    return -2


@compiled
def _acknowledge(
    connection: int,
    packet_id: int,
    sent_ns: int,
    now_ns: int,
    connections: Table,
    run: Table,
    totals: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
    window: Records,
    schedule: Table,
    heap: Table,
    types: Table,
    causes: Table,
    transactions: Table,
    state: Numbers,
    out: Bytes,
    position: int,
) -> int:
    """An output is acknowledged for good; with the last of its transaction, so is the input."""
    row = connections[connection, SENDER]
    slot = packet_id - 1
    group = types[causes[row, slot, 0], T_GROUP]
    phase = phase_of(run, window[row, slot]["intended_ns"])
    counters[group, phase, C_ACKNOWLEDGED] += 1
    totals[IN_FLIGHT] -= 1
    record(histograms, stats, slot_of(group, S_ACKNOWLEDGE, phase), now_ns - sent_ns)
    transaction = causes[row, slot, 1]
    if transaction != _NONE:
        transactions[transaction, X_OPEN] -= 1
        if transactions[transaction, X_OPEN] == 0:
            answer = transactions[transaction, X_ANSWER]
            input_id = transactions[transaction, X_PACKET_ID]
            position = mqtt.write_ack(out, position, answer, input_id)
            transactions[transaction, X_LINK] = state[FREE_TRANSACTION]
            state[FREE_TRANSACTION] = transaction
    if connections[connection, FLAGS] & WINDOW_FULL:
        connections[connection, FLAGS] &= ~WINDOW_FULL
        publisher = connections[connection, PUBLISHER]
        requeue(connection, publisher, connections, run, totals, schedule, heap)
    return position


@compiled
def receive(
    buffer: Bytes,
    start: int,
    end: int,
    now_ns: int,
    connection: int,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    pairs: Table,
    holes: Table,
    hole_state: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
    senders: Records,
    window: Records,
    received_ids: Bytes,
    held_ids: Table,
    schedule: Table,
    heap: Table,
    events: Table,
    control: Bytes,
    out: Bytes,
    out_position: int,
    types: Table,
    outputs: Numbers,
    roles: Table,
    bases: Table,
    sequences: Numbers,
    offered: Numbers,
    terms: Table,
    term_bytes: Bytes,
    topics: Bytes,
    topic_ends: Table,
    properties: Bytes,
    property_ends: Table,
    joins: Table,
    waiting: Table,
    transactions: Table,
    causes: Table,
    seen: Table,
    state: Numbers,
    notes: Table,
    body: Bytes,
    body_crc: Table,
) -> tuple[int, int]:
    """Handle every whole packet in buffer[start:end] that `connection` received at `now_ns`.

    As `traffic.receive`, and with the messages that the received ones cause written to `out`.
    `out` must hold `layout.out_bytes`. Returns (where the first incomplete packet begins, the new
    `out_position`).
    """
    position = start
    version = run[VERSION]
    note = notes[0]
    while position < end:
        status, first_byte, body_at, packet_end = mqtt.frame(
            buffer, position, end, run[PACKET_LIMIT] - _FIXED_HEADER_BYTES
        )
        if status == mqtt.INCOMPLETE:
            break
        if status != mqtt.OK:
            reason = 0x95 if status == mqtt.TOO_LARGE else 0x81
            push_event(totals, events, BROKEN, connection, reason, now_ns)
            return end, out_position
        kind = first_byte >> 4
        if kind == mqtt.PUBLISH:
            status, _, topic_end, packet_id, payload = mqtt.publish_fields(
                buffer, first_byte, body_at, packet_end, version
            )
            if status != mqtt.OK:
                push_event(totals, events, BROKEN, connection, 0x81, now_ns)
                return end, out_position
            qos = (first_byte >> 1) & 3
            answer = mqtt.PUBACK if qos == 1 else mqtt.PUBREC
            asked = answer if qos > 0 else 0
            fresh = True
            if qos == 2:
                row = connections[connection, QOS2]
                fresh = row >= 0 and accept_qos2(received_ids, row, packet_id)
            held = False
            if fresh:
                properties_at = payload
                if roles[connection, R_TERMS] > 0:
                    properties_at = topic_end + (2 if qos > 0 else 0)
                    while properties_at < payload and buffer[properties_at] >= 0x80:
                        properties_at += 1
                    properties_at += 1
                out_position, held = _take_message(
                    buffer,
                    properties_at,
                    payload,
                    packet_end,
                    packet_end - position,
                    now_ns,
                    connection,
                    packet_id,
                    asked,
                    note,
                    connections,
                    run,
                    totals,
                    pairs,
                    holes,
                    hole_state,
                    counters,
                    histograms,
                    stats,
                    senders,
                    window,
                    events,
                    out,
                    out_position,
                    types,
                    outputs,
                    roles,
                    bases,
                    sequences,
                    offered,
                    terms,
                    term_bytes,
                    topics,
                    topic_ends,
                    properties,
                    property_ends,
                    joins,
                    waiting,
                    transactions,
                    causes,
                    seen,
                    state,
                    body,
                    body_crc,
                )
            if qos > 0 and not held:
                out_position = mqtt.write_ack(out, out_position, answer, packet_id)
        elif mqtt.PUBACK <= kind <= mqtt.PUBCOMP:
            status, packet_id, reason = mqtt.ack_fields(buffer, body_at, packet_end)
            if status != mqtt.OK:
                push_event(totals, events, BROKEN, connection, 0x81, now_ns)
                return end, out_position
            row = connections[connection, SENDER]
            if kind == mqtt.PUBREL:
                if connections[connection, QOS2] >= 0:
                    release_qos2(received_ids, connections[connection, QOS2], packet_id)
                out_position = mqtt.write_ack(out, out_position, mqtt.PUBCOMP, packet_id)
            elif row >= 0:
                sent_ns = 0
                if kind == mqtt.PUBACK:
                    status, sent_ns = on_puback(senders, window, row, packet_id)
                elif kind == mqtt.PUBREC:
                    status, sent_ns = on_pubrec(senders, window, row, packet_id, reason)
                    if reason < 0x80:
                        out_position = mqtt.write_ack(out, out_position, mqtt.PUBREL, packet_id)
                else:
                    status, sent_ns = on_pubcomp(senders, window, row, packet_id)
                if status == mqtt.OK and (kind != mqtt.PUBREC or reason >= 0x80):
                    out_position = _acknowledge(
                        connection,
                        packet_id,
                        sent_ns,
                        now_ns,
                        connections,
                        run,
                        totals,
                        counters,
                        histograms,
                        stats,
                        window,
                        schedule,
                        heap,
                        types,
                        causes,
                        transactions,
                        state,
                        out,
                        out_position,
                    )
                    while roles[connection, R_WAIT_HEAD] != _NONE:
                        waiter = waiting[roles[connection, R_WAIT_HEAD]]
                        out_position, done = _send_outputs(
                            waiter,
                            connection,
                            now_ns,
                            connections,
                            run,
                            totals,
                            counters,
                            senders,
                            window,
                            types,
                            outputs,
                            roles,
                            sequences,
                            topics,
                            topic_ends,
                            properties,
                            property_ends,
                            causes,
                            seen,
                            state,
                            body,
                            body_crc,
                            out,
                            out_position,
                        )
                        if not done:
                            break
                        _leave_line(connection, totals, roles, waiting, state)
                if reason >= 0x80 and room_for_events(totals, control, 0):
                    push_event(totals, events, REFUSED_PACKET, connection, reason, now_ns)
        else:
            # Whatever is not a message is the same for every case.
            after, out_position = traffic.receive(
                buffer,
                position,
                packet_end,
                now_ns,
                connection,
                connections,
                groups,
                run,
                totals,
                pairs,
                holes,
                hole_state,
                counters,
                histograms,
                stats,
                senders,
                window,
                received_ids,
                held_ids,
                schedule,
                heap,
                events,
                control,
                topics,
                topic_ends,
                out,
                out_position,
            )
            if after == position:
                return position, out_position
        position = packet_end
    return position, out_position


@compiled
def _discard(intended_ns: int, packet_bytes: int, run: Table, state: Numbers) -> None:
    """Count what a selector refused by the rule of what is received: by when it was intended."""
    if phase_of(run, intended_ns) == MEASURE:
        state[DISCARDED] += 1
        state[DISCARDED_BYTES] += packet_bytes


@compiled
def _take_message(
    buffer: Bytes,
    properties_at: int,
    start: int,
    end: int,
    packet_bytes: int,
    now_ns: int,
    connection: int,
    packet_id: int,
    answer: int,
    note: Numbers,
    connections: Table,
    run: Table,
    totals: Table,
    pairs: Table,
    holes: Table,
    hole_state: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
    senders: Records,
    window: Records,
    events: Table,
    out: Bytes,
    position: int,
    types: Table,
    outputs: Numbers,
    roles: Table,
    bases: Table,
    sequences: Numbers,
    offered: Numbers,
    terms: Table,
    term_bytes: Bytes,
    topics: Bytes,
    topic_ends: Table,
    properties: Bytes,
    property_ends: Table,
    joins: Table,
    waiting: Table,
    transactions: Table,
    causes: Table,
    seen: Table,
    state: Numbers,
    body: Bytes,
    body_crc: Table,
) -> tuple[int, bool]:
    """Check a message, account for it and do what it causes.

    `answer` is the acknowledgement that the message asks for, 0 for none. Returns (position in
    `out`, whether the acknowledgement is withheld until a transaction is through).
    """
    group = connections[connection, traffic.GROUP]
    if end - start < HEADER_BYTES + TRAILER_BYTES or read_u32(buffer, start) != run[RUN_TAG]:
        counters[group, MEASURE, C_FOREIGN] += 1
        return position, False
    if roles[connection, R_TERMS] > 0 and not _selected(
        buffer, properties_at, start, connection, roles, terms, term_bytes
    ):
        _discard(read_i64(buffer, start + 16), packet_bytes, run, state)
        return position, False
    state[CHECKED] -= 1
    if state[CHECKED] <= 0:
        state[CHECKED] = state[CHECK_EVERY]
        if not is_intact(buffer, start, end):
            counters[group, MEASURE, C_CORRUPT] += 1
            return position, False
    read_note(buffer, end - TRAILER_BYTES, note)
    number = note[TYPE]
    if number >= len(types) or types[number, T_GROUP] < 0 or note[SIZE_CLASS] > 2:
        counters[group, MEASURE, C_FOREIGN] += 1
        return position, False
    stream = read_u32(buffer, start + 4)
    pair = _pair_of(note, number, stream, connection, types, roles, bases, offered)
    if pair == -2:
        _discard(read_i64(buffer, start + 16), packet_bytes, run, state)
        return position, False
    if pair < 0:
        counters[group, MEASURE, C_FOREIGN] += 1
        return position, False
    group = types[number, T_GROUP]
    intended_ns = read_i64(buffer, start + 16)
    note[INTENDED_NS] = intended_ns
    phase = phase_of(run, intended_ns)
    place = types[number, T_DESTINATION] + _route(types, note, number)
    outcome = account(pairs, holes, hole_state, pair, read_i64(buffer, start + 8))
    if outcome == DUPLICATE:
        counters[group, phase, C_DUPLICATED] += 1
        state[DUPLICATED] += 1
        if phase == MEASURE:
            seen[place, SEEN_DUPLICATED] += 1
        return position, False
    if outcome == LATE and types[number, T_ORDERED]:
        counters[group, phase, C_OUT_OF_ORDER] += 1
        state[OUT_OF_ORDER] += 1
    held = False
    waited_ns = now_ns - intended_ns
    transit_ns = waited_ns - send_offset_ns(buffer, start)
    # Outputs are expected before their input is received, so that at no moment all that is
    # expected seems to be there while an interaction still goes on.
    if _prepare(note, connection, run, types, roles, joins, state):
        if answer and types[number, T_HELD] > 0:
            held = True
            transaction = state[FREE_TRANSACTION]
            state[FREE_TRANSACTION] = transactions[transaction, X_LINK]
            transactions[transaction, X_OPEN] = types[number, T_HELD]
            transactions[transaction, X_PACKET_ID] = packet_id
            transactions[transaction, X_ANSWER] = answer
            note[TRANSACTION] = transaction
        done = False
        if roles[connection, R_WAIT_HEAD] == _NONE:
            position, done = _send_outputs(
                note,
                connection,
                now_ns,
                connections,
                run,
                totals,
                counters,
                senders,
                window,
                types,
                outputs,
                roles,
                sequences,
                topics,
                topic_ends,
                properties,
                property_ends,
                causes,
                seen,
                state,
                body,
                body_crc,
                out,
                position,
            )
        if not done and not _line_up(note, connection, totals, roles, waiting, state):
            # Nothing may be dropped unseen: without the connection the run is not valid.
            push_event(totals, events, BROKEN, connection, _QUOTA_EXCEEDED, now_ns)
    counters[group, phase, C_RECEIVED] += 1
    counters[group, phase, C_RECEIVED_BYTES] += packet_bytes
    totals[RECEIVED] += 1
    record(histograms, stats, slot_of(group, S_END_TO_END, phase), waited_ns)
    record(histograms, stats, slot_of(group, S_TRANSIT, phase), transit_ns)
    seen[place, SEEN_ALL_RECEIVED] += 1
    if phase == MEASURE:
        seen[place, SEEN_RECEIVED] += 1
        # A driver that sends late must not hide it: its messages count from when they were due.
        delivery_ns = waited_ns if types[number, T_BEGINS] else transit_ns
        if delivery_ns > state[SLOW_NS]:
            seen[place, SEEN_SLOW] += 1
    return position, held


# --- drivers -----------------------------------------------------------------------------------


@compiled
def _new_note(
    note: Numbers,
    number: int,
    connection: int,
    interaction_number: int,
    intended_ns: int,
    run: Table,
    types: Table,
    roles: Table,
    answers: Numbers,
    state: Numbers,
) -> None:
    """What a driver decides when an interaction begins; the same for the same number."""
    for field in range(NOTE_FIELDS):
        note[field] = 0
    note[TYPE] = number
    note[INTERACTION] = types[number, T_INTERACTION]
    note[NUMBER] = interaction_number
    note[INTENDED_NS] = intended_ns
    for kind in range(4):
        note[PLACE + kind] = 0xFFFFFFFF
    place = roles[connection, R_PLACE]
    interaction = types[number, T_INTERACTION]
    # A number that tells drivers apart, wherever they run.
    salt = number << 24 ^ roles[connection, R_PRODUCER]
    note[PLACE + 3] = roles[connection, R_HEADQUARTERS]
    if interaction == 2:
        note[PLACE + 1] = place
        unit = random_unit(run[SEED] ^ _SALT_FAMILY, salt, interaction_number)
        note[FAMILY] = min(int(unit * len(answers)), len(answers) - 1)
        note[SUPPLIERS] = answers[note[FAMILY]]
    elif interaction == 1 or interaction == 4 or interaction == 5:
        note[PLACE] = place
        note[PLACE + 1] = roles[connection, R_CENTER]
    percent = 100.0 * random_unit(run[SEED], salt, interaction_number)
    if percent >= state[SMALL_PERCENT] + state[MEDIUM_PERCENT]:
        note[SIZE_CLASS] = 2
    elif percent >= state[SMALL_PERCENT]:
        note[SIZE_CLASS] = 1


@compiled
def begin_interactions(
    publisher: int,
    connection: int,
    now_ns: int,
    sent_ns: int,
    limit: int,
    connections: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    periods_ns: Floats,
    program: Table,
    senders: Records,
    window: Records,
    out: Bytes,
    out_position: int,
    batch: Table,
    types: Table,
    roles: Table,
    sequences: Numbers,
    answers: Numbers,
    topics: Bytes,
    topic_ends: Table,
    properties: Bytes,
    property_ends: Table,
    causes: Table,
    state: Numbers,
    notes: Table,
    begun: Table,
    body: Bytes,
    body_crc: Table,
) -> tuple[int, int]:
    """Write the first messages of the interactions that a driver owes at `now_ns`.

    As `traffic.fill_batch`: at most `limit`, as many as fit; each has a row in `batch` and in
    `begun`. Returns (end of what was written to `out`, messages).
    """
    number = roles[connection, R_FIRST]
    row = connections[connection, SENDER]
    qos = types[number, T_QOS]
    note = notes[1]
    count = 0
    position = out_position
    room = len(out) - types[number, T_MOST]
    while count < limit and position <= room:
        due_ns = schedule[publisher, DUE_NS]
        if due_ns > now_ns or due_ns >= run[END_NS]:
            break
        own = schedule[publisher, SEQUENCE]
        packet_id = 0
        if qos > 0:
            state[ORDER] += 1
            packet_id = acquire(senders, window, row, qos, state[ORDER], due_ns, sent_ns)
            if packet_id == 0:
                connections[connection, FLAGS] |= WINDOW_FULL
                break
            totals[IN_FLIGHT] += 1
            causes[row, packet_id - 1, 0] = number
            causes[row, packet_id - 1, 1] = _NONE
        _new_note(
            note,
            number,
            connection,
            schedule[publisher, STREAM] << 32 | own,
            due_ns,
            run,
            types,
            roles,
            answers,
            state,
        )
        destination = _route(types, note, number)
        stream = _stream(types, roles, number, destination, connection)
        position = _write_message(
            note,
            number,
            destination,
            stream,
            sequences[stream],
            packet_id,
            sent_ns,
            run,
            types,
            topics,
            topic_ends,
            properties,
            property_ends,
            body,
            body_crc,
            out,
            position,
        )
        sequences[stream] += 1
        batch[count, BATCH_SEQUENCE] = own
        batch[count, BATCH_DUE_NS] = due_ns
        batch[count, BATCH_LOAD_NS] = schedule[publisher, LOAD_NS]
        batch[count, BATCH_END] = position
        batch[count, BATCH_PACKET_ID] = packet_id
        begun[count, 0] = stream
        begun[count, 1] = types[number, T_DESTINATION] + destination
        deliveries = types[number, T_DELIVERIES]
        begun[count, 2] = deliveries if deliveries > 0 else note[SUPPLIERS]
        count += 1
        advance(schedule, periods_ns, program, publisher, run[SEED])
    return position, count


@compiled
def settle_interactions(
    publisher: int,
    connection: int,
    count: int,
    sent: int,
    sent_ns: int,
    start: int,
    connections: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    senders: Records,
    window: Records,
    counters: Table,
    histograms: Counts,
    stats: Table,
    batch: Table,
    types: Table,
    roles: Table,
    sequences: Numbers,
    seen: Table,
    begins: Table,
    begun: Table,
) -> None:
    """Record the first `sent` of the `count` messages of a batch and take the others back."""
    number = roles[connection, R_FIRST]
    group = types[number, T_GROUP]
    interaction = types[number, T_INTERACTION] - 1
    before = start
    for index in range(sent):
        due_ns = batch[index, BATCH_DUE_NS]
        phase = phase_of(run, due_ns)
        size_bytes = batch[index, BATCH_END] - before
        before = batch[index, BATCH_END]
        _count_sent(
            group, phase, begun[index, 1], begun[index, 2], size_bytes, totals, counters, seen
        )
        record(histograms, stats, slot_of(group, S_SEND_DELAY, phase), sent_ns - due_ns)
        if phase == MEASURE and sent_ns - due_ns > roles[connection, R_LATE_NS]:
            begins[BEGUN_LATE, interaction] += 1
        if run[MEASURE_NS] <= sent_ns < run[END_NS]:
            begins[BEGUN_INSIDE, interaction] += 1
    connections[connection, WRITTEN_NS] = sent_ns
    if sent < count:
        connections[connection, FLAGS] &= ~WINDOW_FULL
        row = connections[connection, SENDER]
        for index in range(sent, count):
            packet_id = batch[index, BATCH_PACKET_ID]
            sequences[begun[index, 0]] -= 1
            if packet_id > 0:
                if types[number, T_QOS] == 1:
                    on_puback(senders, window, row, packet_id)
                else:
                    on_pubrec(senders, window, row, packet_id, 0x80)
                totals[IN_FLIGHT] -= 1
        schedule[publisher, SEQUENCE] = batch[sent, BATCH_SEQUENCE]
        schedule[publisher, DUE_NS] = batch[sent, BATCH_DUE_NS]
        schedule[publisher, LOAD_NS] = batch[sent, BATCH_LOAD_NS]
