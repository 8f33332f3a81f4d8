"""Hands a fleet's arrays to the reactor as one table of addresses (addresses.py).

`chain` is such a table of a supply chain's arrays, None for every other case; the branch for the
other kind is not even compiled.
"""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.engine.addresses import (
    address_table,
    byte_rows_at,
    bytes_at,
    counts_at,
    cube_at,
    floats_at,
    numbers_at,
    senders_at,
    table_at,
    window_at,
    words_at,
)
from loadgen.engine.reactor import poll, pump
from loadgen.engine.syscalls import arm_timer, monotonic_ns
from loadgen.workload.traffic import EVENTS, REARM

__all__ = ["address_table", "pump_fleet", "serve_fleet"]

Table = npt.NDArray[np.int64]


@compiled
def _poll(timeout_ms: int, t: Table, chain: Table | None) -> int:
    found: int = poll(
        chain,
        timeout_ms,
        t[0, 0],
        words_at(t, 1),
        numbers_at(t, 2),
        numbers_at(t, 3),
        words_at(t, 4),
        bytes_at(t, 5),
        bytes_at(t, 6),
        byte_rows_at(t, 7),
        bytes_at(t, 8),
        numbers_at(t, 9),
        table_at(t, 10),
        table_at(t, 11),
        numbers_at(t, 12),
        numbers_at(t, 13),
        table_at(t, 14),
        table_at(t, 15),
        numbers_at(t, 16),
        cube_at(t, 17),
        counts_at(t, 18),
        table_at(t, 19),
        senders_at(t, 20),
        window_at(t, 21),
        byte_rows_at(t, 22),
        table_at(t, 23),
        table_at(t, 24),
        table_at(t, 25),
        table_at(t, 26),
        bytes_at(t, 27),
        bytes_at(t, 28),
        numbers_at(t, 29),
    )
    return found


@compiled
def pump_fleet(t: Table, chain: Table | None = None) -> int:
    """`reactor.pump` with the arguments of `fleet.pump_arguments`, as an address table."""
    segments: int = pump(
        chain,
        t[0, 0],
        t[1, 0],
        numbers_at(t, 2),
        bytes_at(t, 3),
        table_at(t, 4),
        table_at(t, 5),
        numbers_at(t, 6),
        table_at(t, 7),
        table_at(t, 8),
        numbers_at(t, 9),
        numbers_at(t, 10),
        cube_at(t, 11),
        counts_at(t, 12),
        table_at(t, 13),
        senders_at(t, 14),
        window_at(t, 15),
        table_at(t, 16),
        table_at(t, 17),
        floats_at(t, 18),
        table_at(t, 19),
        bytes_at(t, 20),
        numbers_at(t, 21),
        bytes_at(t, 22),
        numbers_at(t, 23),
        table_at(t, 24),
        table_at(t, 25),
        bytes_at(t, 26),
    )
    return segments


@compiled
def serve_fleet(
    linger_ns: int,
    linger_timer: int,
    polling: Table,
    pumping: Table,
    clock: Table,
    totals: Table,
    chain: Table | None = None,
) -> int:
    """Poll and pump, again and again, until Python is needed or `linger_ns` are over.

    While there is traffic the worker waits here and not in its loop, which sees what else there
    is (the coordinator, its own timers) no later than `linger_ns` after it came. A timeout of each
    wait would have the kernel program a timer each time, which costs more than the wait; so
    `linger_timer`, a timer of the epoll set, is armed once (-1 for none). Returns the
    number of segments that `pump` left for streamed connections.
    """
    now_ns = monotonic_ns(clock)
    end_ns = now_ns + linger_ns
    timeout_ms = 0
    if linger_timer >= 0 and linger_ns > 0:
        arm_timer(linger_timer, end_ns, clock)
    while True:
        _poll(timeout_ms, polling, chain)
        if totals[REARM]:
            segments = pump_fleet(pumping, chain)
            if segments > 0:
                return segments
        if totals[EVENTS] > 0:
            return 0
        now_ns = monotonic_ns(clock)
        left_ns = end_ns - now_ns
        if left_ns <= 0:
            return 0
        timeout_ms = -1 if linger_timer >= 0 else (left_ns + 999_999) // 1_000_000
