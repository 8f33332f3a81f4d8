"""The check before the load, with brokers of different make."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from loadgen.brokers.ask import connect_of, together
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.nats import run_nats
from loadgen.brokers.process import ServedBroker
from loadgen.brokers.reflector import run_reflector
from loadgen.brokers.rehearsal import ClientPool, shown_version
from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.packets import Connect, Publish
from loadgen.run.broker_provider import plan_for
from loadgen.run.preflight import check_broker
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.needs import needs_mosquitto
from tests.secured_mosquitto import run_secured


async def checked(endpoint: Endpoint, case: str, **fields: Any) -> ServedBroker:
    """Check a broker and return it; raise the errors of the check."""
    named = f"mqtt://{endpoint.address}"
    plan = resolve(build_scenario(case, None, {"broker": named, "broker_name": "x", **fields}))
    plan = await plan_for(plan, (endpoint,))
    return await check_broker(plan, ServedBroker.at((endpoint,)))


async def refusal(endpoint: Endpoint, case: str, **fields: Any) -> str:
    with pytest.raises(BrokerRefusedError) as caught:
        await checked(endpoint, case, **fields)
    code: str = caught.value.values.get("what", caught.value.args[0]).code
    return code


@asynccontextmanager
async def broker(name: str) -> AsyncIterator[Endpoint]:
    if name == "mosquitto":
        async with run_secured(username="u", password="secret") as mosquitto:
            yield mosquitto.endpoints[0]
    elif name == "nats":
        async with run_nats() as nats:
            yield nats.endpoints[0]
    else:
        async with run_reflector() as reflector:
            yield reflector.endpoints[0]


PLAYED = [case for case in CASES if case != "bridge"]


@pytest.mark.parametrize("name", [pytest.param("mosquitto", marks=needs_mosquitto), "reflector"])
async def test_brokers_of_both_versions_can_play_every_case(name: str) -> None:
    stored = ("persistent", "queue", "specjms") if name == "reflector" else ()
    async with broker(name) as endpoint:
        for case in stored:
            assert await refusal(endpoint, case, mqtt="5") == "NO_SESSION"
        for case in sorted({*PLAYED} - {*stored}):
            for mqtt in ("3.1.1", "5") if case != "queue" else ("5",):
                fields = (
                    {"base": 1, "handlers": 2 if mqtt == "5" else 1} if case == "specjms" else {}
                )
                served = await checked(endpoint, case, mqtt=mqtt, **fields)
                assert all("Receive Maximum" in remark for remark in served.remarks)
                assert served.version.startswith("mosquitto" if name == "mosquitto" else "unknown")


async def test_a_broker_of_3_1_1_can_play_what_needs_no_more() -> None:
    async with broker("nats") as endpoint:
        for case in ("fanin", "fanout", "persistent", "latency", "request", "connburst"):
            await checked(endpoint, case)
        for case in ("fanin", "queue"):
            assert await refusal(endpoint, case, mqtt="5") == "OTHER_VERSION"


@needs_mosquitto
@pytest.mark.parametrize("mqtt", ["3.1.1", "5"])
async def test_a_broker_may_hold_many_retained_messages(mqtt: str) -> None:
    """The message of the check comes after all of them, at MQTT 5 without them."""
    devices = {"name": "sensors", "count": 1, "rate": 1, "topic": "plant/live"}
    reader = {"name": "reader", "count": 1, "subscribe": "plant/#"}
    async with run_secured() as mosquitto, ClientPool() as pool:
        endpoint = mosquitto.endpoints[0]
        client = await pool.join(endpoint, connect_of(endpoint, 5))
        for number in range(20_000):
            client.connection.send(Publish(f"plant/{number}", b"x", retain=True))
        client.publish(Publish("plant/last", b"x", 1, packet_id=1))
        assert await pool.until(lambda: 1 in client.completed, 60)
        await checked(endpoint, "run", mqtt=mqtt, group=json.dumps([devices, reader]))


@needs_mosquitto
async def test_sessions_of_the_rehearsal_do_not_stay() -> None:
    async with run_secured() as mosquitto:
        endpoint = mosquitto.endpoints[0]
        for mqtt in ("3.1.1", "5"):
            pattern = f"own-{mqtt}-{{group}}-{{device}}"
            await checked(endpoint, "persistent", mqtt=mqtt, client_id=pattern)
            again = await checked(endpoint, "persistent", mqtt=mqtt, client_id=pattern)
            assert all("Receive Maximum" in remark for remark in again.remarks)


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
        assert pool.left_s(time.monotonic(), 60) > 0 and len(client.inbox) == 4
        assert not await pool.until(lambda: False, 60)
        assert pool.left_s(time.monotonic(), 60) <= 0


def test_time_in_which_retained_messages_come_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, now = ClientPool(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pool._notify(Publish("t", b"x", retain=True))
    now = 103.0
    pool._notify(Publish("t", b"x", retain=True))
    assert pool.left_s(100.0, 2.0) == 2.0
    now = 104.0
    pool._notify(Publish("t", b"x"))
    assert pool.left_s(100.0, 2.0) == 1.0
    now = 500.0  # not without end
    pool._notify(Publish("t", b"x", retain=True))
    assert pool.left_s(100.0, 2.0) < 0


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
