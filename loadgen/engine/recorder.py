"""From a worker's counters to interval rows, once a second, and back on the other side.

A frame of rows carries the histograms of all of them in its block: the buckets (int32) of all
rows end to end, then their counts (int64). Latencies may be taken a few at a time: messages wait
while rows are made.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.metrics.histogram import bucket_index
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
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """What the scheduler says of this process: ns on a processor, ns waiting for one."""

    cpu_ns: int
    wait_ns: int
    resident_bytes: int


def process_times() -> ProcessTimes:
    """Times of the calling thread and memory of the process; a worker has one thread."""
    cpu, wait, _ = _words_of("/proc/thread-self/schedstat")
    resident = int(_words_of("/proc/self/statm")[1])
    return ProcessTimes(int(cpu), int(wait), resident * _PAGE_BYTES)


def _words_of(path: str) -> list[bytes]:
    # A quarter of what it costs through a file object: messages wait meanwhile.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).split()
    finally:
        os.close(descriptor)


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

    `reported` is as `take_counters` has it.
    """
    rows = take_counters(fleet, reported, now_ns)
    latencies, block = take_latencies(fleet, recorded_slots(fleet))
    return rows + latencies, block


def take_counters(fleet: Fleet, reported: Grid[Counts], now_ns: int) -> list[Row]:
    """Rows of the counters since the last call.

    Every device group has one for each phase in which something happened, and one for its gauges in
    any case. `reported` is what was counted by the last call, and becomes what was by this one.
    """
    rows: list[Row] = []
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
    return rows


def recorded_slots(fleet: Fleet) -> list[int]:
    """The slots of latencies that have some."""
    slots: list[int] = np.flatnonzero(fleet.stats["count"]).tolist()
    return slots


def take_latencies(fleet: Fleet, slots: Iterable[int]) -> tuple[list[Row], bytes]:
    """Rows of these slots, which then start again from zero, and the block of their histograms."""
    rows: list[Row] = []
    buckets: list[bytes] = []
    counts: list[bytes] = []
    offset = 0
    for slot in slots:
        group, place = divmod(slot, traffic.slot_of(1, 0, 0))
        phase, series = _names()[place]
        row: Row = {"group": fleet.plan.groups[group].name, "phase": phase, "series": series}
        row.update(zip(Stat.names(), fleet.stats[slot].item(), strict=True))
        fleet.stats[slot] = np.zeros((), Stat.layout)
        # What was touched of it: all of it is a quarter of a million bytes.
        first = bucket_index(row["min_ns"])
        touched = fleet.histograms[slot, first : bucket_index(row["max_ns"]) + 1]
        bucket = np.flatnonzero(touched)
        buckets.append((bucket + first).astype(np.int32).tobytes())
        counts.append(touched[bucket].astype(np.int64).tobytes())
        touched[:] = 0
        row["bucket"] = [offset, len(bucket)]
        rows.append(row)
        offset += len(bucket)
    return rows, b"".join(buckets + counts)


@cache
def _names() -> dict[int, tuple[str, str]]:
    """Phase and series of each slot of a group."""
    return {
        traffic.slot_of(0, series, phase): (phase_name, series_name)
        for series, series_name in enumerate(SERIES)
        for phase, phase_name in enumerate(INTENDED_PHASES)
    }


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
