"""The workers of runs, on one host or on many: commands, answers, and losses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from loadgen.brokers.ask import together
from loadgen.errors import CannotRunError
from loadgen.plan.groups import MESSAGING
from loadgen.run.host_watch import HostSample
from loadgen.run.hosts import messages
from loadgen.run.hosts.load_host import Forkserver, Header, LocalHost, forkserver
from loadgen.run.hosts.remote_host import RemoteHost
from loadgen.run.redaction import error_from
from loadgen.sentences import RUN_TEXT
from loadgen.worker.shared_counts import SharedPage

LoadHost: TypeAlias = LocalHost | RemoteHost
OnFrame = Callable[[int, Header, bytes], None]
OnCompiled = Callable[[int, int], None]


class WorkerLostError(CannotRunError):
    """A worker process ended, or fell silent, before it was asked to stop."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost worker, with the reason and the last line of its host's workers on stderr.

    `host` is "" for the coordinator's.
    """

    worker: int
    detail: str
    host: str = ""
    last_words: str = ""


class WorkerPool:
    """The workers, row 0 to count - 1; `hosts` have each row once.

    `on_frame` takes what answers no command. `lost` is set as soon as a worker is gone that was not
    asked to stop; `losses` says which.
    """

    def __init__(
        self, hosts: Sequence[LoadHost], on_frame: OnFrame, on_compiled: OnCompiled
    ) -> None:
        self.on_frame = on_frame
        self._on_compiled = on_compiled
        self.close_grace_s = 3.0
        self.lost = asyncio.Event()
        self.losses: list[Loss] = []
        self.stopped: set[int] = set()
        self._hosts = hosts
        self._host_of = {row: number for number, host in enumerate(hosts) for row in host.rows}
        self._pids = dict.fromkeys(sorted(self._host_of), 0)
        self._waiting: dict[int, dict[str, asyncio.Future[Header]]] = {r: {} for r in self._pids}
        self._closing = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of each worker on its host, by row."""
        return tuple(self._pids.values())

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(self._waiting)

    def samples(self) -> dict[int, HostSample]:
        found = {number: host.sample() for number, host in enumerate(self._hosts)}
        return {number: sample for number, sample in found.items() if sample is not None}

    def clock_bound(self) -> tuple[int, tuple[str, ...]]:
        """Return the largest difference of two hosts' clocks in this run in ns, and these hosts."""
        worst = sorted(self._hosts, key=lambda host: host.clock_bound_ns)[-2:]
        return sum(host.clock_bound_ns for host in worst), tuple(host.name for host in worst)

    def lose(self, worker: int, detail: str, last_words: str = "") -> None:
        """Count this worker as lost, once, and fail the requests that wait for it."""
        if self._closing or worker in self.stopped or worker not in self._waiting:
            return
        host = self._hosts[self._host_of[worker]].name
        self.losses.append(Loss(worker, detail, host, last_words))
        text = RUN_TEXT.WORKER_LOST(worker=worker, detail=detail)
        for future in self._waiting.pop(worker).values():
            if not future.done():
                future.set_exception(WorkerLostError(text))
        self.lost.set()

    def begin(self, page: SharedPage) -> None:
        """Begin a run with its live page: workers here map it, those of other hosts are copied."""
        for host in self._hosts:
            host.begin(page)

    def ignore_frames(self) -> None:
        """Drop frames that answer no command from now on."""
        self.on_frame = lambda *_: None

    def beat(self) -> None:
        """Send a sign of life to every worker that is left."""
        left = set(self.alive) - self.stopped
        for host in self._hosts:
            host.send([row for row in host.rows if row in left], {"op": "beat"})

    async def ask(self, worker: int, op: str, /, **fields: Any) -> Header:
        """Send a command; return its answer, raise its error or WorkerLostError."""
        if worker in self.stopped or worker not in self._waiting:
            raise WorkerLostError(RUN_TEXT.WORKER_LOST(worker=worker, detail="is gone"))
        waiting = self._waiting[worker]
        future: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        waiting[op] = future
        self._hosts[self._host_of[worker]].send((worker,), {"op": op, **fields})
        try:
            answer = await future
        finally:
            if waiting.get(op) is future:
                del waiting[op]
        if "error" in answer:
            raise error_from(answer["error"])
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
        """Send a command to every worker, with `each[row]` added to its fields; return the answers.

        At most `at_once` workers, all if it is None, have it at a time. The first error ends it.
        """
        own: Sequence[Header] = [{} for _ in self._pids] if each is None else each
        free = asyncio.Semaphore(at_once or len(self._pids))

        async def ask_in_turn(worker: int) -> Header:
            async with free:
                return await self.ask(worker, op, **fields, **own[worker])

        return await together(*map(ask_in_turn, self._pids))

    async def ask_left(self, op: str, timeout_s: float) -> dict[int, Header]:
        """Send a command to the workers that are left; one without an answer in time is lost."""
        asked = {row: asyncio.ensure_future(self.ask(row, op)) for row in self.alive}
        if asked:
            await asyncio.wait(asked.values(), timeout=timeout_s)
        answers: dict[int, Header] = {}
        for row, one in asked.items():
            if not one.done():
                one.cancel()
                self.lose(row, f"did not {op} within {timeout_s:g} s")
            elif not one.cancelled() and one.exception() is None:
                answers[row] = one.result()
        await asyncio.gather(*asked.values(), return_exceptions=True)
        return answers

    async def close(self, grace_s: float) -> None:
        """Close every channel and give the workers `grace_s` seconds to end by themselves."""
        self._closing = True
        left = set(self.alive)
        await asyncio.gather(*(h.close(grace_s, left.intersection(h.rows)) for h in self._hosts))

    def _on_event(self, event: messages.WorkerEvent) -> None:
        match event:
            case messages.WorkerStarted(row, pid):
                self._pids[row] = pid
            case messages.WorkerFrame(row, {"re": command} as answer):
                future = self._waiting.get(row, {}).pop(command, None)
                if future is not None and not future.done():
                    future.set_result(answer)
                if command == "stop":
                    self.stopped.add(row)
            case messages.WorkerFrame(row, header, block):
                self.on_frame(row, header, block)
            case messages.WorkerEnded(row, detail, last_words):
                self.lose(row, detail, last_words)
            case messages.KernelsCompiled(count, total):
                self._on_compiled(count, total)


@asynccontextmanager
async def start_workers(
    count: int,
    on_frame: OnFrame,
    *,
    server: Forkserver | None = None,
    entry: str | None = None,
    on_compiled: OnCompiled = lambda *_: None,
    hosts: Sequence[LoadHost] = (),
) -> AsyncIterator[WorkerPool]:
    """Start `count` worker processes, which end with the block.

    `on_frame(row, header, block)` is called for each frame that answers no command, and
    `on_compiled(count, total)` while kernels are compiled first. Without `hosts` they are on this
    machine, forked by `server`, or by a new forkserver for the function `entry`. Raise
    CannotRunError if they cannot be started.
    """
    with ExitStack() as stack:
        if not hosts:
            if server is None:
                server = stack.enter_context(forkserver(MESSAGING, entry))
            hosts = (LocalHost(server, range(count)),)
        pool = WorkerPool(hosts, on_frame, on_compiled)
        grace_s = 0.5
        try:
            await together(*(host.start(pool._on_event) for host in hosts))
            yield pool
            grace_s = pool.close_grace_s
        finally:
            await asyncio.shield(pool.close(grace_s))
