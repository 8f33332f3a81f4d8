"""Conducts a run that is prepared: its main loop, then verdict and results.

`testbed` prepares it. From then on run.json has what is known, so that a killed run can still be
read.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadgen.brokers.ports import is_local
from loadgen.brokers.process import ServedBroker
from loadgen.cases.case import Evidence
from loadgen.cases.registry import case_of
from loadgen.errors import LoadgenError
from loadgen.judge.facts import RunFacts
from loadgen.judge.rate_step_verdict import RateStepVerdict, with_rate_steps
from loadgen.judge.recovery_watch import RecoveryWatch
from loadgen.judge.verdict import Remark, Verdict, judge
from loadgen.plan.plan import Plan
from loadgen.run.collect_facts import facts_of, rate_step_verdicts
from loadgen.run.crashes import crash_brokers, cut_off_consumer, run_crash_command
from loadgen.run.devices_file import write_devices
from loadgen.run.hosts.worker_pool import WorkerPool
from loadgen.run.interrupt import Interrupt
from loadgen.run.interval_files import course, window_rows
from loadgen.run.monitor import Monitor
from loadgen.run.phases import PhaseRunner
from loadgen.run.run_document import RunDocument
from loadgen.run.rundir import EventLog
from loadgen.run.tasks import background
from loadgen.run.watched import Loads
from loadgen.sentences import counted


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. `measured` is True if its measurement window began; `facts` are what
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
class RunContext:
    """A run whose brokers and workers are ready.

    `previous` is the monitor of the run that connected the devices, None if this run connects them.
    With `lends` it leaves them connected if another run can use them.
    """

    plan: Plan
    broker: ServedBroker
    directory: Path
    document: RunDocument
    events: EventLog
    monitor: Monitor
    pool: WorkerPool
    loads: Loads
    interrupt: Interrupt
    previous: Monitor | None = None
    lends: bool = False
    broken: dict[str, Any] = field(default_factory=dict)


async def main_loop(context: RunContext) -> bool:
    """Run all phases, and break what the scenario asks for; return True if devices can be lent."""
    window_began = asyncio.Event()

    def measuring() -> None:
        context.document.write_unfinished(context.monitor.state)
        window_began.set()

    phases = PhaseRunner(
        context.plan,
        context.plan.phases,
        context.pool,
        context.monitor,
        context.interrupt,
        measuring,
        context.previous,
        lends=context.lends and not context.plan.crash,
    )
    context.document.write_begun(connects=context.previous is None)
    try:
        async with background(_crash(context, window_began)):
            return await phases.play()
    except LoadgenError:
        if not context.monitor.state.measured:
            context.document.discard()
        raise


async def _crash(context: RunContext, window_began: asyncio.Event) -> None:
    """Break a broker or a consumer within the window if the scenario asks for it."""
    crash, events, broken = context.plan.crash, context.events, context.broken
    if crash is None:
        return
    await window_began.wait()
    middle_s = context.plan.phases.duration_s / 2
    await asyncio.sleep(middle_s if crash.after_s is None else crash.after_s)
    if crash.victim == "consumer":
        with suppress(LoadgenError, OSError):  # what goes wrong here shows in the run itself
            broken.update(await cut_off_consumer(context.pool, context.plan, events))
        return
    command = crash.command
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
    """Judge a run that has ended, and write its results."""
    plan, state = context.plan, context.monitor.state
    lost = tuple(context.pool.losses)
    if plan.scenario.per_device:
        await asyncio.to_thread(write_devices, context.directory, plan, state.finals)
    held = int(context.broken.get("held", 0))
    facts = facts_of(plan, state, lost, held)
    failure = _crash_failure(plan, facts, state.recovery, context.broken)
    facts = replace(facts, ending=replace(facts.ending, crash_failure=failure))
    if failure and "started_ns" in context.broken:
        state.recovery = None  # what did not crash did not recover
    evidence = Evidence(
        plan=plan,
        facts=facts,
        finals=state.finals,
        windows=state.windows,
        counts=state.tally,
        loads=context.loads,
        broken=context.broken,
        broker_is_local=lambda: any(is_local(target.host) for target in plan.targets),
        window_rows=lambda: window_rows(context.directory),
        course=lambda: course(context.directory),
    )
    review = await asyncio.to_thread(case_of(plan.scenario.case).review, evidence)
    steps = rate_step_verdicts(state, plan, review.facts)
    verdict = with_rate_steps(judge(review.facts), steps)
    asked = tuple(Remark("BROKER", remark) for remark in context.broker.remarks)
    verdict = replace(verdict, remarks=(*asked, *verdict.remarks))
    conclusion = await asyncio.to_thread(review.conclude, verdict)
    await asyncio.to_thread(
        context.document.write,
        state,
        review.facts,
        conclusion,
        steps,
        plan.scenario.case,
    )
    return RunResult(
        context.directory,
        conclusion.verdict,
        state.ending == "interrupted",
        state.measured,
        review.facts,
        steps,
    )


def _crash_failure(
    plan: Plan, facts: RunFacts, seen: RecoveryWatch | None, broken: Mapping[str, Any]
) -> str:
    """Return why the requested crash did not happen, "" if it did or none was requested."""
    if plan.crash is None or plan.crash.victim != "broker" or facts.ending.interrupted:
        return ""
    if "started_ns" not in broken:
        return str(broken.get("failure") or "the run ended before the broker served again")
    brokers = 1 if plan.crash.command is None else max(len(plan.targets), 1)
    if seen is None or not seen.crashed(facts.connects.disconnects, brokers):
        return (
            f"{counted(facts.connects.disconnects, 'connection')} of the devices ended, not all: "
            "was it the broker that they were connected to?"
        )
    return ""
