"""Relays on the test's own loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loadgen.brokers.endpoints import Endpoint
from tests.brokers.conftest import LocalReflector, client, run_local_reflector, version
from tests.instruments.relay import ErringBroker, Relay, serve

__all__ = ["client", "version"]


class LocalRelay(ErringBroker):
    """A relay on the test's own loop instead of its own process."""

    def __init__(self, served: Relay, port: int) -> None:
        super().__init__(Endpoint("mqtt", "127.0.0.1", port))
        self._relay = served

    async def ask(self, **question: Any) -> dict[str, Any]:
        return self._relay.answer(question)


@asynccontextmanager
async def relayed(
    faults: str = "none", *, record: Path | str = ""
) -> AsyncIterator[tuple[LocalRelay, LocalReflector]]:
    """Yield a relay and the reflector behind it."""
    async with run_local_reflector() as reflector:
        (broker,) = reflector.endpoints
        made, port = await serve(
            {
                "host": "127.0.0.1",
                "port": 0,
                "broker": [broker.host, broker.port],
                "certificate": [],
                "websocket": False,
                "faults": faults,
                "record": str(record),
            }
        )
        try:
            yield LocalRelay(made, port), reflector
        finally:
            made.close()


@asynccontextmanager
async def erring(faults: str = "none", record: Path | str = "") -> AsyncIterator[LocalRelay]:
    """Yield a relay with these faults."""
    async with relayed(faults, record=record) as (made, _):
        yield made
