"""Stalls of a worker's loop and their causes: own work, waiting for a processor, or blocking.

A worker that receives nothing would not notice a stall, so compiled code wakes for a tick. There it
stores the scheduler's account of this thread. The difference between two accounts is the cause of a
stall between them.
"""

import os
from collections.abc import Callable

from loadgen.kernels.attention import take_stalls
from loadgen.kernels.syscalls import arm_timer
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.clock import clock_ns
from loadgen.worker.recorder import ProcessAccount

_TICK_NS = 20_000_000
_LONGEST_TICK_NS = 100_000_000
"""Longest tick; workers that share a processor have longer ticks."""


class Attendance:
    """The detector of one worker; `send(header)` takes the stalls to the coordinator."""

    def __init__(
        self, fleet: PlannedFleet, account: ProcessAccount, send: Callable[..., None]
    ) -> None:
        share = len(fleet.plan.workers) / (os.cpu_count() or 1)
        self._fleet = fleet
        self._send = send
        self._account = account
        attention = fleet.attention
        fleet.run.account = account.schedule
        times = account.times()
        attention.busy_ns, attention.waited_ns = times.cpu_ns, times.wait_ns
        attention.tick_every_ns = int(min(max(_TICK_NS * share, _TICK_NS), _LONGEST_TICK_NS))
        attention.tick_ns = clock_ns() + attention.tick_every_ns
        arm_timer(fleet.run.linger_timer, attention.tick_ns, fleet.clock)

    def end(self) -> None:
        """Stop the tick: later stalls are not part of a run."""
        self._fleet.attention.tick_ns = 0

    def report(self) -> None:
        """Send the stalls since the last call, each with its part of the times since the tick."""
        attention = self._fleet.attention
        times = self._account.times()
        spent = times.cpu_ns - attention.busy_ns, times.wait_ns - attention.waited_ns
        attention.busy_ns, attention.waited_ns = times.cpu_ns, times.wait_ns
        stalls = take_stalls(self._fleet)
        total_ns = sum(end_ns - start_ns for start_ns, end_ns in stalls)
        rows = []
        for start_ns, end_ns in stalls:
            most_ns = end_ns - start_ns
            parts = (min(spent_ns * most_ns // total_ns, most_ns) for spent_ns in spent)
            rows.append([start_ns, end_ns, *parts])
        self._send({"stalls": rows})
