"""Faults of the relay that hold back, and its transcript."""

import asyncio
import json
from pathlib import Path

from loadgen.mqtt.packets import Publish
from tests.brokers.conftest import ClientMaker
from tests.instruments.conftest import Erring


def _payload(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"\x55" * 24


async def test_the_seed_decides(client: ClientMaker, erring: Erring) -> None:
    outcomes = []
    for seed in (3, 3, 4):
        async with erring(f"lose=0.1,seed={seed}") as reflector:
            (endpoint,) = reflector.endpoints
            one = await client(endpoint, "s")
            await one.subscribe("t")
            await one.publish("t", *map(_payload, range(500)))
            outcomes.append([message.payload for message in one.messages])
    assert outcomes[0] == outcomes[1] != outcomes[2]


async def test_changing_faults_lets_go(client: ClientMaker, erring: Erring) -> None:
    async with erring("delay=1h") as reflector:
        one = await client(reflector.endpoints[0], "s")
        await one.subscribe("t")
        await one.publish("t", *map(_payload, range(20)))
        assert one.messages == []
        before = await reflector.set_faults("lose=1/2")
        assert (before.delayed, before.delivered) == (20, 20)
        await one.publish("t", *map(_payload, range(20, 40)))
        await reflector.set_faults("none")
        await one.publish("t", *map(_payload, range(40, 60)))
        counts = await reflector.counts()
    numbers = [int.from_bytes(message.payload[:8], "big") for message in one.messages]
    assert numbers == [*range(20), *range(20, 40, 2), *range(40, 60)]
    assert (counts.lost, counts.delivered) == (10, 50)


async def test_what_was_said_is_written_down(
    client: ClientMaker, erring: Erring, tmp_path: Path
) -> None:
    path = tmp_path / "record"
    faults = "repeat=1/2,reject=0x87@1/3,subrefuse=0x87@1/2,refuse=0x89@1/3"
    message = b"".join((b"\1\0\0\0\2\0\0\0", bytes(24)))
    async with erring(faults, record=path) as reflector:
        (endpoint,) = reflector.endpoints
        subscriber, publisher = await client(endpoint, "s"), await client(endpoint, "p")
        await client(endpoint, "r")
        await subscriber.subscribe("t", qos=1)
        await subscriber.subscribe("u", qos=1)
        for packet_id in (1, 2, 3):
            publisher.send(Publish("t", message, 1, packet_id=packet_id))
        await publisher.sync()
        await subscriber.until_count(3)
        await subscriber.sync()
        await subscriber.close()
        while (await reflector.counts()).connected > 1:
            await asyncio.sleep(0.01)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    moments = [line.pop(1) for line in lines]
    assert moments == sorted(moments)
    header = [1, 2, 0, 0, 0, 0]
    said = [line for line in lines if line[1] in ("s", "r")]
    packet_ids = 1, 2, 65_535
    taken = [["taken", "s", 4, packet_id] for packet_id in packet_ids]
    assert [line for line in lines if line[0] == "taken"] == taken
    # The client may acknowledge a delivery before the next.
    for packet_id in packet_ids:
        delivered = said.index(["deliver", "s", packet_id, 1, False, "t", header, False])
        assert delivered < said.index(["taken", "s", 4, packet_id])
    assert said[-1] == ["close", "s"]
    assert [line for line in said if line not in taken] == [
        ["connect", "s", True, False, 0],
        ["connect", "r", True, False, 0x89],
        ["subscribe", "s", [["t", 1, 1]]],
        ["subscribe", "s", [["u", 1, 0x87]]],
        ["deliver", "s", 1, 1, False, "t", header, False],
        ["deliver", "s", 2, 1, False, "t", header, False],
        ["deliver", "s", 65_535, 1, False, "t", header, False],
        ["close", "s"],
    ]
    # A message that is rejected does not wait for deliveries of earlier ones.
    assert sorted(line[1:] for line in lines if line[0] == "fault") == [
        ["refuse", "r", None],
        ["reject", "p", header],
        ["repeat", "s", header],
        ["subrefuse", "s", None],
    ]
    assert sorted(line for line in lines if line[0] == "answer") == [
        ["answer", "p", 4, 1, 0],
        ["answer", "p", 4, 2, 0],
        ["answer", "p", 4, 3, 0x87],
    ]
