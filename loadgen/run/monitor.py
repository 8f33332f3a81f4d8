"""Watches the workers of one run: takes their frames, reads the live page, shows progress."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from loadgen.judge.backlog import BACKLOG_FLOOR_MESSAGES, BacklogSample, tolerated_s
from loadgen.judge.backlog_watch import BacklogWatch
from loadgen.judge.certainty import certain_verdict
from loadgen.judge.ledger import Counted, ledger_of
from loadgen.judge.live_sample import LiveSample
from loadgen.judge.recovery_watch import RecoveryWatch
from loadgen.judge.thresholds import Measured, hopeless
from loadgen.kernels.counting import INTENDED_PHASES
from loadgen.metrics.interval import COUNTERS, Interval
from loadgen.plan.deliveries import delivered_rate, sent_rate
from loadgen.plan.groups import slow_group
from loadgen.plan.plan import Plan
from loadgen.run.host_watch import thinned
from loadgen.run.hosts.worker_pool import WorkerPool
from loadgen.run.interval_files import IntervalWriter
from loadgen.run.progress import Progress, Snapshot
from loadgen.run.run_state import NS, WorkerStall, state_before, timed_groups
from loadgen.run.rundir import EventLog
from loadgen.run.tally import p99_us
from loadgen.run.tasks import background, every
from loadgen.sentences import printable
from loadgen.worker.recorder import decode_intervals, numbers_of
from loadgen.worker.shared_counts import private_page
from loadgen.worker.subscription_marks import SubscriptionMarks

SAMPLE_S = 0.01  # time between two samples of the live page
ANSWERS = ("received", "corrupt", "duplicated", "misrouted", "acknowledged", "refused")
"""Counters of what a broker does in answer to a message."""
EXCEPTIONS = frozenset(("disconnect", "protocol", "refused", "subscribe", "unanswered"))
"""Events that end a run which is to stop at its first exception."""
PROGRESS_S = 0.25
CERTAIN_S = 0.1  # time between two checks if the verdict of a step is certain
BEAT_S = 1.0
_STALLS_LIMIT = 100_000  # limit of the stalls of a run; further ones are not counted
_THRESHOLDS_S = 1.0
"""Time into the window when all workers have reported and thresholds can be checked."""
_ROWS_S = 0.1
"""Time after a full second by which the workers' rows of that second have arrived."""
SILENCE_LIMIT_S = 20.0
"""A worker is lost if its live row does not change for this long, plus a second for each worker per
core."""


