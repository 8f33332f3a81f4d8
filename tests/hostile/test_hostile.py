"""A broker that means harm costs a connection an error: no crash, no hang, no memory."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

from loadgen.brokers.ask import BrokerConnection, connect_of
from loadgen.brokers.endpoints import Endpoint
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import ConnAck, PingResp
from loadgen.plan.groups import Target
from tests.hostile.broker import AFTER_CONNACK, AT_ONCE, FOR_CONNACK, MISDEEDS, Harm, Victim, names
from tests.servers import closed, talking, upgraded
from tests.worker.conftest import certificates, driver, forkserver, server_context
from tests.worker.harness import Driver, one_worker_plan, publishers

__all__ = ["certificates", "driver", "forkserver", "server_context"]

MOST_GROWTH_KB = 16_000
"""Far below the 256 MB that each of several connections is sent."""
TIMEOUT_S = 3.0

Transport = Literal["tcp", "tls", "ws"]


def _private_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))


def _serving(*harms: Harm) -> AbstractAsyncContextManager[int]:
    """The port of a server that does something else to each connection."""
    number = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await harms[next(number) % len(harms)](Victim(reader, writer))
        await closed(writer)

    return talking(serve)


async def _connected(driver: Driver, port: int, devices: int, transport: Transport = "tcp") -> int:
    """Connect so many devices; how many of them failed. The worker has taken little memory."""
    targets = (Target("127.0.0.1", port, transport),)
    plan = one_worker_plan(publishers(devices, qos=1), targets=targets, version=5)
    await driver.configure(plan)
    before_kb = _private_kb(driver.pid)
    answer = await driver.connect(timeout_s=TIMEOUT_S)
    assert _private_kb(driver.pid) - before_kb < MOST_GROWTH_KB
    failed: int = sum(answer["failures"].values())
    return failed


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws"])
async def test_what_is_no_connack_fails_the_connect(driver: Driver, transport: Transport) -> None:
    """Over TLS and WebSocket it comes in the middle of the handshake."""
    wrong = [name for name in (*names(AT_ONCE), *names(FOR_CONNACK)) if name != "connack-first"]
    async with _serving(*(MISDEEDS[name].harm for name in wrong)) as port:
        assert await _connected(driver, port, len(wrong), transport) == len(wrong)
        await driver.stop()


def _once_connected(harm: Harm) -> Harm:
    async def welcome(victim: Victim) -> None:
        await victim.reader.read(1 << 16)
        await victim.say(encode(ConnAck(), 5))
        await harm(victim)

    return welcome


async def test_harm_behind_connack_ends_that_connection_and_takes_no_memory(driver: Driver) -> None:
    ending = [
        *("garbage-later", "huge-publish", "huge-suback", "unknown-suback", "second-connack"),
        *("endless-properties", "endless-connacks"),
    ]
    lasting = [name for name in names(AFTER_CONNACK) if name not in ending]
    harms = [_once_connected(MISDEEDS[name].harm) for name in (*ending, *lasting)]
    async with _serving(*harms) as port:
        assert await _connected(driver, port, len(harms)) == 0
        before_kb = _private_kb(driver.pid)
        await driver.until(lambda: driver.now("connected") == len(lasting))
        await driver.start(warmup_ms=0, measure_ms=300)
        await driver.until(lambda: driver.window_ends)
        assert _private_kb(driver.pid) - before_kb < MOST_GROWTH_KB
        assert driver.now("connected") == len(lasting)
        await driver.stop()


def _upgraded(harm: Callable[[Victim], Awaitable[None]]) -> Harm:
    async def upgrade(victim: Victim) -> None:
        await upgraded(victim.reader, victim.writer, "mqtt")
        await harm(victim)

    return upgrade


def _sending_a_frame_of(length: int) -> Harm:
    async def send(victim: Victim) -> None:
        await victim.say(b"\x82\x7f" + length.to_bytes(8, "big"))
        await victim.stream()

    return _upgraded(send)


async def test_a_websocket_frame_that_is_too_long_ends_the_connection(driver: Driver) -> None:
    lengths = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 256 << 20)
    async with _serving(*map(_sending_a_frame_of, lengths)) as port:
        assert await _connected(driver, port, len(lengths), "ws") == len(lengths)
        await driver.stop()


async def test_a_flood_of_packets_leaves_others_their_turn() -> None:
    """Of those who ask before the load, too: else no timeout would come while packets do."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    endpoint = Endpoint("mqtt", "127.0.0.1", 1)
    connection = BrokerConnection(endpoint, connect_of(endpoint, 5))
    connection._received += encode(PingResp(), 5) * 100
    beside = asyncio.ensure_future(other())
    for _ in range(100):
        await connection.receive()
    beside.cancel()
    assert turns >= 100
