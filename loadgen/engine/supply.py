"""The supply chain's kernels (specjms/kernels.py) with their own arrays as one address table.

The reactor calls these where another case has `traffic.receive`, `fill_batch` and `settle_batch`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.engine.addresses import address_table, bytes_at, cube_at, numbers_at, table_at
from loadgen.specjms import kernels
from loadgen.specjms.layout import Chains

__all__ = ["begin_supply", "chain_table", "receive_supply", "settle_supply"]

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint32]
Records = npt.NDArray[np.void]


def chain_table(chains: Chains, body: Bytes, body_crc: Table) -> Table:
    """The arrays of a supply chain as an address table."""
    c = chains
    arrays: list[Any] = [
        *(c.types, c.outputs, c.roles, c.bases, c.sequences, c.offered, c.answers, c.terms),
        *(c.term_bytes, c.topics, c.topic_ends, c.properties, c.property_ends, c.joins),
        *(c.waiting, c.transactions, c.causes, c.seen, c.begins, c.state, c.notes, c.begun),
        *(body, body_crc),
    ]
    return address_table(arrays)


@compiled
def receive_supply(
    t: Table,
    buffer: Bytes,
    start: int,
    end: int,
    now_ns: int,
    connection: int,
    connections: Table,
    groups: Table,
    run: Table,
    totals: Table,
    pairs: Table,
    holes: Table,
    hole_state: Table,
    counters: Table,
    histograms: Counts,
    stats: Table,
    senders: Records,
    window: Records,
    received_ids: Bytes,
    held_ids: Table,
    schedule: Table,
    heap: Table,
    events: Table,
    control: Bytes,
    out: Bytes,
    out_position: int,
) -> tuple[int, int]:
    """`kernels.receive`."""
    return kernels.receive(
        buffer,
        start,
        end,
        now_ns,
        connection,
        connections,
        groups,
        run,
        totals,
        pairs,
        holes,
        hole_state,
        counters,
        histograms,
        stats,
        senders,
        window,
        received_ids,
        held_ids,
        schedule,
        heap,
        events,
        control,
        out,
        out_position,
        table_at(t, 0),
        numbers_at(t, 1),
        table_at(t, 2),
        table_at(t, 3),
        numbers_at(t, 4),
        numbers_at(t, 5),
        table_at(t, 7),
        bytes_at(t, 8),
        bytes_at(t, 9),
        numbers_at(t, 10),
        bytes_at(t, 11),
        numbers_at(t, 12),
        table_at(t, 13),
        table_at(t, 14),
        table_at(t, 15),
        cube_at(t, 16),
        table_at(t, 17),
        numbers_at(t, 19),
        table_at(t, 20),
        bytes_at(t, 22),
        numbers_at(t, 23),
    )


@compiled
def begin_supply(
    t: Table,
    publisher: int,
    connection: int,
    now_ns: int,
    sent_ns: int,
    limit: int,
    connections: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    periods_ns: Numbers,
    program: Table,
    senders: Records,
    window: Records,
    out: Bytes,
    out_position: int,
    batch: Table,
) -> tuple[int, int]:
    """`kernels.begin_interactions`."""
    return kernels.begin_interactions(
        publisher,
        connection,
        now_ns,
        sent_ns,
        limit,
        connections,
        run,
        totals,
        schedule,
        periods_ns,
        program,
        senders,
        window,
        out,
        out_position,
        batch,
        table_at(t, 0),
        table_at(t, 2),
        numbers_at(t, 4),
        numbers_at(t, 6),
        bytes_at(t, 9),
        numbers_at(t, 10),
        bytes_at(t, 11),
        numbers_at(t, 12),
        cube_at(t, 16),
        numbers_at(t, 19),
        table_at(t, 20),
        table_at(t, 21),
        bytes_at(t, 22),
        numbers_at(t, 23),
    )


@compiled
def settle_supply(
    t: Table,
    publisher: int,
    connection: int,
    count: int,
    sent: int,
    sent_ns: int,
    start: int,
    connections: Table,
    run: Table,
    totals: Table,
    schedule: Table,
    senders: Records,
    window: Records,
    counters: Table,
    histograms: Counts,
    stats: Table,
    batch: Table,
) -> None:
    """`kernels.settle_interactions`."""
    kernels.settle_interactions(
        publisher,
        connection,
        count,
        sent,
        sent_ns,
        start,
        connections,
        run,
        totals,
        schedule,
        senders,
        window,
        counters,
        histograms,
        stats,
        batch,
        table_at(t, 0),
        table_at(t, 2),
        numbers_at(t, 4),
        table_at(t, 17),
        table_at(t, 18),
        table_at(t, 21),
    )
