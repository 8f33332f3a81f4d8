"""Connects and reconnects of devices: pace, bounds, backoff, jitter, failures."""

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loadgen.brokers.ports import free_port
from loadgen.errors import HostLimitError
from loadgen.kernels.device import CLOSED, CONNECTED, CONNECTING, Device
from loadgen.kernels.fleet import ConnectQueue, Totals
from loadgen.mqtt.packets import ConnAck
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import Reconnect, Target
from loadgen.worker import connector as connector_module
from loadgen.worker.connector import Connector
from tests.tables import rows_of
from tests.worker.harness import Driver, Session, Transport, one_worker_plan, publishers

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
    """A connector whose connects are recorded and answered by the test."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, devices: int, first_device: int = 0
    ) -> None:
        self.clock = Time()
        self.begun: list[tuple[float, int]] = []
        self.answers: Callable[[int], bool] = lambda _connection: True
        totals, connects = Totals.rows(1), ConnectQueue.rows(1)
        fleet: object = SimpleNamespace(
            devices=Device.rows(devices),
            totals=totals[0],
            connects=connects[0],
            held={"totals": totals, "connects": connects},
            waiting=np.zeros(devices, np.int32),
            group=np.zeros(devices, np.int64),
            device=np.arange(first_device, first_device + devices),
            plan=SimpleNamespace(scenario=SimpleNamespace(seed=1)),
        )
        self.fleet = cast(PlannedFleet, fleet)
        loop: Any = self.clock
        monkeypatch.setattr(connector_module, "clock_ns", lambda: int(loop.now_s * 1e9))
        self.expired: list[tuple[float, int]] = []
        monkeypatch.setattr(connector_module, "connect_waiting", self.begin)
        self.connector = Connector(self.fleet, loop, lambda: None, self.expire)
        self.policy = Reconnect()

    def begin(self, fleet: PlannedFleet, count: int) -> None:
        first = fleet.connects.first
        places = np.arange(first, first + count) % len(fleet.waiting)
        fleet.connects.first = (first + count) % len(fleet.waiting)
        fleet.connects.count -= count
        for connection in fleet.waiting[places].tolist():
            self.begun.append((self.clock.now_s, connection))
            self.fleet.devices[connection].syn_ns = int(self.clock.now_s * 1e9)
            if self.answers(connection):
                self.connector.came_back(connection)
            else:
                self.clock.call_later(0.0, partial(self.lose, connection))

    def expire(self, connection: int, reason: str) -> None:
        assert reason == "no answer in time"
        self.fleet.devices[connection].state = CLOSED
        self.expired.append((self.clock.now_s, connection))

    def lose(self, connection: int) -> None:
        self.connector.reconnect(connection, self.policy)

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
    # The rate, and 20 ms that a late tick may catch up on.
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


@pytest.mark.parametrize(("waited_s", "overdue"), [(0.4, 0), (0.9, 0), (1.6, 2), (9.0, 2)])
async def test_who_is_not_let_in_again_is_overdue(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, overdue: int
) -> None:
    """Let two of three reconnect in vain; the first attempt of the third may take a moment."""
    bench = Bench(monkeypatch, 3)
    await bench.connect_all(None)
    bench.policy = Reconnect(0.5, 0.5, 0.0)
    bench.answers = lambda connection: connection == 2

    def hold(connection: int) -> None:
        bench.fleet.devices[connection].state = CONNECTING

    monkeypatch.setattr(bench, "lose", hold)
    for connection in range(3):
        bench.connector.reconnect(connection, bench.policy)
    bench.clock.run(waited_s)
    assert bench.connector.overdue() == overdue


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
        waits.append([moment - bench.clock.now_s for moment, _ in bench.connector._returning])
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
    bench.fleet.totals.connecting = IN_FLIGHT - 3
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
    states = bench.fleet.devices["state"]
    states[:] = CONNECTING
    states[1] = CONNECTED
    bench.fleet.totals.connecting = 1
    bench.connector._ticking = False
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


@pytest.mark.parametrize("transport", ["tcp", "tls"])
async def test_a_port_where_nobody_listens_fails_every_device(
    driver: Driver, transport: Transport
) -> None:
    plan = one_worker_plan(publishers(5), port=free_port("127.0.0.1"), transport=transport)
    answer = await driver.connect(plan, in_flight=2)
    assert answer["connected"] == 0
    assert answer["failures"] == {"connection refused": 5}
    assert driver.now("connect_failures") == 5
    await driver.stop()
    assert driver.counted("connect_failures", phase="connect") == 5
    assert driver.said("connect") == ["5 devices could not connect: connection refused"]


@pytest.mark.parametrize(("version", "code", "reason"), rows_of("worker.connack_refusals"))
async def test_a_refused_connack_is_a_failure_with_its_reason(
    driver: Driver, version: int, code: int, reason: str
) -> None:
    async def refuse(session: Session) -> None:
        await session.packet()
        # Twice, in one write: the second must not be counted as another device's.
        length = 3 if version == 5 else 2
        session.send_bytes(bytes([0x20, length, 0, code, *([0] * (length - 2))]) * 2)
        await session.packet()

    broker = await driver.broker(refuse)
    answer = await driver.connect(
        one_worker_plan(publishers(4), port=broker.port, version=version), in_flight=2
    )
    assert answer["connected"] == 0
    (said, count), *others = answer["failures"].items()
    assert not others
    assert said.lower().endswith(reason)
    assert said.startswith("CONNACK ")
    assert count == 4
    await driver.stop()
    assert driver.counted("connects") == 0
    assert driver.counted("connect_failures") == 4
    assert driver.counted("disconnects") == 0


BROKEN = "violation of MQTT: Malformed Packet (0x81)"
BANNER = b"SSH-2.0-OpenSSH_9.2\r\n"


@pytest.mark.parametrize(
    ("first", "stays"), [(b"", False), (BANNER, False), (BANNER, True), (b"\x20\x02\x00", False)]
)
async def test_a_server_that_hangs_up_before_connack_fails_the_connect(
    driver: Driver, first: bytes, stays: bool
) -> None:
    async def leave(session: Session) -> None:
        session.send_bytes(first)
        await session.drain()
        if stays:
            await asyncio.Event().wait()
        session.close()

    broker = await driver.broker(leave)
    answer = await driver.connect(one_worker_plan(publishers(3), port=broker.port))
    assert answer["connected"] == 0
    assert sum(answer["failures"].values()) == 3
    hung_up = set() if stays else {"closed before CONNACK; has the broker reached a limit?"}
    assert set(answer["failures"]) <= hung_up | {BROKEN}
    await driver.stop()
    assert driver.counted("connect_failures") == 3


async def test_connects_are_bounded_in_flight_and_paced(driver: Driver) -> None:
    most = 0
    under_way = 0

    async def slow(session: Session) -> None:
        nonlocal most, under_way
        await session.packet()
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        session.send(ConnAck())
        await session.behave()

    broker = await driver.broker(slow)
    answer = await driver.connect(
        one_worker_plan(publishers(60), port=broker.port), rate=300.0, in_flight=4
    )
    assert answer["connected"] == 60
    assert most <= 4
    # 60 connects at 300/s take 59 gaps, whatever the machine does.
    assert answer["last_ns"] - answer["first_ns"] >= 59 / 300 * 1e9 * 0.99
    await driver.stop()
    assert driver.counted("connects") == 60


async def test_more_failures_at_once_than_events_fit(driver: Driver) -> None:
    """Bind to a source address that is not ours, so that every connect fails at once."""
    count = 6000
    plan = one_worker_plan(publishers(count, 6000.0), port=free_port("127.0.0.1"))
    worker = plan.workers[0]
    workers = (type(worker)(worker.worker, worker.shares, source_address="203.0.113.9"),)
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    answer = await driver.connect(type(plan)(**{**fields, "workers": workers}), in_flight=100_000)
    assert answer["failures"] == {"cannot assign requested address": count}
    await driver.stop()
    assert driver.counted("connect_failures") == count


async def test_endpoints_may_be_of_both_address_families(driver: Driver) -> None:
    try:
        new = await driver.broker(host="::1")
    except HostLimitError:
        pytest.skip("no IPv6 loopback")
    old = await driver.broker()
    targets = (Target("127.0.0.1", old.port), Target("::1", new.port))
    answer = await driver.connect(one_worker_plan(publishers(6), targets=targets))
    assert answer["connected"] == 6
    assert answer["failures"] == {}
    assert [len(broker.sessions) for broker in (old, new)] == [3, 3]
    await driver.stop()
