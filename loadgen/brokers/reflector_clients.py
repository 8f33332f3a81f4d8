"""A client of the reflector: its network connection, and its session, which may outlive it.

QoS exchanges and back-pressure are here; topics and subscriptions are in `reflector.py`.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from loadgen.brokers.ports import listen
from loadgen.brokers.reflector_packets import (
    QueuedMessage,
    acknowledgement,
    disconnect,
    publish_packet,
)
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt.constants import MQTT_5, PUBACK, PUBCOMP, PUBREC, PUBREL

BUFFER_BYTES: Final = 1 << 20
_READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20
_MAX_HELD_BYTES: Final = 1 << 30
_BACKLOG: Final = 4096


@dataclass(slots=True)
class ReflectorCounts:
    """Counts since the start. A delivery is one PUBLISH to one subscriber."""

    connects: int = 0
    disconnects: int = 0
    protocol_errors: int = 0
    """Connections closed because the client violated the protocol."""
    received: int = 0
    """PUBLISH packets served."""
    delivered: int = 0
    """PUBLISH packets written to subscribers, without redelivery after a reconnect."""
    redelivered: int = 0
    """PUBLISH packets written again when a session was resumed."""
    discarded: int = 0
    """Deliveries that MQTT lets a broker discard: QoS 0 to an absent client, and messages of a
    session that ended."""
    held: int = 0
    """Deliveries waiting now, for an absent client or a full window."""
    held_bytes: int = 0
    connected: int = 0
    """Clients connected now."""


@dataclass(slots=True, eq=False)
class Session:
    """The state of a Client Identifier (MQTT 5, section 4.1)."""

    client_id: str
    counts: ReflectorCounts
    connection: "Connection | None" = None
    subscriptions: set[str] = field(default_factory=set)
    lasts: bool = False  # it outlives the connection
    # Towards the client: Receive Maximum, and what is sent and not acknowledged, in its order;
    # None once PUBREC has come and PUBCOMP is awaited.
    window: int = 65535
    inflight: dict[int, QueuedMessage | None] = field(default_factory=dict)
    pending: deque[QueuedMessage] = field(default_factory=deque)
    next_packet_id: int = 1
    # From the client: QoS 2 messages that were served and await PUBREL.
    received: set[int] = field(default_factory=set)

    def send(self, item: QueuedMessage) -> None:
        """Deliver now, or once the client is connected and its window has room."""
        connection, counts = self.connection, self.counts
        if item.qos == 0:
            if connection is None:
                counts.discarded += 1
            else:
                self._write(connection, item, 0, dup=False)
        elif connection is None or self.pending or len(self.inflight) >= self.window:
            if counts.held_bytes > _MAX_HELD_BYTES:
                counts.discarded += 1
                return
            counts.held_bytes += item.weight_bytes
            self.pending.append(item)
        else:
            self._send_acknowledged(connection, item)

    def resume(self, connection: "Connection") -> None:
        """Send unacknowledged messages again, in their order, before new ones (section 4.4)."""
        for packet_id, item in list(self.inflight.items()):
            if item is None:
                connection.answer(PUBREL, packet_id)
            else:
                self._write(connection, item, packet_id, dup=True)
        self.send_pending()

    def send_pending(self) -> None:
        """Send waiting messages as far as the window allows."""
        connection = self.connection
        while connection is not None and self.pending and len(self.inflight) < self.window:
            item = self.pending.popleft()
            self.counts.held_bytes -= item.weight_bytes
            self._send_acknowledged(connection, item)

    def acknowledged(self, connection: "Connection", packet_type: int, packet_id: int) -> None:
        """Handle a PUBACK, PUBREC, PUBREL or PUBCOMP without failure (section 4.3)."""
        inflight = self.inflight
        if packet_type == PUBACK:
            item = inflight.get(packet_id)
            if item is not None and item.qos == 1:
                del inflight[packet_id]
        elif packet_type == PUBREC:
            item = inflight.get(packet_id)
            if item is not None and item.qos == 2:
                inflight[packet_id] = None
            connection.answer(PUBREL, packet_id)
        elif packet_type == PUBCOMP:
            if packet_id in inflight and inflight[packet_id] is None:
                del inflight[packet_id]
        else:
            self.received.discard(packet_id)
            connection.answer(PUBCOMP, packet_id)
        if self.pending:
            self.send_pending()

    def refused(self, packet_id: int) -> None:
        """Handle a PUBREC with a failure, which ends a message (section 4.3.3)."""
        self.inflight.pop(packet_id, None)
        self.send_pending()

    def end(self) -> None:
        """Discard the session's messages."""
        self.counts.held_bytes -= sum(item.weight_bytes for item in self.pending)
        self.counts.discarded += len(self.pending)
        self.pending.clear()

    def _send_acknowledged(self, connection: "Connection", item: QueuedMessage) -> None:
        packet_id = self.next_packet_id
        while packet_id in self.inflight:
            packet_id = packet_id % 65535 + 1
        self.next_packet_id = packet_id % 65535 + 1
        self.inflight[packet_id] = item
        self._write(connection, item, packet_id, dup=False)

    def _write(
        self, connection: "Connection", item: QueuedMessage, packet_id: int, *, dup: bool
    ) -> None:
        connection.write(publish_packet(item, packet_id, connection.version, dup=dup))
        if dup:
            self.counts.redelivered += 1
        else:
            self.counts.delivered += 1


