"""Another MQTT client, which hears all that is published at a broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiomqtt

from loadgen.brokers.endpoints import Endpoint
from loadgen.plan.rehearsal import ASKED

HANG_S = 30.0


@asynccontextmanager
async def listening(endpoint: Endpoint) -> AsyncIterator[list[bytes]]:
    """Payloads of the load in the order in which they came; whole when the block has ended."""
    payloads: list[bytes] = []
    subscribed = asyncio.Event()

    async def listen() -> None:
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            await client.subscribe("#", qos=1)
            subscribed.set()
            async for message in client.messages:
                if str(message.topic) == "end":
                    return
                assert isinstance(message.payload, bytes)
                if not message.payload.startswith(ASKED):  # before the load
                    payloads.append(message.payload)

    listener = asyncio.create_task(listen())
    await asyncio.wait_for(subscribed.wait(), HANG_S)
    yield payloads
    async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
        await client.publish("end", b"", qos=1)
    await asyncio.wait_for(listener, HANG_S)
