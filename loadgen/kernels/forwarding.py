"""The reflector's sockets, sessions and deliveries in compiled code.

`serve` reads sockets and forwards messages until it needs Python: for a packet that only the codec
reads, for the subscribers of a topic that it does not know, or because a connection ended. It then
returns the reason, and goes on in the same read when it is called again.

Row n of `links` is the connection with descriptor n. Row 0 of every table stands for none. Each
session has four queues of deliveries above QoS 0, with a copy of their messages. Tables are as
large as they can become; memory that is not touched costs nothing.
"""

import errno
from typing import Final

from loadgen.kernels import syscalls
from loadgen.kernels.arrays import Arrays, Bytes, Int32, Int32s, Int64, Record, Rows, read_u8
from loadgen.kernels.compiled import compiled
from loadgen.kernels.packet_bytes import (
    INCOMPLETE,
    OK,
    TOPIC_ALIAS,
    ack_fields,
    frame,
    publish_fields,
    write_ack,
    write_variable,
)
from loadgen.kernels.syscalls import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from loadgen.mqtt.constants import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL

CODEC, ROUTE, CLOSED, FULL = 1, 2, 3, 4
"""Reasons of a return: a packet for the codec, an unknown topic, a closed connection, or no room
for more deliveries."""
PACKET_LIMIT_BYTES: Final = 16 << 20
EVENTS_AT_ONCE: Final = 256
ROUTE_SLOTS: Final = 1 << 17
READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20
_LEAST_OUT_BYTES: Final = 512
_PACKET_IDS: Final = 65_535
_PINGREQ: Final = 0xC0

# Bits of a connection's flags.
OPEN = 1
_DIRTY = 2  # it has bytes to send, and is listed in `dirty`
_BLOCKED = 4  # the socket is full
_HELD = 8  # not read until a connection that it writes to has room

# Queues of a session: not sent yet; awaiting PUBACK or PUBREC; awaiting PUBCOMP; and messages of
# the client at QoS 2 that await its PUBREL.
_PENDING, _SENT, _RELEASING, _RECEIVED = range(4)
QUEUES: Final = 4


class Link(Record):
    """A connection; `rest` is the address of an incomplete packet, `out` that of unsent bytes."""

    session: Int32
    version: Int32
    flags: Int32
    rest_bytes: Int32
    rest: Int64
    out: Int64
    out_start: Int64
    out_end: Int64
    out_room: Int64


class Session(Record):
    """The state of a client towards the broker; `free_ids` Packet Identifiers from `next_id` on are
    not in flight."""

    link: Int32
    window: Int32
    in_flight: Int32
    next_id: Int32
    free_ids: Int32
    lasts: Int32  # it outlives the connection


class SessionQueue(Record):
    """Deliveries in their order."""

    first: Int32
    last: Int32


class QueuedDelivery(Record):
    """A delivery, and its message: topic with its length, properties with theirs, payload."""

    address: Int64
    following: Int32
    packet_id: Int32
    qos: Int32
    topic_bytes: Int32
    properties_bytes: Int32
    payload_bytes: Int32


class TopicRoute(Record):
    """The subscribers of a topic, if `generation` is that of the subscriptions."""

    generation: Int64
    start: Int32
    end: Int32
    first: Int32
    last: Int32


class RouteTarget(Record):
    """A subscriber; `members` rows from the first one of a group share its messages."""

    session: Int32
    qos: Int32
    members: Int32
    group: Int32


class ReflectorState(Record):
    """Descriptors, the place in the current read, and the ends of tables."""

    epoll: Int64
    listener: Int64
    event: Int64
    events: Int64
    row: Int64
    position: Int64
    end: Int64
    topic: Int64  # and other places of a message in the read
    topic_end: Int64
    properties: Int64
    payload: Int64
    message_end: Int64
    generation: Int64
    route: Int64  # the slot of an unknown topic
    names_end: Int64
    dirty: Int64
    held: Int64
    free_delivery: Int64
    deliveries: Int64  # rows that were ever used


