"""The reflector's sockets and messages in compiled code.

`serve` reads sockets and forwards messages until it needs Python: for a packet that only the codec
reads, for the subscribers of a topic that it does not know, or because a connection ended. It then
returns the reason, and goes on in the same read when it is called again.

Row n of `links`, `rests` and `outs` is the connection with descriptor n. Row 0 stands for none. The
messages of a session above QoS 0 stay in `stored`, in their order, until they are acknowledged.
"""

import errno
from typing import Final

from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels import syscalls
from loadgen.kernels.arrays import (
    Arrays,
    Bytes,
    Int32,
    Int32s,
    Int64,
    Int64s,
    Record,
    Rows,
    read_u8,
)
from loadgen.kernels.compiled import compiled
from loadgen.kernels.syscalls import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from loadgen.mqtt.constants import MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL

CODEC, ROUTE, CLOSED = 1, 2, 3
"""Reasons of a return: a packet for the codec, an unknown topic, or a closed connection."""
PACKET_LIMIT_BYTES: Final = 16 << 20
EVENTS_AT_ONCE: Final = 256
READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20
_LEAST_BYTES: Final = 512
_PACKET_IDS: Final = 65_535
_RECEIVED_BYTES: Final = 8_192
_PINGREQ: Final = 0xC0

# Bits of a connection's flags.
OPEN = 1
_DIRTY = 2  # it has bytes to send, and is listed in `dirty`
_BLOCKED = 4  # the socket is full
_HELD = 8  # not read until a connection that it writes to has room

# A stored message: a word, and the packet. The word has the Packet Identifier, the QoS, the state
# and the length of the packet.
_WORD_BYTES: Final = 8
_IDENTIFIER_BIT, _QOS_BIT, _STATE_BIT, _LENGTH_MASK = 40, 36, 32, 0xFFFFFFFF
_UNACKNOWLEDGED, _RELEASED, _COMPLETED = range(3)


class Link(Record):
    session: Int32
    flags: Int32


class ByteQueue(Record):
    """The bytes from `start` to `end` of memory at `address`, which has room for so many."""

    address: Int64
    start: Int64
    end: Int64
    room: Int64


class Session(Record):
    """The state of a client towards the broker."""

    link: Int32
    version: Int32
    window: Int32
    in_flight: Int32
    last_id: Int32
    """The Packet Identifier of the last stored message."""
    lasts: Int32
    """1 if it outlives the connection."""
    sent: Int64
    sent_bytes: Int64
    """Bytes of the first stored messages, which were sent on this connection."""
    released_bytes: Int64
    """Bytes of those up to the last PUBREC."""
    received: Int64
    """Address of a bit for each Packet Identifier that awaits the client's PUBREL, or 0."""


class TopicRoute(Record):
    """The subscribers of a topic, if `generation` is that of the subscriptions."""

    generation: Int64
    start: Int32
    end: Int32
    first: Int32
    last: Int32


class RouteTarget(Record):
    """A subscriber; `members` rows from the first one of a group take messages in turn."""

    session: Int32
    qos: Int32
    members: Int32
    turn: Int32


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
    dirty: Int64
    held: Int64


class ReflectorTables(Arrays):
    """The tables of a reflector."""

    state: ReflectorState
    links: Rows[Link]
    rests: Rows[ByteQueue]
    """Incomplete packets."""
    outs: Rows[ByteQueue]
    sessions: Rows[Session]
    stored: Rows[ByteQueue]
    routes: Rows[TopicRoute]
    targets: Rows[RouteTarget]
    dirty: Int32s
    waiting: Int32s
    names: Bytes
    buffer: Bytes
    scratch: Bytes
    epoll_events: Int32s
    words: Int32s
    word: Int64s


# --- memory ------------------------------------------------------------------------------------


@compiled
def _append(queue: ByteQueue, address: int, count: int) -> None:
    """Add bytes to a queue; less than half of the memory in use before them is not reclaimed."""
    if queue.end + count > queue.room and queue.start > queue.room // 2:
        queue.end -= queue.start
        syscalls.move_memory(queue.address, queue.address + queue.start, queue.end)
        queue.start = 0
    if queue.end + count > queue.room:
        queue.room = max(2 * queue.room, queue.end + count, _LEAST_BYTES)
        queue.address = syscalls.resize_memory(queue.address, queue.room)
    syscalls.move_memory(queue.address + queue.end, address, count)
    queue.end += count


