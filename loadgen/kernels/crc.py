"""zlib's CRC-32 in compiled code, by carry-less multiplication if the processor has it.

A message is folded into its last sixteen bytes, modulo the polynomial of the CRC, and these are
reduced to 32 bits (V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ Instruction", Intel 2009; the constants are those of the reflected polynomial 0xEDB88320).
"""

# mypy: disable-error-code="attr-defined,no-untyped-call"

from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import Bytes, read_i64, read_u8, read_u32
from loadgen.kernels.compiled import compiled, is_plain

if not is_plain():
    from llvmlite import ir
    from numba import config, types
    from numba.core import codegen
    from numba.core.extending import intrinsic

    _VECTOR = ir.VectorType(ir.IntType(64), 2)

_MASK = 0xFFFFFFFF
_LANES_BYTES = 64  # four lanes of 16 bytes

FOLD_64 = 0x0154442BD4, 0x01C6E41596  # fold 16 bytes into those 64 bytes further on
FOLD_16 = 0x01751997D0, 0x00CCAA009E
_FOLD_4 = 0x0163CD6124
_POLYNOMIAL, _RECIPROCAL = 0x01DB710641, 0x01F7011641


FOLDS = False  # True if code is compiled, and the processor has the instruction
if not is_plain() and config.CPU_NAME in (None, "host"):
    _features: str = config.CPU_FEATURES or codegen.get_host_cpu_features()
    FOLDS = "+pclmul" in _features.split(",")


def _vector(builder: Any, low: Any, high: Any) -> Any:
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for place, word in enumerate((low, high)):
        vector = builder.insert_element(vector, word, ir.IntType(32)(place))
    return vector


def _multiplied(builder: Any, a: Any, b: Any, halves: int) -> Any:
    """Emit pclmulqdq: bit 0 of `halves` selects the half of `a`, bit 4 that of `b`."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, ir.IntType(8)])
    function = builder.module.globals.get("llvm.x86.pclmulqdq") or ir.Function(
        builder.module, kind, "llvm.x86.pclmulqdq"
    )
    return builder.call(function, [a, b, ir.IntType(8)(halves)])


def _fold(_context: Any, _low: Any, _high: Any, _by: Any, _then_low: Any, _then_high: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high, by, then_low, then_high = arguments
        factors = _vector(builder, *(builder.extract_value(by, place) for place in range(2)))
        value = _vector(builder, low, high)
        folded = _vector(builder, then_low, then_high)
        for halves in (0x00, 0x11):
            folded = builder.xor(folded, _multiplied(builder, value, factors, halves))
        words = [builder.extract_element(folded, ir.IntType(32)(place)) for place in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    word, pair = types.int64, types.UniTuple(types.int64, 2)
    return pair(word, word, pair, word, word), generate


def _reduce(_context: Any, _low: Any, _high: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        low, high = arguments
        quarters = ir.VectorType(ir.IntType(32), 4)
        shifts = ir.Constant(ir.VectorType(ir.IntType(32), 4), [1, 2, 3, 4])
        nothing = ir.Constant(quarters, [0] * 4)

        def times(value: Any, factor: int) -> Any:
            lowest = builder.and_(value, ir.Constant(_VECTOR, [_MASK, 0]))
            return _multiplied(builder, lowest, ir.Constant(_VECTOR, [factor, 0]), 0)

        value = _vector(builder, low, ir.IntType(64)(0))
        value = _multiplied(builder, value, ir.Constant(_VECTOR, [FOLD_16[1], 0]), 0)
        value = builder.xor(value, _vector(builder, high, ir.IntType(64)(0)))
        shifted = builder.shuffle_vector(builder.bitcast(value, quarters), nothing, shifts)
        value = builder.xor(times(value, _FOLD_4), builder.bitcast(shifted, _VECTOR))
        quotient = times(value, _RECIPROCAL)
        value = builder.xor(value, times(quotient, _POLYNOMIAL))
        return builder.lshr(builder.extract_element(value, ir.IntType(32)(0)), ir.IntType(64)(32))

    return types.int64(types.int64, types.int64), generate


fold: Any = None if is_plain() else intrinsic(_fold)
"""Function of (low, high, factors, then_low, then_high) that folds 16 bytes into the next ones."""
reduce: Any = None if is_plain() else intrinsic(_reduce)
"""Function of (low, high) that reduces the last 16 bytes to 32 bits."""


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
    """Compute `crc32` without the instruction."""
    state = crc ^ _MASK
    position = start
    while position + 8 <= end:
        state = _after_8(state ^ read_i64(buffer, position))
        position += 8
    if position + 4 <= end:
        state = _after_4(state ^ read_u32(buffer, position))
        position += 4
    while position < end:
        state = int(np.int64(_TABLES[0, (state ^ read_u8(buffer, position)) & 0xFF])) ^ (state >> 8)
        position += 1
    return state ^ _MASK


@compiled
def _by_folding(crc: int, buffer: Bytes, start: int, end: int) -> int:
    """Compute `crc32` of a multiple of 16 bytes."""
    low = read_i64(buffer, start) ^ crc ^ _MASK
    high = read_i64(buffer, start + 8)
    position = start + 16
    if end - start >= 2 * _LANES_BYTES:
        low, high, position = _by_lanes(low, high, buffer, position, end)
    while position < end:
        then_low, then_high = read_i64(buffer, position), read_i64(buffer, position + 8)
        low, high = fold(low, high, FOLD_16, then_low, then_high)
        position += 16
    return int(reduce(low, high)) ^ _MASK


@compiled
def _by_lanes(low: int, high: int, buffer: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Fold in four lanes, as a single one waits for each product; return (low, high, position)."""
    a, b = low, high
    c, d = read_i64(buffer, position), read_i64(buffer, position + 8)
    e, f = read_i64(buffer, position + 16), read_i64(buffer, position + 24)
    g, h = read_i64(buffer, position + 32), read_i64(buffer, position + 40)
    position += 48
    while position + _LANES_BYTES <= end:
        p = position
        a, b = fold(a, b, FOLD_64, read_i64(buffer, p), read_i64(buffer, p + 8))
        c, d = fold(c, d, FOLD_64, read_i64(buffer, p + 16), read_i64(buffer, p + 24))
        e, f = fold(e, f, FOLD_64, read_i64(buffer, p + 32), read_i64(buffer, p + 40))
        g, h = fold(g, h, FOLD_64, read_i64(buffer, p + 48), read_i64(buffer, p + 56))
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
    """Return the CRC of 28 bytes: an unsigned 32-bit number and three of 64 bits."""
    state = crc ^ _MASK ^ first
    if FOLDS:
        # Four zero bytes before them do not change the checksum, and make them 32.
        low, high = fold(state << 32, second, FOLD_16, third, fourth)
        return int(reduce(low, high)) ^ _MASK
    state = _after_8(_after_4(state) ^ second)
    return _after_8(_after_8(state ^ third) ^ fourth) ^ _MASK
