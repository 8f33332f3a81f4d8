import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from loadgen.run.hosts import link as link_module
from loadgen.run.hosts.link import Link

SECRET = b"s" * 32
WAIT_S = 10.0


class End:
    """One end of a connection and what it heard."""

    def __init__(self, role: Any, secret: bytes = SECRET) -> None:
        self.frames: asyncio.Queue[tuple[dict[str, Any], bytes]] = asyncio.Queue()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.link = Link(
            role, secret, lambda *frame: self.frames.put_nowait(frame), self.over.set_result
        )

    async def heard(self) -> tuple[dict[str, Any], bytes]:
        return await asyncio.wait_for(self.frames.get(), WAIT_S)

    async def why(self) -> str:
        return await asyncio.wait_for(self.over, WAIT_S)


Change = Callable[[int, bytes], bytes]


@asynccontextmanager
async def connected(near: End, far: End, change: Change | None = None) -> AsyncIterator[None]:
    """Both ends joined; `change(number, data)` is what becomes of what `near` sends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: far.link, "127.0.0.1", 0)
    port = inner = server.sockets[0].getsockname()[1]

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", inner)

        async def carry(
            source: asyncio.StreamReader, target: asyncio.StreamWriter, how: Change
        ) -> None:
            number = 0
            while data := await source.read(1 << 16):
                target.write(how(number, data))
                number += 1
            target.close()

        assert change is not None
        await asyncio.gather(
            carry(reader, onward, change), carry(there, writer, lambda _number, data: data)
        )

    between = None if change is None else await asyncio.start_server(relay, "127.0.0.1", 0)
    if between is not None:
        port = between.sockets[0].getsockname()[1]
    await loop.create_connection(lambda: near.link, "127.0.0.1", port)
    try:
        yield
    finally:
        near.link.end("over")
        far.link.end("over")
        for one in (server, between):
            if one is not None:
                one.close()
        await asyncio.gather(near.why(), far.why())


async def test_frames_go_both_ways_once_both_have_proven_themselves() -> None:
    agent, coordinator = End("agent"), End("coordinator")
    async with connected(agent, coordinator):
        await agent.link.opened
        await coordinator.link.opened
        agent.link.send({"host": 1}, b"block")
        assert await coordinator.heard() == ({"host": 1}, b"block")
        for number in range(100):
            coordinator.link.send({"n": number}, bytes(number * 1000))
        assert [(await agent.heard())[0]["n"] for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("wrong", ["agent", "coordinator"])
async def test_who_does_not_know_the_secret_is_refused(wrong: str) -> None:
    secrets = {"agent": SECRET, "coordinator": SECRET} | {wrong: b"x" * 32}
    agent, coordinator = (End(role, secret) for role, secret in secrets.items())
    async with connected(agent, coordinator):
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(agent.link.opened, WAIT_S)
        with pytest.raises(ConnectionError, match="does not know the secret"):
            await asyncio.wait_for(coordinator.link.opened, WAIT_S)
        agent.link.send({"host": 1})
    assert coordinator.frames.empty()


async def test_an_agent_is_no_coordinator() -> None:
    """What one end says cannot be said back to it."""
    one, other = End("agent"), End("agent")
    async with connected(one, other):
        with pytest.raises(ConnectionError, match="does not know the secret"):
            await asyncio.wait_for(one.link.opened, WAIT_S)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data + data]
)
async def test_what_was_changed_or_repeated_on_the_way_ends_it(
    change: Callable[[bytes], bytes],
) -> None:
    agent, coordinator = End("agent"), End("coordinator")
    begun = False

    async with connected(agent, coordinator, lambda _n, data: change(data) if begun else data):
        await agent.link.opened
        begun = True
        agent.link.send({"n": 0})
        assert await coordinator.why() == "something was changed on the way"
    assert coordinator.frames.qsize() <= 1


async def test_a_stranger_that_says_much_or_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_S", 0.2)
    loop = asyncio.get_running_loop()
    for said, words in ((b"x" * 100_000, "secret"), (b"", "did not prove itself")):
        coordinator = End("coordinator")
        server = await loop.create_server(partial(getattr, coordinator, "link"), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(said)
        assert words in await coordinator.why()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1000)
        writer.close()
        server.close()


async def test_a_packet_that_would_fill_the_memory_is_refused() -> None:
    agent, coordinator = End("agent"), End("coordinator")
    async with connected(agent, coordinator):
        await agent.link.opened
        assert agent.link._transport is not None
        agent.link._transport.write(b"\xff" * 20)
        assert "too long" in await coordinator.why()
