"""What Python writes to connections: control packets, and what a socket did not take at once.

Owns the bytes that wait for a blocked socket.
"""

import os
import time

from loadgen.engine.fleet import Fleet
from loadgen.engine.streams import Streams, unblock
from loadgen.workload.traffic import (
    AWAIT_CONNACK,
    BLOCKED,
    CONNECTED,
    FD,
    FLAGS,
    STATE,
    STREAMED,
    WRITTEN_NS,
)


class Outgoing:
    """Keeps the order of what a connection writes; `streams` takes that of streamed ones."""

    def __init__(self, fleet: Fleet, streams: Streams | None) -> None:
        self.pending: dict[int, bytearray] = {}
        self._fleet = fleet
        self._streams = streams

    def write(self, connection: int, data: bytes) -> None:
        """Send control bytes in order with whatever else the connection writes."""
        row = self._fleet.connections[connection]
        row[WRITTEN_NS] = time.monotonic_ns()
        if row[FLAGS] & STREAMED:
            if self._streams is not None:
                self._streams.write(connection, data)
            return
        sent = 0
        if not row[FLAGS] & BLOCKED:
            try:
                sent = os.write(int(row[FD]), data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the closed connection has an event of its own
        if sent < len(data):
            self.keep(connection, data[sent:])
            row[FLAGS] |= BLOCKED

    def keep(self, connection: int, data: bytes) -> None:
        """Add bytes that wait until the socket is writable."""
        self.pending.setdefault(connection, bytearray()).extend(data)

    def discard(self, connection: int) -> None:
        """Forget what waits for a connection that is gone."""
        self.pending.pop(connection, None)

    def flush(self, connection: int) -> None:
        """A blocked connection takes bytes: first what was begun, then what is due."""
        row = self._fleet.connections[connection]
        if row[STATE] not in (AWAIT_CONNACK, CONNECTED):
            return
        pending = self.pending.get(connection)
        if pending:
            try:
                sent = os.write(int(row[FD]), pending)
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
