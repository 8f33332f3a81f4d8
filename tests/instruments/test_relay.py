"""The relay between clients and the reflector or Mosquitto: what passes, and what does not."""

import asyncio
import json
from pathlib import Path

import pytest

from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.packets import Connect
from loadgen.mqtt.properties import Properties
from tests.brokers.conftest import ClientMaker
from tests.brokers.full_listener import full_listener
from tests.instruments.conftest import Erring, LocalRelay, local_relay
from tests.instruments.relay import NO_CONNACK
from tests.servers import talking
from tests.tables import rows_of

PAYLOADS = [b"%02d" % number * 5 for number in range(60)]


async def connected(
    relay: LocalRelay, client_id: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a relay that has sent CONNECT."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.endpoints[0].port)
    writer.write(encode(Connect(client_id, MQTT_5), MQTT_5))
    return reader, writer


async def test_a_relay_that_ends_opens_no_more() -> None:
    def opening() -> list[str]:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return [name for name in names if name == "Relay._open"]

    with full_listener() as (host, port):
        async with local_relay(host, port) as relay, asyncio.timeout(5):
            reader, writer = await connected(relay, "late")
            while not opening():
                await asyncio.sleep(0.01)
        assert await reader.read() == b""
        await asyncio.sleep(0)
        assert not opening()
        writer.close()


async def test_a_connection_without_connack_is_in_the_transcript(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)

    record = tmp_path / "transcript"
    async with talking(hang_up) as port, local_relay("127.0.0.1", port, record=record) as relay:
        reader, writer = await connected(relay, "c")
        assert await reader.read() == b""
        writer.close()
    kind, _, *values = json.loads(record.read_text())
    assert (kind, *values) == ("connect", "c", True, False, NO_CONNACK)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_read_late_is_read_as_at_once(
    client: ClientMaker, erring: Erring, qos: int, tmp_path: Path
) -> None:
    told = []
    for late in (False, True):
        record = tmp_path / f"late-{late}"
        async with erring(record=record, reads_late=late) as relay:
            subscriber = await client(relay.endpoints[0], "s")
            await subscriber.subscribe("t", qos=2)
            publisher = await client(relay.endpoints[0], "p")
            await publisher.publish("t", *PAYLOADS, qos=qos)
            await subscriber.until_count(len(PAYLOADS))
            for one in (publisher, subscriber, subscriber):  # PUBREL, then PUBCOMP
                await one.sync()
            assert ("deliver" in record.read_text()) is not late
            await relay.finish()
        lines = map(json.loads, record.read_text().splitlines())
        told.append(sorted(json.dumps([kind, *values]) for kind, _, *values in lines))
    assert told[0] == told[1]
    # A message at QoS 1 and 2 is published, answered, delivered, taken and released.
    assert len(told[0]) == 5 + len(PAYLOADS) * (2, 4, 7)[qos]


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
