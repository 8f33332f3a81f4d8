"""Arrays as one table of addresses, and back into arrays within compiled code.

A call into compiled code spends about 60 ns on each array it is given; with thirty arrays a call
costs as much as a small `recv`. So the arrays' addresses and shapes are written down once, and the
kernel puts the arrays together again on its side, which costs nothing. Whoever holds the arrays
must outlive the table; replacing one of them asks for a new one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, from_dtype, types  # type: ignore[attr-defined]
from numba.core.extending import intrinsic

from loadgen.compiled import compiled
from loadgen.mqtt.in_flight import IN_FLIGHT_DTYPE, SENDER_DTYPE

__all__ = [
    "address_table",
    "byte_rows_at",
    "bytes_at",
    "counts_at",
    "cube_at",
    "floats_at",
    "numbers_at",
    "senders_at",
    "table_at",
    "window_at",
    "words_at",
]

Table = npt.NDArray[np.int64]

_ENTRY = 4  # address and three dimensions, or a number and nothing
_SENDER = from_dtype(SENDER_DTYPE)
_IN_FLIGHT = from_dtype(IN_FLIGHT_DTYPE)


def address_table(arguments: Sequence[Any]) -> Table:
    """One row of four numbers an argument: address and dimensions, or the number itself."""
    table = np.zeros((len(arguments), _ENTRY), np.int64)
    for row, argument in zip(table, arguments, strict=True):
        if not isinstance(argument, np.ndarray):
            row[0] = argument
            continue
        if not argument.flags.c_contiguous:
            raise ValueError("an array of a fleet must be contiguous")
        row[0] = argument.ctypes.data
        row[1 : 1 + argument.ndim] = argument.shape
    return table


def _pointer_to(element: Any) -> Any:
    to_element: Any = types.CPointer(element)  # type: ignore[no-untyped-call]

    def pointer(typing_context: Any, address: Any) -> Any:
        signature = to_element(types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return signature, generate

    return intrinsic(pointer)


_int64 = _pointer_to(types.int64)
_int32 = _pointer_to(types.int32)
_uint32 = _pointer_to(types.uint32)
_uint8 = _pointer_to(types.uint8)
_float64 = _pointer_to(types.float64)
_sender = _pointer_to(_SENDER)
_in_flight = _pointer_to(_IN_FLIGHT)


@compiled
def numbers_at(t: Table, i: int) -> Any:
    return carray(_int64(t[i, 0]), (t[i, 1],))


@compiled
def table_at(t: Table, i: int) -> Any:
    return carray(_int64(t[i, 0]), (t[i, 1], t[i, 2]))


@compiled
def cube_at(t: Table, i: int) -> Any:
    return carray(_int64(t[i, 0]), (t[i, 1], t[i, 2], t[i, 3]))


@compiled
def words_at(t: Table, i: int) -> Any:
    return carray(_int32(t[i, 0]), (t[i, 1],))


@compiled
def counts_at(t: Table, i: int) -> Any:
    return carray(_uint32(t[i, 0]), (t[i, 1], t[i, 2]))


@compiled
def bytes_at(t: Table, i: int) -> Any:
    return carray(_uint8(t[i, 0]), (t[i, 1],))


@compiled
def byte_rows_at(t: Table, i: int) -> Any:
    return carray(_uint8(t[i, 0]), (t[i, 1], t[i, 2]))


@compiled
def floats_at(t: Table, i: int) -> Any:
    return carray(_float64(t[i, 0]), (t[i, 1],))


@compiled
def senders_at(t: Table, i: int) -> Any:
    return carray(_sender(t[i, 0]), (t[i, 1],))


@compiled
def window_at(t: Table, i: int) -> Any:
    return carray(_in_flight(t[i, 0]), (t[i, 1], t[i, 2]))
