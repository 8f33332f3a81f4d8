"""The live page: the totals of every worker, in memory that the coordinator can look at.

Shared so that progress, the end of the drain and the high-water mark need no message between
processes. A worker's row *is* the record in which its kernels count, so it is always of the
moment; a reader sees each number whole, not all of one moment.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadgen.workload.fleet import Totals

LivePage = npt.NDArray[np.void]
"""One record `Totals` a worker."""


def create_live_page(path: Path, workers: int) -> LivePage:
    """A new page, zeroed."""
    return np.memmap(path, dtype=Totals.layout, mode="w+", shape=(workers,))


def open_live_page(path: Path, workers: int) -> LivePage:
    """The page that the coordinator created."""
    return np.memmap(path, dtype=Totals.layout, mode="r+", shape=(workers,))
