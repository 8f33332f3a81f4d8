"""Processor time of the brokers of a bridge while a run is played."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loadgen.run.tasks import background, every

_SAMPLE_S = 0.5

Loads = list[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and of each process the ns it ran or waited for a processor."""


@asynccontextmanager
async def loads_of(pids: Sequence[int]) -> AsyncIterator[Loads]:
    """Sample the first threads of these processes twice a second during the block.

    Mosquitto has one thread that works.
    """
    loads: Loads = []

    def sample() -> None:
        if pids:
            loads.append((time.monotonic_ns(), tuple(map(_busy_ns, pids))))

    async with background(every(_SAMPLE_S, sample)):
        yield loads


def _busy_ns(pid: int) -> int | None:
    try:
        ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran) + int(waited)
