"""What the devices of a worker do with bytes: the kernels of the hot path.

A worker keeps all its devices in a handful of arrays. `receive` takes what one connection got,
accounts for every message in it and writes the acknowledgements; `fill_batch` writes what a
publisher owes; `settle_batch` records what was really sent. Bytes and moments come in as
arguments; sockets and clocks are the engine's.

Arrays (all int64 unless said otherwise):

    connections (devices, CONNECTION_FIELDS)   one row a device
    groups      (groups, GROUP_FIELDS)         what the devices of a group share
    totals      (TOTALS,)                      what the worker counts in all, heap size, queues
    run         (RUN_FIELDS,)                  constants and the window of the run
    counters    (groups, PHASES, COUNTERS)     since the last interval
    histograms  (slots, BUCKETS) uint32, stats (slots, 4): count, sum, min, max; a slot is
                (group, series, phase)
    events      (EVENT_LIMIT, EVENT_FIELDS)    what Python must look at; `control` uint8 holds
                the bytes they speak of
"""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.metrics.histogram import bucket_index
from loadgen.metrics.interval import COUNTERS, SERIES
from loadgen.mqtt import kernels as mqtt
from loadgen.mqtt.in_flight import (
    AWAIT_PUBCOMP,
    accept_qos2,
    acquire,
    on_puback,
    on_pubcomp,
    on_pubrec,
    release_qos2,
)
from loadgen.workload.accounting import DUPLICATE, LATE, account
from loadgen.workload.pacer import (
    DUE_NS,
    LOAD_NS,
    SEQUENCE,
    STREAM,
    advance,
    clock_of,
    heap_push,
    random_unit,
)
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

__all__ = [
    "BATCH_LIMIT",
    "CONNECTION_FIELDS",
    "EVENT_FIELDS",
    "EVENT_LIMIT",
    "GROUP_FIELDS",
    "INTENDED_PHASES",
    "RUN_FIELDS",
    "TOTALS",
    "fill_batch",
    "receive",
    "record",
    "redeliver",
    "release_held",
    "requeue",
    "reschedule",
    "settle_batch",
    "slot_of",
]

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint32]
Records = npt.NDArray[np.void]

_SALT_CONTENT = 0x436F6E74  # apart from what draws a message's moment

# Columns of `connections`.
FD = 0
STATE = 1
FLAGS = 2
GROUP = 3
PUBLISHER = 4  # row in the schedule, -1 for none
PAIR_FIRST = 5
STREAM_FIRST = 6
STREAM_COUNT = 7
SENDER = 8  # row in senders and window, -1 with QoS 0
QOS2 = 9  # row in received_ids, -1 without QoS 2
TAIL_BYTES = 10
SYN_NS = 11
TCP_NS = 12
WRITTEN_NS = 13
REQUEST_NS = 14  # when SUBSCRIBE was sent
TARGET = 15
RETURNED_NS = 16  # when the device last came back, 0 while it never was away, AWAY while it is
TAKEN = 17  # distinct messages of the window that the device received
UNIT_SENT = 18  # messages sent of the unit under way
HELD = 19  # acknowledgements withheld
HOLDER = 20  # row in `held_ids`, -1 when every message is acknowledged at once
RESPONSES = (
    21  # where the topics of its responses begin in `topic_ends`, -1 when it answers nothing
)
PINGED_NS = 22  # when the PINGREQ was sent that has no PINGRESP yet, 0 when none waits
CONNECTION_FIELDS = 23

# While a device is away it receives nothing; its CONNACK puts the moment here, because what
# waited for it may come in the same bytes.
AWAY = 1

# Values of STATE.
IDLE = 0
CONNECTING = 1  # SYN sent
AWAIT_CONNACK = 2
CONNECTED = 3
CLOSED = 4
REFUSED = 5  # CONNACK said no

