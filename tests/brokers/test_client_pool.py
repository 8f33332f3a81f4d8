"""Clients of a pool leave in good order, whatever happens to the task that started them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from loadgen.brokers.ask import connect_of, together
from loadgen.brokers.client_pool import ClientPool, shown_version, version_of
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.nats import run_nats
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.packets import Connect, Publish
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.needs import needs_mosquitto
from tests.secured_mosquitto import run_secured


async def test_when_one_cannot_connect_the_others_are_gone() -> None:
    little = LittleBroker()
    little.drops = lambda packet: packet.client_id == "unwanted"
    async with serving_little(little) as endpoint:
        wanted = [connect_of(endpoint, 5) for _ in range(3)]
        unwanted = replace(wanted[0], client_id="unwanted")
        with pytest.raises(BrokerRefusedError):
            async with ClientPool() as pool:
                await pool.join(endpoint, wanted[0])
                await together(*(_join(pool, endpoint, one) for one in (unwanted, *wanted[1:])))
        await _until(lambda: not little.connected)


async def test_a_cancelled_pool_closes_its_connections() -> None:
    little = LittleBroker()

    async def listens() -> None:
        async with ClientPool() as pool:
            client = await pool.join(endpoint, connect_of(endpoint, 5))
            client.publish(Publish("kept", b"x", retain=True))
            await pool.until(lambda: False, 60)

    async with serving_little(little) as endpoint:
        task = asyncio.ensure_future(listens())
        await _until(lambda: bool(little.published))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _until(lambda: not little.connected)
    assert [one.payload for one in little.published] == [b"x", b""], "retained messages are removed"


async def test_a_wait_ends_when_nothing_is_received_any_more() -> None:
    async with serving_little(LittleBroker()) as endpoint, ClientPool(quiet_s=0.3) as pool:
        client = await pool.join(endpoint, connect_of(endpoint, 5))
        assert await pool.subscribed(client, ("t",), 0, 60)
        for number in range(4):
            client.publish(Publish("t", b"%d" % number))
            await asyncio.sleep(0.1)
        # Longer than it may be quiet, but it was not.
        assert not pool.is_quiet and len(client.inbox) == 4
        assert not await pool.until(lambda: False, 60)
        assert pool.is_quiet


@needs_mosquitto
async def test_a_broker_states_its_version() -> None:
    async with run_secured(username="a", password="b") as broker:
        (endpoint,) = broker.endpoints
        version = await version_of(endpoint, connect_of(endpoint, 5))
        assert version == f"mosquitto version {broker.version}"
    async with run_nats() as nats:
        (endpoint,) = nats.endpoints
        assert await version_of(endpoint, connect_of(endpoint, 4)) == "unknown"


def test_a_stated_version_is_bounded_and_escaped() -> None:
    assert shown_version(b"") == "unknown"
    assert shown_version(b" x 1.0 ") == "x 1.0"
    assert shown_version(b"\x1b[31m<b>\xff\n") == "\\x1b[31m<b>\\ufffd"
    assert len(shown_version(b"\0" * 10_000)) == 200


async def _join(pool: ClientPool, endpoint: Endpoint, packet: Connect) -> None:
    await pool.join(endpoint, packet)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.01)
