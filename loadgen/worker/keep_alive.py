"""Keep-alive: PINGREQ for silent devices, and an end for those that get no PINGRESP."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadgen.kernels.fleet import Fleet
from loadgen.kernels.reactor import ping_idle
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PingReq
from loadgen.worker.clock import clock_ns
from loadgen.worker.outgoing import Outgoing

Table = npt.NDArray[np.int64]

_PINGREQ = np.frombuffer(bytearray(encode(PingReq(), 4)), np.uint8)


def keep_alive(
    fleet: Fleet, limits_ns: Table, outgoing: Outgoing, lost: Callable[[int, str], None]
) -> Callable[[], float]:
    """Return a function that pings devices that were silent for most of their keep-alive.

    `limits_ns` has the keep-alive of each group, 0 for none, which may change;
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
        limit_ns = limits_ns[fleet.group]
        pinged = (fleet.devices["pinged_ns"] > 0) & (limit_ns > 0)
        for connection in np.flatnonzero(pinged & (waited_ns >= limit_ns)).tolist():
            lost(connection, "no PINGRESP in time")
        looked_ns = clock_ns()
        due = np.zeros(len(fleet.devices), np.int64)
        listed = ping_idle(fleet, looked_ns, limits_ns, _PINGREQ, due)
        for connection in due[:listed].tolist():
            outgoing.write(connection, _PINGREQ.tobytes())
        shortest_ns = limits_ns.min(initial=8_000_000_000, where=limits_ns > 0)
        return int(shortest_ns) / 8e9

    return look
