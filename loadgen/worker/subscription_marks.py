"""Messages in flight to each subscription, from files that the coordinator maps."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.kernels.accounting import Pair
from loadgen.kernels.arrays import Int64s
from loadgen.kernels.device import SHARED
from loadgen.kernels.pacer import Publisher
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import MESSAGING
from loadgen.worker.closing import range_owners

PAIRS_LIMIT = 50_000  # of one worker; a sample of more takes too long
_PAUSES = 50  # after a sample, as a multiple of its duration


def share_streams(fleet: PlannedFleet, live: Path, worker: int) -> None:
    """Map the counts by stream and by pair to files next to the live page, if they are few."""
    shared = (fleet.devices["flags"] & SHARED).any()
    if fleet.plan.behaviour != MESSAGING or shared or len(fleet.pairs) > PAIRS_LIMIT:
        return
    columns = [fleet.ranges[name] for name in ("pair_first", "stream_first", "stream_count")]
    subscriptions = np.stack([*columns, range_owners(fleet)], axis=1)
    try:
        publishers = _moved(fleet.publishers, _part(live, worker, "publishers"))
        pairs = _moved(fleet.pairs, _part(live, worker, "pairs"))
    except OSError:
        return
    fleet.replace(publishers=publishers, pairs=pairs)
    with _part(live, worker, "subscriptions").open("wb") as file:
        np.save(file, subscriptions.astype(np.int64))


def _part(live: Path, worker: int, name: str) -> Path:
    return live.with_name(f"{live.name}.{worker}.{name}")


def _moved(rows: Any, path: Path) -> Any:
    """Move rows to a file; raise OSError if there is no room for it."""
    with path.open("wb") as file:
        if not len(rows):
            return rows
        # If memory is full, the first write to it would otherwise kill the process.
        os.posix_fallocate(file.fileno(), 0, rows.nbytes)
    area = np.asarray(np.memmap(path, np.uint8, "r+"))
    moved = area.view(rows.dtype)
    moved[:] = rows
    return moved


def _opened(path: Path, layout: np.dtype[np.void]) -> npt.NDArray[np.void]:
    if not path.stat().st_size:
        return np.zeros(0, layout)
    return np.asarray(np.memmap(path, np.uint8, "r")).view(layout)


class SubscriptionMarks:
    """Reader of the publishers and pairs of all workers; `firsts` begin the subscriptions."""

    def __init__(
        self, publishers: list[Any], pairs: list[Any], streams: Int64s, firsts: Int64s
    ) -> None:
        self._sent_on = [(rows["stream"].copy(), rows["sent"]) for rows in publishers]
        self._expected = [rows["expected"] for rows in pairs]
        self._streams = streams
        self._firsts = firsts
        self._sent = np.zeros(1 + max(int(one.max(initial=-1)) for one, _ in self._sent_on), int)
        self._next_ns = 0

    def most(self) -> tuple[int, float] | None:
        """Return the most messages in flight to one subscription, and the longest wait.

        A wait, of a subscription or a stream to it, is the share of its messages that wait, without
        overtaken ones. Return None if the last sample was a moment ago.
        """
        begun_ns = time.monotonic_ns()
        if begun_ns < self._next_ns:
            return None
        received = np.concatenate(self._expected)  # first, so that the result is never too low
        for numbers, sent in self._sent_on:
            self._sent[numbers] = sent
        sent = self._sent[self._streams]
        waiting = np.maximum(sent - received, 0)
        under_way = np.add.reduceat(waiting, self._firsts)
        of_all = (under_way - 1) / np.maximum(np.add.reduceat(sent, self._firsts), 1)
        of_each = (waiting - 1) / np.maximum(sent, 1)
        self._next_ns = begun_ns + _PAUSES * (time.monotonic_ns() - begun_ns)
        return int(under_way.max()), max(float(of_all.max()), float(of_each.max()), 0.0)


def open_marks(live: Path, workers: int) -> SubscriptionMarks | None:
    """Map the files of all workers; return None if one is missing, as on another host."""
    publishers: list[Any] = []
    pairs: list[Any] = []
    streams: list[Int64s] = []
    firsts: list[int] = []
    for worker in range(workers):
        path = _part(live, worker, "subscriptions")
        if not path.exists():
            return None
        before, earlier = sum(map(len, pairs)), None
        for pair_first, stream_first, count, device in np.load(path).tolist():
            if device != earlier:
                firsts.append(before + pair_first)
            earlier = device
            streams.append(np.arange(stream_first, stream_first + count))
        publishers.append(_opened(_part(live, worker, "publishers"), Publisher.layout))
        pairs.append(_opened(_part(live, worker, "pairs"), Pair.layout))
    if not firsts:
        return None
    return SubscriptionMarks(publishers, pairs, np.concatenate(streams), np.array(firsts))
