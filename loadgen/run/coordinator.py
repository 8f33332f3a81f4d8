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
from loadgen.run.interval_files import course, window_rows
from loadgen.run.phases import PhaseRunner
from loadgen.run.run_document import RunDocument
from loadgen.run.tasks import background
from loadgen.run.watched import Loads, stored_messages
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
        if self.interrupted:
            return 130
        if not self.measured:
            return 3
        return 0 if self.verdict.valid else 1

    @property
    def why_unmeasured(self) -> str:
        """The reasons of a run that was not measured."""
        reasons = (f"{reason.code}: {reason.detail}" for reason in self.verdict.reasons)
        return "; ".join(reasons) or "nothing was measured"


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run whose brokers and workers are ready."""

    phases: PhaseRunner
    broker: ServedBroker
    document: RunDocument
    loads: Loads
    broken: dict[str, Any] = field(default_factory=dict)
    """The result of a break on request, and its times."""


async def main_loop(context: RunContext) -> bool:
    """Run all phases, and break what the scenario asks for; return True if devices can be lent."""
    phases, document = context.phases, context.document
    document.write_begun(connects=phases.previous is None)
    try:
        async with background(_in_window(context)):
            return await phases.play()
    except LoadgenError:
        if not phases.monitor.state.measured:
            document.discard()
        raise


async def _in_window(context: RunContext) -> None:
    """Write run.json when the window begins, and then break a broker or a consumer on request."""
    phases, broken = context.phases, context.broken
    plan, monitor, crash = phases.plan, phases.monitor, phases.plan.crash
    await monitor.window_began.wait()
    context.document.write_unfinished(monitor.state)
    if crash is None:
        return
    await asyncio.sleep(plan.phases.duration_s / 2 if crash.after_s is None else crash.after_s)
    events = monitor.record.events
    if crash.victim == "consumer":
        with suppress(LoadgenError, OSError):  # what goes wrong here shows in the run itself
            broken.update(await cut_off_consumer(phases.pool, plan, events))
        return
    broken["killed_ns"] = time.monotonic_ns()
    monitor.watch_recovery(by_command=crash.command is not None)
    try:
        if crash.command is None:
            await crash_brokers(context.broker.brokers, events)
        else:
            await run_crash_command(crash.command, events)
        broken["started_ns"] = time.monotonic_ns()
    except (LoadgenError, OSError) as error:
        broken["failure"] = events.redacted(str(error))
        monitor.note("crash_failed", str(error))


async def shutdown(context: RunContext) -> RunResult:
    """Judge a run that has ended, and write its results."""
    plan, state = context.phases.plan, context.phases.monitor.state
    directory, broken = context.document.directory, context.broken
    if plan.scenario.per_device:
        await asyncio.to_thread(write_devices, directory, plan, state.finals)
    facts = facts_of(plan, state, context.phases.pool.losses, int(broken.get("held", 0)))
    failure = _crash_failure(plan, facts, state.recovery, broken)
    facts = replace(facts, ending=replace(facts.ending, crash_failure=failure))
    if failure and "started_ns" in broken:
        state.recovery = None  # what did not crash did not recover
    evidence = Evidence(
        plan=plan,
        facts=facts,
        finals=state.finals,
        windows=state.windows,
        counts=state.tally,
        loads=context.loads,
        broken=broken,
        broker_is_local=lambda: any(is_local(target.host) for target in plan.targets),
        window_rows=lambda: window_rows(directory),
        course=lambda: course(directory),
        stored=lambda: stored_messages(directory),
    )
    review = await asyncio.to_thread(case_of(plan.scenario.case).review, evidence)
    steps = rate_step_verdicts(state, plan, review.facts)
    verdict = with_rate_steps(judge(review.facts), steps)
    asked = tuple(Remark("BROKER", remark) for remark in context.broker.remarks)
    hosts = context.document.hosts
    machines = [] if hosts is None else hosts.shared_machines()
    shared = tuple(Remark(remark.code, remark) for remark in machines)
    verdict = replace(verdict, remarks=(*asked, *shared, *verdict.remarks))
    conclusion = await asyncio.to_thread(review.conclude, verdict)
    await asyncio.to_thread(context.document.write, state, review.facts, conclusion, steps)
    interrupted = state.ending == "interrupted"
    verdict, facts = conclusion.verdict, review.facts
    return RunResult(directory, verdict, interrupted, state.measured, facts, steps)


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
