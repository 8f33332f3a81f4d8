"""Starts and stops the programs that brokers run in.

`subprocess.Popen` needs no child watcher and works alike under asyncio and uvloop. Start from a
thread that lives as long as the broker: the parent-death signal follows the *thread*.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Self, TypeVar

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.ports import free_ports
from loadgen.errors import CannotRunError
from loadgen.plan.accounts import Account
from loadgen.scratch import scratch_directory
from loadgen.sentences import BROKER_TEXT, listed

UNKNOWN: Final = "unknown"  # the version of a broker that does not state it
_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_POLL_S: Final = 0.005
_PATIENCE_S: Final = 30.0
_PORT_ATTEMPTS: Final = 5
_PORT_AGAIN_S: Final = 0.05
_MAX_SHOWN_CHARACTERS: Final = 300


def spawn(
    program: Sequence[str],
    *,
    output: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `program` (absolute path first), bound to the life of this process, with the hard limit
    of descriptors."""
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
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def kill(process: subprocess.Popen[bytes]) -> None:
    """End `process` at once, as a crash would; harmless if it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


async def stop(process: subprocess.Popen[bytes], *, patience_s: float = _PATIENCE_S) -> None:
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
    """A broker in a separate process, which ends with the block of `running`."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        # When it stores and when it acknowledges a message, for the score card.
        self.storage = f"{name} keeps messages in memory and stores nothing on disk."
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        raise NotImplementedError

    @property
    def configuration(self) -> tuple[str, ...]:
        """The lines of its configuration, without secrets; empty if it has none."""
        return ()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise CannotRunError(BROKER_TEXT.NOT_STARTED_YET(name=self.name))
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def start(self) -> None:
        """Start the broker, on its former ports if it ran before.

        Raise CannotRunError with its last output if it does not serve.
        """
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once, like a crash: unsaved messages are lost."""
        if self._process is not None:
            kill(self._process)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await stop(process)


BrokerT = TypeVar("BrokerT", bound=BrokerProcess)


@contextlib.asynccontextmanager
async def running(broker: BrokerT) -> AsyncIterator[BrokerT]:
    """Start the broker for the length of the block; raise CannotRunError if it fails."""
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """The broker of a run.

    `version` may be UNKNOWN. `brokers` are those started here; one that starts again has another
    process.
    """

    name: str
    version: str
    endpoints: tuple[Endpoint, ...]
    brokers: tuple[BrokerProcess, ...] = ()
    authority: Path | None = None  # file of the authority of its certificate
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


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """Configuration of a private broker.

    It listens on `host` and `port`; 0 chooses a port. With `save_each` messages are written to disk
    one by one. With `accounts`, the operator's first, only those users may connect.

    `instances` is the number of ports of a reflector. The others are for Mosquitto. With
    `persistence` its database is written every five seconds, or with `save_each` after each change.
    `memory_limit_bytes` None stands for half of the memory now available, 0 for no limit.
    `more_lines` end the configuration and overrule what it says.
    """

    host: str = "127.0.0.1"
    port: int = 0
    save_each: bool = False
    instances: int = 1
    certificate: Path | None = None
    key: Path | None = None
    accounts: tuple[Account, ...] = field(default=(), repr=False)
    persistence: bool = False
    memory_limit_bytes: int | None = None
    more_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A program that serves MQTT.

    `configure(directory, *ports)` writes the configuration there and returns the command;
    `public` returns its text without secrets. Only a broker that serves logs the words of `ready`;
    `failures` mark the line with the reason of an early end. With `saves` it saves at its end.
    """

    name: str
    version: str
    configure: Callable[..., list[str]]
    ready: bytes
    failures: tuple[str, ...] = ()
    public: Callable[[Path, int], str] | None = None
    storage: str = ""
    saves: bool = True
    ready_s: float = 30.0  # longest time until it serves