class ReflectorTables(Arrays):
    """The tables of a reflector."""

    state: ReflectorState
    links: Rows[Link]
    sessions: Rows[Session]
    queues: Rows[SessionQueue]
    deliveries: Rows[QueuedDelivery]
    routes: Rows[TopicRoute]
    targets: Rows[RouteTarget]
    turns: Int32s
    dirty: Int32s
    waiting: Int32s
    names: Bytes
    buffer: Bytes
    scratch: Bytes
    epoll_events: Int32s
    words: Int32s


# --- connections -------------------------------------------------------------------------------


@compiled
def serve(r: ReflectorTables) -> int:
    """Serve connections until Python is needed; return the reason."""
    state = r.state
    while True:
        if state.row > 0:
            reason = _serve_read(r)
            if reason != 0:
                return reason
            keep_rest(r)
        elif state.event < state.events:
            base = state.event * syscalls.EVENT_WORDS
            state.event += 1
            row = int(r.epoll_events[base + syscalls.EVENT_DATA])
            if row == 0:
                _accept(r)
            elif not _serve_event(r, row, int(r.epoll_events[base])):
                state.row = row
                return CLOSED
        else:
            for place in range(state.dirty):
                if r.links[r.dirty[place]].flags & _DIRTY:
                    _flush(r, int(r.dirty[place]))
            state.dirty = 0
            state.event = 0
            state.events = syscalls.wait_events(state.epoll, r.epoll_events, EVENTS_AT_ONCE, -1)


@compiled
def _accept(r: ReflectorTables) -> None:
    state = r.state
    for _ in range(EVENTS_AT_ONCE):
        row = syscalls.accept_socket(state.listener, r.words)
        if row < 0:
            return
        link = r.links[row]
        link.flags = OPEN
        syscalls.watch(state.epoll, row, EPOLLIN, row, r.words)


@compiled
def _serve_event(r: ReflectorTables, row: int, flags: int) -> bool:
    """Handle an event of a connection; return False if it has ended."""
    link, state = r.links[row], r.state
    if not link.flags & OPEN:
        return True  # closed since the events were read
    if flags & EPOLLOUT:
        _flush(r, row)
    if link.flags & _HELD:
        return not flags & (EPOLLERR | EPOLLHUP)
    if not flags & (EPOLLIN | EPOLLERR | EPOLLHUP):
        return True
    rest = link.rest_bytes
    limit = min(len(r.buffer), rest + max(rest, READ_BYTES))
    got = syscalls.receive_into(row, r.buffer, rest, limit)
    if got <= 0:
        return got == -errno.EAGAIN
    if rest > 0:
        syscalls.move_memory(r.buffer.ctypes.data, link.rest, rest)
        syscalls.free_memory(link.rest)
        link.rest = 0
        link.rest_bytes = 0
    state.row = row
    state.position = 0
    state.end = rest + got
    return True


@compiled
def keep_rest(r: ReflectorTables) -> None:
    """End a read: store the bytes of an incomplete packet."""
    state = r.state
    count = state.end - state.position
    if count > 0:
        link = r.links[state.row]
        link.rest = syscalls.resize_memory(0, count)
        link.rest_bytes = count
        syscalls.move_memory(link.rest, r.buffer.ctypes.data + state.position, count)
    state.row = 0


@compiled
def close_link(r: ReflectorTables, row: int) -> int:
    """Send what the socket takes, and close a connection; return its session."""
    link, state = r.links[row], r.state
    session = link.session
    if link.out_end > 0:
        _flush(r, row)
    syscalls.close_descriptor(row)
    syscalls.free_memory(link.rest)
    syscalls.free_memory(link.out)
    if session > 0:
        r.sessions[session].link = 0
    link.session = link.version = link.flags = link.rest_bytes = 0
    link.rest = link.out = link.out_start = link.out_end = link.out_room = 0
    if state.row == row:
        state.row = 0
    _release_held(r)
    return session


