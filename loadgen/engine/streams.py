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
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadgen.engine.fleet import Fleet, Table
from loadgen.engine.supply import receive_supply
from loadgen.engine.syscalls import open_socket
from loadgen.errors import BrokerRefusedError, UsageError
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import Disconnect
from loadgen.workload import traffic
from loadgen.workload.groups import Target, Tls
from loadgen.workload.traffic import (
    AWAIT_CONNACK,
    BLOCKED,
    CONNECTING,
    CONNECTING_COUNT,
    FLAGS,
    STATE,
    SYN_NS,
    TAIL_BYTES,
    TCP_NS,
    WRITTEN_NS,
)

__all__ = ["Streams", "say_hello_and_goodbye", "tls_context", "tls_of_device"]

_SESSIONS_KEPT = 64
_MOST_NEGOTIATED = 32
"""Different pairs of version and cipher that are counted apart."""
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def requeue(fleet: Fleet, connection: int) -> None:
    """Let a publisher whose turn came while it could not send have it again."""
    traffic.requeue(
        connection,
        int(fleet.connections[connection, traffic.PUBLISHER]),
        fleet.connections,
        fleet.run,
        fleet.totals,
        fleet.schedule,
        fleet.heap,
    )


def unblock(fleet: Fleet, connection: int) -> None:
    """The device may write again."""
    fleet.connections[connection, FLAGS] &= ~BLOCKED
    requeue(fleet, connection)


def _opened(family: int, fleet: Fleet) -> socket.socket:
    """A socket as those of plain connections are."""
    descriptor = open_socket(family, fleet.source, fleet.words)
    if descriptor < 0:
        raise OSError(-descriptor, os.strerror(-descriptor))
    return socket.socket(family, socket.SOCK_STREAM, fileno=descriptor)


class _ResumingContext(ssl.SSLContext):
    """A context whose connections resume a session of an earlier one, where there is one.

    A ticket speaks for the server, not for the device: any of the last ones will do.
    """

    sessions: deque[ssl.SSLSession]

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        if self.sessions and options.get("session") is None:
            options["session"] = self.sessions[0]
            self.sessions.rotate(1)
        return super().wrap_bio(*arguments, **options)

    def keep(self, wrapped: ssl.SSLObject | None) -> None:
        """Take the session of a connection that has heard from its server, where one is wanted.

        A connection that resumed one shows that those here are still good, and a session is a
        copy that costs as much as a handshake saves.
        """
        if wrapped is None or (wrapped.session_reused and len(self.sessions) == _SESSIONS_KEPT):
            return
        session = wrapped.session
        if session is not None and session.has_ticket:
            self.sessions.append(session)


def tls_of_device(tls: Tls, device: int) -> Tls:
    """The settings of one device, its number put into the names of certificate and key."""
    number = str(device)
    return replace(
        tls,
        certificate_file=tls.certificate_file and tls.certificate_file.replace("{device}", number),
        key_file=tls.key_file and tls.key_file.replace("{device}", number),
    )


def tls_context(tls: Tls) -> ssl.SSLContext:
    """The client context of a run; raises UsageError for files or ciphers that do not load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.resume:
        context = _ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sessions = deque(maxlen=_SESSIONS_KEPT)
    try:
        if tls.minimum is not None:
            context.minimum_version = _VERSIONS[tls.minimum]
        if tls.maximum is not None:
            context.maximum_version = _VERSIONS[tls.maximum]
        if tls.ciphers is not None:
            context.set_ciphers(tls.ciphers)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif tls.ca_file is not None:
            context.load_verify_locations(tls.ca_file)
        else:
            context.load_default_certs()
        if tls.certificate_file is not None:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ssl.SSLError, KeyError) as error:
        raise UsageError(f"TLS cannot be set up: {error}; check the --tls options") from None
    return context


class _Stream(asyncio.BufferedProtocol):
    """One streamed connection."""

    __slots__ = ("connection", "streams", "transport")

    def __init__(self, streams: "Streams", connection: int) -> None:
        self.streams = streams
        self.connection = connection
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.streams.get_buffer(self.connection)

    def buffer_updated(self, nbytes: int) -> None:
        self.streams.received(self.connection, nbytes)

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    async def opened(self) -> None:
        """Wait until MQTT may begin."""

    def pause_writing(self) -> None:
        self.streams.fleet.connections[self.connection, FLAGS] |= BLOCKED

    def resume_writing(self) -> None:
        self.streams.resume(self.connection)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is not None:
            self.transport = None
            reason = "closed by the broker" if error is None else type(error).__name__
            self.streams.failed(self.connection, reason)


def _framing(target: Target) -> ClientProtocol:
    """A WebSocket connection's state, which is to ask for the subprotocol `mqtt`."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    uri = parse_uri(f"{target.transport}://{host}:{target.port}{target.path}")
    return ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")])


