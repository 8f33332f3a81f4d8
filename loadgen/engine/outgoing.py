"""What Python writes to connections: control packets, and what kernels left behind.

Owns the bytes that wait for a blocked socket, and looks after acknowledgements that wait for a
batch which does not fill.
"""

import os
from collections import deque
from contextlib import suppress

import numpy as np

from loadgen.engine.clock import clock_ns
from loadgen.engine.streams import Streams, unblock
from loadgen.workload.device import AWAIT_CONNACK, BLOCKED, CONNECTED
from loadgen.workload.fleet import Fleet
from loadgen.workload.traffic import release_held

_STALE_S = 0.1
"""How long an acknowledgement waits for others of its batch."""


class Outgoing:
    """Keeps the order of what a connection writes; `streams` takes that of streamed ones."""

    def __init__(self, fleet: Fleet, streams: Streams | None) -> None:
        self.pending: dict[int, deque[memoryview]] = {}
        self._fleet = fleet
        self._body = memoryview(fleet.body.data).toreadonly()
        self._streams = streams
        self._held_before = fleet.devices["held"].copy()

    def write(self, connection: int, data: bytes, body_bytes: int = 0) -> None:
        """Send bytes in order with whatever else the connection writes.

        `body_bytes` of the body follow them.
        """
        device = self._fleet.devices[connection]
        device.written_ns = clock_ns()
        if self._streams is not None:
            self._streams.write(connection, data)
            self._streams.write_body(connection, body_bytes)
            return
        self.keep(connection, data)
        self.keep_body(connection, 0, body_bytes)
        if not device.flags & BLOCKED and not self._is_drained(connection):
            device.flags |= BLOCKED

    def keep(self, connection: int, data: bytes | memoryview) -> None:
        """Add bytes that wait until the socket is writable."""
        self.pending.setdefault(connection, deque()).append(memoryview(data))

    def keep_body(self, connection: int, start: int, end: int) -> None:
        """Add a part of the body, which is not copied."""
        if start < end:
            self.pending.setdefault(connection, deque()).append(self._body[start:end])

    def taken(self, connection: int) -> list[memoryview]:
        """What waits for a connection's socket, which is the caller's to write from now on."""
        return list(self.pending.pop(connection, ()))

    def discard(self, connection: int) -> None:
        """Forget what waits for a connection that is gone."""
        self.pending.pop(connection, None)

    def flush(self, connection: int) -> None:
        """A blocked connection takes bytes: first what was begun, then what is due."""
        if self._streams is not None:
            self._streams.flush(connection)
            return
        state = self._fleet.devices[connection].state
        if state in (AWAIT_CONNACK, CONNECTED) and self._is_drained(connection):
            unblock(self._fleet, connection)

    def _is_drained(self, connection: int) -> bool:
        """Write what waits for the socket; whether nothing of it is left."""
        pending = self.pending.get(connection, ())
        while pending:
            written = 0
            # A short write arms the edge again; a closed connection has an event of its own.
            with suppress(OSError):
                written = os.write(self._fleet.devices[connection].descriptor, pending[0])
            if written < len(pending[0]):
                pending[0] = pending[0][written:]
                return False
            pending.popleft()
        self.pending.pop(connection, None)
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