@compiled
def reply(r: ReflectorTables, row: int, data: Bytes) -> None:
    """Send a packet."""
    _write(r, row, data.ctypes.data, len(data))


@compiled
def _write(r: ReflectorTables, row: int, address: int, count: int) -> None:
    """Add bytes to those that the end of the batch sends."""
    link, state = r.links[row], r.state
    if link.out_end + count > link.out_room and link.out_start > 0:
        link.out_end -= link.out_start
        syscalls.move_memory(link.out, link.out + link.out_start, link.out_end)
        link.out_start = 0
    if link.out_end + count > link.out_room:
        link.out_room = max(2 * link.out_room, link.out_end + count, _LEAST_OUT_BYTES)
        link.out = syscalls.resize_memory(link.out, link.out_room)
    syscalls.move_memory(link.out + link.out_end, address, count)
    link.out_end += count
    if not link.flags & (_DIRTY | _BLOCKED):
        link.flags |= _DIRTY
        r.dirty[state.dirty] = row
        state.dirty += 1


@compiled
def _flush(r: ReflectorTables, row: int) -> None:
    """Send bytes; the kernel reports when a full socket has room."""
    link = r.links[row]
    link.flags &= ~_DIRTY
    sent = syscalls.send_memory(row, link.out + link.out_start, link.out_end - link.out_start)
    # An error of the connection comes as an event as well.
    link.out_start = (
        link.out_end if sent < 0 and sent != -errno.EAGAIN else link.out_start + max(sent, 0)
    )
    if link.out_start < link.out_end:
        if not link.flags & _BLOCKED:
            link.flags |= _BLOCKED
            _watch(r, row)
        return
    syscalls.free_memory(link.out)
    link.out = link.out_start = link.out_end = link.out_room = 0
    if link.flags & _BLOCKED:
        link.flags &= ~_BLOCKED
        _watch(r, row)
        _release_held(r)


@compiled
def _watch(r: ReflectorTables, row: int) -> None:
    """Wait for what the flags of a connection say."""
    flags = r.links[row].flags
    wanted = (0 if flags & _HELD else EPOLLIN) | (EPOLLOUT if flags & _BLOCKED else 0)
    syscalls.watch_again(r.state.epoll, row, wanted, row, r.words)


@compiled
def _release_held(r: ReflectorTables) -> None:
    """Read again from all held connections; those without room ahead are soon held again."""
    held = r.state.held
    r.state.held = 0
    for place in range(held):
        row = int(r.waiting[place])
        if r.links[row].flags & _HELD:
            r.links[row].flags &= ~_HELD
            _watch(r, row)


# --- packets -----------------------------------------------------------------------------------


@compiled
def _serve_read(r: ReflectorTables) -> int:
    """Serve the packets of a read; return the reason why Python is needed, or 0."""
    state = r.state
    row = state.row
    link = r.links[row]
    while state.position < state.end:
        if link.session == 0:
            return CODEC
        status, first_byte, body, end = frame(
            r.buffer, state.position, state.end, PACKET_LIMIT_BYTES
        )
        if status == INCOMPLETE:
            return 0
        if status != OK:
            return CODEC
        packet_type = first_byte >> 4
        if packet_type == PUBLISH:
            reason = _serve_publish(r, row, first_byte, body, end)
            if reason != 0:
                return reason
        elif PUBACK <= packet_type <= PUBCOMP:
            status, packet_id, code = ack_fields(r.buffer, packet_type, body, end, link.version)
            if status != OK:
                return CODEC
            _serve_ack(r, row, packet_type, packet_id, code)
        elif first_byte == _PINGREQ and body == end:
            r.scratch[0] = 0xD0
            r.scratch[1] = 0
            _write(r, row, r.scratch.ctypes.data, 2)
        else:
            return CODEC
        state.position = end
    return 0


