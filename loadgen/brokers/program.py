"""A broker that is another program, with a configuration file and a log in a private directory."""

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from loadgen.brokers import process
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.messages import Message
from loadgen.brokers.ports import free_port
from loadgen.errors import CannotRunError
from loadgen.plan.accounts import Account
from loadgen.scratch import scratch_directory

_POLL_S: Final = 0.005
_PORT_ATTEMPTS: Final = 5
_MAX_SHOWN_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """Configuration of a private broker.

    `host` is the address to listen on; `ports` are fixed ports, or empty for one chosen port. With
    `save_each` messages are written to disk one by one. With a `certificate` and its key
    connections are encrypted. With `accounts`, the operator's first, only those users may connect.
    """

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = ()
    save_each: bool = False
    certificate: Path | None = None
    key: Path | None = None
    accounts: tuple[Account, ...] = field(default=(), repr=False)


class ProgramBroker(process.BrokerProcess):
    """A broker whose log says when it serves."""

    ready: ClassVar[bytes]
    """Words of its log that only a broker that serves prints."""
    failures: ClassVar[tuple[str, ...]]
    """Words that mark the line with the reason why it ended at its start."""
    ready_s: ClassVar[float] = 30.0
    """Longest time until it serves."""

    def __init__(self, name: str, version: str, settings: ProgramSettings, directory: Path) -> None:
        super().__init__(name, version)
        self._directory = directory
        self._host, self._ports = settings.host, settings.ports
        self._scheme = "mqtt" if settings.certificate is None else "mqtts"
        self._operator = settings.accounts[0] if settings.accounts else None

    def configure(self, ports: tuple[int, ...]) -> list[str]:
        """Write the configuration and return the command."""
        raise NotImplementedError

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        operator = self._operator
        login = () if operator is None else (operator.user_name, operator.password)
        return tuple(Endpoint(self._scheme, self._host, port, *login) for port in self._ports)

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
            self._process = process.spawn(
                command,
                output=log,
                directory=self._directory,
                environment=process.package_environment(),
            )
        try:
            async with asyncio.timeout(self.ready_s):
                await self._wait_until_ready(seen)
        except TimeoutError:
            raise CannotRunError(
                Message.NOT_STARTED(name=self.name, timeout_s=self.ready_s)
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
                shown = ascii(last[:_MAX_SHOWN_CHARACTERS])[1:-1]
                taken = b"address already in use" in output.lower()
                kind = _PortTakenError if taken else CannotRunError
                raise kind(
                    Message.ENDED_AT_START(name=self.name, version=self.version, output=shown)
                )
            await asyncio.sleep(_POLL_S)


class _PortTakenError(CannotRunError):
    pass


def printed_version(program: Path, option: str, pattern: bytes) -> str:
    """Return the version that a program prints for an option, UNKNOWN if it prints none."""
    try:
        # Printing the help text is an error to some versions, so the status says nothing.
        shown = subprocess.run(
            [str(program), option], capture_output=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return process.UNKNOWN
    match = re.match(pattern + rb"([\w.+~-]{1,40})", shown)
    return match.group(1).decode("ascii", "replace") if match else process.UNKNOWN


BrokerT = TypeVar("BrokerT", bound=ProgramBroker)


@contextlib.asynccontextmanager
async def run_program(name: str, make: Callable[[Path], BrokerT]) -> AsyncIterator[BrokerT]:
    """Run a broker, made with its directory, for the length of the block."""
    # The directory has mode 0700: it holds the messages of a run.
    with scratch_directory(name) as directory:
        async with process.running(make(directory)) as broker:
            yield broker
