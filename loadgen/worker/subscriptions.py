"""Subscribes of every device before the run, and of those that lost their session.

Owns the devices that wait for a SUBACK in the subscribe phase, and their failures.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from loadgen.kernels.counting import CONNECT_PHASE, S_SUBACK, record, slot_of
from loadgen.kernels.device import CONNECTED
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import SUBACK
from loadgen.mqtt.packets import SubAck, Subscribe
from loadgen.mqtt.reason_codes import is_failure, is_known, reason_name
from loadgen.mqtt.violations import GRANT_RAISED, SUBACK_CODES, UNKNOWN_REASON, UNKNOWN_SUBACK
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.clock import clock_ns
from loadgen.worker.frames import Header
from loadgen.worker.outgoing import Outgoing
from loadgen.worker.reporter import Reporter

_IN_FLIGHT = 256


def _failure(codes: Sequence[int], asked_qos: int, version: int) -> str | None:
    """Return the shortfall of a SUBACK: refused, or less QoS than requested (MQTT 5, 3.9.3)."""
    if is_failure(max(codes)):
        return reason_name(max(codes), version)
    if min(codes) < asked_qos:
        return f"granted QoS {min(codes)} instead of {asked_qos}"
    return None


class Subscriptions:
    """The subscribing devices of one worker; `packets(connection)` has the packets of a device.

    All of a device's packets request one QoS; the last SUBACK counts.
    """

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
        self._open: dict[int, dict[int, Subscribe]] = {}
        """The SUBSCRIBE packets of each device that have no SUBACK yet, by their identifier."""
        self.failed_again: Counter[str] = Counter()
        """Shortfalls of subscriptions after a return."""
        self._failures: Counter[str] = Counter()
        self._done: asyncio.Future[None] | None = None
        self._last_ns = 0
        self.unserved: set[int] = set()
        """Devices whose first subscription was refused, not answered, or ended the connection."""
        self._closed = 0

    async def subscribe_all(self, timeout_s: float) -> Header:
        """Subscribe every subscribing device; ends when each got its SUBACK or failed."""
        first_ns = clock_ns()
        self._last_ns = first_ns
        devices = self._fleet.devices
        subscribing = np.array(
            [group.subscribes is not None for group in self._fleet.plan.groups], np.bool_
        )[self._fleet.group]
        rows = np.flatnonzero(subscribing & (devices["state"] == CONNECTED))
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
        granted = min(codes)
        violations = []
        if len(codes) != len(request.subscriptions):
            violations.append(SUBACK_CODES)
        if not all(is_known(code, SUBACK, version) for code in codes):
            violations.append(UNKNOWN_REASON)
        if any(requested < code <= 2 for code in codes):
            violations.append(GRANT_RAISED)
        if granted < requested:
            # Messages come with the granted QoS; a lower one than requested is a failure.
            device = fleet.devices[connection]
            device.qos = min(device.qos, granted)
            streams = slice(device.range_first, device.range_first + device.range_count)
            fleet.ranges["qos"][streams] = np.minimum(fleet.ranges["qos"][streams], granted)
        failure = _failure(codes, requested, version)
        device = fleet.devices[connection]
        if device.request_ns and (failure is not None or not waiting):
            self._last_ns = max(self._last_ns, moment_ns)
            slot = slot_of(device.group, S_SUBACK, CONNECT_PHASE)
            record(fleet, slot, moment_ns - device.request_ns)
            device.subscribed_ns = moment_ns
            self.settle(connection, failure, refused=is_failure(max(codes)))
        return violations

    def forget(self, connection: int) -> None:
        self._open.pop(connection, None)

    def settle(self, connection: int, failure: str | None, *, refused: bool = False) -> None:
        """End the wait for a device's SUBACK, which arrived or cannot arrive any more."""
        self._fleet.devices[connection].request_ns = 0
        is_connected = self._fleet.devices[connection].state == CONNECTED
        if connection not in self._waiting:
            if failure is not None and is_connected:
                self.failed_again[failure] += 1
                self._reporter.event("subscribe", connection, f"subscribing again: {failure}")
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
