"""Relays on the test's own loop."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadgen.brokers.endpoints import Endpoint
from tests.brokers.conftest import client, reflector, version
from tests.instruments.relay import ErringBroker, Relay, serve

__all__ = ["client", "reflector", "version"]


class LocalRelay(ErringBroker):
    """A relay on the test's own loop instead of its own process."""

    def __init__(self, served: Relay, port: int) -> None:
        super().__init__(Endpoint("mqtt", "127.0.0.1", port))
        self.relay = served

    async def ask(self, **question: Any) -> dict[str, Any]:
        return self.relay.answer(question)


Erring = Callable[..., AbstractAsyncContextManager[LocalRelay]]


@asynccontextmanager
async def local_relay(
    host: str, port: int, faults: str = "none", record: Path | str = "", *, reads_late: bool = False
) -> AsyncIterator[LocalRelay]:
    """A relay in front of the broker at this address."""
    config = {"host": "127.0.0.1", "port": 0, "certificate": [], "websocket": False}
    config |= {"broker": [host, port], "faults": faults, "record": str(record)}
    config["reads_late"] = reads_late
    made, served_port = await serve(config)
    try:
        yield LocalRelay(made, served_port)
    finally:
        made.close()


@pytest.fixture
def erring(reflector: Endpoint) -> Erring:
    """`async with erring("lose=0.1")`: a relay with these faults in front of a reflector."""
    return partial(local_relay, reflector.host, reflector.port)
