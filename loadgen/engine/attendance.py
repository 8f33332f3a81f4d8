"""Watches that the loop of a worker comes round when it is expected, and says what kept it.

A worker that nobody sends anything would not know that it stood still, so its loop wakes for a
tick. At each tick the scheduler's account of this thread is read, to tell of a stall since the last
one whether the worker was busy, or waited for a processor, or neither.
"""

import os
from collections.abc import Callable

from loadgen.engine.clock import clock_ns
from loadgen.workload.attention import STALL_FLOOR_NS, attend_loop, take_stalls
from loadgen.workload.fleet import Fleet

_TICK_S = 0.02
_LONGEST_TICK_S = 0.1
"""Workers that share a processor wake less often, each of them."""


class Attendance:
    """The tick of one worker; `send(header)` takes the stalls to the coordinator."""

    def __init__(self, fleet: Fleet, send: Callable[..., None]) -> None:
        share = len(fleet.plan.workers) / (os.cpu_count() or 1)
        self._tick_s = min(max(_TICK_S * share, _TICK_S), _LONGEST_TICK_S)
        self._fleet = fleet
        self._attention = fleet.held["attention"]
        self._send = send
        self._account = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._busy_ns, self._waited_ns = self._times()

    def _times(self) -> tuple[int, int]:
        """Nanoseconds on a processor, and waiting for one."""
        busy, waited, _ = os.pread(self._account, 100, 0).split()
        return int(busy), int(waited)

    def tick(self) -> float:
        """Look whether the loop comes in time; returns in how many seconds it is to come again."""
        now_ns = clock_ns()
        # Where compiled code has just looked there is nothing to see.
        if now_ns - int(self._attention["seen_ns"][0]) > STALL_FLOOR_NS:
            attend_loop(self._fleet, now_ns)
        busy_ns, waited_ns = self._times()
        if self._attention["stalls"][0]:
            self._tell(busy_ns - self._busy_ns, waited_ns - self._waited_ns)
        self._busy_ns, self._waited_ns = busy_ns, waited_ns
        self._attention["tick_ns"] = now_ns + int(self._tick_s * 1e9)
        return self._tick_s

    def _tell(self, busy_ns: int, waited_ns: int) -> None:
        """Send the stalls since the last tick, with their parts of these times."""
        stalls = take_stalls(self._fleet)
        total_ns = sum(end_ns - start_ns for start_ns, end_ns in stalls)
        told = []
        for start_ns, end_ns in stalls:
            most_ns = end_ns - start_ns
            parts = (
                min(spent_ns * most_ns // total_ns, most_ns) for spent_ns in (busy_ns, waited_ns)
            )
            told.append([start_ns, end_ns, *parts])
        self._send({"stalls": told})