@compiled
def _remove(queue: ByteQueue, count: int) -> None:
    """Remove bytes from the front of a queue; free its memory if none are left."""
    queue.start += count
    if queue.start == queue.end:
        syscalls.free_memory(queue.address)
        queue.address = queue.start = queue.end = queue.room = 0


@compiled
def _word_at(r: ReflectorTables, address: int) -> int:
    syscalls.move_memory(r.word.ctypes.data, address, _WORD_BYTES)
    return int(r.word[0])


@compiled
def _set_word(r: ReflectorTables, address: int, word: int) -> None:
    r.word[0] = word
    syscalls.move_memory(address, r.word.ctypes.data, _WORD_BYTES)


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
    """Accept the waiting connections, as long as there are descriptors.

    The listener is edge-triggered: what is left waits until a connection is closed.
    """
    row = 0
    while row >= 0 or row == -errno.ECONNABORTED:
        row = syscalls.accept_socket(r.state.listener, r.words)
        if row >= 0:
            r.links[row].flags = OPEN
            syscalls.watch(r.state.epoll, row, EPOLLIN, row, r.words)


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
    rest = r.rests[row]
    stored = rest.end
    limit = min(len(r.buffer), stored + max(stored, READ_BYTES))
    got = syscalls.receive_into(row, r.buffer, stored, limit)
    if got <= 0:
        return got == -errno.EAGAIN
    if stored > 0:
        syscalls.move_memory(r.buffer.ctypes.data, rest.address, stored)
        _remove(rest, stored)
    state.row = row
    state.position = 0
    state.end = stored + got
    return True


@compiled
def keep_rest(r: ReflectorTables) -> None:
    """End a read: store the bytes of an incomplete packet."""
    state = r.state
    if state.end > state.position:
        address = r.buffer.ctypes.data + state.position
        _append(r.rests[state.row], address, state.end - state.position)
    state.row = 0


@compiled
def close_link(r: ReflectorTables, row: int) -> int:
    """Send as much as the socket accepts, close the connection, and return its session."""
    link, rest, out = r.links[row], r.rests[row], r.outs[row]
    session = link.session
    if out.end > 0:
        _flush(r, row)
    syscalls.close_descriptor(row)
    _remove(rest, rest.end - rest.start)
    _remove(out, out.end - out.start)
    if session > 0:
        r.sessions[session].link = 0
    link.session = link.flags = 0
    if r.state.row == row:
        r.state.row = 0
    _release_held(r)
    _accept(r)
    return session


@compiled
def reply(r: ReflectorTables, row: int, data: Bytes) -> None:
    """Send a packet."""
    _write(r, row, data.ctypes.data, len(data))


@compiled
def _write(r: ReflectorTables, row: int, address: int, count: int) -> None:
    """Add bytes to those that the end of the batch sends."""
    link, state = r.links[row], r.state
    _append(r.outs[row], address, count)
    if not link.flags & (_DIRTY | _BLOCKED):
        link.flags |= _DIRTY
        r.dirty[state.dirty] = row
        state.dirty += 1


@compiled
def _flush(r: ReflectorTables, row: int) -> None:
    """Send bytes; the kernel reports when a full socket has room."""
    link, out = r.links[row], r.outs[row]
    link.flags &= ~_DIRTY
    count = out.end - out.start
    sent = syscalls.send_memory(row, out.address + out.start, count)
    # An error of the connection comes as an event as well.
    _remove(out, count if sent < 0 and sent != -errno.EAGAIN else max(sent, 0))
    was_blocked = link.flags & _BLOCKED
    if out.end > 0:
        link.flags |= _BLOCKED
    else:
        link.flags &= ~_BLOCKED
    if link.flags & _BLOCKED != was_blocked:
        _watch(r, row)
        if was_blocked:
            _release_held(r)


@compiled
def _watch(r: ReflectorTables, row: int) -> None:
    """Let epoll wait for the events that the flags of a connection name."""
    flags = r.links[row].flags
    wanted = (0 if flags & _HELD else EPOLLIN) | (EPOLLOUT if flags & _BLOCKED else 0)
    syscalls.watch_again(r.state.epoll, row, wanted, row, r.words)


