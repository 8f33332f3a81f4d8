"""The connection of a coordinator and the agent of a load host: messages over TLS.

Both sides have a secret, and the coordinator has a certificate that is made for this command. Over
TLS each side sends the version of its messages and a nonce. Then each proves that it has the
secret, by an HMAC over version, nonces and the fingerprint of the certificate. A relay with
another certificate therefore fails on both sides, though no authority signed this one.
"""

import asyncio
import hashlib
import hmac
import secrets
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from loadgen.errors import LoadgenError
from loadgen.run.hosts.messages import VERSION, Message, decode, encode
from loadgen.scratch import memory_directory
from loadgen.worker.frames import FrameReader

Role = Literal["agent", "coordinator"]

HANDSHAKE_S = 5.0
"""Longest time for the TLS handshake, and again for both proofs."""
CLOSE_S = 2.0
"""Longest time for the other side to confirm the end of TLS."""

_HELLO: Final = struct.Struct(">8sH32s")
_MAGIC: Final = b"loadgen\n"
_PROOF_BYTES: Final = 32
_REFUSED: Final = bytes(_PROOF_BYTES)
"""Sent in place of a proof to a side without the secret."""


def coordinator_context() -> tuple[ssl.SSLContext, bytes]:
    """Return TLS with a new certificate, and the SHA-256 fingerprint of the certificate."""
    from loadgen.brokers.certificates import make_certificates

    with memory_directory() as directory:
        files = make_certificates(Path(directory), ["loadgen-coordinator"], key="ecdsa")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(files.certificate, files.key)
        certificate = ssl.PEM_cert_to_DER_cert(files.certificate.read_text("ascii"))
    return context, fingerprint(certificate)


def agent_context() -> ssl.SSLContext:
    """Return TLS that takes any certificate: the proofs include its fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()


class AgentLink(asyncio.Protocol):
    """One end of the connection. Await `opened`, then `send`.

    `on_message` is called for each message of the other end, and `on_end(why)` once after the
    connection has ended. A coordinator passes the fingerprint of its certificate; an agent reads it
    from the connection.
    """

    def __init__(
        self,
        role: Role,
        secret: bytes,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        certificate: bytes = b"",
    ) -> None:
        self.opened: asyncio.Future[None] = self._loop().create_future()
        self._heard_s = self._loop().time()
        self._role = role
        self._secret = secret
        self._on_message = on_message
        self._on_end = on_end
        self._certificate = certificate
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._nonce = secrets.token_bytes(32)
        self._unproven = bytearray()
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._why:
            transport.abort()  # it was ended during the handshake of TLS
            return
        if self._role == "agent":
            peer = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self._certificate = fingerprint(peer)

        def time_out() -> None:
            if not self.opened.done():
                self.end(f"the other side did not prove itself within {HANDSHAKE_S:g} s")

        self._loop().call_later(HANDSHAKE_S, time_out)
        transport.write(_HELLO.pack(_MAGIC, VERSION, self._nonce))

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop().time()
        if self._why:
            return  # what comes after the end does not count
        try:
            if not self.opened.done():
                data = self._shake_hands(data)
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

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        why = self._why or "the connection was closed"
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(why))
            self.opened.exception()  # retrieved, so that asyncio does not log it
        on_end, self._on_end = self._on_end, lambda _why: None
        on_end(why)

    def send(self, message: Message) -> None:
        """Send a message, unless the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def end(self, why: str) -> None:
        """Cut the connection and drop what is not sent yet."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def close(self, why: str = "it was closed from here") -> None:
        """Close the connection after everything is sent."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.close()

    async def is_silent(self, limit_s: float) -> bool:
        """Return True if the other end sent nothing for `limit_s` seconds."""
        if self._loop().time() - self._heard_s > limit_s:
            # Data that arrived while this process was busy is still to be read: look twice.
            await asyncio.sleep(0.05)
        return self._loop().time() - self._heard_s > limit_s

    @staticmethod
    def _loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _shake_hands(self, data: bytes) -> bytes:
        """Continue the handshake; return the bytes after it, b"" until it is complete.

        The agent proves itself first: the coordinator proves that it has the secret only to a side
        that has it.
        """
        buffer = self._unproven
        before = len(buffer)
        buffer += data
        if len(buffer) < _HELLO.size:
            return b""
        magic, version, nonce = _HELLO.unpack_from(buffer)
        if magic != _MAGIC:
            raise ValueError("the other side is not a loadgen")
        if version != VERSION:
            raise ValueError(
                f"the other side has version {version} of the messages and this side {VERSION}; "
                "install the same loadgen on both"
            )
        if before < _HELLO.size and self._role == "agent":
            self._write(self._proof("agent", nonce))
        end = _HELLO.size + _PROOF_BYTES
        if len(buffer) < end:
            return b""
        other: Role = "coordinator" if self._role == "agent" else "agent"
        proof = buffer[_HELLO.size : end]
        if not hmac.compare_digest(proof, self._proof(other, nonce)):
            if self._role == "agent" and proof == _REFUSED:
                raise ValueError("the coordinator refused the secret; use the same on both sides")
            self._write(_REFUSED)
            self.close("the other side does not have the secret")
            return b""
        if self._role == "coordinator":
            self._write(self._proof("coordinator", nonce))
        self.opened.set_result(None)
        rest = bytes(buffer[end:])
        buffer.clear()
        return rest

    def _proof(self, role: Role, nonce: bytes) -> bytes:
        """Return the proof of a side; `nonce` is that of the other end."""
        agent, coordinator = self._nonce, nonce
        if self._role == "coordinator":
            agent, coordinator = coordinator, agent
        about = VERSION.to_bytes(2, "big") + agent + coordinator + self._certificate
        return hmac.digest(self._secret, role.encode() + b"\0" + about, "sha256")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
