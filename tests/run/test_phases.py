import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from loadgen.errors import BrokerRefusedError
from loadgen.kernels.counting import MEASURE, WARMUP
from loadgen.metrics.interval import Interval
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, WorkerPlan
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.run.hosts.worker_pool import WorkerPool, start_workers
from loadgen.run.interrupt import Interrupt
from loadgen.run.interval_files import IntervalWriter
from loadgen.run.monitor import Monitor
from loadgen.run.phases import PhaseRunner, connecting_at_once, schedule_lead_s
from loadgen.run.progress import Snapshot
from loadgen.run.run_state import NS, RunState
from loadgen.run.rundir import EventLog, claim
from loadgen.run.tasks import background
from loadgen.worker.shared_counts import private_page
from tests.plans import small_plan
from tests.refusals import refused
from tests.run_files import events, rows
from tests.tables import rows_of

ENTRY = "tests.run.fake_worker:run_worker"
PHASES = PhasePlan(warmup_s=0.1, duration_s=0.6, drain_s=3.0)


def plan_of(workers: int = 2, *, messages: bool = True) -> Plan:
    publishes = Publishes("t/{topic}", 1000.0)
    groups: tuple[DeviceGroup, ...] = (DeviceGroup("devices", 30),)
    if messages:
        subscribes = Subscribes(("t/{topic}",))
        subscribers = DeviceGroup("subscribers", 20, None, subscribes, topics=10)
        groups = (DeviceGroup("publishers", 10, publishes), subscribers)
    shares = [
        tuple(Share(index, row, group.count, workers) for index, group in enumerate(groups))
        for row in range(workers)
    ]
    return small_plan(groups, workers=tuple(map(WorkerPlan, range(workers), shares)), run_tag=7)


@dataclass
class Played:
    state: RunState
    directory: Path
    pool: WorkerPool
    snapshots: list[Snapshot]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return rows(self.directory)

    @property
    def events(self) -> list[dict[str, Any]]:
        return events(self.directory)


Play = Callable[..., Any]


@contextmanager
def monitored(
    directory: Path, plan: Plan | None = None, writer: type[IntervalWriter] = IntervalWriter
) -> Iterator[Monitor]:
    events = EventLog(directory)
    intervals = writer(directory, "r", time.monotonic_ns())
    yield Monitor(plan or plan_of(), events, intervals, lambda snapshot: None)
    events.close()


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    async def play(
        plan: Plan | None = None,
        phases: PhasePlan = PHASES,
        interrupt: Interrupt | None = None,
        during: Callable[[Played], Any] | None = None,
        ends_when_certain: tuple[bool, ...] = (),
        **wrong: object,
    ) -> Played:
        plan = replace(plan or plan_of(), phases=phases)
        monkeypatch.setenv("FAKE_WORKER", json.dumps(wrong))
        directory = claim(tmp_path / "run")
        events = EventLog(directory, ["s3cret"])
        snapshots: list[Snapshot] = []
        intervals = IntervalWriter(directory, "run-1", time.monotonic_ns())
        certain = {"ends_when_certain": ends_when_certain}
        monitor = Monitor(plan, events, intervals, snapshots.append, **certain)
        workers = len(plan.workers)
        async with start_workers(workers, monitor.on_frame, entry=ENTRY) as pool:
            played = Played(monitor.state, directory, pool, snapshots)
            async with background(*([during(played)] if during else [])):
                try:
                    await PhaseRunner(plan, pool, monitor, interrupt or Interrupt()).play()
                finally:
                    events.close()
        return played

    return play


async def test_phases_counts_and_rows_of_an_ordinary_run(play: Play) -> None:
    played = await play(phases=replace(PHASES, warmup_s=0.6, duration_s=2.0))
    state = played.state
    assert state.ending is None
    assert list(state.windows) == ["connect", "subscribe", "warmup", "measure", "drain"]
    start, end = state.windows["measure"]
    assert end - start == 2_000_000_000
    assert state.windows["warmup"][1] == start
    assert state.windows["drain"][0] == end
    assert state.connected.done == 30
    measured = state.tally.counts("measure")
    assert measured["sent"] == pytest.approx(2000, abs=4)
    assert measured["received"] == measured["expected"] == 2 * measured["sent"]
    rows = [r for r in played.rows if r["phase"] == "measure" and r["group"] and not r["series"]]
    assert sum(r["sent"] for r in rows) == measured["sent"]
    assert {r["worker"] for r in played.rows} == {0, 1}
    assert {r["run"] for r in played.rows} == {"run-1"}
    assert state.tally.series["measure", "end_to_end"].count == measured["received"]
    assert 0 < state.tally.busy_share_max() < 0.2
    assert state.owed_at_window_end == 0
    assert state.finals == {0: {"devices": 15}, 1: {"devices": 15}}
    phases = {snapshot.phase for snapshot in played.snapshots}
    assert {"measure", "warm-up"} <= phases
    assert any(s.sent_per_s > 500 and s.p99_us for s in played.snapshots)
    entered = [event["detail"] for event in played.events if event["kind"] == "phase"]
    assert entered == ["configure", "connect", "subscribe", "warm-up", "measure", "drain", "stop"]


