"""Subscribes of every device before the run, and of those that lost their session.

Owns the devices that wait for a SUBACK in the subscribe phase, and their failures.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from loadgen.kernels.counting import CONNECT_PHASE, S_SUBACK, record, slot_of
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.fleet import Fleet
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import SubAck, Subscribe
from loadgen.mqtt.reason_codes import is_failure, reason_name
from loadgen.plan.behaviour import SUBSCRIBE_ID
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

    All of a device's packets request one QoS; the SUBACK of the last, SUBSCRIBE_ID, counts.
    """

    def __init__(
        self,
        fleet: Fleet,
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
        self._asked = np.zeros(len(fleet.devices), np.bool_)
        self._asked_qos: dict[int, int] = {}
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
        """Send a device's SUBSCRIBE packets."""
        packets = self._packets(connection)
        if not packets:
            self.settle(connection, None)
            return
        self._asked[connection] = True
        self._asked_qos[connection] = packets[-1].subscriptions[-1].qos
        self._fleet.devices[connection].request_ns = clock_ns()
        version = self._fleet.plan.version
        self._outgoing.write(connection, b"".join(encode(packet, version) for packet in packets))

    def asked(self, connection: int, packet: SubAck) -> bool:
        """Return True if this answers a SUBSCRIBE of the device, even an earlier one."""
        if not self._asked[connection]:
            return False
        return packet.packet_id == SUBSCRIBE_ID or any(
            one.packet_id == packet.packet_id for one in self._packets(connection)
        )

    def on_suback(self, connection: int, packet: SubAck, moment_ns: int) -> None:
        """Handle a SUBACK, which arrived at `moment_ns`."""
        fleet = self._fleet
        asked_ns = fleet.devices[connection].request_ns
        if asked_ns == 0:
            return
        asked_qos = self._asked_qos.get(connection, 0)
        failure = _failure(packet.reason_codes, asked_qos, fleet.plan.version)
        granted = min(packet.reason_codes)
        if granted < asked_qos:
            # Messages come with the granted QoS; a lower one than requested is a failure.
            qos = fleet.devices["qos"]
            qos[connection] = min(int(qos[connection]), granted)
        if packet.packet_id != SUBSCRIBE_ID and failure is None:
            return  # one packet of several
        self._last_ns = max(self._last_ns, moment_ns)
        slot = slot_of(int(fleet.group[connection]), S_SUBACK, CONNECT_PHASE)
        record(fleet, slot, moment_ns - asked_ns)
        self.settle(connection, failure, refused=is_failure(max(packet.reason_codes)))

    def settle(self, connection: int, failure: str | None, *, refused: bool = False) -> None:
        """End the wait for a device's SUBACK, which arrived or cannot arrive any more."""
        self._fleet.devices[connection].request_ns = 0
        self._asked_qos.pop(connection, None)
        if connection not in self._waiting:
            if failure is not None and self._fleet.devices[connection].state == CONNECTED:
                self._reporter.event("subscribe", connection, f"subscribing again: {failure}")
            return
        self._waiting.discard(connection)
        if failure is not None:
            self._failures[failure] += 1
            closed = self._fleet.devices[connection].state != CONNECTED
            self._closed += closed
            if closed or refused:
                self.unserved.add(connection)
        else:
            self._fleet.totals.subscribed += 1
        self._ask_next()
