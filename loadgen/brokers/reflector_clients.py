"""A client as the reflector sees it: its network connection, and its session that may outlive it.

This file knows the QoS exchanges and back-pressure, but neither topics nor faults.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from loadgen.brokers.child import Json, Serving
from loadgen.brokers.faults import COUNTED_AS, Counts
from loadgen.brokers.ports import listen
from loadgen.brokers.reflector_packets import (
    Outgoing,
    acknowledgement,
    disconnect,
    publish_packet,
    rejection,
)
from loadgen.brokers.transcript import Transcript
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt.constants import MQTT_5, PUBACK, PUBCOMP, PUBREC, PUBREL
from loadgen.mqtt.packets import Subscription, Will

FOREVER: Final = 0xFFFF_FFFF
"""The Session Expiry Interval that never ends (section 3.1.2.11.2)."""

BUFFER_BYTES: Final = 1 << 20
_READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20
_MAX_HELD_BYTES: Final = 1 << 30
_BACKLOG: Final = 4096


@dataclass(slots=True)
class Notes:
    """What all clients of a broker write down: counts, the memory that they share, and each packet
    that matters to a transcript."""

    counts: Counts = field(default_factory=Counts)
    held_bytes: int = 0
    transcript: Transcript = field(default_factory=Transcript)

    def fault(self, name: str, client_id: str, payload: bytes | None = None) -> None:
        """A fault of this name has happened to a client, or to its message."""
        count = COUNTED_AS[name]
        setattr(self.counts, count, getattr(self.counts, count) + 1)
        self.transcript.fault(name, client_id, payload)


@dataclass(slots=True, eq=False)
class Session:
    """What the broker keeps for a Client Identifier (MQTT 5, section 4.1)."""

    client_id: str
    notes: Notes
    connection: "Connection | None" = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    expiry_s: int = 0
    expiry_timer: asyncio.TimerHandle | None = None
    will: Will | None = None
    will_timer: asyncio.TimerHandle | None = None
    # Towards the client: Receive Maximum, and what is sent and not acknowledged, in its order;
    # None once PUBREC has come and PUBCOMP is awaited.
    window: int = 65535
    maximum_packet_bytes: int = FOREVER
    inflight: dict[int, Outgoing | None] = field(default_factory=dict)
    pending: deque[Outgoing] = field(default_factory=deque)
    next_packet_id: int = 1
    # From the client: QoS 2 messages that were served and await PUBREL, and those of them whose
    # PUBCOMP is never sent.
    received: set[int] = field(default_factory=set)
    withheld: set[int] = field(default_factory=set)
    # Deliveries with the time when they are due; of `mischief`.
    delay_line: deque[tuple[int, Outgoing]] = field(default_factory=deque)
    delay_timer: asyncio.TimerHandle | None = None

    @property
    def version(self) -> int:
        """The protocol version that the client speaks now, 0 while it is away."""
        return 0 if self.connection is None else self.connection.version

    def settle(self, item: Outgoing) -> None:
        """A delivery does not happen; nobody waits for it."""

    def send(self, item: Outgoing) -> None:
        """Deliver now, or when the client is there and its window has room."""
        connection, counts = self.connection, self.notes.counts
        if item.qos == 0:
            if connection is None:
                counts.discarded += 1
            else:
                self._write(connection, item, 0, dup=False)
        elif connection is None or self.pending or len(self.inflight) >= self.window:
            if self.notes.held_bytes > _MAX_HELD_BYTES:
                counts.discarded += 1
                return
            self.notes.held_bytes += item.weight_bytes
            self.pending.append(item)
        else:
            self._send_acknowledged(connection, item)

    def resume(self, connection: "Connection") -> None:
        """Section 4.4: what was not acknowledged goes again, in its order, before anything new."""
        for packet_id, item in list(self.inflight.items()):
            if item is None:
                self._release(connection, packet_id)
            else:
                self._write(connection, item, packet_id, dup=True)
        self.send_pending()

    def send_pending(self) -> None:
        """Send what waited, as far as the window goes."""
        connection = self.connection
        while connection is not None and self.pending and len(self.inflight) < self.window:
            item = self.pending.popleft()
            self.notes.held_bytes -= item.weight_bytes
            self._send_acknowledged(connection, item)

    def acknowledged(self, connection: "Connection", packet_type: int, packet_id: int) -> None:
        """A PUBACK, PUBREC, PUBREL or PUBCOMP without failure has come (section 4.3)."""
        inflight = self.inflight
        if packet_type == PUBACK:
            item = inflight.get(packet_id)
            if item is not None and item.qos == 1:
                del inflight[packet_id]
        elif packet_type == PUBREC:
            item = inflight.get(packet_id)
            if item is not None and item.qos == 2:
                inflight[packet_id] = None
            self._release(connection, packet_id)
        elif packet_type == PUBCOMP:
            if packet_id in inflight and inflight[packet_id] is None:
                del inflight[packet_id]
        else:
            self.received.discard(packet_id)
            if packet_id in self.withheld:
                self.withheld.discard(packet_id)
            else:
                connection.answer(PUBCOMP, packet_id)
        if self.pending:
            self.send_pending()

    def refused(self, packet_id: int) -> None:
        """A PUBREC with a failure: the message ends here, without PUBREL (section 4.3.3)."""
        self.inflight.pop(packet_id, None)
        self.send_pending()

    def end(self) -> None:
        """The session is over: stop its timers, give up what it held."""
        for timer in (self.expiry_timer, self.delay_timer):
            if timer is not None:
                timer.cancel()
        self.notes.held_bytes -= sum(item.weight_bytes for item in self.pending)
        self.notes.counts.discarded += len(self.pending) + len(self.delay_line)
        self.pending.clear()
        self.delay_line.clear()

    def _release(self, connection: "Connection", packet_id: int) -> None:
        connection.write(acknowledgement(PUBREL, packet_id))
        self.notes.transcript.release(self.client_id, packet_id)

    def _send_acknowledged(self, connection: "Connection", item: Outgoing) -> None:
        packet_id = self.next_packet_id
        while packet_id in self.inflight:
            packet_id = packet_id % 65535 + 1
        self.next_packet_id = packet_id % 65535 + 1
        if self._write(connection, item, packet_id, dup=False):
            self.inflight[packet_id] = item

    def _write(
        self, connection: "Connection", item: Outgoing, packet_id: int, *, dup: bool
    ) -> bool:
        packet = publish_packet(item, packet_id, connection.version, dup=dup)
        counts = self.notes.counts
        if len(packet) > self.maximum_packet_bytes:
            # Section 3.1.2.11.4: discarded as if it had been sent.
            counts.discarded += 1
            return False
        connection.write(packet)
        self.notes.transcript.deliver(self.client_id, packet_id, item, dup=dup)
        if dup:
            counts.redelivered += 1
        else:
            counts.delivered += 1
        return True


class Host:
    """What connections share: the buffer that all read into, and the broker that serves them."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.notes = Notes()
        self.stalled = False
        self.tick = 0
        self.grow_buffer(BUFFER_BYTES)

    def grow_buffer(self, size: int) -> None:
        """Replace the buffer by a larger one."""
        self.buffer = np.zeros(size, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]

    def consume(self, connection: "Connection", end: int) -> int:
        """Serve the packets in `view[:end]`; where the first incomplete one begins.

        Raises RemoteProtocolError when the client broke the protocol.
        """
        raise NotImplementedError

    def detach(self, connection: "Connection", *, clean: bool) -> None:
        """The connection has ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Cut every connection."""
        for connection in list(self.connections):
            connection.cut()

    async def listen(
        self,
        config: Json,
        protocol: Callable[[], asyncio.BaseProtocol],
        answer: Callable[[Json], Json],
        tls: ssl.SSLContext | None = None,
    ) -> Serving:
        """Listen where `config` says; what `run_child` wants."""
        listener = listen(config["host"], config["port"], _BACKLOG)
        server = await asyncio.get_running_loop().create_server(
            protocol, sock=listener, backlog=_BACKLOG, ssl=tls
        )

        def close() -> None:
            server.close()
            self.close()

        return Serving({"port": listener.getsockname()[1]}, answer, close)


