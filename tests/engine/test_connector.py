"""How devices connect and come back, in a time of its own: pace, backoff, jitter."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadgen.engine import connector as connector_module
from loadgen.engine.connector import Connector
from loadgen.workload import traffic
from loadgen.workload.groups import Reconnect

IN_FLIGHT = 64
START_S = 100.0


class Time:
    """A loop's timers; `late_s` delays the next one that is due, as a busy host does."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.late_s = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now_s + delay_s, self._count, action))

    def create_future(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            due_s, _, action = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, due_s) + self.late_s
            self.late_s = 0.0
            action()
        self.now_s = max(self.now_s, end_s)


class Bench:
    """A connector whose connects are noted and answered as the test likes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, devices: int, first_device: int = 0
    ) -> None:
        self.clock = Time()
        self.begun: list[tuple[float, int]] = []
        self.answers: Callable[[int], bool] = lambda _connection: True
        self.fleet: Any = SimpleNamespace(
            connections=np.zeros((devices, traffic.CONNECTION_FIELDS), np.int64),
            totals=np.zeros(traffic.TOTALS, np.int64),
            group=np.zeros(devices, np.int64),
            device=np.arange(first_device, first_device + devices),
            plan=SimpleNamespace(seed=1),
        )
        loop: Any = self.clock
        monkeypatch.setattr(
            connector_module, "time", SimpleNamespace(monotonic_ns=lambda: int(loop.now_s * 1e9))
        )
        self.expired: list[tuple[float, int]] = []
        self.connector = Connector(self.fleet, loop, -1, None, lambda: None, self.expire)
        monkeypatch.setattr(self.connector, "_begin", self.begin)
        self.policy = Reconnect()

    def begin(self, connections: list[int]) -> None:
        for connection in connections:
            self.begun.append((self.clock.now_s, connection))
            if self.answers(connection):
                self.connector.returned(connection)
            else:
                self.clock.call_later(0.0, lambda lost=connection: self.lose(lost))

    def expire(self, connection: int, reason: str) -> None:
        assert reason == "no answer in time"
        self.fleet.connections[connection, traffic.STATE] = traffic.CLOSED
        self.expired.append((self.clock.now_s, connection))

    def lose(self, connection: int) -> None:
        self.connector.come_back(connection, self.policy)

    async def connect_all(self, rate: float | None) -> None:
        connecting = asyncio.ensure_future(
            self.connector.connect_all(rate, IN_FLIGHT, 30.0, first_in_flight=IN_FLIGHT)
        )
        while not connecting.done():
            await asyncio.sleep(0)
            self.clock.run(0.02)
        self.begun.clear()

    def most_within(self, seconds: float) -> int:
        times = [moment for moment, _ in self.begun]
        return max(sum(t <= other < t + seconds for other in times) for t in times)


@pytest.mark.parametrize("late_s", [0.0, 0.5])
async def test_devices_that_return_together_keep_the_rate(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    bench = Bench(monkeypatch, 300)
    await bench.connect_all(500.0)
    bench.clock.run(10.0)  # an idle time that must not be saved up
    bench.policy = Reconnect(0.05, 1.0, 0.5)
    for connection in range(300):
        bench.lose(connection)
    bench.clock.run(0.2)
    bench.clock.late_s = late_s
    bench.clock.run(2.0)
    assert sorted(connection for _, connection in bench.begun) == list(range(300))
    # The rate, and what a tick that came late may make up for: another 20 ms.
    assert bench.most_within(0.02) <= 500 * 0.02 * 2
    assert bench.most_within(0.1) <= 500 * 0.12
    assert bench.begun[-1][0] - bench.begun[0][0] >= (300 - 20) / 500


async def test_without_a_rate_all_return_when_their_wait_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, 50)
    await bench.connect_all(None)
    bench.policy = Reconnect(0.1, 1.0, 0.5)
    began_s = bench.clock.now_s
    for connection in range(50):
        bench.lose(connection)
    bench.clock.run(1.0)
    waits = sorted(moment - began_s for moment, _ in bench.begun)
    assert len(waits) == 50
    assert 0.05 <= waits[0] < waits[-1] <= 0.15 + 0.02


async def test_the_wait_doubles_up_to_the_longest_and_starts_again_after_a_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, 1)
    await bench.connect_all(None)
    bench.policy = Reconnect(0.5, 3.0, 0.0)
    bench.answers = lambda _connection: len(bench.begun) >= 6
    lost_s = bench.clock.now_s
    bench.lose(0)
    bench.clock.run(30.0)
    moments = [lost_s, *(moment for moment, _ in bench.begun)]
    waits = [later - earlier for earlier, later in pairwise(moments)]
    assert waits == pytest.approx([0.5, 1.0, 2.0, 3.0, 3.0, 3.0], abs=0.03)
    lost_s = bench.clock.now_s
    bench.lose(0)
    bench.clock.run(30.0)
    assert bench.begun[-1][0] - lost_s == pytest.approx(0.5, abs=0.03)


async def test_jitter_spreads_devices_and_differs_between_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = []
    for first_device in (0, 1):
        bench = Bench(monkeypatch, 100, first_device)
        await bench.connect_all(None)
        bench.policy = Reconnect(1.0, 10.0, 0.5)
        for connection in range(100):
            bench.lose(connection)
        waits.append([moment - bench.clock.now_s for moment, _ in bench.connector.returning])
        bench.connector.stop()
        bench.clock.run(10.0)
        assert bench.begun == []
    for found in waits:
        assert 0.5 <= min(found) < 0.6
        assert 1.4 < max(found) <= 1.5
    assert set(waits[0]).isdisjoint(waits[1])


async def test_no_more_are_under_way_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 200)
    await bench.connect_all(None)
    bench.policy = Reconnect(0.01, 1.0, 0.5)
    bench.fleet.totals[traffic.CONNECTING_COUNT] = IN_FLIGHT - 3
    for connection in range(200):
        bench.lose(connection)
    bench.clock.run(0.06)
    ticks = {moment for moment, _ in bench.begun}
    assert ticks
    for tick in ticks:
        assert sum(moment == tick for moment, _ in bench.begun) <= 3


async def test_a_device_expires_by_its_latest_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, 3)
    await bench.connect_all(None)  # with 30 s for an answer
    began_s = bench.clock.now_s
    states = bench.fleet.connections[:, traffic.STATE]
    states[:] = traffic.CONNECTING
    states[1] = traffic.CONNECTED
    bench.fleet.totals[traffic.CONNECTING_COUNT] = 1
    bench.connector.ticking = False
    bench.policy = Reconnect(10.0, 10.0, 0.0)
    bench.lose(2)  # it tries again ten seconds later, and waits from then on
    bench.clock.run(60.0)
    assert [connection for _, connection in bench.expired] == [0, 2]
    assert bench.expired[0][0] - began_s == pytest.approx(30.0, abs=0.3)
    assert bench.expired[1][0] - began_s == pytest.approx(40.0, abs=0.3)


async def test_those_that_come_back_share_what_the_first_connects_had_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, 100)
    connecting = asyncio.ensure_future(
        bench.connector.connect_all(None, 2, 30.0, first_in_flight=40)
    )
    await asyncio.sleep(0)
    assert len(bench.begun) == 40
    while not connecting.done():
        await asyncio.sleep(0)
        bench.clock.run(0.02)
    bench.begun.clear()
    for connection in range(100):
        bench.lose(connection)
    bench.clock.run(0.5 + 0.021)
    assert {bench.clock.now_s}
    moments = [moment for moment, _ in bench.begun]
    assert max(moments.count(moment) for moment in moments) == 2
