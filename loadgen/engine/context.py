"""Hands a fleet's arrays to compiled code as one table of addresses.

A call into compiled code spends about 60 ns on each array it is given; with thirty arrays a call
costs as much as a small `recv`. So the arrays' addresses and shapes are written down once, and the
kernel puts the arrays together again on its side, which costs nothing. The fleet must outlive the
table; replacing one of its arrays asks for a new one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, from_dtype, njit, types  # type: ignore[attr-defined]
from numba.core.extending import intrinsic

from loadgen.engine.reactor import poll, pump
from loadgen.engine.syscalls import monotonic_ns
from loadgen.mqtt.in_flight import IN_FLIGHT_DTYPE, SENDER_DTYPE
from loadgen.workload.traffic import EVENTS, REARM

__all__ = ["address_table", "pump_fleet", "serve_fleet"]

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


@njit(cache=True)
def _numbers(t: Table, i: int) -> Any:
    return carray(_int64(t[i, 0]), (t[i, 1],))


@njit(cache=True)
def _table(t: Table, i: int) -> Any:
    return carray(_int64(t[i, 0]), (t[i, 1], t[i, 2]))


@njit(cache=True)
def _cube(t: Table, i: int) -> Any:
    return carray(_int64(t[i, 0]), (t[i, 1], t[i, 2], t[i, 3]))


@njit(cache=True)
def _words(t: Table, i: int) -> Any:
    return carray(_int32(t[i, 0]), (t[i, 1],))


@njit(cache=True)
def _counts(t: Table, i: int) -> Any:
    return carray(_uint32(t[i, 0]), (t[i, 1], t[i, 2]))


@njit(cache=True)
def _bytes(t: Table, i: int) -> Any:
    return carray(_uint8(t[i, 0]), (t[i, 1],))


@njit(cache=True)
def _byte_rows(t: Table, i: int) -> Any:
    return carray(_uint8(t[i, 0]), (t[i, 1], t[i, 2]))


@njit(cache=True)
def _floats(t: Table, i: int) -> Any:
    return carray(_float64(t[i, 0]), (t[i, 1],))


@njit(cache=True)
def _senders(t: Table, i: int) -> Any:
    return carray(_sender(t[i, 0]), (t[i, 1],))


@njit(cache=True)
def _window(t: Table, i: int) -> Any:
    return carray(_in_flight(t[i, 0]), (t[i, 1], t[i, 2]))


@njit(cache=True)
def _poll(timeout_ms: int, t: Table) -> int:
    found: int = poll(
        timeout_ms,
        t[0, 0],
        _words(t, 1),
        _numbers(t, 2),
        _numbers(t, 3),
        _words(t, 4),
        _bytes(t, 5),
        _bytes(t, 6),
        _byte_rows(t, 7),
        _bytes(t, 8),
        _numbers(t, 9),
        _table(t, 10),
        _table(t, 11),
        _numbers(t, 12),
        _numbers(t, 13),
        _table(t, 14),
        _table(t, 15),
        _numbers(t, 16),
        _cube(t, 17),
        _counts(t, 18),
        _table(t, 19),
        _senders(t, 20),
        _window(t, 21),
        _byte_rows(t, 22),
        _table(t, 23),
        _table(t, 24),
        _table(t, 25),
        _table(t, 26),
        _bytes(t, 27),
    )
    return found


@njit(cache=True)
def pump_fleet(t: Table) -> int:
    """`reactor.pump` with the arguments of `fleet.pump_arguments`, as an address table."""
    segments: int = pump(
        t[0, 0],
        t[1, 0],
        _numbers(t, 2),
        _bytes(t, 3),
        _table(t, 4),
        _table(t, 5),
        _numbers(t, 6),
        _table(t, 7),
        _table(t, 8),
        _numbers(t, 9),
        _numbers(t, 10),
        _cube(t, 11),
        _counts(t, 12),
        _table(t, 13),
        _senders(t, 14),
        _window(t, 15),
        _table(t, 16),
        _table(t, 17),
        _floats(t, 18),
        _table(t, 19),
        _bytes(t, 20),
        _numbers(t, 21),
        _bytes(t, 22),
        _numbers(t, 23),
        _table(t, 24),
        _bytes(t, 25),
    )
    return segments


@njit(cache=True)
def serve_fleet(linger_ns: int, polling: Table, pumping: Table, clock: Table, totals: Table) -> int:
    """Poll and pump, again and again, until Python is needed or `linger_ns` are over.

    While there is traffic the worker waits here and not in its loop, which sees what else there
    is (the coordinator, its own timers) no later than `linger_ns` after it came. Returns the
    number of segments that `pump` left for streamed connections.
    """
    now_ns = monotonic_ns(clock)
    end_ns = now_ns + linger_ns
    timeout_ms = 0
    while True:
        _poll(timeout_ms, polling)
        if totals[REARM]:
            segments = pump_fleet(pumping)
            if segments > 0:
                return segments
        if totals[EVENTS] > 0:
            return 0
        now_ns = monotonic_ns(clock)
        left_ns = end_ns - now_ns
        if left_ns <= 0:
            return 0
        timeout_ms = (left_ns + 999_999) // 1_000_000
