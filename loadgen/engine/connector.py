"""Brings devices to the broker: paced, bounded in flight, and back again after a break.

One queue and one tick for all devices of a worker, never a timer or a task for one of them.
"""

import asyncio
import heapq
import random
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from loadgen.engine.fleet import Fleet
from loadgen.engine.reactor import connect_some
from loadgen.engine.streams import Streams
from loadgen.workload.groups import Reconnect
from loadgen.workload.traffic import (
    AWAIT_CONNACK,
    CONNECTING,
    CONNECTING_COUNT,
    EVENT_LIMIT,
    EVENTS,
    STATE,
)

__all__ = ["Connector"]

_TICK_S = 0.001  # the finest that a loop's timer can do
_IDLE_TICK_S = 0.02
_EXPIRE_EACH_S = 0.1
_CATCH_UP_S = 0.02
"""How much of the rate devices that come back may make up for: a late tick, not a storm."""


class Connector:
    """The connects of one worker.

    `lost(connection, reason)` is called for a device that got no answer in time.
    """

    def __init__(
        self,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        epoll: int,
        streams: Streams | None,
        on_events: Callable[[], None],
        lost: Callable[[int, str], None],
    ) -> None:
        self.fleet = fleet
        self.loop = loop
        self.epoll = epoll
        self.streams = streams
        self.on_events = on_events
        self.lost = lost
        self.queue: deque[int] = deque()
        self.begun: deque[tuple[int, list[int]]] = deque()
        self.begun_ns = np.zeros(len(fleet.connections), np.int64)
        self.returning: list[tuple[float, int]] = []
        self.attempts: dict[int, int] = {}
        self.done: asyncio.Future[None] | None = None
        self.rate: float | None = None
        self.in_flight = 0
        self.timeout_ns = 0
        self.allowance = 0.0
        self.paced_ns = 0
        self.ticking = False
        self.expire_s = 0.0
        # Another order in each worker, or devices of all workers would return at the same moments.
        first = (int(fleet.group[0]), int(fleet.device[0])) if len(fleet.device) else (0, 0)
        self.random = random.Random(f"{fleet.plan.seed} {first}")

    async def connect_all(
        self, rate: float | None, in_flight: int, timeout_s: float, *, first_in_flight: int
    ) -> None:
        """Try every device once; `rate` in connects a second, None for as fast as it goes.

        `first_in_flight` bounds the connects under way until then, `in_flight` those of devices
        that come back afterwards.
        """
        self.rate = rate
        self.in_flight = first_in_flight
        self.timeout_ns = int(timeout_s * 1e9)
        self.queue.extend(range(len(self.fleet.connections)))
        self.allowance = 1.0
        self.paced_ns = time.monotonic_ns()
        self.done = self.loop.create_future()
        self._tick()
        await self.done
        self.done = None
        self.in_flight = in_flight

    def come_back(self, connection: int, policy: Reconnect) -> None:
        """Let a device that lost its connection return after its wait."""
        attempt = self.attempts.get(connection, 0)
        self.attempts[connection] = attempt + 1
        wait_s = min(policy.delay_s * 2.0 ** min(attempt, 30), policy.maximum_s)
        wait_s *= 1.0 + policy.jitter * (2.0 * self.random.random() - 1.0)
        heapq.heappush(self.returning, (self.loop.time() + wait_s, connection))
        if not self.ticking:
            self._tick()

    def returned(self, connection: int) -> bool:
        """Whether a device that got its CONNACK had been away; its next wait is short again."""
        return self.attempts.pop(connection, None) is not None

    def stop(self) -> None:
        """Bring nobody back any more."""
        self.queue.clear()
        self.returning.clear()

    def _tick(self) -> None:
        now_s = self.loop.time()
        while self.returning and self.returning[0][0] <= now_s:
            self.queue.append(heapq.heappop(self.returning)[1])
        if now_s >= self.expire_s:
            self.expire_s = now_s + _EXPIRE_EACH_S
            self._expire()
        self.more()
        under_way = int(self.fleet.totals[CONNECTING_COUNT])
        self.ticking = bool(self.done is not None or self.queue or self.returning or under_way)
        if self.ticking:
            paced = bool(self.rate and self.queue)
            self.loop.call_later(_TICK_S if paced else _IDLE_TICK_S, self._tick)

    def more(self) -> None:
        """Begin as many connects as pace and bound allow."""
        fleet = self.fleet
        under_way = int(fleet.totals[CONNECTING_COUNT])
        # Each connect may fail at once and leave an event.
        room = EVENT_LIMIT - int(fleet.totals[EVENTS])
        count = min(self.in_flight - under_way, len(self.queue), room)
        if self.rate:
            now_ns = time.monotonic_ns()
            self.allowance += (now_ns - self.paced_ns) * self.rate / 1e9
            self.paced_ns = now_ns
            if self.done is None:
                self.allowance = min(self.allowance, max(1.0, self.rate * _CATCH_UP_S))
            count = min(count, int(self.allowance))
        if count > 0:
            self.allowance -= count
            connections = [self.queue.popleft() for _ in range(count)]
            now_ns = time.monotonic_ns()
            self.begun.append((now_ns, connections))
            self.begun_ns[connections] = now_ns
            self._begin(connections)
        elif self.done is not None and not self.queue and under_way == 0 and not self.done.done():
            self.done.set_result(None)

    def after_events(self) -> None:
        """Something ended or failed: there may be room for more connects."""
        if self.queue or self.done is not None:
            self.more()

    def _begin(self, connections: list[int]) -> None:
        fleet = self.fleet
        if self.streams is not None:
            for connection in connections:
                self.streams.connect(connection)
            return
        connect_some(
            self.epoll,
            np.array(connections, np.int64),
            fleet.source,
            fleet.addresses,
            fleet.address_bytes,
            fleet.clock,
            fleet.words,
            fleet.connections,
            fleet.totals,
            fleet.events,
        )
        if fleet.totals[EVENTS]:
            self.loop.call_soon(self.on_events)

    def _expire(self) -> None:
        """Give up on devices that wait longer than the time allowed.

        All may wait equally long, so what began first expires first, and only that is looked at.
        """
        states = self.fleet.connections[:, STATE]
        limit_ns = time.monotonic_ns() - self.timeout_ns
        while self.begun and self.begun[0][0] < limit_ns:
            began_ns, connections = self.begun.popleft()
            for connection in connections:
                # A device that was lost and tried again since has a later place in the order.
                latest = self.begun_ns[connection] == began_ns
                if latest and states[connection] in (CONNECTING, AWAIT_CONNACK):
                    self.lost(connection, "no answer in time")
