"""A broker written in Python, in a process of its own, and the channel to it.

The channel is a socket pair that carries one JSON object a line: a configuration down, a greeting
up, then questions down and answers up. It is also the leash: when it closes, the child ends.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import uvloop

from loadgen.brokers import process
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import CannotRunError, LoadgenError

Json = dict[str, Any]
"""One JSON object."""

READY_TIMEOUT_S: Final = 300.0
"""How long a child may take to serve. Compiling the kernels once takes a minute on a slow host;
a child that fails says so, or closes the channel, long before."""

_MAX_LINE_BYTES: Final = 1 << 20
_MAX_SHOWN_CHARACTERS: Final = 300
_LAST_WORDS_POLLS: Final = 200


class Child:
    """The parent's end: the process, and questions to it one at a time."""

    __slots__ = ("_errors", "_lock", "_reader", "_writer", "greeting", "name", "process")

    def __init__(
        self,
        name: str,
        popen: subprocess.Popen[bytes],
        errors: IO[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.name = name
        self.process = popen
        self.greeting: Json = {}
        self._errors = errors
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()

    async def ask(self, question: Mapping[str, Any]) -> Json:
        """The child's answer to one question; CannotRunError when it has ended or refuses."""
        async with self._lock:
            try:
                self._writer.write(json.dumps(question).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            except (OSError, ValueError):
                line = b""
        if not line.endswith(b"\n"):
            await self._ended()
            raise CannotRunError(f"{self.name} ended unexpectedly{self._last_words()}")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise CannotRunError(f"{self.name}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        process.kill(self.process)

    async def stop(self) -> None:
        """Close the channel, end the process, and leave nothing open."""
        try:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            await process.stop(self.process)
        finally:
            process.kill(self.process)
            self._errors.close()

    async def _ended(self) -> None:
        # The channel closes a little before the last words are written.
        for _ in range(_LAST_WORDS_POLLS):
            if self.process.poll() is not None:
                return
            await asyncio.sleep(0.01)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = self._errors.seek(0, 2)
            self._errors.seek(max(0, size - 4096))
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            if lines:
                return ": " + ascii(lines[-1][:_MAX_SHOWN_CHARACTERS])[1:-1]
        return ""


class ChildBroker:
    """A broker of ours in a process of its own; made by `running`.

    It is `module`, run as a program, and gets `config` besides the host and port of `endpoint`;
    port 0 chooses one.
    """

    def __init__(
        self, name: str, version: str, module: str, endpoint: Endpoint, **config: Any
    ) -> None:
        self.name = name
        self.version = version
        self._module = module
        self._endpoint = endpoint
        self._config = config
        self._child: Child | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens, with the login that it wants."""
        return (self._endpoint,)

    @property
    def pid(self) -> int:
        """Its process; after `start`, the new one."""
        return self._running().process.pid

    async def start(self) -> None:
        """Start it, on the port it had before if it ran before; its sessions are gone."""
        await self.stop()
        where: Json = {"host": self._endpoint.host, "port": self._endpoint.port}
        self._child = await start_child(self.name, self._module, where | self._config)
        self._endpoint = replace(self._endpoint, port=self._child.greeting["port"])

    async def ask(self, **question: Any) -> Json:
        """What it answers to one question; CannotRunError when it has ended or refuses."""
        return await self._running().ask(question)

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
            raise CannotRunError(f"{self.name} is not running; start it first")
        return self._child


BrokerT = TypeVar("BrokerT", bound=ChildBroker)


@contextlib.asynccontextmanager
async def running(broker: BrokerT) -> AsyncIterator[BrokerT]:
    """The broker, started, for the length of the block; CannotRunError when it does not start."""
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


async def start_child(name: str, module: str, config: Mapping[str, Any]) -> Child:
    """Run `python -m module` and wait for its greeting.

    Raises CannotRunError with the child's own reason when it cannot serve.
    """
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
    try:
        with theirs:
            descriptor = theirs.fileno()
            program = [sys.executable, "-m", module, str(descriptor)]
            popen = process.spawn(
                program, output=errors.fileno(), pass_fds=[descriptor], environment=_environment()
            )
    except BaseException:
        ours.close()
        errors.close()
        raise
    try:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_MAX_LINE_BYTES)
    except BaseException:
        process.kill(popen)
        ours.close()
        errors.close()
        raise
    child = Child(name, popen, errors, reader, writer)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            child.greeting = await child.ask(config)
    except TimeoutError:
        await child.stop()
        raise CannotRunError(
            f"{name} did not start within {READY_TIMEOUT_S:.0f} s; is this host overloaded?"
        ) from None
    except BaseException:
        await child.stop()
        raise
    return child


def _environment() -> dict[str, str]:
    # The child must find this very package, however the parent came to import it.
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@dataclass(frozen=True, slots=True)
class Serving:
    """What a child offers once it serves: its greeting, how it answers, how it closes."""

    greeting: Json
    answer: Callable[[Json], Json]
    close: Callable[[], Awaitable[None]]


def run_child(serve: Callable[[Json], Coroutine[Any, Any, Serving]]) -> None:
    """The child's `main`: serve until the channel closes.

    `serve` takes the configuration and returns once it listens; a LoadgenError from it, or from
    an answer, goes up the channel as `{"error": ...}`.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_channel(serve, int(sys.argv[1])))


async def _serve_channel(
    serve: Callable[[Json], Coroutine[Any, Any, Serving]], descriptor: int
) -> None:
    channel = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=_MAX_LINE_BYTES)
    serving: Serving | None = None
    try:
        while (line := await reader.readline()).endswith(b"\n"):
            question = json.loads(line)
            try:
                if serving is None:
                    serving = await serve(question)
                    answer = serving.greeting
                else:
                    answer = serving.answer(question)
            except LoadgenError as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
    except OSError:
        # The parent has ended.
        pass
    finally:
        if serving is not None:
            await serving.close()
        writer.close()
