"""zlib's CRC-32 in compiled code.

It uses carry-less multiplication if the processor has it (carryless.py), and tables for the
remaining bytes and on other processors.
"""

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import read_4_bytes, read_8_bytes
from loadgen.kernels.carryless import FOLD_16, FOLD_64, FOLDS, fold, reduce
from loadgen.kernels.compiled import compiled

Bytes = npt.NDArray[np.uint8]

_MASK = 0xFFFFFFFF
_LANES_BYTES = 64  # four lanes of 16 bytes


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Return slicing-by-8 tables, (8, 256), of the reflected polynomial 0xEDB88320 (ISO 3309)."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for byte in range(256):
        crc = int(tables[0, byte])
        for index in range(1, 8):
            crc = int(tables[0, crc & 0xFF]) ^ (crc >> 8)
            tables[index, byte] = crc
    return tables


_TABLES = _crc_tables()


@compiled
def _read_u8(buffer: Bytes, position: int) -> int:
    # The unsigned index spares the check for indices that count from the end.
    return int(np.int64(buffer[np.uint64(position)]))


@compiled
def _after_4(state: int) -> int:
    """Return the state after four bytes that were added to it."""
    return (
        int(np.int64(_TABLES[3, state & 0xFF]))
        ^ int(np.int64(_TABLES[2, (state >> 8) & 0xFF]))
        ^ int(np.int64(_TABLES[1, (state >> 16) & 0xFF]))
        ^ int(np.int64(_TABLES[0, (state >> 24) & 0xFF]))
    )


@compiled
def _after_8(state: int) -> int:
    """Return the state after eight bytes that were added to it."""
    return (
        int(np.int64(_TABLES[7, state & 0xFF]))
        ^ int(np.int64(_TABLES[6, (state >> 8) & 0xFF]))
        ^ int(np.int64(_TABLES[5, (state >> 16) & 0xFF]))
        ^ int(np.int64(_TABLES[4, (state >> 24) & 0xFF]))
        ^ _after_4((state >> 32) & _MASK)
    )


@compiled
def by_tables(crc: int, buffer: Bytes, start: int, end: int) -> int:
    """Return what `crc32` returns, without the instruction."""
    state = crc ^ _MASK
    position = start
    while position + 8 <= end:
        state = _after_8(state ^ read_8_bytes(buffer, position))
        position += 8
    if position + 4 <= end:
        state = _after_4(state ^ read_4_bytes(buffer, position))
        position += 4
    while position < end:
        state = int(np.int64(_TABLES[0, (state ^ _read_u8(buffer, position)) & 0xFF])) ^ (
            state >> 8
        )
        position += 1
    return state ^ _MASK


@compiled
def _by_folding(crc: int, buffer: Bytes, start: int, end: int) -> int:
    """Return what `crc32` returns, for a multiple of 16 bytes."""
    low = read_8_bytes(buffer, start) ^ crc ^ _MASK
    high = read_8_bytes(buffer, start + 8)
    position = start + 16
    if end - start >= 2 * _LANES_BYTES:
        low, high, position = _by_lanes(low, high, buffer, position, end)
    while position < end:
        then_low, then_high = read_8_bytes(buffer, position), read_8_bytes(buffer, position + 8)
        low, high = fold(low, high, FOLD_16, then_low, then_high)
        position += 16
    return int(reduce(low, high)) ^ _MASK


@compiled
def _by_lanes(low: int, high: int, buffer: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Fold four lanes of 16 bytes: in a single lane each step waits for the last product.

    (low, high) are the 16 bytes before `position`. Return 16 bytes and the position after them.
    """
    a, b = low, high
    c, d = read_8_bytes(buffer, position), read_8_bytes(buffer, position + 8)
    e, f = read_8_bytes(buffer, position + 16), read_8_bytes(buffer, position + 24)
    g, h = read_8_bytes(buffer, position + 32), read_8_bytes(buffer, position + 40)
    position += 48
    while position + _LANES_BYTES <= end:
        p = position
        a, b = fold(a, b, FOLD_64, read_8_bytes(buffer, p), read_8_bytes(buffer, p + 8))
        c, d = fold(c, d, FOLD_64, read_8_bytes(buffer, p + 16), read_8_bytes(buffer, p + 24))
        e, f = fold(e, f, FOLD_64, read_8_bytes(buffer, p + 32), read_8_bytes(buffer, p + 40))
        g, h = fold(g, h, FOLD_64, read_8_bytes(buffer, p + 48), read_8_bytes(buffer, p + 56))
        position += _LANES_BYTES
    a, b = fold(a, b, FOLD_16, c, d)
    a, b = fold(a, b, FOLD_16, e, f)
    a, b = fold(a, b, FOLD_16, g, h)
    return a, b, position


@compiled
def crc32(crc: int, buffer: Bytes, start: int, end: int) -> int:
    """Return the CRC-32 of buffer[start:end], continuing `crc` (at first 0), as zlib.crc32."""
    if FOLDS:
        folded = (end - start) & ~15
        if folded > 0:
            crc = _by_folding(crc, buffer, start, start + folded)
            start += folded
    return by_tables(crc, buffer, start, end)


@compiled
def crc32_of_28(crc: int, first: int, second: int, third: int, fourth: int) -> int:
    """Return the same for 28 bytes: an unsigned 32-bit number and three of 64 bits."""
    state = crc ^ _MASK ^ first
    if FOLDS:
        # Four zero bytes before them do not change the checksum, and make them 32.
        low, high = fold(state << 32, second, FOLD_16, third, fourth)
        return int(reduce(low, high)) ^ _MASK
    state = _after_8(_after_4(state) ^ second)
    return _after_8(_after_8(state ^ third) ^ fourth) ^ _MASK
