"""Subscribes of every device before the run, of those that lost their session, and of a churn."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt

from loadgen.kernels import counting
from loadgen.kernels.counting import CONNECT_PHASE, S_SUBACK, record, slot_of
from loadgen.kernels.device import CONNECTED
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import SUBACK
from loadgen.mqtt.packets import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from loadgen.mqtt.reason_codes import is_failure, is_known, reason_name
from loadgen.mqtt.violations import GRANT_RAISED, SUBACK_CODES, UNKNOWN_REASON, UNKNOWN_SUBACK
from loadgen.plan.behaviour import RESUBSCRIBE_ID, PlannedFleet
from loadgen.worker.clock import clock_ns
from loadgen.worker.frames import Header
from loadgen.worker.outgoing import Outgoing
from loadgen.worker.reporter import Reporter

_IN_FLIGHT = 256
_TURN_S = 0.005


def breaches(packet: SubAck | UnsubAck, filters: int, qos: int, version: int) -> list[int]:
    """Return the violations in the answer to a packet with so many filters of this QoS."""
    codes, kind = packet.reason_codes, packet.packet_type
    found = [SUBACK_CODES] if codes and len(codes) != filters else []
    if not all(is_known(code, kind, version) for code in codes):
        found.append(UNKNOWN_REASON)
    if kind == SUBACK and any(qos < code <= 2 for code in codes):
        found.append(GRANT_RAISED)
    return found


class Subscriptions:
    """The subscribing devices of one worker; `packets(connection)` has the packets of a device."""

    def __init__(
        self,
        fleet: PlannedFleet,
        reporter: Reporter,
        outgoing: Outgoing,
        packets: Callable[[int], list[Subscribe]],
    ) -> None:
        self._fleet = fleet
        self._reporter = reporter
        self._outgoing = outgoing
        self._packets = packets
        self._queue: list[int] = []
        self._waiting: set[int] = set()
        self._open: dict[int, dict[int, Subscribe]] = {}  # packets without a SUBACK, by identifier
        self.failed_again: Counter[str] = Counter()  # shortfalls of subscriptions after a return
        self._failures: Counter[str] = Counter()
        self._done: asyncio.Future[None] | None = None
        self._last_ns = 0
        self.unserved: set[int] = set()  # refused, not answered, or without a connection
        self._closed = 0
        self.answered = 0  # packets of `--resubscribe` in the window that have an answer
        self._asked_ns: dict[int, int] = {}
        self._churned: set[int] = set()  # subscribed to their filter of `--resubscribe`

    async def subscribe_all(self, timeout_s: float) -> Header:
        """Subscribe every subscribing device; ends when each got its SUBACK or failed."""
        first_ns = clock_ns()
        self._last_ns = first_ns
        devices = self._fleet.devices
        rows = self._subscribing()
        rows = rows[devices["state"][rows] == CONNECTED]
        devices["request_ns"][rows] = 0
        self._queue = rows[::-1].tolist()
        wanted = len(self._queue)
        if wanted:
            self._done = asyncio.get_running_loop().create_future()
            for _ in range(min(_IN_FLIGHT, wanted)):
                self._ask_next()
            try:
                await asyncio.wait_for(self._done, timeout_s)
            except TimeoutError:
                late = self._waiting.union(self._queue)
                self._failures["no SUBACK in time"] += len(late)
                self.unserved |= late
            self._waiting.clear()
            self._done = None
        failed = self._failures.total()
        self._fleet.totals.subscribed = wanted - failed
        return {
            "subscribed": wanted - failed,
            "failures": dict(self._failures),
            "closed": self._closed,
            "first_ns": first_ns,
            "last_ns": self._last_ns,
        }

    def _subscribing(self) -> npt.NDArray[np.intp]:
        owners = [group.subscribes is not None for group in self._fleet.plan.groups]
        return np.flatnonzero(np.array(owners, np.bool_)[self._fleet.group])

    def _ask_next(self) -> None:
        """Subscribe the next device that is still connected; end if none is left."""
        while self._queue:
            connection = self._queue.pop()
            if self._fleet.devices[connection].state == CONNECTED:
                self._waiting.add(connection)
                self.ask(connection)
                return
            self._failures["the connection was lost"] += 1
        if not self._waiting and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def ask(self, connection: int) -> None:
        packets = self._packets(connection)
        if not packets:
            self.settle(connection, None)
            return
        self._open[connection] = {packet.packet_id: packet for packet in packets}
        self._fleet.devices[connection].request_ns = clock_ns()
        version = self._fleet.plan.version_of(self._fleet.group_of(connection))
        self._outgoing.write(connection, b"".join(encode(packet, version) for packet in packets))

    def on_suback(self, connection: int, packet: SubAck, moment_ns: int) -> list[int]:
        """Handle a SUBACK, which arrived at `moment_ns`; return the violations in it."""
        fleet = self._fleet
        version = fleet.plan.version_of(fleet.group_of(connection))
        waiting = self._open.get(connection, {})
        request = waiting.pop(packet.packet_id, None)
        if request is None:
            return [UNKNOWN_SUBACK]
        if not waiting:
            del self._open[connection]
        requested, codes = request.subscriptions[-1].qos, packet.reason_codes
        granted, failure, device = min(codes), None, fleet.devices[connection]
        if granted < requested:
            # Messages come with the granted QoS; a lower one than requested is a failure.
            failure = f"granted QoS {granted} instead of {requested}"
            device.qos = min(device.qos, granted)
            streams = slice(device.range_first, device.range_first + device.range_count)
            fleet.ranges["qos"][streams] = np.minimum(fleet.ranges["qos"][streams], granted)
        if is_failure(max(codes)):
            failure = reason_name(max(codes), version)
        if device.request_ns and (failure is not None or not waiting):
            self._last_ns = max(self._last_ns, moment_ns)
            slot = slot_of(device.group, S_SUBACK, CONNECT_PHASE)
            record(fleet, slot, moment_ns - device.request_ns)
            device.subscribed_ns = moment_ns
            self.settle(connection, failure, refused=is_failure(max(codes)))
        return breaches(packet, len(request.subscriptions), requested, version)

    def _fail_again(self, connection: int, failure: str) -> None:
        self.failed_again[failure] += 1
        self._reporter.event("subscribe", connection, f"subscribing again: {failure}")

    def forget(self, connection: int) -> None:
        self._open.pop(connection, None)
        self._asked_ns.pop(connection, None)
        self._churned.discard(connection)

    def turns(self, rate: float) -> Callable[[], float | None]:
        """Return a function that sends the packets that became due since its last call.

        Devices subscribe and unsubscribe in turn, each at a filter that no message matches. The
        function returns the time until the next call in seconds, None for no more.
        """
        rows = self._subscribing().tolist()
        total = sum(group.count for group in self._fleet.plan.groups if group.subscribes)
        in_turn, due, counted_s = cycle(rows), 0.0, time.monotonic()
        self.answered = 0

        def send_due() -> float | None:
            nonlocal due, counted_s
            now_s = time.monotonic()
            due = min(due + (now_s - counted_s) * rate * len(rows) / max(total, 1), len(rows))
            counted_s = now_s
            for row in islice(in_turn, int(due)):
                if row not in self._asked_ns and self._fleet.devices["state"][row] == CONNECTED:
                    self._take_turn(row)
                    due -= 1
            return _TURN_S if self._reporter.phase in ("warmup", "measure") else None

        return send_due

    def _take_turn(self, row: int) -> None:
        fleet = self._fleet
        name = f"{fleet.plan.root}/~/{fleet.group[row]}/{fleet.device[row]}"
        packet: Subscribe | Unsubscribe = Unsubscribe(RESUBSCRIBE_ID, (name,))
        if row not in self._churned:
            packet = Subscribe(RESUBSCRIBE_ID, (Subscription(topic_filter=name),))
        self._asked_ns[row] = clock_ns()
        self._outgoing.write(row, encode(packet, fleet.plan.version_of(fleet.group_of(row))))

    def ends_turn(self, row: int, packet: SubAck | UnsubAck, moment_ns: int) -> bool:
        """Record the latency of an answer; return False if it answers no packet of a turn."""
        fleet, ends = self._fleet, isinstance(packet, UnsubAck)
        if row not in self._asked_ns or packet.packet_id != RESUBSCRIBE_ID:
            return False
        if ends != (row in self._churned):
            return False
        asked_ns, worst = self._asked_ns.pop(row), max(packet.reason_codes, default=0)
        if is_failure(worst):
            self._fail_again(row, reason_name(worst, fleet.plan.version_of(fleet.group_of(row))))
        self._churned ^= {row} if ends or not is_failure(worst) else set()
        phase = counting.phase_of(fleet.run, asked_ns)
        self.answered += phase == counting.MEASURE
        series = counting.S_UNSUBSCRIBE if ends else counting.S_RESUBSCRIBE
        record(fleet, slot_of(int(fleet.group[row]), series, phase), moment_ns - asked_ns)
        return True

    def failures_again(self) -> dict[str, int]:
        """Return the shortfalls after the subscribe phase, and answers that did not come."""
        now_ns, devices = clock_ns(), self._fleet.devices
        last_ns = now_ns - int(self._fleet.plan.phases.timeout_s * 1e9)
        late = sum(asked_ns < last_ns for asked_ns in self._asked_ns.values())
        # Within a second of the end a SUBACK may still be on its way.
        returned = self._open.keys() - self.unserved
        late += sum(0 < devices[row].request_ns < now_ns - 10**9 for row in returned)
        return dict(self.failed_again + Counter({"no SUBACK or UNSUBACK in time": late}))

    def settle(self, connection: int, failure: str | None, *, refused: bool = False) -> None:
        """End the wait for a device's SUBACK, which arrived or cannot arrive any more."""
        device = self._fleet.devices[connection]
        device.request_ns, is_connected = 0, device.state == CONNECTED
        if connection not in self._waiting:
            if failure is not None and is_connected:
                self._fail_again(connection, failure)
            return
        self._waiting.discard(connection)
        if failure is not None:
            self._failures[failure] += 1
            self._closed += not is_connected
            if refused or not is_connected:
                self.unserved.add(connection)
        else:
            self._fleet.totals.subscribed += 1
        self._ask_next()
