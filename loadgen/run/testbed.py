"""The broker and the workers of runs, with the connections that one run lends to the next.

    async with Testbed() as testbed:
        for rate in (1_000, 2_000):
            await testbed.run(build_scenario("fanin", None, {"rate": rate}), Path(f"run-{rate}"))

A run that differs from the previous one in its rates alone uses its broker and connections.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import require_groups, resolve, vary
from loadgen.errors import BrokerRefusedError, LoadgenError
from loadgen.plan.addressing import without_rates
from loadgen.plan.fit import Host, needs_by_host
from loadgen.plan.host_needs import few_processors
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import Scenario
from loadgen.run import preflight, rundir
from loadgen.run.broker_provider import plan_for, provided, trusting
from loadgen.run.coordinator import RunContext, RunResult, main_loop, shutdown
from loadgen.run.host_load import LoadWatch, quiet_host
from loadgen.run.hosts.load_host import Forkserver, forkserver
from loadgen.run.hosts.remote_host import Hosts
from loadgen.run.hosts.worker_pool import start_workers
from loadgen.run.interrupt import Interrupt
from loadgen.run.interval_files import IntervalWriter, compact
from loadgen.run.monitor import Monitor
from loadgen.run.phases import PhaseRunner, stop_timeout_s
from loadgen.run.power_log import sampled_power
from loadgen.run.progress import Progress, Snapshot, reported, silent
from loadgen.run.run_document import run_document
from loadgen.run.seal import seal
from loadgen.run.secrets import known_secrets, take_secrets, with_login, with_secrets
from loadgen.run.tasks import finished_or
from loadgen.run.watched import loads_of, watched_broker
from loadgen.sentences import BROKER_TEXT

_MOST_AGAIN = 2  # maximum number of repetitions of a spoiled run
_SPOILED = frozenset({"GENERATOR_SATURATED", "CLOCK"})
"""Codes of a run in which the host held up the generator."""


class Testbed:
    """Plays runs, one after the other; broker and workers end with the block.

    `broker` is for scenarios that name none. The workers are on `hosts`, None for this machine.
    `interrupt` ends a run; a second request does not wait for devices to disconnect. `command` is
    noted in run.json. With `lends` a run leaves its connections for the next one.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of the name

    def __init__(
        self,
        broker: str | Sequence[str] = "auto",
        *,
        hosts: Hosts | None = None,
        interrupt: Interrupt | None = None,
        command: Sequence[str] = (),
        lends: bool = True,
    ) -> None:
        self.broker = broker
        self.hosts = hosts
        self.interrupt = interrupt or Interrupt()
        self.command = command
        self.lends = lends
        self._stack = AsyncExitStack()
        self._servers = ExitStack()
        self._server: Forkserver | None = None
        self._last: PhaseRunner | None = None  # a run that has lent its devices
        self._broker: ServedBroker | None = None
        self._has_run = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._servers:
            await self.reset()

    async def run(
        self,
        scenario: Scenario,
        directory: Path,
        *,
        progress: Progress = silent,
        ends_when_certain: Collection[bool] = (),
    ) -> RunResult:
        """Run a scenario into a run directory, which must not exist or be empty.

        The window ends as soon as it is certain that the load holds, or does not, as
        `ends_when_certain` requests. Raise LoadgenError if it cannot be run, which leaves nothing
        in the directory, and RunInterruptedError after an interrupt before the first connection.
        """
        require_groups(scenario)
        if self.broker != "auto" and "broker" not in scenario.model_fields_set:
            scenario = vary(scenario, {"broker": self.broker})
        take_secrets(scenario.plain())
        plan = with_secrets(resolve(preflight.completed(scenario)))
        with rundir.disk_errors():
            try:
                async with AsyncExitStack() as stack:
                    async with self.interrupt.before_anything_is_measured():
                        if self.hosts is not None:
                            await self.hosts.check(scenario)
                        context = await self.prepare(
                            plan, directory, stack, progress, ends_when_certain=ends_when_certain
                        )
                    lent = await main_loop(context)
                    result = await shutdown(context)
            except BaseException:
                await self.reset()
                raise
            if lent:
                self._last = context.phases
            else:
                await self.reset()
            await asyncio.to_thread(compact, directory)
            await asyncio.to_thread(seal, directory)
        return result

    async def reset(self, progress: Progress = silent) -> None:
        """End broker and workers; `progress` is called if devices are still to disconnect."""
        last, self._last = self._last, None
        if last is not None:
            progress(Snapshot("leave"))
            stop = last.pool.ask_left("stop", stop_timeout_s(last.plan))
            if (await finished_or(stop, self.interrupt.insisted)).cancelled():
                last.pool.close_grace_s = 0.0
        await self._stack.aclose()

    async def prepare(
        self,
        plan: Plan,
        directory: Path,
        stack: AsyncExitStack,
        progress: Progress = silent,
        *,
        ends_when_certain: Collection[bool] = (),
    ) -> RunContext:
        """Prepare a run up to its first connection; what only this run uses ends with `stack`."""
        hosts, scenario = self.hosts, plan.scenario
        if scenario.wait_quiet is not None:
            await quiet_host(
                scenario.wait_quiet, lambda line: progress(Snapshot("wait", busy=line))
            )
        watching = asyncio.create_task(asyncio.to_thread(LoadWatch, is_first=not self._has_run))
        self._has_run = True
        machines = None if hosts is None else [host.joined.machine for host in hosts.agents]
        preflight.require_hosts(plan, machines)
        preflight.check_host(plan)
        rundir.require_free(directory)
        server: Forkserver | None = None
        last, broker = self._last, self._broker
        again = None if last is None else await self._plan_for_connections(last, plan)
        if again is not None and broker is not None:
            plan = again
        else:
            last = None
            await self.reset(progress)
            if hosts is None:
                # The workers' kernels are loaded while the broker starts.
                server = self._forkserver(plan.behaviour)
            plan, broker = await self._start_broker(plan, progress)
        self._broker = broker
        rundir.claim(directory)
        stack.callback(rundir.release, directory)
        events = rundir.EventLog(directory, (*broker.secrets, *known_secrets()))
        stack.callback(events.close)
        document = run_document(plan, broker, directory, self.command, hosts)
        progress(Snapshot("workers"))
        if plan.report_every_s is not None:
            progress = reported(progress, events, plan.report_every_s)
        intervals = IntervalWriter(directory, document.run, document.anchor_ns)
        monitor = Monitor(plan, events, intervals, progress, ends_when_certain=ends_when_certain)
        # Few runs need the imports of live figures.
        about = {"run": document.run, "case": scenario.case, "broker": broker.name}
        if scenario.metrics is not None:
            from loadgen.run.live_metrics import served_metrics

            stack.enter_context(served_metrics(scenario.metrics, plan, monitor, about, directory))
        if scenario.otlp is not None:
            from loadgen.run.otlp import sent_metrics

            await stack.enter_async_context(sent_metrics(scenario.otlp, plan, monitor, about))
        await stack.enter_async_context(watched_broker(directory, events, plan, broker))
        rapl, command = scenario.power == "rapl", scenario.power_command
        power = sampled_power(directory, events, rapl=rapl, command=command)
        await stack.enter_async_context(power)
        bridged = broker.pids if plan.brokers.bridge is not None else ()
        loads = await stack.enter_async_context(loads_of(bridged))
        if last is not None:
            pool = last.pool
        else:
            started = start_workers(
                len(plan.workers),
                monitor.on_frame,
                server=server,
                on_compiled=lambda *done: progress(Snapshot("compiling", compiled=done)),
                hosts=() if hosts is None else hosts.assign(plan),
            )
            pool = await self._stack.enter_async_context(started)
        load = await asyncio.to_thread((await watching).load)
        busy = [str(load)] if load is not None and load.is_busy else []
        if hosts is not None and last is None:
            for needs, host in zip(needs_by_host(plan), hosts.agents, strict=False):
                if reason := host.busy or few_processors(needs, host.offer):
                    busy.append(f"host {host.name}: {reason}")
        for text in busy:
            events.write("busy_host", text)
            progress(Snapshot("busy", busy=f"{text}; this run may be INVALID"))
        pool.on_frame = monitor.on_frame
        stack.callback(pool.ignore_frames)
        previous = None if last is None else last.monitor
        lends = self.lends and not plan.crash
        phases = PhaseRunner(plan, pool, monitor, self.interrupt, previous, lends=lends)
        return RunContext(phases, broker, document, loads)

    def _forkserver(self, behaviour: str) -> Forkserver:
        """Return the forkserver of the last run, or another one if it does not suit."""
        server = self._server
        if server is None or server.behaviour != behaviour or not server.is_alive:
            self._servers.close()
            server = self._server = self._servers.enter_context(forkserver(behaviour))
        return server

    @property
    def _offers(self) -> list[Host] | None:
        """Resources of each host for the plan, None for this machine."""
        return None if self.hosts is None else [host.offer for host in self.hosts.agents]

    async def _plan_for_connections(self, last: PhaseRunner, plan: Plan) -> Plan | None:
        """Return the plan of a run on the connections of the last one, None if it needs others."""
        connected, broker = last.monitor.state.connected, self._broker
        present = last.monitor.page.total("connected")
        if last.pool.lost.is_set() or connected is None or present != connected.done:
            return None
        if broker is None or plan.brokers != last.plan.brokers:
            return None
        plan = trusting(plan, broker.authority)
        first_tag = last.plan.run_tag if last.plan.connected_by is None else last.plan.connected_by
        try:
            plan = await plan_for(plan, broker.endpoints, self._offers, first_tag)
        except LoadgenError:
            return None  # it may fit once the devices are disconnected
        if without_rates(plan) != without_rates(last.plan):
            return None
        return replace(plan, run_tag=secrets.randbits(32), connected_by=first_tag)

    async def _start_broker(self, plan: Plan, progress: Progress) -> tuple[Plan, ServedBroker]:
        progress(Snapshot("broker"))
        broker = await self._stack.enter_async_context(provided(plan))
        broker = with_login(broker, plan.scenario.plain())
        try:
            plan, broker = await self._checked(plan, broker)
        except BrokerRefusedError as error:
            older = preflight.downgraded(plan, error)
            if older is None:
                raise
            plan, broker = await self._checked(older, broker)
            values = {key: error.values[key] for key in ("where", "answer")}
            remark = BROKER_TEXT.PLAYED_WITH_3_1_1(**values)
            broker = replace(broker, remarks=(remark, *broker.remarks))
        if self.hosts is not None:
            await self.hosts.reach(plan)
        return plan, broker

    async def _checked(self, plan: Plan, broker: ServedBroker) -> tuple[Plan, ServedBroker]:
        plan = trusting(plan, broker.authority)
        plan = await plan_for(plan, broker.endpoints, self._offers)
        return plan, await preflight.check_broker(plan, broker)


async def run_unspoiled(
    testbed: Testbed,
    scenario: Scenario,
    directory: Path,
    root: Path | None,
    *,
    progress: Progress,
    watch: Callable[[int], None] = lambda _again: None,
) -> tuple[RunResult, int]:
    """Play a scenario, and with a `root` at most twice again if the host spoiled the run.

    Return the last run, which is in `directory`, and the number of the spoiled ones, which are in
    ROOT/saturated/. `watch` gets the number of those before each run.
    """
    for again in range(_MOST_AGAIN + 1):
        watch(again)
        result = await testbed.run(scenario, directory, progress=progress)
        ended = result.interrupted or not result.measured or again == _MOST_AGAIN
        if root is None or ended or not _SPOILED.intersection(result.verdict.codes):
            break
        _set_aside(directory, root, again + 1)
    return result, again


def _set_aside(directory: Path, root: Path, number: int) -> None:
    aside = root / "saturated"
    if not aside.exists():
        rundir.make_private(aside)
    # An earlier start of a sweep may have left a run of the same name.
    name = "-".join((*directory.relative_to(root).parts, str(number)))
    directory.rename(rundir.numbered(aside / name))
