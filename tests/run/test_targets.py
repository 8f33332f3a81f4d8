"""From names to the addresses that devices connect to."""

import asyncio
import socket

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.cases.registry import build_scenario, resolve
from loadgen.run import broker_provider
from loadgen.run.broker_provider import plan_for
from tests.refusals import refused


async def addressed(host: str, port: int) -> str:
    plan = await plan_for(
        resolve(build_scenario("fanin", None, {})), (Endpoint("mqtt", host, port),)
    )
    return plan.targets[0].host


async def test_of_several_addresses_one_that_answers_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def two(*_arguments: object, **_options: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
    assert await addressed("broker.example", port) == "127.0.0.1"
    server.close()
    await server.wait_closed()
    # Where none does, the broker may come up yet; the door says what there is.
    assert await addressed("broker.example", port) == "127.0.0.2"


async def test_a_silent_name_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_arguments: object, **_options: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", wait)
    monkeypatch.setattr(broker_provider, "_NAME_S", 0.1)
    with refused("NO_SUCH_NAME"):
        await addressed("broker.example", 1883)
