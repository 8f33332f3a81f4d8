"""Relays on the test's own loop."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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


@pytest.fixture
def erring(reflector: Endpoint) -> Erring:
    """`async with erring("lose=0.1")`: a relay with these faults in front of a reflector."""

    @asynccontextmanager
    async def make(faults: str = "none", record: Path | str = "") -> AsyncIterator[LocalRelay]:
        made, port = await serve(
            {
                "host": "127.0.0.1",
                "port": 0,
                "broker": [reflector.host, reflector.port],
                "certificate": [],
                "websocket": False,
                "faults": faults,
                "record": str(record),
            }
        )
        try:
            yield LocalRelay(made, port)
        finally:
            made.close()

    return make
