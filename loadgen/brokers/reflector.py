"""The parent's handle on a reflector: start it, change its faults, read its counts."""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from loadgen.brokers.child import Child, Json, start_child
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.faults import Counts, Faults, parse_faults
from loadgen.errors import CannotRunError


class Reflector:
    """A running reflector; made by `run_reflector`. What it did is `counts`."""

    __slots__ = ("_child", "_faults", "_host", "_port")

    name: Final = "reflector"
    version: Final = "loadgen reflector"

    def __init__(self, host: str, port: int, faults: Faults) -> None:
        self._host = host
        self._port = port
        self._faults = faults
        self._child: Child | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens."""
        return (Endpoint("mqtt", self._host, self._port),)

    @property
    def pid(self) -> int:
        """Its process; after `start`, the new one."""
        return self._running().process.pid

    async def start(self) -> None:
        """Start it, on the port and with the faults it had before; its sessions are gone."""
        await self.stop()
        config: Json = {"host": self._host, "port": self._port, "faults": str(self._faults)}
        self._child = await start_child("reflector", "loadgen.brokers.reflector_server", config)
        self._port = self._child.greeting["port"]

    async def set_faults(self, faults: Faults | str) -> Counts:
        """Err like this from now on, and what was counted up to now.

        Held back messages are let go first. Raises UsageError when the text is no fault list.
        """
        faults = parse_faults(faults) if isinstance(faults, str) else faults
        answer = await self._running().ask({"faults": str(faults)})
        # A stall begins when it is set, so a restart would not begin it again by itself.
        self._faults = faults
        return Counts(**answer["counts"])

    async def counts(self) -> Counts:
        """What it has done since it started."""
        return Counts(**(await self._running().ask({}))["counts"])

    async def drop_connections(self, number: int | None = None) -> int:
        """Cut `number` client connections, all if None, as a broken network would; how many."""
        dropped: int = (await self._running().ask({"drop": number}))["dropped"]
        return dropped

    def kill(self) -> None:
        """End it at once, as a crash would: every session and count is lost."""
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> None:
        """End it."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop()

    def _running(self) -> Child:
        if self._child is None:
            raise CannotRunError("the reflector is not running; start it first")
        return self._child


@contextlib.asynccontextmanager
async def run_reflector(
    faults: Faults | str = "none", *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Reflector]:
    """A reflector for the length of the block; `port` 0 chooses one.

    Raises UsageError when `faults` cannot be read, CannotRunError when it does not start.
    """
    faults = parse_faults(faults) if isinstance(faults, str) else faults
    broker = Reflector(host, port, faults)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
