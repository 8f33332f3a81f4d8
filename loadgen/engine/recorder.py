"""From a worker's counters to interval rows, once a second, and back on the other side.

A frame of rows carries the histograms of all of them in its block: the buckets (int32) of all
rows end to end, then their counts (int64).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.metrics.histogram import sparse
from loadgen.metrics.interval import COUNTERS, SERIES, Interval
from loadgen.workload import traffic
from loadgen.workload.arrays import Grid
from loadgen.workload.device import CONNECTED
from loadgen.workload.fleet import Counts, Fleet, Stat
from loadgen.workload.pacer import owed_messages
from loadgen.workload.traffic import CONNECT_PHASE, INTENDED_PHASES

Table = npt.NDArray[np.int64]
Row = dict[str, Any]

_GAUGES = ("connected", "owed", "in_flight")
_STATS = ("count", "sum_ns", "min_ns", "max_ns")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """What the scheduler says of this process: ns on a processor, ns waiting for one."""

    cpu_ns: int
    wait_ns: int
    resident_bytes: int


def process_times() -> ProcessTimes:
    """Times of the calling thread and memory of the process; a worker has one thread."""
    cpu, wait, _ = Path("/proc/thread-self/schedstat").read_text().split()
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return ProcessTimes(int(cpu), int(wait), resident * _PAGE_BYTES)


@compiled
def _add_owed(fleet: Fleet, now_ns: int, owed: Table) -> int:
    oldest_ns = now_ns
    for number in range(len(fleet.publishers)):
        publisher = fleet.publishers[number]
        messages = owed_messages(publisher, fleet.program, now_ns)
        if messages > 0:
            owed[fleet.devices[publisher.device].group] += messages
            oldest_ns = min(oldest_ns, publisher.due_ns)
    return now_ns - oldest_ns


def owed_by_group(fleet: Fleet, now_ns: int) -> tuple[Table, int]:
    """Messages due and not sent, by group, and the age of the oldest in ns."""
    owed = np.zeros(len(fleet.groups), np.int64)
    if len(fleet.publishers) == 0 or fleet.program[0].clock_ns == 0:
        return owed, 0
    # One ns before the end is the last moment at which a message can be due.
    until_ns = min(now_ns, fleet.run.end_ns - 1)
    age_ns = _add_owed(fleet, until_ns, owed)
    return owed, int(age_ns) + max(now_ns - until_ns, 0) if owed.any() else 0


def connected_by_group(fleet: Fleet) -> Table:
    """Devices connected, by group."""
    connected = fleet.devices["state"] == CONNECTED
    return np.bincount(fleet.group[connected], minlength=len(fleet.groups)).astype(np.int64)


def in_flight_by_group(fleet: Fleet) -> Table:
    """Messages sent and not acknowledged, by group."""
    total = np.zeros(len(fleet.groups), np.int64)
    rows = fleet.devices["sender"]
    senders = rows >= 0
    if senders.any():
        np.add.at(total, fleet.group[senders], fleet.senders["in_flight"][rows[senders]])
    return total


def current_phase(fleet: Fleet, now_ns: int) -> int:
    """Phase in which everything is counted now that belongs to no message."""
    return traffic.phase_of(fleet.run, now_ns) if fleet.program[0].clock_ns else CONNECT_PHASE


def numbers_of(counts: Any) -> Table:
    """Records `Counts` as a table of the same memory, shape (..., COUNTERS)."""
    numbers: Table = counts.view(np.int64).reshape(*counts.shape, len(COUNTERS))
    return numbers


def take_intervals(fleet: Fleet, reported: Grid[Counts], now_ns: int) -> tuple[list[Row], bytes]:
    """Rows of everything counted since the last call, and the block of their histograms.

    Every device group has a counters row for each phase in which something happened, and one for
    its gauges in any case. `reported` is what was counted by the last call, and becomes what was
    by this one; histograms start again from zero.
    """
    rows: list[Row] = []
    buckets: list[bytes] = []
    counts: list[bytes] = []
    offset = 0
    backlog, _ = owed_by_group(fleet, now_ns)
    gauges = np.stack([connected_by_group(fleet), backlog, in_flight_by_group(fleet)], axis=1)
    current = current_phase(fleet, now_ns)
    before = numbers_of(reported)
    since = numbers_of(fleet.counters) - before
    before += since
    counted_since = since.tolist()
    for index, group in enumerate(fleet.plan.groups):
        for phase, name in enumerate(INTENDED_PHASES):
            counted = counted_since[index][phase]
            if any(counted) or phase == current:
                row: Row = {"group": group.name, "phase": name, "series": ""}
                row.update(zip(COUNTERS, counted, strict=True))
                if phase == current:
                    row.update(zip(_GAUGES, gauges[index].tolist(), strict=True))
                rows.append(row)
        for series_index, series in enumerate(SERIES):
            for phase, phase_name in enumerate(INTENDED_PHASES):
                slot = traffic.slot_of(index, series_index, phase)
                stat = fleet.stats[slot]
                if stat.count == 0:
                    continue
                bucket, count = sparse(fleet.histograms[slot].astype(np.int64))
                buckets.append(bucket.tobytes())
                counts.append(count.tobytes())
                row = {"group": group.name, "phase": phase_name, "series": series}
                row.update((name, getattr(stat, name)) for name in _STATS)
                row["bucket"] = [offset, len(bucket)]
                rows.append(row)
                offset += len(bucket)
                fleet.histograms[slot] = 0
                fleet.stats[slot] = np.zeros((), Stat.layout)
    return rows, b"".join(buckets + counts)


def decode_intervals(header: Row, block: bytes) -> list[Interval]:
    """The rows of an interval frame; `header` has "interval" (rows) and "buckets" (their total)."""
    total = int(header["buckets"])
    buckets = np.frombuffer(block, np.int32, total)
    counts = np.frombuffer(block, np.int64, total, offset=4 * total)
    rows = []
    for row in header["interval"]:
        values = dict(row)
        start, length = values.pop("bucket", (0, 0))
        if length:
            values["bucket"] = buckets[start : start + length]
            values["bucket_count"] = counts[start : start + length]
        rows.append(Interval(**values))
    return rows
