"""The hot path in compiled code: reading and writing of sockets.

`poll` reads every ready connection and answers, `pump_due` sends due messages. The epoll set is
itself one descriptor of the worker's loop. Descriptors are edge-triggered, so that no call is
needed to change their events. Events are queued for Python.
"""

import errno
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from loadgen.kernels import counting, syscalls
from loadgen.kernels.arrays import Bytes, Int64s, copy_bytes
from loadgen.kernels.attention import NEVER_NS, attend, tick_or, wake_ns
from loadgen.kernels.compiled import compiled
from loadgen.kernels.device import (
    BLOCKED,
    CLOSED,
    CONNECT,
    CONNECTED,
    CONNECTING,
    IDLE,
    LISTED,
    OPEN,
    REFUSED,
    RETRY,
    STREAMED,
    WAITING,
    WINDOW_FULL,
    transition,
)
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.pacer import heap_pop, heap_replace
from loadgen.kernels.receiver import MESSAGING, SCRATCH_BYTES, receive_packets
from loadgen.kernels.sender import BATCH_LIMIT, record_sent, redeliver_some, send_due
from loadgen.kernels.syscalls import (
    EPOLLERR,
    EPOLLET,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    monotonic_ns,
    send_from,
)
from loadgen.mqtt.reason_codes import ReasonCode

EVENTS_AT_ONCE = 256
_READS_AT_ONCE = 4
READS_PER_TIMED = 7
"""One read of seven is timed by the kernel's clock. With ten, and ten subscribers of a topic, it
would always be the same subscriber."""
_MESSAGES_AT_ONCE = 2000
_BYTES_LIKE_A_MESSAGE = 4096  # bytes of a separate body that take as long as a message
_EAGAIN = errno.EAGAIN
_PACKET_TOO_LARGE = int(ReasonCode.PACKET_TOO_LARGE)
ENDED = EPOLLERR | EPOLLHUP | EPOLLRDHUP
TIMER = -1  # data of the timer in the epoll set; that of a connection is its row
LINGER = -2  # the timer of the tick, and of the end of a stay in compiled code
CHANNEL = -3  # the channel of the coordinator


ReceiveKernel = Callable[[Fleet, int, int, int], tuple[int, int]]
"""(fleet, row, end, now_ns): `receive_packets` of fleet.buffer[:end]."""


class EntryPoints(NamedTuple):
    """The kernels of a worker that Python calls, compiled for the handlers of its case."""

    serve: Callable[[Fleet, int], None]
    pump: Callable[[Fleet], None]
    receive: ReceiveKernel
    redeliver: Callable[[Fleet, int, bool, Int64s, int, int], tuple[int, int, int]]


# --- reading -----------------------------------------------------------------------------------


@compiled
def poll(fleet: Fleet, timeout_ms: int, asked_ns: int, handlers: Handlers) -> int:
    """Wait at most `timeout_ms` and serve ready descriptors; return the end of the wait in ns.

    `asked_ns` is the time for which a timer is armed. After the call `totals` has the events for
    Python, the `ready` devices that need another call, and `rearm` if `pump_due` has to be called.
    """
    totals = fleet.totals
    again = totals.ready
    totals.ready = 0
    epoll_events = fleet.epoll_events
    wait_ms = 0 if again else timeout_ms
    events = syscalls.wait_events(fleet.run.epoll, epoll_events, EVENTS_AT_ONCE, wait_ms)
    now_ns = monotonic_ns(fleet.clock)
    attend(fleet, now_ns, asked_ns)
    for index in range(again):
        row = fleet.ready[index]
        fleet.devices[row].flags &= ~LISTED
        _serve_device(fleet, row, EPOLLIN | EPOLLRDHUP, True, handlers)
    for index in range(max(events, 0)):
        base = index * syscalls.EVENT_WORDS
        row = int(np.int64(epoll_events[base + syscalls.EVENT_DATA]))
        if row >= 0:
            _serve_device(fleet, row, int(np.int64(epoll_events[base])), False, handlers)
        elif row == TIMER:
            totals.rearm = 1
        elif row == CHANNEL:
            fleet.attention.called = 1
    return now_ns


