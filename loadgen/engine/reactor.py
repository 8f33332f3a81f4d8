"""The hot path's two steps in compiled code, straight on the sockets.

`poll` reads every connection that has something, hands the bytes to `traffic.receive` and writes
the acknowledgements. `pump` sends what is due. The epoll set of all plain connections and the
timer is itself one descriptor of the worker's uvloop loop, whose callback serves it; what needs
Python (a CONNACK, a broken connection) is queued as events.

Descriptors are edge-triggered, so no connection costs a call to change what is waited for.
"""

import errno

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.engine.supply import begin_supply, receive_supply, settle_supply
from loadgen.engine.syscalls import (
    EPOLLERR,
    EPOLLET,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    EVENT_DATA,
    EVENT_WORDS,
    arm_timer,
    connect_socket,
    monotonic_ns,
    open_socket,
    receive_into,
    send_from,
    socket_error,
    wait_events,
    watch,
)
from loadgen.workload import traffic
from loadgen.workload.pacer import DUE_NS, heap_pop, heap_replace
from loadgen.workload.traffic import (
    AWAIT_CONNACK,
    BATCH_END,
    BATCH_LIMIT,
    BLOCKED,
    CLOSED_BY_PEER,
    CONNECT_FAILED,
    CONNECTED,
    CONNECTING,
    CONNECTING_COUNT,
    END_NS,
    FD,
    FLAGS,
    GROUP,
    HEAP_SIZE,
    IDLE,
    LISTED,
    PACKET_LIMIT,
    PINGED_NS,
    PUSHED_BACK,
    READY,
    REARM,
    SCHEDULED,
    STATE,
    STREAMED,
    SYN_NS,
    TAIL_BYTES,
    TARGET,
    TCP_NS,
    UNSENT,
    WAITING,
    WINDOW_FULL,
    WRITABLE,
    WRITTEN_NS,
    fill_batch,
    push_bytes,
    push_event,
    receive,
    record,
    settle_batch,
    slot_of,
)

__all__ = ["EVENTS_AT_ONCE", "LINGER", "TIMER", "connect_some", "ping_idle", "poll", "pump"]

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]
Table = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint32]
Records = npt.NDArray[np.void]

EVENTS_AT_ONCE = 256
_READS_AT_ONCE = 4
_MESSAGES_AT_ONCE = 2000
_EAGAIN = errno.EAGAIN
TIMER = -1
"""What the timer is called in the epoll set, where connections have their row."""
LINGER = -2
"""The timer that ends a stay in compiled code; its expiry is all it has to tell."""


