"""A broker that is another program, with a configuration file and a log in a private directory."""

import asyncio
from pathlib import Path
from typing import ClassVar, Final

from loadgen.brokers import process
from loadgen.brokers.ports import free_port
from loadgen.errors import CannotRunError

_READY_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.005
_PORT_ATTEMPTS: Final = 5
_MAX_SHOWN_CHARACTERS: Final = 300


class ProgramBroker(process.BrokerProcess):
    """A broker whose log says when it serves; `ports` are fixed, or empty for one that is free."""

    ready: ClassVar[bytes]
    """Words of its log that only a broker that serves prints."""
    failures: ClassVar[tuple[str, ...]]
    """Words that mark the line with the reason why it ended at its start."""

    def __init__(
        self, name: str, version: str, directory: Path, host: str, ports: tuple[int, ...]
    ) -> None:
        super().__init__(name, version)
        self._directory = directory
        self._host = host
        self._ports = ports

    def configure(self, ports: tuple[int, ...]) -> list[str]:
        """Write the configuration and return the command."""
        raise NotImplementedError

    @property
    def log(self) -> Path:
        """The file with its output of all starts."""
        return self._directory / f"{self.name}.log"

    async def start(self) -> None:
        attempts = 1 if self._ports else _PORT_ATTEMPTS
        while True:
            attempts -= 1
            chosen = self._ports or (free_port(self._host),)
            try:
                await self._start_on(chosen)
            except _PortTakenError:
                # Another process took the free port in the meantime.
                if not attempts:
                    raise
            else:
                self._ports = chosen
                return

    async def _start_on(self, ports: tuple[int, ...]) -> None:
        command = await asyncio.to_thread(self.configure, ports)
        with self.log.open("ab") as log:
            seen = log.tell()
            self._process = process.spawn(command, output=log, directory=self._directory)
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await self._wait_until_ready(seen)
        except TimeoutError:
            raise CannotRunError(
                f"{self.name} did not serve within {_READY_TIMEOUT_S:.0f} s; is this host "
                "overloaded?"
            ) from None

    async def _wait_until_ready(self, seen: int) -> None:
        while True:
            ended = self.process.poll() is not None
            output = self.log.read_bytes()[seen:]
            # A port that answers could be another program's; the log is this broker's.
            if self.ready in output and not ended:
                return
            if ended:
                lines = output.decode("utf-8", "replace").strip().splitlines()
                marked = (line for line in lines if any(map(line.__contains__, self.failures)))
                last = next(marked, "".join(lines[-1:]))
                shown = ascii(last[:_MAX_SHOWN_CHARACTERS])[1:-1] or "it printed nothing"
                taken = b"address already in use" in output.lower()
                kind = _PortTakenError if taken else CannotRunError
                raise kind(f"{self.name} {self.version} ended at its start: {shown}")
            await asyncio.sleep(_POLL_S)


class _PortTakenError(CannotRunError):
    pass
