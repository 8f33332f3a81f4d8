"""Churn: devices that leave for a while, at this worker's part of the rate.

Owns which devices may leave and how many are due to; coming back is the connector's.
"""

import time
from collections.abc import Callable
from random import Random

from loadgen.engine.reporter import Reporter
from loadgen.workload.device import CONNECTED
from loadgen.workload.fleet import Fleet
from loadgen.workload.groups import DeviceGroup

_EVERY_S = 0.02
_TRIES = 20  # to find a connected device; with nearly all away, fewer leave


def may_leave(group: DeviceGroup) -> bool:
    """Whether a device of the group can be away without a message being lost by it."""
    if group.subscribes is not None:
        return not group.clean_start and group.subscribes.qos > 0
    return group.publishes is not None


class Churn:
    """Chooses the devices that leave; `leave(connection)` disconnects one."""

    def __init__(
        self, fleet: Fleet, reporter: Reporter, random: Random, leave: Callable[[int], None]
    ) -> None:
        self._fleet = fleet
        self._reporter = reporter
        self._random = random
        self._leave = leave
        groups = fleet.plan.groups
        total = sum(
            share.count
            for worker in fleet.plan.workers
            for share in worker.shares
            if may_leave(groups[share.group])
        )
        self._devices = [
            connection
            for connection in range(len(fleet.devices))
            if may_leave(fleet.group_of(connection))
        ]
        self._rate = fleet.plan.churn_per_s * len(self._devices) / max(total, 1)
        self._due = 0.0
        self._counted_s = time.monotonic()

    def let_leave(self) -> float | None:
        """Let as many leave as the rate asks for since the last time; seconds until the next."""
        if not self._rate:
            return None
        now_s = time.monotonic()
        self._due += (now_s - self._counted_s) * self._rate
        self._counted_s = now_s
        while self._due >= 1.0:
            self._due -= 1.0
            some = (self._random.choice(self._devices) for _ in range(_TRIES))
            states = self._fleet.devices["state"]
            connection = next((one for one in some if states[one] == CONNECTED), None)
            if connection is not None:
                self._leave(connection)
        return _EVERY_S if self._reporter.phase in ("warmup", "measure") else None