@compiled
def _serve_publish(r: ReflectorTables, row: int, first_byte: int, body: int, end: int) -> int:
    """Forward and acknowledge a message; return the reason why Python is needed, or 0."""
    state, link = r.state, r.links[row]
    status, state.topic, state.topic_end, packet_id, state.payload, seen = publish_fields(
        r.buffer, first_byte, body, end, link.version
    )
    if status != OK or seen >> TOPIC_ALIAS & 1:
        return CODEC
    state.route = _slot_of(r)
    route = r.routes[state.route]
    if route.generation != state.generation:
        return ROUTE
    qos = first_byte >> 1 & 3
    first = link.session * QUEUES
    # A message that is sent again after a lost PUBREC is not forwarded twice.
    repeated = first_byte & 8 and _find(r, first + _RECEIVED, packet_id) >= 0
    if qos and state.deliveries + route.last - route.first + 1 >= len(r.deliveries):
        return FULL
    if not repeated:
        state.properties = state.topic_end + (2 if qos else 0)
        state.message_end = end
        _forward(r, row, first_byte)
        if qos == 2:
            delivery = _new_delivery(r)
            r.deliveries[delivery].packet_id = packet_id
            _push(r, first + _RECEIVED, delivery)
    if qos:
        _write_ack(r, row, PUBACK if qos == 1 else PUBREC, packet_id)
    return 0


@compiled
def _slot_of(r: ReflectorTables) -> int:
    """Return the slot of the topic in `routes`, or the free slot for it."""
    start, length = r.state.topic, r.state.topic_end - r.state.topic
    number = 0x4BF29CE484222325
    for position in range(start, start + length):
        number = (number ^ read_u8(r.buffer, position)) * 0x100000001B3
    slot = (number ^ number >> 32) & (ROUTE_SLOTS - 1)
    while r.routes[slot].generation == r.state.generation:
        route = r.routes[slot]
        offset = 0 if route.end - route.start == length else -1
        while 0 <= offset < length:
            same = read_u8(r.names, route.start + offset) == read_u8(r.buffer, start + offset)
            offset = offset + 1 if same else -1
        if offset >= 0:
            break
        slot = (slot + 1) & (ROUTE_SLOTS - 1)
    return int(slot)


@compiled
def _forward(r: ReflectorTables, row: int, first_byte: int) -> None:
    """Send the message in the buffer to the subscribers of its topic."""
    state, link = r.state, r.links[row]
    route, base = r.routes[state.route], r.buffer.ctypes.data
    index = route.first
    while index < route.last:
        target = r.targets[index]
        index += target.members
        if target.members > 1:
            target = r.targets[_member(r, index - target.members)]
        session = r.sessions[target.session]
        to = r.links[session.link]
        if to.out_end - to.out_start > _WRITE_HIGH_BYTES and not link.flags & _HELD:
            link.flags |= _HELD
            _watch(r, row)
            r.waiting[state.held] = row
            state.held += 1
        qos = min(first_byte >> 1 & 3, target.qos)
        if qos > 0:
            delivery = _store(r)
            r.deliveries[delivery].qos = qos
            _push(r, target.session * QUEUES + _PENDING, delivery)
            _send_pending(r, target.session)
        elif session.link > 0 and first_byte == PUBLISH << 4 and to.version == link.version:
            _write(r, session.link, base + state.position, state.message_end - state.position)
        elif session.link > 0:
            topic, rest = base + state.topic - 2, base + state.properties
            lengths = (
                state.topic_end - state.topic + 2,
                state.payload - state.properties,
                state.message_end - state.payload,
            )
            _write_publish(r, session.link, 0, 0, topic, rest, lengths)


@compiled
def _member(r: ReflectorTables, first: int) -> int:
    """Return the next connected member of a group, or the next one if all are absent."""
    members, group = r.targets[first].members, r.targets[first].group
    turn = int(r.turns[group])
    for offset in range(members):
        row = first + (turn + offset) % members
        if r.sessions[r.targets[row].session].link > 0:
            r.turns[group] = (turn + offset + 1) % members
            return row
    r.turns[group] = (turn + 1) % members
    return first + turn % members