async def test_drain_ends_when_all_arrived_and_lasts_when_some_did_not(play: Play) -> None:
    phases = replace(PHASES, drain_s=0.7)
    played = await play(phases=replace(phases, duration_s=1.5), lose=50)
    start, end = played.state.windows["drain"]
    assert end - start >= 700_000_000
    measured = played.state.tally.counts("measure")
    assert measured["expected"] - measured["received"] == 100
    backlog = played.state.backlog
    assert backlog is not None and backlog.high_water_mark >= 100
    opened, closed = played.state.windows["measure"]
    assert len(backlog.samples()) >= 20
    assert all(opened <= at <= closed for at, _, _ in backlog.samples())
    # What never arrived held nothing up.
    assert max(outstanding for _, _, outstanding in backlog.samples()) < 100
    assert not played.state.abandoned


@pytest.mark.parametrize(("qos", "told"), [(0, None), (1, 12)])
async def test_of_what_is_lost_it_is_asked_what_was_acknowledged(
    play: Play, qos: int, told: int | None
) -> None:
    plan = plan_of()
    publishing = plan.groups[0]
    assert publishing.publishes is not None
    publishes = replace(publishing.publishes, qos=qos)
    plan = replace(plan, groups=(replace(publishing, publishes=publishes), *plan.groups[1:]))
    played = await play(plan, phases=replace(PHASES, drain_s=0.3), lose=50, unknown=3)
    # Both workers say three, and each misses all six.
    assert played.state.lost_unacknowledged == told


@pytest.mark.parametrize(("drain_s", "settle_s"), [(600.0, 0.3), (0.3, 600.0)])
async def test_late_repeats_have_their_time_within_the_drain(
    play: Play, drain_s: float, settle_s: float
) -> None:
    played = await play(phases=replace(PHASES, drain_s=drain_s, settle_s=settle_s))
    start, end = played.state.windows["drain"]
    assert 300_000_000 <= end - start < 600_000_000_000


def test_many_workers_have_longer_to_hear_of_messages_that_are_judged() -> None:
    leads = [schedule_lead_s(workers, 0.0) for workers in (1, 2, 11, 50)]
    assert leads == pytest.approx([0.1, 0.11, 0.2, 0.3])
    assert schedule_lead_s(50, 1.0) == schedule_lead_s(1, 1.0) == 0.1


@pytest.mark.parametrize("op", ["configure", "connect", "subscribe", "start"])
async def test_worker_that_dies_before_the_window_ends_the_run(play: Play, op: str) -> None:
    played = await play(die=op, row=1)
    assert played.state.ending == "worker lost"
    assert [loss.worker for loss in played.pool.losses] == [1]
    assert "measure" not in played.state.windows
    assert any(e["kind"] == "worker_lost" and e["worker"] == 1 for e in played.events)


async def test_worker_that_dies_in_the_window_cuts_it(play: Play) -> None:
    played = await play(phases=replace(PHASES, duration_s=300.0), die="measure", row=0)
    state = played.state
    assert state.ending == "worker lost"
    start, end = state.windows["measure"]
    assert 0 < end - start < 300_000_000_000
    assert state.windows["drain"][0] == end
    assert state.tally.counts("measure")["received"] > 0
    assert "SIGKILL" in played.pool.losses[0].detail


async def test_a_step_ends_as_soon_as_its_verdict_is_certain(play: Play) -> None:
    played = await play(phases=replace(PHASES, duration_s=300.0), ends_when_certain=(True,))
    state = played.state
    assert state.ending == "certain" and not state.abandoned
    start, end = state.windows["measure"]
    assert 1_000_000_000 <= end - start < 30_000_000_000
    measured = state.tally.counts("measure")
    assert measured["sent"] == pytest.approx((end - start) * 1000 / 1e9, abs=4)
    assert measured["received"] == measured["expected"]


