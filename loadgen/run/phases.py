"""Conducts the workers of one run through its phases.

configure → connect → subscribe → warm-up → measure → drain → stop. A run on the connections of a
previous one begins with the warm-up, and one that lends its connections does not stop its workers.
An interrupt or a lost worker cuts the windows at that moment; the rest is as in a run that ended.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import orjson

from loadgen.errors import BrokerRefusedError, BrokerUnreachableError, LoadgenError
from loadgen.judge.facts import LostRange
from loadgen.plan.addressing import may_be_kept
from loadgen.plan.groups import sent_qos
from loadgen.plan.plan import PhasePlan, Plan, document_of
from loadgen.run.hosts.worker_pool import WorkerLostError, WorkerPool
from loadgen.run.interrupt import Interrupt
from loadgen.run.monitor import SAMPLE_S, Monitor
from loadgen.run.rate_step_watch import RateStepWatch
from loadgen.run.run_state import NS, Ending, Outcome, RunState, outcome_of, timed_groups
from loadgen.run.tasks import finished_or
from loadgen.scratch import memory_directory
from loadgen.sentences import RUN_TEXT
from loadgen.worker.closing import LOST_LIMIT
from loadgen.worker.shared_counts import create_live_page
from loadgen.worker.subscription_marks import open_marks

T = TypeVar("T")
_LEAD_S = 0.1
_LEAD_EACH_S = 0.01
_MOST_LEAD_S = 0.3
CUT_LEAD_S = 0.05  # time from the command that stops a schedule until it takes effect
CUT_DRAIN_S = 2.0  # longest wait of a cut run for messages in flight
CERTAIN_DRAIN_S = 4.0
"""The same after a certain verdict: the broker serves what it has queued, and devices stay."""
CUT_SETTLE_S = 0.2  # shortest wait of a cut run: messages are sent until the schedule ends
ARRIVING_SHARE = 0.25
"""Last part of the drain, as a share; if messages arrived in it, more may be in flight."""
RETURN_S = 3.0  # longest wait after the drain for the return of a device that was cut off
QUESTION_TIMEOUT_S = 10.0
QUESTION_MESSAGES = 100_000
"""Most messages without acknowledgement about which workers are asked after the drain."""
STOP_TIMEOUT_S = 10.0
"""For a worker to close its connections; a second for each thousand is added."""
_REMAINS = (
    *("corrupt", "duplicated", "misrouted", "foreign", "violations", "refused", "given_up"),
    "disconnects",
)
"""If one of these counters is not 0, messages of a run may arrive in the next one."""
_REFUSALS = ("refused by", "0x", "reason", "connack")
"""Words that show, in the reason of a failed connect, that the broker answered."""
_IN_FLIGHT_EACH = 64  # connects under way that are enough to keep a worker busy


class _CutError(Exception):
    """The end of the run at this point, with the results so far."""


def connecting_at_once(workers: int, phases: PhasePlan) -> int:
    """Return the number of workers that connect their devices at the same time.

    Without a rate, `in_flight` connects are divided among a few workers: with one or two each,
    every answer would wake its worker separately. At a rate all take part.
    """
    if phases.connect_rate is not None:
        return workers
    most = max(os.cpu_count() or 1, phases.in_flight // _IN_FLIGHT_EACH, 1)
    turns = -(-workers // most)
    return -(-workers // max(turns, 1))


def schedule_lead_s(workers: int, warmup_s: float) -> float:
    """Return the time from the start command to the first intended message.

    Every worker must have the command by then. Before a warm-up it does not grow with the workers:
    one that receives it late is late for messages that are not judged.
    """
    if warmup_s >= _MOST_LEAD_S:
        return _LEAD_S
    return min(_LEAD_S + _LEAD_EACH_S * (workers - 1), _MOST_LEAD_S)


def stop_timeout_s(plan: Plan) -> float:
    return STOP_TIMEOUT_S + sum(group.count for group in plan.groups) / 1000


@dataclass(frozen=True, slots=True)
class PhaseRunner:
    """The phases of one run, which fill `monitor.state`.

    `previous` is the monitor of the run that connected the devices, None if this run connects them.
    With `lends` the run leaves its devices connected if another run can use them.
    """

    plan: Plan
    pool: WorkerPool
    monitor: Monitor
    interrupt: Interrupt
    previous: Monitor | None = None
    lends: bool = False

    @property
    def _state(self) -> RunState:
        return self.monitor.state

    async def play(self) -> bool:
        """Run all phases; return True if the devices stay connected for another run.

        Raise LoadgenError if the run ends in a way that no verdict describes: no device could
        connect, or a worker refused a command.
        """
        monitor, pool = self.monitor, self.pool
        # The live page must not wait for a disk.
        with (directory := memory_directory()):
            async with monitor.watching(pool):
                try:
                    if self.previous is not None:
                        await self._renew(self.previous)
                    else:
                        await self._configure(directory)
                        await self._connect()
                        if any(group.subscribes for group in self.plan.groups):
                            await self._subscribe()
                    await (self._exchange() if self._state.messages else self._hold())
                except _CutError:
                    monitor.events.write("cut", self._state.ending or "")
                except LoadgenError:
                    await self._stop()
                    raise
                lent = await self._conclude()
                if not lent:
                    await self._stop()
        self._state.clock_bound_ns, self._state.clock_hosts = pool.clock_bound()
        for loss in pool.losses:
            monitor.settle_lost(loss.worker)
        await monitor.flush()
        for loss in pool.losses:
            monitor.events.write("worker_lost", loss.detail, loss.worker)
            if loss.last_words:
                monitor.events.write("worker_said", loss.last_words, loss.worker)
        return lent

    async def _configure(self, directory: "TemporaryDirectory[str]") -> None:
        monitor, plan = self.monitor, self.plan
        monitor.enter("configure")
        path = Path(directory.name) / "live"
        monitor.page = create_live_page(path, len(plan.workers), len(plan.groups))
        self.pool.begin(monitor.page)
        await self._step(
            self.pool.ask_all(
                "configure",
                run=monitor.intervals.run,
                workers=len(plan.workers),
                anchor_ns=monitor.intervals.anchor_ns,
                live=str(path),
                plan=orjson.Fragment(orjson.dumps(document_of(plan))),  # once for all
                each=[{"worker": worker.worker} for worker in plan.workers],
            )
        )
        monitor.marks = open_marks(path, len(plan.workers))
        # Every worker has opened the page: without a name, nothing stays of a killed run.
        directory.cleanup()

    async def _renew(self, previous: Monitor) -> None:
        monitor, seen, before = self.monitor, self._state, previous.state
        assert before.connected is not None
        now_ns = monitor.enter("configure")
        self.pool.begin(previous.page)
        anchor_ns = monitor.intervals.anchor_ns
        plan = orjson.Fragment(orjson.dumps(document_of(self.plan)))
        answers = await self._step(self.pool.ask_all("renew", anchor_ns=anchor_ns, plan=plan))
        monitor.page, monitor.marks = previous.page, previous.marks
        done = sum(int(answer["connected"]) for answer in answers)
        lost = before.connected.done - done
        failures = {"the connection was lost between two runs": lost} if lost else {}
        run = before.connected.kept_from or previous.intervals.run
        seen.connected = Outcome(done, failures, now_ns, now_ns, kept_from=run)
        seen.subscribed = before.subscribed and replace(before.subscribed, kept_from=run)
        self._note_failures("connect_failed", seen.connected)

    async def _connect(self) -> None:
        monitor, seen, phases = self.monitor, self._state, self.plan.phases
        start_ns = monitor.enter("connect")
        workers = len(self.plan.workers)
        devices = [monitor.devices_of(row) for row in range(workers)]
        at_once = connecting_at_once(workers, phases)
        each = []
        for count in devices:
            share = count / sum(devices) if count else 0.0
            rate = None if phases.connect_rate is None else phases.connect_rate * share
            in_flight = max(1, round(phases.in_flight * share))
            first = in_flight if at_once == workers else max(1, phases.in_flight // at_once)
            each.append({"rate": rate, "in_flight": in_flight, "first_in_flight": first})
        work = self.pool.ask_all(
            "connect", timeout_s=phases.timeout_s, start_ns=start_ns, each=each, at_once=at_once
        )
        try:
            answers = await self._step(work)
        except _CutError:
            # No answers follow; the live page has the counts until now.
            failed = monitor.page.total("connect_failures")
            done, now_ns = monitor.page.total("connected"), time.monotonic_ns()
            unknown = {"not reported": failed} if failed else {}
            seen.connected = Outcome(done, unknown, start_ns, now_ns)
            seen.windows["connect"] = (start_ns, now_ns)
            raise
        seen.connected = outcome_of(answers, "connected", start_ns)
        seen.windows["connect"] = (seen.connected.first_ns, seen.connected.last_ns)
        self._note_failures("connect_failed", seen.connected)
        failures = seen.connected.failures
        if failures and not seen.connected.done:
            reason = max(failures, key=lambda name: failures[name])
            refused = any(word in reason.lower() for word in _REFUSALS)
            kind = BrokerRefusedError if refused else BrokerUnreachableError
            raise kind(RUN_TEXT.NOT_ONE_CONNECTED(devices=sum(failures.values()), reason=reason))

    async def _subscribe(self) -> None:
        start_ns = self.monitor.enter("subscribe")
        work = self.pool.ask_all("subscribe", timeout_s=self.plan.phases.timeout_s)
        try:
            answers = await self._step(work)
        finally:
            self._state.windows["subscribe"] = (start_ns, time.monotonic_ns())
        self._state.subscribed = outcome_of(answers, "subscribed", start_ns)
        self._note_failures("subscribe_failed", self._state.subscribed)

    async def _exchange(self) -> None:
        phases, pool, seen, monitor = self.plan.phases, self.pool, self._state, self.monitor
        lead_s = schedule_lead_s(len(self.plan.workers), phases.warmup_s)
        start_ns = time.monotonic_ns() + int(lead_s * NS)
        measure_ns = start_ns + int(phases.warmup_s * 1e6) * 1000
        end_ns = measure_ns + int(phases.duration_s * 1e6) * 1000
        seen.abandoned = True
        steps = RateStepWatch(phases.rates, start_ns, measure_ns, timed_groups(self.plan))
        seen.rate_steps = steps if phases.rates else None
        window: dict[str, Any] = {"start_ns": start_ns, "measure_ns": measure_ns, "end_ns": end_ns}
        await self._step(pool.ask_all("start", **window, rates=steps.changes))
        try:
            if phases.warmup_s > 0:
                monitor.enter("warm-up", measure_ns)
                seen.windows["warmup"] = (start_ns, measure_ns)
            await self._until(measure_ns)
            seen.windows["measure"] = (measure_ns, end_ns)
            monitor.enter("measure", end_ns)
            monitor.watch_window(measure_ns, end_ns)
            for step, judged in zip(steps.steps, steps.bounds, strict=True):
                share = f"{step.share * 100:.6g}%"
                monitor.events.write("rate_step", f"{share} of the target rate")
                for moment_ns in judged:
                    await self._until(moment_ns)
                    steps.bound(monitor.live_sample())
            await self._until(end_ns)
        except _CutError:
            await self._cut(measure_ns, end_ns)
            raise
        await self._drain(end_ns, phases.drain_s)

    async def _cut(self, measure_ns: int, end_ns: int) -> None:
        """End the schedule now, and wait for the messages in flight."""
        seen, pool = self._state, self.pool
        cut_ns = min(end_ns, time.monotonic_ns() + int(CUT_LEAD_S * NS))
        late: list[int] = []
        with suppress(LoadgenError, TimeoutError):
            async with asyncio.timeout(1.0):
                asked = [pool.ask(row, "end", at_ns=cut_ns) for row in pool.alive]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                late = [int(one.get("at_ns") or 0) for one in answers if isinstance(one, dict)]
        # A worker that got the command late has sent until then.
        cut_ns = min(end_ns, max([cut_ns, *late]))
        for name, (start, stop) in list(seen.windows.items()):
            seen.windows[name] = (start, min(stop, cut_ns))
        if cut_ns <= measure_ns:
            seen.windows.pop("measure", None)
        if seen.backlog is not None:
            seen.backlog.end_ns = cut_ns
        most_s = CERTAIN_DRAIN_S if seen.ending == "certain" else CUT_DRAIN_S
        with suppress(_CutError):
            await self._drain(cut_ns, min(most_s, self.plan.phases.drain_s), cut=True)

    async def _drain(self, start_ns: int, drain_s: float, *, cut: bool = False) -> None:
        """Wait, at most `drain_s`, until messages have their state and late repeats had time."""
        seen, monitor = self._state, self.monitor
        end_ns = start_ns + int(drain_s * NS)
        monitor.enter("drain", end_ns)
        wait = self._unless_insisted if cut else self._step
        try:
            closed = await wait(self._closed(end_ns, cut=cut))
            seen.abandoned = cut and not closed
            if self.plan.reconnect is not None and seen.connected is not None and not cut:
                # A device that was cut off last needs time for its return, too.
                last_ns = time.monotonic_ns() + int(RETURN_S * NS)
                while monitor.page.total("connected") < seen.connected.done:
                    if time.monotonic_ns() >= last_ns:
                        break
                    await self._step(asyncio.sleep(SAMPLE_S))
        finally:
            monitor.stop_sampling()
            seen.windows["drain"] = (start_ns, max(start_ns, time.monotonic_ns()))
        if not closed and not cut:
            # If nothing arrived at its end, a longer drain would not help.
            last_ns = end_ns - int(ARRIVING_SHARE * drain_s * NS)
            seen.at_end = monitor.live_sample()
            if seen.backlog is not None and seen.backlog.last_arrival_ns >= last_ns:
                seen.waiting = seen.at_end.under_way
            if not seen.waiting:
                seen.lost_unacknowledged = await self._lost_unacknowledged()
                seen.lost_to_absent = await self._lost_to_absent()
        seen.owed_at_window_end = seen.owed_at_end = monitor.page.total("owed")
        if monitor.owed_at_window_end:
            seen.owed_at_window_end = sum(monitor.owed_at_window_end.values())

    async def _closed(self, end_ns: int, *, cut: bool) -> bool:
        """Wait for the end of all messages; return True if none is owed or under way."""
        page = self.monitor.page
        while (now_ns := time.monotonic_ns()) < end_ns:
            finished = page.total("finished") == page.workers or (cut and not page.total("owed"))
            if finished and not page.outstanding():
                settle_s = CUT_SETTLE_S if cut else self.plan.phases.settle_s
                await asyncio.sleep(min(settle_s, (end_ns - now_ns) / NS))
                return True
            await asyncio.sleep(SAMPLE_S)
        return False

    async def _lost_unacknowledged(self) -> int | None:
        """Return the missing deliveries of unacknowledged messages, None if unknown."""
        sending = [group for group in self.plan.groups if group.publishes or group.responds]
        if any(sent_qos(group) == 0 for group in sending):
            return None
        answers = await self._answers("unacknowledged")
        messages = [part for answer in answers for part in answer.get("messages", ())]
        complete = answers and all(answer.get("complete") for answer in answers)
        if not complete or len(messages) > QUESTION_MESSAGES:
            return None
        sent = [part for answer in answers for part in answer.get("sent", ())]
        answers = await self._answers("missing", messages=messages, sent=sent)
        named = (LostRange(*part) for answer in answers for part in answer.get("named", ()))
        self._state.lost_named = tuple(sorted(named)[:LOST_LIMIT])
        return sum(int(answer["missing"]) for answer in answers) if answers else None

    async def _lost_to_absent(self) -> int:
        """Return the number of missing deliveries to devices that never connected, 0 if unknown."""
        connected, subscribed = self._state.connected, self._state.subscribed
        if not any(outcome and outcome.failures for outcome in (connected, subscribed)):
            return 0
        streams = [one for part in await self._answers("absent") for one in part.get("streams", ())]
        if not streams or len(streams) > QUESTION_MESSAGES:
            return 0
        answers = await self._answers("sent_on", streams=streams)
        complete = all(answer.get("complete") for answer in answers)
        return sum(int(answer["sent"]) for answer in answers) if complete else 0

    async def _answers(self, question: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the answers of all workers to a question after the drain, [] if one has none."""
        with suppress(LoadgenError, TimeoutError):
            async with asyncio.timeout(QUESTION_TIMEOUT_S):
                return list(await self._step(self.pool.ask_all(question, **fields)))
        return []

    async def _hold(self) -> None:
        start_ns = time.monotonic_ns()
        end_ns = start_ns + int(self.plan.phases.duration_s * NS)
        self.monitor.enter("hold", end_ns)
        try:
            await self._until(end_ns)
        finally:
            self._state.windows["hold"] = (start_ns, min(end_ns, time.monotonic_ns()))

    async def _conclude(self) -> bool:
        """Collect the workers' accounts of the run; return True if its devices can be lent."""
        seen, page, pool = self._state, self.monitor.page, self.pool
        self.monitor.enter("stop")
        timeout_s = stop_timeout_s(self.plan)
        answers = await self._unless_insisted(pool.ask_left("conclude", timeout_s)) or {}
        seen.finals = {row: answer.get("final") or {} for row, answer in answers.items()}
        # An agent that stood still at the end of the window has reported it by now.
        await self.monitor.sample_hosts(pool)
        ended_well = seen.ending in (None, "certain") and not pool.losses
        if not (self.lends and may_be_kept(self.plan) and seen.connected and ended_well):
            return False
        counts = seen.tally.counts()
        devices = sum(group.count for group in self.plan.groups)
        return not (
            counts["expected"] - counts["received"]
            or any(counts[name] for name in _REMAINS)
            or seen.owed_at_end
            or page.total("in_flight")
            or devices - page.total("connected")
            or any(one and one.failures for one in (seen.connected, seen.subscribed))
        )

    async def _stop(self) -> None:
        await self._unless_insisted(self.pool.ask_left("stop", stop_timeout_s(self.plan)))

    async def _step(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raise _CutError if an event ends the run first."""
        early: dict[Ending, asyncio.Event] = {
            "worker lost": self.pool.lost,
            "interrupted": self.interrupt.asked,
            "threshold missed": self.monitor.hopeless,
            "certain": self.monitor.certain,
        }
        if self.plan.phases.stops_at_exception:
            early["exception"] = self.monitor.exception
        task = await finished_or(work, *early.values())
        if not task.cancelled():
            if not self.pool.lost.is_set():
                return task.result()
            with suppress(WorkerLostError):
                task.result()
        self._state.ending = next(why for why, event in early.items() if event.is_set())
        raise _CutError

    async def _until(self, moment_ns: int) -> None:
        await self._step(asyncio.sleep(max(0, moment_ns - time.monotonic_ns()) / NS))

    async def _unless_insisted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, None if a second interrupt ends the wait."""
        task = await finished_or(work, self.interrupt.insisted)
        if not task.cancelled():
            return task.result()
        self.pool.close_grace_s = 0.0
        self._state.ending = "interrupted"
        return None

    def _note_failures(self, kind: str, outcome: Outcome) -> None:
        for reason, count in outcome.failures.items():
            self.monitor.events.write(kind, f"{count} devices: {reason}")
            self.monitor.exception.set()
