"""What a run through a bridge tells of each backend: counts, high-water mark, processor time."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.control.run_state import RunState
from loadgen.control.tasks import beside
from loadgen.workload.backends import BackendFacts, limit_of
from loadgen.workload.groups import DeviceGroup, RunPlan
from loadgen.workload.plan import target_url
from loadgen.workload.verdict import RunFacts, Verdict, backlog_growth

_SAMPLE_S = 0.5

Loads = list[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and of each process the ns it ran or waited for a processor."""


@asynccontextmanager
async def loads_of(pids: Sequence[int]) -> AsyncIterator[Loads]:
    """Samples of these processes' first threads, twice a second for the length of the block.

    Mosquitto has one thread that works.
    """
    loads: Loads = []

    async def sample() -> None:
        while pids:
            loads.append((time.monotonic_ns(), tuple(map(_busy_ns, pids))))
            await asyncio.sleep(_SAMPLE_S)

    async with beside(sample()):
        yield loads


def _busy_ns(pid: int) -> int | None:
    try:
        ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) + int(waited)


def _busy_shares(loads: Loads, window: tuple[int, int]) -> tuple[float | None, ...]:
    """Share of the window in which each process had something to do, 0 to 1; None if unknown."""
    inside = [sample for sample in loads if window[0] <= sample[0] <= window[1]]
    if len(inside) < 2:
        return ()
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    return tuple(
        None if a is None or b is None else min(1.0, (b - a) / (last_ns - first_ns))
        for a, b in zip(first, last, strict=True)
    )


def backends_seen(plan: RunPlan, state: RunState, loads: Loads) -> tuple[BackendFacts, ...]:
    """What is known of each backend of the plan; () for a run without a bridge.

    `loads` are those of the front and then the backends.
    """
    consuming = [group for group in plan.groups if group.targets and group.subscribes is not None]
    shares = _busy_shares(loads, state.windows.get("measure", (0, 0)))[1:]
    return tuple(
        _seen(plan, state, group, number, shares[number] if shares else None)
        for number, group in enumerate(consuming)
    )


def _seen(
    plan: RunPlan, state: RunState, group: DeviceGroup, number: int, busy_share: float | None
) -> BackendFacts:
    assert group.subscribes is not None
    senders = group.subscribes.publishers
    start_ns, end_ns = state.windows.get("measure", (0, 0))
    course = state.groups.under_way((senders, group.name))
    during = tuple((at_ns, 0, count) for at_ns, count in course if start_ns <= at_ns <= end_ns)
    return BackendFacts(
        number=number + 1,
        url=target_url(plan.targets[group.targets[0]]),
        consumers=group.count,
        connect_failures=state.groups.total(group.name, "connect_failures"),
        disconnects=state.groups.total(group.name, "disconnects"),
        expected=state.groups.total(senders, "expected", "measure"),
        received=state.groups.total(group.name, "received", "measure"),
        high_water_mark=max((count for _, count in course), default=0),
        growth=backlog_growth(during),
        busy_share=busy_share,
    )


def bridge_record(
    facts: RunFacts, verdict: Verdict, loads: Loads, window: tuple[int, int]
) -> dict[str, Any]:
    """What run.json says of a bridge: the front's busy share, the limit, each backend."""
    front = next(iter(_busy_shares(loads, window)), None)
    limit = limit_of(facts.backends, front, verdict.codes)
    return {
        "front_busy_share": front,
        "limit": asdict(limit),
        "backends": [
            asdict(backend) | {"rate": backend.received / (facts.window_s or 1.0)}
            for backend in facts.backends
        ],
    }
