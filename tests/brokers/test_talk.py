"""Clients that talk: they leave in good order, whatever happens to who started them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.probe import connect_of
from loadgen.brokers.talk import Patience, Talk, in_turn, together
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.packets import Connect, Publish
from tests.brokers.little_broker import LittleBroker, serving_little


async def test_when_one_cannot_connect_the_others_are_gone() -> None:
    little = LittleBroker()
    little.drops = lambda packet: packet.client_id == "unwanted"
    async with serving_little(little) as endpoint:
        wanted = [connect_of(endpoint, 5) for _ in range(3)]
        unwanted = replace(wanted[0], client_id="unwanted")
        with pytest.raises(BrokerRefusedError):
            async with Talk() as talk:
                await talk.join(endpoint, wanted[0])
                await together(*(_join(talk, endpoint, one) for one in (unwanted, *wanted[1:])))
        await _until(lambda: not little.connected)


async def test_a_cancelled_talk_closes_its_connections() -> None:
    little = LittleBroker()

    async def listens() -> None:
        async with Talk() as talk:
            client = await talk.join(endpoint, connect_of(endpoint, 5))
            client.publish(Publish("kept", b"x", retain=True))
            await talk.until(lambda: False, 60)

    async with serving_little(little) as endpoint:
        task = asyncio.ensure_future(listens())
        await _until(lambda: bool(little.published))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _until(lambda: not little.connected)
    assert [one.payload for one in little.published] == [b"x", b""], "retained messages are removed"


async def test_who_waits_for_what_never_comes_holds_nobody_up() -> None:
    begun: list[int] = []

    async def one(number: int, waits_s: float) -> int:
        begun.append(number)
        await asyncio.sleep(waits_s)
        return number

    loop = asyncio.get_running_loop()
    since = loop.time()
    assert await in_turn((one(0, 0.3), one(1, 0), one(2, 0.3)), turn_s=0.01) == [0, 1, 2]
    assert begun == [0, 1, 2]
    assert loop.time() - since < 0.6


async def test_patience_ends_when_nothing_is_heard_by_anyone() -> None:
    patience = Patience(0.2)
    async with Talk(patience=patience) as talk:
        hearing = asyncio.ensure_future(_hears(patience, 4))
        assert not await talk.until(lambda: False, 60)
        assert hearing.done(), "it did not wait while others heard something"
        assert talk.given_up


async def _hears(patience: Patience, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.1)
        patience.hear()


async def _join(talk: Talk, endpoint: Endpoint, packet: Connect) -> None:
    await talk.join(endpoint, packet)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.01)
