"""The workers of one run on one host: starts their processes and carries frames to and from them.

A fresh interpreter (`forkserver.py`) forks them, which works in any running event loop and in a
script without a main guard. The end of its channel, or the forkserver's report, shows a death.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import orjson

import loadgen
from loadgen.errors import CannotRunError, LoadgenError
from loadgen.run.host_watch import HostSample, take_sample
from loadgen.run.hosts import messages
from loadgen.run.hosts.forkserver import MESSAGE_LIMIT_BYTES
from loadgen.sentences import RUN_TEXT, printable
from loadgen.worker.frames import FrameReader, encode_frame
from loadgen.worker.shared_counts import SharedPage

Header = dict[str, Any]
OnEvent = Callable[[messages.WorkerEvent], None]
WORKER_ENTRY = "loadgen.worker.worker:run_worker"
"""Function that a worker process runs, with its end of the channel as the argument."""
_END_S = 5.0  # for killed workers to end
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
_STATUS_WAIT_S = 0.3  # wait for the forkserver's report of the exit status after a channel's end


@dataclass(slots=True)
class Forkserver:
    """A forkserver and the socket to ask it on; workers write their last words to `stderr`.

    It serves one `LocalHost` after the other, and numbers all workers that it starts.
    """

    behaviour: str
    process: "subprocess.Popen[bytes]"
    control: socket.socket
    stderr: IO[bytes]
    ready: bool = False  # it has sent `ready`
    started: int = 0  # workers

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def forkserver(behaviour: str, entry: str | None = None) -> Iterator[Forkserver]:
    """Run a forkserver with the kernels of a behaviour, and workers that run `entry`."""
    source = str(Path(loadgen.__file__).resolve().parent.parent)
    paths = dict.fromkeys([source, *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    environment |= dict.fromkeys(_THREADS, "1")
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, tempfile.TemporaryFile() as stderr:
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "loadgen.run.hosts.forkserver"),
                    *(str(theirs.fileno()), entry or WORKER_ENTRY, behaviour),
                ],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(theirs.fileno(),),
                env=environment,
                # A terminal's Ctrl-C goes to the foreground process group: stay out of it.
                start_new_session=True,
            )
        control.setblocking(False)
        try:
            yield Forkserver(behaviour, process, control, stderr)
        finally:
            process.kill()  # the kernel kills its workers with it
            process.wait()


def _described(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; the kernel may have been short of memory" if status == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


class _Channel(asyncio.Protocol):
    def __init__(self, host: "LocalHost", row: int) -> None:
        self.row = row
        self.transport: asyncio.Transport | None = None
        self._host = host
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._reader.feed(data)
        except (LoadgenError, ValueError):
            self._host.report_end(self.row, "sent something that is not a frame")
            if self.transport is not None:
                self.transport.abort()
            return
        for header, block in frames:
            self._host.on_event(messages.WorkerFrame(self.row, header, block))
            # This ends the worker. If it closed first, the next beat would fail before its last
            # frames are read.
            if header.get("re") == "stop" and self.transport is not None:
                self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._host.channel_closed(self.row)


class LocalHost:
    """Workers on this machine, forked by `server`; a pool uses a `RemoteHost` in the same way."""

    clock_bound_ns = 0
    name = ""

    def __init__(self, server: Forkserver, rows: Sequence[int]) -> None:
        self.rows = rows
        self.on_event: OnEvent
        self._server = server
        self._row_of: dict[int, int] = {}  # by the server's number of a worker
        self._stderr_begin = 0
        self._channels: dict[int, _Channel] = {}
        self._pids: dict[int, int] = {}
        self._exits: dict[int, int] = {}
        self._news = asyncio.Event()
        self._asked_to_stop = False
        self._closing = False
        self._failure: str | None = None

    async def start(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        control, loop = self._server.control, asyncio.get_running_loop()
        self._stderr_begin = os.fstat(self._server.stderr.fileno()).st_size
        loop.add_reader(control, self._read_control)
        await self._until(lambda: self._server.ready)
        for row in self.rows:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    ours.setblocking(False)
                    made = partial(_Channel, self, row)
                    self._channels[row] = (await loop.create_unix_connection(made, sock=ours))[1]
                except BaseException:
                    ours.close()
                    raise
                number = self._server.started
                self._server.started, self._row_of[number] = number + 1, row
                request = orjson.dumps({"start": number, "row": row})
                socket.send_fds(control, [request], [theirs.fileno()])
            await self._until(lambda row=row: row in self._pids)  # type: ignore[misc]

    def send(self, rows: Sequence[int], header: Header) -> None:
        self._asked_to_stop |= header.get("op") == "stop"
        frame = encode_frame(header)
        for row in rows:
            transport = self._channels[row].transport
            if transport is not None and not transport.is_closing():
                transport.write(frame)

    def begin(self, page: SharedPage) -> None:
        """Begin a run; workers of this machine map its page themselves."""

    def sample(self) -> HostSample:
        ended = self._exits.keys()
        return take_sample(pid for row, pid in self._pids.items() if row not in ended)

    def report_end(self, row: int, detail: str) -> None:
        """Report the end of a worker with the last line of the workers on stderr."""
        stderr = self._server.stderr.fileno()
        begin = max(self._stderr_begin, os.fstat(stderr).st_size - 4096)
        tail = os.pread(stderr, 4096, begin)
        lines = tail.decode("utf-8", "replace").strip().splitlines()
        self.on_event(messages.WorkerEnded(row, detail, printable(lines[-1], 300) if lines else ""))

    async def close(self, grace_s: float, waited_for: Collection[int]) -> None:
        """End the workers; those of these rows have `grace_s` seconds to do it by themselves."""
        self._closing = True
        for channel in self._channels.values():
            if channel.transport is not None:
                channel.transport.close()
        ended = self._exits.keys()
        with suppress(TimeoutError, CannotRunError):
            async with asyncio.timeout(grace_s):
                await self._until(lambda: ended >= self._pids.keys() & {*waited_for})
        if left := [number for number, row in self._row_of.items() if row not in ended]:
            with suppress(OSError, TimeoutError, CannotRunError):
                self._server.control.send(orjson.dumps({"kill": left}))
                async with asyncio.timeout(_END_S):
                    await self._until(lambda: ended >= self._pids.keys())
        asyncio.get_running_loop().remove_reader(self._server.control)
        # End the wait for workers that are not started yet.
        self._failure = self._failure or "they were stopped before they had started"
        self._news.set()

    def channel_closed(self, row: int) -> None:
        """Handle the end of a channel; the exit status follows a moment later."""

        def report_without_status() -> None:
            if not self._closing:
                self.report_end(row, "closed its channel")

        if row in self._exits:
            self.report_end(row, _described(self._exits[row]))
        elif not self._closing:
            asyncio.get_running_loop().call_later(_STATUS_WAIT_S, report_without_status)

    def _read_control(self) -> None:
        """Handle one message of the forkserver, or its end."""
        try:
            data = self._server.control.recv(MESSAGE_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        match orjson.loads(data) if data else None:
            case None:
                asyncio.get_running_loop().remove_reader(self._server.control)
                self._failure = self._failure or "the process that starts workers ended"
                for row in self._channels:
                    self.report_end(row, "ended with the process that started it")
            case {"failed": failure}:
                self._failure = failure
            case {"ready": _}:
                self._server.ready = True
            case {"compiled": count, "of": total}:
                self.on_event(messages.KernelsCompiled(count, total))
            case {"started": number, "pid": pid} if number in self._row_of:
                row = self._row_of[number]
                self._pids[row] = pid
                self.on_event(messages.WorkerStarted(row, pid))
            case {"exited": number, "status": status} if number in self._row_of:
                row = self._row_of[number]
                self._exits[row] = status
                # The channel has the answer of a worker that stopped on request.
                if not (self._asked_to_stop and status == 0):
                    self.report_end(row, _described(status))
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the forkserver's messages to make `condition` true; raise if it failed."""
        while not condition():
            if self._failure is not None:
                raise CannotRunError(RUN_TEXT.NO_WORKERS(failure=self._failure))
            self._news.clear()
            await self._news.wait()
