"""Writes by Python to connections: control packets, and bytes that kernels could not send."""

import os
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from loadgen.kernels.device import AWAIT_CONNACK, BLOCKED, CONNECTED
from loadgen.kernels.receiver import release_held
from loadgen.kernels.sender import requeue
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.clock import clock_ns

_STALE_S = 0.1  # longest time for which an acknowledgement waits for others of its batch


class Writer(Protocol):
    """The writer to a socket; bytes that `send` did not take must be sent before others."""

    def send(self, data: memoryview, /) -> int: ...


class Outgoing:
    """Queues that preserve the order of the bytes of each connection."""

    def __init__(self, fleet: PlannedFleet) -> None:
        self.pending: dict[int, deque[memoryview]] = {}
        self.links: Mapping[int, Writer] = {}  # of streamed connections; others have descriptors
        self._fleet = fleet
        self._body = memoryview(fleet.body.data).toreadonly()
        self._flags, self._written_ns = (fleet.devices[name] for name in ("flags", "written_ns"))
        self._held_before = fleet.devices["held"].copy()

    def write(self, connection: int, data: bytes, body_bytes: int = 0) -> None:
        """Send bytes, and `body_bytes` of the body, after all earlier ones of the connection."""
        self._written_ns[connection] = clock_ns()
        self.keep(connection, data)
        if body_bytes:
            body = int(self._fleet.groups["body_first"][self._fleet.group[connection]])
            self.keep_body(connection, body, body + body_bytes)
        self.go_on(connection)

    def keep(self, connection: int, data: bytes | memoryview) -> None:
        """Add bytes that wait until the socket is writable."""
        self.pending.setdefault(connection, deque()).append(memoryview(data))

    def keep_body(self, connection: int, start: int, end: int) -> None:
        """Add a part of the body, which is not copied."""
        if start < end:
            self.pending.setdefault(connection, deque()).append(self._body[start:end])

    def taken(self, connection: int) -> list[memoryview]:
        """Return and remove the bytes that wait for a connection's socket."""
        return list(self.pending.pop(connection, ()))

    def flush(self, connection: int) -> None:
        """Continue a blocked connection: first unsent bytes, then due messages."""
        device = self._fleet.devices[connection]
        if device.state in (AWAIT_CONNACK, CONNECTED) and self._is_drained(connection):
            device.flags &= ~BLOCKED
            requeue(self._fleet, connection)

    def go_on(self, connection: int) -> None:
        """Write the waiting bytes, unless the connection is blocked."""
        if not self._flags[connection] & BLOCKED and not self._is_drained(connection):
            self._flags[connection] |= BLOCKED

    def _is_drained(self, connection: int) -> bool:
        """Write the waiting bytes; return True if none is left."""
        pending = self.pending.get(connection, ())
        link = self.links.get(connection)
        while pending:
            data = pending[0]
            # A failed write arms the edge again; a closed connection has a separate event.
            try:
                if link is None:
                    written = os.write(self._fleet.devices[connection].descriptor, data)
                else:
                    written = link.send(data)
            except OSError:
                return False
            if written < len(data):
                pending[0] = data[written:]
            else:
                pending.popleft()
        self.pending.pop(connection, None)
        return True

    def release_stale(self) -> float:
        """Send acknowledgements of batches that stopped growing; return seconds until the next."""
        fleet = self._fleet
        held = fleet.devices["held"].copy()
        for connection in np.flatnonzero((held > 0) & (held == self._held_before)).tolist():
            size = release_held(fleet, connection, 0)
            self.write(connection, fleet.out[:size].tobytes())
        self._held_before = held
        return _STALE_S
