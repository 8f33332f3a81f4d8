"""Connections over TLS, WebSocket, or both, which Python opens, reads and writes.

They share the epoll set, the kernels and the queues of unsent bytes with all connections.
"""

import errno
import os
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import suppress

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadgen.errors import UsageError
from loadgen.kernels import counting
from loadgen.kernels.device import (
    AWAIT_CONNACK,
    BLOCKED,
    CONNECTED,
    CONNECTING,
    LISTED,
    OPEN,
    transition,
)
from loadgen.kernels.reactor import ENDED, ReceiveKernel, keep_partial
from loadgen.kernels.receiver import SCRATCH_BYTES
from loadgen.mqtt.violations import FORBIDDEN_FRAME, NO_SUBPROTOCOL, TEXT_FRAME, VIOLATIONS
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import Target, target_url
from loadgen.worker.clock import clock_ns
from loadgen.worker.closing import has_unread
from loadgen.worker.outgoing import Outgoing
from loadgen.worker.tls import Handshakes

_PIECE_BYTES = 64 * 1024
_READS_AT_ONCE = 16
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

MQTT = Subprotocol("mqtt")  # of a WebSocket connection (MQTT 5, section 6)


def ending(number: int) -> str:
    """Return the words for an errno; 0 if the peer closed the connection in order."""
    return os.strerror(number).lower() if number else "closed by the broker"


class WebSocket:
    """The frames of one connection (MQTT 5, section 6); reads and writes like its socket."""

    __slots__ = (
        "_answered",
        "_breach",
        "_framed",
        "_framed_bytes",
        "_framing",
        "_received",
        "sock",
    )

    def __init__(self, sock: socket.socket, uri: str) -> None:
        self.sock = sock
        self._framing = ClientProtocol(parse_uri(uri), subprotocols=[MQTT])
        self._framing.send_request(self._framing.connect())
        self._answered = False
        self._breach: int | None = None  # a violation behind the received bytes
        self._received = b""
        self._framed = b""
        self._framed_bytes = 0  # of the bytes passed to `send`, those in the current frame

    def upgrade(self) -> None:
        """Send the request and read the answer; raise InvalidHandshake if it is a refusal."""
        self._flush()
        while not self._answered and self._framing.handshake_exc is None:
            if not self._read():
                raise ConnectionResetError(errno.ECONNRESET, "closed")
        if self._framing.handshake_exc is not None:
            raise InvalidHandshake(str(self._framing.handshake_exc))

    @property
    def has_subprotocol(self) -> bool:
        """True if the broker agreed to the subprotocol."""
        return self._framing.subprotocol is not None

    def send(self, data: bytes | memoryview, /) -> int:
        if not (data or self._framed):
            return self.sock.send(data)
        if data and not self._framed_bytes:
            if self._framing.state is not State.OPEN:
                raise BrokenPipeError(errno.EPIPE, "closed")
            piece = bytes(data[:_PIECE_BYTES])
            self._framing.send_binary(piece)
            self._framed_bytes = len(piece)
        self._flush()
        sent, self._framed_bytes = self._framed_bytes, 0
        return sent

    def recv_into(self, view: memoryview, /) -> int:
        with suppress(*_NOT_NOW):
            self._flush()
        if not self.pending():
            if len(self._framed) > _PIECE_BYTES:
                raise BlockingIOError  # a peer that sends PINGs has to read the PONGs first
            if not self._read():
                return 0
            with suppress(*_NOT_NOW):
                self._flush()
            if not self.pending():
                raise InterruptedError  # a control frame, or a part of another frame
        if self._breach is not None and not self._received:
            raise FrameViolationError(self._breach)
        count = min(len(view), len(self._received))
        view[:count], self._received = self._received[:count], self._received[count:]
        return count

    def pending(self) -> bool:
        """Return True if there is more to read without the socket: bytes, or the end."""
        return bool(self._received) or self._breach is not None or self._framing.close_expected()

    def _flush(self) -> None:
        self._framed += b"".join(self._framing.data_to_send())
        while self._framed:
            self._framed = self._framed[self.sock.send(self._framed) :]

    def _read(self) -> bool:
        data = self.sock.recv(_PIECE_BYTES)
        self._framing.receive_data(data)
        for event in self._framing.events_received():
            if isinstance(event, Response):
                self._answered = True
            elif not isinstance(event, Frame) or self._breach is not None:
                continue
            elif event.opcode is Opcode.TEXT:
                self._breach = TEXT_FRAME
            elif event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._received += event.data
        broken = self._answered and bool(data) and self._framing.parser_exc is not None
        if broken and self._breach is None:
            self._breach = FORBIDDEN_FRAME
        return bool(data)


