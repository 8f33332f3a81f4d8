"""Connects of devices: paced, bounded in flight, and repeated with backoff after a loss.

One queue and one tick serve all devices of a worker. Without a pace, the kernels take devices from
the queue directly.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence

import numpy as np

from loadgen.kernels.counting import EVENT_LIMIT
from loadgen.kernels.device import AWAIT_CONNACK, CLOSED, CONNECTING
from loadgen.kernels.reactor import connect_waiting
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import Reconnect
from loadgen.worker.clock import clock_ns

_TICK_S = 0.001  # the finest that a loop's timer can do
_IDLE_TICK_S = 0.02
_EXPIRE_EACH_S = 0.1
_MOMENT_NS = 1_000_000_000
_CATCH_UP_S = 0.02  # longest time at the rate that reconnects can catch up on


class Connector:
    """The connects of one worker; `lost(connection, reason)` ends one without an answer."""

    def __init__(
        self,
        fleet: PlannedFleet,
        loop: asyncio.AbstractEventLoop,
        on_events: Callable[[], None],
        lost: Callable[[int, str], None],
    ) -> None:
        self._fleet = fleet
        # Each connect reads these; a column is many times cheaper than a field of a record.
        self._connecting, self._events = (
            fleet.held["totals"][name] for name in ("connecting", "events")
        )
        self._first, self._count, self._kept_under_way = (
            fleet.held["connects"][name] for name in ("first", "count", "in_flight")
        )
        self._loop = loop
        self._on_events = on_events
        self._lost = lost
        self._returning: list[tuple[float, int]] = []
        self._attempts: dict[int, int] = {}
        self._done: asyncio.Future[None] | None = None
        self._rate: float | None = None
        self._in_flight = 0
        self._timeout_ns = 0
        self._allowance = 0.0
        self._paced_ns = 0
        self._ticking = False
        self._expire_s = 0.0
        # A different order in each worker, or devices of all workers would return at once.
        first = (int(fleet.group[0]), int(fleet.device[0])) if len(fleet.device) else (0, 0)
        self.random = random.Random(f"{fleet.plan.scenario.seed} {first}")

    async def connect_all(
        self, rate: float | None, in_flight: int, timeout_s: float, *, first_in_flight: int
    ) -> None:
        """Try every device once; `rate` in connects a second, None for as fast as it goes.

        `first_in_flight` bounds the connects in flight until then, `in_flight` later reconnects.
        """
        self._rate = rate
        self._timeout_ns = int(timeout_s * 1e9)
        self._bound(first_in_flight)
        self._enqueue(range(len(self._fleet.devices)))
        self._allowance = 1.0
        self._paced_ns = clock_ns()
        self._done = self._loop.create_future()
        self._tick()
        await self._done
        self._done = None
        self._bound(in_flight)

    def _bound(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._kept_under_way[0] = 0 if self._rate else in_flight

    def _enqueue(self, connections: Sequence[int]) -> None:
        waiting, first = self._fleet.waiting, int(self._first[0] + self._count[0])
        waiting[np.arange(first, first + len(connections)) % len(waiting)] = connections
        self._count[0] += len(connections)

    @property
    def connecting_all(self) -> bool:
        """Return True while `connect_all` connects devices."""
        return self._done is not None

    def reconnect(self, connection: int, policy: Reconnect) -> None:
        """Let a device that lost its connection reconnect after its wait."""
        attempt = self._attempts.get(connection, 0)
        self._attempts[connection] = attempt + 1
        wait_s = min(policy.delay_s * 2.0 ** min(attempt, 30), policy.maximum_s)
        wait_s *= 1.0 + policy.jitter * (2.0 * self.random.random() - 1.0)
        heapq.heappush(self._returning, (clock_ns() / 1e9 + wait_s, connection))
        if not self._ticking:
            self._tick()

    def return_at(self, connection: int, moment_ns: int) -> None:
        """Let a device that left reconnect at a time."""
        self._attempts[connection] = 1
        heapq.heappush(self._returning, (moment_ns / 1e9, connection))
        if not self._ticking:
            self._tick()

    def is_away(self, connection: int) -> bool:
        """Return True if the device was connected before and is to reconnect."""
        return connection in self._attempts

    def came_back(self, connection: int) -> bool:
        """Return True if a device with a CONNACK was away; reset its wait."""
        return self._attempts.pop(connection, None) is not None

    def overdue(self) -> int:
        """Return the number of devices that are away though their first attempt was due."""
        # A first attempt that began a moment ago is excused: it may still succeed.
        now_ns, devices = clock_ns(), self._fleet.devices
        at_first = (one for one, attempts in self._attempts.items() if attempts == 1)
        waiting = {connection for _, connection in self._returning}
        excused = sum(
            one in waiting
            or (devices["state"][one] != CLOSED and now_ns - devices["syn_ns"][one] < _MOMENT_NS)
            for one in at_first
        )
        return len(self._attempts) - int(excused)

    def stop(self) -> None:
        self._count[0] = 0
        self._returning.clear()

    def _tick(self) -> None:
        now_s = clock_ns() / 1e9
        while self._returning and self._returning[0][0] <= now_s:
            self._enqueue([heapq.heappop(self._returning)[1]])
        if now_s >= self._expire_s:
            self._expire_s = now_s + _EXPIRE_EACH_S
            self._expire()
        self.more()
        is_paced = bool(self._rate and self._count[0])
        self._ticking = bool(
            self.connecting_all or self._count[0] or self._returning or self._connecting[0]
        )
        if self._ticking:
            self._loop.call_later(_TICK_S if is_paced else _IDLE_TICK_S, self._tick)

    def more(self) -> None:
        """Begin as many connects as pace and bound allow; call again after each end of one."""
        count = self._allowed() if self._count[0] else 0
        if count > 0:
            self._allowance -= count
            connect_waiting(self._fleet, count)
            if self._events[0]:
                self._loop.call_soon(self._on_events)
        elif self._done is not None and not (
            self._count[0] or self._connecting[0] or self._done.done()
        ):
            self._done.set_result(None)

    def _allowed(self) -> int:
        # Each connect may fail at once and leave an event.
        room = EVENT_LIMIT - int(self._events[0])
        count = min(self._in_flight - int(self._connecting[0]), int(self._count[0]), room)
        if not self._rate:
            return count
        now_ns = clock_ns()
        self._allowance += (now_ns - self._paced_ns) * self._rate / 1e9
        self._paced_ns = now_ns
        if not self.connecting_all:
            self._allowance = min(self._allowance, max(1.0, self._rate * _CATCH_UP_S))
        return min(count, int(self._allowance))

    def _expire(self) -> None:
        if not self._connecting[0]:
            return
        devices = self._fleet.devices
        late = devices["syn_ns"] < clock_ns() - self._timeout_ns
        late &= (devices["state"] == CONNECTING) | (devices["state"] == AWAIT_CONNACK)
        for connection in np.flatnonzero(late).tolist():
            self._lost(connection, "no answer in time")
