"""Interval rows from a worker's counters, once a second, and their decoding by the coordinator.

The block of a frame has the histograms of its rows: the buckets (int32) end to end, then their
counts (int64).
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.kernels import counting
from loadgen.kernels.arrays import Grid, Int32s, Int64Rows, Int64s
from loadgen.kernels.counting import CONNECT_PHASE, INTENDED_PHASES
from loadgen.kernels.fleet import CounterRecord, Stat
from loadgen.kernels.readout import OWED, add_gauges, take_slots
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import COUNTERS, GAUGES, SERIES, Interval
from loadgen.plan.behaviour import PlannedFleet

Row = dict[str, Any]

_STAT = Stat.names()
_SLOTS_OF_A_GROUP = counting.slot_of(1, 0, 0)
SLOTS_AT_ONCE = 16  # of latencies in one call: messages wait while rows are made
_TAKEN: Int64Rows = np.zeros((SLOTS_AT_ONCE, 7), np.int64)
_BUCKETS: Int32s = np.zeros(BUCKETS, np.int32)
_COUNTS: Int64s = np.zeros(BUCKETS, np.int64)  # of taken latencies; untouched memory costs nothing
_PLACES = {
    counting.slot_of(0, series, phase): (phase_name, series_name)
    for series, series_name in enumerate(SERIES)
    for phase, phase_name in enumerate(INTENDED_PHASES)
}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Times of this process from the scheduler: ns on a processor, ns waiting for one."""

    cpu_ns: int
    wait_ns: int
    resident_bytes: int


class ProcessAccount:
    """Reader of the kernel's figures of this process, a worker with one thread."""

    def __init__(self) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self.schedule = os.open("/proc/thread-self/schedstat", flags)
        self._memory = os.open("/proc/self/statm", flags)

    def times(self) -> ProcessTimes:
        """Return the times of the thread that made this, and the memory of the process."""
        cpu, wait, _ = os.pread(self.schedule, 100, 0).split()
        resident = int(os.pread(self._memory, 100, 0).split()[1])
        return ProcessTimes(int(cpu), int(wait), resident * _PAGE_BYTES)


def gauges_of(fleet: PlannedFleet, now_ns: int) -> Int64Rows:
    """Return the gauges of each group, like GAUGES, and note owed messages on the live page."""
    gauges = np.zeros((len(fleet.groups), len(GAUGES)), np.int64)
    add_gauges(fleet, now_ns, gauges)
    fleet.totals.owed = gauges[:, OWED].sum()
    return gauges


def current_phase(fleet: PlannedFleet, now_ns: int) -> int:
    """Return the phase of counts that belong to no message."""
    return counting.phase_of(fleet.run, now_ns) if fleet.program[0].clock_ns else CONNECT_PHASE


def numbers_of(counts: Any) -> Int64Rows:
    """Return records `Counts` as a table of the same memory, shape (..., COUNTERS)."""
    numbers: Int64Rows = counts.view(np.int64).reshape(*counts.shape, len(COUNTERS))
    return numbers


def take_counters(
    fleet: PlannedFleet, reported: Grid[CounterRecord], gauges: Int64Rows, now_ns: int
) -> list[Row]:
    """Return rows of the counters since those in `reported`, and update it."""
    rows: list[Row] = []
    gauged = gauges.tolist()
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
                    row.update(zip(GAUGES, gauged[index], strict=True))
                rows.append(row)
    return rows


def take_latencies(fleet: PlannedFleet, first: int) -> tuple[list[Row], bytes, int]:
    """Take at most SLOTS_AT_ONCE latencies from slot `first` on, and reset them.

    Return the rows, the block of their histograms, and the slot for the next call, 0 for none.
    """
    slot, count, size = take_slots(fleet, first, _TAKEN, _BUCKETS, _COUNTS)
    rows: list[Row] = []
    for number, *stat, begin, length in _TAKEN[:count].tolist():
        group, place = divmod(number, _SLOTS_OF_A_GROUP)
        phase, series = _PLACES[place]
        if series == "transit" and fleet.plan.scenario.header == "none":
            continue  # the messages do not say when they were sent
        row: Row = {"group": fleet.plan.groups[group].name, "phase": phase, "series": series}
        row.update(zip(_STAT, stat, strict=True))
        row["bucket"] = [begin, length]
        rows.append(row)
    more = slot if slot < len(fleet.stats) else 0
    return rows, _BUCKETS[:size].tobytes() + _COUNTS[:size].tobytes(), more


def decode_intervals(header: Row, block: bytes, **origin: Any) -> list[Interval]:
    """Return the rows of a frame of this origin; "interval" has rows, "buckets" the total."""
    total = int(header["buckets"])
    buckets = np.frombuffer(block, np.int32, total)
    counts = np.frombuffer(block, np.int64, total, offset=4 * total)
    rows = []
    for row in header["interval"]:
        values = row | origin
        start, length = values.pop("bucket", (0, 0))
        if length:
            values["bucket"] = buckets[start : start + length]
            values["bucket_count"] = counts[start : start + length]
        rows.append(Interval(**values))
    return rows