class ProgramBroker(BrokerProcess):
    """A running program; made by `run_program`."""

    def __init__(self, program: Program, settings: ProgramSettings, directory: Path) -> None:
        super().__init__(program.name, program.version)
        self.storage = program.storage or self.storage
        self.log = directory / f"{program.name}.log"  # its output of all starts
        self._program, self._settings = program, settings
        self._ports: tuple[int, ...] = (settings.port,) if settings.port else ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        settings = self._settings
        scheme = "mqtt" if settings.certificate is None else "mqtts"
        operator = settings.accounts[0] if settings.accounts else None
        login = () if operator is None else (operator.user_name, operator.password)
        return tuple(Endpoint(scheme, settings.host, port, *login) for port in self._ports)

    @property
    def configuration(self) -> tuple[str, ...]:
        public = self._program.public
        return () if public is None else tuple(public(self.log.parent, *self._ports).splitlines())

    async def start(self) -> None:
        directory, ready_s = self.log.parent, self._program.ready_s
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            ports = self._ports or free_ports(self._settings.host, self._settings.instances)
            command = await asyncio.to_thread(self._program.configure, directory, *ports)
            with self.log.open("ab") as log:
                seen, surroundings = log.tell(), package_environment()
                self._process = spawn(
                    command, output=log, directory=directory, environment=surroundings
                )
            try:
                async with asyncio.timeout(ready_s):
                    while not self._is_ready(self._process, seen):
                        await asyncio.sleep(_POLL_S)
            except _PortTakenError:
                # Another process took a free port in the meantime, or still ends: a child of a
                # reflector that was killed keeps its port a moment longer.
                if self._settings.port or attempt == _PORT_ATTEMPTS:
                    raise
                await asyncio.sleep(_PORT_AGAIN_S)
            except TimeoutError:
                silent = BROKER_TEXT.NOT_STARTED(name=self.name, timeout_s=ready_s)
                raise CannotRunError(silent) from None
            else:
                self._ports = ports
                return

    def _is_ready(self, process: subprocess.Popen[bytes], seen: int) -> bool:
        """Return True if its log after `seen` reports that it serves; raise if it has ended."""
        ended = process.poll() is not None
        # A port that answers could be another program's; the log is this broker's.
        output = self.log.read_bytes()[seen:]
        if not ended:
            return self._program.ready in output
        lines = output.decode("utf-8", "replace").strip().splitlines()
        marked = (line for line in lines if any(map(line.__contains__, self._program.failures)))
        last = next(marked, "".join(lines[-1:]))
        shown = ascii(last[:_MAX_SHOWN_CHARACTERS])[1:-1]
        kind = _PortTakenError if b"address already in use" in output.lower() else CannotRunError
        raise kind(BROKER_TEXT.ENDED_AT_START(name=self.name, version=self.version, output=shown))

    async def stop(self) -> None:
        """End it, at once if it has nothing to save."""
        if not self._program.saves:
            self.kill()
        await super().stop()


class _PortTakenError(CannotRunError):
    pass


def printed_version(program: Path, option: str, pattern: bytes) -> str:
    try:
        # Printing the help text is an error to some versions, so the status says nothing.
        shown = subprocess.run(
            [str(program), option], capture_output=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    match = re.match(pattern + rb"([\w.+~-]{1,40})", shown)
    return match.group(1).decode("ascii", "replace") if match else UNKNOWN


@contextlib.asynccontextmanager
async def run_program(
    program_of: Callable[[ProgramSettings], Program], settings: ProgramSettings | None = None
) -> AsyncIterator[ProgramBroker]:
    """Run a program for the length of the block, in a private directory.

    Raise MissingProgramError if it is not installed, CannotRunError if it does not start.
    """
    chosen = settings or ProgramSettings()
    program = program_of(chosen)
    # The directory has mode 0700: it holds the messages of a run.
    with scratch_directory(program.name) as directory:
        async with running(ProgramBroker(program, chosen, directory)) as broker:
            yield broker