class Connection(asyncio.BufferedProtocol):
    """One network connection: reads into the buffer that all share, writes with back-pressure."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.transport: asyncio.Transport
        self.session: Session | None = None
        self.client_id = ""
        self.version = MQTT_5
        # The bytes of a packet that has not come whole.
        self.partial = b""
        self.keep_alive_s = 0
        self.seen_tick = host.tick
        self.closed = False
        self.holds = 0
        # Whether its write buffer is full, and who waits until it is not.
        self.blocked = False
        self.held_up: set[Connection] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are no subclass of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.host.connections.add(self)
        if self.host.stalled:
            # uvloop begins to read right after this, whatever was said before, and may have read
            # once by the time that this is called; see `buffer_updated`.
            self.holds += 1
            asyncio.get_running_loop().call_soon(self._pause_if_held)

    def get_buffer(self, sizehint: int) -> memoryview:
        host, partial = self.host, self.partial
        if not partial:
            return host.view
        if len(partial) + _READ_BYTES > len(host.view):
            host.grow_buffer(2 * len(partial) + _READ_BYTES)
        host.view[: len(partial)] = partial
        return host.view[len(partial) :]

    def buffer_updated(self, nbytes: int) -> None:
        host = self.host
        end = len(self.partial) + nbytes
        if host.stalled:
            self.partial = bytes(host.view[:end])
        else:
            self._consume(end)

    def catch_up(self) -> None:
        """Serve what was read though the broker was stalled."""
        if self.partial and not self.closed:
            # Copies the partial packet to the beginning of the view, as before a read.
            self.get_buffer(-1)
            self._consume(len(self.partial))

    def _consume(self, end: int) -> None:
        host = self.host
        self.partial = b""
        self.seen_tick = host.tick
        try:
            position = host.consume(self, end)
        except RemoteProtocolError as error:
            host.notes.counts.protocol_errors += 1
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
        self.host.detach(self, clean=False)

    def write(self, data: bytes) -> None:
        """Send, unless this connection is already closing."""
        if not self.closed:
            self.transport.write(data)

    def answer(self, packet_type: int, packet_id: int, code: int = 0, reason: str = "") -> None:
        """Send PUBACK, PUBREC or PUBCOMP; of a failure MQTT 3.1.1 has none."""
        if code:
            self.write(rejection(packet_type, packet_id, code, reason))
        else:
            self.write(acknowledgement(packet_type, packet_id))
        self.host.notes.transcript.answer(self.client_id, packet_type, packet_id, code)

    def end(self, reason_code: int | None) -> None:
        """Close, with a DISCONNECT where the client understands one."""
        if self.closed:
            return
        if reason_code is not None and self.version == MQTT_5 and self.session is not None:
            self.transport.write(disconnect(reason_code))
        self.closed = True
        self.partial = b""
        self.host.detach(self, clean=False)
        self.transport.close()

    def cut(self) -> None:
        """Close at once, as a broken network would."""
        if not self.closed:
            self.closed = True
            self.partial = b""
            self.host.detach(self, clean=False)
            self.transport.abort()

    def hold(self) -> None:
        """Stop reading until `release` has been called as often."""
        self.holds += 1
        if self.holds == 1 and not self.transport.is_closing():
            self.transport.pause_reading()

    def _pause_if_held(self) -> None:
        if self.holds and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self) -> None:
        """Undo one `hold`."""
        self.holds -= 1
        if self.holds == 0 and not self.transport.is_closing():
            self.transport.resume_reading()

    def wait_for(self, other: "Connection") -> None:
        """Stop reading until `other` has room to write: back-pressure instead of a heap."""
        if self not in other.held_up:
            other.held_up.add(self)
            self.hold()
