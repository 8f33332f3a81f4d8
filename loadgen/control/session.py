"""Steps the workers of one run through its phases and keeps what they report.

connect → subscribe → warm-up → measure → drain → stop, each a method. Whatever ends a run early,
Ctrl-C or a lost worker, cuts the windows where they stand; the rest is as in a run that ended.
This file knows plan and workers; scenario, broker and verdict are the coordinator's.
"""

import asyncio
import os
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from loadgen.control.interrupt import Interrupt
from loadgen.control.progress import Progress, Snapshot
from loadgen.control.redaction import printable
from loadgen.control.rundir import EventLog, IntervalWriter
from loadgen.control.stepped import Mark, StepWatch
from loadgen.control.tally import GroupTally, Tally, p99_us
from loadgen.control.worker_pool import WorkerLostError, WorkerPool
from loadgen.engine.live import Live, LivePage, create_live_page
from loadgen.engine.recorder import decode_intervals
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError, CannotRunError, LoadgenError
from loadgen.metrics.interval import Interval
from loadgen.workload.groups import RunPlan
from loadgen.workload.rate_steps import RateStep

T = TypeVar("T")
Window = tuple[int, int]
Ending = Literal["interrupted", "worker lost"]

NS = 1_000_000_000
BACKLOG_SAMPLES = 20
"""Of what is owed and outstanding in a window, and one each second of a long one."""

SAMPLE_S = 0.01
"""How often the live page is looked at for the high-water mark and the end of the drain."""
PROGRESS_S = 0.25
BEAT_S = 1.0
SCHEDULE_LEAD_S = 0.3
"""From the start command to the first intended message: every worker has it by then."""
SILENCE_LIMIT_S = 20.0
"""A worker whose live row stands still for this long, and a second for each worker a core has, is
lost."""
STANDSTILL = 1e-6
"""Rate factor that stops a schedule: its least step, at which the next message is days away."""
CUT_DRAIN_S = 2.0
"""How long a cut run waits for what is under way."""
SETTLE_S = 0.2
"""After the last delivery arrived: time in which one repeated by the broker would show."""
STOP_TIMEOUT_S = 10.0
"""For a worker to close its connections; a second for each thousand is added."""
REASONS_LIMIT = 20
_IN_FLIGHT_EACH = 64  # with more under way a worker has as many answers at each wake as it needs