@compiled
def _hold(r: ReflectorTables, row: int) -> None:
    """Read no more from a connection until another one has room."""
    if not r.links[row].flags & _HELD:
        r.links[row].flags |= _HELD
        _watch(r, row)
        r.waiting[r.state.held] = row
        r.state.held += 1


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
        status, first_byte, body, end = mqtt.frame(
            r.buffer, state.position, state.end, PACKET_LIMIT_BYTES
        )
        if status == mqtt.INCOMPLETE:
            return 0
        if status != mqtt.OK:
            return CODEC
        packet_type = first_byte >> 4
        if packet_type == PUBLISH:
            reason = _serve_publish(r, row, first_byte, body, end)
            if reason != 0:
                return reason
        elif PUBACK <= packet_type <= PUBCOMP:
            status, packet_id, code = mqtt.ack_fields(
                r.buffer, packet_type, body, end, r.sessions[link.session].version
            )
            if status != mqtt.OK:
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
    state, number = r.state, r.links[row].session
    version = r.sessions[number].version
    status, state.topic, state.topic_end, packet_id, state.payload, seen = mqtt.publish_fields(
        r.buffer, first_byte, body, end, version
    )
    if status != mqtt.OK or seen >> mqtt.TOPIC_ALIAS & 1:
        return CODEC
    state.route = _slot_of(r)
    if r.routes[state.route].generation != state.generation:
        return ROUTE
    qos = first_byte >> 1 & 3
    # A message that is sent again after a lost PUBREC is not forwarded twice.
    if qos < 2 or not _set_received(r, number, packet_id, True):
        state.message_end = end
        state.properties = state.payload
        if version == MQTT_5:
            start = state.topic_end + (2 if qos else 0)
            state.properties = mqtt.read_variable(r.buffer, start, end)[2]
        _forward(r, row, qos)
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
    slot = (number ^ number >> 32) & (len(r.routes) - 1)
    while r.routes[slot].generation == r.state.generation:
        route = r.routes[slot]
        if mqtt.is_same(r.buffer, start, start + length, r.names, route.start, route.end):
            break
        slot = (slot + 1) & (len(r.routes) - 1)
    return int(slot)


@compiled
def _forward(r: ReflectorTables, row: int, sent_qos: int) -> None:
    """Send the message in the buffer to the subscribers of its topic."""
    state = r.state
    route, payload = r.routes[state.route], r.buffer.ctypes.data + state.payload
    index = route.first
    while index < route.last:
        target = r.targets[_member(r, index)]
        index += r.targets[index].members
        session = r.sessions[target.session]
        to, out = session.link, r.outs[session.link]
        if out.end - out.start > _WRITE_HIGH_BYTES:
            _hold(r, row)
        qos = min(sent_qos, target.qos)
        if qos > 0:
            _store(r, target.session, qos)
            _send_stored(r, target.session)
        elif to > 0:
            _write(r, to, r.scratch.ctypes.data, _head(r, session.version, 0, 0))
            _write(r, to, payload, state.message_end - state.payload)


@compiled
def _member(r: ReflectorTables, first: int) -> int:
    """Return the row of the next connected member of a group; of the next if all are absent."""
    group = r.targets[first]
    turn, members = group.turn, group.members
    for offset in range(members):
        row = first + (turn + offset) % members
        if r.sessions[r.targets[row].session].link > 0:
            group.turn = (turn + offset + 1) % members
            return row
    group.turn = (turn + 1) % members
    return first + turn % members


@compiled
def _head(r: ReflectorTables, version: int, qos: int, packet_id: int) -> int:
    """Write the message in the buffer to `scratch`, up to its payload; return the length."""
    state = r.state
    topic, properties = r.buffer[state.topic : state.topic_end], r.buffer[:0]
    if state.payload > state.properties:
        properties = r.buffer[state.properties : state.payload]
    payload_bytes = state.message_end - state.payload
    return mqtt.write_publish(
        r.scratch, 0, qos << 1, topic, packet_id, version, properties, payload_bytes
    )


@compiled
def _write_ack(r: ReflectorTables, row: int, packet_type: int, packet_id: int) -> None:
    mqtt.write_ack(r.scratch, 0, packet_type, packet_id)
    _write(r, row, r.scratch.ctypes.data, 4)


# --- sessions ----------------------------------------------------------------------------------


@compiled
def attach(r: ReflectorTables, number: int, row: int) -> None:
    """Connect a session; send unacknowledged messages again before new ones (section 4.4)."""
    session = r.sessions[number]
    session.link = row
    r.links[row].session = number
    session.in_flight = session.sent = session.sent_bytes = session.released_bytes = 0
    _send_stored(r, number)


@compiled
def end_session(r: ReflectorTables, number: int) -> None:
    session, stored = r.sessions[number], r.stored[number]
    _remove(stored, stored.end - stored.start)
    syscalls.free_memory(session.received)
    session.link = session.lasts = session.in_flight = session.last_id = 0
    session.received = session.sent = session.sent_bytes = session.released_bytes = 0


