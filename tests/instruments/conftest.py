"""Relays on the test's own loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loadgen.brokers.endpoints import Endpoint
from tests.brokers.conftest import LocalReflector, client, run_local_reflector, version
from tests.instruments import relay
from tests.instruments.child import Serving
from tests.instruments.faults import FaultCounts

__all__ = ["client", "version"]


class LocalRelay:
    """A relay on the test's own loop instead of its own process."""

    def __init__(self, serving: Serving) -> None:
        self.endpoints = (Endpoint("mqtt", "127.0.0.1", serving.greeting["port"]),)
        self._serving = serving

    async def counts(self) -> FaultCounts:
        return FaultCounts(**self._serving.answer({})["counts"])

    async def set_faults(self, faults: str) -> FaultCounts:
        return FaultCounts(**self._serving.answer({"faults": faults})["counts"])

    async def drop_connections(self, number: int | None = None) -> int:
        dropped: int = self._serving.answer({"drop": number})["dropped"]
        return dropped


@asynccontextmanager
async def relayed(
    faults: str = "none", *, record: Path | str = ""
) -> AsyncIterator[tuple[LocalRelay, LocalReflector]]:
    """Yield a relay and the reflector behind it."""
    async with run_local_reflector() as reflector:
        (broker,) = reflector.endpoints
        serving = await relay.serve(
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
            yield LocalRelay(serving), reflector
        finally:
            serving.close()


@asynccontextmanager
async def erring(faults: str = "none", record: Path | str = "") -> AsyncIterator[LocalRelay]:
    """Yield a relay with these faults."""
    async with relayed(faults, record=record) as (made, _):
        yield made
