"""Where runs are played: the broker, and the workers with their connections.

A stage that keeps lasts for all runs of a search or a sweep. What a run left connected, and the
broker behind it, stay for the next one where that differs in its rates alone; otherwise they end
before it begins.
"""

import secrets
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Self

from loadgen.brokers.process import ServedBroker
from loadgen.errors import LoadgenError
from loadgen.plan.groups import RunPlan, without_rates
from loadgen.plan.workload import Workload
from loadgen.run.broker_provider import trusting
from loadgen.run.hosts.remote_host import Hosts
from loadgen.run.hosts.worker_pool import WorkerPool
from loadgen.run.interrupt import Interrupt
from loadgen.run.phases import Kept, stop_timeout_s
from loadgen.run.progress import Progress, Snapshot, silent
from loadgen.run.targets import plan_for
from loadgen.run.tasks import finished_or


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays a run: `workload` and `plan` are its own, `kept` what an earlier one left to it."""

    workload: Workload
    plan: RunPlan
    broker: ServedBroker
    pool: WorkerPool | None = None
    kept: Kept | None = None


class Stage:
    """What runs share one after the other; `stack` ends it.

    Who insists on an end by `interrupt` need not wait for devices to disconnect.
    """

    def __init__(self, *, keeps: bool, interrupt: Interrupt | None = None) -> None:
        self.keeps = keeps
        self._interrupt = interrupt or Interrupt()
        self.stack = AsyncExitStack()
        self._left: Cast | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.clear()

    def leave(self, cast: Cast) -> None:
        """Keep who played a run that has ended, with the devices that it left."""
        self._left = cast

    async def cast_for(self, workload: Workload, hosts: Hosts | None) -> Cast | None:
        """Who is left of the last run to play this one; None where nobody is, or the stage ends."""
        left = self._left
        if left is None or left.pool is None or left.kept is None:
            return None
        if left.pool.lost.is_set() or not left.kept.complete:
            return None
        workload = trusting(workload, left.broker.authority)
        if _way_in(workload) != _way_in(left.workload):
            return None
        first_tag = left.plan.run_tag if left.plan.connected_by is None else left.plan.connected_by
        offers = None if hosts is None else hosts.offers
        try:
            plan = await plan_for(workload, left.broker.endpoints, offers, first_tag)
        except LoadgenError:
            return None  # it may fit when the devices that are there are gone
        if without_rates(plan) != without_rates(left.plan):
            return None
        plan = replace(plan, run_tag=secrets.randbits(32), connected_by=first_tag)
        return replace(left, workload=workload, plan=plan)

    async def clear(self, progress: Progress = silent) -> None:
        """Let everything end; `progress` is told where devices are still to disconnect."""
        left, self._left = self._left, None
        if left is not None and left.pool is not None:
            progress(Snapshot("leave"))
            stop = left.pool.stop(stop_timeout_s(left.plan))
            if (await finished_or(stop, self._interrupt.insisted)).cancelled():
                left.pool.close_grace_s = 0.0
        await self.stack.aclose()


def _way_in(workload: Workload) -> tuple[object, ...]:
    """The broker that a run asks for, how it is reached, as whom, and how fast devices connect."""
    phases = workload.phases
    pace = phases.connect_rate, phases.in_flight, phases.timeout_s
    login = workload.given.get("user"), workload.given.get("password")
    return workload.brokers, workload.tls, *pace, *login


def staged(
    stage: Stage | None, *, keeps: bool, interrupt: Interrupt | None = None
) -> AbstractAsyncContextManager[Stage]:
    """The stage of whoever plays several runs, or one for the length of the block."""
    return Stage(keeps=keeps, interrupt=interrupt) if stage is None else nullcontext(stage)
