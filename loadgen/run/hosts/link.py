"""The connection of a coordinator and a host's agent: frames over TCP, each proven to be theirs.

Both know a secret. Each side sends a number of its own that was never used before, and shows that
it can sign both numbers; from then on every packet carries a signature of its content and its
place. So a stranger is refused, and nothing is put in, changed, repeated or left out on the way.
Nothing is encrypted: who can listen can read the plan, with the broker's password if there is one.

A packet is u32 length (big-endian), 16 bytes of HMAC-SHA256, content: a frame (worker/frames.py).
"""

import asyncio
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import Literal

from loadgen.errors import LoadgenError
from loadgen.worker.frames import FRAME_LIMIT_BYTES, FrameReader, Header, encode_frame

Role = Literal["agent", "coordinator"]

HANDSHAKE_S = 5.0
_STRANGERS_LIMIT_BYTES = 1024
"""What a side that has not proven itself may send at once."""
_LENGTH = struct.Struct(">I")
_TAG_BYTES = 16
_HEAD_BYTES = _LENGTH.size + _TAG_BYTES


def _signature(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")[:_TAG_BYTES]


class Link(asyncio.Protocol):
    """One end. Ask `opened` to wait for the other; then `send`.

    `on_frame(header, block)` is called for each frame of the other end, `on_end(why)` once when the
    connection, or what came of it, is over.
    """

    def __init__(
        self,
        role: Role,
        secret: bytes,
        on_frame: Callable[[Header, bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard_s = self._loop().time()
        self._role = role.encode()
        self._peer: bytes = b"coordinator" if role == "agent" else b"agent"
        self._secret = secret
        self._on_frame = on_frame
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._frames = FrameReader()
        self._nonce = secrets.token_bytes(32)
        self._peer_nonce = b""
        self._key = b""
        self._sent = self._received = 0
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop().call_later(HANDSHAKE_S, self._give_up)
        transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop().time()
        self._buffer += data
        try:
            if self.opened.done() or self._proven():
                self._take_packets()
        except (LoadgenError, ValueError) as error:
            self.end(str(error)[:200])
        except (KeyError, TypeError) as error:
            self.end(f"the other side sent what is not understood: {error!r}"[:200])

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        why = self._why or "the connection was closed"
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(why))
            self.opened.exception()  # seen, whether or not anybody waits
        on_end, self._on_end = self._on_end, lambda _why: None
        on_end(why)

    def send(self, header: Header, block: bytes = b"") -> None:
        """Send a frame; nothing where the connection is over."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._packet(encode_frame(header, block)))

    def end(self, why: str) -> None:
        """Cut the connection; what was not sent yet is dropped."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        self._why = self._why or "it was closed from here"
        if self._transport is not None:
            self._transport.close()

    def silent_s(self) -> float:
        """Seconds since the other end was heard."""
        return self._loop().time() - self._heard_s

    @staticmethod
    def _loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _give_up(self) -> None:
        if not self.opened.done():
            self.end(f"the other side did not prove itself within {HANDSHAKE_S:g} s")

    def _proven(self) -> bool:
        """Go on with the handshake: whether the other side has proven itself."""
        if len(self._buffer) > _STRANGERS_LIMIT_BYTES:
            raise ValueError("the other side does not know the secret")
        size = len(self._nonce)
        if not self._peer_nonce and len(self._buffer) >= size:
            self._peer_nonce = bytes(self._buffer[:size])
            both = self._nonces()
            self._key = hmac.digest(self._secret, b"key" + both, "sha256")
            if self._role == b"agent":
                self._prove(both)
        if not self._peer_nonce or len(self._buffer) < size + _TAG_BYTES:
            return False
        both = self._nonces()
        proof = bytes(self._buffer[size : size + _TAG_BYTES])
        if not hmac.compare_digest(proof, _signature(self._secret, self._peer, both)):
            raise ValueError("the other side does not know the secret")
        # The coordinator shows that it knows the secret to nobody who does not.
        if self._role == b"coordinator":
            self._prove(both)
        del self._buffer[: size + _TAG_BYTES]
        self.opened.set_result(None)
        return True

    def _nonces(self) -> bytes:
        """Both numbers, the agent's first."""
        pair = (self._nonce, self._peer_nonce)
        return b"".join(pair if self._role == b"agent" else pair[::-1])

    def _prove(self, both: bytes) -> None:
        if self._transport is not None:
            self._transport.write(_signature(self._secret, self._role, both))

    def _packet(self, content: bytes) -> bytes:
        tag = _signature(self._key, self._role, str(self._sent).encode(), content)
        self._sent += 1
        return b"".join((_LENGTH.pack(len(content)), tag, content))

    def _take_packets(self) -> None:
        position = 0
        while len(self._buffer) - position >= _HEAD_BYTES:
            (length,) = _LENGTH.unpack_from(self._buffer, position)
            if length > FRAME_LIMIT_BYTES:
                raise ValueError("the other side sent something too long")
            start = position + _HEAD_BYTES
            if len(self._buffer) < start + length:
                break
            content = bytes(self._buffer[start : start + length])
            tag = bytes(self._buffer[position + _LENGTH.size : start])
            place = str(self._received).encode()
            if not hmac.compare_digest(tag, _signature(self._key, self._peer, place, content)):
                raise ValueError("something was changed on the way")
            self._received += 1
            position = start + length
            for header, block in self._frames.feed(content):
                self._on_frame(header, block)
        del self._buffer[:position]
