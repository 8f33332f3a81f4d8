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
from typing import IO, Final, TypeVar

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import CannotRunError

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


def kill(process: subprocess.Popen[bytes]) -> None:
    """End `process` at once, as a crash would; harmless when it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


async def stop(process: subprocess.Popen[bytes], *, patience_s: float = 5.0) -> None:
    """Ask `process` to end, and end it after `patience_s`; also when this is cancelled."""
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
    """A broker that we start, in a process of its own; `running` is its life."""

    patience_s = 5.0

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def storage(self) -> str:
        """When it stores a message and when it acknowledges it, in words for the score card."""
        return f"{self.name} keeps messages in memory and stores nothing on disk."

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens, with the login that it wants."""
        raise NotImplementedError

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Its process; after `start`, the new one."""
        if self._process is None:
            raise CannotRunError(f"{self.name} is not running; start it first")
        return self._process

    @property
    def pid(self) -> int:
        """The identifier of its process."""
        return self.process.pid

    async def start(self) -> None:
        """Start it, on the ports it had before if it ran before.

        Raises CannotRunError with its last words when it does not come up.
        """
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once, as a crash would: what was not saved is lost."""
        if self._process is not None:
            kill(self._process)

    async def stop(self) -> None:
        """End it in good order."""
        process, self._process = self._process, None
        if process is not None:
            await stop(process, patience_s=self.patience_s)


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """The broker of a run: where it is and what is known of it.

    `version` is "unknown" until it was asked. `brokers` are those that were started here, none
    where `name` is "external"; their processes change when one is killed and started again.
    """

    name: str
    version: str
    endpoints: tuple[Endpoint, ...]
    brokers: tuple[BrokerProcess, ...] = ()
    # File of the authority that signed its certificate, where that was made for it.
    authority: Path | None = None
    users: int = 0  # that it was told of, one for each device and one for us
    remarks: tuple[str, ...] = ()  # what it lacks or changes, as far as it was asked

    @property
    def started_by_us(self) -> bool:
        return bool(self.brokers)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self.brokers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords, and secret user names, that no file may have."""
        users = (one.username for one in self.endpoints if one.secret_user)
        return tuple(filter(None, (*(one.password for one in self.endpoints), *users)))


BrokerT = TypeVar("BrokerT", bound=BrokerProcess)


@contextlib.asynccontextmanager
async def running(broker: BrokerT) -> AsyncIterator[BrokerT]:
    """The broker, started, for the length of the block; CannotRunError when it does not start."""
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
