"""Another MQTT client on the same broker sees what loadgen says that it sent."""

import asyncio
import zlib
from pathlib import Path

import aiomqtt

from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.cases.registry import build_scenario
from loadgen.control.coordinator import run
from loadgen.scorecard.summary import summarize_run
from loadgen.workload.rehearsal import ASKED

HANG_S = 30.0
WARM_UP_S, WINDOW_S = 0.5, 1.5
RATE = 200


async def test_an_independent_subscriber_counts_the_same(tmp_path: Path) -> None:
    async with run_mosquitto() as broker:
        endpoint = broker.endpoints[0]
        payloads: list[bytes] = []
        subscribed = asyncio.Event()

        async def listen() -> None:
            async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
                await client.subscribe("#", qos=1)
                subscribed.set()
                async for message in client.messages:
                    if str(message.topic) == "cross-check/end":
                        return
                    assert isinstance(message.payload, bytes)
                    if not message.payload.startswith(ASKED):  # before the load
                        payloads.append(message.payload)

        listener = asyncio.create_task(listen())
        await asyncio.wait_for(subscribed.wait(), HANG_S)
        url = f"mqtt://{endpoint.host}:{endpoint.port}"
        flags = {"broker": url, "devices": 20, "rate": RATE, "qos": 1}
        times = {"warmup": WARM_UP_S, "duration": WINDOW_S, "drain": 5, "settle": 0.2}
        directory = tmp_path / "run"
        await run(build_scenario("fanin", None, flags | times), directory)
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            await client.publish("cross-check/end", b"", qos=1)
        await asyncio.wait_for(listener, HANG_S)

    counts = summarize_run(directory).counts
    assert counts.sent == counts.received == round(RATE * WINDOW_S)
    assert len(payloads) == round(RATE * (WARM_UP_S + WINDOW_S))
    assert len(set(payloads)) == len(payloads)
    for payload in payloads:
        body = zlib.crc32(payload[32:])
        assert int.from_bytes(payload[28:32], "little") == zlib.crc32(payload[:28], body)
    intended_ns = sorted(int.from_bytes(payload[16:24], "little") for payload in payloads)
    first_of_window_ns = intended_ns[0] + int(WARM_UP_S * 1e9)
    assert sum(at >= first_of_window_ns for at in intended_ns) == counts.sent
