"""A link that is impaired, between plain sockets and a server that repeats what it gets."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from loadgen.brokers.child import Serving
from loadgen.brokers.impaired_server import Link, serve

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"end")
    await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def linked(
    impairment: str, connections: int = 1
) -> AsyncIterator[tuple[Serving, list[Streams]]]:
    """The link, and clients at its near end."""
    before = asyncio.all_tasks()
    server = await asyncio.start_server(_repeat, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = {"host": "127.0.0.1", "port": 0, "broker": ["127.0.0.1", port]}
    serving = await serve({**config, "impairment": impairment})
    near = serving.greeting["port"]
    clients = [await asyncio.open_connection("127.0.0.1", near) for _ in range(connections)]
    try:
        async with asyncio.timeout(10):
            yield serving, clients
    finally:
        serving.close()
        server.close()
        for _, writer in clients:
            await _closed(writer)
        while not asyncio.all_tasks() <= before:  # every end sees that it is over
            await asyncio.sleep(0.01)


async def echo(client: Streams, data: bytes) -> float:
    """Seconds that it takes there and back."""
    reader, writer = client
    began_s = time.monotonic()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return time.monotonic() - began_s


async def test_every_byte_comes_late_and_in_order() -> None:
    async with linked("delay=30ms,jitter=10ms") as (_, (client,)):
        taken_s = [await echo(client, bytes([number]) * 1000) for number in range(5)]
        assert min(taken_s) >= 0.035
        data = bytes(range(256)) * 400
        assert await echo(client, data) >= 0.035


async def test_a_rate_takes_its_time_and_holds_back_who_sends_more() -> None:
    async with linked("rate=8mbit") as (_, (client,)):
        assert await echo(client, bytes(200_000)) >= 0.2
        _, writer = client
        writer.write(bytes(30_000_000))
        await asyncio.sleep(0.2)
        assert writer.transport.get_write_buffer_size() > 1_000_000


async def test_nothing_passes_a_stall_and_nothing_is_lost() -> None:
    async with linked("stall=300ms@400ms") as (serving, (client,)):
        assert await echo(client, b"x") < 0.3
        serving.answer({"begin": True})
        await asyncio.sleep(0.45)
        assert await echo(client, b"y") >= 0.2
        assert serving.answer({"end": True})["stalls"] == 1
        await asyncio.sleep(0.5)
        assert serving.answer({}) == {"stalls": 1, "cuts": 0, "connections_cut": 0}


async def test_a_cut_ends_all_connections_and_new_ones_are_made() -> None:
    async with linked("cut=200ms,delay=1ms", connections=3) as (serving, clients):
        for client in clients:
            await echo(client, b"x")
        serving.answer({"begin": True})
        for reader, _ in clients:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert serving.answer({"end": True})["connections_cut"] == 3
        again = await asyncio.open_connection("127.0.0.1", serving.greeting["port"])
        await echo(again, b"z")
        again[1].close()


async def test_what_is_under_way_comes_before_the_end() -> None:
    async with linked("delay=50ms") as (_, (client,)):
        reader, writer = client
        writer.write(b"last words")
        await asyncio.sleep(0.15)
        writer.close()
        assert (await reader.read()).startswith(b"last words")


async def test_a_broker_that_is_not_there_ends_the_connection() -> None:
    async with linked("delay=1ms") as (serving, _):
        pass
    config = {"host": "127.0.0.1", "port": 0, "broker": ["127.0.0.1", 9], "impairment": "delay=1ms"}
    serving = await serve(config)
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.greeting["port"])
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await asyncio.sleep(0.05)
    # A run whose broker is away makes many of them.
    link: Link = getattr(serving.answer, "__self__")  # noqa: B009
    assert not link.ends and not link._opening
    serving.close()