class FrameViolationError(Exception):
    """The broker sent a frame that ends the connection; `kind` is an index of VIOLATIONS."""

    def __init__(self, kind: int) -> None:
        super().__init__(f"the broker sent {VIOLATIONS[kind].words}")
        self.kind = kind


Link = ssl.SSLSocket | WebSocket


class Streams:
    """The streamed connections of a worker; `kernel` handles the received bytes.

    `failed(connection, reason)` is called for a connection that could not be made, or ended,
    `violated(connection, kind)` for a violation.
    """

    def __init__(
        self,
        fleet: PlannedFleet,
        outgoing: Outgoing,
        handle_events: Callable[[], None],
        failed: Callable[[int, str], None],
        violated: Callable[[int, int], None],
        kernel: ReceiveKernel,
    ) -> None:
        self.fleet = fleet
        self.handshakes = Handshakes(fleet.plan.tls)
        self._outgoing = outgoing
        self._links: dict[int, Link] = {}
        outgoing.links = self._links
        self._opening: dict[int, Generator[None, None, None]] = {}
        self._handle_events = handle_events
        self._failed = failed
        self._violated = violated
        self._kernel = kernel
        self._view = memoryview(fleet.buffer.data)[:-SCRATCH_BYTES]
        self._out = memoryview(fleet.out.data)
        # A column is many times cheaper than a field of a record.
        names = ("state", "flags", "partial_bytes", "descriptor", "syn_ns")
        columns = (fleet.devices[name] for name in names)
        self._state, self._flags, self._kept, self._descriptor, self._syn_ns = columns
        self._events, self._ready = (fleet.held["totals"][name] for name in ("events", "ready"))

    def serve(self, connection: int, flags: int, moment_ns: int) -> None:
        """Handle an event of a socket: open the connection, write, read."""
        state = self._state[connection]
        if moment_ns < self._syn_ns[connection]:
            return  # of an earlier connection of this row
        try:
            if state == CONNECTING:
                self._go_on_opening(connection)
            elif state in (AWAIT_CONNACK, CONNECTED) and self._flags[connection] & BLOCKED:
                self._outgoing.flush(connection)
            if connection in self._links:
                self._read(connection, flags)
        except _NOT_NOW:
            pass
        except FrameViolationError as error:
            self._violated(connection, error.kind)
            self._failed(connection, str(error))
        except (OSError, InvalidHandshake, UsageError) as error:
            self._failed(connection, _reason(error))

    def _go_on_opening(self, connection: int) -> None:
        opening = self._opening.get(connection)
        if opening is None:
            opening = self._opening[connection] = self._open(connection)
        if next(opening, self) is self:
            del self._opening[connection]

    def _open(self, connection: int) -> Generator[None, None, None]:
        """Run the handshakes between TCP and CONNECT; yield to wait for the peer."""
        fleet = self.fleet
        device, target = fleet.devices[connection], self._target_of(connection)
        sock = socket.socket(fileno=int(device.descriptor))
        try:
            sock.setblocking(False)
            context = self.context_of(connection)
            if context is not None:
                sock = secured = self.handshakes.wrap(sock, context, target.host)
                yield from _until_done(secured.do_handshake)
                slot = counting.slot_of(device.group, counting.S_TLS, counting.CONNECT_PHASE)
                counting.record(fleet, slot, clock_ns() - device.tcp_ns)
                self.handshakes.count(secured)
            if target.transport == "tls":
                link: Link = secured
            else:
                link = websocket = WebSocket(sock, target_url(target))
                yield from _until_done(websocket.upgrade)
                if not websocket.has_subprotocol:
                    self._violated(connection, NO_SUBPROTOCOL)
        except BaseException:
            sock.close()
            raise
        self._links[connection] = link
        device.tcp_ns = clock_ns()
        transition(fleet, connection, OPEN)
        start, end = fleet.connect_ends[connection : connection + 2].tolist()
        self._outgoing.write(connection, fleet.connect_packets[start:end].tobytes())

    def _target_of(self, connection: int) -> Target:
        return self.fleet.plan.targets[self.fleet.devices[connection].target]

    def context_of(self, connection: int) -> ssl.SSLContext | None:
        """Return the TLS context of a device; None without encryption."""
        if self._target_of(connection).transport not in ("tls", "wss"):
            return None
        return self.handshakes.context_of(int(self.fleet.device[connection]))

    def _read(self, connection: int, flags: int) -> None:
        """Read from a connection a few times; list it in `ready` if there may be more."""
        fleet, link = self.fleet, self._links[connection]
        for _ in range(_READS_AT_ONCE):
            view, stored = self._view, int(self._kept[connection])
            if stored:
                fleet.buffer[:stored] = fleet.partial[connection, :stored]
                view = view[stored:]
            try:
                count = link.recv_into(view)
            except InterruptedError:
                continue
            except _NOT_NOW:
                self._give_back(connection, link)
                return
            if count == 0:
                self._failed(connection, ending(0))
                return
            self._received(connection, stored, stored + count)
            if self._links.get(connection) is not link:
                return
            # The end of the stream has no separate edge if it came with the last bytes.
            descriptor = int(self._descriptor[connection])
            if not (link.pending() or flags & ENDED or has_unread(descriptor)):
                return
        if not self._flags[connection] & LISTED:
            self._flags[connection] |= LISTED
            fleet.ready[self._ready[0]] = connection
            self._ready[0] += 1

    def _received(self, connection: int, stored: int, end: int) -> None:
        """Handle the bytes before `end` of the shared buffer, after `stored` earlier ones."""
        fleet, now_ns = self.fleet, clock_ns()
        if self._state[connection] == AWAIT_CONNACK:
            link = self._links[connection]
            self.handshakes.keep_session(_socket_of(link))
            self._give_back(connection, link)
        position, written = self._kernel(fleet, connection, end, now_ns)
        if stored or position < end:
            keep_partial(fleet, connection, position, end, now_ns)
        if written:
            self._outgoing.write(connection, bytes(self._out[:written]))
        if self._events[0]:
            self._handle_events()

    def _give_back(self, connection: int, link: Link) -> None:
        """Let OpenSSL free the 16 KB that it allocated for an answer to a session ticket.

        It never answers, and frees the buffer after the next write, even one of no bytes.
        """
        if not self._flags[connection] & BLOCKED:
            with suppress(*_NOT_NOW):
                link.send(b"")

    def close(self, connection: int) -> bool:
        """Close a connection or stop opening it; return False if its socket is not ours."""
        opening = self._opening.pop(connection, None)
        link = self._links.pop(connection, None)
        if opening is not None:
            opening.close()
        elif link is not None:
            sock = _socket_of(link)
            if isinstance(sock, ssl.SSLSocket):
                with suppress(OSError, ValueError):
                    sock.unwrap()  # sends close_notify, and does not wait for that of the peer
            sock.close()
        return opening is not None or link is not None


def _socket_of(link: Link) -> socket.socket:
    return link.sock if isinstance(link, WebSocket) else link


def _until_done(step: Callable[[], object]) -> Generator[None, None, None]:
    """Try a step again after each event of its socket."""
    while True:
        with suppress(*_NOT_NOW):
            step()
            return
        yield


def _reason(error: Exception) -> str:
    """Return the reason of a failed connection, in words that many devices share."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ending(0)
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'handshake failed'}"
    if isinstance(error, InvalidHandshake):
        return "WebSocket refused"
    if isinstance(error, OSError) and error.errno is not None:
        return ending(error.errno)
    return type(error).__name__
