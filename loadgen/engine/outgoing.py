"""What Python writes to connections: control packets, and what kernels left behind.

Owns the bytes that wait for a blocked socket, and looks after acknowledgements that wait for a
batch which does not fill.
"""

import os
import time
from contextlib import suppress

import numpy as np

from loadgen.engine.streams import Streams, unblock
from loadgen.workload.device import AWAIT_CONNACK, BLOCKED, CONNECTED
from loadgen.workload.fleet import Fleet
from loadgen.workload.traffic import release_held

_STALE_S = 0.1
"""How long an acknowledgement waits for others of its batch."""


class Outgoing:
    """Keeps the order of what a connection writes; `streams` takes that of streamed ones."""

    def __init__(self, fleet: Fleet, streams: Streams | None) -> None:
        self.pending: dict[int, bytearray] = {}
        self._fleet = fleet
        self._streams = streams
        self._held_before = fleet.devices["held"].copy()

    def write(self, connection: int, data: bytes) -> None:
        """Send control bytes in order with whatever else the connection writes."""
        device = self._fleet.devices[connection]
        device.written_ns = time.monotonic_ns()
        if self._streams is not None:
            self._streams.write(connection, data)
            return
        self.keep(connection, data)
        if not device.flags & BLOCKED and not self._is_drained(connection):
            device.flags |= BLOCKED

    def keep(self, connection: int, data: bytes) -> None:
        """Add bytes that wait until the socket is writable."""
        self.pending.setdefault(connection, bytearray()).extend(data)

    def discard(self, connection: int) -> None:
        """Forget what waits for a connection that is gone."""
        self.pending.pop(connection, None)

    def flush(self, connection: int) -> None:
        """A blocked connection takes bytes: first what was begun, then what is due."""
        state = self._fleet.devices[connection].state
        if state in (AWAIT_CONNACK, CONNECTED) and self._is_drained(connection):
            unblock(self._fleet, connection)

    def _is_drained(self, connection: int) -> bool:
        """Write what waits for the socket; whether nothing of it is left."""
        pending = self.pending.get(connection)
        if pending is not None:
            # A short write arms the edge again; a closed connection has an event of its own.
            with suppress(OSError):
                del pending[: os.write(self._fleet.devices[connection].descriptor, pending)]
            if pending:
                return False
            del self.pending[connection]
        return True

    def release_stale(self) -> float:
        """Send acknowledgements of batches that stopped growing; seconds until the next look."""
        fleet = self._fleet
        held = fleet.devices["held"].copy()
        for connection in np.flatnonzero((held > 0) & (held == self._held_before)).tolist():
            size = release_held(fleet, connection, 0)
            self.write(connection, fleet.out[:size].tobytes())
        self._held_before = held
        return _STALE_S
