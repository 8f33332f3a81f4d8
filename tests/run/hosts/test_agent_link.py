import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadgen.run.hosts import agent_link
from loadgen.run.hosts.agent_link import AgentLink, Role, agent_context, coordinator_context
from loadgen.run.hosts.messages import VERSION, Message, Pong, WorkerFrame

SECRET = b"s" * 32
WAIT_S = 10.0


class End:
    """One end of a connection and the messages that it received."""

    def __init__(self, role: Role, secret: bytes = SECRET, certificate: bytes = b"") -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        take = self.messages.put_nowait
        self.link = AgentLink(role, secret, take, self.over.set_result, certificate)

    async def next(self) -> Message:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    async def why(self) -> str:
        return await asyncio.wait_for(self.over, WAIT_S)


class Pair:
    """An agent and a coordinator that share a secret, unless they are given others."""

    def __init__(self, agent: bytes = SECRET, coordinator: bytes = SECRET) -> None:
        self.context, certificate = coordinator_context()
        self.agent = End("agent", agent)
        self.coordinator = End("coordinator", coordinator, certificate)

    @asynccontextmanager
    async def connected(self, relay_context: ssl.SSLContext | None = None) -> AsyncIterator[None]:
        """Join both, through a relay with TLS of its own if there is one."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: self.coordinator.link, "127.0.0.1", 0, ssl=self.context
        )
        port = server.sockets[0].getsockname()[1]
        relay = None
        if relay_context is not None:
            relay = await relay_to(port, relay_context)
            port = relay.sockets[0].getsockname()[1]
        await loop.create_connection(
            lambda: self.agent.link, "127.0.0.1", port, ssl=agent_context()
        )
        try:
            yield
        finally:
            for end in (self.agent, self.coordinator):
                end.link.end("over")
            for one in (server, relay):
                if one is not None:
                    one.close()
            await asyncio.gather(self.agent.why(), self.coordinator.why())


async def relay_to(port: int, context: ssl.SSLContext) -> asyncio.Server:
    """A relay that ends the TLS of one side and begins another to the coordinator."""

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            target.write(data)
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", port, ssl=agent_context())
        await asyncio.gather(carry(reader, onward), carry(there, writer), return_exceptions=True)

    return await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)


async def test_messages_go_both_ways_once_both_have_proven_themselves() -> None:
    pair = Pair()
    async with pair.connected():
        await pair.agent.link.opened
        await pair.coordinator.link.opened
        pair.agent.link.send(WorkerFrame(1, {"re": "connect"}, b"block"))
        assert await pair.coordinator.next() == WorkerFrame(1, {"re": "connect"}, b"block")
        sent = [WorkerFrame(0, {"n": n}, bytes(n * 1000)) for n in range(100)]
        for message in sent:
            pair.coordinator.link.send(message)
        assert [await pair.agent.next() for _ in sent] == sent


@pytest.mark.parametrize("wrong", ["agent", "coordinator"])
async def test_a_side_with_another_secret_is_refused(wrong: str) -> None:
    pair = Pair(**{wrong: b"x" * 32})
    async with pair.connected():
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(pair.agent.link.opened, WAIT_S)
        with pytest.raises(ConnectionError, match="does not have the secret"):
            await asyncio.wait_for(pair.coordinator.link.opened, WAIT_S)
        pair.agent.link.send(Pong(1, 2))
    assert pair.coordinator.messages.empty()


async def test_a_relay_with_another_certificate_is_refused() -> None:
    pair = Pair()
    foreign, _ = coordinator_context()
    async with pair.connected(foreign):
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(pair.agent.link.opened, WAIT_S)
        with pytest.raises(ConnectionError, match="does not have the secret"):
            await asyncio.wait_for(pair.coordinator.link.opened, WAIT_S)
    # With the same certificate it sees nothing: it would be the coordinator itself.
    pair = Pair()
    async with pair.connected(pair.context):
        await asyncio.wait_for(pair.agent.link.opened, WAIT_S)


async def test_a_stranger_that_sends_much_or_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_link, "HANDSHAKE_S", 0.2)
    for data, words in (
        (b"x" * 100_000, "not a loadgen"),
        (b"", "did not prove itself"),
        (agent_link._HELLO.pack(b"loadgen\n", 77, b"n" * 32), "version 77"),
        (agent_link._HELLO.pack(b"loadgen\n", VERSION, b"n" * 32) + b"p" * 100_000, "the secret"),
    ):
        pair = Pair()
        server = await asyncio.get_running_loop().create_server(
            lambda pair=pair: pair.coordinator.link,  # type: ignore[misc]
            "127.0.0.1",
            0,
            ssl=pair.context,
        )
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address, ssl=agent_context())
        writer.write(data)
        assert words in await pair.coordinator.why()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1000)
        writer.close()
        server.close()


async def test_without_tls_nothing_is_sent() -> None:
    pair = Pair()
    server = await asyncio.get_running_loop().create_server(
        lambda: pair.coordinator.link, "127.0.0.1", 0, ssl=pair.context, ssl_handshake_timeout=0.2
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    writer.close()
    server.close()


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
    pair = Pair()
    async with pair.connected():
        await pair.agent.link.opened
        assert pair.agent.link._transport is not None
        pair.agent.link._transport.write(data)
        assert words in await pair.coordinator.why()