@compiled
def _serve_device(fleet: Fleet, row: int, flags: int, listed: bool, handlers: Handlers) -> None:
    """Handle the edge of a descriptor."""
    device = fleet.devices[row]
    state = device.state
    if state == CONNECTING and device.tcp_ns < device.syn_ns:
        if not flags & (EPOLLOUT | EPOLLERR | EPOLLHUP) or not _begin_session(fleet, row):
            return
        # The same edge may report bytes, or the end, of a peer that sends or closes first.
    elif state in (IDLE, CLOSED, REFUSED):
        return
    if device.flags & STREAMED:
        if counting.room_for_events(fleet, 0):
            counting.push_event(fleet, counting.READY, row, flags, monotonic_ns(fleet.clock))
        elif not device.flags & LISTED:
            _list(fleet, row)
        return
    if flags & EPOLLOUT and device.flags & BLOCKED:
        counting.push_event(fleet, counting.WRITABLE, row, 0, monotonic_ns(fleet.clock))
    if flags & (EPOLLIN | ENDED) and not device.flags & LISTED:
        _read(fleet, row, flags, listed, handlers)


@compiled
def _begin_session(fleet: Fleet, row: int) -> bool:
    """Send CONNECT after TCP has connected, unless TLS or WebSocket comes first; return success."""
    device = fleet.devices[row]
    now_ns = monotonic_ns(fleet.clock)
    error = syscalls.socket_error(device.descriptor, fleet.words)
    if error != 0:
        counting.push_event(fleet, counting.CONNECT_FAILED, row, error, now_ns)
        return False
    counting.record(
        fleet,
        counting.slot_of(device.group, counting.S_TCP, counting.CONNECT_PHASE),
        now_ns - device.syn_ns,
    )
    device.tcp_ns = now_ns
    if device.flags & STREAMED:
        return True
    device.written_ns = now_ns
    transition(fleet, row, OPEN)
    start = fleet.connect_ends[row]
    end = fleet.connect_ends[row + 1]
    written = send_from(device.descriptor, fleet.connect_packets, start, end)
    if written != end - start:
        counting.push_event(
            fleet, counting.CLOSED_BY_PEER, row, -written if written < 0 else _EAGAIN, now_ns
        )
        return False
    return True


@compiled
def _read(fleet: Fleet, row: int, flags: int, listed: bool, handlers: Handlers) -> None:
    """Read from a device a few times; it is listed in `ready` if there may be more."""
    device = fleet.devices[row]
    attention, buffer = fleet.attention, fleet.buffer
    # Bytes that a slow reader leaves in its socket wait on purpose: no own delay.
    most = fleet.groups[device.group].read_most
    for turn in range(_READS_AT_ONCE):
        if not counting.room_for_events(fleet, len(fleet.out)):
            break
        stored = device.partial_bytes
        if stored > 0:
            copy_bytes(buffer, 0, fleet.partial[row], 0, stored)
        limit = len(buffer) - SCRATCH_BYTES
        if most > 0:
            limit = min(limit, stored + most)
        timed = False
        if most == 0:
            attention.untimed_reads += 1
            # After a stall all reads are timed.
            timed = attention.missed_ns > 0 or attention.untimed_reads == READS_PER_TIMED
        if timed:
            attention.untimed_reads = 0
            got = syscalls.receive_timed(device.descriptor, buffer, stored, limit, fleet.message)
        else:
            got = syscalls.receive_into(device.descriptor, buffer, stored, limit)
        now_ns = monotonic_ns(fleet.clock)
        if got == -_EAGAIN and stored > 0 and listed and turn == 0:
            got = 0  # the stored bytes may be complete packets for which events had no room
        elif got <= 0:
            if got != -_EAGAIN:
                counting.push_event(fleet, counting.CLOSED_BY_PEER, row, -got, now_ns)
            return
        end = stored + got
        before = fleet.totals.publishes
        waited_ns = syscalls.age_ns(fleet.message) if timed else 0
        position, written = receive_packets(fleet, row, end, now_ns, handlers)
        if timed:
            messages = fleet.totals.publishes - before
            _record_own_delay(fleet, row, messages, waited_ns, now_ns, READS_PER_TIMED)
        if not keep_partial(fleet, row, position, end, now_ns):
            return
        if written > 0:
            _answer(fleet, row, written, now_ns)
        if most > 0:
            return
        if end > position and not counting.room_for_events(fleet, len(fleet.out)):
            continue  # and list the device
        # A read that is not full took all bytes, but the end of the stream has no separate edge
        # if it came with the last bytes.
        if end < limit and not flags & ENDED:
            return
    _list(fleet, row)