@compiled
def _write_publish(
    r: ReflectorTables,
    row: int,
    flags: int,
    packet_id: int,
    topic: int,
    rest: int,
    lengths: tuple[int, int, int],
) -> None:
    """Write a PUBLISH (section 3.3) of a topic at one address, and of the rest at another.

    `lengths` are those of topic, properties and payload.
    """
    version, start = r.links[row].version, r.scratch.ctypes.data
    length = lengths[0] + lengths[2] + (2 if packet_id else 0)
    if version == MQTT_5:
        length += max(lengths[1], 1)
    r.scratch[0] = PUBLISH << 4 | flags
    position = write_variable(r.scratch, 1, length)
    _write(r, row, start, position)
    _write(r, row, topic, lengths[0])
    if packet_id:
        r.scratch[0] = packet_id >> 8
        r.scratch[1] = packet_id & 0xFF
        _write(r, row, start, 2)
    if version == MQTT_5:
        r.scratch[0] = 0
        _write(r, row, rest if lengths[1] else start, max(lengths[1], 1))
    _write(r, row, rest + lengths[1], lengths[2])


@compiled
def _write_ack(r: ReflectorTables, row: int, packet_type: int, packet_id: int) -> None:
    write_ack(r.scratch, 0, packet_type, packet_id)
    _write(r, row, r.scratch.ctypes.data, 4)


# --- sessions ----------------------------------------------------------------------------------


@compiled
def _serve_ack(r: ReflectorTables, row: int, packet_type: int, packet_id: int, code: int) -> None:
    """Handle a PUBACK, PUBREC, PUBREL or PUBCOMP (section 4.3)."""
    number = r.links[row].session
    first = number * QUEUES
    if packet_type == PUBREL:
        _free_delivery(r, _take(r, first + _RECEIVED, packet_id))
        _write_ack(r, row, PUBCOMP, packet_id)
    elif packet_type == PUBREC and code < 0x80:
        delivery = _take(r, first + _SENT, packet_id)
        if delivery > 0:
            syscalls.free_memory(r.deliveries[delivery].address)
            r.deliveries[delivery].address = 0
            _push(r, first + _RELEASING, delivery)
        _write_ack(r, row, PUBREL, packet_id)
    else:
        queue = _RELEASING if packet_type == PUBCOMP else _SENT
        delivery = _take(r, first + queue, packet_id)
        if delivery > 0:
            _free_delivery(r, delivery)
            r.sessions[number].in_flight -= 1
            _send_pending(r, number)


@compiled
def _send_pending(r: ReflectorTables, number: int) -> None:
    """Send waiting messages as far as the window allows."""
    session, first = r.sessions[number], number * QUEUES
    while session.link > 0 and session.in_flight < session.window:
        delivery = _take(r, first + _PENDING, 0)
        if delivery == 0:
            return
        packet_id = _packet_id(r, number)
        r.deliveries[delivery].packet_id = packet_id
        session.in_flight += 1
        _push(r, first + _SENT, delivery)
        _send(r, session.link, delivery, 0)


@compiled
def _packet_id(r: ReflectorTables, number: int) -> int:
    """Return a Packet Identifier that is not in flight."""
    session = r.sessions[number]
    while session.free_ids == 0:
        session.next_id = session.next_id % _PACKET_IDS + 1
        session.free_ids = _PACKET_IDS
        for queue in (_SENT, _RELEASING):
            delivery = r.queues[number * QUEUES + queue].first
            while delivery > 0:
                ahead = (r.deliveries[delivery].packet_id - session.next_id) % _PACKET_IDS
                session.free_ids = min(session.free_ids, ahead)
                delivery = r.deliveries[delivery].following
        if session.free_ids > 0:
            session.next_id = (session.next_id - 2) % _PACKET_IDS + 1
    session.free_ids -= 1
    session.next_id = session.next_id % _PACKET_IDS + 1
    return session.next_id


@compiled
def _send(r: ReflectorTables, row: int, delivery: int, flags: int) -> None:
    sent = r.deliveries[delivery]
    lengths = sent.topic_bytes, sent.properties_bytes, sent.payload_bytes
    rest, flags = sent.address + sent.topic_bytes, flags | sent.qos << 1
    _write_publish(r, row, flags, sent.packet_id, sent.address, rest, lengths)


