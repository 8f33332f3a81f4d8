"""The reflector: connections, subscriptions and messages in compiled code.

Row n of `links`, `rests` and `outs` is the connection with descriptor n. Filters have few *shapes*:
a number of levels, and places of wildcards. In each shape one filter can match a topic. A hash of
its levels leads to its subscribers.
"""

import errno
from typing import Final

from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels import syscalls
from loadgen.kernels.arrays import Arrays, Bytes, Int32, Int32s, Int64, Int64s, Record, Rows
from loadgen.kernels.arrays import read_i64 as word_at
from loadgen.kernels.arrays import read_u8 as byte_at
from loadgen.kernels.compiled import compiled
from loadgen.mqtt import constants as kinds
from loadgen.mqtt.constants import MQTT_3_1, MQTT_3_1_1, MQTT_5

PACKET_LIMIT_BYTES: Final = 16 << 20
EVENTS_AT_ONCE: Final = 256
READ_BYTES: Final = 256 << 10
LEVELS: Final = 64
SHAPES: Final = 1024
_QUEUE_LIMIT_BYTES: Final = 32 << 20  # to a slow client; further messages are dropped
_PACKET_IDS: Final = 65_535
_FILTER_LEVELS: Final = 48
_CODES: Final = 8  # place in `scratch` of the codes of a SUBACK, after its head
_FAILURE: Final = 0x80
_SLASH, _PLUS, _HASH, _DOLLAR = b"/+#$"
_SHARE: Final = int.from_bytes(b"$share/", "little")
_SEED, _PRIME, _MIX = 0x4BF29CE484222325, 0x100000001B3, 0x1E3779B97F4A7C15
_CLOSED, _NEW = 0, 1  # versions of a row without a connection, and before its CONNECT
# A shape: the number of levels, one bit if '#' follows, and a bit for each level that is '+'.
_LEVELS, _REST, _PLUS_BIT = 127, 128, 8


class Link(Record):
    version: Int32
    is_dirty: Int32  # listed in `dirty`
    last_id: Int32
    in_flight: Int32
    message: Int64  # the last one that it received


class ByteQueue(Record):
    """The bytes from `start` to `end` of memory at `address`, which has room for so many."""

    address: Int64
    start: Int64
    end: Int64
    room: Int64


class SubscriptionRecord(Record):
    key: Int64  # the hash of filter and ShareName
    turn: Int64  # the last message for this member of a share
    link: Int32
    qos: Int32


class ReflectorState(Record):
    epoll: Int64
    listener: Int64
    is_starved: Int64  # connections wait for a descriptor
    is_sink: Int64
    dirty: Int64
    shapes: Int64
    message: Int64  # its number, then its places in the buffer
    start: Int64
    topic: Int64
    topic_end: Int64
    payload: Int64
    end: Int64


class ReflectorTables(Arrays):
    """The tables of a reflector.

    `by_key` chains the subscriptions of a bucket of hashes, and `by_link` those of a connection.
    The heads of the chains come after the rows of subscriptions. Row 0 begins the unused ones.
    """

    state: ReflectorState
    links: Rows[Link]
    rests: Rows[ByteQueue]  # incomplete packets
    outs: Rows[ByteQueue]
    dirty: Int32s  # connections with bytes to send
    shapes: Int64s
    shares: Int64s  # the hash of each shape's ShareName, or 0
    subscriptions: Rows[SubscriptionRecord]
    by_key: Int32s
    by_link: Int32s
    levels: Int64s
    greetings: Bytes  # CONNACK of version 3.1.1, in four bytes, and of version 5
    buffer: Bytes
    scratch: Bytes
    events: Int32s
    words: Int32s


# --- connections -------------------------------------------------------------------------------


@compiled
def serve(r: ReflectorTables, turns: int) -> None:
    """Serve connections for a number of turns, without end if it is negative."""
    state = r.state
    while turns != 0:
        turns -= 1
        # A full socket is tried again after a millisecond.
        timeout_ms = 1 if state.dirty else -1
        for event in range(syscalls.wait_events(state.epoll, r.events, EVENTS_AT_ONCE, timeout_ms)):
            row = int(r.events[event * syscalls.EVENT_WORDS + syscalls.EVENT_DATA])
            if row == 0:
                _accept(r)
            elif r.links[row].version != _CLOSED and not _read(r, row):
                _close(r, row)
        dirty, state.dirty = state.dirty, 0
        for place in range(dirty):
            row = int(r.dirty[place])
            out = r.outs[row]
            count = out.end - out.start
            sent = syscalls.send_memory(row, out.address + out.start, count) if count else 0
            # An error of the connection comes as an event as well.
            _remove(out, count if sent < 0 and sent != -errno.EAGAIN else max(sent, 0))
            r.links[row].is_dirty = int(out.end > 0)
            r.dirty[state.dirty] = row
            state.dirty += r.links[row].is_dirty