@compiled
def _list(fleet: Fleet, row: int) -> None:
    """Add a device to those that are served again without a new event of epoll."""
    fleet.ready[fleet.totals.ready] = row
    fleet.totals.ready += 1
    fleet.devices[row].flags |= LISTED


@compiled
def _record_own_delay(
    fleet: Fleet, row: int, messages: int, waited_ns: int, now_ns: int, reads: int
) -> None:
    """Count the own delay of the messages of a read.

    `waited_ns` is the delay of the last message, -1 if unknown. The others are assumed to have
    arrived with it, and count for `reads` reads; after a stall, evenly since its begin.
    """
    phase = min(counting.phase_of(fleet.run, now_ns), counting.MEASURE)
    slot = counting.slot_of(fleet.devices[row].group, counting.S_OWN_DELAY, phase)
    if fleet.attention.missed_ns > 0:
        least_ns, most_ns = max(waited_ns, 0), now_ns - fleet.attention.missed_ns
        for place in range(messages):
            counting.record(fleet, slot, least_ns + (most_ns - least_ns) * place // messages)
    elif messages > 0 and waited_ns >= 0:
        counting.record(fleet, slot, waited_ns, messages * reads)


@compiled
def keep_partial(fleet: Fleet, row: int, start: int, end: int, now_ns: int) -> bool:
    """Store fleet.buffer[start:end], an incomplete packet; return False if it is too large."""
    if fleet.devices[row].body_left > 0:
        return True  # the head of a streamed body is stored already
    if end - start > fleet.run.whole_limit:
        counting.push_event(fleet, counting.BROKEN, row, _PACKET_TOO_LARGE, now_ns)
        return False
    fleet.devices[row].partial_bytes = end - start
    if end > start:
        copy_bytes(fleet.partial[row], 0, fleet.buffer, start, end - start)
    return True


@compiled
def _answer(fleet: Fleet, row: int, end: int, now_ns: int) -> None:
    """Send answers; Python sends what the socket does not take."""
    device = fleet.devices[row]
    sent = 0
    if not device.flags & BLOCKED:
        sent = max(send_from(device.descriptor, fleet.out, 0, end), 0)
        device.written_ns = now_ns
    if sent < end:
        device.flags |= BLOCKED
        counting.push_bytes(fleet, counting.UNSENT, row, 0, now_ns, fleet.out, sent, end)


# --- sending -----------------------------------------------------------------------------------


@compiled
def pump_due(fleet: Fleet, handlers: Handlers) -> None:
    """Send due messages and arm the timer for the next ones."""
    totals = fleet.totals
    heap = fleet.heap
    messages = 0
    totals.rearm = 0
    tick_ns = fleet.run.tick_ns
    now_ns = monotonic_ns(fleet.clock)
    begun_ns = now_ns
    while (
        totals.heap_size > 0
        and heap[0].due_ns <= begun_ns
        and messages < _MESSAGES_AT_ONCE
        and counting.room_for_events(fleet, len(fleet.out))
    ):
        number = heap[0].publisher
        row = fleet.publishers[number].device
        device = fleet.devices[row]
        if device.flags & (BLOCKED | WINDOW_FULL) or device.state != CONNECTED:
            _wait(fleet, row)
            continue
        end, count = send_due(fleet, number, begun_ns, now_ns, BATCH_LIMIT, handlers)
        sent = count
        if count > 0:
            sent = _send_batch(fleet, row, end, count, now_ns)
            messages += count + fleet.batch[0].body_bytes // _BYTES_LIKE_A_MESSAGE
        record_sent(fleet, number, count, sent, now_ns, handlers)
        _next_turn(fleet, number, row)
        now_ns = monotonic_ns(fleet.clock)
        if tick_ns == 0:
            begun_ns = now_ns
    moment_ns = 0
    if totals.heap_size > 0:
        due_ns = heap[0].due_ns
        # Messages that were due and did not fit into this call do not wait for the next tick.
        moment_ns = max(due_ns, now_ns if due_ns <= begun_ns else begun_ns + tick_ns)
    fleet.attention.alarm_ns = moment_ns
    syscalls.arm_timer(fleet.run.timer, moment_ns, fleet.clock)


@compiled
def _wait(fleet: Fleet, row: int) -> None:
    """Remove the first publisher, that of the device, from the heap until it may send."""
    totals = fleet.totals
    fleet.devices[row].flags |= WAITING
    totals.heap_size = heap_pop(fleet.heap, totals.heap_size)


@compiled
def _next_turn(fleet: Fleet, number: int, row: int) -> None:
    """Move the first publisher of the heap to the place of its next message."""
    totals = fleet.totals
    due_ns = fleet.publishers[number].due_ns
    if fleet.devices[row].flags & (BLOCKED | WINDOW_FULL):
        _wait(fleet, row)
    elif due_ns >= fleet.run.end_ns:
        totals.scheduled -= 1
        totals.heap_size = heap_pop(fleet.heap, totals.heap_size)
    else:
        heap_replace(fleet.heap, totals.heap_size, due_ns, number)


@compiled
def _send_batch(fleet: Fleet, row: int, end: int, count: int, now_ns: int) -> int:
    """Write out[:end] to the socket; return how many of its messages are sent."""
    device = fleet.devices[row]
    body, body_bytes = fleet.groups[device.group].body_first, fleet.batch[0].body_bytes
    if device.flags & STREAMED:
        counting.push_bytes(fleet, counting.UNSENT, row, 0, now_ns, fleet.out, 0, end)
        _leave_body(fleet, row, body, body + body_bytes, now_ns)
        return count
    done = send_from(device.descriptor, fleet.out, 0, end)
    if done == end:
        if body_bytes > 0:
            done = max(send_from(device.descriptor, fleet.body, body, body + body_bytes), 0)
            if done < body_bytes:
                device.flags |= BLOCKED
                _leave_body(fleet, row, body + done, body + body_bytes, now_ns)
        return count
    device.flags |= BLOCKED
    # Messages with at least one sent byte count as sent.
    sent, begun_end = 0, 0
    while sent < count and begun_end < done:
        begun_end = fleet.batch[sent].end
        sent += 1
    if sent > 0:
        if begun_end > done:
            counting.push_bytes(fleet, counting.UNSENT, row, 0, now_ns, fleet.out, done, begun_end)
        _leave_body(fleet, row, body, body + body_bytes, now_ns)
    return sent


@compiled
def _leave_body(fleet: Fleet, row: int, start: int, end: int, now_ns: int) -> None:
    """Queue a part of a body for Python to write."""
    if start < end:
        event = fleet.events[fleet.totals.events]
        counting.push_event(fleet, counting.UNSENT_BODY, row, start, now_ns)
        event.length = end - start


# --- both --------------------------------------------------------------------------------------


@compiled
def serve_devices(fleet: Fleet, linger_ns: int, handlers: Handlers) -> None:
    """Poll and pump until Python is needed or `linger_ns` are over.

    The linger timer is armed for the tick or the end of the stay (-1 for none): a timeout of each
    wait would make the kernel program a timer, which costs more than the wait.
    """
    totals, attention = fleet.totals, fleet.attention
    now_ns = monotonic_ns(fleet.clock)
    end_ns = now_ns + linger_ns
    asked_ns = wake_ns(fleet, tick_or(fleet, NEVER_NS))
    timeout_ms = 0
    attention.called = 0
    until_ns = _arm_linger(fleet, end_ns, now_ns)
    while True:
        now_ns = poll(fleet, timeout_ms, asked_ns, handlers)
        if now_ns >= until_ns:
            if 0 < attention.tick_ns <= now_ns:
                attention.tick_ns = now_ns + attention.tick_every_ns
                if attention.stalls == 0:  # from these the cause of the next stall is found
                    busy_ns, waited_ns = syscalls.processor_times(fleet.run.account, fleet.buffer)
                    attention.busy_ns, attention.waited_ns = busy_ns, waited_ns
            until_ns = _arm_linger(fleet, end_ns, now_ns)
        if totals.rearm:
            pump_due(fleet, handlers)
        connects = fleet.connects
        if connects.count > 0 and connects.in_flight > 0:
            free = min(connects.in_flight - totals.connecting, counting.EVENT_LIMIT - totals.events)
            connect_waiting(fleet, min(connects.count, free))
        if totals.events > 0 or attention.stalls > 0 or attention.called > 0 or now_ns >= end_ns:
            return
        asked_ns = wake_ns(fleet, until_ns)
        timeout_ms = -1
        if fleet.run.linger_timer < 0:
            timeout_ms = (max(until_ns - now_ns, 0) + 999_999) // 1_000_000


@compiled
def _arm_linger(fleet: Fleet, end_ns: int, now_ns: int) -> int:
    """Arm the linger timer for the tick, or for `end_ns` if it is earlier; return the time."""
    until_ns = tick_or(fleet, end_ns if end_ns > now_ns else NEVER_NS)
    if fleet.run.linger_timer >= 0:
        syscalls.arm_timer(
            fleet.run.linger_timer, until_ns if until_ns < NEVER_NS else 0, fleet.clock
        )
    return until_ns


@cache
def entry_points(handlers: Handlers) -> EntryPoints:
    """Return the kernels of a worker whose devices handle messages in this way."""

    @compiled
    def serve(fleet: Fleet, linger_ns: int) -> None:
        serve_devices(fleet, linger_ns, handlers)

    @compiled
    def pump(fleet: Fleet) -> None:
        pump_due(fleet, handlers)

    @compiled
    def receive(fleet: Fleet, row: int, end: int, now_ns: int) -> tuple[int, int]:
        # The buffer is not an argument: numba would count the references to an array from Python
        # for each message, which costs more than the message.
        before = fleet.totals.publishes
        position, written = receive_packets(fleet, row, end, now_ns, handlers)
        messages, since_ns = fleet.totals.publishes - before, now_ns - fleet.attention.seen_ns
        _record_own_delay(fleet, row, messages, since_ns, now_ns, 1)
        return position, written

    @compiled
    def redeliver(
        fleet: Fleet, row: int, session_present: bool, slots: Int64s, count: int, now_ns: int
    ) -> tuple[int, int, int]:
        return redeliver_some(fleet, row, session_present, slots, count, now_ns, handlers)

    return EntryPoints(serve, pump, receive, redeliver)


MESSAGING_ENTRY_POINTS = entry_points(MESSAGING)


# --- connecting --------------------------------------------------------------------------------


@compiled
def connect_waiting(fleet: Fleet, count: int) -> None:
    """Begin to connect the next `count` devices of the queue; each may leave an event."""
    connects = fleet.connects
    for _ in range(count):
        row = int(np.int64(fleet.waiting[connects.first]))
        connects.first = (connects.first + 1) % len(fleet.waiting)
        connects.count -= 1
        device = fleet.devices[row]
        transition(fleet, row, RETRY)
        address = fleet.addresses[device.target, : fleet.address_bytes[device.target]]
        family, is_slow = address[0] | address[1] << 8, fleet.groups[device.group].read_most > 0
        source = fleet.source[device.group, : fleet.source_bytes[device.group]]
        descriptor = syscalls.open_socket(family, source, is_slow, fleet.words)
        now_ns = monotonic_ns(fleet.clock)
        if descriptor < 0:
            counting.push_event(fleet, counting.CONNECT_FAILED, row, -descriptor, now_ns)
            continue
        flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        if is_slow:
            flags = EPOLLOUT | EPOLLRDHUP | EPOLLET  # at the times of `Poller.read_slowly`
        device.descriptor = descriptor
        device.partial_bytes = 0
        device.pings = 0
        device.body_left = 0
        device.syn_ns = now_ns
        transition(fleet, row, CONNECT)
        result = syscalls.connect_socket(descriptor, address)
        if result == 0:
            result = syscalls.watch(fleet.run.epoll, descriptor, flags, row, fleet.words)
        if result < 0:
            counting.push_event(fleet, counting.CONNECT_FAILED, row, -result, now_ns)


@compiled
def ping_idle(fleet: Fleet, now_ns: int, pingreq: Bytes, due: Int64s) -> int:
    """Send PINGREQ on plain connections that wrote nothing for most of their keep-alive.

    That is half to three quarters of it, different for each connection, so that they do not ping
    together. Streamed or blocked ones are listed in `due` for the caller; return their number.
    """
    listed = 0
    for row in range(len(fleet.devices)):
        device = fleet.devices[row]
        if device.state != CONNECTED:
            continue
        limit_ns = device.keep_alive_ns
        share = 512 + ((row * 0x9E3779B1 & 0xFFFFFFFF) >> 24)
        if limit_ns == 0 or now_ns - device.written_ns < limit_ns // 1024 * share:
            continue
        if device.flags & (STREAMED | BLOCKED):
            due[listed] = row
            listed += 1
        elif send_from(device.descriptor, pingreq, 0, 2) == 2:
            device.written_ns = now_ns
        else:
            continue
        device.pings += 1
        if device.pinged_ns == 0:
            device.pinged_ns = now_ns
    return listed