@compiled
def poll(
    chain: Table | None,
    timeout_ms: int,
    epoll: int,
    epoll_events: Words,
    ready: Table,
    clock: Table,
    words: Words,
    buffer: Bytes,
    out: Bytes,
    tails: Bytes,
    connect_packets: Bytes,
    connect_ends: Table,
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
) -> int:
    """Wait at most `timeout_ms` and serve what is ready; the number of descriptors that were.

    After the call `totals[EVENTS]` events wait for Python, `totals[READY]` connections were not
    read to the end and want another call, and with `totals[REARM]` `pump` has something to do.
    """
    again = totals[READY]
    totals[READY] = 0
    found = wait_events(epoll, epoll_events, EVENTS_AT_ONCE, 0 if again else timeout_ms)
    for index in range(again + max(found, 0)):
        if index < again:
            connection = ready[index]
            connections[connection, FLAGS] &= ~LISTED
            flags = EPOLLIN | EPOLLRDHUP
        else:
            base = (index - again) * EVENT_WORDS
            connection = int(np.int64(epoll_events[base + EVENT_DATA]))
            flags = int(np.int64(epoll_events[base]))
            if connection < 0:
                if connection == TIMER:
                    totals[REARM] = 1
                continue
        state = connections[connection, STATE]
        descriptor = connections[connection, FD]
        if state == CONNECTING:
            if not flags & (EPOLLOUT | EPOLLERR | EPOLLHUP):
                continue
            now_ns = monotonic_ns(clock)
            error = socket_error(descriptor, words)
            if error != 0:
                push_event(totals, events, CONNECT_FAILED, connection, error, now_ns)
                continue
            group = connections[connection, GROUP]
            since_syn_ns = now_ns - connections[connection, SYN_NS]
            slot = slot_of(group, traffic.S_TCP, traffic.CONNECT_PHASE)
            record(histograms, stats, slot, since_syn_ns)
            connections[connection, TCP_NS] = now_ns
            connections[connection, WRITTEN_NS] = now_ns
            connections[connection, STATE] = AWAIT_CONNACK
            start = connect_ends[connection]
            end = connect_ends[connection + 1]
            written = send_from(descriptor, connect_packets, start, end)
            if written != end - start:
                error = -written if written < 0 else _EAGAIN
                push_event(totals, events, CLOSED_BY_PEER, connection, error, now_ns)
                continue
            # The same edge may tell of bytes, or of the end: a peer that speaks or leaves first.
        if state == IDLE or state == traffic.CLOSED or state == traffic.REFUSED:
            continue
        if flags & EPOLLOUT and connections[connection, FLAGS] & BLOCKED:
            push_event(totals, events, WRITABLE, connection, 0, monotonic_ns(clock))
        if not flags & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP):
            continue
        if connections[connection, FLAGS] & LISTED:
            continue
        for turn in range(_READS_AT_ONCE + 1):
            if turn == _READS_AT_ONCE or not traffic.room_for_events(totals, control, len(out)):
                ready[totals[READY]] = connection
                totals[READY] += 1
                connections[connection, FLAGS] |= LISTED
                break
            tail = connections[connection, TAIL_BYTES]
            if tail > 0:
                buffer[:tail] = tails[connection, :tail]
            got = receive_into(descriptor, buffer, tail, len(buffer))
            now_ns = monotonic_ns(clock)
            if got == -_EAGAIN and tail > 0 and index < again and turn == 0:
                got = 0  # what is kept may be whole packets for which events had no room
            elif got <= 0:
                if got != -_EAGAIN:
                    push_event(totals, events, CLOSED_BY_PEER, connection, -got, now_ns)
                break
            end = tail + got
            if chain is None:
                position, written = receive(
                    buffer,
                    0,
                    end,
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
                    0,
                )
            else:
                position, written = receive_supply(
                    chain,
                    buffer,
                    0,
                    end,
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
                    out,
                    0,
                )
            if end - position > run[PACKET_LIMIT]:
                push_event(totals, events, traffic.BROKEN, connection, 0x95, now_ns)
                break
            connections[connection, TAIL_BYTES] = end - position
            if end > position:
                tails[connection, : end - position] = buffer[position:end]
            if written > 0:
                _answer(
                    descriptor,
                    connection,
                    out,
                    written,
                    now_ns,
                    connections,
                    totals,
                    events,
                    control,
                )
            if end > position and not traffic.room_for_events(totals, control, len(out)):
                continue  # to the list
            # A read that is not full took all there was, but the end of the stream has no edge of
            # its own when it came with the last bytes.
            if end < len(buffer) and not flags & (EPOLLERR | EPOLLHUP | EPOLLRDHUP):
                break
    return found


@compiled
def _answer(
    descriptor: int,
    connection: int,
    out: Bytes,
    end: int,
    now_ns: int,
    connections: Table,
    totals: Table,
    events: Table,
    control: Bytes,
) -> None:
    """Send acknowledgements; what the socket does not take follows through Python."""
    sent = 0
    if not connections[connection, FLAGS] & BLOCKED:
        sent = max(send_from(descriptor, out, 0, end), 0)
        connections[connection, WRITTEN_NS] = now_ns
    if sent < end:
        connections[connection, FLAGS] |= BLOCKED
        push_bytes(totals, events, control, UNSENT, connection, 0, now_ns, out, sent, end)


