"""Runs one scenario: startup, main loop, shutdown.

What cannot work is refused before anything is written; from then on run.json says what is known,
so that a killed run can still be read.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.brokers.ports import is_local
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import resolve
from loadgen.errors import LoadgenError
from loadgen.judge.facts import RunFacts
from loadgen.judge.rate_step_verdict import RateStepVerdict, with_rate_steps
from loadgen.judge.verdict import Remark, Verdict, judge
from loadgen.plan.case import Evidence
from loadgen.plan.groups import RunPlan
from loadgen.plan.scenario import Scenario
from loadgen.plan.workload import Workload
from loadgen.run.bridge_load import Loads, loads_of
from loadgen.run.broker_provider import provided, trusting
from loadgen.run.compaction import compact
from loadgen.run.crashes import crash_brokers, cut_off_consumer, run_crash_command
from loadgen.run.devices_file import write_devices
from loadgen.run.disk import disk_errors
from loadgen.run.facts import facts_of, rate_step_verdicts
from loadgen.run.hosts.forkserver_process import Forkserver, forkserver
from loadgen.run.hosts.remote_host import Hosts
from loadgen.run.hosts.worker_pool import WorkerPool, start_workers
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.monitor import Monitor, Record
from loadgen.run.phases import Kept, PhaseRunner
from loadgen.run.preflight import (
    check_broker,
    check_host,
    require_hosts,
    tls_context,
    with_payload_size,
)
from loadgen.run.progress import Progress, Snapshot, reported, silent
from loadgen.run.run_document import RunDocument, run_document
from loadgen.run.rundir import EventLog, IntervalWriter, claim, release, require_free
from loadgen.run.seal import seal
from loadgen.run.secrets import known_secrets, take_secrets, with_login, with_passphrase
from loadgen.run.stage import Cast, Stage, staged
from loadgen.run.targets import plan_for
from loadgen.run.tasks import beside
from loadgen.run.watched import watched_broker
from loadgen.run.window import course, window_rows


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that was played. `measured` is whether its measurement window began; `facts` are what
    the verdict was made of, `steps` its rate steps."""

    directory: Path
    verdict: Verdict
    interrupted: bool
    measured: bool
    facts: RunFacts
    steps: tuple[RateStepVerdict, ...] = ()

    @property
    def exit_status(self) -> int:
        """Exit status of the contract."""
        if self.interrupted:
            return 130
        if not self.measured:
            return 3
        return 0 if self.verdict.valid else 1


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be played, where it is written, and who watches."""

    workload: Workload
    directory: Path
    progress: Progress
    interrupt: Interrupt
    command: Sequence[str]
    server: Forkserver | None = None
    hosts: Hosts | None = None
    stage: Stage = field(default_factory=partial(Stage, keeps=False))


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run whose brokers and workers are ready."""

    workload: Workload
    plan: RunPlan
    broker: ServedBroker
    directory: Path
    document: RunDocument
    events: EventLog
    monitor: Monitor
    pool: WorkerPool
    loads: Loads
    request: RunRequest
    kept: Kept | None = None
    broken: dict[str, Any] = field(default_factory=dict)


async def run(
    scenario: Scenario,
    directory: Path,
    *,
    progress: Progress = silent,
    interrupt: Interrupt | None = None,
    command: Sequence[str] = (),
    server: Forkserver | None = None,
    hosts: Hosts | None = None,
    stage: Stage | None = None,
) -> RunResult:
    """Play the scenario and fill the run directory, which must not exist or be empty.

    `server` is a forkserver for the workers that was started before. `hosts` have the workers
    instead of this machine.
    `stage` has what an earlier run left for this one, and gets what this one leaves.
    Raises LoadgenError where the run could not be played; then nothing is left in the directory.
    RunInterruptedError: `interrupt` came before the first connection.
    """
    interrupt = interrupt or Interrupt()
    take_secrets(scenario.plain())
    workload = with_passphrase(resolve(with_payload_size(scenario)))
    with disk_errors():
        async with staged(stage, keeps=False) as on:
            request = RunRequest(
                *(workload, directory, progress, interrupt, command),
                *(server, hosts, on),
            )
            try:
                async with AsyncExitStack() as stack:
                    async with _unless_asked(interrupt):
                        if hosts is not None:
                            await hosts.check(scenario)
                        context = await startup(request, stack)
                    kept = await main_loop(context)
                    result = await shutdown(context)
            except BaseException:
                await on.clear()
                raise
            if kept is None:
                await on.clear()
            else:
                on.leave(Cast(context.workload, context.plan, context.broker, context.pool, kept))
        # Nothing of the results is written from here on.
        await asyncio.to_thread(_close, directory)
    return result


