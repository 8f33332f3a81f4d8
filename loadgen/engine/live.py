"""The live page: one row of counters a worker, in memory that the coordinator can look at.

Shared so that progress, the end of the drain and the high-water mark need no message between
processes. A worker's row *is* the array in which its kernels count, so it is always of the
moment; a reader sees each number whole, not all of one moment.
"""

from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadgen.workload import traffic

__all__ = ["LIVE_FIELDS", "Live", "LivePage", "create_live_page", "open_live_page"]


class Live(IntEnum):
    """Columns of the live page (int64)."""

    SENT = traffic.SENT
    """Messages written to the socket, whatever phase they belong to."""
    EXPECTED = traffic.EXPECTED
    """Deliveries that the sent messages must cause."""
    RECEIVED = traffic.RECEIVED
    """Distinct deliveries that arrived."""
    IN_FLIGHT = traffic.IN_FLIGHT
    """Messages sent and not yet acknowledged (QoS 1 and 2)."""
    CONNECTED = traffic.CONNECTED_COUNT
    PUSHED_BACK = traffic.PUSHED_BACK
    """Times a publisher that owed messages had to wait for its socket or its window."""
    BEAT_NS = traffic.TOTALS
    CONNECT_FAILURES = traffic.TOTALS + 1
    SUBSCRIBED = traffic.TOTALS + 2
    OWED = traffic.TOTALS + 3
    """Messages due but not yet sent, as of BEAT_NS."""
    DISCONNECTS = traffic.TOTALS + 4
    FINISHED = traffic.TOTALS + 5
    """1 when the schedule is over, nothing is owed and nothing is unacknowledged."""


LIVE_FIELDS = traffic.TOTALS + 8

LivePage = npt.NDArray[np.int64]


def create_live_page(path: Path, workers: int) -> LivePage:
    """A new page of shape (workers, LIVE_FIELDS), zeroed."""
    return np.memmap(path, dtype=np.int64, mode="w+", shape=(workers, LIVE_FIELDS))


def open_live_page(path: Path, workers: int) -> LivePage:
    """The page that the coordinator created."""
    return np.memmap(path, dtype=np.int64, mode="r+", shape=(workers, LIVE_FIELDS))