@compiled
def pump(
    chain: Table | None,
    timer: int,
    tick_ns: int,
    clock: Table,
    out: Bytes,
    batch: Table,
    segments: Table,
    publisher_connection: Table,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
    senders: Records,
    window: Records,
    schedule: Table,
    heap: Table,
    periods_ns: Numbers,
    program: Table,
    topics: Bytes,
    topic_ends: Table,
    body: Bytes,
    body_crc: Table,
    template: Table,
    events: Table,
    control: Bytes,
) -> int:
    """Send what is due and arm the timer for what comes next.

    Messages of streamed connections stay in `out`, one row (connection, start, end) of
    `segments` a batch, for the caller to write; returns the number of such rows.
    """
    position = 0
    used = 0
    messages = 0
    totals[REARM] = 0
    now_ns = monotonic_ns(clock)
    while (
        totals[HEAP_SIZE] > 0
        and heap[0, 0] <= now_ns
        and messages < _MESSAGES_AT_ONCE
        and used < len(segments)
        and traffic.room_for_events(totals, control, len(out))
    ):
        publisher = heap[0, 1]
        connection = publisher_connection[publisher]
        flags = connections[connection, FLAGS]
        if flags & (BLOCKED | WINDOW_FULL) or connections[connection, STATE] != CONNECTED:
            totals[PUSHED_BACK] += 1
            connections[connection, FLAGS] |= WAITING
            totals[HEAP_SIZE] = heap_pop(heap, totals[HEAP_SIZE])
            continue
        if chain is None:
            end, count = fill_batch(
                publisher,
                connection,
                now_ns,
                now_ns,
                BATCH_LIMIT,
                connections,
                groups,
                run,
                totals,
                schedule,
                periods_ns,
                program,
                senders,
                window,
                topics,
                topic_ends,
                body,
                body_crc,
                template,
                out,
                position,
                batch,
            )
        else:
            end, count = begin_supply(
                chain,
                publisher,
                connection,
                now_ns,
                now_ns,
                BATCH_LIMIT,
                connections,
                run,
                totals,
                schedule,
                periods_ns,
                program,
                senders,
                window,
                out,
                position,
                batch,
            )
        window_full = connections[connection, FLAGS] & WINDOW_FULL
        if count == 0 and not window_full and schedule[publisher, DUE_NS] < run[END_NS]:
            break  # `out` is full of streamed messages
        sent = count
        if flags & STREAMED:
            segments[used, 0] = connection
            segments[used, 1] = position
            segments[used, 2] = end
            used += 1
            start = position
            position = end
        else:
            start = position
            if count > 0:
                done = send_from(connections[connection, FD], out, start, end)
                if done != end - start:
                    connections[connection, FLAGS] |= BLOCKED
                    sent = _whole_messages(batch, count, start, max(done, 0))
                    if sent > 0 and batch[sent - 1, BATCH_END] - start > done:
                        push_bytes(
                            totals,
                            events,
                            control,
                            UNSENT,
                            connection,
                            0,
                            now_ns,
                            out,
                            start + done,
                            batch[sent - 1, BATCH_END],
                        )
        messages += count
        if chain is None:
            settle_batch(
                publisher,
                connection,
                count,
                sent,
                now_ns,
                start,
                connections,
                groups,
                run,
                totals,
                schedule,
                senders,
                window,
                counters,
                histograms,
                stats,
                batch,
            )
        else:
            settle_supply(
                chain,
                publisher,
                connection,
                count,
                sent,
                now_ns,
                start,
                connections,
                run,
                totals,
                schedule,
                senders,
                window,
                counters,
                histograms,
                stats,
                batch,
            )
        due_ns = schedule[publisher, DUE_NS]
        if connections[connection, FLAGS] & (BLOCKED | WINDOW_FULL):
            totals[PUSHED_BACK] += 1
            connections[connection, FLAGS] |= WAITING
            totals[HEAP_SIZE] = heap_pop(heap, totals[HEAP_SIZE])
        elif due_ns >= run[END_NS]:
            totals[SCHEDULED] -= 1
            totals[HEAP_SIZE] = heap_pop(heap, totals[HEAP_SIZE])
        else:
            heap_replace(heap, totals[HEAP_SIZE], due_ns, publisher)
        now_ns = monotonic_ns(clock)
    if totals[HEAP_SIZE] > 0:
        arm_timer(timer, max(heap[0, 0], now_ns + tick_ns), clock)
    else:
        arm_timer(timer, 0, clock)
    return used