def _close(directory: Path) -> None:
    compact(directory)
    seal(directory)


async def startup(request: RunRequest, stack: AsyncExitStack) -> RunContext:
    """Everything before the first connection; `stack` ends what no other run can have."""
    workload, directory, progress = request.workload, request.directory, request.progress
    hosts, stage = request.hosts, request.stage
    require_hosts(workload, None if hosts is None else hosts.machines)
    check_host(workload)
    require_free(directory)
    server: Forkserver | None = None
    cast = await stage.cast_for(workload, hosts)
    if cast is None:
        await stage.clear(progress)
        if hosts is None:
            # The workers' kernels are loaded while the broker starts.
            own = forkserver(workload.case.behaviour)
            server = request.server or stage.stack.enter_context(own)
        cast = await _new_cast(request)
    workload, plan, broker = cast.workload, cast.plan, cast.broker
    claim(directory)
    stack.callback(release, directory)
    events = EventLog(directory, (*broker.secrets, *known_secrets()))
    stack.callback(lambda: events.close(time.monotonic_ns()))
    document = run_document(workload, plan, broker, directory, request.command, hosts)
    progress(Snapshot("workers"))
    if workload.report_every_s is not None:
        progress = reported(progress, events, workload.report_every_s)
    intervals = IntervalWriter(directory, document.run)
    record = Record(document.run, document.anchor_ns, events, intervals)
    abort_on = workload.thresholds if workload.abort_on_fail else ()
    monitor = Monitor(plan, record, progress, abort_on)
    about = {"run": document.run, "case": workload.case.name, "broker": broker.name}
    if workload.metrics is not None:
        from loadgen.run.live_metrics import served_metrics  # what few runs need

        stack.enter_context(served_metrics(workload.metrics, plan, monitor, about, directory))
    if workload.otlp is not None:
        from loadgen.run.otlp import sent_metrics

        await stack.enter_async_context(sent_metrics(workload.otlp, plan, monitor, about))
    await stack.enter_async_context(_watched(request, plan, broker, events))
    bridged = broker.pids if workload.brokers.bridge is not None else ()
    loads = await stack.enter_async_context(loads_of(bridged))
    pool = cast.pool
    if pool is None:
        making = start_workers(
            len(plan.workers),
            monitor.on_frame,
            server=server,
            on_compiled=lambda *done: progress(Snapshot("compiling", compiled=done)),
            hosts=() if hosts is None else hosts.playing(plan),
        )
        pool = await stage.stack.enter_async_context(making)
    pool.on_frame = monitor.on_frame
    stack.callback(pool.deafen)
    return RunContext(
        *(workload, plan, broker, directory, document, events, monitor, pool, loads),
        request,
        cast.kept,
    )


async def _new_cast(request: RunRequest) -> Cast:
    """The brokers and the plan of a run whose workers are still to be made."""
    workload, hosts = request.workload, request.hosts
    request.progress(Snapshot("broker"))
    broker = await request.stage.stack.enter_async_context(provided(workload))
    broker = with_login(broker, workload.given)
    workload = trusting(workload, broker.authority)
    plan = await plan_for(workload, broker.endpoints, None if hosts is None else hosts.offers)
    broker = await check_broker(workload, plan, broker)
    if hosts is not None:
        await hosts.reach(plan)
    return Cast(workload, plan, broker)


def _watched(
    request: RunRequest, plan: RunPlan, broker: ServedBroker, events: EventLog
) -> AbstractAsyncContextManager[None]:
    """Watches the broker of this run for the length of the block."""
    return watched_broker(
        request.directory,
        events,
        name=broker.name,
        endpoints=[one.endpoints[0] for one in broker.brokers] or broker.endpoints,
        # Asked for each time: a broker that crashes on request comes back as another process.
        own_pids=(lambda: broker.pids) if broker.started_by_us else None,
        broker_pid=request.workload.broker_pid,
        # A message that is forwarded is counted by two brokers.
        counts=request.workload.brokers.bridge is None,
        tls_context=tls_context(plan),
    )