@compiled
def attach(r: ReflectorTables, number: int, row: int) -> None:
    """Connect a session; send unacknowledged messages again before new ones (section 4.4)."""
    r.sessions[number].link = row
    r.links[row].session = number
    delivery = r.queues[number * QUEUES + _RELEASING].first
    while delivery > 0:
        _write_ack(r, row, PUBREL, r.deliveries[delivery].packet_id)
        delivery = r.deliveries[delivery].following
    delivery = r.queues[number * QUEUES + _SENT].first
    while delivery > 0:
        _send(r, row, delivery, 8)
        delivery = r.deliveries[delivery].following
    _send_pending(r, number)


@compiled
def end_session(r: ReflectorTables, number: int) -> None:
    """Discard the deliveries of a session."""
    for queue in range(number * QUEUES, number * QUEUES + QUEUES):
        while r.queues[queue].first > 0:
            _free_delivery(r, _take(r, queue, r.deliveries[r.queues[queue].first].packet_id))
    session = r.sessions[number]
    session.link = session.window = session.in_flight = session.lasts = 0
    session.next_id = session.free_ids = 0


# --- queues ------------------------------------------------------------------------------------


@compiled
def _push(r: ReflectorTables, number: int, delivery: int) -> None:
    queue = r.queues[number]
    r.deliveries[delivery].following = 0
    if queue.first == 0:
        queue.first = delivery
    else:
        r.deliveries[queue.last].following = delivery
    queue.last = delivery


@compiled
def _find(r: ReflectorTables, number: int, packet_id: int) -> int:
    """Return the delivery before that with a Packet Identifier, 0 if it is the first, or -1.

    Acknowledgements come in order, so that it is nearly always the first.
    """
    before, delivery = 0, r.queues[number].first
    while delivery > 0:
        if r.deliveries[delivery].packet_id == packet_id:
            return before
        before, delivery = delivery, r.deliveries[delivery].following
    return -1


@compiled
def _take(r: ReflectorTables, number: int, packet_id: int) -> int:
    """Remove the delivery with a Packet Identifier from a queue; return it, or 0."""
    queue = r.queues[number]
    before = _find(r, number, packet_id)
    if before < 0:
        return 0
    delivery = r.deliveries[before].following if before > 0 else queue.first
    following = r.deliveries[delivery].following
    if before > 0:
        r.deliveries[before].following = following
    else:
        queue.first = following
    if queue.last == delivery:
        queue.last = before
    return delivery


@compiled
def _new_delivery(r: ReflectorTables) -> int:
    state = r.state
    delivery = state.free_delivery
    if delivery > 0:
        state.free_delivery = r.deliveries[delivery].following
    else:
        state.deliveries += 1
        delivery = state.deliveries
    return delivery


@compiled
def _free_delivery(r: ReflectorTables, number: int) -> None:
    if number > 0:
        delivery = r.deliveries[number]
        syscalls.free_memory(delivery.address)
        delivery.address = delivery.packet_id = 0
        delivery.following = r.state.free_delivery
        r.state.free_delivery = number


@compiled
def _store(r: ReflectorTables) -> int:
    """Return a new delivery with a copy of the message in the buffer."""
    state, base, number = r.state, r.buffer.ctypes.data, _new_delivery(r)
    delivery = r.deliveries[number]
    delivery.topic_bytes = state.topic_end - state.topic + 2
    delivery.properties_bytes = state.payload - state.properties
    delivery.payload_bytes = state.message_end - state.payload
    rest_bytes = state.message_end - state.properties
    delivery.address = syscalls.resize_memory(0, delivery.topic_bytes + rest_bytes)
    rest = delivery.address + delivery.topic_bytes
    syscalls.move_memory(delivery.address, base + state.topic - 2, delivery.topic_bytes)
    syscalls.move_memory(rest, base + state.properties, rest_bytes)
    return number
