"""Keep-alive: PINGREQ for silent devices, and an end for those that get no PINGRESP.

Owns the keep-alive of each group, which the broker may change.
"""

import time
from collections.abc import Callable

import numpy as np

from loadgen.engine.outgoing import Outgoing
from loadgen.engine.reactor import ping_idle
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PingReq
from loadgen.workload.fleet import Fleet

_NS = 1_000_000_000
_PINGREQ = np.frombuffer(bytearray(encode(PingReq(), 4)), np.uint8)


class KeepAlive:
    """Pings for the devices of one worker; `lost(connection, reason)` ends a connection."""

    def __init__(self, fleet: Fleet, outgoing: Outgoing, lost: Callable[[int, str], None]) -> None:
        self._fleet = fleet
        self._outgoing = outgoing
        self._lost = lost
        seconds = [group.keep_alive_s for group in fleet.plan.groups]
        self._limits_ns = np.array(seconds, np.int64) * _NS
        self._looked_ns = time.monotonic_ns()

    def set_by_server(self, group: int, seconds: int) -> None:
        """The broker's value counts, not the one in CONNECT (MQTT 5, 3.2.2.3.14)."""
        self._limits_ns[group] = seconds * _NS

    def look(self) -> float:
        """Ping devices that were silent for most of their keep-alive; seconds until the next look.

        There are eight looks in the shortest keep-alive, and one each second at least, so that no
        device is silent for all of it. A device without a PINGRESP for a keep-alive after its
        PINGREQ gives its connection up (MQTT 5, 3.1.2.10).
        """
        fleet = self._fleet
        # What was overdue at the last look: after a stall of ours the PINGRESP may wait, unread.
        waited_ns = self._looked_ns - fleet.devices["pinged_ns"]
        limits_ns = self._limits_ns[fleet.group]
        pinged = (fleet.devices["pinged_ns"] > 0) & (limits_ns > 0)
        for connection in np.flatnonzero(pinged & (waited_ns >= limits_ns)).tolist():
            self._lost(connection, "no PINGRESP in time")
        self._looked_ns = time.monotonic_ns()
        due = np.zeros(len(fleet.devices), np.int64)
        listed = ping_idle(fleet, self._looked_ns, self._limits_ns, _PINGREQ, due)
        for connection in due[:listed].tolist():
            self._outgoing.write(connection, _PINGREQ.tobytes())
        shortest_ns = self._limits_ns.min(initial=8 * _NS, where=self._limits_ns > 0)
        return int(shortest_ns) / 8e9
