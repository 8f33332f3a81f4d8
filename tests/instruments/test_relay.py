"""The relay between clients and the reflector or Mosquitto: what passes, and what does not."""

import asyncio

import pytest

from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.packets import Connect
from loadgen.mqtt.properties import Properties
from tests.brokers.conftest import ClientMaker
from tests.brokers.full_listener import full_listener
from tests.instruments.conftest import Erring
from tests.instruments.relay import serve
from tests.tables import rows_of

PAYLOADS = [b"%02d" % number * 5 for number in range(60)]


async def test_a_relay_that_ends_opens_no_more() -> None:
    def opening() -> list[str]:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return [name for name in names if name == "Relay._open"]

    with full_listener() as (host, port):
        config = {"host": "127.0.0.1", "port": 0, "broker": [host, port], "certificate": []}
        served, port = await serve(config | {"websocket": False, "faults": "none", "record": ""})
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(encode(Connect("late", MQTT_5), MQTT_5))
            async with asyncio.timeout(5):
                while not opening():
                    await asyncio.sleep(0.01)
        finally:
            served.close()
        assert await reader.read() == b""
        await asyncio.sleep(0)
        assert not opening()
        writer.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("fault", "seen"), rows_of("instruments.faults_seen"))
async def test_broker_and_client_both_finish_what_goes_wrong(
    client: ClientMaker, erring: Erring, fault: str, qos: int, seen: dict[str, int]
) -> None:
    async with erring(fault) as relay:
        (endpoint,) = relay.endpoints
        # All of them arrive only if the relay acknowledges to the broker what it takes away.
        subscriber = await client(endpoint, "s", properties=Properties(receive_maximum=10))
        other = await client(endpoint, "o")
        await subscriber.subscribe("t", qos=2)
        publisher = await client(endpoint, "p")
        await publisher.publish("t", *PAYLOADS, qos=qos)
        (name,), (number,) = seen.keys(), seen.values()
        if name == "downgraded" and not qos:
            number = 0
        more = {"repeated": number, "injected": number, "lost": -number, "misrouted": -number}
        await subscriber.until_count(60 + more.get(name, 0))
        for one in (subscriber, other, publisher):
            await one.sync()
        assert getattr(await relay.counts(), name) == number
        right = [m.payload in PAYLOADS and m.topic_name == "t" for m in subscriber.messages]
        wrong = number if name in ("corrupted", "mislabelled", "injected") else 0
        assert right.count(False) == wrong
        if name == "misrouted":
            assert len(other.messages) + len(publisher.messages) == number


async def test_the_seed_decides(client: ClientMaker, erring: Erring) -> None:
    outcomes = []
    for seed in (3, 3, 4):
        async with erring(f"lose=0.1,seed={seed}") as reflector:
            one = await client(reflector.endpoints[0], "s")
            await one.subscribe("t")
            await one.publish("t", *(bytes([n & 255, n >> 8]) * 16 for n in range(500)))
            outcomes.append([message.payload for message in one.messages])
    assert outcomes[0] == outcomes[1] != outcomes[2]
