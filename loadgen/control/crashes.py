"""What a run breaks on request in the middle of its window: its brokers, or one consumer."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadgen.control.rundir import EventLog
from loadgen.control.worker_pool import WorkerPool
from loadgen.workload.groups import RunPlan

if TYPE_CHECKING:
    from loadgen.brokers.process import BrokerProcess


async def crash_brokers(
    brokers: Sequence["BrokerProcess"], events: EventLog, moments: dict[str, Any]
) -> None:
    """Kill the private brokers and start them again; `moments` gets `killed_ns`, `started_ns`."""
    moments["killed_ns"] = time.monotonic_ns()
    for broker in brokers:
        events.write(time.monotonic_ns(), "broker_killed", f"{broker.name} was killed on request")
        broker.kill()
    for broker in brokers:
        await broker.start()
        events.write(time.monotonic_ns(), "broker_started", f"{broker.name} was started again")
    moments["started_ns"] = time.monotonic_ns()


async def cut_off_consumer(pool: WorkerPool, plan: RunPlan, events: EventLog) -> dict[str, Any]:
    """Cut off a consumer in the middle of its group; says which.

    `consumer` is its number and `held` the messages that it had not acknowledged; nothing where it
    was not connected.
    """
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
    events.write(
        time.monotonic_ns(), "consumer_cut", detail, worker=row, group=group.name, device=device
    )
    return {"consumer": device, "held": answer["held"]}
