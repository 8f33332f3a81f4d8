"""Conducts a run that `testbed` has prepared: its main loop, then verdict and results."""

import asyncio
import os
import signal
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from loadgen.brokers.ports import is_local
from loadgen.brokers.process import ServedBroker
from loadgen.cases.case import Evidence
from loadgen.cases.registry import case_of
from loadgen.errors import CannotRunError, LoadgenError
from loadgen.judge.facts import RunFacts
from loadgen.judge.recovery_watch import RecoveryWatch
from loadgen.judge.verdict import RateStepVerdict, Remark, Verdict, judge, with_rate_steps
from loadgen.plan.plan import Plan
from loadgen.run.collect_facts import facts_of, rate_step_verdicts
from loadgen.run.devices_file import write_devices
from loadgen.run.hosts.worker_pool import WorkerPool
from loadgen.run.interval_files import course, window_rows
from loadgen.run.phases import PhaseRunner
from loadgen.run.run_document import RunDocument
from loadgen.run.rundir import EventLog
from loadgen.run.tasks import background
from loadgen.run.watched import Loads, stored_messages
from loadgen.sentences import RUN_TEXT, counted, printable

CRASH_COMMAND_LIMIT_S: Final = 120.0
"""Longest time of a user's command that kills and restarts a broker."""
_OUTPUT_BYTES: Final = 4096
_OUTPUT_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: `facts` are what the verdict was made of, `steps` its rate steps.

    `measured` is True if its measurement window began.
    """

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
        reasons = (f"{reason.code}: {reason.detail}" for reason in self.verdict.reasons)
        return "; ".join(reasons) or "nothing was measured"


@dataclass(frozen=True, slots=True)
class RunContext:
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
    events = monitor.events
    if crash.victim == "consumer":
        with suppress(LoadgenError, OSError):  # what goes wrong here shows in the run itself
            broken.update(await cut_off_consumer(phases.pool, plan, events))
        return
    broken["killed_ns"] = time.monotonic_ns()
    monitor.watch_recovery(by_command=crash.command is not None)
    try:
        if crash.command is None:
            for broker in context.broker.brokers:
                events.write("broker_killed", f"{broker.name} was killed on request")
                broker.kill()
            for broker in context.broker.brokers:
                await broker.start()
                events.write("broker_started", f"{broker.name} was started again")
        else:
            await run_crash_command(crash.command, events)
        broken["started_ns"] = time.monotonic_ns()
    except (LoadgenError, OSError) as error:
        broken["failure"] = events.redacted(str(error))
        events.write("crash_failed", str(error))


async def run_crash_command(command: str, events: EventLog) -> None:
    """Run a user's command, which kills and restarts a broker that is not ours.

    Raise CannotRunError, with its last line, if it fails or takes too long.
    """
    events.write("crash_command", "the command was started on request")
    with TemporaryFile() as output:
        child = await asyncio.create_subprocess_shell(
            command, stdin=DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            async with asyncio.timeout(CRASH_COMMAND_LIMIT_S):
                status = await child.wait()
        except TimeoutError:
            raise CannotRunError(RUN_TEXT.CRASH_SLOW(seconds=CRASH_COMMAND_LIMIT_S)) from None
        finally:
            # Processes that it started go on after its end: one may be the broker.
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    last_line = printable(lines[-1], _OUTPUT_CHARACTERS) if lines else ""
    if status:
        ended = f"with status {status}" if status > 0 else f"by signal {-status}"
        raise CannotRunError(RUN_TEXT.CRASH_FAILED(ended=ended, last_line=last_line))
    detail = f"the command has ended: {last_line}" if lines else "the command has ended"
    events.write("crash_command", detail)


async def cut_off_consumer(pool: WorkerPool, plan: Plan, events: EventLog) -> dict[str, Any]:
    """Cut off a consumer in the middle of its group; return its number and the messages that it had
    not acknowledged, {} if it was not connected."""
    index, group = next(
        (index, group)
        for index, group in enumerate(plan.groups)
        if group.subscribes is not None and group.subscribes.shared is not None
    )
    device = group.count // 2
    row = next(
        row
        for row, worker in enumerate(plan.workers)
        for share in worker.shares
        if share.group == index and device in share.devices
    )
    answer = await pool.ask(row, "drop", group=index, device=device)
    if not answer["dropped"]:
        return {}
    detail = f"cut off on request with {answer['held']} messages not acknowledged"
    events.write("consumer_cut", detail, row, group=group.name, device=device)
    return {"consumer": device, "held": answer["held"]}


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
        course=partial(course, directory),
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
        ended = counted(facts.connects.disconnects, "connection")
        return f"only {ended} of the devices ended: did the command kill another broker?"
    return ""