# Bits of FLAGS.
BLOCKED = 1  # the socket takes no more for now
WINDOW_FULL = 2  # as many messages unacknowledged as allowed
STREAMED = 4  # bytes go through an asyncio transport (TLS, WebSocket), not straight to a socket
WAITING = 8  # the publisher is not in the heap
SHARED = 16  # one of several consumers of a queue: order is between them, not of one
LISTED = 32  # the connection is in `ready`, so that it is there once

# Columns of `groups`.
QOS = 0
RETAIN = 1
DELIVERIES = 2
SIZE_LEAST = 3
SIZE_MOST = 4
UNIT = 5
ACKNOWLEDGE_EVERY = 6
FIRST_STREAM = 7
GROUP_FIELDS = 8

# Entries of `totals`. SENT to IN_FLIGHT are mirrored to the live page.
HEAP_SIZE = 0
EVENTS = 1
CONTROL_BYTES = 2
SENT = 3
EXPECTED = 4
RECEIVED = 5
IN_FLIGHT = 6
SCHEDULED = 7  # publishers whose schedule is not over
CONNECTING_COUNT = 8
CONNECTED_COUNT = 9
REARM = 10  # 1 when the heap got an entry outside `pump`
READY = 11  # connections in `ready`, which may have more to read
PUSHED_BACK = 12  # times a publisher had to wait for the socket or the window
TOTALS = 24

# Entries of `run`.
RUN_TAG = 0
VERSION = 1
SEED = 2
MEASURE_NS = 3
END_NS = 4
PACKET_LIMIT = 5  # bytes of a whole packet from the broker
WALL_NS = 6  # CLOCK_REALTIME − CLOCK_MONOTONIC
RUN_FIELDS = 7

# Phase of a counter or slot: that in which the message was intended; connects have their own.
INTENDED_PHASES = ("warmup", "measure", "drain", "connect")
WARMUP, MEASURE, DRAIN, CONNECT_PHASE = 0, 1, 2, 3

# Columns of `events`.
KIND = 0
CONNECTION = 1
VALUE = 2
OFFSET = 3
LENGTH = 4
MOMENT_NS = 5
EVENT_FIELDS = 6
EVENT_LIMIT = 4096
# Values of KIND.
CONTROL_PACKET = 1  # a packet other than PUBLISH and its acknowledgements; bytes in `control`
BROKEN = 2  # the peer broke the protocol; VALUE is the reason code for DISCONNECT
UNSENT = 3  # bytes in `control` must follow what was written
CLOSED_BY_PEER = 4  # VALUE is the errno, 0 for an orderly end
CONNECT_FAILED = 5  # VALUE is the errno
WRITABLE = 6  # a blocked connection takes bytes again
REFUSED_PACKET = 7  # an acknowledgement with a failure reason code, VALUE
UNANSWERED = 8  # a request for whose response the window had no room

# Columns of `batch`: the messages of one write, for the record and for taking them back.
BATCH_SEQUENCE = 0
BATCH_DUE_NS = 1
BATCH_LOAD_NS = 2
BATCH_END = 3
BATCH_PACKET_ID = 4
BATCH_FIELDS = 5
BATCH_LIMIT = 1024

_COLUMN = {name: index for index, name in enumerate(COUNTERS)}
C_SENT = _COLUMN["sent"]
C_SENT_BYTES = _COLUMN["sent_bytes"]
C_EXPECTED = _COLUMN["expected"]
C_RECEIVED = _COLUMN["received"]
C_RECEIVED_BYTES = _COLUMN["received_bytes"]
C_DUPLICATED = _COLUMN["duplicated"]
C_OUT_OF_ORDER = _COLUMN["out_of_order"]
C_CORRUPT = _COLUMN["corrupt"]
C_FOREIGN = _COLUMN["foreign"]
C_ACKNOWLEDGED = _COLUMN["acknowledged"]
C_CONNECTS = _COLUMN["connects"]

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

_REFUSED = 0x80  # any failure reason frees a slot
_FIXED_HEADER_BYTES = 5  # at most (2.1)

