"""Starts worker processes, carries frames to and from them, and misses none that dies.

Workers are forked by a fresh interpreter (`forkserver.py`), so that this works inside any running
event loop and in a script without a main guard. Each worker has one stream socket pair; its end of
file and the forkserver's report are how a death is noticed.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from loadgen import errors
from loadgen.control.forkserver import MESSAGE_LIMIT_BYTES
from loadgen.control.forkserver_process import Forkserver, forkserver
from loadgen.control.redaction import printable
from loadgen.engine.frames import FrameReader, encode_frame
from loadgen.errors import CannotRunError, LoadgenError

Header = dict[str, Any]
OnFrame = Callable[[int, Header, bytes], None]
OnCompiled = Callable[[int, int], None]

_STATUS_WAIT_S = 0.3
"""How long after a channel's end the forkserver's report of the exit status is waited for."""


class WorkerLostError(CannotRunError):
    """A worker process ended, or fell silent, before it was asked to stop."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One worker that was lost and what is known of why."""

    worker: int
    detail: str


def _described(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; the kernel may have been short of memory" if status == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _error_of(answer: Header) -> LoadgenError:
    """The error that a worker answered with, as an exception of the tree in errors.py."""
    described = answer["error"]
    kind = getattr(errors, str(described.get("type")), CannotRunError)
    if not (isinstance(kind, type) and issubclass(kind, LoadgenError)):
        kind = CannotRunError
    return kind(str(described.get("message", "a worker could not go on"))[:500])


class _Channel(asyncio.Protocol):
    """The coordinator's end of one worker's channel."""

    def __init__(self, pool: "WorkerPool", worker: int) -> None:
        self.worker = worker
        self.pid = 0
        self.waiting: dict[str, asyncio.Future[Header]] = {}
        self.transport: asyncio.Transport | None = None
        self._pool = pool
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except (LoadgenError, ValueError):
            self._pool.lose(self.worker, "sent something that is not a frame")
            if self.transport is not None:
                self.transport.abort()
            return
        for header, block in frames:
            name = header.get("re")
            if name is None:
                self._pool.on_frame(self.worker, header, block)
                continue
            future = self.waiting.pop(name, None)
            if future is not None and not future.done():
                future.set_result(header)
            if name == "stop":
                self._pool.stopped.add(self.worker)
                # This ends the worker. If it closed its own end, the next beat would be written to
                # nobody, and that error would come before what is still to be read.
                if self.transport is not None:
                    self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._pool.channel_closed(self.worker)


class WorkerPool:
    """The workers of one run, row 0 to count - 1.

    `lost` is set as soon as one worker is gone that was not asked to stop; `losses` says which.
    """

    def __init__(self, on_frame: OnFrame, server: Forkserver, on_compiled: OnCompiled) -> None:
        self.on_frame = on_frame
        self.on_compiled = on_compiled
        self.close_grace_s = 3.0
        self._server = server
        self.lost = asyncio.Event()
        self.losses: list[Loss] = []
        self.stopped: set[int] = set()
        self._channels: list[_Channel] = []
        self._exits: dict[int, int] = {}
        self._news = asyncio.Event()
        self._asked_to_stop = False
        self._closing = False
        self._failure: str | None = None

    def last_words(self) -> str:
        """Last line that workers wrote to stderr, bounded and printable; "" for none."""
        stderr = self._server.stderr.fileno()
        size = os.fstat(stderr).st_size
        tail = os.pread(stderr, 4096, max(0, size - 4096))
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        return printable(lines[-1], 300) if lines else ""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of each worker, by row."""
        return tuple(channel.pid for channel in self._channels)

    @property
    def alive(self) -> tuple[int, ...]:
        """Rows of the workers that are not lost."""
        gone = {loss.worker for loss in self.losses}
        return tuple(channel.worker for channel in self._channels if channel.worker not in gone)

    def lose(self, worker: int, detail: str) -> None:
        """Count this worker as lost, once, and fail what waits for it."""
        if self._closing or worker in self.stopped or worker not in self.alive:
            return
        self.losses.append(Loss(worker, detail))
        channel = self._channels[worker]
        for future in channel.waiting.values():
            if not future.done():
                future.set_exception(WorkerLostError(f"worker {worker} {detail}"))
        channel.waiting.clear()
        self.lost.set()

    def channel_closed(self, worker: int) -> None:
        """The worker's end closed; its exit status, a moment later, says more."""
        if worker in self._exits:
            self.lose(worker, _described(self._exits[worker]))
        elif not self._closing:
            loop = asyncio.get_running_loop()
            loop.call_later(_STATUS_WAIT_S, self.lose, worker, "closed its channel")

    def tell_all(self, header: Header) -> None:
        """Send a frame that nobody answers to every worker that is left."""
        frame = encode_frame(header)
        for worker in self.alive:
            transport = self._channels[worker].transport
            if transport is not None:
                transport.write(frame)

    async def ask(self, worker: int, op: str, /, **fields: Any) -> Header:
        """Send a command and wait for its answer.

        Raises WorkerLostError when the worker ends first, or the error that it answers with.
        """
        channel = self._channels[worker]
        if channel.transport is None or worker not in self.alive:
            raise WorkerLostError(f"worker {worker} is gone")
        future: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        channel.waiting[op] = future
        channel.transport.write(encode_frame({"op": op, **fields}))
        try:
            answer = await future
        finally:
            if channel.waiting.get(op) is future:
                del channel.waiting[op]
        if "error" in answer:
            raise _error_of(answer)
        return answer

    async def ask_all(
        self,
        op: str,
        /,
        *,
        each: Sequence[Header] | None = None,
        at_once: int | None = None,
        **fields: Any,
    ) -> list[Header]:
        """`ask` of every worker, `each[row]` added to the fields of that row's command.

        At most `at_once` workers have it under way at a time, in the order of their rows; all when
        it is None. Answers by row; the first error ends it.
        """
        own: Sequence[Header] = [{} for _ in self._channels] if each is None else each
        free = asyncio.Semaphore(at_once or len(self._channels))

        async def ask_in_turn(worker: int) -> Header:
            async with free:
                return await self.ask(worker, op, **fields, **own[worker])

        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(ask_in_turn(one.worker)) for one in self._channels]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [one.result() for one in asked]

    async def stop(self, timeout_s: float) -> dict[int, Header]:
        """Ask the workers that are left to close their connections and end; answers by row."""
        self._asked_to_stop = True
        asked = {row: asyncio.ensure_future(self.ask(row, "stop")) for row in self.alive}
        if asked:
            await asyncio.wait(asked.values(), timeout=timeout_s)
        answers: dict[int, Header] = {}
        for row, one in asked.items():
            if not one.done():
                one.cancel()
                self.lose(row, f"did not stop within {timeout_s:g} s")
            elif not one.cancelled() and one.exception() is None:
                answers[row] = one.result()
        await asyncio.gather(*asked.values(), return_exceptions=True)
        return answers

    # What follows is for start_workers alone.

    def heard(self, message: Header) -> None:
        """One message of the forkserver."""
        if "failed" in message:
            self._failure = message["failed"]
        elif "ready" in message:
            self._server.ready = True
        elif "compiled" in message:
            self.on_compiled(message["compiled"], message["of"])
        elif "started" in message:
            self._channels[message["started"]].pid = message["pid"]
        else:
            row = message["exited"]
            self._exits[row] = message["status"]
            # A worker that was asked to stop ends well; whether it answered is on its channel.
            if not (self._asked_to_stop and message["status"] == 0):
                self.lose(row, _described(message["status"]))
        self._news.set()

    def forkserver_gone(self) -> None:
        """The forkserver's socket closed."""
        self._failure = self._failure or "the process that starts workers ended"
        for channel in self._channels:
            self.lose(channel.worker, "went with the process that started it")
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the forkserver's messages to make `condition` true; raises when it failed."""
        while not condition():
            if self._failure is not None:
                raise CannotRunError(f"workers cannot be started: {self._failure}")
            self._news.clear()
            await self._news.wait()

    async def start(self, count: int, control: socket.socket) -> None:
        """Have `count` workers forked, one after the other."""
        loop = asyncio.get_running_loop()
        await self.until(lambda: self._server.ready)
        for row in range(count):
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    ours.setblocking(False)
                    made = partial(_Channel, self, row)
                    self._channels.append((await loop.create_unix_connection(made, sock=ours))[1])
                except BaseException:
                    ours.close()
                    raise
                socket.send_fds(control, [orjson.dumps({"start": row})], [theirs.fileno()])
            await self.until(lambda: self._channels[-1].pid > 0)

    async def close(self, grace_s: float) -> None:
        """Close every channel and give the workers `grace_s` seconds to end by themselves."""
        self._closing = True
        for channel in self._channels:
            if channel.transport is not None:
                channel.transport.close()
        started = [row for row in self.alive if self._channels[row].pid > 0]
        with suppress(TimeoutError, CannotRunError):
            async with asyncio.timeout(grace_s):
                await self.until(lambda: all(row in self._exits for row in started))


