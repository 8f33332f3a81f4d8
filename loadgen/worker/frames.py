"""Frames between coordinator and worker: a JSON header and a block of bytes.

Wire form: u32 header length, u32 block length (big-endian), header, block.
"""

import struct
from typing import Any

import orjson

from loadgen.errors import CannotRunError
from loadgen.sentences import WORKER_TEXT

FRAME_LIMIT_BYTES = 256 * 1024 * 1024
_LENGTHS = struct.Struct(">II")

Header = dict[str, Any]


def encode_frame(header: Header, block: bytes = b"") -> bytes:
    """Return a frame as bytes; `header` holds JSON values and dataclasses."""
    encoded = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join((_LENGTHS.pack(len(encoded), len(block)), encoded, block))


class FrameReader:
    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Header, bytes]]:
        """Return the frames completed by `data`; raise CannotRunError for invalid bytes."""
        self._buffer += data
        frames: list[tuple[Header, bytes]] = []
        position = 0
        while len(self._buffer) - position >= _LENGTHS.size:
            header_bytes, block_bytes = _LENGTHS.unpack_from(self._buffer, position)
            if header_bytes > FRAME_LIMIT_BYTES or block_bytes > FRAME_LIMIT_BYTES:
                raise CannotRunError(WORKER_TEXT.OUT_OF_STEP())
            body = position + _LENGTHS.size
            end = body + header_bytes + block_bytes
            if len(self._buffer) < end:
                break
            try:
                header = orjson.loads(self._buffer[body : body + header_bytes])
            except orjson.JSONDecodeError:
                header = None
            if not isinstance(header, dict):
                raise CannotRunError(WORKER_TEXT.OUT_OF_STEP())
            frames.append((header, bytes(self._buffer[body + header_bytes : end])))
            position = end
        if position:
            del self._buffer[:position]
        return frames