class ReflectorHost:
    """The broker that serves connections, with the buffer into which all of them read."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.counts = ReflectorCounts()
        self.grow_buffer(BUFFER_BYTES)

    def grow_buffer(self, size: int) -> None:
        """Replace the buffer by a larger one."""
        self.buffer = np.zeros(size, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]

    def consume(self, connection: "Connection", end: int) -> int:
        """Serve the packets in `view[:end]` and return where the first incomplete one begins.

        Raises RemoteProtocolError if the client violates the protocol.
        """
        raise NotImplementedError

    def detach(self, connection: "Connection") -> None:
        """Handle the end of a connection."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening, and cut every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.cut()

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Listen, and return the port; `port` 0 chooses one."""
        listener = listen(host, port, _BACKLOG)
        self._server = await asyncio.get_running_loop().create_server(
            protocol, sock=listener, backlog=_BACKLOG, ssl=tls
        )
        chosen: int = listener.getsockname()[1]
        return chosen


class Connection(asyncio.BufferedProtocol):
    """A network connection that reads into the shared buffer and writes with back-pressure."""

    def __init__(self, host: ReflectorHost) -> None:
        self.host = host
        self.transport: asyncio.Transport
        self.session: Session | None = None
        self.version = MQTT_5
        # The bytes of an incomplete packet.
        self.partial = b""
        self.closed = False
        self.holds = 0
        # True while the write buffer is full, and the connections that wait for its end.
        self.blocked = False
        self.held_up: set[Connection] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are no subclass of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.host.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        host, partial = self.host, self.partial
        if not partial:
            return host.view
        if len(partial) + _READ_BYTES > len(host.view):
            host.grow_buffer(2 * len(partial) + _READ_BYTES)
        host.view[: len(partial)] = partial
        return host.view[len(partial) :]

    def buffer_updated(self, nbytes: int) -> None:
        self.consume(len(self.partial) + nbytes)

    def consume(self, end: int) -> None:
        """Serve the first `end` bytes of the buffer."""
        host = self.host
        self.partial = b""
        try:
            position = host.consume(self, end)
        except RemoteProtocolError as error:
            host.counts.protocol_errors += 1
            self.end(error.reason_code)
            return
        if position < end and not self.closed:
            self.partial = bytes(host.view[position:end])

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        waiting, self.held_up = self.held_up, set()
        for connection in waiting:
            connection.release()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.resume_writing()
        self.host.connections.discard(self)
        self.host.detach(self)

    def write(self, data: bytes) -> None:
        """Send, unless this connection is already closing."""
        if not self.closed:
            self.transport.write(data)

    def answer(self, packet_type: int, packet_id: int) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self.write(acknowledgement(packet_type, packet_id))

    def end(self, reason_code: int | None) -> None:
        """Close, with a DISCONNECT if the client understands it."""
        if self.closed:
            return
        if reason_code is not None and self.version == MQTT_5 and self.session is not None:
            self.transport.write(disconnect(reason_code))
        self.closed = True
        self.partial = b""
        self.host.detach(self)
        self.transport.close()

    def cut(self) -> None:
        """Close at once, without a DISCONNECT."""
        if not self.closed:
            self.closed = True
            self.partial = b""
            self.host.detach(self)
            self.transport.abort()

    def hold(self) -> None:
        """Stop reading until `release` has been called as often."""
        self.holds += 1
        if self.holds == 1 and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self) -> None:
        """Undo one `hold`."""
        self.holds -= 1
        if self.holds == 0 and not self.transport.is_closing():
            self.transport.resume_reading()

    def wait_for(self, other: "Connection") -> None:
        """Stop reading until `other` has room to write."""
        if self not in other.held_up:
            other.held_up.add(self)
            self.hold()
