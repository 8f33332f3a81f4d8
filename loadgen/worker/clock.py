"""The run's clock: CLOCK_MONOTONIC of the coordinator's host, estimated on other hosts.

All moments of a run are of this clock. A worker on another host adds the offset that its agent
measures, which follows the drift of the two (run/hosts/clocks.py).
"""

import time

import numpy as np
import numpy.typing as npt

from loadgen.kernels.syscalls import CLOCK_OFFSET, CLOCK_WORDS
from loadgen.plan.behaviour import PlannedFleet

_offset_ns = 0  # of this process: it is one worker


def clock_ns() -> int:
    """Return the time of the run's clock."""
    return time.monotonic_ns() + _offset_ns


def clock_words() -> npt.NDArray[np.int64]:
    """Return the scratch with which kernels read the run's clock (`syscalls.monotonic_ns`)."""
    words = np.zeros(CLOCK_WORDS, np.int64)
    words[CLOCK_OFFSET] = _offset_ns
    return words


def follow(offset_ns: int, fleet: PlannedFleet | None = None) -> None:
    """Set the offset of the run's clock from this host's, also for the kernels of `fleet`."""
    global _offset_ns
    _offset_ns = offset_ns
    if fleet is not None:
        fleet.clock[CLOCK_OFFSET] = offset_ns
