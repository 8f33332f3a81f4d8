"""Starts and stops the processes that brokers run in.

`subprocess.Popen` rather than the event loop's own: it needs no child watcher, works the same
under asyncio and uvloop, and takes milliseconds. Start from a thread that lives as long as the
broker shall (the event loop's), because the parent-death signal follows the *thread*.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self, TypeVar

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.messages import Message
from loadgen.errors import CannotRunError
from loadgen.sentences import listed

UNKNOWN: Final = "unknown"
"""The version of a broker that does not state it."""
_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_POLL_S: Final = 0.005


def spawn(
    program: Sequence[str],
    *,
    output: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `program` (absolute path first), bound to the life of this process.

    Its standard output and error go to `output`, its input is empty, and its soft limit of
    descriptors is raised to the hard one.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), *program],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(pass_fds),
        cwd=directory,
        env=environment,
        # Ctrl-C goes to the whole foreground group; brokers are stopped by us, in our order.
        start_new_session=True,
    )


def package_environment() -> dict[str, str]:
    """Return this environment for a program in Python that imports this very package."""
    # However the parent came to import it.
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def kill(process: subprocess.Popen[bytes]) -> None:
    """End `process` at once, as a crash would; harmless when it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


async def stop(process: subprocess.Popen[bytes], *, patience_s: float = 5.0) -> None:
    """Terminate `process`, and kill it after `patience_s` or if this is cancelled."""
    try:
        if process.poll() is None:
            process.terminate()
        for _ in range(int(patience_s / _POLL_S)):
            if process.poll() is not None:
                return
            await asyncio.sleep(_POLL_S)
    finally:
        kill(process)


class BrokerProcess:
    """A broker in a separate process that loadgen starts; `running` is its life."""

    patience_s = 5.0

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def storage(self) -> str:
        """The time when it stores and acknowledges a message, in words for the score card."""
        return f"{self.name} keeps messages in memory and stores nothing on disk."

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses at which it listens, with a login."""
        raise NotImplementedError

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the last start."""
        if self._process is None:
            raise CannotRunError(Message.NOT_STARTED_YET(name=self.name))
        return self._process

    @property
    def pid(self) -> int:
        """The identifier of its process."""
        return self.process.pid

    async def start(self) -> None:
        """Start it, again on its former ports.

        Raises CannotRunError with its last output if it does not serve.
        """
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once, like a crash: unsaved messages are lost."""
        if self._process is not None:
            kill(self._process)

    async def stop(self) -> None:
        """End it in good order."""
        process, self._process = self._process, None
        if process is not None:
            await stop(process, patience_s=self.patience_s)


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """The broker of a run.

    `version` may be UNKNOWN. `brokers` are those that were started
    here; a broker that starts again has another process.
    """

    name: str
    version: str
    endpoints: tuple[Endpoint, ...]
    brokers: tuple[BrokerProcess, ...] = ()
    # File of the authority of a certificate that was made for it.
    authority: Path | None = None
    users: int = 0  # in its configuration, one for each device and the operator
    remarks: tuple[str, ...] = ()  # things that it lacks or changes

    @classmethod
    def at(cls, endpoints: Sequence[Endpoint]) -> Self:
        """Return a broker that was given by URLs; the first is its name until it states one."""
        urls = [f"{endpoint.scheme}://{endpoint.address}" for endpoint in endpoints]
        return cls(listed(urls, 1), UNKNOWN, tuple(endpoints))

    @property
    def started_by_us(self) -> bool:
        return bool(self.brokers)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self.brokers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and secret user names, which no file may contain."""
        users = (one.username for one in self.endpoints if one.secret_user)
        return tuple(filter(None, (*(one.password for one in self.endpoints), *users)))


BrokerT = TypeVar("BrokerT", bound=BrokerProcess)


@contextlib.asynccontextmanager
async def running(broker: BrokerT) -> AsyncIterator[BrokerT]:
    """Start the broker for the length of the block; raises CannotRunError if it fails."""
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