class Monitor:
    """The reports of the workers of one run, collected in `state`.

    `page` is the live page, without workers until they are configured. The window of a step ends as
    soon as it is certain that the load holds (True) or not (False), if `ends_when_certain` has it.
    """

    def __init__(
        self,
        plan: Plan,
        events: EventLog,
        intervals: IntervalWriter,
        progress: Progress,
        *,
        ends_when_certain: Collection[bool] = (),
    ) -> None:
        self.state = state_before(plan)
        self.events, self.intervals = events, intervals
        self.page = private_page(0, 0)
        self.marks: SubscriptionMarks | None = None
        self.window_began = asyncio.Event()
        """Set when the measurement begins: the window, or the time for which devices are held."""
        self.exception = asyncio.Event()
        """Set by the first thing that went wrong at a device."""
        self.owed_at_window_end: dict[int, int] = {}
        """Messages that each worker owed as its window ended."""
        self.hopeless = asyncio.Event()
        """Set when a threshold that ends the run cannot hold any more: one of `state.missed`."""
        self.certain = asyncio.Event()
        self.phase = "start"
        self._phase_end_ns: int | None = None
        self._plan = plan
        self._progress = progress
        self._ends_when_certain = () if plan.phases.rates else ends_when_certain
        self._course: list[BacklogSample] = []
        self._abort_on = plan.thresholds if plan.scenario.abort_on_fail else ()
        self._timed = timed_groups(plan)
        groups = plan.groups
        self._publishing = [at for at, group in enumerate(groups) if group.publishes is not None]
        self._subscriptions = sum(group.count for group in groups if group.subscribes is not None)
        self._groups = {group.name: number for number, group in enumerate(groups)}
        self._reported = numbers_of(private_page(len(plan.workers), len(groups)).counts)
        self._fresh: list[Interval] = []
        self._writing: asyncio.Future[None] | None = None
        self._sampling = False
        self._p99_us: float | None = None
        self._rates: deque[tuple[int, int, int]] = deque(maxlen=5)

    def on_frame(self, row: int, header: dict[str, Any], block: bytes) -> None:
        """Take a frame that answers no command; a malformed one becomes an event."""
        try:
            match header:
                case {"interval": _}:
                    for interval in decode_intervals(header, block, **self._of(row)):
                        if interval.series == "" and interval.group:
                            place = self._groups[interval.group]
                            phase = INTENDED_PHASES.index(interval.phase)
                            counts = [getattr(interval, name) for name in COUNTERS]
                            self._reported[row][place, phase] += counts
                        self._add(interval)
                case {"stalls": stalls}:
                    room = _STALLS_LIMIT - len(self.state.stalls)
                    host = self._plan.workers[row].host
                    found = [WorkerStall(row, *map(int, times)) for times in stalls[:room]]
                    self.state.stalls += [replace(stall, host=host) for stall in found]
                case {"event": event}:
                    self._on_event(row, event)
                case {"window_end": end}:
                    self.owed_at_window_end[row] = int(end)
        except (KeyError, TypeError, ValueError) as error:
            self.events.write("bad_frame", f"{type(error).__name__}: {error}", row)

    def _of(self, row: int) -> dict[str, Any]:
        return {"run": self.intervals.run, "host": self._plan.workers[row].host, "worker": row}

    def _add(self, interval: Interval) -> None:
        self.state.tally.add(interval)
        if self.state.rate_steps is not None:
            self.state.rate_steps.add(interval)
        self._fresh.append(interval)

    def _on_event(self, row: int, event: dict[str, Any]) -> None:
        kind, detail = str(event["kind"]), str(event.get("detail") or "")
        if kind == "disconnect" and not self.state.disconnect_reason:
            self.state.disconnect_reason = printable(detail, 100)
        if kind in EXCEPTIONS:
            self.exception.set()
        group = str(event.get("group") or "")
        device, time_ns = event.get("device"), int(event["time_ns"])
        self.events.write(kind, detail, row, time_ns=time_ns, group=group, device=device)

    def settle_lost(self, row: int) -> None:
        """Add what a lost worker had counted and could not report; after its last frame."""
        if row >= self.page.workers:
            return
        counts = numbers_of(self.page.counts[row])
        unreported = counts - self._reported[row]
        self._reported[row] = counts
        now_ns = time.monotonic_ns()
        beat_ns = int(self.page.totals["beat_ns"][row]) or now_ns
        second = (beat_ns - self.intervals.anchor_ns) // NS
        moment = Interval(second=second, time_ns=beat_ns, span_ns=now_ns - beat_ns, **self._of(row))
        for group, number in self._groups.items():
            for phase, counted in zip(INTENDED_PHASES, unreported[number].tolist(), strict=True):
                if any(counted):
                    values = dict(zip(COUNTERS, counted, strict=True))
                    self._add(replace(moment, group=group, phase=phase, **values))

    def enter(self, phase: str, end_ns: int | None = None) -> int:
        """Note the phase, which is to end at `end_ns`; return the moment."""
        self.phase, self._phase_end_ns = phase, end_ns
        now_ns = time.monotonic_ns()
        self.events.write("phase", phase, time_ns=now_ns)
        if phase in ("measure", "hold"):
            self.window_began.set()
        return now_ns

    def watch_window(self, start_ns: int, end_ns: int) -> None:
        """Sample unsent messages and those in flight, from now until the drain has ended."""
        devices = self.state.connected.done if self.state.connected else 0
        self.state.backlog = BacklogWatch(start_ns, end_ns, devices)
        self._sampling = True

    def stop_sampling(self) -> None:
        """Take the last sample: deliveries that are missing now are lost."""
        self._sample()
        self._sampling = False

    def watch_recovery(self, *, by_command: bool) -> None:
        """Watch the return of devices and messages from a crash, from now on."""
        page, backlog = self.page, self.state.backlog
        self.state.recovery = RecoveryWatch(
            time.monotonic_ns(),
            page.total("connected"),
            0 if backlog is None else backlog.high_water_mark,
            by_command=by_command,
            lost_before=page.counted("disconnects"),
        )

    def devices_of(self, row: int) -> int:
        return sum(share.count for share in self._plan.workers[row].shares)

    def live_sample(self) -> LiveSample:
        page = self.page
        # Answers first: those that arrive while the page is read must not exceed what was due.
        answered = sum(map(page.counted, ANSWERS))
        received = page.counted("received")
        time_ns = time.monotonic_ns()
        under_way, owed = self._under_way(time_ns), page.total("owed")
        expected = page.counted("expected")
        marks = None if self.marks is None else self.marks.most()
        most, waits = marks or (None, 0.0)
        if self._subscriptions == 1:
            most = under_way
        return LiveSample(
            time_ns=time_ns,
            connected=page.total("connected"),
            sent=page.counted("sent"),
            begun=page.counted("sent", self._publishing),
            expected=expected + page.total("lined_up"),
            received=received,
            owed=owed,
            under_way=under_way,
            due=expected + owed,
            answered=answered,
            most=most,
            # Messages of slow subscribers wait on request.
            waits=0.0 if slow_group(self._plan.groups) else waits,
        )

    def _under_way(self, time_ns: int) -> int:
        """Return the deliveries under way without those that wait for slow subscribers."""
        page, backlog, groups = self.page, self.state.backlog, self._plan.groups
        slow = slow_group(groups)
        if slow is None or backlog is None:
            return page.under_way()
        # This includes messages that slow subscribers never get.
        due = round(page.counted("sent") * slow.count / slow.topic_count)
        waiting = due - page.counted("received", [self._groups[slow.name]])
        if time_ns <= backlog.end_ns:
            self.state.slow_waited = max(waiting, 0)
        return max(page.outstanding() - waiting, 0)

    def watching(self, pool: WorkerPool) -> AbstractAsyncContextManager[None]:
        work = [self._beat(pool), every(PROGRESS_S, self._show), every(SAMPLE_S, self._sample)]
        if self._ends_when_certain:
            work.append(every(CERTAIN_S, self._look_at_certainty))
        return background(*work)

    async def _beat(self, pool: WorkerPool) -> None:
        """Send a sign of life, write rows, and look for silent workers, each second."""
        # Many workers on few cores are each heard less often.
        limit_s = SILENCE_LIMIT_S + len(self._plan.workers) / (os.cpu_count() or 1)
        while True:
            pool.beat()
            await self.sample_hosts(pool)
            now_ns = time.monotonic_ns()
            for row in pool.alive if self.page.workers and self.phase != "stop" else ():
                beat_ns = int(self.page.totals["beat_ns"][row])
                if beat_ns and now_ns - beat_ns > limit_s * NS:
                    pool.lose(row, f"was silent for {limit_s:.0f} s")
            await self.flush()
            self._look_at_thresholds()
            # In step with the seconds of the rows: a killed run has all but the last one or two.
            since_s = (time.monotonic_ns() - self.intervals.anchor_ns) / NS
            await asyncio.sleep(BEAT_S - (since_s - _ROWS_S) % BEAT_S)

    async def sample_hosts(self, pool: WorkerPool) -> None:
        # In a thread: with many workers it takes longer than the watch may stand still.
        for host, sample in (await asyncio.to_thread(pool.samples)).items():
            self.state.hosts[host] = thinned([*self.state.hosts.get(host, ()), sample])

    async def flush(self) -> None:
        """Write the rows that have come since the last time."""
        # One write at a time, and none left behind: the beat can be cancelled in the middle of one.
        await self._written()
        rows, self._fresh = self._fresh, []
        latest = [r for r in rows if r.series == "end_to_end" and r.group in self._timed]
        if latest:
            self._p99_us = p99_us(latest)
        if rows:
            second = (time.monotonic_ns() - self.intervals.anchor_ns) // NS
            work = asyncio.to_thread(self.intervals.write, second, rows)
            self._writing = asyncio.ensure_future(work)
            await self._written()

    async def _written(self) -> None:
        """Wait for the write under way; a caller that is cancelled leaves it to the next one."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))
            self._writing.result()

    def _look_at_thresholds(self) -> None:
        """End a run in its window if a threshold can no longer hold."""
        if not self._abort_on or self.phase != "measure" or self.hopeless.is_set():
            return
        window_s = (time.monotonic_ns() - self.state.windows["measure"][0]) / NS
        if window_s >= _THRESHOLDS_S:
            tally = self.state.tally
            counted = ledger_of(Counted(tally.counts("measure")), observed=False)
            so_far = Measured(tally.latencies(), counted, None, window_s)
            self.state.missed = hopeless(self._abort_on, so_far)
            if self.state.missed:
                self.hopeless.set()

    def _sample(self) -> None:
        """Pass a sample to all watches, within the window and its drain."""
        self.state.attendance.turn()
        if not self._sampling:
            return
        sample, seen = self.live_sample(), self.state
        if self._ends_when_certain and self.phase == "measure":
            self._course.append((sample.time_ns, sample.owed, sample.under_way))
        for watch in (seen.backlog, seen.recovery, seen.rate_steps):
            if watch is not None:
                watch.sample(sample)

    def _look_at_certainty(self) -> None:
        backlog = self.state.backlog
        if self.certain.is_set() or self.phase != "measure" or backlog is None:
            return
        deliveries_per_s = delivered_rate(self._plan.groups, self._plan.separate_count)
        window_s = (backlog.end_ns - backlog.start_ns) / NS
        tolerated = max(BACKLOG_FLOOR_MESSAGES, tolerated_s(window_s) * deliveries_per_s)
        bound_s, late = self._plan.scenario.latency_bound, 0
        if bound_s is not None:
            late = self.state.tally.above("measure", "end_to_end", bound_s * NS)
        groups = self._plan.groups
        answers_per_s = sum(sent_rate(one, groups) for one in groups if one.responds is not None)
        late_share = late / max((deliveries_per_s + answers_per_s) * window_s, 1.0)
        verdict = certain_verdict(self._course, window_s, tolerated, late_share)
        if verdict in self._ends_when_certain:
            self.certain.set()

    def _show(self) -> None:
        page = self.page
        if not page.workers:
            return
        now_ns = time.monotonic_ns()
        sent, received = page.counted("sent"), page.counted("received")
        self._rates.append((now_ns, sent, received))
        before_ns, sent_before, received_before = self._rates[0]
        seconds = max((now_ns - before_ns) / NS, 1e-9)
        left = self._phase_end_ns
        snapshot = Snapshot(
            phase=self.phase,
            devices=sum(map(self.devices_of, range(len(self._plan.workers)))),
            connected=page.total("connected"),
            failed=page.total("connect_failures"),
            sent_per_s=(sent - sent_before) / seconds,
            received_per_s=(received - received_before) / seconds,
            backlog=page.total("owed") + page.under_way(),
            p99_us=self._p99_us,
            left_s=None if left is None else (left - now_ns) / NS,
        )
        self._progress(snapshot)
