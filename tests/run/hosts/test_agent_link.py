import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from loadgen.run.hosts.agent_link import AgentLink, tls_of
from loadgen.run.hosts.messages import Message, WorkerFrame

SECRET = b"s" * 32
WAIT_S = 10.0


class End:
    """One end of a connection and the messages that it received."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.link = AgentLink(self.messages.put_nowait, self.over.set_result)

    async def next(self) -> Message:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)


@asynccontextmanager
async def listening(secret: bytes) -> AsyncIterator[tuple[End, int]]:
    end = End()
    context = tls_of(secret, ssl.Purpose.CLIENT_AUTH)
    server = await asyncio.get_running_loop().create_server(
        lambda: end.link, "127.0.0.1", 0, ssl=context, ssl_handshake_timeout=0.5
    )
    async with server:
        yield end, server.sockets[0].getsockname()[1]
    await asyncio.sleep(0.1)  # a refused connection is closed in the next turns of the loop


@asynccontextmanager
async def connected(agent: bytes = SECRET, coordinator: bytes = SECRET) -> AsyncIterator[list[End]]:
    async with listening(coordinator) as (there, port):
        here = End()
        context = tls_of(agent, ssl.Purpose.SERVER_AUTH)
        await asyncio.get_running_loop().create_connection(
            lambda: here.link, "127.0.0.1", port, ssl=context
        )
        yield [here, there]
        for end in (here, there):
            end.link.end("over")
        await asyncio.gather(here.over, there.over)


async def test_messages_go_both_ways() -> None:
    async with connected() as (here, there):
        sent = [WorkerFrame(0, {"n": n}, bytes(n * 1000)) for n in range(100)]
        here.link.send(WorkerFrame(1, {"re": "connect"}, b"block"))
        assert await there.next() == WorkerFrame(1, {"re": "connect"}, b"block")
        for message in sent:
            there.link.send(message)
        assert [await here.next() for _ in sent] == sent
        assert 0 < here.link.round_trip_ns() < 1e9
        there.link.end("over")
        while not here.over.done():  # in each turn of the loop until it knows
            assert here.link.round_trip_ns() >= 0
            await asyncio.sleep(0)
        assert here.link.round_trip_ns() == 0


@pytest.mark.parametrize("secret", [b"x" * 32, SECRET + b"x", SECRET[:-1], b""])
async def test_a_side_with_another_secret_is_refused(secret: bytes) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        async with connected(secret):
            pass


@pytest.mark.parametrize("own", [False, True])
async def test_a_side_that_trusts_everybody_is_refused(own: bool) -> None:
    """It could be a relay that ends the TLS of one side and begins another."""
    context = tls_of(b"x" * 32, ssl.Purpose.SERVER_AUTH)
    if not own:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with listening(SECRET) as (there, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"x" * 100)
        with suppress(ssl.SSLError, ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.transport.abort()
        assert there.messages.empty() and not there.over.done()


async def test_older_versions_of_tls_are_refused() -> None:
    context = tls_of(SECRET, ssl.Purpose.SERVER_AUTH)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(SECRET) as (_, port):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)


@pytest.mark.parametrize("data", [b"", b"x" * 100_000])
async def test_a_stranger_that_sends_much_or_nothing_is_cut_off(data: bytes) -> None:
    async with listening(SECRET) as (there, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), WAIT_S)
        writer.transport.abort()
        assert there.messages.empty()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff" * 20, "out of sync"),
        (b"\0\0\0\x02\0\0\0\0[]", "out of sync"),
        (b"\0\0\0\x02\0\0\0\0{}", "unknown message"),
        (b'\0\0\0\x0f\0\0\0\0{"kind":"Pong"}', "damaged message: Pong"),
    ],
)
async def test_a_frame_that_is_not_a_message_ends_the_connection(data: bytes, words: str) -> None:
    async with connected() as (here, there):
        assert here.link._transport is not None
        here.link._transport.write(data)
        assert words in await asyncio.wait_for(asyncio.shield(there.over), WAIT_S)