class _WebSocketStream(asyncio.Protocol):
    """One connection over WebSocket (MQTT 5, section 6): binary frames carry the byte stream."""

    def __init__(self, streams: "Streams", connection: int, target: Target) -> None:
        self.streams = streams
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self.framing = _framing(target)
        self.answered: asyncio.Future[None] = streams.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.framing.send_request(self.framing.connect())
        self._flush()

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

    async def opened(self) -> None:
        """Wait for the answer to the upgrade; raises InvalidHandshake when it is no."""
        await self.answered
        if self.framing.handshake_exc is not None:
            raise InvalidHandshake(str(self.framing.handshake_exc))

    def _flush(self) -> None:
        if self.transport is not None:
            for data in self.framing.data_to_send():
                if data:
                    self.transport.write(data)

    def pause_writing(self) -> None:
        self.streams.fleet.connections[self.connection, FLAGS] |= BLOCKED

    def resume_writing(self) -> None:
        self.streams.resume(self.connection)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError(errno.ECONNRESET, "closed"))
            self.answered.exception()
        elif self.transport is not None:
            self.transport = None
            reason = "closed by the broker" if error is None else type(error).__name__
            self.streams.failed(self.connection, reason)


class Streams:
    """The streamed connections of a worker."""

    def __init__(
        self,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        on_events: Callable[[], None],
        failed: Callable[[int, str], None],
        chain: Table | None = None,
    ) -> None:
        self.fleet = fleet
        self.loop = loop
        self.chain = chain
        self.on_events = on_events
        self.failed = failed
        self.tls = fleet.plan.tls or Tls()
        each_its_own = "{device}" in (self.tls.certificate_file or "")
        self.context = None if each_its_own else tls_context(self.tls)
        self.view = memoryview(fleet.buffer.data)
        self.out = memoryview(fleet.out.data)
        held_bytes = 4 * fleet.held_ids.shape[1]
        self.acknowledgements = np.zeros(len(fleet.out) + held_bytes, np.uint8)
        self.negotiated: Counter[tuple[str, str]] = Counter()
        self.resumed = 0
        self.protocols: dict[int, _Stream | _WebSocketStream] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def connect(self, connection: int) -> None:
        """Begin to connect a device: TCP, then TLS, then CONNECT."""
        self.fleet.connections[connection, STATE] = CONNECTING
        self.fleet.connections[connection, SYN_NS] = time.monotonic_ns()
        self.fleet.connections[connection, TAIL_BYTES] = 0
        self.fleet.totals[CONNECTING_COUNT] += 1
        self.tasks[connection] = self.loop.create_task(self._connect(connection))

    async def _connect(self, connection: int) -> None:
        fleet = self.fleet
        row = fleet.connections[connection]
        target = fleet.plan.targets[int(row[traffic.TARGET])]
        group = int(row[traffic.GROUP])
        family, address = _socket_name(fleet.addresses[int(row[traffic.TARGET])].tobytes())
        sock: socket.socket | None = None
        protocol: _Stream | _WebSocketStream | None = None
        try:
            sock = _opened(family, fleet)
            row[SYN_NS] = time.monotonic_ns()
            await self.loop.sock_connect(sock, address)
            tcp_ns = time.monotonic_ns()
            slot = traffic.slot_of(group, traffic.S_TCP, traffic.CONNECT_PHASE)
            traffic.record(fleet.histograms, fleet.stats, slot, tcp_ns - int(row[SYN_NS]))
            encrypted = target.transport in ("tls", "wss")
            transport, protocol = await self.loop.create_connection(
                lambda: self._protocol(connection, target),
                sock=sock,
                ssl=self.context_of(connection) if encrypted else None,
                server_hostname=target.host if encrypted else None,
            )
            now_ns = time.monotonic_ns()
            if encrypted:
                slot = traffic.slot_of(group, traffic.S_TLS, traffic.CONNECT_PHASE)
                traffic.record(fleet.histograms, fleet.stats, slot, now_ns - tcp_ns)
                self._count_handshake(transport.get_extra_info("ssl_object"))
            await protocol.opened()
        except asyncio.CancelledError:
            # Given up: it must not be taken for the next attempt of this device.
            _discard(protocol)
            if sock is not None:
                sock.close()
            raise
        except (OSError, ssl.SSLError, InvalidHandshake, UsageError) as error:
            _discard(protocol)
            if sock is not None:
                sock.close()
            self.failed(connection, _tls_reason(error))
            return
        finally:
            if self.tasks.get(connection) is asyncio.current_task():
                del self.tasks[connection]
        now_ns = time.monotonic_ns()
        self.protocols[connection] = protocol
        row[TCP_NS] = now_ns
        row[WRITTEN_NS] = now_ns
        row[STATE] = AWAIT_CONNACK
        start, end = fleet.connect_ends[connection : connection + 2].tolist()
        self.write(connection, fleet.connect_packets[start:end].tobytes())

    def _count_handshake(self, wrapped: ssl.SSLObject | None) -> None:
        """Note what a handshake ended with, once a connection."""
        cipher = None if wrapped is None else wrapped.cipher()
        if wrapped is None or cipher is None:
            return
        kind = (wrapped.version() or "", cipher[0])
        if kind not in self.negotiated and len(self.negotiated) >= _MOST_NEGOTIATED:
            kind = ("other", "other")
        self.negotiated[kind] += 1
        self.resumed += bool(wrapped.session_reused)

    def handshakes(self) -> dict[str, Any]:
        """Connections by version and cipher, and how many resumed a session."""
        return {
            "connections": [
                {"version": version, "cipher": cipher, "count": count}
                for (version, cipher), count in self.negotiated.items()
            ],
            "resumed": self.resumed,
        }

    def _protocol(self, connection: int, target: Target) -> _Stream | _WebSocketStream:
        if target.transport in ("ws", "wss"):
            return _WebSocketStream(self, connection, target)
        return _Stream(self, connection)

    def context_of(self, connection: int) -> ssl.SSLContext:
        """The context of a device: its own where each has a certificate of its own."""
        if self.context is not None:
            return self.context
        return tls_context(tls_of_device(self.tls, int(self.fleet.device[connection])))

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
        tail = int(self.fleet.connections[connection, TAIL_BYTES])
        if tail:
            self.fleet.buffer[:tail] = self.fleet.tails[connection, :tail]
        return self.view[tail:]

    def received(self, connection: int, count: int) -> None:
        """Handle `count` bytes that came into the buffer given before."""
        fleet = self.fleet
        row = fleet.connections[connection]
        end = int(row[TAIL_BYTES]) + count
        now_ns = time.monotonic_ns()
        if isinstance(self.context, _ResumingContext) and row[STATE] == AWAIT_CONNACK:
            transport = self.protocols[connection].transport
            if transport is not None:
                self.context.keep(transport.get_extra_info("ssl_object"))
        position, written = self._receive(end, now_ns, connection)
        rest = end - position
        if rest > fleet.run[traffic.PACKET_LIMIT]:
            traffic.push_event(fleet.totals, fleet.events, traffic.BROKEN, connection, 0x95, now_ns)
        else:
            row[TAIL_BYTES] = rest
            if rest:
                fleet.tails[connection, :rest] = fleet.buffer[position:end]
        if written:
            self.write(connection, self.acknowledgements[:written].tobytes())
            row[WRITTEN_NS] = now_ns
        self.on_events()

    def _receive(self, end: int, now_ns: int, connection: int) -> tuple[int, int]:
        """Let the kernels have buffer[:end]; where they stopped, and bytes to answer."""
        fleet = self.fleet
        if self.chain is not None:
            return receive_supply(
                self.chain,
                fleet.buffer,
                0,
                end,
                now_ns,
                connection,
                fleet.connections,
                fleet.groups,
                fleet.run,
                fleet.totals,
                fleet.pairs,
                fleet.holes,
                fleet.hole_state,
                fleet.counters,
                fleet.histograms,
                fleet.stats,
                fleet.senders,
                fleet.window,
                fleet.received_ids,
                fleet.held_ids,
                fleet.schedule,
                fleet.heap,
                fleet.events,
                fleet.control,
                self.acknowledgements,
                0,
            )
        return traffic.receive(
            fleet.buffer,
            0,
            end,
            now_ns,
            connection,
            fleet.connections,
            fleet.groups,
            fleet.run,
            fleet.totals,
            fleet.pairs,
            fleet.holes,
            fleet.hole_state,
            fleet.counters,
            fleet.histograms,
            fleet.stats,
            fleet.senders,
            fleet.window,
            fleet.received_ids,
            fleet.held_ids,
            fleet.schedule,
            fleet.heap,
            fleet.events,
            fleet.control,
            fleet.topics,
            fleet.topic_ends,
            self.acknowledgements,
            0,
        )

    def resume(self, connection: int) -> None:
        """A transport's buffer ran low: the device may write again."""
        unblock(self.fleet, connection)
        self.on_events()

    def write(self, connection: int, data: bytes) -> None:
        """Hand bytes to the transport, if there is still one."""
        protocol = self.protocols.get(connection)
        if protocol is not None:
            protocol.write(data)

    def write_segments(self, count: int) -> None:
        """Write what `pump` left in `out`: one write a batch."""
        for connection, start, end in self.fleet.segments[:count].tolist():
            self.write(connection, bytes(self.out[start:end]))

    def abort(self, connection: int) -> None:
        """Close a connection for good; what it has written still goes out."""
        task = self.tasks.pop(connection, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        protocol = self.protocols.pop(connection, None)
        if protocol is not None and protocol.transport is not None:
            transport = protocol.transport
            protocol.transport = None
            transport.close()


def _discard(protocol: _Stream | _WebSocketStream | None) -> None:
    """Close a connection that MQTT never used; nobody is told of its end."""
    if protocol is not None and protocol.transport is not None:
        transport = protocol.transport
        protocol.transport = None
        transport.abort()


async def say_hello_and_goodbye(
    target: Target, context: ssl.SSLContext | None, packet: bytes, version: int
) -> None:
    """One connection that sends CONNECT `packet`, waits for CONNACK and sends DISCONNECT.

    Raises BrokerRefusedError for another answer, OSError or TimeoutError for none.
    """
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
        try:
            goodbye = encode(Disconnect(), version)
            if target.transport in ("ws", "wss"):
                framing = _framing(target)
                framing.send_request(framing.connect())
                await _framed(framing, reader, writer)
                framing.send_binary(packet)
                answer = await _framed(framing, reader, writer)
                framing.send_binary(goodbye)
                writer.write(b"".join(framing.data_to_send()))
            else:
                writer.write(packet)
                answer = await reader.readexactly(4)
                writer.write(goodbye)
            if len(answer) < 4 or answer[3] != 0:
                raise BrokerRefusedError("the broker refused a session's last CONNECT")
            await writer.drain()
        finally:
            writer.close()


async def _framed(
    framing: ClientProtocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bytes:
    """Send what is to be sent; the data of the next frame, none for the answer to the upgrade."""
    while True:
        writer.write(b"".join(framing.data_to_send()))
        data = await reader.read(4096)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        framing.receive_data(data)
        for event in framing.events_received():
            if isinstance(event, Response):
                if framing.handshake_exc is not None:
                    raise BrokerRefusedError("the broker refused a session's last WebSocket")
                return b""
            if isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                return bytes(event.data)


def _socket_name(address: bytes) -> tuple[int, tuple[str, int] | tuple[str, int, int, int]]:
    """Family and Python's form of a `struct sockaddr` of `fleet.socket_address`."""
    family = int.from_bytes(address[:2], sys.byteorder)
    port = int.from_bytes(address[2:4], "big")
    if family == socket.AF_INET:
        return family, (socket.inet_ntop(family, address[4:8]), port)
    scope = int.from_bytes(address[24:28], sys.byteorder)
    return family, (socket.inet_ntop(family, address[8:24]), port, 0, scope)


def _tls_reason(error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'handshake failed'}"
    if isinstance(error, InvalidHandshake):
        return "WebSocket refused"
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__
