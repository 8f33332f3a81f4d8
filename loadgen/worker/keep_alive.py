"""Keep-alive: PINGREQ for silent devices, and an end for those that get no PINGRESP."""

from collections.abc import Callable

import numpy as np

from loadgen.kernels.reactor import ping_idle
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PingReq
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.clock import clock_ns
from loadgen.worker.endings import NO_PINGRESP
from loadgen.worker.outgoing import Outgoing

_PINGREQ = np.frombuffer(bytearray(encode(PingReq(), 4)), np.uint8)


def keep_alive(
    fleet: PlannedFleet, outgoing: Outgoing, lost: Callable[[int, str], None]
) -> Callable[[], float]:
    """Return a function that pings devices that were silent for most of their keep-alive.

    `lost(connection, reason)` ends a connection. The function returns the seconds until its next
    call: there are eight calls in the shortest keep-alive, and at least one each second, so that
    no device is silent for all of it. A connection ends if a PINGREQ has no PINGRESP for a
    keep-alive (MQTT 5, 3.1.2.10).
    """
    looked_ns = clock_ns()

    def look() -> float:
        nonlocal looked_ns
        # Overdue devices of the last call: after a stall of ours a PINGRESP may still be unread.
        waited_ns = looked_ns - fleet.devices["pinged_ns"]
        limit_ns = fleet.devices["keep_alive_ns"]
        pinged = (fleet.devices["pinged_ns"] > 0) & (limit_ns > 0)
        for connection in np.flatnonzero(pinged & (waited_ns >= limit_ns)).tolist():
            lost(connection, NO_PINGRESP)
        looked_ns = clock_ns()
        due = np.zeros(len(fleet.devices), np.int64)
        listed = ping_idle(fleet, looked_ns, _PINGREQ, due)
        for connection in due[:listed].tolist():
            outgoing.write(connection, _PINGREQ.tobytes())
        shortest_ns = limit_ns.min(initial=8_000_000_000, where=limit_ns > 0)
        return int(shortest_ns) / 8e9

    return look