@compiled
def _accept(r: ReflectorTables) -> None:
    """Accept the waiting connections; without a descriptor they wait until one is closed."""
    row = 0
    while row >= 0 or row == -errno.ECONNABORTED:
        row = syscalls.accept_socket(r.state.listener)
        if row >= 0:
            r.links[row].version = _NEW
            syscalls.watch(r.state.epoll, row, syscalls.EPOLLIN, row, r.words)
    r.state.is_starved = row != -errno.EAGAIN


@compiled
def _read(r: ReflectorTables, row: int) -> bool:
    """Read a socket and serve its packets; return False if the connection has ended."""
    rest = r.rests[row]
    stored = rest.end
    limit = min(len(r.buffer), stored + max(stored, READ_BYTES))
    got = syscalls.receive_into(row, r.buffer, stored, limit)
    if got <= 0:
        return got == -errno.EAGAIN
    if stored > 0:
        syscalls.move_memory(r.buffer.ctypes.data, rest.address, stored)
        _remove(rest, stored)
    start, end = 0, stored + got
    while start < end:
        status, first_byte, body, after = mqtt.frame(r.buffer, start, end, PACKET_LIMIT_BYTES)
        if status == mqtt.INCOMPLETE:
            _append(rest, r.buffer.ctypes.data + start, end - start)
            return True
        r.state.start, r.state.end = start, after
        if status != mqtt.OK or not _serve_packet(r, row, first_byte, body):
            return False
        start = after
    return True


@compiled
def _close(r: ReflectorTables, row: int) -> None:
    link, rest, out, head = r.links[row], r.rests[row], r.outs[row], len(r.subscriptions) + row
    syscalls.close_descriptor(row)
    _remove(rest, rest.end - rest.start)
    _remove(out, out.end - out.start)
    while r.by_link[head]:
        _end_subscription(r, int(r.by_link[head]))
    link.version, link.last_id, link.in_flight = _CLOSED, 0, 0
    if r.state.is_starved:
        _accept(r)


@compiled
def _append(queue: ByteQueue, address: int, count: int) -> None:
    """Append bytes; if they do not fit, move the queue to the front of its memory or enlarge it."""
    if queue.end + count > queue.room and queue.start > queue.room // 2:
        queue.end -= queue.start
        syscalls.move_memory(queue.address, queue.address + queue.start, queue.end)
        queue.start = 0
    if queue.end + count > queue.room:
        queue.room = 2 * (queue.end + count)
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
def _write(r: ReflectorTables, row: int, source: Bytes, start: int, count: int) -> None:
    """Add bytes to those that the end of the turn sends."""
    _append(r.outs[row], source.ctypes.data + start, count)
    if not r.links[row].is_dirty:
        r.links[row].is_dirty = 1
        r.dirty[r.state.dirty] = row
        r.state.dirty += 1


# --- packets -----------------------------------------------------------------------------------


@compiled
def _serve_packet(r: ReflectorTables, row: int, first_byte: int, body: int) -> bool:
    """Serve a packet; return False if the connection must be closed."""
    link, kind = r.links[row], first_byte >> 4
    if link.version == _NEW:
        return kind == kinds.CONNECT and _serve_connect(r, row, body)
    if kind == kinds.PUBLISH:
        return _serve_publish(r, row, first_byte, body)
    if kind in (kinds.SUBSCRIBE, kinds.UNSUBSCRIBE):
        return _serve_subscribe(r, row, kind, body)
    if kinds.PUBACK <= kind <= kinds.PUBCOMP:
        version = link.version
        status, packet_id, code = mqtt.ack_fields(r.buffer, kind, body, r.state.end, version)
        if kind == kinds.PUBREL or (kind == kinds.PUBREC and code < _FAILURE):
            _write_ack(r, row, kind + 1, packet_id)
        else:
            link.in_flight -= 1
        return status == mqtt.OK
    r.scratch[0], r.scratch[1] = kinds.PINGRESP << 4, 0
    _write(r, row, r.scratch, 0, 2)
    return kind == kinds.PINGREQ


@compiled
def _write_ack(r: ReflectorTables, row: int, kind: int, packet_id: int) -> None:
    mqtt.write_ack(r.scratch, 0, kind, packet_id)
    _write(r, row, r.scratch, 0, 4)


