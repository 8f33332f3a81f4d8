"""Another MQTT client, which hears all that is published at a broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiomqtt

from loadgen.brokers.endpoints import Endpoint
from loadgen.plan.rehearsal import ASKED

HANG_S = 30.0


@asynccontextmanager
async def listening(endpoint: Endpoint) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Topics and payloads of the load, in their order; whole when the block has ended."""
    messages: list[tuple[str, bytes]] = []
    subscribed = asyncio.Event()

    async def listen() -> None:
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            await client.subscribe("#", qos=1)
            subscribed.set()
            async for message in client.messages:
                if str(message.topic) == "end":
                    return
                assert isinstance(message.payload, bytes)
                # Before the load, with empty ones that remove what was retained.
                if message.payload and not message.payload.startswith(ASKED):
                    messages.append((str(message.topic), message.payload))

    listener = asyncio.create_task(listen())
    await asyncio.wait_for(subscribed.wait(), HANG_S)
    yield messages
    async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
        await client.publish("end", b"", qos=1)
    await asyncio.wait_for(listener, HANG_S)