async def test_a_step_ends_as_soon_as_enough_was_late(play: Play) -> None:
    scenario = plan_of().scenario.model_copy(update={"latency_bound": 1e-6})
    plan = replace(plan_of(), scenario=scenario)
    played = await play(plan, replace(PHASES, duration_s=60.0), ends_when_certain=(False,))
    start, end = played.state.windows["measure"]
    assert played.state.ending == "certain" and end - start < 30_000_000_000


async def reached(phase: str, played: Played) -> None:
    while not any(snapshot.phase == phase for snapshot in played.snapshots):
        await asyncio.sleep(0.01)


async def interrupt_in(phase: str, interrupt: Interrupt, played: Played, times: int = 1) -> None:
    await reached(phase, played)
    await asyncio.sleep(0.3)
    for _ in range(times):
        interrupt.request()


@pytest.mark.parametrize("phase", ["warm-up", "measure"])
async def test_interrupt_keeps_what_was_measured(play: Play, phase: str) -> None:
    interrupt = Interrupt()
    long: dict[str, Any] = {"warmup_s" if phase == "warm-up" else "duration_s": 300.0}
    played = await play(
        phases=replace(PHASES, **long),
        interrupt=interrupt,
        during=lambda played: interrupt_in(phase, interrupt, played),
    )
    state = played.state
    assert (state.ending, played.pool.losses) == ("interrupted", [])
    start, end = state.windows["warmup" if phase == "warm-up" else "measure"]
    assert end - start < 300_000_000_000
    assert ("measure" in state.windows) == (phase == "measure")
    measured = state.tally.counts("measure")
    assert measured["received"] == measured["expected"]
    if phase == "measure":
        assert measured["sent"] == pytest.approx((end - start) * 1000 / 1e9, abs=4)
        assert state.finals.keys() == {0, 1}
        assert not state.abandoned


async def test_interrupt_while_connecting_keeps_who_connected(play: Play) -> None:
    interrupt = Interrupt()
    played = await play(
        interrupt=interrupt,
        during=lambda played: interrupt_in("connect", interrupt, played),
        slow_connect=True,
    )
    assert played.state.ending == "interrupted"
    assert played.state.connected.done == 30
    start, end = played.state.windows["connect"]
    assert start < end
    assert list(played.state.windows) == ["connect"]


async def test_second_interrupt_does_not_wait_for_a_deaf_worker(play: Play) -> None:
    interrupt = Interrupt()
    played = await play(
        phases=replace(PHASES, duration_s=300.0),
        interrupt=interrupt,
        during=lambda played: interrupt_in("measure", interrupt, played, times=2),
        deaf=True,
    )
    assert played.state.ending == "interrupted"
    assert played.state.finals == {}


