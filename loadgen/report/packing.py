"""Values of thousands of runs: compressed, in a file, or made when they are read."""

import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import pyarrow as pa

_SIZE_BYTES = 8

T = TypeVar("T")


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
            self._descriptor = os.dup(file.fileno())
        self._end = 0

    def __del__(self) -> None:
        os.close(self._descriptor)

    def add(self, data: bytes) -> "Spooled":
        """Append bytes, which are read when they are needed."""
        added = Spooled(self, self._end, len(data))
        while data:
            written = os.pwrite(self._descriptor, data, self._end)
            data, self._end = data[written:], self._end + written
        return added

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at a place of the file."""
        return os.pread(self._descriptor, length, offset)


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """Bytes in a file; equal to bytes of the same content, and pickled as such."""

    spool: Spool
    offset: int
    length: int

    def __bytes__(self) -> bytes:
        return self.spool.read(self.offset, self.length)

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spooled | bytes) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


class Made(Sequence[T]):
    """A sequence whose items are made again each time they are read, to save memory."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._places, self._make = range(count), make

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...

    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self._make(each) for each in self._places[place]]
        return self._make(self._places[place])
