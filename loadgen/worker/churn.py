"""Churn: devices that leave for a while, at this worker's part of the rate.

The connector reconnects them.
"""

import time
from collections.abc import Callable
from random import Random

from loadgen.kernels.device import CONNECTED
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import may_leave
from loadgen.worker.reporter import Reporter

_EVERY_S = 0.02
_TRIES = 20  # to find a connected device; with nearly all away, fewer leave


def churn(
    fleet: PlannedFleet, reporter: Reporter, random: Random, leave: Callable[[int], None]
) -> Callable[[], float | None]:
    """Return a function that disconnects the devices that are due since its last call.

    It returns the seconds until its next call, None for no more; `leave(connection)` disconnects.
    """
    groups = fleet.plan.groups
    total = sum(
        share.count
        for worker in fleet.plan.workers
        for share in worker.shares
        if may_leave(groups[share.group])
    )
    devices = [row for row in range(len(fleet.devices)) if may_leave(fleet.group_of(row))]
    rate = (fleet.plan.scenario.churn or 0.0) * len(devices) / max(total, 1)
    due, counted_s = 0.0, time.monotonic()

    def let_leave() -> float | None:
        nonlocal due, counted_s
        if not rate:
            return None
        now_s = time.monotonic()
        due += (now_s - counted_s) * rate
        counted_s = now_s
        while due >= 1.0:
            due -= 1.0
            some = (random.choice(devices) for _ in range(_TRIES))
            states = fleet.devices["state"]
            connection = next((one for one in some if states[one] == CONNECTED), None)
            if connection is not None:
                leave(connection)
        return _EVERY_S if reporter.phase in ("warmup", "measure") else None

    return let_leave
