"""Connections that a broker breaks, and devices that reconnect."""

import asyncio
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from loadgen.kernels import counting
from loadgen.mqtt import packets
from loadgen.plan.groups import Reconnect
from loadgen.worker.lifecycle import Lifecycle
from tests.tables import rows_of
from tests.worker.harness import (
    Driver,
    Gone,
    Session,
    Transport,
    check_stream,
    header,
    one_worker_plan,
    publishers,
    subscribers,
    until,
)


async def test_a_connection_closed_right_behind_connack_is_noticed(driver: Driver) -> None:
    """Send CONNACK and the end of the stream before the worker looks."""

    async def leave(session: Session) -> None:
        await session.packet()
        os.kill(driver.pid, signal.SIGSTOP)
        session.send(packets.ConnAck())
        await session.drain()
        session.writer.write_eof()
        # The two are in the worker's socket before it looks.
        await asyncio.sleep(0.05)
        os.kill(driver.pid, signal.SIGCONT)
        with pytest.raises(Gone):
            await session.packet()

    broker = await driver.broker(leave)
    await driver.connect(one_worker_plan(publishers(2), port=broker.port), in_flight=1)
    await driver.until(lambda: driver.now("disconnects") == 2)
    assert driver.now("connected") == 0
    await driver.stop()
    assert driver.counted("connects") == 2
    assert driver.counted("disconnects") == 2
    assert driver.said("disconnect") == ["closed by the broker"] * 2


@pytest.mark.parametrize(("transport", "qos"), [("tcp", 0), ("tcp", 1), ("tls", 1)])
async def test_a_connection_that_drops_mid_run_is_reported_and_its_messages_stay_in_the_backlog(
    driver: Driver, transport: Transport, qos: int
) -> None:
    async def drop(session: Session) -> None:
        await session.welcome()
        while True:
            session.respond(await session.packet())
            if session.connect.client_id.endswith("-1") and len(session.published) == 5:
                session.abort()
                return

    broker = await driver.broker(drop, transport)
    plan = one_worker_plan(publishers(3, qos=qos), port=broker.port, transport=transport)
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.window_ends)
    sent = driver.now("sent")
    assert 105 <= sent < 150
    backlog = 150 - sent
    assert driver.window_ends[0] == driver.now("owed") == backlog
    assert driver.now("disconnects") == 1
    assert driver.now("connected") == 2
    assert driver.now("finished") == 0
    await driver.stop()
    assert driver.counted("disconnects", phase="measure") == 1
    assert len(driver.said("disconnect")) == 1
    last = max((row for row in driver.rows if row.group == "publishers"), key=lambda r: r.time_ns)
    rows = [r for r in driver.rows if r.time_ns == last.time_ns and r.group == "publishers"]
    assert sum(row.owed for row in rows) == backlog
    assert broker.published["t/0"] == broker.published["t/2"] == 50


@pytest.mark.parametrize(("version", "data", "said"), rows_of("worker.dismissals"))
async def test_who_ended_a_connection_is_reported_with_the_reason(
    driver: Driver, version: int, data: str, said: str
) -> None:
    async def dismiss(session: Session) -> None:
        await session.welcome()
        session.send_bytes(bytes.fromhex(data))
        await session.behave()

    broker = await driver.broker(dismiss)
    plan = one_worker_plan(publishers(1), port=broker.port, version=version)
    await driver.connect(plan)
    await driver.until(lambda: driver.now("disconnects") == 1)
    await driver.stop()
    (event,) = (event for event in driver.events if event["kind"] == "disconnect")
    assert (event["group"], event["device"]) == ("publishers", 0)
    assert event["detail"].startswith(said)


async def test_a_storm_of_events_of_one_kind_is_cut(driver: Driver) -> None:
    async def leave(session: Session) -> None:
        await session.welcome()
        await connected.wait()
        session.abort()

    connected = asyncio.Event()
    broker = await driver.broker(leave)
    await driver.connect(one_worker_plan(publishers(60), port=broker.port))
    connected.set()
    await driver.until(lambda: driver.now("disconnects") == 60)
    await driver.stop()
    assert len(driver.said("disconnect")) == 20
    assert driver.counted("disconnects") == 60


