"""Connections whose bytes do not go straight to a socket: TLS and WebSocket, through transports.

The same kernels handle their packets; only reading and writing differ. One protocol object a
connection, which holds its row and, for WebSocket, the framing of the websockets library.
"""

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadgen.engine.clock import clock_ns
from loadgen.engine.endings import ending
from loadgen.engine.reactor import ReceiveKernel, keep_partial
from loadgen.engine.syscalls import open_socket
from loadgen.engine.tls import Handshakes
from loadgen.errors import UsageError
from loadgen.workload import traffic
from loadgen.workload.device import (
    AWAIT_CONNACK,
    BLOCKED,
    BODY,
    CONNECT,
    OPEN,
    RETRY,
    transition,
)
from loadgen.workload.fleet import Fleet
from loadgen.workload.groups import Target, Tls

_PIECE_BYTES = 64 * 1024


def unblock(fleet: Fleet, connection: int) -> None:
    """The device may write again."""
    fleet.devices[connection].flags &= ~BLOCKED
    traffic.requeue(fleet, connection)


class _Stream(asyncio.BaseProtocol):
    """One streamed connection."""

    __slots__ = ("connection", "streams", "transport", "waiting")

    def __init__(self, streams: "Streams", connection: int) -> None:
        self.streams = streams
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[memoryview] | tuple[()] = ()
        """What the transport is given when it has written what it has."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    async def opened(self) -> None:
        """Wait until MQTT may begin."""

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def write_later(self, data: memoryview) -> None:
        """Write bytes of which the transport shall not hold more than a piece."""
        self.waiting = self.waiting or deque()
        self.waiting.append(data)
        self._write_waiting()

    def _write_waiting(self) -> None:
        device = self.streams.fleet.devices[self.connection]
        while self.waiting and not device.flags & BLOCKED:
            data = self.waiting.popleft()
            if len(data) > _PIECE_BYTES:
                self.waiting.appendleft(data[_PIECE_BYTES:])
            self.write(bytes(data[:_PIECE_BYTES]))

    def pause_writing(self) -> None:
        self.streams.fleet.devices[self.connection].flags |= BLOCKED

    def resume_writing(self) -> None:
        self.go_on()
        self.streams.on_events()

    def go_on(self) -> None:
        """Write what waits, and when all of it is out let the device write again."""
        device = self.streams.fleet.devices[self.connection]
        device.flags &= ~BLOCKED
        self._write_waiting()
        if not device.flags & BLOCKED:
            unblock(self.streams.fleet, self.connection)

    def close(self, *, unused: bool = False) -> None:
        """Close it for good, unreported; what MQTT has written still goes out."""
        transport, self.transport = self.transport, None
        if transport is not None:
            (transport.abort if unused else transport.close)()

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is not None:
            self.transport = None
            self.streams.failed(self.connection, ending(0) if error is None else _reason(error))


class _TlsStream(_Stream, asyncio.BufferedProtocol):
    """One connection over TLS, read straight into the kernels' buffer."""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.streams.get_buffer(self.connection)

    def buffer_updated(self, nbytes: int) -> None:
        self.streams.received(self.connection, nbytes)

    def eof_received(self) -> bool:
        return False


MQTT = Subprotocol("mqtt")
"""What a WebSocket connection asks for (MQTT 5, section 6)."""


def websocket_uri(target: Target) -> str:
    host = target.name or target.host
    host = f"[{host}]" if ":" in host else host
    return f"{target.transport}://{host}:{target.port}{target.path}"


class _WebSocketStream(_Stream, asyncio.Protocol):
    """One connection over WebSocket (MQTT 5, section 6): binary frames carry the byte stream."""

    def __init__(self, streams: "Streams", connection: int) -> None:
        super().__init__(streams, connection)
        uri = parse_uri(websocket_uri(streams.target_of(connection)))
        self.framing = ClientProtocol(uri, subprotocols=[MQTT])
        self.answered: asyncio.Future[None] = streams.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.framing.send_request(self.framing.connect())
        self._flush()

    async def opened(self) -> None:
        """Wait for the answer to the upgrade; raises InvalidHandshake when it is refused."""
        await self.answered
        if self.framing.handshake_exc is not None:
            raise InvalidHandshake(str(self.framing.handshake_exc))

    def data_received(self, data: bytes) -> None:
        self.framing.receive_data(data)
        for event in self.framing.events_received():
            if isinstance(event, Response):
                if not self.answered.done():
                    self.answered.set_result(None)
            elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                self.streams.take(self.connection, bytes(event.data))
        self._flush()
        if self.framing.close_expected() and self.transport is not None:
            self.transport.close()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.framing.send_binary(data)
            self._flush()

    def _flush(self) -> None:
        for data in self.framing.data_to_send():
            if data:
                super().write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.answered.done():
            super().connection_lost(error)
        else:
            self.answered.set_exception(ConnectionResetError(errno.ECONNRESET, "closed"))
            self.answered.exception()