@compiled
def _serve_connect(r: ReflectorTables, row: int, body: int) -> bool:
    """Accept a client of any name (section 3.1)."""
    version = byte_at(r.buffer, body + (8 if byte_at(r.buffer, body + 1) == 6 else 6))
    is_5 = version == MQTT_5
    _write(r, row, r.greetings, 4 * is_5, len(r.greetings) - 4 if is_5 else 4)
    r.links[row].version = max(version, MQTT_3_1_1)
    return MQTT_3_1 <= version <= MQTT_5


@compiled
def _serve_subscribe(r: ReflectorTables, row: int, kind: int, body: int) -> bool:
    """Add or end subscriptions (sections 3.8 to 3.11)."""
    is_5, options = int(r.links[row].version == MQTT_5), int(kind == kinds.SUBSCRIBE)
    position, end, count, status = body + 2, r.state.end, 0, mqtt.OK
    if is_5:
        status, _, position = mqtt.read_properties(r.buffer, position, end, kind)
    while status == mqtt.OK and position + 2 < end:
        start = position + 2
        length = byte_at(r.buffer, position) << 8 | byte_at(r.buffer, position + 1)
        position = start + length + options
        if position <= end:
            qos = byte_at(r.buffer, position - 1) & 3 if options else -1
            r.scratch[_CODES + count] = _subscribe(r, row, start, start + length, qos)
            count += 1
    codes = is_5 + (count if options or is_5 else 0)
    r.scratch[0], r.scratch[_CODES - 1] = kind + 1 << 4, 0
    _write(r, row, r.scratch, 0, mqtt.write_variable(r.scratch, 1, 2 + codes))
    _write(r, row, r.buffer, body, 2)
    _write(r, row, r.scratch, _CODES - is_5, codes)
    return status == mqtt.OK and position == end and count > 0


@compiled
def _serve_publish(r: ReflectorTables, row: int, first_byte: int, body: int) -> bool:
    state, qos, subscriptions = r.state, first_byte >> 1 & 3, r.subscriptions
    rows = len(subscriptions)
    status, state.topic, state.topic_end, packet_id, state.payload, seen = mqtt.publish_fields(
        r.buffer, first_byte, body, state.end, r.links[row].version
    )
    if status != mqtt.OK or seen >> mqtt.TOPIC_ALIAS & 1:
        return False
    if not mqtt.is_topic(r.buffer, state.topic, state.topic_end):
        return False
    levels = _read_levels(r, state.topic, state.topic_end)
    state.message += 1
    is_own = byte_at(r.buffer, state.topic) == _DOLLAR  # section 4.7.2
    for number in range(state.shapes):
        shape, share = int(r.shapes[number]), int(r.shares[number])
        wanted = shape & _LEVELS
        if levels < wanted or (levels > wanted and not shape & _REST):
            continue
        if is_own and (shape >> _PLUS_BIT & 1 or wanted == 0):
            continue
        key, chosen = _key_of(r, 0, shape, share), 0
        node = int(r.by_key[rows + (key & rows - 1)])
        while node:
            if subscriptions[node].key == key:
                if not share:
                    _deliver(r, row, node, qos)
                elif not chosen or subscriptions[node].turn < subscriptions[chosen].turn:
                    chosen = node
            node = int(r.by_key[node])
        if chosen:
            subscriptions[chosen].turn = state.message
            _deliver(r, row, chosen, qos)
    if qos:
        _write_ack(r, row, kinds.PUBACK if qos == 1 else kinds.PUBREC, packet_id)
    return True


@compiled
def _deliver(r: ReflectorTables, row: int, node: int, sent_qos: int) -> None:
    """Send the message to a subscriber once, unless its queue or its window of 65,535 is full."""
    state, packet_id, start = r.state, 0, r.state.start
    to, qos = r.subscriptions[node].link, min(sent_qos, r.subscriptions[node].qos)
    link, out = r.links[to], r.outs[to]
    is_repeated = link.message == state.message and r.subscriptions[node].turn != state.message
    is_late = out.end - out.start > _QUEUE_LIMIT_BYTES or (qos and link.in_flight == _PACKET_IDS)
    if is_repeated or is_late:
        return
    link.message = state.message
    if qos:
        link.in_flight += 1
        link.last_id = packet_id = link.last_id % _PACKET_IDS + 1
    if link.version == r.links[row].version and qos == sent_qos:
        # The packet as it came, but for DUP, RETAIN and its identifier.
        r.buffer[start] = kinds.PUBLISH << 4 | qos << 1
        if qos:
            r.buffer[state.topic_end], r.buffer[state.topic_end + 1] = packet_id >> 8, packet_id
    else:
        start = state.payload
        topic, properties = r.buffer[state.topic : state.topic_end], r.buffer[:0]
        if link.version == r.links[row].version == MQTT_5:
            length = state.topic_end + (2 if sent_qos else 0)
            properties = r.buffer[mqtt.read_variable(r.buffer, length, state.end)[2] : start]
        head = mqtt.write_publish(
            r.scratch, 0, qos << 1, topic, packet_id, link.version, properties, state.end - start
        )
        _write(r, to, r.scratch, 0, head)
    _write(r, to, r.buffer, start, state.end - start)


