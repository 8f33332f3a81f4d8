"""Brokers that stop reading: unsent bytes leave later, and in order."""

import asyncio
import json
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.kernels.device import BLOCKED, CONNECTED
from loadgen.kernels.syscalls import EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, watch
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PubAck, Publish
from loadgen.plan.groups import DeviceGroup, Reconnect, Subscribes, Target, Tls
from loadgen.plan.plan import document_of
from loadgen.worker import worker as worker_module
from loadgen.worker.channel import Channel
from loadgen.worker.poller import WorkerLoop
from loadgen.worker.shared_counts import create_live_page
from tests.worker import harness


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def context(request: pytest.FixtureRequest, server_context: ssl.SSLContext) -> Any:
    """Return the TLS context of the broker, or None."""
    return server_context if request.param else None


def secured(context: ssl.SSLContext | None, port: int) -> dict[str, Any]:
    """Return the target of a plan, and its options."""
    if context is None:
        return {"port": port}
    return {"targets": (Target("127.0.0.1", port, "tls"),), "tls": Tls(verify=False)}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("largest", [60_000, 100_000], ids=["whole", "streamed"])
async def test_a_broker_that_stops_reading_gets_everything_later_and_in_order(
    driver: harness.Driver, context: ssl.SSLContext | None, qos: int, largest: int
) -> None:
    resume = asyncio.Event()

    async def stall(session: harness.Session) -> None:
        await session.welcome()
        session.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await resume.wait()
        session.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await session.behave()

    broker = await driver.broker(stall, ssl=context)
    # 1,000 messages a second of 60 kB and more: the kernel's buffers hold a few tenths of a second.
    group = harness.publishers(2, 1000.0, qos=qos, size=(20_000, largest), window=1000)
    where = secured(context, broker.port)
    await driver.connect(harness.one_worker_plan(group, max_packet_bytes=1 << 17, **where))
    await driver.start(warmup_ms=0, measure_ms=1000)
    await driver.until(lambda: driver.window_ends)
    backlog = driver.window_ends[0]
    assert backlog > 0
    assert backlog == 1000 - driver.now("sent")
    assert driver.now("finished") == 0
    assert driver.now("connected") == 2
    resume.set()
    await driver.until(
        lambda: (
            driver.now("finished")
            and sum(len(session.published) for session in broker.sessions) == 1000
        )
    )
    assert driver.now("sent") == 1000
    assert driver.now("owed") == 0
    await driver.stop()
    for number in range(2):
        dues = [driver.start_ns + number * harness.MS + k * 2 * harness.MS for k in range(500)]
        harness.check_stream(broker.client(number).published, number, dues)
    assert driver.counted("sent", phase="measure") == 1000
    assert driver.counted("disconnects") == 0
    assert max(row.max_ns for row in driver.recorded("send_delay")) > 100 * harness.MS
    peak = max(row.owed for row in driver.rows)
    assert peak > 0


async def test_a_blocked_connection_that_breaks_leaves_nothing_behind(
    driver: harness.Driver,
) -> None:
    async def stall(session: harness.Session) -> None:
        await session.welcome()
        session.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await harness.until(lambda: driver.window_ends)
        session.abort()

    broker = await driver.broker(stall)
    group = harness.publishers(1, 500.0, size=(60_000, 60_000))
    await driver.connect(harness.one_worker_plan(group, port=broker.port, max_packet_bytes=1 << 17))
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.now("disconnects") == 1)
    assert driver.now("owed") == 250 - driver.now("sent") > 0
    await driver.stop()
    assert driver.counted("disconnects") == 1


def test_what_waits_leaves_in_order_when_the_socket_opens_while_more_is_answered(
    collector: None, tmp_path: Path
) -> None:
    """Make the socket writable together with a message to acknowledge."""
    loop = WorkerLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(_answer_and_flush(loop, tmp_path), harness.HANG_S))
    finally:
        loop.close()


async def _answer_and_flush(loop: WorkerLoop, tmp_path: Path) -> None:
    coordinator, channel = socket.socketpair(), Channel(loop)
    coordinator[1].setblocking(False)
    await loop.connect_accepted_socket(lambda: channel, coordinator[1])
    made = worker_module.Worker(loop, channel)
    group = DeviceGroup("subscribers", 1, subscribes=Subscribes(("t",), 1))
    plan = harness.one_worker_plan(group, port=1)
    create_live_page(tmp_path / "live", 1, 1)
    header = {
        "plan": json.loads(orjson.dumps(document_of(plan))),
        "worker": 0,
        "workers": 1,
        "live": str(tmp_path / "live"),
        "anchor_ns": 1,
    }
    await made.configure(header)
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(harness.HANG_S)
    fleet = made.fleet
    fleet.devices[0].descriptor = near.fileno()
    fleet.devices[0].state = CONNECTED
    flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
    watch(made.lifecycle.poller.epoll.fileno(), near.fileno(), flags, 0, fleet.words)
    made.lifecycle.poller.on_ready()
    fleet.devices[0].flags |= BLOCKED
    made.lifecycle.outgoing.keep(0, encode(PubAck(1), 4))
    far.sendall(encode(Publish("t", b"x", 1, packet_id=2), 4))
    loop.call_soon(int)  # else compiled code stays until the next timer of the loop
    made.lifecycle.poller.on_ready()
    received = b""
    while len(received) < 8:
        received += far.recv(100)
    assert received == encode(PubAck(1), 4) + encode(PubAck(2), 4)
    assert not made.lifecycle.outgoing.pending
    assert not fleet.devices[0].flags & BLOCKED
    made.reporter.phase = "stop"
    loop.remove_reader(made.lifecycle.poller.epoll.fileno())
    made.lifecycle.poller.epoll.close()
    os.close(fleet.run.timer)
    near.close()
    far.close()
    channel.close()
    await asyncio.sleep(0)
    coordinator[0].close()


@pytest.mark.parametrize("count", [10, 1], ids=["others follow", "nothing follows"])
async def test_a_large_message_that_broke_off_goes_again_from_its_begin(
    driver: harness.Driver, context: ssl.SSLContext | None, count: int
) -> None:
    async def break_off(session: harness.Session) -> None:
        await session.welcome()
        if len(session.broker.sessions) == 1:
            await session.reader.readexactly(300_000)
            session.abort()
            return
        await session.behave()

    broker = await driver.broker(break_off, ssl=context)
    group = harness.publishers(1, 2.0 * count, qos=1, size=(1_000_000, 1_000_000))
    plan = harness.one_worker_plan(
        group,
        max_packet_bytes=1 << 21,
        reconnect=Reconnect(0.02, 0.05),
        **secured(context, broker.port),
    )
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.sent()
    harness.check_stream(broker.sessions[1].published, 0)
    assert len(broker.sessions[1].published) == driver.counted("sent") == count
    assert driver.counted("disconnects") == 1