@asynccontextmanager
async def start_workers(
    count: int,
    on_frame: OnFrame,
    *,
    server: Forkserver | None = None,
    entry: str | None = None,
    on_compiled: OnCompiled = lambda *_: None,
) -> AsyncIterator[WorkerPool]:
    """`count` worker processes, ready for their first command; all are gone at the end.

    `on_frame(row, header, block)` is called for each frame that answers no command, and
    `on_compiled(count, total)` while kernels are compiled first. `server` is a forkserver that has
    made no workers yet; without one, `entry` names the function that a worker runs. Raises
    CannotRunError when they cannot be started.
    """
    with ExitStack() as stack:
        if server is None:
            server = stack.enter_context(forkserver("messaging", entry))
        pool = WorkerPool(on_frame, server, on_compiled)
        loop = asyncio.get_running_loop()
        loop.add_reader(server.control, _hear, server.control, pool)
        grace_s = 0.5
        try:
            await pool.start(count, server.control)
            yield pool
            grace_s = pool.close_grace_s
        finally:
            await asyncio.shield(pool.close(grace_s))
            loop.remove_reader(server.control)


def _hear(control: socket.socket, pool: WorkerPool) -> None:
    """Take one message of the forkserver, or its end."""
    try:
        data = control.recv(MESSAGE_LIMIT_BYTES)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if data:
        pool.heard(orjson.loads(data))
    else:
        asyncio.get_running_loop().remove_reader(control)
        pool.forkserver_gone()
