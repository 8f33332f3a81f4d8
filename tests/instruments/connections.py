"""Connections of the relay with clients and the broker, which all read into one buffer."""

import asyncio
from typing import TYPE_CHECKING, Final, cast

from loadgen.errors import RemoteProtocolError
from loadgen.mqtt.constants import MQTT_5
from tests.instruments.packets import acknowledgement

if TYPE_CHECKING:
    from tests.instruments.relay import Client, Relay

_READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20


class Side(asyncio.BufferedProtocol):
    """One of the two connections by which a client and the broker are joined.

    It reads into the shared buffer, but not during a stall, and writes with back-pressure. Its
    answers are in the transcript.
    """

    client: "Client"
    other: "Side | None" = None

    def __init__(self, host: "Relay") -> None:
        self.host = host
        self.client_id = ""
        self.transport: asyncio.Transport
        self.version = MQTT_5
        # The bytes of an incomplete packet.
        self.partial = b""
        self.closed = False
        self.holds = 0
        # True while the write buffer is full, and the connections that wait for its end.
        self.blocked = False
        self.held_up: set[Side] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are no subclass of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.host.connections.add(self)
        if self.host.stalled:
            # uvloop begins to read right after this, and may read once before it pauses; see
            # `buffer_updated`.
            self.holds += 1
            asyncio.get_running_loop().call_soon(self._pause_if_held)

    def _pause_if_held(self) -> None:
        if self.holds and not self.transport.is_closing():
            self.transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        host, partial = self.host, self.partial
        if not partial:
            return host.view
        if len(partial) + _READ_BYTES > len(host.view):
            host.grow_buffer(2 * len(partial) + _READ_BYTES)
        host.view[: len(partial)] = partial
        return host.view[len(partial) :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.host.stalled:
            self.partial = bytes(self.host.view[: len(self.partial) + nbytes])
        else:
            self.consume(len(self.partial) + nbytes)

    def catch_up(self) -> None:
        """Serve what was read during a stall."""
        if self.partial and not self.closed:
            # Copies the partial packet to the beginning of the view, as before a read.
            self.get_buffer(-1)
            self.consume(len(self.partial))

    def consume(self, end: int) -> None:
        """Serve the first `end` bytes of the buffer."""
        self.partial = b""
        try:
            position = self.host.consume(self, end)
        except RemoteProtocolError:
            self.end()
            return
        if position < end and not self.closed:
            self.partial = bytes(self.host.view[position:end])

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
        self.write(acknowledgement(packet_type, packet_id))
        self.host.notes.transcript.answer(self.client_id, packet_type, packet_id, 0)

    def end(self) -> None:
        """Close after everything is sent."""
        if not self.closed:
            self._leave()
            self.transport.close()

    def cut(self) -> None:
        """Close at once, without a DISCONNECT."""
        if not self.closed:
            self._leave()
            self.transport.abort()

    def _leave(self) -> None:
        self.closed = True
        self.partial = b""
        self.host.detach(self)

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

    def wait_for(self, other: "Side") -> None:
        """Stop reading until `other` has room to write."""
        if self not in other.held_up:
            other.held_up.add(self)
            self.hold()
