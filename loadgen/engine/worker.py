"""One worker process: plays its share of the devices and obeys the coordinator step by step.

`run_worker` reads as the life of a run: configure, connect, subscribe, start, stop. The
commands and their answers are frames (`frames.py`); interval rows, events and the count of what
was still owed at the end of the window come unasked.
"""

import asyncio
import ctypes
import errno
import gc
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import uvloop
from pydantic import TypeAdapter

from loadgen.engine.connector import Connector
from loadgen.engine.context import address_table, pump_fleet, serve_fleet
from loadgen.engine.devices import device_columns
from loadgen.engine.fleet import (
    Fleet,
    build_fleet,
    connect_packet,
    plan_schedule,
    poll_arguments,
    pump_arguments,
    read_clients,
)
from loadgen.engine.frames import FrameReader, encode_frame
from loadgen.engine.live import Live, open_live_page
from loadgen.engine.reactor import LINGER, TIMER, ping_idle
from loadgen.engine.recorder import owed_by_group, process_times, take_intervals
from loadgen.engine.streams import Streams, say_hello_and_goodbye
from loadgen.engine.syscalls import EPOLLET, EPOLLIN, arm_timer, make_timer, watch
from loadgen.errors import CannotRunError, LoadgenError
from loadgen.metrics.interval import COUNTERS
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.in_flight import forget_received, redelivery_order, reset, set_capacity
from loadgen.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    SubAck,
    Subscribe,
    Subscription,
)
from loadgen.mqtt.reason_codes import reason_name
from loadgen.workload import traffic
from loadgen.workload.groups import DeviceGroup, Reconnect, RunPlan, topic_filter
from loadgen.workload.pacer import with_rate
from loadgen.workload.traffic import (
    AWAIT_CONNACK,
    BLOCKED,
    CLOSED,
    CONNECTED,
    CONNECTED_COUNT,
    CONNECTING,
    CONNECTING_COUNT,
    END_NS,
    EVENTS,
    FD,
    FLAGS,
    MEASURE_NS,
    READY,
    REARM,
    REQUEST_NS,
    SENDER,
    STATE,
    STREAMED,
)

__all__ = ["SUBSCRIBE_ID", "Worker", "run_worker", "warm"]

Header = dict[str, Any]

_NS = 1_000_000_000
_LEASE_S = 20.0
_SUBSCRIBES_IN_FLIGHT = 256
_EVENTS_OF_A_KIND = 20
_CHURN_S = 0.02
_CHURN_TRIES = 20  # to find one that is there; with nearly all away, fewer leave
_LEFT = "left for a while"
_STALE_S = 0.1  # how long an acknowledgement waits for others of its batch
_LINGER_NS = 5_000_000  # the loop's other business can wait this long while there is traffic
_RECEIVE_MAXIMUM = 65_535  # where CONNACK names none (MQTT 5, 3.2.2.3.3)
SUBSCRIBE_ID = 65_535  # above every identifier of the in-flight window
_PR_SET_TIMERSLACK = 29
_PACKET_LIMIT = 1 << 20
_PINGREQ = np.frombuffer(bytearray(encode(PingReq(), 4)), np.uint8)

_plans = TypeAdapter(RunPlan)


@lru_cache(maxsize=64)
def _decoded(data: bytes, version: int) -> Packet:
    """A control packet; most devices get the same bytes."""
    found = decode(data, 0, len(data), version, _PACKET_LIMIT)
    if found is None:
        raise CannotRunError("a packet ended before its length")
    return found[0]


def _errno_reason(number: int) -> str:
    return "closed by the broker" if number == 0 else errno.errorcode.get(number, str(number))


def _subscribe_failure(codes: Sequence[int], asked_qos: int, version: int) -> str | None:
    """Why a SUBACK is not what was asked for: refused, or granted less (MQTT 5, 3.9.3)."""
    if max(codes) >= 0x80:
        return reason_name(max(codes), version)
    if min(codes) < asked_qos:
        return f"granted QoS {min(codes)} instead of {asked_qos}"
    return None


def _may_leave(group: DeviceGroup) -> bool:
    """Whether a device of the group can be away without a message being lost by it."""
    if group.subscribes is not None:
        return not group.clean_start and group.subscribes.qos > 0
    return group.publishes is not None