# --- subscriptions -----------------------------------------------------------------------------


@compiled
def _read_levels(r: ReflectorTables, start: int, end: int) -> int:
    """Store a hash for each level of a topic or filter; return its shape, or -1 (section 4.7.1)."""
    count = plus = 0
    begin, number, is_wild = start, _SEED, False
    for position in range(start, end + 1):
        byte = byte_at(r.buffer, position) if position < end else _SLASH
        if byte != _SLASH:
            number = (number ^ byte) * _PRIME
            is_wild |= byte in (_PLUS, _HASH)
            continue
        if is_wild:
            is_rest = byte_at(r.buffer, begin) == _HASH
            if position != begin + 1 or (is_rest and position < end):
                return -1
            if is_rest:
                return plus | _REST | count
            plus |= 1 << _PLUS_BIT + count
        r.levels[count] = number
        count = min(count + 1, LEVELS - 1)
        begin, number, is_wild = position + 1, _SEED, False
    return plus | count


@compiled
def _key_of(r: ReflectorTables, first: int, shape: int, share: int) -> int:
    """Return the hash of a filter, whose levels begin with the first of `levels`."""
    key = (_SEED ^ shape ^ share) * _MIX
    for level in range(shape & _LEVELS):
        if not shape >> _PLUS_BIT + level & 1:
            key = (key ^ int(r.levels[first + level])) * _MIX
        key ^= key >> 29
    return int(key ^ key >> 32)


@compiled
def _subscribe(r: ReflectorTables, row: int, start: int, end: int, qos: int) -> int:
    """Subscribe a client, or end its subscription if `qos` is -1; return the reason code."""
    shape, first, share = _read_levels(r, start, end), 0, 0
    if word_at(r.buffer, start) << 8 == _SHARE << 8 and shape & _LEVELS > 2:
        first, share = 2, int(r.levels[1]) | 1
        shape = shape >> 2 & -1 << _PLUS_BIT | shape & _REST | (shape & _LEVELS) - 2
    if start == end or shape < 0 or shape & _LEVELS > _FILTER_LEVELS or not r.by_link[0]:
        return _FAILURE
    key, rows = _key_of(r, first, shape, share), len(r.subscriptions)
    head, node = rows + row, int(r.by_link[rows + row])
    while node and r.subscriptions[node].key != key:
        node = int(r.by_link[node])
    if node and qos < 0:
        _end_subscription(r, node)
    if qos < 0 or r.state.is_sink:
        return max(qos, 0)
    if not node:
        # A new shape is added after the others.
        r.shapes[r.state.shapes], r.shares[r.state.shapes] = shape, share
        number = 0
        while r.shapes[number] != shape or r.shares[number] != share:
            number += 1
        r.state.shapes = min(max(r.state.shapes, number + 1), SHAPES - 1)
        node, bucket = int(r.by_link[0]), rows + (key & rows - 1)
        r.by_link[0] = r.by_link[node]
        r.by_link[node], r.by_link[head] = r.by_link[head], node
        r.by_key[node], r.by_key[bucket] = r.by_key[bucket], node
        r.subscriptions[node].key, r.subscriptions[node].link = key, row
        r.subscriptions[node].turn = r.state.message
    r.subscriptions[node].qos = qos
    return qos


@compiled
def _end_subscription(r: ReflectorTables, node: int) -> None:
    subscription, rows = r.subscriptions[node], len(r.subscriptions)
    _unchain(r.by_key, rows + (subscription.key & rows - 1), node)
    _unchain(r.by_link, rows + subscription.link, node)
    r.by_link[node], r.by_link[0] = r.by_link[0], node


@compiled
def _unchain(chain: Int32s, head: int, node: int) -> None:
    while chain[head] != node:
        head = int(chain[head])
    chain[head] = chain[node]