STAT_COUNT, STAT_SUM, STAT_MIN, STAT_MAX = 0, 1, 2, 3


@compiled
def slot_of(group: int, series: int, phase: int) -> int:
    """Row in `histograms` and `stats`."""
    return (group * _SERIES_COUNT + series) * 4 + phase


@compiled
def record(histograms: Counts, stats: Table, slot: int, value_ns: int) -> None:
    """Count one latency; clocks that disagree by less than nothing count as 0."""
    value = max(value_ns, 0)
    histograms[slot, bucket_index(value)] += 1
    if stats[slot, STAT_COUNT] == 0 or value < stats[slot, STAT_MIN]:
        stats[slot, STAT_MIN] = value
    stats[slot, STAT_COUNT] += 1
    stats[slot, STAT_SUM] += value
    stats[slot, STAT_MAX] = max(stats[slot, STAT_MAX], value)


@compiled
def requeue(
    connection: int,
    publisher: int,
    connections: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    heap: Table,
) -> None:
    """Put a publisher that waited back into the heap; what it owes is due at once."""
    flags = connections[connection, FLAGS]
    if publisher < 0 or not flags & WAITING or flags & (BLOCKED | WINDOW_FULL):
        return
    connections[connection, FLAGS] = flags & ~WAITING
    due_ns = schedule[publisher, DUE_NS]
    if due_ns >= run[END_NS]:
        totals[SCHEDULED] -= 1
    else:
        totals[HEAP_SIZE] = heap_push(heap, totals[HEAP_SIZE], due_ns, publisher)
        totals[REARM] = 1


@compiled
def reschedule(
    schedule: Table,
    program: Table,
    publisher_connection: Table,
    connections: Table,
    run: Table,
    totals: Table,
    heap: Table,
) -> None:
    """Work out every due moment anew after the program changed, and order the heap by them."""
    totals[HEAP_SIZE] = 0
    totals[SCHEDULED] = 0
    for publisher in range(len(schedule)):
        due_ns = clock_of(program, schedule[publisher, LOAD_NS])
        schedule[publisher, DUE_NS] = due_ns
        if due_ns >= run[END_NS]:
            continue
        totals[SCHEDULED] += 1
        if not connections[publisher_connection[publisher], FLAGS] & WAITING:
            totals[HEAP_SIZE] = heap_push(heap, totals[HEAP_SIZE], due_ns, publisher)


@compiled
def phase_of(run: Table, intended_ns: int) -> int:
    """Phase in which a message was intended."""
    if intended_ns < run[MEASURE_NS]:
        return WARMUP
    if intended_ns < run[END_NS]:
        return MEASURE
    return DRAIN


@compiled
def push_event(
    totals: Table, events: Table, kind: int, connection: int, value: int, moment_ns: int
) -> None:
    """Queue an event without bytes; the queue never fills because each step adds few."""
    row = totals[EVENTS]
    events[row, KIND] = kind
    events[row, CONNECTION] = connection
    events[row, VALUE] = value
    events[row, LENGTH] = 0
    events[row, MOMENT_NS] = moment_ns
    totals[EVENTS] = row + 1


@compiled
def push_bytes(
    totals: Table,
    events: Table,
    control: Bytes,
    kind: int,
    connection: int,
    value: int,
    moment_ns: int,
    buffer: Bytes,
    start: int,
    end: int,
) -> None:
    """Queue an event with buffer[start:end]."""
    row = totals[EVENTS]
    offset = totals[CONTROL_BYTES]
    push_event(totals, events, kind, connection, value, moment_ns)
    control[offset : offset + end - start] = buffer[start:end]
    events[row, OFFSET] = offset
    events[row, LENGTH] = end - start
    totals[CONTROL_BYTES] = offset + end - start


@compiled
def room_for_events(totals: Table, control: Bytes, size_bytes: int) -> bool:
    """Whether a step that queues a few events and `size_bytes` of bytes fits."""
    return bool(
        totals[EVENTS] + 4 < EVENT_LIMIT and totals[CONTROL_BYTES] + size_bytes <= len(control)
    )


