"""`poll` and `pump` on real sockets, one step at a time."""

import errno
import os
import resource
import selectors
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loadgen.brokers.ports import listen
from loadgen.kernels import counting, device, reactor
from loadgen.kernels.attention import take_stalls
from loadgen.kernels.counting import EVENT_LIMIT
from loadgen.kernels.in_flight import set_capacity
from loadgen.kernels.payload import HEADER_BYTES, stamp
from loadgen.kernels.syscalls import EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, make_timer, watch
from loadgen.metrics.interval import SERIES
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import ConnAck, PubAck, Publish, SubAck
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes
from loadgen.worker.build_fleet import build_fleet, plan_schedule
from tests.fleets import total_of
from tests.worker.harness import RUN_TAG, header, one_worker_plan

S = 10**9
serve, pump, *_ = reactor.MESSAGING_ENTRY_POINTS
Event = tuple[int, int, int, bytes]


def tcp_pair(send_buffer: int = 0) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a loopback connection, the first non-blocking."""
    with listen("127.0.0.1") as listener:
        listener.setblocking(True)
        near = socket.socket()
        if send_buffer:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
    near.setblocking(False)
    far.settimeout(30)
    return near, far


class Rig:
    """Connected devices of one publishing and one subscribing group, without a worker."""

    def __init__(
        self,
        *,
        publishers: int = 2,
        subscribers: int = 1,
        qos: int = 0,
        rate: float = 2000.0,
        size: tuple[int, int] = (32, 32),
        buffer_bytes: int = 0,
        packet_limit: int = 4096,
        send_buffer: int = 0,
        connected: bool = True,
        port: int = 1,
    ) -> None:
        publishes = Publishes("t/{topic}", rate, qos, size_bytes=size, window=50)
        plan = one_worker_plan(
            DeviceGroup("publishers", publishers, publishes),
            DeviceGroup("subscribers", subscribers, subscribes=Subscribes(("t/+",), 1)),
            max_packet_bytes=packet_limit,
            port=port,
        )
        fleet = build_fleet(plan, plan.workers[0])
        if buffer_bytes:
            fleet.buffer = np.zeros(buffer_bytes, np.uint8)
            fleet.out = np.zeros(buffer_bytes, np.uint8)
            fleet.control = np.zeros(4 * buffer_bytes, np.uint8)
        self.fleet: PlannedFleet = fleet
        self.epoll = selectors.EpollSelector()
        self.timer = make_timer()
        watch(self.epoll.fileno(), self.timer, EPOLLIN | EPOLLET, reactor.TIMER, fleet.words)
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []
        self.pending: dict[int, bytearray] = {}
        fleet.run.epoll, fleet.run.timer = self.epoll.fileno(), self.timer
        for row in range(len(fleet.devices) if connected else 0):
            near, far = tcp_pair(send_buffer)
            self.near.append(near)
            self.far.append(far)
            fleet.devices[row].descriptor = near.fileno()
            fleet.devices[row].state = device.CONNECTED
            flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
            watch(self.epoll.fileno(), near.fileno(), flags, row, fleet.words)
        for row in range(len(fleet.senders)):
            set_capacity(fleet, row, 50)
        self.subscriber = publishers
        if connected:
            self.poll()

    def start(self, start_ns: int, seconds: float = 10.0) -> None:
        self.fleet.run.end_ns = start_ns + int(seconds * S)
        plan_schedule(self.fleet, start_ns)

    def poll(self, linger_ms: int = 0) -> None:
        """Poll once, or for `linger_ms` or until there is an event; pump when the timer says so."""
        serve(self.fleet, linger_ms * 1_000_000)

    def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(20_000):
            if condition():
                return
            self.poll()
            time.sleep(0.0005)
        raise AssertionError("it never came true")

    def pump(self) -> None:
        pump(self.fleet)

    def events(self) -> list[Event]:
        fleet = self.fleet
        found = []
        for kind, connection, value, offset, length, _ in fleet.events[
            : fleet.totals.events
        ].tolist():
            data = fleet.control[offset : offset + length].tobytes() if length else b""
            found.append((kind, connection, value, data))
        fleet.totals.events = 0
        fleet.totals.control_bytes = 0
        return found

    def close(self) -> None:
        for sock in (*self.near, *self.far):
            sock.close()
        os.close(self.timer)
        self.epoll.close()


@pytest.fixture
def make_rig() -> Iterator[Any]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(**options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def message(sequence: int, stream: int = 0, size: int = 32) -> bytes:
    out = np.zeros(size, np.uint8)
    crc = zlib.crc32(bytes(size - HEADER_BYTES))
    stamp(out, 0, RUN_TAG, stream, sequence, 10**12, 10**12, crc)
    return out.tobytes()


def publish(sequence: int, *, qos: int = 0, size: int = 32) -> bytes:
    return encode(Publish("t/0", message(sequence, size=size), qos, packet_id=qos and 7), 4)


def settle(rig: Rig) -> None:
    """Poll until no more bytes arrive; over loopback they arrive at once."""
    quiet = 0
    while quiet < 10:
        rig.poll(1)
        time.sleep(0.001)
        quiet = 0 if rig.fleet.totals.ready else quiet + 1


# --- poll ------------------------------------------------------------------------------------


def test_a_reset_is_told_with_its_errno(make_rig: Any) -> None:
    rig = make_rig()
    far = rig.far[0]
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    settle(rig)
    assert (counting.CLOSED_BY_PEER, 0, errno.ECONNRESET, b"") in rig.events()


def test_a_flood_is_read_in_turns_and_to_its_end(make_rig: Any) -> None:
    rig = make_rig(qos=1, buffer_bytes=1024, packet_limit=256)
    far = rig.far[rig.subscriber]
    count = 3000
    far.setblocking(False)
    data = b"".join(publish(n, qos=1) for n in range(count))
    answers = b""
    quiet = 0
    most_ready = 0
    while quiet < 50 and (total_of(rig.fleet, "received") < count or len(answers) < 4 * count):
        # New edges come while the connection waits for its next turn.
        for _ in range(3):
            try:
                data = data[far.send(data[:600]) :] if data else data
            except BlockingIOError:
                break
        before = total_of(rig.fleet, "received")
        rig.poll()
        taken = total_of(rig.fleet, "received") - before
        # At most four reads of a buffer in a turn: others are served in between.
        assert taken <= 4 * 1024 // 40 + 1
        quiet = 0 if taken or data else quiet + 1
        if not taken:
            time.sleep(0.001)
        most_ready = max(most_ready, rig.fleet.totals.ready)
        assert rig.events() == []
        try:
            answers += far.recv(1 << 16)
        except BlockingIOError:
            continue
    assert total_of(rig.fleet, "received") == count
    assert answers == encode(PubAck(7), 4) * count
    assert most_ready <= 1


def test_many_events_at_once_stay_within_their_array(make_rig: Any) -> None:
    """Fill the queue, while every descriptor has an event that cannot wait."""
    rig = make_rig(publishers=40, subscribers=1)
    fleet = rig.fleet
    assert len(fleet.events) >= EVENT_LIMIT + 2 * reactor.EVENTS_AT_ONCE
    fleet.totals.events = EVENT_LIMIT - 5
    fleet.devices["flags"] |= device.BLOCKED
    for far in rig.far:
        far.sendall(b"\x00\x00" + bytes(10))
    time.sleep(0.01)
    rig.poll(20)
    assert fleet.totals.events < len(fleet.events)
    told = fleet.events["kind"][EVENT_LIMIT - 5 : fleet.totals.events].tolist()
    assert told.count(counting.WRITABLE) == 41
    fleet.totals.events = 0
    seen = told.count(counting.BROKEN)
    for _ in range(20):
        rig.poll(20)
        seen += [event[0] for event in rig.events()].count(counting.BROKEN)
    assert seen == 41


def test_answers_that_do_not_fit_follow_in_order(make_rig: Any) -> None:
    rig = make_rig(send_buffer=4096)
    far = rig.far[rig.subscriber]
    fleet = rig.fleet
    got = b""
    pending = b""
    sent = 0
    while not fleet.devices[rig.subscriber].flags & device.BLOCKED:
        far.sendall(b"".join(publish(sent + n, qos=1) for n in range(1000)))
        sent += 1000
        settle(rig)
        pending += b"".join(event[3] for event in rig.events() if event[0] == counting.UNSENT)
        assert sent < 1_000_000
    # Further answers must not overtake those that wait.
    far.sendall(publish(sent, qos=1))
    settle(rig)
    (event,) = rig.events()
    assert event == (counting.UNSENT, rig.subscriber, 0, encode(PubAck(7), 4))
    pending += event[3]
    while len(got) < 4 * (sent + 1) - len(pending):
        got += far.recv(1 << 20)
    assert got + pending == encode(PubAck(7), 4) * (sent + 1)
    settle(rig)
    assert (counting.WRITABLE, rig.subscriber, 0, b"") in rig.events()


# --- connecting ------------------------------------------------------------------------------


def _connect(rig: Rig, rows: list[int]) -> None:
    f = rig.fleet
    f.waiting[: len(rows)] = rows
    f.connects.first, f.connects.count = 0, len(rows)
    reactor.connect_waiting(f, len(rows))


def test_devices_follow_each_other_without_python_until_the_last(make_rig: Any) -> None:
    """Show Python only the last CONNACK if all are the usual one."""
    with listen("127.0.0.1") as listener:
        listener.setblocking(True)
        listener.settimeout(30)
        port, connack = listener.getsockname()[1], encode(ConnAck(), 4)
        rig = make_rig(connected=False, publishers=4, qos=1, port=port)
        f = rig.fleet
        f.connacks[:, : len(connack)] = np.frombuffer(connack, np.uint8)
        f.groups["connack_bytes"] = len(connack)
        f.groups["capacity"] = 7
        f.senders["capacity"] = 0
        f.waiting[:5] = [4, 0, 1, 2, 3]
        # The queue continues at the begin of the array.
        f.connects.first, f.connects.count, f.connects.in_flight = 1, 5, 2
        for _ in range(5):
            rig.until(lambda: f.totals.connecting > 0)
            assert f.totals.connecting <= 2
            rig.far.append(listener.accept()[0])
            rig.far[-1].sendall(connack)
            settle(rig)
        assert f.connects.count == f.totals.connecting == 0
        assert f.totals.connected == 5
        assert f.senders["capacity"].tolist() == [7] * 4
        assert f.connects.accepted_ns > 0
        assert [event[::3] for event in rig.events()] == [(counting.CONTROL_PACKET, connack)]
        for descriptor in f.devices["descriptor"].tolist():
            os.close(descriptor)


@pytest.mark.parametrize("case", ["other properties", "was away", "session present"])
def test_python_hears_of_a_connack_that_is_not_the_usual_one(make_rig: Any, case: str) -> None:
    rig = make_rig()
    f = rig.fleet
    usual = encode(ConnAck(), 4)
    f.connacks[:, : len(usual)] = np.frombuffer(usual, np.uint8)
    f.groups["connack_bytes"] = len(usual)
    f.totals.connecting = 2  # others are under way
    f.devices[0].state = device.AWAIT_CONNACK
    f.devices[0].returned_ns = device.AWAY if case == "was away" else 0
    properties = Properties(receive_maximum=9) if case == "other properties" else NO_PROPERTIES
    answer = ConnAck(session_present=case == "session present", properties=properties)
    data = encode(answer, 5 if case == "other properties" else 4)
    rig.far[0].sendall(data)
    settle(rig)
    assert (counting.CONTROL_PACKET, 0, 2, data) in rig.events()


def test_without_descriptors_every_device_fails_and_none_counts_as_under_way(make_rig: Any) -> None:
    rig = make_rig(connected=False, publishers=5)
    f = rig.fleet
    f.devices["state"] = device.CLOSED  # as devices that come back
    _connect(rig, [])  # compiled while it can open files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open("/dev/null", os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        _connect(rig, [0, 1, 2])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    failed = [(counting.CONNECT_FAILED, n, errno.EMFILE, b"") for n in range(3)]
    assert rig.events() == failed
    assert f.totals.connecting == 0
    # Not CLOSED: the handler of the event must see a device that is not connected.
    assert f.devices["state"][:3].tolist() == [device.IDLE] * 3


# --- pump ------------------------------------------------------------------------------------


def read_messages(sock: socket.socket, count: int) -> list[Publish]:
    found: list[Publish] = []
    data = b""
    position = 0
    while len(found) < count:
        decoded = decode(data, position, len(data), 4)
        if decoded is None:
            more = sock.recv(1 << 16)
            assert more, f"the end after {len(found)} of {count}"
            data = data[position:] + more
            position = 0
            continue
        packet, position = decoded
        assert isinstance(packet, Publish)
        found.append(packet)
    assert position == len(data)
    return found


def numbers(packets: list[Publish]) -> list[tuple[int, int]]:
    """Return (sequence, intended_ns) of intact payloads."""
    return [header(packet)[1:] for packet in packets]


def test_a_closed_loop_sends_at_the_pace_of_acknowledgements(make_rig: Any) -> None:
    rig = make_rig(qos=1, rate=0.0)
    fleet, window, rounds = rig.fleet, 50, 5
    rig.start(time.monotonic_ns())
    rig.pump()
    for turn in range(1, rounds + 1):
        rig.until(lambda turn=turn: total_of(fleet, "sent") == 2 * window * turn)
        settle(rig)
        assert total_of(fleet, "sent") == 2 * window * turn, "no more than the window"
        for stream, far in enumerate(rig.far[:2]):
            packets = read_messages(far, window)
            assert [one[0] for one in numbers(packets)] == [
                *range(window * (turn - 1), window * turn)
            ]
            sent_late = {bytes(packet.payload)[24:28] for packet in packets}
            assert sent_late == {bytes(4)}, f"stream {stream}: each is due when it is sent"
            if turn == rounds:
                fleet.run.end_ns = time.monotonic_ns()
            far.sendall(b"".join(encode(PubAck(one.packet_id or 0), 4) for one in packets))
    rig.until(lambda: not fleet.totals.scheduled)
    assert total_of(fleet, "sent") == total_of(fleet, "acknowledged") == 2 * window * rounds


def test_what_becomes_due_while_a_tick_is_sent_waits_for_the_next_tick(make_rig: Any) -> None:
    """Let each publisher write once, although all take longer than from message to message."""
    publishers, tick_ns = 200, 5_000_000
    rig = make_rig(publishers=publishers, rate=publishers * 50_000.0, connected=False)
    f = rig.fleet
    f.run.tick_ns = tick_ns
    f.devices["flags"] = device.STREAMED
    f.devices["state"] = device.CONNECTED
    writes = []
    for _ in range(20):  # if the processor is taken away, too much is due for one call
        f.publishers["sequence"] = -1
        begun_ns = time.monotonic_ns() + 2_000_000
        rig.start(begun_ns)
        while time.monotonic_ns() < begun_ns + 30_000:
            pass
        rig.pump()
        writes.append(len(rig.events()))
        assert f.attention.alarm_ns > begun_ns
    assert publishers in writes


def test_what_is_too_much_for_one_tick_does_not_wait_for_the_next(make_rig: Any) -> None:
    rig = make_rig(publishers=10, rate=1_000_000.0)
    f = rig.fleet
    f.run.tick_ns = 50_000_000
    rig.start(time.monotonic_ns() - 10_000_000)
    rig.pump()
    assert f.heap[0].due_ns <= f.attention.alarm_ns <= time.monotonic_ns()


def test_one_call_sends_a_bounded_number_and_comes_back_at_once(make_rig: Any) -> None:
    rig = make_rig(rate=2_000_000.0)
    rig.start(time.monotonic_ns() - 10_000_000)
    rig.pump()
    assert 2000 <= total_of(rig.fleet, "sent") < 5000
    sent = total_of(rig.fleet, "sent")
    rig.until(lambda: total_of(rig.fleet, "sent") > sent)


# --- own delay -------------------------------------------------------------------------


def stat(fleet: PlannedFleet, group: int, series: str) -> list[int]:
    """Return count, least and greatest of a latency series in the window."""
    found = fleet.stats[counting.slot_of(group, SERIES.index(series), counting.MEASURE)]
    return [found.count, found.min_ns, found.max_ns]


def test_the_kernel_says_how_long_a_message_waited_to_be_read(make_rig: Any) -> None:
    rig = make_rig()
    f = rig.fleet
    f.run.end_ns = time.monotonic_ns() + 100 * S
    rig.near[rig.subscriber].setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
    number = -1
    # The kernel begins to record times a while after the request.
    while not stat(f, 1, "own_delay")[0]:
        number += 1
        assert number < 1000
        rig.far[rig.subscriber].sendall(publish(2 * number) + publish(2 * number + 1))
        time.sleep(0.02)
        rig.until(lambda number=number: total_of(f, "received") == 2 * number + 2)
    count, least_ns, _ = stat(f, 1, "own_delay")
    assert number >= reactor.READS_PER_TIMED - 1
    # One read was timed, and counts for the others.
    assert count == 2 * reactor.READS_PER_TIMED
    assert least_ns >= 19_000_000


def test_without_the_kernels_moment_nothing_is_said_of_a_read(make_rig: Any) -> None:
    rig = make_rig()
    for number in range(2 * reactor.READS_PER_TIMED):
        rig.far[rig.subscriber].sendall(publish(number))
        rig.until(lambda number=number: total_of(rig.fleet, "received") == number + 1)
    assert stat(rig.fleet, 1, "own_delay")[0] == 0


def test_what_came_during_a_stall_waited_for_the_worker(make_rig: Any) -> None:
    rig = make_rig()
    f = rig.fleet
    now_ns = time.monotonic_ns()
    f.run.end_ns = now_ns + 100 * S
    rig.far[rig.subscriber].sendall(b"".join(publish(number) for number in range(4)))
    time.sleep(0.01)
    f.attention.seen_ns = f.attention.tick_ns = now_ns - 2 * S
    rig.until(lambda: total_of(f, "received") == 4)
    count, least_ns, most_ns = stat(f, 1, "own_delay")
    assert count == 4
    assert least_ns < 0.6 * S + (time.monotonic_ns() - now_ns)
    assert most_ns >= 1.5 * S
    start_ns, end_ns = take_stalls(f)[0]  # another one may follow on a busy host
    assert start_ns == now_ns - 2 * S
    assert end_ns >= now_ns


@pytest.mark.parametrize("stall_s", [0.0, 0.05], ids=["busy", "after a stall"])
def test_what_python_reads_late_waited_for_the_worker(make_rig: Any, stall_s: float) -> None:
    """Read a message over TLS after others that were ready with it."""
    rig = make_rig()
    f, row = rig.fleet, rig.subscriber
    rig.start(time.monotonic_ns())
    f.run.measure_ns = 1
    f.devices[row].flags |= device.STREAMED
    rig.events()
    rig.far[row].sendall(publish(0))
    f.attention.tick_ns = time.monotonic_ns()
    f.attention.tick_every_ns = S
    time.sleep(stall_s)
    rig.until(lambda: f.totals.events)
    assert [kind for kind, *_ in rig.events()] == [counting.READY]
    time.sleep(0.015)
    data = rig.near[row].recv(100)
    f.buffer[: len(data)] = np.frombuffer(data, np.uint8)
    reactor.MESSAGING_ENTRY_POINTS.receive(f, row, len(data), time.monotonic_ns())
    count, least_ns, _ = stat(f, 1, "own_delay")
    assert count == 1
    assert least_ns >= 15_000_000


def test_what_a_full_window_held_back_is_the_brokers(make_rig: Any) -> None:
    rig = make_rig(publishers=1, qos=1, rate=1000.0)
    f = rig.fleet
    start_ns = time.monotonic_ns() - 100_000_000
    rig.start(start_ns)
    rig.pump()
    # Fifty of a hundred fit into the window; their delay is ours alone.
    assert [stat(f, 0, name)[0] for name in ("send_delay", "pushed_back")] == [50, 0]
    rig.far[0].sendall(b"".join(encode(PubAck(1 + slot), 4) for slot in range(50)))
    rig.until(lambda: total_of(f, "sent") >= 100)
    assert [stat(f, 0, name)[0] for name in ("send_delay", "pushed_back")] == [100, 50]


def test_a_publisher_in_time_is_not_pushed_back_by_what_it_waited_for_before(make_rig: Any) -> None:
    rig = make_rig(publishers=1, qos=1, rate=1000.0)
    f = rig.fleet
    rig.start(time.monotonic_ns() - 49_000_000)
    rig.pump()
    sent = total_of(f, "sent")
    f.devices[0].flags |= device.WAITING | device.WINDOW_FULL
    f.totals.heap_size = 0
    f.publishers[0].due_ns = time.monotonic_ns() + S
    rig.far[0].sendall(encode(PubAck(1), 4))
    rig.until(lambda: not f.devices[0].flags & device.WAITING)
    assert total_of(f, "sent") == sent
    assert not f.devices[0].flags & device.PUSHED_BACK


def test_what_a_stall_made_late_is_ours_though_the_window_was_full(make_rig: Any) -> None:
    rig = make_rig(publishers=1, qos=1, rate=1000.0)
    f = rig.fleet
    now_ns = time.monotonic_ns()
    f.attention.stall_start_ns, f.attention.stall_end_ns = now_ns - 100 * S, now_ns
    rig.start(now_ns - 100 * S, seconds=200)
    rig.pump()
    f.devices[0].flags |= device.PUSHED_BACK
    rig.far[0].sendall(b"".join(encode(PubAck(1 + slot), 4) for slot in range(50)))
    rig.until(lambda: total_of(f, "sent") >= 60)
    assert stat(f, 0, "pushed_back")[0] == 0


# --- serve, ping_idle ------------------------------------------------------------------


def test_serving_returns_when_python_is_needed(make_rig: Any) -> None:
    rig = make_rig()
    f = rig.fleet
    rig.far[0].sendall(encode(SubAck(1, (0,)), 4))
    serve(f, 60 * S)
    assert f.totals.events == 1
    rig.events()
    serve(f, 0)
    assert f.totals.events == 0


def test_silent_connections_ping_and_others_do_not(make_rig: Any) -> None:
    rig = make_rig(publishers=4, subscribers=1)
    f = rig.fleet
    now_ns = 10**12
    f.devices["keep_alive_ns"] = [8 * S] * 4 + [0]
    f.devices["written_ns"] = now_ns - 6 * S
    f.devices[1].written_ns = now_ns - 4 * S + 1
    f.devices[2].state = device.CLOSED
    f.devices[3].flags |= device.BLOCKED
    due = np.zeros(5, np.int64)
    pingreq = np.frombuffer(bytearray(b"\xc0\x00"), np.uint8)
    assert reactor.ping_idle(f, now_ns, pingreq, due) == 1
    assert due[0] == 3
    assert rig.far[0].recv(10) == b"\xc0\x00"
    assert f.devices[0].written_ns == now_ns
    assert f.devices["pinged_ns"].tolist() == [now_ns, 0, 0, now_ns, 0]
    for row in (1, 2, 3, 4):
        rig.far[row].setblocking(False)
        with pytest.raises(BlockingIOError):
            rig.far[row].recv(10)


def test_devices_that_fell_silent_together_do_not_ping_together(make_rig: Any) -> None:
    f = make_rig(publishers=200, subscribers=1).fleet
    f.devices["keep_alive_ns"][:200] = 8 * S
    pingreq = np.frombuffer(bytearray(b"\xc0\x00"), np.uint8)
    due = np.zeros(201, np.int64)
    f.devices["written_ns"] = 10**12
    pinged = []
    for silent_s in (4.0, 4.5, 5.0, 5.5, 6.0):
        reactor.ping_idle(f, 10**12 + int(silent_s * S), pingreq, due)
        pinged.append(int((f.devices["pinged_ns"] > 0).sum()))
    assert pinged[-1] == 200
    for fewer, more in pairwise(pinged):
        assert 30 <= more - fewer <= 70
