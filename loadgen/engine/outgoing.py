"""What Python writes to connections: control packets, and what a socket did not take at once.

Owns the bytes that wait for a blocked socket.
"""

import os
import time

from loadgen.engine.streams import Streams, unblock
from loadgen.workload.device import AWAIT_CONNACK, BLOCKED, CONNECTED, STREAMED
from loadgen.workload.fleet import Fleet


class Outgoing:
    """Keeps the order of what a connection writes; `streams` takes that of streamed ones."""

    def __init__(self, fleet: Fleet, streams: Streams | None) -> None:
        self.pending: dict[int, bytearray] = {}
        self._fleet = fleet
        self._streams = streams

    def write(self, connection: int, data: bytes) -> None:
        """Send control bytes in order with whatever else the connection writes."""
        device = self._fleet.devices[connection]
        device.written_ns = time.monotonic_ns()
        if device.flags & STREAMED:
            if self._streams is not None:
                self._streams.write(connection, data)
            return
        sent = 0
        if not device.flags & BLOCKED:
            try:
                sent = os.write(device.descriptor, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the closed connection has an event of its own
        if sent < len(data):
            self.keep(connection, data[sent:])
            device.flags |= BLOCKED

    def keep(self, connection: int, data: bytes) -> None:
        """Add bytes that wait until the socket is writable."""
        self.pending.setdefault(connection, bytearray()).extend(data)

    def discard(self, connection: int) -> None:
        """Forget what waits for a connection that is gone."""
        self.pending.pop(connection, None)

    def flush(self, connection: int) -> None:
        """A blocked connection takes bytes: first what was begun, then what is due."""
        device = self._fleet.devices[connection]
        if device.state not in (AWAIT_CONNACK, CONNECTED):
            return
        pending = self.pending.get(connection)
        if pending:
            try:
                sent = os.write(device.descriptor, pending)
            except BlockingIOError:
                return
            except OSError:
                return  # the closed connection has an event of its own
            del pending[:sent]
            if pending:
                # A short write armed the edge again.
                return
            del self.pending[connection]
        unblock(self._fleet, connection)
