"""The load of other programs on this host before a run, and the wait for a quiet host.

It is measured while workers start: only this process, its descendants and the broker have work.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from loadgen.brokers import this_host
from loadgen.errors import HostLimitError
from loadgen.sentences import RUN_TEXT, Text

_IDLE_COLUMNS = (3, 4)
_STEAL_COLUMN = 7
SHORTEST_S = 0.2  # a shorter time has too few ticks
BUSY_SHARE = 0.15
"""Share of busy processors, or of the last ten seconds with waiting tasks, above which workers wait
for a processor often enough to be late."""
STEAL_SHARE = 0.05
LOOK_S, QUIET_S = 2.0, 10.0
"""Length of a look at the load, and of the time in which every look must find a quiet host."""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The part of the processors that others used, as shares from 0 to 1.

    `pressure` is the share of the ten seconds before in which a task waited for a processor, None
    if unknown or with the load of another run in it. `waiting` is the mean number of others' tasks
    that waited for a processor, None without the kernel's schedstat.
    """

    share: float
    steal: float
    pressure: float | None
    waiting: float | None = None

    @property
    def is_busy(self) -> bool:
        """True if a run would probably be INVALID."""
        waits = [value for value in (self.pressure, self.waiting) if value is not None]
        return max(waits, default=self.share) >= BUSY_SHARE or self.steal >= STEAL_SHARE

    def __str__(self) -> str:
        waiting = self.waiting if self.pressure is None else None
        return RUN_TEXT.BUSY_HOST(share=self.share, pressure=self.pressure, waiting=waiting)


class LoadWatch:
    def __init__(self, *, is_first: bool = True) -> None:
        self._pressure = cpu_pressure() if is_first else None
        self._began_s = time.monotonic()
        self._before = _ticks()

    def load(self) -> HostLoad | None:
        """Return the load since this was made; None if that is too short, or without /proc."""
        now = _ticks()
        if self._before is None or now is None or time.monotonic() - self._began_s < SHORTEST_S:
            return None
        total, busy, steal, ours, waited_ns = (
            later - earlier for later, earlier in zip(now, self._before, strict=True)
        )
        if total <= 0:
            return None
        share = min(max(busy - ours, 0) / total, 1.0)
        elapsed_ns = (time.monotonic() - self._began_s) * 1e9
        waiting = max(waited_ns, 0) / elapsed_ns if now[-1] else None
        return HostLoad(share, steal / total, self._pressure, waiting)


def cpu_pressure() -> float | None:
    """Return the share of the last ten seconds in which a task waited for a processor."""
    try:
        fields = (this_host.PROC / "pressure" / "cpu").read_text("utf-8").split()
        return float(fields[1].removeprefix("avg10=")) / 100
    except (OSError, ValueError, IndexError):
        return None


def _ticks() -> tuple[int, int, int, int, int] | None:
    """Return the ticks of all processors, those in use, those stolen, and ours of those in use.

    The last number is the time in ns that tasks of others waited in run queues, 0 if unknown.
    """
    try:
        first, *_ = (this_host.PROC / "stat").read_text("utf-8").splitlines()
        times = [*map(int, first.split()[1:9])]
        idle, steal = sum(times[column] for column in _IDLE_COLUMNS), times[_STEAL_COLUMN]
    except (OSError, ValueError, IndexError):
        return None
    ours = this_host.with_descendants([os.getpid()])
    our_ticks, waited_ns = sum(process.ticks for process in ours), _waited_ns(ours)
    return sum(times), sum(times) - idle, steal, our_ticks, waited_ns


def _waited_ns(ours: Iterable[this_host.HostProcess]) -> int:
    """Return the run-queue delay of all tasks without those of our processes, 0 if unknown."""
    try:
        lines = (this_host.PROC / "schedstat").read_text("utf-8").splitlines()
        waited_ns = sum(int(line.split()[8]) for line in lines if line.startswith("cpu"))
    except (OSError, ValueError, IndexError):
        return 0
    for process in ours:
        for path in this_host.PROC.glob(f"{process.pid}/task/*/schedstat"):
            with suppress(OSError):  # it has ended
                waited_ns -= int(path.read_text("utf-8").split()[1])
    return waited_ns


async def quiet_host(limit_s: float, show: Callable[[Text], None]) -> None:
    """Wait until this host was quiet for `QUIET_S`; raise HostLimitError if it takes too long.

    `show` gets a line after each look.
    """
    busy_s = time.monotonic()  # when it was last busy, as far as is known
    end_s = busy_s + limit_s
    busy: HostLoad | None = None
    while True:
        watch = LoadWatch()
        await asyncio.sleep(min(LOOK_S, limit_s))
        load, now_s = watch.load(), time.monotonic()
        if load is not None and load.is_busy:
            busy, busy_s = load, now_s
        if load is None or now_s - busy_s >= min(QUIET_S, limit_s):
            return
        if now_s >= end_s:
            raise HostLimitError(RUN_TEXT.NOT_QUIET(seconds=limit_s, load=busy))
        quiet_s = min(QUIET_S, limit_s)
        show(RUN_TEXT.WAITING(quiet=quiet_s, share=load.share, left=end_s - now_s))