@pytest.mark.parametrize("present", [False, True])
async def test_a_device_that_comes_back_sends_again_what_was_unacknowledged(
    driver: Driver, present: bool
) -> None:
    async def break_once(session: Session) -> None:
        again = len(broker.sessions) > 1
        await session.welcome(packets.ConnAck(session_present=again and present))
        if again:
            await session.behave()
        while len(session.published) < 3:
            packet = await session.packet()
            assert isinstance(packet, packets.Publish)
            session.published.append(packet)
        session.abort()

    broker = await driver.broker(break_once)
    plan = one_worker_plan(
        publishers(1, 100.0, qos=1, clean_start=not present),
        port=broker.port,
        reconnect=Reconnect(0.05, 0.1, 0.0),
    )
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.sent()
    first, second = (session.published for session in broker.sessions[:2])
    check_stream(first, 0)
    again = [header(packet)[1] for packet in second]
    assert again == list(range(again[0], 50))
    assert again[0] == 0
    repeated = [packet.dup for packet in second]
    assert repeated[:3] == [present] * 3
    assert driver.counted("disconnects", phase="measure") == 1
    assert driver.counted("connects") == 2
    assert driver.counted("sent") == driver.counted("acknowledged") == 50
    assert driver.now("connect_failures") == 0


async def test_a_subscriber_that_comes_back_subscribes_again_and_what_it_missed_is_lost(
    driver: Driver,
) -> None:
    async def break_once(session: Session) -> None:
        await session.welcome()
        if session.connect.client_id[10] == "p" or len(broker.sessions) > 2:
            await session.behave()
        session.respond(await session.packet())
        await until(lambda: sum(broker.published.values()) >= 10)
        session.filters.clear()
        session.abort()

    broker = await driver.broker(break_once)
    plan = one_worker_plan(
        publishers(1, 100.0), subscribers(), port=broker.port, reconnect=Reconnect(0.02, 0.1, 0.5)
    )
    await driver.connect(plan)
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=600)
    await driver.until(lambda: driver.window_ends and driver.now("finished"))
    received = driver.now("received")
    await driver.stop()
    assert driver.counted("sent") == 60
    assert driver.counted("received") == received
    assert 10 <= received < 60
    assert driver.counted("connects") == 3
    recorded = driver.recorded_count("end_to_end") + driver.recorded_count("reconnect")
    assert recorded == received


async def test_devices_come_back_however_often_they_fail(driver: Driver) -> None:
    async def moody(session: Session) -> None:
        number = len(broker.sessions)
        if number in (2, 3):
            session.abort()
        elif number == 4:
            await session.welcome(packets.ConnAck(reason_code=3))
        else:
            await session.welcome()
            if number == 1:
                await until(lambda: driver.now("connected") == 1)
                session.abort()
        await session.behave()

    broker = await driver.broker(moody)
    plan = one_worker_plan(
        publishers(1, 100.0), port=broker.port, reconnect=Reconnect(0.01, 0.02, 0.5)
    )
    await driver.connect(plan)
    await driver.until(lambda: len(broker.sessions) == 5 and driver.now("connected") == 1)
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.sent()
    assert broker.published == {"t/0": 10}
    assert driver.counted("connects") == 2
    assert driver.counted("connect_failures") == 3
    assert driver.counted("disconnects") == 1


def test_messages_over_tls_leave_before_others_are_read() -> None:
    """Send messages first: reads before them would count as the broker's time."""
    done: list[tuple[str, int]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda connection=0, *_: done.append((name, connection))

    rows = [(counting.READY, 1, 1, 0, 0, 5), (counting.UNSENT, 2, 0, 0, 3, 5)]
    stage = Lifecycle.__new__(Lifecycle)
    parts = {
        "_fleet": SimpleNamespace(events=np.array(rows), control=np.zeros(3, np.uint8)),
        "_events": np.array([2]),
        "_control_bytes": np.array([3]),
        "streams": SimpleNamespace(serve=note("read")),
        "outgoing": SimpleNamespace(keep=note("keep"), go_on=note("write")),
        "connector": SimpleNamespace(more=note("connect")),
    }
    for name, part in parts.items():
        setattr(stage, name, part)
    stage._handle_events()
    assert done == [("keep", 2), ("write", 2), ("read", 1), ("connect", 0)]