@compiled
def _take_message(
    buffer: Bytes,
    start: int,
    end: int,
    packet_bytes: int,
    now_ns: int,
    connection: int,
    connections: Table,
    run: Table,
    totals: Table,
    pairs: Table,
    holes: Table,
    hole_state: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
) -> bool:
    """Account for one message; whether it is one of the device's own that had not come before."""
    group = connections[connection, GROUP]
    if end - start < HEADER_BYTES or read_u32(buffer, start) != run[RUN_TAG]:
        counters[group, MEASURE, C_FOREIGN] += 1
        return False
    if not is_intact(buffer, start, end):
        counters[group, MEASURE, C_CORRUPT] += 1
        return False
    intended_ns = read_i64(buffer, start + 16)
    phase = phase_of(run, intended_ns)
    offset = read_u32(buffer, start + 4) - connections[connection, STREAM_FIRST]
    if offset < 0 or offset >= connections[connection, STREAM_COUNT]:
        counters[group, phase, C_FOREIGN] += 1
        return False
    pair = connections[connection, PAIR_FIRST] + offset
    outcome = account(pairs, holes, hole_state, pair, read_i64(buffer, start + 8))
    if outcome == DUPLICATE:
        counters[group, phase, C_DUPLICATED] += 1
        return False
    if outcome == LATE and not connections[connection, FLAGS] & SHARED:
        counters[group, phase, C_OUT_OF_ORDER] += 1
    if phase == MEASURE:
        connections[connection, TAKEN] += 1
    counters[group, phase, C_RECEIVED] += 1
    counters[group, phase, C_RECEIVED_BYTES] += packet_bytes
    totals[RECEIVED] += 1
    waited_ns = now_ns - intended_ns
    transit_ns = waited_ns - send_offset_ns(buffer, start)
    # What was sent since the device is back never waited for it, however late it was sent.
    if now_ns - transit_ns < connections[connection, RETURNED_NS]:
        record(histograms, stats, slot_of(group, S_RECONNECT, phase), waited_ns)
        return True
    record(histograms, stats, slot_of(group, S_END_TO_END, phase), waited_ns)
    record(histograms, stats, slot_of(group, S_TRANSIT, phase), transit_ns)
    return True


@compiled
def _respond(
    buffer: Bytes,
    start: int,
    end: int,
    now_ns: int,
    connection: int,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    counters: Table,
    senders: Records,
    window: Records,
    events: Table,
    control: Bytes,
    topics: Bytes,
    topic_ends: Table,
    out: Bytes,
    position: int,
) -> int:
    """Write the response to the request whose payload is buffer[start:end]; the position after it.

    It is the request's payload on the topic of the device that asked, so that this device accounts
    for it, and times it from the moment at which the request was intended.
    """
    group = connections[connection, GROUP]
    qos = groups[group, QOS]
    intended_ns = read_i64(buffer, start + 16)
    packet_id = 0
    if qos > 0:
        sequence = read_i64(buffer, start + 8)
        row = connections[connection, SENDER]
        packet_id = acquire(senders, window, row, qos, sequence, intended_ns, now_ns)
        if packet_id == 0:
            if room_for_events(totals, control, 0):
                push_event(totals, events, UNANSWERED, connection, 0, now_ns)
            return position
        totals[IN_FLIGHT] += 1
    asking = read_u32(buffer, start + 4) - connections[connection, STREAM_FIRST]
    topic = connections[connection, RESPONSES] + asking
    size = end - start
    payload = mqtt.write_publish(
        out,
        position,
        qos << 1,
        topics[topic_ends[topic] : topic_ends[topic + 1]],
        packet_id,
        run[VERSION],
        topics[:0],
        size,
    )
    out[payload : payload + size] = buffer[start:end]
    phase = phase_of(run, intended_ns)
    counters[group, phase, C_SENT] += 1
    counters[group, phase, C_SENT_BYTES] += payload + size - position
    counters[group, phase, C_EXPECTED] += 1
    totals[SENT] += 1
    totals[EXPECTED] += 1
    return int(payload + size)


