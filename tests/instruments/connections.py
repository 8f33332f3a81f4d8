"""Connections of the relay, which all read into one buffer."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

import numpy as np

from loadgen.brokers.ports import listen
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt.constants import MQTT_5
from tests.instruments.packets import acknowledgement

_BUFFER_BYTES: Final = 1 << 20
_READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20
_BACKLOG: Final = 4096


class Host:
    """The server of connections, with the buffer into which all of them read."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.grow_buffer(_BUFFER_BYTES)

    def grow_buffer(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]

    def consume(self, connection: "Connection", end: int) -> int:
        """Serve the packets in `view[:end]` and return where the first incomplete one begins.

        Raises RemoteProtocolError if the client violates the protocol.
        """
        raise NotImplementedError

    def detach(self, connection: "Connection") -> None:
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

    def __init__(self, host: Host) -> None:
        self.host = host
        self.transport: asyncio.Transport
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

    def wait_for(self, other: "Connection") -> None:
        """Stop reading until `other` has room to write."""
        if self not in other.held_up:
            other.held_up.add(self)
            self.hold()
