"""Values of thousands of runs: compressed, and in a file until they are read."""

import os
import pickle
import tempfile
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_SIZE_BYTES = 8


def packed(value: object) -> bytes:
    """Return a value of this program as bytes; tables and curves shrink to a tenth."""
    plain = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    compressed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
    return len(plain).to_bytes(_SIZE_BYTES) + compressed


def unpacked(data: bytes) -> Any:
    """Return the value that `packed` returned as these bytes."""
    size = int.from_bytes(data[:_SIZE_BYTES])
    return pickle.loads(pa.decompress(data[_SIZE_BYTES:], size, codec="zstd", asbytes=True))


class Spool:
    """A temporary file without a name. It is closed with the last value in it."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self.descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        os.close(self.descriptor)

    def add(self, data: bytes) -> "Spooled":
        """Append bytes, which are read when they are needed."""
        with open(self.descriptor, "ab", closefd=False) as file:
            added = Spooled(self, file.seek(0, os.SEEK_END), len(data))
            file.write(data)
        return added


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """Bytes in a file; equal to bytes of the same content, and pickled as such."""

    spool: Spool
    offset: int
    length: int

    def __bytes__(self) -> bytes:
        return os.pread(self.spool.descriptor, self.length, self.offset)

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spooled | bytes) and bytes(self) == bytes(other)
