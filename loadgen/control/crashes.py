"""What is broken on request in the middle of a run's window: the brokers, or a consumer."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadgen.control.rundir import EventLog
from loadgen.control.worker_pool import WorkerPool
from loadgen.workload.groups import RunPlan

if TYPE_CHECKING:
    from loadgen.brokers.start import RunningBroker


async def crash_brokers(
    brokers: Sequence["RunningBroker"], wait_s: float, events: EventLog
) -> None:
    """Kill the private brokers in the middle of the window and start them again."""
    await asyncio.sleep(wait_s)
    for broker in brokers:
        events.write(time.monotonic_ns(), "broker_killed", f"{broker.name} was killed on request")
        broker.kill()
    for broker in brokers:
        await broker.start()
        events.write(time.monotonic_ns(), "broker_started", f"{broker.name} was started again")


async def cut_off(
    pool: WorkerPool, plan: RunPlan, wait_s: float, events: EventLog, record: dict[str, Any]
) -> None:
    """Cut off a consumer in the middle of the group after `wait_s`; `record` tells which.

    `record` gets `consumer`, its number, and `held`, the messages it had not acknowledged.
    """
    await asyncio.sleep(wait_s)
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
        if share.group == index and device in range(share.start, share.stop, share.step)
    )
    answer = await pool.ask(row, "drop", group=index, device=device)
    if answer["dropped"]:
        record |= {"consumer": device, "held": answer["held"]}
        detail = f"cut off on request with {answer['held']} messages not acknowledged"
        events.write(
            time.monotonic_ns(), "consumer_cut", detail, worker=row, group=group.name, device=device
        )