class Streams:
    """The streamed connections of a worker.

    `failed(connection, reason)` is called for one that could not be made, or ended; `on_events`
    when a kernel may have left something for Python; `kernel` handles what a device received.
    """

    def __init__(
        self,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        on_events: Callable[[], None],
        failed: Callable[[int, str], None],
        kernel: ReceiveKernel,
    ) -> None:
        self.fleet = fleet
        self.loop = loop
        self.on_events = on_events
        self.failed = failed
        self.handshakes = Handshakes(fleet.plan.tls or Tls())
        self._kernel = kernel
        self._view = memoryview(fleet.buffer.data)
        self._out = memoryview(fleet.out.data)
        self._body = memoryview(fleet.body.data).toreadonly()
        self._protocols: dict[int, _Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    # --- connecting ---------------------------------------------------------------------------

    def connect(self, connection: int) -> None:
        """Begin to connect a device: TCP, then TLS and WebSocket, then CONNECT."""
        device = self.fleet.devices[connection]
        transition(self.fleet, connection, RETRY)
        transition(self.fleet, connection, CONNECT)
        device.syn_ns = clock_ns()
        device.partial_bytes = 0
        device.flags &= ~BODY
        self._tasks[connection] = self.loop.create_task(self._connect(connection))

    async def _connect(self, connection: int) -> None:
        try:
            protocol = await self._open(connection)
        except (OSError, InvalidHandshake, UsageError) as error:
            self.failed(connection, _reason(error))
            return
        finally:
            if self._tasks.get(connection) is asyncio.current_task():
                del self._tasks[connection]
        fleet = self.fleet
        device = fleet.devices[connection]
        self._protocols[connection] = protocol
        device.tcp_ns = device.written_ns = clock_ns()
        transition(fleet, connection, OPEN)
        start, end = fleet.connect_ends[connection : connection + 2].tolist()
        self.write(connection, fleet.connect_packets[start:end].tobytes())

    async def _open(self, connection: int) -> _Stream:
        """A connection over which MQTT may begin; nothing of it is left when that fails."""
        device = self.fleet.devices[connection]
        target = self.target_of(connection)
        stream = _WebSocketStream if target.transport in ("ws", "wss") else _TlsStream
        family, address = _socket_name(self.fleet.addresses[device.target].tobytes())
        with ExitStack() as undo:
            sock = _open_socket(family, self.fleet)
            undo.callback(sock.close)
            device.syn_ns = clock_ns()
            await self.loop.sock_connect(sock, address)
            tcp_ns = clock_ns()
            self._record(connection, traffic.S_TCP, tcp_ns - device.syn_ns)
            context = self.context_of(connection)
            transport, protocol = await self.loop.create_connection(
                lambda: stream(self, connection),
                sock=sock,
                ssl=context,
                server_hostname=None if context is None else target.name or target.host,
            )
            undo.callback(protocol.close, unused=True)
            if context is not None:
                self._record(connection, traffic.S_TLS, clock_ns() - tcp_ns)
                self.handshakes.count(transport.get_extra_info("ssl_object"))
            await protocol.opened()
            undo.pop_all()
        return protocol

    def target_of(self, connection: int) -> Target:
        return self.fleet.plan.targets[self.fleet.devices[connection].target]

    def context_of(self, connection: int) -> ssl.SSLContext | None:
        """The TLS context of a device; None without encryption."""
        if self.target_of(connection).transport not in ("tls", "wss"):
            return None
        return self.handshakes.context_of(int(self.fleet.device[connection]))

    def _record(self, connection: int, series: int, value_ns: int) -> None:
        fleet = self.fleet
        slot = traffic.slot_of(int(fleet.group[connection]), series, traffic.CONNECT_PHASE)
        traffic.record(fleet, slot, value_ns)

    # --- reading ------------------------------------------------------------------------------

    def take(self, connection: int, data: bytes) -> None:
        """Handle bytes that came out of WebSocket frames."""
        position = 0
        while position < len(data):
            view = self.get_buffer(connection)
            part = data[position : position + len(view)]
            view[: len(part)] = part
            position += len(part)
            self.received(connection, len(part))

    def get_buffer(self, connection: int) -> memoryview:
        """The shared buffer, behind the connection's part of a packet."""
        kept = self.fleet.devices[connection].partial_bytes
        if kept:
            self.fleet.buffer[:kept] = self.fleet.partial[connection, :kept]
        return self._view[kept:]

    def received(self, connection: int, count: int) -> None:
        """Handle `count` bytes that came into the buffer given before."""
        fleet = self.fleet
        device = fleet.devices[connection]
        end = device.partial_bytes + count
        now_ns = clock_ns()
        if device.state == AWAIT_CONNACK:
            self.handshakes.keep_session(self._protocols[connection].transport)
        position, written = self._kernel(fleet, connection, end, now_ns)
        keep_partial(fleet, connection, fleet.buffer, position, end, now_ns)
        if written:
            self.write(connection, bytes(self._out[:written]))
            device.written_ns = now_ns
        self.on_events()

    # --- writing ------------------------------------------------------------------------------

    def write(self, connection: int, data: bytes) -> None:
        """Hand bytes to the transport, if there is still one, in order with what waits for it."""
        protocol = self._protocols.get(connection)
        if protocol is None:
            return
        if protocol.waiting:
            protocol.write_later(memoryview(data))
        else:
            protocol.write(data)

    def write_segments(self, count: int) -> None:
        """Write what `pump` left in `out`: one write a batch."""
        for connection, start, end, body_bytes in self.fleet.segments[:count].tolist():
            self.write(connection, bytes(self._out[start:end]))
            self.write_body(connection, body_bytes)

    def write_body(self, connection: int, length: int) -> None:
        """Write so much of the body, in pieces while the transport takes them."""
        protocol = self._protocols.get(connection)
        if protocol is not None and length:
            protocol.write_later(self._body[:length])

    def flush(self, connection: int) -> None:
        """The device may write: first what waits, then what is due."""
        protocol = self._protocols.get(connection)
        if protocol is not None:
            protocol.go_on()

    def descriptors(self) -> list[int]:
        """Those of the connections that are open."""
        open_ = (p.transport for p in self._protocols.values() if p.transport is not None)
        sockets = (transport.get_extra_info("socket") for transport in open_)
        return [sock.fileno() for sock in sockets if sock is not None]

    def close(self, connection: int) -> None:
        """Close a connection for good, or give up making it."""
        task = self._tasks.pop(connection, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        protocol = self._protocols.pop(connection, None)
        if protocol is not None:
            protocol.close()


def _open_socket(family: int, fleet: Fleet) -> socket.socket:
    """A socket as those of plain connections are."""
    descriptor = open_socket(family, fleet.source, fleet.words)
    if descriptor < 0:
        raise OSError(-descriptor, os.strerror(-descriptor))
    return socket.socket(family, socket.SOCK_STREAM, fileno=descriptor)


def _socket_name(address: bytes) -> tuple[int, tuple[str, int] | tuple[str, int, int, int]]:
    """Family and Python's form of a `struct sockaddr` of `fleet.socket_address`."""
    family = int.from_bytes(address[:2], sys.byteorder)
    port = int.from_bytes(address[2:4], "big")
    if family == socket.AF_INET:
        return family, (socket.inet_ntop(family, address[4:8]), port)
    scope = int.from_bytes(address[24:28], sys.byteorder)
    return family, (socket.inet_ntop(family, address[8:24]), port, 0, scope)


def _reason(error: Exception) -> str:
    """Why a connection could not be made, in a few words that many devices share."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'handshake failed'}"
    if isinstance(error, InvalidHandshake):
        return "WebSocket refused"
    if isinstance(error, OSError) and error.errno is not None:
        return ending(error.errno)
    return type(error).__name__