@compiled
def _whole_messages(batch: Table, count: int, start: int, done: int) -> int:
    """Messages of the batch of which at least one byte was sent: they are on their way."""
    sent = 0
    before = start
    while sent < count and before - start < done:
        before = batch[sent, BATCH_END]
        sent += 1
    return sent


@compiled
def connect_some(
    epoll: int,
    rows: Table,
    source: Bytes,
    addresses: Bytes,
    address_bytes: Table,
    clock: Table,
    words: Words,
    connections: Table,
    totals: Table,
    events: Table,
) -> None:
    """Begin to connect the devices in `rows`.

    `addresses` holds one sockaddr a target (rows), each begun by its family, least byte first;
    `address_bytes` their lengths; `source` is the sockaddr to connect from, empty for the
    kernel's choice.
    """
    for connection in rows:
        target = connections[connection, TARGET]
        connections[connection, STATE] = IDLE
        address = addresses[target, : address_bytes[target]]
        descriptor = open_socket(address[0] | address[1] << 8, source, words)
        now_ns = monotonic_ns(clock)
        if descriptor < 0:
            push_event(totals, events, CONNECT_FAILED, connection, -descriptor, now_ns)
            continue
        connections[connection, FD] = descriptor
        connections[connection, TAIL_BYTES] = 0
        connections[connection, SYN_NS] = now_ns
        connections[connection, STATE] = CONNECTING
        totals[CONNECTING_COUNT] += 1
        result = connect_socket(descriptor, address)
        if result == 0:
            flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
            result = watch(epoll, descriptor, flags, connection, words)
        if result < 0:
            push_event(totals, events, CONNECT_FAILED, connection, -result, now_ns)


@compiled
def ping_idle(
    now_ns: int, keep_alive_ns: Table, pingreq: Bytes, connections: Table, due: Table
) -> int:
    """Send PINGREQ on plain connections that wrote nothing for most of their keep-alive.

    That is half to three quarters of it, a share of each connection's own: devices that fell
    silent together do not ping together. `keep_alive_ns` has one entry a group, 0 for no
    keep-alive. Streamed or blocked connections are listed in `due` for the caller; returns their
    number. PINGED_NS holds the first PINGREQ that waits for its PINGRESP.
    """
    listed = 0
    for connection in range(len(connections)):
        if connections[connection, STATE] != CONNECTED:
            continue
        limit_ns = keep_alive_ns[connections[connection, GROUP]]
        share = 512 + ((connection * 0x9E3779B1 & 0xFFFFFFFF) >> 24)
        silent_ns = now_ns - connections[connection, WRITTEN_NS]
        if limit_ns == 0 or silent_ns < limit_ns // 1024 * share:
            continue
        if connections[connection, FLAGS] & (STREAMED | BLOCKED):
            due[listed] = connection
            listed += 1
        elif send_from(connections[connection, FD], pingreq, 0, 2) == 2:
            connections[connection, WRITTEN_NS] = now_ns
        else:
            continue
        if connections[connection, PINGED_NS] == 0:
            connections[connection, PINGED_NS] = now_ns
    return listed