async def test_silent_worker_is_lost(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.run.monitor.SILENCE_LIMIT_S", 0.5)

    async def freeze(played: Played) -> None:
        await reached("measure", played)
        os.kill(played.pool.pids[1], signal.SIGSTOP)

    played = await play(phases=replace(PHASES, duration_s=300.0), during=freeze)
    assert played.state.ending == "worker lost"
    assert [loss.worker for loss in played.pool.losses] == [1]
    assert "silent" in played.pool.losses[0].detail


async def test_error_of_a_worker_ends_the_run_as_that_error(play: Play) -> None:
    with refused("SUBSCRIBE", BrokerRefusedError):
        await play(refuse={"subscribe": "BrokerRefusedError"})


async def test_connections_alone_are_held(play: Play) -> None:
    played = await play(plan=plan_of(messages=False), phases=replace(PHASES, duration_s=0.5))
    state = played.state
    assert list(state.windows) == ["connect", "hold"]
    assert state.connected.done == 30
    assert state.tally.counts("measure") == {}


async def test_events_are_escaped_and_hold_no_secret(play: Play) -> None:
    played = await play(say="\x1b[2Jpassword s3cret\n" + "x" * 10_000)
    odd = [event for event in played.events if event["kind"] == "odd"]
    assert len(odd) == 2
    assert odd[0]["detail"].startswith("\\x1b[2Jpassword ***\\n")
    assert len(odd[0]["detail"]) <= 510


def test_what_a_lost_worker_had_counted_and_not_reported_is_counted_once(tmp_path: Path) -> None:
    common = {"series": "", "second": 0, "time_ns": 1, "span_ns": 1}
    rows = [
        common | {"group": "publishers", "phase": "measure", "sent": 50},
        common | {"group": "subscribers", "phase": "measure", "received": 60},
        common | {"group": "", "phase": "measure", "cpu_ns": 1},
    ]
    with monitored(tmp_path) as monitor:
        monitor.settle_lost(1)  # before there is a page
        monitor.page = private_page(2, 2)
        counts = monitor.page.counts[1]
        counts[0][MEASURE].sent = 70
        counts[1][MEASURE].received = 60
        counts[1][WARMUP].received = 5
        monitor.page.counts[0][1][MEASURE].received = 1000  # of a worker that goes on
        monitor.on_frame(1, {"interval": rows, "buckets": 0}, b"")
        for _ in range(2):
            monitor.settle_lost(1)
            tally = monitor.state.tally
            assert tally.counts("measure") == {"sent": 70, "received": 60}
            assert tally.counts("warmup") == {"received": 5}


def test_what_is_dropped_for_slow_subscribers_hides_no_backlog_of_others(tmp_path: Path) -> None:
    plan = plan_of()
    publishing, fast = plan.groups
    asked = Subscribes(("t/{topic}",), read_rate=1_000.0)
    plan = replace(plan, groups=(publishing, fast, replace(fast, name="slow", subscribes=asked)))
    to_slow = 100 * plan.groups[2].count // plan.groups[2].topic_count
    with monitored(tmp_path, plan) as monitor:
        monitor.page = private_page(1, 3)
        monitor.watch_window(0, time.monotonic_ns() + 3600 * NS)
        counts = monitor.page.counts[0]
        counts[0][MEASURE].sent = 100
        counts[1][MEASURE].expected = 1000
        counts[1][MEASURE].received = 700
        counts[2][MEASURE].expected = to_slow
        monitor.page.totals[0].missing = to_slow - 1  # a later one has come
        counts[2][MEASURE].received = 1
        monitor.stop_sampling()
    backlog = monitor.state.backlog
    assert backlog is not None and backlog.high_water_mark == 300
    assert monitor.state.slow_waited == to_slow - 1


async def test_writes_follow_each_other_though_the_beat_is_cancelled(tmp_path: Path) -> None:
    under_way: list[str] = []
    written: list[list[str]] = []

    class SlowWriter(IntervalWriter):
        def write(self, second: int, rows: Sequence[Interval]) -> None:
            under_way.append("write")
            time.sleep(0.1)
            assert under_way == ["write"]
            under_way.clear()
            written.append([row.group for row in rows])

    def fresh(group: str) -> None:
        row = {"group": group, "phase": "measure", "series": "", "second": 0, "time_ns": 1}
        monitor.on_frame(0, {"interval": [row | {"span_ns": 1}], "buckets": 0}, b"")

    with monitored(tmp_path, writer=SlowWriter) as monitor:
        fresh("publishers")
        beat = asyncio.ensure_future(monitor.flush())
        while not under_way:
            await asyncio.sleep(0)
        beat.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beat
        fresh("subscribers")
        await monitor.flush()
    assert written == [["publishers"], ["subscribers"]]


@pytest.mark.parametrize("phase", ["measure", "drain"])
async def test_a_threshold_ends_the_window_and_not_the_drain(tmp_path: Path, phase: str) -> None:
    pool = Mock(WorkerPool, alive=(), samples=dict)
    plan = plan_of()
    asked = {"require": ("foreign==0",), "abort_on_fail": True}
    plan = replace(plan, scenario=plan.scenario.model_copy(update=asked))
    now_ns = time.monotonic_ns()
    with monitored(tmp_path, plan) as monitor:
        monitor.state.windows["measure"] = (now_ns - 2 * NS, now_ns)
        monitor.state.tally.add(Interval(group="subscribers", phase="measure", foreign=1))
        monitor.enter(phase)
        async with monitor.watching(pool):
            await asyncio.sleep(0.05)
    assert monitor.hopeless.is_set() == bool(monitor.state.missed) == (phase == "measure")


@pytest.mark.parametrize(("at_once", "workers", "in_flight", "rate"), rows_of("run.connecting"))
def test_few_workers_connect_at_once(
    monkeypatch: pytest.MonkeyPatch, workers: int, in_flight: int, rate: float | None, at_once: int
) -> None:
    monkeypatch.setattr("loadgen.run.phases.os.cpu_count", lambda: 2)
    phases = replace(PHASES, in_flight=in_flight, connect_rate=rate)
    assert connecting_at_once(workers, phases) == at_once
