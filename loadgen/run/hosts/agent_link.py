"""The connection of a coordinator and the agent of a load host: messages over TLS.

Both sides make the same key of a secret and of the version of their messages, and trust its
certificate alone: TLS proves that the other side has the same secret and version.
"""

import asyncio
import datetime
import hashlib
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from loadgen.errors import LoadgenError
from loadgen.run.hosts.messages import VERSION, Message, decode, encode
from loadgen.scratch import memory_directory
from loadgen.worker.frames import FrameReader

HANDSHAKE_S = 5.0
_ROUND_TRIP_AT = 68  # tcpi_rtt, a number of four bytes, in the kernel's tcp_info
CLOSE_S = 2.0  # longest time for the other side to confirm the end of TLS


def tls_of(secret: bytes, purpose: ssl.Purpose) -> ssl.SSLContext:
    """Return TLS 1.3 with the certificate of the secret's key, which the peer must have, too."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    # A stranger sees the certificate: guessing a weak secret from it must be slow.
    salt = b"loadgen agents %d" % VERSION
    seed = hashlib.scrypt(secret, salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name.from_rfc4514_string("CN=loadgen")
    # Its bytes are the same on all hosts, whatever their clocks say.
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 1, 1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
        .public_bytes(serialization.Encoding.PEM)
    )
    is_server = purpose is ssl.Purpose.CLIENT_AUTH
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    with memory_directory() as directory:
        file = Path(directory) / "key"
        file.touch(0o600)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        file.write_bytes(certificate + key.private_bytes(*form, serialization.NoEncryption()))
        context.load_cert_chain(file)
    return context


class AgentLink(asyncio.Protocol):
    """One end of the connection.

    `on_message` is called for each message, `on_end(why)` once after the connection has ended.
    """

    def __init__(
        self, on_message: Callable[[Message], None], on_end: Callable[[str], None]
    ) -> None:
        self._heard_s = time.monotonic()
        self._on_message = on_message
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._why:
            self._transport.abort()  # it was ended during the handshake of TLS

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        if self._why:
            return  # what comes after the end does not count
        try:
            for header, block in self._frames.feed(data):
                self._on_message(decode(header, block))
        except (LoadgenError, ValueError) as error:
            self.end(str(error)[:200])

    @property
    def peer(self) -> tuple[str, int]:
        """The address and port of the other end while it is connected."""
        assert self._transport is not None
        address, port, *_ = self._transport.get_extra_info("peername")
        return address, port

    def round_trip_ns(self) -> int:
        """Return the kernel's estimate, which no busy process delays; 0 without a connection."""
        transport = self._transport
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is None:  # TLS knows of the end before this object does
            return 0
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_AT + 4)
        return int.from_bytes(data[_ROUND_TRIP_AT:], sys.byteorder) * 1000

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        on_end, self._on_end = self._on_end, lambda _why: None
        on_end(self._why or "the other side closed the connection: its process ended or was killed")

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def end(self, why: str) -> None:
        """Cut the connection and drop what is not sent yet."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after everything is sent."""
        self._why = self._why or "it was closed from here"
        if self._transport is not None:
            self._transport.close()

    async def is_silent(self, limit_s: float) -> bool:
        """Return True if the other end sent nothing for `limit_s` seconds."""
        if time.monotonic() - self._heard_s > limit_s:
            # Look twice: data may have arrived while this process was busy.
            await asyncio.sleep(0.05)
        return time.monotonic() - self._heard_s > limit_s
