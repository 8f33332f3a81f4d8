"""The live page: the counts of every worker, in memory that the coordinator can read.

A worker's rows *are* the records in which its kernels count: they are always current, and remain if
it is killed. A reader sees each number whole, but not all of one moment.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import Rows
from loadgen.kernels.counting import INTENDED_PHASES
from loadgen.kernels.fleet import CounterRecord, Totals

_PHASES = len(INTENDED_PHASES)


@dataclass(frozen=True, slots=True)
class SharedPage:
    """One record `totals` a worker; `counts` have the shape (workers, groups, phases)."""

    totals: Rows[Totals]
    counts: npt.NDArray[np.void]

    @property
    def workers(self) -> int:
        return len(self.totals)

    def of(self, worker: int) -> "SharedPage":
        return SharedPage(self.totals[worker : worker + 1], self.counts[worker : worker + 1])

    def total(self, name: str) -> int:
        """Return the sum of a field of `totals` over all workers."""
        return int(self.totals[name].sum())

    def counted(self, name: str, groups: Sequence[int] | None = None) -> int:
        """Return a counter, summed over workers and phases, of these groups or all."""
        counts = self.counts[name]
        return int((counts if groups is None else counts[:, groups]).sum())

    def outstanding(self) -> int:
        """Return the expected deliveries that have not arrived, intact or damaged; at least 0."""
        # Arrivals first: those during the sum must not exceed the expected ones.
        arrived = self.counted("received") + self.counted("corrupt")
        return max(0, self._expected() - arrived)

    def under_way(self) -> int:
        """Return the outstanding deliveries that no later message of their stream has overtaken."""
        arrived = self.counted("received") + self.total("damaged")
        missing = max(0, self.total("missing") - self.total("withdrawn"))
        return max(0, self._expected() - arrived - missing)

    def _expected(self) -> int:
        return self.counted("expected") + self.total("lined_up")


def private_page(workers: int, groups: int) -> SharedPage:
    """Return a zeroed page that no other process sees."""
    return _page(np.zeros(_page_bytes(workers, groups), np.uint8), workers, groups)


def rows_as_words(page: SharedPage) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the same memory as numbers, a row for each worker: `totals`, then `counts`."""
    totals, counts = np.asarray(page.totals).view(np.int64), page.counts.view(np.int64)
    return totals.reshape(page.workers, -1), counts.reshape(page.workers, -1)


def create_live_page(path: Path, workers: int, groups: int) -> SharedPage:
    with path.open("wb") as file:
        try:
            # In a full memory file system the first write to the page would kill the process.
            os.posix_fallocate(file.fileno(), 0, _page_bytes(workers, groups))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
    return open_live_page(path, workers, groups)


def open_live_page(path: Path, workers: int, groups: int) -> SharedPage:
    return _page(np.asarray(np.memmap(path, np.uint8, "r+")), workers, groups)


def _page_bytes(workers: int, groups: int) -> int:
    of_worker = Totals.layout.itemsize + groups * _PHASES * CounterRecord.layout.itemsize
    return workers * of_worker


def _page(memory: npt.NDArray[np.uint8], workers: int, groups: int) -> SharedPage:
    totals_bytes = workers * Totals.layout.itemsize
    totals: Rows[Totals] = memory[:totals_bytes].view(Totals.layout)  # type: ignore[assignment]
    counts = memory[totals_bytes:].view(CounterRecord.layout)
    return SharedPage(totals, counts.reshape(workers, groups, _PHASES))
