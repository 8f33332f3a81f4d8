"""Little servers that say to each connection what a test wants said."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from websockets.http11 import Request
from websockets.server import ServerProtocol

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server; a connection is cut when its talk has ended, or the block."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        # A task that is cancelled would be told of by the server.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(reader, writer)
        with suppress(AttributeError):  # closed twice, CPython 3.11.3 and older
            writer.transport.abort()

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close in good order: what was written arrives."""
    writer.close()
    await writer.wait_closed()


async def upgraded(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *subprotocols: str
) -> None:
    """Read what asks for WebSocket, and accept it."""
    framing = ServerProtocol(subprotocols=subprotocols)  # type: ignore[arg-type]
    framing.receive_data(await reader.readuntil(b"\r\n\r\n"))
    (request,) = framing.events_received()
    assert isinstance(request, Request)
    framing.send_response(framing.accept(request))
    writer.writelines(framing.data_to_send())
