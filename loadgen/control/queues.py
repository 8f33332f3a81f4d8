"""How a run's messages were spread over the consumers of its queues."""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.control.rundir import EventLog
from loadgen.control.worker_pool import WorkerPool
from loadgen.workload.groups import DeviceGroup, RunPlan, topic_number

QUEUES_TOLD = 100
"""Queues that are told one by one; of more, the first."""


def _consumers(plan: RunPlan) -> tuple[int, DeviceGroup] | None:
    for index, group in enumerate(plan.groups):
        if group.subscribes is not None and group.subscribes.shared is not None:
            return index, group
    return None


def spread_of(plan: RunPlan, finals: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Messages of the window that each consumer took, over all and by queue.

    `finals` are the workers' last words by row. None for a run without queues, or where a worker
    said nothing: then the spread is not known.
    """
    found = _consumers(plan)
    if found is None:
        return None
    index, group = found
    assert group.subscribes is not None
    publishes = plan.group(group.subscribes.publishers).publishes
    assert publishes is not None
    taken: dict[int, int] = {}
    for row, worker in enumerate(plan.workers):
        shares = [share for share in worker.shares if share.group == index]
        devices = [d for share in shares for d in range(share.start, share.stop, share.step)]
        counts = (finals.get(row, {}).get("spread") or {}).get(group.name) or []
        if len(counts) != len(devices):
            return None
        taken |= zip(devices, counts, strict=True)
    queues: dict[int, list[int]] = {}
    for device in sorted(taken):
        number = topic_number(device, group.count, publishes.topics)
        queues.setdefault(number, []).append(taken[device])
    return {
        "consumers": len(taken),
        **_spread(list(taken.values())),
        "queues": [
            {"queue": number, **_spread(counts)}
            for number, counts in list(queues.items())[:QUEUES_TOLD]
        ],
    }


def _spread(counts: Sequence[int]) -> dict[str, float]:
    return {
        "received": sum(counts),
        "min": min(counts),
        "max": max(counts),
        "mean": statistics.fmean(counts),
        "stdev": statistics.pstdev(counts),
    }


async def cut_off(
    pool: WorkerPool, plan: RunPlan, wait_s: float, events: EventLog, record: dict[str, Any]
) -> None:
    """Cut off a consumer in the middle of the group after `wait_s`; `record` tells which.

    `record` gets `consumer`, its number, and `held`, the messages it had not acknowledged.
    """
    await asyncio.sleep(wait_s)
    found = _consumers(plan)
    assert found is not None
    index, group = found
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
