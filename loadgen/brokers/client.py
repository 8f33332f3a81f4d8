"""How we talk to a broker before a run, when speed does not matter.

A `PacketStream` sends and receives single packets, also with peers that may not speak MQTT at all:
what libraries do not show, like the properties of CONNACK. It can be cancelled at any moment and
starts no thread.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import uuid
from typing import Final, Self

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import Packet

_CLOSE_TIMEOUT_S: Final = 1.0
_READ_BYTES: Final = 64 << 10
PACKET_LIMIT_BYTES: Final = 64 << 10
_STATUS_BYTES: Final = 512
_HEARD_BYTES: Final = 64
SWITCHING: Final = b"HTTP/1.1 101"


def client_identifier(role: str) -> str:
    """A Client Identifier that nobody else has."""
    return f"loadgen-{role}-{uuid.uuid4().hex[:8]}"


def tls_context_of(endpoint: Endpoint, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The context for this endpoint: None without TLS, the system's trust when none is given."""
    return (given or ssl.create_default_context()) if endpoint.tls else None


def shown(text: str | bytes, limit: int = 120) -> str:
    """One printable line of what a peer or a library says, at most `limit` characters."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "replace")
    return ascii(text.strip())[1:-1][:limit]


class PacketStream:
    """Control packets over TCP, TLS or WebSocket."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter | None = None

    def __init__(self, version: int, packet_limit_bytes: int = PACKET_LIMIT_BYTES) -> None:
        self.version = version
        self.heard = b""  # the first bytes that came
        self._framing: ClientProtocol | None = None
        self._received = bytearray()
        self.packet_limit_bytes = packet_limit_bytes

    async def open(
        self, opened: socket.socket, endpoint: Endpoint, tls_context: ssl.SSLContext | None = None
    ) -> None:
        """Talk over this connected socket, encrypted where the endpoint is; raises OSError."""
        context = tls_context_of(endpoint, tls_context)
        try:
            self._reader, self._writer = await asyncio.open_connection(
                sock=opened, ssl=context, server_hostname=endpoint.host if context else None
            )
        except BaseException:
            opened.close()
            raise

    async def close(self) -> None:
        """End the connection, if there is one."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    def abort(self) -> None:
        """Cut the connection, as a broken network would."""
        self._out.transport.abort()

    def send(self, packet: Packet) -> None:
        """Send one packet; when the peer is closing, `receive` will say so."""
        data = encode(packet, self.version)
        if self._framing is None:
            self._out.write(data)
        elif self._framing.state is State.OPEN:
            self._framing.send_binary(data)
            self._flush()

    async def receive(self) -> Packet:
        """The next packet.

        Raises ConnectionError when the broker closes, RemoteProtocolError when what comes is not
        MQTT, and OSError.
        """
        # A peer that floods keeps nobody's timeout from coming.
        await asyncio.sleep(0)
        while True:
            received = bytes(self._received)
            version = self.version
            if received[:2] == b"\x20\x02":
                # A broker that does not speak MQTT 5 may say so in the CONNACK of 3.1.1.
                version = 4
            decoded = decode(received, 0, len(received), version, self.packet_limit_bytes)
            if decoded is not None:
                packet, end = decoded
                del self._received[:end]
                return packet
            data = await self._more()
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._received += data

    async def upgrade(self, endpoint: Endpoint) -> Self:
        """Ask for WebSocket (RFC 6455); BrokerRefusedError says what a server has against it."""
        uri = parse_uri(f"{endpoint.scheme}://{endpoint.address}{endpoint.path}")
        self._framing = framing = ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")])
        framing.send_request(framing.connect())
        line, newline, answer = b"", b"", b""
        # What is not "101 Switching Protocols" is refused at once, whatever may follow.
        while not newline or (line.startswith(SWITCHING) and framing.state is State.CONNECTING):
            self._flush()
            data = await self._read()
            answer = (answer + data)[:_STATUS_BYTES]
            line, newline, _ = answer.partition(b"\n")
            if not data or len(line) == _STATUS_BYTES or framing.handshake_exc is not None:
                break
            framing.receive_data(data)
        if framing.state is not State.OPEN:
            raise BrokerRefusedError(
                f"{endpoint.redacted} did not upgrade to WebSocket: "
                f"{_upgrade_fault(line, framing.handshake_exc)}; check the port, the path and what "
                "the server allows"
            )
        return self

    async def _more(self) -> bytes:
        framing = self._framing
        if framing is None:
            return await self._read()
        while True:
            frames = [event for event in framing.events_received() if isinstance(event, Frame)]
            self._flush()
            data = b"".join(bytes(frame.data) for frame in frames if not frame.opcode & 8)
            if data or framing.state is not State.OPEN:
                return data
            raw = await self._read()
            if not raw:
                return b""
            framing.receive_data(raw)

    async def _read(self) -> bytes:
        data = await self._reader.read(_READ_BYTES)
        self.heard = (self.heard + data)[:_HEARD_BYTES]
        return data

    @property
    def _out(self) -> asyncio.StreamWriter:
        assert self._writer is not None
        return self._writer

    def _flush(self) -> None:
        if self._framing is not None:
            self._out.writelines(self._framing.data_to_send())


def _upgrade_fault(line: bytes, error: Exception | None) -> str:
    protocol, _, status = line.partition(b" ")
    if not line:
        return "it closed the connection"
    if not protocol.startswith(b"HTTP/"):
        return f"it answered {shown(line)}"
    if not line.startswith(SWITCHING) or error is None:
        return f"HTTP {shown(status)}"
    return shown(str(error.__cause__ or error))


async def open_socket(host: str, port: int) -> socket.socket:
    """A TCP connection to the first address of the host that takes one; raises OSError."""
    loop = asyncio.get_running_loop()
    refused = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        found = socket.socket(family, kind, protocol)
        found.setblocking(False)
        try:
            await loop.sock_connect(found, address)
        except BaseException as error:
            found.close()
            if not isinstance(error, OSError):
                raise
            refused = error
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
    raise refused


def tls_refusal(endpoint: Endpoint, error: ssl.SSLError) -> BrokerRefusedError:
    """In TLS 1.3 a server judges our certificate after the handshake has ended for us."""
    detail = shown((error.reason or "TLS failed").lower().replace("_", " "))
    return BrokerRefusedError(
        f"{endpoint.redacted} ended the TLS connection: {detail}; give the client certificate that "
        "it asks for"
    )
