"""A broker of the tests in a separate process, and the channel to it.

The channel is a socket pair that carries one JSON object a line: a configuration down, a greeting
up, then questions down and answers up. When it closes, the child ends.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import IO, Any, Final

import uvloop

from loadgen.brokers import process
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import CannotRunError, LoadgenError

Json = dict[str, Any]
"""One JSON object."""

READY_TIMEOUT_S: Final = 300.0
"""Longest time until a child serves. Compiling the kernels takes a minute on a slow host; a child
that fails reports it, or closes the channel, long before."""

ANSWER_TIMEOUT_S: Final = 30.0
"""Longest time for an answer of a child that serves; then it is killed."""

_MAX_LINE_BYTES: Final = 1 << 20
_MAX_SHOWN_CHARACTERS: Final = 300
_LAST_WORDS_POLLS: Final = 200


class ChildBroker(process.BrokerProcess):
    """A broker of loadgen in a separate process; made by `running`.

    It is `module`, run as a program, and gets `config` besides the host and port of `endpoint`;
    port 0 chooses one.
    """

    def __init__(
        self, name: str, version: str, module: str, endpoint: Endpoint, **config: Any
    ) -> None:
        super().__init__(name, version)
        self._module = module
        self._endpoint = endpoint
        self._config = config
        self._lock = asyncio.Lock()
        self._opened = contextlib.AsyncExitStack()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (self._endpoint,)

    async def start(self) -> None:
        """Start it, on the port it had before if it ran before; its sessions are gone.

        Raises CannotRunError with the child's own reason when it cannot serve.
        """
        await self.stop()
        # `stop` closes these, the last first.
        self._errors = self._opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._opened.push_async_callback(super().stop)
        ours, theirs = socket.socketpair()
        self._opened.callback(ours.close)
        with theirs:
            descriptor = theirs.fileno()
            self._process = process.spawn(
                [sys.executable, "-m", self._module, str(descriptor)],
                output=self._errors.fileno(),
                pass_fds=[descriptor],
                environment=process.package_environment(),
            )
        self._reader, self._writer = await asyncio.open_unix_connection(
            sock=ours, limit=_MAX_LINE_BYTES
        )
        self._opened.push_async_callback(_close, self._writer)
        where = {"host": self._endpoint.host, "port": self._endpoint.port}
        try:
            greeting = await self._answer({**where, **self._config}, READY_TIMEOUT_S)
        except TimeoutError:
            raise CannotRunError(
                f"{self.name} did not start within {READY_TIMEOUT_S:.0f} s"
            ) from None
        self._endpoint = replace(self._endpoint, port=greeting["port"])

    async def ask(self, **question: Any) -> Json:
        """Return the answer to one question; raises CannotRunError if the child ended or hangs."""
        try:
            return await self._answer(question, ANSWER_TIMEOUT_S)
        except TimeoutError:
            self.process.kill()
            raise CannotRunError(f"{self.name} did not answer and was killed") from None

    async def _answer(self, question: Json, timeout_s: float) -> Json:
        child = self.process
        async with self._lock, asyncio.timeout(timeout_s):
            try:
                self._writer.write(json.dumps(question).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            except (OSError, ValueError):
                line = b""
        if not line.endswith(b"\n"):
            # The channel closes a little before the last words are written.
            for _ in range(_LAST_WORDS_POLLS):
                if child.poll() is not None:
                    break
                await asyncio.sleep(0.01)
            raise CannotRunError(f"{self.name} ended unexpectedly: {_last_words(self._errors)}")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise CannotRunError(f"{self.name}: {answer['error']}")
        return answer

    async def stop(self) -> None:
        """Close the channel, end the process, and leave nothing open."""
        await self._opened.aclose()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _last_words(errors: IO[bytes]) -> str:
    with contextlib.suppress(OSError, ValueError):
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
        if lines := errors.read().decode("utf-8", "replace").strip().splitlines():
            return ascii(lines[-1][:_MAX_SHOWN_CHARACTERS])[1:-1]
    return ""


@dataclass(frozen=True, slots=True)
class Serving:
    """A child that serves: its greeting, and functions that answer and close."""

    greeting: Json
    answer: Callable[[Json], Json]
    close: Callable[[], None]


def run_child(serve: Callable[[Json], Coroutine[Any, Any, Serving]]) -> None:
    """Serve as the main function of a child, until the channel closes.

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
            serving.close()
        writer.close()