@compiled
def _set_received(r: ReflectorTables, number: int, packet_id: int, awaits: bool) -> bool:
    """Note if a message of QoS 2 awaits its PUBREL; return True if it did before."""
    session = r.sessions[number]
    if session.received == 0:
        session.received = syscalls.resize_memory(0, _RECEIVED_BYTES)
        for offset in range(0, _RECEIVED_BYTES, _WORD_BYTES):
            _set_word(r, session.received + offset, 0)
    address, bit = session.received + (packet_id >> 6) * _WORD_BYTES, 1 << (packet_id & 63)
    word = _word_at(r, address)
    _set_word(r, address, word | bit if awaits else word & ~bit)
    return word & bit != 0


@compiled
def _store(r: ReflectorTables, number: int, qos: int) -> None:
    """Store the message in the buffer for a session, with the next Packet Identifier."""
    state, session, stored = r.state, r.sessions[number], r.stored[number]
    packet_id = session.last_id % _PACKET_IDS + 1
    session.last_id = packet_id
    head, body = _head(r, session.version, qos, packet_id), state.message_end - state.payload
    r.word[0] = packet_id << _IDENTIFIER_BIT | qos << _QOS_BIT | (head + body)
    _append(stored, r.word.ctypes.data, _WORD_BYTES)
    _append(stored, r.scratch.ctypes.data, head)
    _append(stored, r.buffer.ctypes.data + state.payload, body)


@compiled
def _send_stored(r: ReflectorTables, number: int) -> None:
    """Send stored messages as far as the window allows."""
    session, stored = r.sessions[number], r.stored[number]
    while session.link > 0 and session.in_flight < session.window and session.sent < _PACKET_IDS:
        address = stored.address + stored.start + session.sent_bytes
        if address == stored.address + stored.end:
            return
        word = _word_at(r, address)
        length, state = word & _LENGTH_MASK, word >> _STATE_BIT & 3
        session.sent += 1
        session.sent_bytes += _WORD_BYTES + length
        session.in_flight += state != _COMPLETED
        if state == _RELEASED:
            _write_ack(r, session.link, PUBREL, word >> _IDENTIFIER_BIT)
        elif state == _UNACKNOWLEDGED:
            _write(r, session.link, address + _WORD_BYTES, length)
            # It has DUP if it is sent again.
            r.scratch[0] = PUBLISH << 4 | 8 | (word >> _QOS_BIT & 3) << 1
            syscalls.move_memory(address + _WORD_BYTES, r.scratch.ctypes.data, 1)


@compiled
def _serve_ack(r: ReflectorTables, row: int, packet_type: int, packet_id: int, code: int) -> None:
    """Handle a PUBACK, PUBREC, PUBREL or PUBCOMP (section 4.3)."""
    number = r.links[row].session
    session, stored = r.sessions[number], r.stored[number]
    if packet_type == PUBREL:
        _set_received(r, number, packet_id, False)
        _write_ack(r, row, PUBCOMP, packet_id)
        return
    is_accepted = packet_type == PUBREC and code < 0x80
    before = _RELEASED if packet_type == PUBCOMP else _UNACKNOWLEDGED
    wanted = packet_id << 8 | before
    first, end = stored.address + stored.start, session.sent_bytes
    # Acknowledgements of a kind come in order: the search goes on after the last PUBREC.
    place = session.released_bytes if packet_type == PUBREC else 0
    searched = 0
    while searched < end:
        place = 0 if place >= end else place
        word = _word_at(r, first + place)
        length = _WORD_BYTES + (word & _LENGTH_MASK)
        if word >> _IDENTIFIER_BIT << 8 | word >> _STATE_BIT & 3 == wanted:
            state = _RELEASED if is_accepted else _COMPLETED
            cleared = word & ~(3 << _STATE_BIT)
            _set_word(r, first + place, cleared | state << _STATE_BIT)
            session.in_flight -= not is_accepted
            if packet_type == PUBREC:
                session.released_bytes = place + length
            break
        place += length
        searched += length
    if is_accepted:
        _write_ack(r, row, PUBREL, packet_id)
        return
    while session.sent > 0:
        word = _word_at(r, stored.address + stored.start)
        if word >> _STATE_BIT & 3 != _COMPLETED:
            break
        length = _WORD_BYTES + (word & _LENGTH_MASK)
        session.sent -= 1
        session.sent_bytes -= length
        session.released_bytes = max(session.released_bytes - length, 0)
        _remove(stored, length)
    _send_stored(r, number)