@dataclass(frozen=True, slots=True)
class Steps:
    """How long the phases take, and how connections are opened.

    `connect_rate` is connects a second of all workers, None as fast as `in_flight` (connects under
    way at once, of all workers) allows. `rates` are steps of the rate within `duration_s`, none for
    an even one.
    """

    warmup_s: float
    duration_s: float
    drain_s: float
    connect_rate: float | None = None
    in_flight: int = 64
    timeout_s: float = 30.0
    rates: tuple[RateStep, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of connecting or subscribing: how many did, why others did not, and when."""

    done: int
    failures: Mapping[str, int]
    first_ns: int
    last_ns: int

    @property
    def seconds(self) -> float:
        """From the first attempt to the last answer."""
        return (self.last_ns - self.first_ns) / NS


class _CutError(Exception):
    """The run ends here, with what was measured."""


def connecting_at_once(workers: int, steps: Steps) -> int:
    """How many workers connect their devices at the same time.

    As fast as it goes, `in_flight` connects are divided among a few workers and the rest wait for
    their turn: with one or two each, every answer would cost its worker a wake of its own. At a
    rate all take part, or the last turn, with fewer workers than the others, would be slower.
    """
    if steps.connect_rate is not None:
        return workers
    most = max(os.cpu_count() or 1, steps.in_flight // _IN_FLIGHT_EACH, 1)
    turns = -(-workers // most)
    return -(-workers // max(turns, 1))


class Session:
    """One run's phases. After `play` the attributes tell what happened.

    `windows` has [start, end] (CLOCK_MONOTONIC ns) of each phase that took place; `ending` says
    what cut the run, if anything did.
    """

    def __init__(
        self,
        plan: RunPlan,
        steps: Steps,
        *,
        run: str,
        host: int,
        anchor_ns: int,
        events: EventLog,
        intervals: IntervalWriter,
        interrupt: Interrupt,
        progress: Progress,
        measuring: Callable[[], None],
    ) -> None:
        self.windows: dict[str, Window] = {}
        self.connected: StepResult | None = None
        self.subscribed: StepResult | None = None
        self.owed_at_window_end = 0
        self.owed_oldest_ns = 0
        self.owed_at_end = 0
        self.high_water_mark = 0
        self.disconnect_reason = ""
        self.backlog_samples: list[tuple[int, int, int]] = []
        self.ending: Ending | None = None
        self.finals: dict[int, dict[str, Any]] = {}
        self.stepped: StepWatch | None = None
        self.messages = any(group.publishes for group in plan.groups)
        self.tally = Tally(
            (group.name for group in plan.groups if group.timed),
            ("measure",) if self.messages else ("connect", "subscribe"),
        )
        self.groups = GroupTally(group.name for group in plan.groups if group.targets)
        self._plan = plan
        self._steps = steps
        self._run = run
        self._host = host
        self._anchor_ns = anchor_ns
        self._events = events
        self._intervals = intervals
        self._interrupt = interrupt
        self._progress = progress
        self._measuring = measuring
        self._fresh: list[Interval] = []
        self._writing: asyncio.Future[None] | None = None
        self._window_ends: dict[int, tuple[int, int]] = {}
        self._phase = "start"
        self._phase_end_ns: int | None = None
        self._sampling = False
        self._backlog_each_ns = NS
        self._next_backlog_ns = 0
        self._p99_us: float | None = None
        self._rates: deque[tuple[int, int, int]] = deque(maxlen=5)
        self._pool: WorkerPool | None = None
        self._page: LivePage = np.zeros((1, 1), np.int64)

    # Frames of the workers

    def on_frame(self, row: int, header: dict[str, Any], block: bytes) -> None:
        """Take a frame that answers no command; what is broken becomes an event."""
        try:
            if "interval" in header:
                for interval in decode_intervals(header, block):
                    known = replace(interval, run=self._run, host=self._host, worker=row)
                    self.tally.add(known)
                    if self.stepped is not None:
                        self.stepped.add(known)
                    self.groups.add(known)
                    self._fresh.append(known)
            elif "event" in header:
                event = header["event"]
                if event["kind"] == "disconnect" and not self.disconnect_reason:
                    self.disconnect_reason = printable(str(event.get("detail") or ""), 100)
                self._events.write(
                    int(event["time_ns"]),
                    str(event["kind"]),
                    str(event.get("detail") or ""),
                    worker=row,
                    group=str(event.get("group") or ""),
                    device=event.get("device"),
                )
            elif "window_end" in header:
                end = header["window_end"]
                self._window_ends[row] = (int(end["owed"]), int(end.get("owed_oldest_ns") or 0))
        except (KeyError, TypeError, ValueError) as error:
            self._note("bad_frame", f"{type(error).__name__}: {error}", row)

    def _note(self, kind: str, detail: str, worker: int | None = None) -> None:
        self._events.write(time.monotonic_ns(), kind, detail, worker=worker)

    # The steps

    async def play(self, pool: WorkerPool) -> None:
        """Run all phases and stop the workers.

        Raises LoadgenError when the run cannot go on in a way that no verdict describes: nobody
        could connect, or a worker refused a command.
        """
        self._pool = pool
        with ExitStack() as page_name:
            await self._play_and_stop(pool, page_name)
        await self._flush()
        for loss in pool.losses:
            self._note("worker_lost", loss.detail, loss.worker)
            words = pool.last_words()
            if words:
                self._note("worker_said", words, loss.worker)

    async def _play_and_stop(self, pool: WorkerPool, page_name: ExitStack) -> None:
        async with _background(self._beat(), self._show(), self._sample()):
            try:
                await self._play(pool, page_name)
            except _CutError:
                self._note("cut", self.ending or "")
            except LoadgenError:
                await self._stop(pool)
                raise
            await self._stop(pool)

    async def _play(self, pool: WorkerPool, page_name: ExitStack) -> None:
        await self._configure(pool, page_name)
        await self._connect(pool)
        if any(group.subscribes for group in self._plan.groups):
            await self._subscribe(pool)
        if self.messages:
            await self._exchange(pool)
        else:
            await self._hold()

    async def _stop(self, pool: WorkerPool) -> None:
        """Let the workers disconnect and end, however far the run came."""
        self._enter("stop")
        timeout_s = STOP_TIMEOUT_S + sum(self._devices(row) for row in pool.alive) / 1000
        stopping = asyncio.ensure_future(pool.stop(timeout_s))
        await self._unless_insisted(stopping)
        if not stopping.cancelled():
            answers = stopping.result().items()
            self.finals = {row: answer.get("final") or {} for row, answer in answers}

    async def _configure(self, pool: WorkerPool, page_name: ExitStack) -> None:
        self._enter("configure")
        # Once every worker has opened it, the page needs no name, and a killed run leaves none.
        # Until then it keeps it: a worker that is lost meanwhile must not take the others along.
        path = page_name.enter_context(_live_directory()) / "live"
        self._page = create_live_page(path, len(self._plan.workers))
        await self._step(
            pool.ask_all(
                "configure",
                run=self._run,
                host=self._host,
                workers=len(self._plan.workers),
                anchor_ns=self._anchor_ns,
                live=str(path),
                plan=self._plan,
                each=[{"worker": worker.worker} for worker in self._plan.workers],
            )
        )
        page_name.close()

    async def _connect(self, pool: WorkerPool) -> None:
        start_ns = self._enter("connect")
        steps = self._steps
        workers = len(self._plan.workers)
        total = sum(map(self._devices, range(workers)))
        at_once = connecting_at_once(workers, steps)
        each = []
        for row in range(workers):
            share = self._devices(row) / total if total else 0.0
            rate = None if steps.connect_rate is None else steps.connect_rate * share
            in_flight = max(1, round(steps.in_flight * share))
            first = in_flight if at_once == workers else max(1, steps.in_flight // at_once)
            each.append({"rate": rate, "in_flight": in_flight, "first_in_flight": first})
        work = pool.ask_all("connect", timeout_s=steps.timeout_s, each=each, at_once=at_once)
        try:
            answers = await self._step(work)
        except _CutError:
            # Nobody answers any more; the live page tells how far they came.
            now_ns = time.monotonic_ns()
            failed = self._sum(Live.CONNECT_FAILURES)
            failures = {"not told": failed} if failed else {}
            self.connected = StepResult(self._sum(Live.CONNECTED), failures, start_ns, now_ns)
            self.windows["connect"] = (start_ns, now_ns)
            raise
        self.connected = _added(answers, "connected", start_ns)
        self.windows["connect"] = (self.connected.first_ns, self.connected.last_ns)
        self._tell_failures("connect_failed", self.connected)
        if self.connected.failures and not self.connected.done:
            raise _nobody(self.connected.failures)

    async def _subscribe(self, pool: WorkerPool) -> None:
        start_ns = self._enter("subscribe")
        work = pool.ask_all("subscribe", timeout_s=self._steps.timeout_s)
        try:
            answers = await self._step(work)
        finally:
            self.windows["subscribe"] = (start_ns, time.monotonic_ns())
        self.subscribed = _added(answers, "subscribed", start_ns)
        self._tell_failures("subscribe_failed", self.subscribed)

    async def _exchange(self, pool: WorkerPool) -> None:
        """Warm-up, measure and drain."""
        steps = self._steps
        start_ns = time.monotonic_ns() + int(SCHEDULE_LEAD_S * NS)
        measure_ns = start_ns + int(steps.warmup_s * NS)
        end_ns = measure_ns + int(steps.duration_s * NS)
        work = pool.ask_all("start", start_ns=start_ns, measure_ns=measure_ns, end_ns=end_ns)
        await self._step(work)
        if steps.rates:
            self.stepped = StepWatch(steps.rates, measure_ns, self._timed_tally)
            for at_ns, factor in self.stepped.changes(measure_ns, start_ns):
                await self._step(pool.ask_all("rate", at_ns=at_ns, factor=factor))
        try:
            if steps.warmup_s > 0:
                self._enter("warm-up", measure_ns)
                self.windows["warmup"] = (start_ns, measure_ns)
            await self._until(measure_ns)
            self._enter("measure", end_ns)
            self.windows["measure"] = (measure_ns, end_ns)
            self._measuring()
            self._backlog_each_ns = min((end_ns - measure_ns) // BACKLOG_SAMPLES, NS)
            self._sampling = True
            await self._through_steps()
            await self._until(end_ns)
        except _CutError:
            await self._cut(pool, measure_ns, end_ns)
            raise
        finally:
            self._sampling = False
        await self._drain(end_ns, steps.drain_s)
        if self.stepped is not None:
            self.stepped.sample(self._mark())

    async def _through_steps(self) -> None:
        """Mark where the judged part of each rate step begins and ends."""
        if self.stepped is None:
            return
        for step, (open_ns, close_ns) in zip(self.stepped.steps, self.stepped.bounds, strict=True):
            self._note("rate_step", f"{step.share * 100:.6g}% of the target rate")
            await self._until(open_ns)
            self.stepped.opens(self._mark())
            await self._until(close_ns)
            self.stepped.closes(self._mark())

    def _mark(self) -> Mark:
        # Received first: what arrives while the page is read must not look like more than was due.
        received = self._sum(Live.RECEIVED)
        return Mark(
            time_ns=time.monotonic_ns(),
            sent=self._sum(Live.SENT),
            expected=self._sum(Live.EXPECTED),
            received=received,
            owed=self._sum(Live.OWED),
            pushed_back=self._sum(Live.PUSHED_BACK),
        )

    def _timed_tally(self) -> Tally:
        return Tally(self._timed, ("measure",))

    async def _cut(self, pool: WorkerPool, measure_ns: int, end_ns: int) -> None:
        """End the schedule now and let what is under way arrive."""
        cut_ns = min(end_ns, time.monotonic_ns() + 50_000_000)
        for name, (start, stop) in list(self.windows.items()):
            if stop > cut_ns:
                self.windows[name] = (start, cut_ns)
        if cut_ns <= measure_ns:
            self.windows.pop("measure", None)
        with suppress(LoadgenError, TimeoutError):
            async with asyncio.timeout(1.0):
                change = {"factor": STANDSTILL, "at_ns": cut_ns}
                asked = [pool.ask(row, "rate", **change) for row in pool.alive]
                await asyncio.gather(*asked, return_exceptions=True)
        with suppress(_CutError):
            await self._drain(cut_ns, min(CUT_DRAIN_S, self._steps.drain_s), cut=True)

    async def _drain(self, start_ns: int, drain_s: float, *, cut: bool = False) -> None:
        """Wait until everything sent has arrived, at most `drain_s` seconds."""
        end_ns = start_ns + int(drain_s * NS)
        self._enter("drain", end_ns)
        self.windows["drain"] = (start_ns, end_ns)
        work = self._arrived(end_ns, cut=cut)
        if cut:
            await self._unless_insisted(asyncio.ensure_future(work))
        else:
            try:
                await self._step(work)
            finally:
                self.windows["drain"] = (start_ns, max(start_ns, time.monotonic_ns()))
        self.windows["drain"] = (start_ns, max(start_ns, time.monotonic_ns()))
        if self._window_ends:
            self.owed_at_window_end = sum(owed for owed, _ in self._window_ends.values())
            self.owed_oldest_ns = max(oldest for _, oldest in self._window_ends.values())
        else:
            self.owed_at_window_end = self._sum(Live.OWED)
        self.owed_at_end = self._sum(Live.OWED)

    async def _arrived(self, end_ns: int, *, cut: bool) -> None:
        while (now_ns := time.monotonic_ns()) < end_ns:
            page = self._page.copy()
            received = int(page[:, Live.RECEIVED].sum())
            finished = bool(page[:, Live.FINISHED].all()) or (cut and not page[:, Live.OWED].any())
            if finished and received >= int(page[:, Live.EXPECTED].sum()):
                await asyncio.sleep(min(SETTLE_S, (end_ns - now_ns) / NS))
                return
            await asyncio.sleep(SAMPLE_S)

    async def _hold(self) -> None:
        """Keep the connections for the scenario's duration."""
        start_ns = time.monotonic_ns()
        end_ns = start_ns + int(self._steps.duration_s * NS)
        self._enter("hold", end_ns)
        self._measuring()
        try:
            await self._until(end_ns)
        finally:
            self.windows["hold"] = (start_ns, min(end_ns, time.monotonic_ns()))

    # Waiting

    async def _step(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns; _CutError when an interrupt or a lost worker comes first."""
        assert self._pool is not None
        pool = self._pool
        task = asyncio.ensure_future(work)
        watched = [
            asyncio.ensure_future(self._interrupt.asked.wait()),
            asyncio.ensure_future(pool.lost.wait()),
        ]
        try:
            await asyncio.wait((task, *watched), return_when=asyncio.FIRST_COMPLETED)
            lost = pool.lost.is_set()
            if task.done() and not lost:
                return task.result()
            if task.done():
                with suppress(WorkerLostError):
                    task.result()
            self.ending = "worker lost" if lost else "interrupted"
            raise _CutError
        finally:
            await _cancelled(task, *watched)

    async def _until(self, moment_ns: int) -> None:
        await self._step(asyncio.sleep(max(0, moment_ns - time.monotonic_ns()) / NS))

    async def _unless_insisted(self, task: "asyncio.Future[Any]") -> None:
        """Wait for the task; a second interrupt ends the wait and the task."""
        insisted = asyncio.ensure_future(self._interrupt.insisted.wait())
        try:
            await asyncio.wait((task, insisted), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                assert self._pool is not None
                self._pool.close_grace_s = 0.0
                self.ending = "interrupted"
        finally:
            await _cancelled(insisted, *(() if task.done() else (task,)))

    # Beside the steps

    async def _beat(self) -> None:
        """Each second: a sign of life to the workers, rows to the file, a look at silent rows."""
        assert self._pool is not None
        # Many workers on few cores are each heard less often.
        limit_s = SILENCE_LIMIT_S + len(self._plan.workers) / (os.cpu_count() or 1)
        while True:
            self._pool.tell_all({"op": "beat"})
            now_ns = time.monotonic_ns()
            for row in self._pool.alive:
                beat_ns = int(self._page[row, Live.BEAT_NS]) if row < len(self._page) else 0
                if beat_ns and now_ns - beat_ns > limit_s * NS and self._phase != "stop":
                    self._pool.lose(row, f"was silent for {limit_s:.0f} s")
            await self._flush()
            await asyncio.sleep(BEAT_S)

    async def _flush(self) -> None:
        # One write at a time, and none left behind: the beat is cancelled in the middle of its own.
        await self._written()
        rows, self._fresh = self._fresh, []
        latest = [r for r in rows if r.series == "end_to_end" and r.group in self._timed]
        if latest:
            self._p99_us = p99_us(latest)
        if rows:
            second = (time.monotonic_ns() - self._anchor_ns) // NS
            work = asyncio.to_thread(self._intervals.write, second, rows)
            self._writing = asyncio.ensure_future(work)
            await self._written()

    async def _written(self) -> None:
        """Wait for the write under way; a caller that is cancelled leaves it to the next one."""
        if self._writing is None:
            return
        await asyncio.wait((self._writing,))
        try:
            self._writing.result()
        except OSError as error:
            raise CannotRunError(f"results cannot be written: {error.strerror}") from None

    async def _sample(self) -> None:
        while True:
            if self._sampling:
                page = self._page.copy()
                gap = page[:, Live.EXPECTED].sum() - page[:, Live.RECEIVED].sum()
                self.high_water_mark = max(self.high_water_mark, int(gap))
                now_ns = time.monotonic_ns()
                if now_ns >= self._next_backlog_ns:
                    self._next_backlog_ns = now_ns + self._backlog_each_ns
                    owed = int(page[:, Live.OWED].sum())
                    self.backlog_samples.append((now_ns, owed, max(0, int(gap))))
                if self.stepped is not None:
                    self.stepped.sample(self._mark())
            await asyncio.sleep(SAMPLE_S)

    async def _show(self) -> None:
        devices = sum(map(self._devices, range(len(self._plan.workers))))
        while True:
            now_ns = time.monotonic_ns()
            page = self._page.sum(axis=0) if self._page.shape[1] > 1 else None
            if page is not None:
                sent, received = int(page[Live.SENT]), int(page[Live.RECEIVED])
                self._rates.append((now_ns, sent, received))
                before_ns, sent_before, received_before = self._rates[0]
                seconds = max((now_ns - before_ns) / NS, 1e-9)
                left = self._phase_end_ns
                self._progress(
                    Snapshot(
                        phase=self._phase,
                        devices=devices,
                        connected=int(page[Live.CONNECTED]),
                        failed=int(page[Live.CONNECT_FAILURES]),
                        sent_per_s=(sent - sent_before) / seconds,
                        received_per_s=(received - received_before) / seconds,
                        backlog=max(0, int(page[Live.OWED] + page[Live.EXPECTED]) - received),
                        p99_us=self._p99_us,
                        left_s=None if left is None else (left - now_ns) / NS,
                    )
                )
            await asyncio.sleep(PROGRESS_S)

    def _enter(self, phase: str, end_ns: int | None = None) -> int:
        """Note the phase; returns the moment."""
        self._phase, self._phase_end_ns = phase, end_ns
        now_ns = time.monotonic_ns()
        self._events.write(now_ns, "phase", phase)
        return now_ns

    def _devices(self, row: int) -> int:
        return sum(share.count for share in self._plan.workers[row].shares)

    def _sum(self, field: Live) -> int:
        return int(self._page[:, field].sum())

    @property
    def _timed(self) -> set[str]:
        return {group.name for group in self._plan.groups if group.timed}

    def _tell_failures(self, kind: str, result: StepResult) -> None:
        for reason, count in result.failures.items():
            self._note(kind, f"{count} devices: {reason}")


def _added(answers: Sequence[Mapping[str, Any]], name: str, start_ns: int) -> StepResult:
    """The workers' answers as one; reasons are bounded and printable."""
    failures: Counter[str] = Counter()
    for answer in answers:
        for reason, count in (answer.get("failures") or {}).items():
            shown = printable(str(reason), 100)
            if shown not in failures and len(failures) >= REASONS_LIMIT:
                shown = "other"
            failures[shown] += int(count)
    first = [int(a["first_ns"]) for a in answers if a.get("first_ns")]
    last = [int(a["last_ns"]) for a in answers if a.get("last_ns")]
    first_ns = min(first, default=start_ns)
    return StepResult(
        done=sum(int(answer[name]) for answer in answers),
        failures=dict(failures.most_common()),
        first_ns=first_ns,
        last_ns=max(last, default=first_ns),
    )


def _nobody(failures: Mapping[str, int]) -> LoadgenError:
    """The error of a run in which no device connected."""
    reason = max(failures, key=lambda name: failures[name])
    refused = any(word in reason.lower() for word in ("refused by", "0x", "reason", "connack"))
    kind = BrokerRefusedError if refused else BrokerUnreachableError
    return kind(
        f"none of {sum(failures.values()):,} devices could connect: {reason}; "
        "check --broker and what the broker's log says"
    )


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these beside the block; an error in one ends the block with it."""
    owner = asyncio.current_task()
    assert owner is not None
    errors: list[BaseException] = []

    def ended(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            errors.append(error)
            owner.cancel()

    tasks = [asyncio.ensure_future(one) for one in work]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    except asyncio.CancelledError:
        if errors:
            owner.uncancel()
            raise errors[0] from None
        raise
    finally:
        await _cancelled(*tasks)


@contextmanager
def _live_directory() -> Iterator[Path]:
    """A directory in memory where there is one: the live page must not wait for a disk."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="loadgen-", dir=where) as name:
        yield Path(name)