@compiled
def _acknowledged(
    connection: int,
    slot: int,
    sent_ns: int,
    now_ns: int,
    connections: Table,
    run: Table,
    totals: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
    senders: Records,
    window: Records,
    schedule: Table,
    heap: Table,
) -> None:
    group = connections[connection, GROUP]
    row = connections[connection, SENDER]
    phase = phase_of(run, window[row, slot]["intended_ns"])
    counters[group, phase, C_ACKNOWLEDGED] += 1
    totals[IN_FLIGHT] -= 1
    record(histograms, stats, slot_of(group, S_ACKNOWLEDGE, phase), now_ns - sent_ns)
    if connections[connection, FLAGS] & WINDOW_FULL:
        if connections[connection, UNIT_SENT] > 0:
            if senders[row]["in_flight"] > 0:
                return
            connections[connection, UNIT_SENT] = 0
        connections[connection, FLAGS] &= ~WINDOW_FULL
        publisher = connections[connection, PUBLISHER]
        requeue(connection, publisher, connections, run, totals, schedule, heap)


@compiled
def _hold(
    connection: int,
    packet_id: int,
    connections: Table,
    groups: Table,
    held_ids: Table,
    out: Bytes,
    out_position: int,
) -> int:
    """Withhold an acknowledgement; with the last of a batch write all of them."""
    row = connections[connection, HOLDER]
    held = connections[connection, HELD]
    held_ids[row, held] = packet_id
    connections[connection, HELD] = held + 1
    every = groups[connections[connection, GROUP], ACKNOWLEDGE_EVERY]
    if held + 1 < every:
        return out_position
    return release_held(connection, connections, held_ids, out, out_position)