async def main_loop(context: RunContext) -> Kept | None:
    """All phases; what is broken on request is broken beside them. What another run can have."""
    window_began = asyncio.Event()

    def measuring() -> None:
        context.document.write_unfinished(context.monitor.state)
        window_began.set()

    phases = PhaseRunner(
        context.plan,
        context.workload.phases,
        context.pool,
        context.monitor,
        context.request.interrupt,
        measuring,
        context.kept,
        keeps=context.request.stage.keeps and not context.workload.crash,
    )
    context.document.write_begun(connects=context.kept is None)
    try:
        async with beside(_crash(context, window_began)):
            return await phases.play()
    except LoadgenError:
        if not context.monitor.state.measured:
            context.document.discard()
        raise


async def _crash(context: RunContext, window_began: asyncio.Event) -> None:
    """Break within the window what the workload says."""
    workload, events, broken = context.workload, context.events, context.broken
    await window_began.wait()
    after_s = workload.crash_after_s
    await asyncio.sleep(workload.phases.duration_s / 2 if after_s is None else after_s)
    if workload.crash == "consumer":
        with suppress(LoadgenError, OSError):  # what goes wrong here shows in the run itself
            broken.update(await cut_off_consumer(context.pool, context.plan, events))
    if workload.crash != "broker":
        return
    command = workload.crash_command
    broken["killed_ns"] = time.monotonic_ns()
    context.monitor.watch_recovery(by_command=command is not None)
    try:
        if command is None:
            await crash_brokers(context.broker.brokers, events)
        else:
            await run_crash_command(command, events)
        broken["started_ns"] = time.monotonic_ns()
    except (LoadgenError, OSError) as error:
        broken["failure"] = events.redacted(str(error))
        events.write(time.monotonic_ns(), "crash_failed", str(error))


async def shutdown(context: RunContext) -> RunResult:
    """The verdict, and what is written of a run that has ended."""
    workload, plan, state = context.workload, context.plan, context.monitor.state
    lost = tuple(context.pool.losses)
    if plan.per_device:
        await asyncio.to_thread(write_devices, context.directory, plan, state.finals)
    held = int(context.broken.get("held", 0))
    facts = facts_of(workload, plan, state, lost, held)
    failure = _crash_failure(workload, facts, context.broken)
    facts = replace(facts, ending=replace(facts.ending, crash_failure=failure))
    evidence = Evidence(
        workload=workload,
        plan=plan,
        facts=facts,
        finals=state.finals,
        windows=state.windows,
        counts=state.groups,
        loads=context.loads,
        broken=context.broken,
        broker_is_local=lambda: any(is_local(target.host) for target in plan.targets),
        window_rows=lambda: window_rows(context.directory),
        course=lambda: course(context.directory),
    )
    review = await asyncio.to_thread(workload.case.review, evidence)
    steps = rate_step_verdicts(state, plan, review.facts)
    verdict = with_rate_steps(judge(review.facts), steps)
    asked = tuple(Remark("BROKER", remark) for remark in context.broker.remarks)
    verdict = replace(verdict, remarks=(*asked, *verdict.remarks))
    conclusion = await asyncio.to_thread(review.conclude, verdict)
    await asyncio.to_thread(
        context.document.write, state, review.facts, conclusion, steps, workload.case.name
    )
    return RunResult(
        context.directory,
        conclusion.verdict,
        state.ending == "interrupted",
        state.measured,
        review.facts,
        steps,
    )


def _crash_failure(workload: Workload, facts: RunFacts, broken: Mapping[str, Any]) -> str:
    """Why the broker did not crash and come back as it was asked to; "" where it did."""
    if workload.crash != "broker" or facts.ending.interrupted:
        return ""
    if "started_ns" not in broken:
        return str(broken.get("failure") or "the run ended before the broker served again")
    if not facts.connects.disconnects:
        return "no device lost its connection: was it the broker that they were connected to?"
    return ""


@asynccontextmanager
async def _unless_asked(interrupt: Interrupt) -> AsyncIterator[None]:
    """A block that an interrupt ends: nothing is under way that could end in request."""

    async def watch() -> None:
        await interrupt.asked.wait()
        raise RunInterruptedError("interrupted before anything was measured")

    async with beside(watch()):
        yield
