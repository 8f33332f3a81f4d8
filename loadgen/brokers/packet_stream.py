"""Single control packets to and from a peer that may not speak MQTT at all.

A library shows neither the first bytes of such a peer nor all that a broker answers. This is for
checks before a run, when speed does not matter. It can be cancelled at any moment and starts no
thread.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import uuid
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.messages import Message
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.packets import Packet

_CLOSE_TIMEOUT_S: Final = 1.0
_READ_BYTES: Final = 64 << 10
PACKET_LIMIT_BYTES: Final = 64 << 10
_STATUS_BYTES: Final = 512
_FIRST_BYTES: Final = 64
SWITCHING: Final = b"HTTP/1.1 101"


def client_identifier(role: str) -> str:
    """Return a unique Client Identifier."""
    return f"loadgen-{role}-{uuid.uuid4().hex[:8]}"


def tls_context_of(endpoint: Endpoint, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return None without TLS, else the given context or one with the system's trust."""
    return (given or ssl.create_default_context()) if endpoint.tls else None


def shown(text: str | bytes, limit: int = 120) -> str:
    """Return a peer's text as one printable line of at most `limit` characters."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "replace")
    return ascii(text.strip())[1:-1][:limit]


class PacketStream:
    """Control packets over TCP, TLS or WebSocket."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter | None = None

    def __init__(self, version: int) -> None:
        self.version = version
        self.first_bytes = b""  # that the peer sent
        self.packet_limit_bytes = PACKET_LIMIT_BYTES
        self._framing: ClientProtocol | None = None
        self._received = bytearray()

    @property
    def peer_certificate(self) -> bytes:
        """The certificate of the peer of a TLS connection, in DER."""
        encoded: bytes | None = self._out.get_extra_info("ssl_object").getpeercert(True)
        return encoded or b""

    async def open(
        self, opened: socket.socket, endpoint: Endpoint, tls_context: ssl.SSLContext | None = None
    ) -> None:
        """Use this connected socket, encrypted if the endpoint is; raises OSError."""
        context = tls_context_of(endpoint, tls_context)
        try:
            self._reader, self._writer = await asyncio.open_connection(
                sock=opened, ssl=context, server_hostname=endpoint.host if context else None
            )
        except BaseException:
            opened.close()
            raise

    async def close(self) -> None:
        """Close the connection if it is open."""
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
        """Reset the connection, as a broken network would."""
        self._out.transport.abort()

    def send(self, packet: Packet) -> None:
        """Send one packet; `receive` reports a closed connection."""
        data = encode(packet, self.version)
        if self._framing is None:
            self._out.write(data)
        elif self._framing.state is State.OPEN:
            self._framing.send_binary(data)
            self._flush()

    async def receive(self) -> Packet:
        """Return the next packet.

        Raises ConnectionError if the broker closes, RemoteProtocolError for bytes that are not
        MQTT, and OSError. A CONNACK of 3.1.1 in answer to MQTT 5 sets `version` to 3.1.1.
        """
        # Yield to the loop, so that a flooding peer cannot starve timeouts.
        await asyncio.sleep(0)
        while True:
            received = bytes(self._received)
            if self.version == MQTT_5 and received[:2] == b"\x20\x02":
                # A broker without MQTT 5 may answer with the CONNACK of 3.1.1.
                self.version = MQTT_3_1_1
            decoded = decode(received, 0, len(received), self.version, self.packet_limit_bytes)
            if decoded is not None:
                packet, end = decoded
                del self._received[:end]
                return packet
            data = await self._more()
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._received += data

    async def upgrade(self, endpoint: Endpoint) -> None:
        """Open a WebSocket (RFC 6455); raises BrokerRefusedError with the server's reason."""
        uri = parse_uri(f"{endpoint.scheme}://{endpoint.address}{endpoint.path}")
        self._framing = framing = ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")])
        framing.send_request(framing.connect())
        line, newline, answer = b"", b"", b""
        # Any answer but "101 Switching Protocols" is an error, whatever may follow.
        while not newline or (line.startswith(SWITCHING) and framing.state is State.CONNECTING):
            self._flush()
            data = await self._read()
            answer = (answer + data)[:_STATUS_BYTES]
            line, newline, _ = answer.partition(b"\n")
            if not data or len(line) == _STATUS_BYTES or framing.handshake_exc is not None:
                break
            framing.receive_data(data)
        if framing.state is not State.OPEN:
            fault = _upgrade_fault(line, framing.handshake_exc)
            raise BrokerRefusedError(Message.NOT_UPGRADED(where=endpoint.redacted, fault=fault))

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
        self.first_bytes = (self.first_bytes + data)[:_FIRST_BYTES]
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
    """Connect to the first address of the host that accepts; raises OSError."""
    loop = asyncio.get_running_loop()
    refused = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        try:
            await loop.sock_connect(opened, address)
        except BaseException as error:
            opened.close()
            if not isinstance(error, OSError):
                raise
            refused = error
        else:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened
    raise refused
