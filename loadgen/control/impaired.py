"""Impaired links: a relay before each address of the broker, and what it did in a run."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from loadgen.brokers.child import ChildBroker, Json
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import running
from loadgen.control.bridge_load import Loads, loads_of
from loadgen.control.rundir import EventLog
from loadgen.errors import CannotRunError
from loadgen.workload.case import busy_shares
from loadgen.workload.groups import RunPlan
from loadgen.workload.verdict import ImpairedFacts
from loadgen.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Links:
    """The relays of a run, none where no link is impaired.

    `endpoints` are what devices connect to, and `brokers` the broker's own of each of them.
    """

    workload: Workload
    endpoints: tuple[Endpoint, ...]
    brokers: tuple[Endpoint, ...]
    relays: tuple[ChildBroker, ...] = ()
    loads: Loads | None = None

    def named(self, plan: RunPlan) -> RunPlan:
        """The plan, whose targets have the names that certificates must match."""
        if not self.relays:
            return plan
        pairs = zip(plan.targets, self.brokers, strict=True)
        targets = (replace(target, name=broker.host) for target, broker in pairs)
        return replace(plan, targets=tuple(targets))

    async def play(self, window_began: asyncio.Event, events: EventLog) -> None:
        """Stall and cut by the schedule of the impairment, within the window."""
        await window_began.wait()
        if await self._asked(begin=True):
            detail = str(self.workload.impairment)
            events.write(time.monotonic_ns(), "impaired", f"stalls and cuts begin: {detail}")
            await asyncio.sleep(self.workload.phases.duration_s)
            await self._asked(end=True)

    async def _asked(self, **question: bool) -> list[Json]:
        """What those relays answer that have not ended."""
        answers = []
        for relay in self.relays:
            with suppress(CannotRunError):  # the verdict says it
                answers.append(await relay.ask(**question))
        return answers

    async def facts(self, window: tuple[int, int]) -> ImpairedFacts | None:
        """What the links were like in the window; None where none was impaired."""
        impairment = self.workload.impairment
        if impairment is None or self.loads is None:
            return None
        counts = await self._asked(end=True)
        whom = impairment.group or "all devices"
        cut = sum(one["connections_cut"] for one in counts)
        shares = filter(None, busy_shares(self.loads, window))
        return ImpairedFacts(
            f"of {whom}: {impairment}",
            cut,
            max(shares, default=0.0),
            relays_ended=len(self.relays) - len(counts),
            excuses_all=not self.workload.back_from_cuts,
        )


@asynccontextmanager
async def impaired(workload: Workload, endpoints: Sequence[Endpoint]) -> AsyncIterator[Links]:
    """The links of a workload to a broker at these endpoints, for the length of the block."""
    impairment, own = workload.impairment, tuple(endpoints)
    if impairment is None:
        yield Links(workload, own, own)
        return
    async with AsyncExitStack() as stack:
        relays = [
            await stack.enter_async_context(
                running(_relay(endpoint, str(workload.given["impair"])))
            )
            for endpoint in own
        ]
        ways = tuple(way for relay in relays for way in relay.endpoints)
        loads = await stack.enter_async_context(loads_of([relay.pid for relay in relays]))
        if not impairment.group:
            yield Links(workload, ways, own, tuple(relays), loads)
            return
        # The others keep their own way; those of the group have the relays, behind it.
        groups = tuple(
            replace(
                group,
                targets=tuple(
                    target + len(own) * (group.name == impairment.group)
                    for target in group.targets or range(len(own))
                ),
            )
            for group in workload.groups
        )
        workload = replace(workload, groups=groups)
        yield Links(workload, (*own, *ways), own * 2, tuple(relays), loads)


def _relay(endpoint: Endpoint, impairment: str) -> ChildBroker:
    module = "loadgen.brokers.impaired_server"
    ours = replace(endpoint, host="127.0.0.1", port=0)
    broker = [endpoint.host, endpoint.port]
    return ChildBroker("relay", "", module, ours, broker=broker, impairment=impairment)