class Worker:
    """State of one worker; every method runs on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport) -> None:
        self.loop = loop
        self.channel = transport
        self.finished = loop.create_future()
        self.heard_s = loop.time()
        self.was_silent = False
        self.phase = "connect"
        self.fleet: Fleet
        self.row = 0
        self.live: npt.NDArray[np.int64]
        self.anchor_ns = 0
        self.interval_start_ns = 0
        self.times = process_times()
        self.failures: Counter[str] = Counter()
        self.failed_subscribes: Counter[str] = Counter()
        self.event_counts: Counter[str] = Counter()
        self.pending: dict[int, bytearray] = {}
        self.last_connected_ns = 0
        self.connector: Connector
        self.subscribers: list[int] = []
        self.subscribing: set[int] = set()
        self.asked_qos: dict[int, int] = {}
        self.subscribes_done: asyncio.Future[None] | None = None
        self.last_subscribed_ns = 0
        self.streams: Streams | None = None
        self.churning: list[int] = []
        self.churn_per_s = 0.0
        self.churned_s = 0.0
        self.leaving = 0.0
        self.left: set[int] = set()
        self.left_and_returned = 0
        self.stopping = False
        self.poll_table: npt.NDArray[np.int64]
        self.pump_table: npt.NDArray[np.int64]
        self.chain_table: npt.NDArray[np.int64] | None = None
        self.operations: dict[str, Callable[[Header], Awaitable[Header]]] = {
            "configure": self.configure,
            "connect": self.connect,
            "subscribe": self.subscribe,
            "start": self.start,
            "rate": self.rate,
            "drop": self.drop,
            "stop": self.stop,
        }

    # --- the channel ------------------------------------------------------------------------

    def tell(self, header: Header, block: bytes = b"") -> None:
        if not self.channel.is_closing():
            self.channel.write(encode_frame(header, block))

    def handle(self, header: Header) -> None:
        """One frame from the coordinator."""
        self.heard_s = self.loop.time()
        self.was_silent = False
        operation = self.operations.get(header.get("op", ""))
        if operation is not None:
            task = self.loop.create_task(self._answer(header["op"], operation(header)))
            task.add_done_callback(self._check)

    async def _answer(self, name: str, operation: Awaitable[Header]) -> None:
        try:
            answer = await operation
        except LoadgenError as error:
            answer = {"error": {"type": type(error).__name__, "message": str(error)}}
        self.tell({"re": name, **answer})

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and not self.finished.done():
            self.finished.set_exception(task.exception() or RuntimeError("a task was lost"))

    def close(self) -> None:
        self.channel.close()
        if not self.finished.done():
            self.finished.set_result(None)

    def event(self, kind: str, connection: int | None, detail: str) -> None:
        """Tell what went wrong; the first of each kind, so that a storm stays readable."""
        self.event_counts[kind] += 1
        if self.event_counts[kind] > _EVENTS_OF_A_KIND:
            return
        header: Header = {"time_ns": time.monotonic_ns(), "kind": kind, "detail": detail}
        if connection is not None:
            header["group"] = self.fleet.group_of(connection).name
            header["device"] = int(self.fleet.device[connection])
        self.tell({"event": header})

    # --- configure --------------------------------------------------------------------------

    async def configure(self, header: Header) -> Header:
        plan = self.read_plan(header["plan"])
        self.row = int(header["worker"])
        page = open_live_page(Path(header["live"]), int(header["workers"]))
        self.live = np.asarray(page)[self.row]
        self.anchor_ns = int(header["anchor_ns"])
        self.fleet = self.build(plan)
        self.keep_alive_ns = np.array(
            [group.keep_alive_s * 1_000_000_000 for group in plan.groups], np.int64
        )
        self.tick_ns = plan.send_tick_us * 1000
        self.epoll = selectors.EpollSelector()
        self.timer = make_timer()
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._bind_arguments()
        if plan.targets[0].transport != "tcp":
            self.streams = self.make_streams()
        self.connector = Connector(
            self.fleet, self.loop, self.epoll.fileno(), self.streams, self.on_events, self._lost
        )
        watch(self.epoll.fileno(), self.timer, EPOLLIN | EPOLLET, TIMER, self.fleet.words)
        self.linger_timer = make_timer()
        watch(self.epoll.fileno(), self.linger_timer, EPOLLIN | EPOLLET, LINGER, self.fleet.words)
        self.linger_ns = 0 if self.streams is not None else _LINGER_NS
        self.loop.add_reader(self.epoll.fileno(), self.on_ready)
        self.interval_start_ns = time.monotonic_ns()
        self.pinged_at_ns = self.interval_start_ns
        self.times = process_times()
        self._schedule_tick()
        self._ping_idle()
        self.held_before = self.fleet.connections[:, traffic.HELD].copy()
        if len(self.fleet.held_ids):
            self.loop.call_later(_STALE_S, self._release_stale)
        processors = plan.workers[self.row].processors
        if processors:
            os.sched_setaffinity(0, processors)
        gc.collect()
        gc.freeze()
        gc.disable()
        return {"pid": os.getpid(), "devices": len(self.fleet.connections)}

    def read_plan(self, document: Header) -> RunPlan:
        """The plan that the coordinator sent."""
        plan: RunPlan = _plans.validate_python(document)
        return plan

    def build(self, plan: RunPlan) -> Fleet:
        """The arrays of this worker's share."""
        return build_fleet(plan, plan.workers[self.row], self.live[: traffic.TOTALS])

    def make_streams(self) -> Streams:
        """What carries the bytes of connections that are no plain TCP."""
        return Streams(self.fleet, self.loop, self.on_events, self.stream_failed)

    def _bind_arguments(self) -> None:
        """The kernels' arguments, written down once; a fleet's arrays stay where they are."""
        self.poll_table = address_table(poll_arguments(self.fleet, self.epoll.fileno()))
        self.pump_table = address_table(pump_arguments(self.fleet, self.timer, self.tick_ns))

    # --- the hot path -----------------------------------------------------------------------

    def on_ready(self) -> None:
        """Plain connections have something, or messages are due."""
        fleet = self.fleet
        segments = serve_fleet(
            self.linger_ns,
            self.linger_timer,
            self.poll_table,
            self.pump_table,
            fleet.clock,
            fleet.totals,
            self.chain_table,
        )
        if segments and self.streams is not None:
            self.streams.write_segments(segments)
        self.on_events()

    def on_events(self) -> None:
        """Look at what a kernel left for Python, and pump when a publisher became free."""
        totals = self.fleet.totals
        if totals[EVENTS]:
            self._handle_events()
        if totals[REARM]:
            self._pump()
        if totals[READY]:
            self.loop.call_soon(self.on_ready)

    def _pump(self) -> None:
        segments = pump_fleet(self.pump_table, self.chain_table)
        if segments and self.streams is not None:
            self.streams.write_segments(segments)
        if self.fleet.totals[EVENTS]:
            self._handle_events()

    def _handle_events(self) -> None:
        fleet = self.fleet
        totals = fleet.totals
        count = int(totals[EVENTS])
        rows = fleet.events[:count].tolist()
        data = fleet.control[: int(totals[traffic.CONTROL_BYTES])].tobytes()
        totals[EVENTS] = 0
        totals[traffic.CONTROL_BYTES] = 0
        # First what must follow bytes that are already out: all else may write, unblock or close.
        for kind, connection, _, offset, length, _ in rows:
            if kind == traffic.UNSENT:
                pending = self.pending.setdefault(connection, bytearray())
                pending += data[offset : offset + length]
        for kind, connection, value, offset, length, moment_ns in rows:
            if kind == traffic.UNSENT:
                continue
            if kind == traffic.CONTROL_PACKET:
                self._control_packet(connection, data[offset : offset + length], moment_ns)
            elif kind == traffic.WRITABLE:
                self._flush(connection)
            elif kind == traffic.BROKEN:
                self.event("protocol", connection, f"the broker broke MQTT: {reason_name(value)}")
                self._lost(connection, "protocol error")
            elif kind == traffic.REFUSED_PACKET:
                self.event("refused", connection, f"acknowledged with {reason_name(value)}")
            elif kind == traffic.UNANSWERED:
                self.event(
                    "unanswered",
                    connection,
                    "a request without a response: the window of unacknowledged ones is full; "
                    "raise --inflight-window",
                )
            else:
                self._lost(connection, _errno_reason(value))
        if self.connector.queue or self.connector.done is not None:
            self.connector.more()

    def _flush(self, connection: int) -> None:
        """A blocked connection takes bytes: first what was begun, then what is owed."""
        fleet = self.fleet
        if fleet.connections[connection, STATE] not in (AWAIT_CONNACK, CONNECTED):
            return
        pending = self.pending.get(connection)
        if pending:
            try:
                sent = os.write(int(fleet.connections[connection, FD]), pending)
            except BlockingIOError:
                return
            except OSError:
                return  # the closed connection has an event of its own
            del pending[:sent]
            if pending:
                # A short write armed the edge again.
                return
            del self.pending[connection]
        self._unblock(connection)

    def _unblock(self, connection: int) -> None:
        fleet = self.fleet
        fleet.connections[connection, FLAGS] &= ~BLOCKED
        traffic.requeue(
            connection,
            int(fleet.connections[connection, traffic.PUBLISHER]),
            fleet.connections,
            fleet.run,
            fleet.totals,
            fleet.schedule,
            fleet.heap,
        )

    def _write(self, connection: int, data: bytes) -> None:
        """Send control bytes in order with whatever else the connection writes."""
        fleet = self.fleet
        fleet.connections[connection, traffic.WRITTEN_NS] = time.monotonic_ns()
        if fleet.connections[connection, FLAGS] & STREAMED:
            if self.streams is not None:
                self.streams.write(connection, data)
            return
        sent = 0
        if not fleet.connections[connection, FLAGS] & BLOCKED:
            try:
                sent = os.write(int(fleet.connections[connection, FD]), data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
        if sent < len(data):
            self.pending.setdefault(connection, bytearray()).extend(data[sent:])
            fleet.connections[connection, FLAGS] |= BLOCKED

    # --- connections ------------------------------------------------------------------------

    async def connect(self, header: Header) -> Header:
        """Connect every device, paced and bounded in flight; answers when each was tried."""
        first_ns = time.monotonic_ns()
        self.last_connected_ns = first_ns
        await self.connector.connect_all(
            header.get("rate"),
            int(header["in_flight"]),
            float(header["timeout_s"]),
            first_in_flight=int(header["first_in_flight"]),
        )
        for reason, count in self.failures.items():
            self.event("connect", None, f"{count} devices could not connect: {reason}")
        return {
            "connected": int(self.fleet.totals[CONNECTED_COUNT]),
            "failures": dict(self.failures),
            "first_ns": first_ns,
            "last_ns": self.last_connected_ns,
        }

    def stream_failed(self, connection: int, reason: str) -> None:
        """A streamed connection could not be made, or ended."""
        self._lost(connection, reason)
        self.connector.more()

    def _churn(self) -> None:
        """Let as many devices leave as the rate asks for since the last time."""
        fleet = self.fleet
        now_s = self.loop.time()
        self.leaving += (now_s - self.churned_s) * self.churn_per_s
        self.churned_s = now_s
        while self.leaving >= 1.0:
            self.leaving -= 1.0
            some = (self.connector.random.choice(self.churning) for _ in range(_CHURN_TRIES))
            connected = (c for c in some if fleet.connections[c, STATE] == CONNECTED)
            connection = next(connected, None)
            if connection is None:
                continue
            self._write(connection, encode(Disconnect(), fleet.plan.version))
            self.left.add(connection)
            self._lost(connection, _LEFT)
        if self.phase in ("warmup", "measure"):
            self.loop.call_later(_CHURN_S, self._churn)

    def _start_churn(self) -> None:
        """Begin to let devices leave, this worker's part of the rate."""
        fleet = self.fleet
        groups = fleet.plan.groups
        total = sum(
            share.count
            for worker in fleet.plan.workers
            for share in worker.shares
            if _may_leave(groups[share.group])
        )
        self.churning = [
            connection
            for connection in range(len(fleet.connections))
            if _may_leave(fleet.group_of(connection))
        ]
        if self.churning and fleet.plan.churn_per_s:
            self.churn_per_s = fleet.plan.churn_per_s * len(self.churning) / total
            self.churned_s = self.loop.time()
            self._churn()

    def _lost(self, connection: int, reason: str) -> None:
        """A connection is gone, or never came."""
        fleet = self.fleet
        row = fleet.connections[connection]
        state = int(row[STATE])
        if state == CLOSED:
            return
        away = connection in self.connector.attempts
        row[STATE] = CLOSED
        row[traffic.HELD] = 0
        row[traffic.PINGED_NS] = 0
        row[FLAGS] &= ~BLOCKED
        group = int(row[traffic.GROUP])
        self.pending.pop(connection, None)
        if row[FLAGS] & STREAMED:
            if self.streams is not None:
                self.streams.abort(connection)
        elif row[FD] >= 0:
            os.close(int(row[FD]))
            row[FD] = -1
        if state == CONNECTED:
            row[traffic.RETURNED_NS] = traffic.AWAY
            fleet.totals[CONNECTED_COUNT] -= 1
            if not self.stopping and reason != _LEFT:
                self.live[Live.DISCONNECTS] += 1
                phase = traffic.CONNECT_PHASE
                if fleet.program[0, 0]:
                    phase = traffic.phase_of(fleet.run, time.monotonic_ns())
                column = COUNTERS.index("disconnects")
                fleet.counters[group, phase, column] += 1
                self.event("disconnect", connection, reason)
                self._subscribed(connection, reason)
        else:
            if state in (CONNECTING, AWAIT_CONNACK):
                fleet.totals[CONNECTING_COUNT] -= 1
            self.live[Live.CONNECT_FAILURES] += 1
            column = COUNTERS.index("connect_failures")
            fleet.counters[group, traffic.CONNECT_PHASE, column] += 1
            if self.connector.done is not None and not away:
                self.failures[reason] += 1
        policy = fleet.plan.reconnect
        # Who left comes back, if need be in several attempts.
        if reason == _LEFT or (policy is None and away):
            policy = Reconnect(fleet.plan.away_s, fleet.plan.away_s, 0.5)
        # A device that cannot connect at first is a failure of the run and not tried again.
        tried = self.connector.done is None or state == CONNECTED or away
        if policy is not None and tried and not self.stopping:
            self.connector.come_back(connection, policy)

    def _control_packet(self, connection: int, data: bytes, moment_ns: int) -> None:
        version = self.fleet.plan.version
        if self.fleet.connections[connection, STATE] == CLOSED:
            return
        try:
            packet = _decoded(data, version)
        except LoadgenError as error:
            self.event("protocol", connection, str(error))
            self._lost(connection, "protocol error")
            return
        if isinstance(packet, ConnAck):
            self._connack(connection, packet, moment_ns)
        elif isinstance(packet, SubAck):
            self._suback(connection, packet, moment_ns)
        elif isinstance(packet, Disconnect):
            name = reason_name(packet.reason_code, version)
            self._lost(connection, f"DISCONNECT from the broker: {name}")
        else:
            name = type(packet).__name__.upper()
            self.event("protocol", connection, f"the broker sent {name}, which nobody asked for")
            self._lost(connection, "protocol error")

    def _connack(self, connection: int, packet: ConnAck, moment_ns: int) -> None:
        fleet = self.fleet
        row = fleet.connections[connection]
        if packet.reason_code != 0:
            reason = reason_name(packet.reason_code, fleet.plan.version)
            self._lost(connection, f"CONNACK {reason}")
            return
        self.last_connected_ns = moment_ns
        server_keep_alive_s = packet.properties.server_keep_alive
        if server_keep_alive_s is not None:
            # The broker's value counts, not the one in CONNECT (MQTT 5, 3.2.2.3.14).
            self.keep_alive_ns[int(row[traffic.GROUP])] = server_keep_alive_s * 1_000_000_000
        if row[SENDER] >= 0:
            group = fleet.group_of(connection)
            sends = group.publishes or group.responds
            maximum = packet.properties.receive_maximum or _RECEIVE_MAXIMUM
            capacity = maximum if sends is None else min(sends.window, maximum)
            set_capacity(fleet.senders, fleet.window, int(row[SENDER]), capacity)
        if row[traffic.HOLDER] >= 0 and packet.properties.receive_maximum is not None:
            # Brokers bound both directions alike; a batch beyond that would never fill.
            shared = fleet.groups[row[traffic.GROUP]]
            shared[traffic.ACKNOWLEDGE_EVERY] = min(
                shared[traffic.ACKNOWLEDGE_EVERY], packet.properties.receive_maximum
            )
        if self.connector.returned(connection) or row[traffic.RETURNED_NS]:
            self._resume(connection, packet.session_present)

    def _resume(self, connection: int, session_present: bool) -> None:
        """A device came back: restore its subscription, send again what was unacknowledged."""
        fleet = self.fleet
        row = fleet.connections[connection]
        if connection in self.left:
            self.left.remove(connection)
            self.left_and_returned += 1
        row[FLAGS] &= ~traffic.WINDOW_FULL
        self._flush(connection)
        group = fleet.group_of(connection)
        if not session_present:
            if row[traffic.QOS2] >= 0:
                forget_received(fleet.received_ids, int(row[traffic.QOS2]))
            if group.subscribes is not None:
                self._send_subscribe(connection)
        if row[SENDER] >= 0 and row[traffic.RESPONSES] >= 0:
            # What was answered is not kept; the requests count as lost unless it had arrived.
            self._forget(connection)
        elif row[SENDER] >= 0:
            self._redeliver(connection, session_present)
        publisher = int(row[traffic.PUBLISHER])
        traffic.requeue(
            connection,
            publisher,
            fleet.connections,
            fleet.run,
            fleet.totals,
            fleet.schedule,
            fleet.heap,
        )
        self.event("return", connection, "connected again")

    def _forget(self, connection: int) -> None:
        """Give up whatever the device sent and has no acknowledgement of."""
        fleet = self.fleet
        sender = int(fleet.connections[connection, SENDER])
        fleet.totals[traffic.IN_FLIGHT] -= int(fleet.senders["in_flight"][sender])
        reset(fleet.senders, fleet.window, sender)

    def _redeliver(self, connection: int, session_present: bool) -> None:
        fleet = self.fleet
        row = fleet.connections[connection]
        sender = int(row[SENDER])
        slots = np.zeros(fleet.window.shape[1], np.int64)
        count = redelivery_order(fleet.senders, fleet.window, sender, slots)
        out = np.zeros_like(fleet.out)
        while count > 0:
            handled, size = traffic.redeliver(
                connection,
                int(row[traffic.PUBLISHER]),
                session_present,
                slots,
                count,
                fleet.connections,
                fleet.groups,
                fleet.run,
                fleet.totals,
                fleet.schedule,
                fleet.senders,
                fleet.window,
                fleet.topics,
                fleet.topic_ends,
                fleet.body,
                fleet.body_crc,
                fleet.template,
                out,
            )
            self._write(connection, out[:size].tobytes())
            slots = slots[handled:].copy()
            count -= handled

    # --- subscriptions ----------------------------------------------------------------------

    async def subscribe(self, header: Header) -> Header:
        """Subscribe every subscribing device; answers when each got its SUBACK or failed."""
        self._enter("subscribe")
        first_ns = time.monotonic_ns()
        self.last_subscribed_ns = first_ns
        connections = self.fleet.connections
        subscribing = np.array(
            [group.subscribes is not None for group in self.fleet.plan.groups], np.bool_
        )[self.fleet.group]
        rows = np.flatnonzero(subscribing & (connections[:, STATE] == CONNECTED))
        connections[rows, REQUEST_NS] = 0
        self.subscribers = rows[::-1].tolist()
        wanted = len(self.subscribers)
        if wanted:
            self.subscribes_done = self.loop.create_future()
            for _ in range(min(_SUBSCRIBES_IN_FLIGHT, wanted)):
                self._subscribe_next()
            try:
                await asyncio.wait_for(self.subscribes_done, header["timeout_s"])
            except TimeoutError:
                missing = len(self.subscribing) + len(self.subscribers)
                self.failed_subscribes["no SUBACK in time"] += missing
            self.subscribing.clear()
            self.subscribes_done = None
        failed = sum(self.failed_subscribes.values())
        self.live[Live.SUBSCRIBED] = wanted - failed
        return {
            "subscribed": wanted - failed,
            "failures": dict(self.failed_subscribes),
            "first_ns": first_ns,
            "last_ns": self.last_subscribed_ns,
        }

    def _subscribe_next(self) -> None:
        """Ask for the next device that is still connected; the end when none is left."""
        while self.subscribers:
            connection = self.subscribers.pop()
            if self.fleet.connections[connection, STATE] == CONNECTED:
                self.subscribing.add(connection)
                self._send_subscribe(connection)
                return
            self.failed_subscribes["the connection was lost"] += 1
        done = self.subscribes_done
        if not self.subscribing and done is not None and not done.done():
            done.set_result(None)

    def _suback(self, connection: int, packet: SubAck, moment_ns: int) -> None:
        fleet = self.fleet
        asked_ns = int(fleet.connections[connection, REQUEST_NS])
        if asked_ns == 0:
            return
        failure = _subscribe_failure(
            packet.reason_codes, self.asked_qos.get(connection, 0), fleet.plan.version
        )
        if packet.packet_id != SUBSCRIBE_ID and failure is None:
            return  # one of several
        self.last_subscribed_ns = max(self.last_subscribed_ns, moment_ns)
        slot = traffic.slot_of(
            int(fleet.group[connection]), traffic.S_SUBACK, traffic.CONNECT_PHASE
        )
        traffic.record(fleet.histograms, fleet.stats, slot, moment_ns - asked_ns)
        self._subscribed(connection, failure)

    def _send_subscribe(self, connection: int) -> None:
        packets = self.subscribe_packets(connection)
        if not packets:
            self._subscribed(connection, None)
            return
        self.asked_qos[connection] = packets[-1].subscriptions[-1].qos
        self.fleet.connections[connection, REQUEST_NS] = time.monotonic_ns()
        self._write(connection, b"".join(encode(p, self.fleet.plan.version) for p in packets))

    def subscribe_packets(self, connection: int) -> list[Subscribe]:
        """What a device asks for, all at one QoS; the SUBACK of the last, SUBSCRIBE_ID, counts."""
        plan = self.fleet.plan
        group = self.fleet.group_of(connection)
        wanted = group.subscribes
        if wanted is None:
            raise CannotRunError(f"group {group.name} has nothing to subscribe to")
        pattern = topic_filter(plan, group, int(self.fleet.device[connection]))
        subscription = Subscription(topic_filter=pattern, qos=wanted.qos)
        return [Subscribe(SUBSCRIBE_ID, (subscription,))]

    def _subscribed(self, connection: int, failure: str | None) -> None:
        """A SUBACK came, or never will."""
        self.fleet.connections[connection, REQUEST_NS] = 0
        self.asked_qos.pop(connection, None)
        if connection not in self.subscribing:
            if failure is not None and self.fleet.connections[connection, STATE] == CONNECTED:
                self.event("subscribe", connection, f"subscribing again: {failure}")
            return
        self.subscribing.discard(connection)
        if failure is not None:
            self.failed_subscribes[failure] += 1
        else:
            self.live[Live.SUBSCRIBED] += 1
        self._subscribe_next()

    # --- the schedule -----------------------------------------------------------------------

    async def start(self, header: Header) -> Header:
        """Fix the schedule; it runs by itself until the end of the window."""
        fleet = self.fleet
        self._enter("warmup")
        self._start_churn()
        fleet.run[MEASURE_NS] = header["measure_ns"]
        fleet.run[END_NS] = header["end_ns"]
        plan_schedule(fleet, int(header["start_ns"]))
        self._bind_arguments()
        self._at(int(header["measure_ns"]), lambda: self._enter("measure"))
        self._at(int(header["end_ns"]), self._window_end)
        arm_timer(self.timer, int(header["start_ns"]), fleet.clock)
        return {}

    def _at(self, moment_ns: int, action: Callable[[], None]) -> None:
        self.loop.call_later(max(moment_ns - time.monotonic_ns(), 0) / 1e9, action)

    async def rate(self, header: Header) -> Header:
        """Change the rate from a moment on; what is owed stays owed."""
        self.fleet.program = with_rate(
            self.fleet.program, int(header["at_ns"]), float(header["factor"])
        )
        traffic.reschedule(
            self.fleet.schedule,
            self.fleet.program,
            self.fleet.publisher_connection,
            self.fleet.connections,
            self.fleet.run,
            self.fleet.totals,
            self.fleet.heap,
        )
        self._bind_arguments()
        self._pump()
        return {}

    async def drop(self, header: Header) -> Header:
        """Cut one device off, as when its process is killed; tells what it had not acknowledged."""
        fleet = self.fleet
        wanted = (fleet.group == int(header["group"])) & (fleet.device == int(header["device"]))
        rows = np.flatnonzero(wanted & (fleet.connections[:, STATE] == CONNECTED)).tolist()
        held = sum(int(fleet.connections[row, traffic.HELD]) for row in rows)
        for connection in rows:
            self._lost(connection, "cut off on request")
        return {"dropped": len(rows), "held": held}

    def _window_end(self) -> None:
        self._enter("drain")
        owed, age_ns = owed_by_group(self.fleet, time.monotonic_ns())
        total = int(owed.sum())
        self.live[Live.OWED] = total
        self.tell({"window_end": {"owed": total, "owed_oldest_ns": age_ns}})
        self._watch_drain()

    def _watch_drain(self) -> None:
        """Say on the live page when nothing is left to send or to be acknowledged."""
        if self.stopping:
            return
        totals = self.fleet.totals
        owed, _ = owed_by_group(self.fleet, time.monotonic_ns())
        self.live[Live.OWED] = int(owed.sum())
        idle = not totals[traffic.IN_FLIGHT] and not self.pending and not owed.any()
        self.live[Live.FINISHED] = int(idle)
        self.loop.call_later(0.02, self._watch_drain)

    # --- each second ------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        since_ns = time.monotonic_ns() - self.anchor_ns
        wait_ns = 1_000_000_000 - since_ns % 1_000_000_000
        self.loop.call_later(wait_ns / 1e9 + 0.0005, self._tick)

    def _tick(self) -> None:
        if self.stopping:
            return
        silent = self.loop.time() - self.heard_s > _LEASE_S
        if silent and self.was_silent:
            self.close()
            return
        # After a stall this runs before the channel is read, and a sign of life may wait there.
        self.was_silent = silent
        self._snapshot()
        self._schedule_tick()

    def _ping_idle(self) -> None:
        """PINGREQ for whoever was silent for most of its keep-alive.

        It is looked for eight times in the shortest keep-alive, and each second at least, so that
        none is silent for all of it. Who has no PINGRESP a keep-alive after its PINGREQ gives its
        connection up (MQTT 5, 3.1.2.10).
        """
        if self.stopping:
            return
        fleet = self.fleet
        # What was overdue a tick ago: after a stall of ours the PINGRESP may be there, unread.
        waited_ns = self.pinged_at_ns - fleet.connections[:, traffic.PINGED_NS]
        limits_ns = self.keep_alive_ns[fleet.group]
        pinged = (fleet.connections[:, traffic.PINGED_NS] > 0) & (limits_ns > 0)
        for connection in np.flatnonzero(pinged & (waited_ns >= limits_ns)).tolist():
            self._lost(connection, "no PINGRESP in time")
        self.pinged_at_ns = time.monotonic_ns()
        due = np.zeros(len(fleet.connections), np.int64)
        listed = ping_idle(self.pinged_at_ns, self.keep_alive_ns, _PINGREQ, fleet.connections, due)
        for connection in due[:listed].tolist():
            self._write(connection, _PINGREQ.tobytes())
        shortest_ns = self.keep_alive_ns.min(initial=8 * _NS, where=self.keep_alive_ns > 0)
        self.loop.call_later(int(shortest_ns) / 8e9, self._ping_idle)

    def _enter(self, phase: str) -> None:
        """A phase begins; the processor time until now belongs to the one before."""
        if not self.stopping:
            self._snapshot()
            self.phase = phase

    def _snapshot(self) -> None:
        """Send what was counted since the last snapshot."""
        now_ns = time.monotonic_ns()
        times = process_times()
        start_ns = self.interval_start_ns
        second = (start_ns - self.anchor_ns) // 1_000_000_000
        rows, block = take_intervals(self.fleet, now_ns)
        rows.append(
            {
                "group": "",
                "phase": self.phase,
                "series": "",
                "cpu_ns": times.cpu_ns - self.times.cpu_ns,
                "wait_ns": times.wait_ns - self.times.wait_ns,
                "resident_bytes": times.resident_bytes,
            }
        )
        for row in rows:
            row["worker"] = self.row
            row["second"] = second
            row["time_ns"] = start_ns
            row["span_ns"] = now_ns - start_ns
        self.interval_start_ns = now_ns
        self.times = times
        owed = sum(row.get("owed", 0) for row in rows)
        self.live[Live.OWED] = owed
        self.live[Live.BEAT_NS] = now_ns
        self.tell({"interval": rows, "buckets": len(block) // 12}, block)

    # --- the end ----------------------------------------------------------------------------

    async def stop(self, header: Header) -> Header:
        """Disconnect in order, remove durable sessions from the broker, send what is left."""
        self.connector.stop()
        arm_timer(self.timer, 0, self.fleet.clock)
        self.fleet.totals[traffic.HEAP_SIZE] = 0
        self._enter("stop")
        self.stopping = True
        devices = device_columns(self.fleet) if self.fleet.plan.per_device else None
        goodbye = encode(Disconnect(), self.fleet.plan.version)
        for connection in np.flatnonzero(self.fleet.connections[:, STATE] == CONNECTED).tolist():
            self._write(connection, goodbye)
            self._lost(connection, "stopped")
            if connection % 500 == 0:
                await asyncio.sleep(0)
        await self._forget_sessions()
        return {
            "final": self.final()
            | {
                "forgotten_holes": int(self.fleet.hole_state[1]),
                "returned": self.left_and_returned,
                "pushed_back": bool(self.fleet.totals[traffic.PUSHED_BACK]),
                "spread": self._spread_of_queues(),
                "devices": devices,
                "tls": None if self.streams is None else self.streams.handshakes(),
            }
        }

    def final(self) -> Header:
        """What a kind of worker of its own adds to its last answer."""
        return {}

    def _spread_of_queues(self) -> dict[str, list[int]]:
        """By group of shared subscribers: messages of the window that each device took."""
        fleet = self.fleet
        return {
            group.name: fleet.connections[fleet.group == index, traffic.TAKEN].tolist()
            for index, group in enumerate(fleet.plan.groups)
            if group.subscribes is not None and group.subscribes.shared is not None
        }

    def _release_stale(self) -> None:
        """Send withheld acknowledgements whose batch does not fill any more."""
        fleet = self.fleet
        held = fleet.connections[:, traffic.HELD].copy()
        for connection in np.flatnonzero((held > 0) & (held == self.held_before)).tolist():
            out = np.zeros(4 * int(held[connection]), np.uint8)
            size = traffic.release_held(connection, fleet.connections, fleet.held_ids, out, 0)
            self._write(connection, out[:size].tobytes())
        self.held_before = held
        if not self.stopping:
            self.loop.call_later(_STALE_S, self._release_stale)

    async def _forget_sessions(self) -> None:
        """Connect durable clients once more with a clean session: the broker forgets them."""
        fleet = self.fleet
        durable = [
            connection
            for connection in range(len(fleet.connections))
            if not fleet.group_of(connection).clean_start
        ]
        plan = fleet.plan
        listed = plan.clients_file if durable else None
        clients = None if listed is None else read_clients(Path(listed))
        gate = asyncio.Semaphore(32)

        async def forget(connection: int) -> None:
            async with gate:
                group, device = fleet.group_of(connection), int(fleet.device[connection])
                packet = connect_packet(plan, group, device, True, clients)
                target = plan.targets[int(fleet.connections[connection, traffic.TARGET])]
                context = None
                if self.streams is not None and target.transport in ("tls", "wss"):
                    context = self.streams.context_of(connection)
                await say_hello_and_goodbye(target, context, packet, plan.version)

        results = await asyncio.gather(*map(forget, durable), return_exceptions=True)
        failed = sum(isinstance(result, BaseException) for result in results)
        if failed:
            self.event("cleanup", None, f"{failed} durable sessions may remain at the broker")


class _Channel(asyncio.Protocol):
    """The worker's end of its channel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, kind: type[Worker]) -> None:
        self.loop = loop
        self.kind = kind
        self.frames = FrameReader()
        self.worker: Worker | None = None
        self.closed = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.worker = self.kind(self.loop, cast("asyncio.WriteTransport", transport))

    def data_received(self, data: bytes) -> None:
        for header, _ in self.frames.feed(data):
            if self.worker is not None:
                self.worker.handle(header)

    def connection_lost(self, error: Exception | None) -> None:
        if self.worker is not None:
            self.worker.close()


async def _serve(channel: socket.socket, kind: type[Worker]) -> None:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    connect: Coroutine[Any, Any, Any] = (
        loop.create_unix_connection(lambda: _Channel(loop, kind), sock=channel)
        if channel.family == socket.AF_UNIX
        else loop.create_connection(lambda: _Channel(loop, kind), sock=channel)
    )
    _, protocol = await connect
    if protocol.worker is not None:
        await protocol.worker.finished


def run_worker(channel: socket.socket, kind: type[Worker] = Worker) -> None:
    """Body of a worker process: obey frames on `channel` until it closes."""
    uvloop.run(_serve(channel, kind))


def warm() -> None:
    """Compile or load every kernel, so that workers forked from here share them."""
    from loadgen.engine.warm import warm_kernels

    warm_kernels()