@compiled
def release_held(
    connection: int, connections: Table, held_ids: Table, out: Bytes, out_position: int
) -> int:
    """Write the acknowledgements that a device withholds; the position after them."""
    row = connections[connection, HOLDER]
    for index in range(connections[connection, HELD]):
        packet_id = held_ids[row, index]
        out_position = mqtt.write_ack(out, out_position, mqtt.PUBACK, packet_id)
    connections[connection, HELD] = 0
    return out_position


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
    topics: Bytes,
    topic_ends: Table,
    out: Bytes,
    out_position: int,
) -> tuple[int, int]:
    """Handle every whole packet in buffer[start:end] that `connection` received at `now_ns`.

    Acknowledgements are written to `out` from `out_position` on (4 bytes a packet of at least
    4, and those withheld before: an `out` as long as the buffer and a row of `held_ids` is
    enough; for a device with RESPONSES, whose responses go there too, twice the buffer). Returns
    where the first packet that is not whole begins, and the new `out_position`. A breach of the
    protocol is queued as BROKEN and ends the scan at `end`.
    """
    position = start
    version = run[VERSION]
    while position < end:
        status, first_byte, body, packet_end = mqtt.frame(
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
            status, _, _, packet_id, payload = mqtt.publish_fields(
                buffer, first_byte, body, packet_end, version
            )
            if status != mqtt.OK:
                push_event(totals, events, BROKEN, connection, 0x81, now_ns)
                return end, out_position
            qos = (first_byte >> 1) & 3
            fresh = True
            if qos == 1:
                if connections[connection, HOLDER] < 0:
                    out_position = mqtt.write_ack(out, out_position, mqtt.PUBACK, packet_id)
                else:
                    out_position = _hold(
                        connection, packet_id, connections, groups, held_ids, out, out_position
                    )
            elif qos == 2:
                row = connections[connection, QOS2]
                fresh = row >= 0 and accept_qos2(received_ids, row, packet_id)
                out_position = mqtt.write_ack(out, out_position, mqtt.PUBREC, packet_id)
            if fresh:
                is_new = _take_message(
                    buffer,
                    payload,
                    packet_end,
                    packet_end - position,
                    now_ns,
                    connection,
                    connections,
                    run,
                    totals,
                    pairs,
                    holes,
                    hole_state,
                    counters,
                    histograms,
                    stats,
                )
                if is_new and connections[connection, RESPONSES] >= 0:
                    out_position = _respond(
                        buffer,
                        payload,
                        packet_end,
                        now_ns,
                        connection,
                        connections,
                        groups,
                        run,
                        totals,
                        counters,
                        senders,
                        window,
                        events,
                        control,
                        topics,
                        topic_ends,
                        out,
                        out_position,
                    )
        elif mqtt.PUBACK <= kind <= mqtt.PUBCOMP:
            status, packet_id, reason = mqtt.ack_fields(buffer, body, packet_end)
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
                final = kind != mqtt.PUBREC or reason >= 0x80
                if status == mqtt.OK and final:
                    _acknowledged(
                        connection,
                        packet_id - 1,
                        sent_ns,
                        now_ns,
                        connections,
                        run,
                        totals,
                        counters,
                        histograms,
                        stats,
                        senders,
                        window,
                        schedule,
                        heap,
                    )
                if reason >= 0x80 and room_for_events(totals, control, 0):
                    push_event(totals, events, REFUSED_PACKET, connection, reason, now_ns)
        elif kind == mqtt.PINGRESP:
            connections[connection, PINGED_NS] = 0
        else:
            if not room_for_events(totals, control, packet_end - position):
                return position, out_position
            if kind == mqtt.CONNACK:
                _connack(
                    buffer,
                    body,
                    packet_end,
                    now_ns,
                    connection,
                    connections,
                    totals,
                    counters,
                    histograms,
                    stats,
                )
            push_bytes(
                totals,
                events,
                control,
                CONTROL_PACKET,
                connection,
                kind,
                now_ns,
                buffer,
                position,
                packet_end,
            )
        position = packet_end
    return position, out_position


@compiled
def _connack(
    buffer: Bytes,
    body: int,
    packet_end: int,
    now_ns: int,
    connection: int,
    connections: Table,
    totals: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
) -> None:
    if connections[connection, STATE] != AWAIT_CONNACK or packet_end - body < 2:
        return
    totals[CONNECTING_COUNT] -= 1
    if buffer[body + 1] != 0:
        connections[connection, STATE] = REFUSED
        return
    group = connections[connection, GROUP]
    connections[connection, STATE] = CONNECTED
    if connections[connection, RETURNED_NS] != 0:
        connections[connection, RETURNED_NS] = now_ns
        # Nothing new before what was unacknowledged, which the caller sends again.
        connections[connection, FLAGS] |= BLOCKED
    totals[CONNECTED_COUNT] += 1
    counters[group, CONNECT_PHASE, C_CONNECTS] += 1
    since_tcp_ns = now_ns - connections[connection, TCP_NS]
    since_syn_ns = now_ns - connections[connection, SYN_NS]
    record(histograms, stats, slot_of(group, S_CONNACK, CONNECT_PHASE), since_tcp_ns)
    record(histograms, stats, slot_of(group, S_CONNECT, CONNECT_PHASE), since_syn_ns)


@compiled
def _most_bytes(topic_bytes: int, group: int, groups: Table) -> int:
    """More than a PUBLISH of the group takes: topic, payload, header and identifier."""
    return int(topic_bytes + groups[group, SIZE_MOST] + 16)


@compiled
def _write_message(
    sequence: int,
    intended_ns: int,
    sent_ns: int,
    stream: int,
    group: int,
    packet_id: int,
    dup: int,
    groups: Table,
    run: Table,
    topics: Bytes,
    topic_start: int,
    topic_end: int,
    body: Bytes,
    body_crc: Table,
    template: Table,
    out: Bytes,
    position: int,
) -> int:
    """Write one whole PUBLISH, the same bytes each time but for `dup`; the position after it."""
    size = groups[group, SIZE_LEAST]
    if groups[group, SIZE_MOST] > size:
        size += _chance(run[SEED], stream, sequence) % (groups[group, SIZE_MOST] - size + 1)
    payload = mqtt.write_publish(
        out,
        position,
        dup << 3 | groups[group, QOS] << 1 | groups[group, RETAIN],
        topics[topic_start:topic_end],
        packet_id,
        run[VERSION],
        topics[:0],
        size,
    )
    extra = size - HEADER_BYTES
    crc = body_crc[extra]
    if extra > 0:
        out[payload + HEADER_BYTES : payload + size] = body[:extra]
    if len(template) > 0:
        body_at = payload + HEADER_BYTES
        device = stream - groups[group, FIRST_STREAM]
        wall_ms = (intended_ns + run[WALL_NS]) // 1_000_000
        chance = _chance(run[SEED], stream, sequence)
        fill_template(out, body_at, template, device, sequence, wall_ms, chance)
        crc = crc32(0, out, body_at, body_at + extra)
    stamp(out, payload, run[RUN_TAG], stream, sequence, intended_ns, sent_ns, crc)
    return int(payload + size)


@compiled
def redeliver(
    connection: int,
    publisher: int,
    session_present: bool,
    slots: Table,
    count: int,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    senders: Records,
    window: Records,
    topics: Bytes,
    topic_ends: Table,
    body: Bytes,
    body_crc: Table,
    template: Table,
    out: Bytes,
) -> tuple[int, int]:
    """Write again what was unacknowledged when the connection broke (MQTT 5, 4.4).

    `slots[:count]` are those of `redelivery_order`. With the session present at the broker a
    PUBLISH carries DUP and what waits for PUBCOMP gets its PUBREL; without, messages are sent as
    new ones, and those that the broker had taken over are given up. Returns (slots handled, bytes
    written); fewer slots than `count` when `out` is full.
    """
    row = connections[connection, SENDER]
    group = connections[connection, GROUP]
    topic_start = topic_ends[publisher]
    topic_end = topic_ends[publisher + 1]
    room = len(out) - _most_bytes(topic_end - topic_start, group, groups)
    position = 0
    for index in range(count):
        if position > room:
            return index, position
        slot = slots[index]
        packet_id = slot + 1
        if window[row, slot]["state"] == AWAIT_PUBCOMP:
            if session_present:
                position = mqtt.write_ack(out, position, mqtt.PUBREL, packet_id)
            else:
                on_pubcomp(senders, window, row, packet_id)
                totals[IN_FLIGHT] -= 1
            continue
        position = _write_message(
            int(np.int64(window[row, slot]["sequence"])),
            window[row, slot]["intended_ns"],
            window[row, slot]["sent_ns"],
            schedule[publisher, STREAM],
            group,
            packet_id,
            1 if session_present else 0,
            groups,
            run,
            topics,
            topic_start,
            topic_end,
            body,
            body_crc,
            template,
            out,
            position,
        )
    return count, position


@compiled
def fill_batch(
    publisher: int,
    connection: int,
    now_ns: int,
    sent_ns: int,
    limit: int,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    periods_ns: Numbers,
    program: Table,
    senders: Records,
    window: Records,
    topics: Bytes,
    topic_ends: Table,
    body: Bytes,
    body_crc: Table,
    template: Table,
    out: Bytes,
    out_position: int,
    batch: Table,
) -> tuple[int, int]:
    """Write the messages that `publisher` owes at `now_ns`, as many as fit, at most `limit`.

    `sent_ns` goes into the headers. Steps the schedule and takes packet identifiers; each message
    has a row in `batch`. Sets WINDOW_FULL when the window stopped it. Returns (end of what was
    written to `out`, messages).
    """
    group = connections[connection, GROUP]
    qos = groups[group, QOS]
    unit = groups[group, UNIT]
    row = connections[connection, SENDER]
    topic_start = topic_ends[publisher]
    topic_end = topic_ends[publisher + 1]
    stream = schedule[publisher, STREAM]
    count = 0
    position = out_position
    room = len(out) - _most_bytes(topic_end - topic_start, group, groups)
    while count < limit and position <= room:
        due_ns = schedule[publisher, DUE_NS]
        if due_ns > now_ns or due_ns >= run[END_NS]:
            break
        sequence = schedule[publisher, SEQUENCE]
        packet_id = 0
        if qos > 0:
            if unit > 1 and connections[connection, UNIT_SENT] >= unit:
                if senders[row]["in_flight"] > 0:
                    connections[connection, FLAGS] |= WINDOW_FULL
                    break
                connections[connection, UNIT_SENT] = 0
            packet_id = acquire(senders, window, row, qos, sequence, due_ns, sent_ns)
            if packet_id == 0:
                connections[connection, FLAGS] |= WINDOW_FULL
                break
            totals[IN_FLIGHT] += 1
            if unit > 1:
                connections[connection, UNIT_SENT] += 1
        position = _write_message(
            sequence,
            due_ns,
            sent_ns,
            stream,
            group,
            packet_id,
            0,
            groups,
            run,
            topics,
            topic_start,
            topic_end,
            body,
            body_crc,
            template,
            out,
            position,
        )
        batch[count, BATCH_SEQUENCE] = sequence
        batch[count, BATCH_DUE_NS] = due_ns
        batch[count, BATCH_LOAD_NS] = schedule[publisher, LOAD_NS]
        batch[count, BATCH_END] = position
        batch[count, BATCH_PACKET_ID] = packet_id
        count += 1
        advance(schedule, periods_ns, program, publisher, run[SEED])
    return position, count


@compiled
def _chance(seed: int, stream: int, sequence: int) -> int:
    """32 random bits of a message, the same whenever it is written; not those of its arrival."""
    return int(random_unit(seed ^ _SALT_CONTENT, stream, sequence) * 4294967296.0)


@compiled
def settle_batch(
    publisher: int,
    connection: int,
    count: int,
    sent: int,
    sent_ns: int,
    start: int,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    senders: Records,
    window: Records,
    counters: Table,
    histograms: Counts,
    stats: Table,
    batch: Table,
) -> None:
    """Record the first `sent` of the `count` messages of a batch and take the others back.

    `start` is where the batch began in the buffer. What is taken back stays owed, with the same
    sequence and intended moment.
    """
    group = connections[connection, GROUP]
    deliveries = groups[group, DELIVERIES]
    before = start
    for index in range(sent):
        due_ns = batch[index, BATCH_DUE_NS]
        phase = phase_of(run, due_ns)
        counters[group, phase, C_SENT] += 1
        counters[group, phase, C_SENT_BYTES] += batch[index, BATCH_END] - before
        counters[group, phase, C_EXPECTED] += deliveries
        before = batch[index, BATCH_END]
        record(histograms, stats, slot_of(group, S_SEND_DELAY, phase), sent_ns - due_ns)
    totals[SENT] += sent
    totals[EXPECTED] += sent * deliveries
    connections[connection, WRITTEN_NS] = sent_ns
    if sent < count:
        # With messages taken back the window has room again.
        connections[connection, FLAGS] &= ~WINDOW_FULL
        row = connections[connection, SENDER]
        for index in range(sent, count):
            packet_id = batch[index, BATCH_PACKET_ID]
            if packet_id > 0:
                if groups[group, QOS] == 1:
                    on_puback(senders, window, row, packet_id)
                else:
                    on_pubrec(senders, window, row, packet_id, _REFUSED)
                totals[IN_FLIGHT] -= 1
                if groups[group, UNIT] > 1:
                    connections[connection, UNIT_SENT] -= 1
        schedule[publisher, SEQUENCE] = batch[sent, BATCH_SEQUENCE]
        schedule[publisher, DUE_NS] = batch[sent, BATCH_DUE_NS]
        schedule[publisher, LOAD_NS] = batch[sent, BATCH_LOAD_NS]
