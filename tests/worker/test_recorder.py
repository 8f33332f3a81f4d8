"""Interval rows: each count is in exactly one row."""

from typing import Any

import numpy as np
import orjson
import pytest

from loadgen.kernels import counting
from loadgen.kernels.arrays import Grid
from loadgen.kernels.counting import bucket_index
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.fleet import CounterRecord
from loadgen.kernels.in_flight import acquire, set_capacity
from loadgen.kernels.pacer import with_rate
from loadgen.metrics.interval import COUNTERS, GAUGES, SERIES, Interval
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes
from loadgen.worker import recorder
from loadgen.worker.build_fleet import build_fleet, plan_schedule
from tests.worker.harness import one_worker_plan

START_NS = 10**12
S = 10**9


def make_fleet() -> PlannedFleet:
    publishes = Publishes("t/{topic}", 400.0, qos=1)
    plan = one_worker_plan(
        DeviceGroup("publishers", 4, publishes=publishes),
        DeviceGroup("others", 2, publishes=Publishes("o/{topic}", 20.0, first_stream=100)),
        DeviceGroup("subscribers", 3, subscribes=Subscribes(("t/+",))),
    )
    return build_fleet(plan, plan.workers[0])


def started_fleet() -> PlannedFleet:
    fleet = make_fleet()
    fleet.run.measure_ns = START_NS + S
    fleet.run.end_ns = START_NS + 3 * S
    plan_schedule(fleet, START_NS)
    return fleet


def rows_of(
    fleet: PlannedFleet, now_ns: int, reported: Grid[CounterRecord] | None = None
) -> list[Interval]:
    """Return rows as the coordinator gets them, through JSON."""
    reported = CounterRecord.grid(*fleet.counters.shape) if reported is None else reported
    gauges = recorder.gauges_of(fleet, now_ns)
    frames = [(recorder.take_counters(fleet, reported, gauges, now_ns), b"")]
    more = -1
    while more:
        rows, block, more = recorder.take_latencies(fleet, 0)
        frames.append((rows, block))
    found = []
    for rows, block in frames:
        header: dict[str, Any] = orjson.loads(
            orjson.dumps({"interval": rows, "buckets": len(block) // 12})
        )
        found += recorder.decode_intervals(header, block)
    return found


def test_every_count_and_latency_is_in_one_row_and_starts_again() -> None:
    fleet = started_fleet()
    rng = np.random.default_rng(1)
    wanted_counts = rng.integers(0, 50, (*fleet.counters.shape, len(COUNTERS)))
    wanted_counts[1, 2] = 0
    recorder.numbers_of(fleet.counters)[:] = wanted_counts
    values: dict[tuple[str, str, str], list[int]] = {}
    for group in range(3):
        for series in (0, 3, len(SERIES) - 1):
            for phase in (0, 1, 3):
                found = rng.integers(0, 10**11, rng.integers(1, 40)).tolist()
                slot = counting.slot_of(group, series, phase)
                for value in found:
                    counting.record(fleet, slot, value)
                name = fleet.plan.groups[group].name
                values[name, counting.INTENDED_PHASES[phase], SERIES[series]] = found
    reported = CounterRecord.grid(*fleet.counters.shape)
    rows = rows_of(fleet, START_NS + 2 * S, reported)
    keys = [(row.group, row.phase, row.series) for row in rows]
    assert len(set(keys)) == len(keys)
    for group, owner in enumerate(fleet.plan.groups):
        for phase, name in enumerate(counting.INTENDED_PHASES):
            found_rows = [r for r in rows if (r.group, r.phase, r.series) == (owner.name, name, "")]
            totals = [sum(getattr(row, column) for row in found_rows) for column in COUNTERS]
            assert totals == wanted_counts[group, phase].tolist()
    histograms = {
        (row.group, row.phase, row.series): row for row in rows if row.series and row.count
    }
    assert histograms.keys() == values.keys()
    for key, found in values.items():
        row = histograms[key]
        assert (row.count, row.sum_ns) == (len(found), sum(found))
        assert (row.min_ns, row.max_ns) == (min(found), max(found))
        assert row.bucket_count.sum() == len(found)
        assert (np.diff(row.bucket) > 0).all()
        indices = [bucket_index(value) for value in found]
        assert np.repeat(row.bucket, row.bucket_count).tolist() == sorted(indices)
    again = rows_of(fleet, START_NS + 2 * S, reported)
    assert all(row.series == "" for row in again)
    assert sum(getattr(row, name) for row in again for name in COUNTERS) == 0
    assert not fleet.histograms.any()
    assert recorder.numbers_of(fleet.counters).tolist() == wanted_counts.tolist()
    fleet.counters[0, 1].received += 3
    third = rows_of(fleet, START_NS + 2 * S, reported)
    assert [(r.group, r.phase, r.received) for r in third if r.received] == [
        ("publishers", "measure", 3)
    ]


def test_histograms_for_which_there_is_no_room_come_in_the_next_frame() -> None:
    fleet = make_fleet()
    hour_ns = 3_600 * S
    for slot in (3, 5):
        counting.record(fleet, slot, 0)
        counting.record(fleet, slot, hour_ns)
        fleet.histograms[slot, : bucket_index(hour_ns) + 1] = slot
        fleet.stats[slot].count = slot * (bucket_index(hour_ns) + 1)
    _, block, more = recorder.take_latencies(fleet, 0)
    assert more == 5
    assert np.frombuffer(block, np.int64, offset=len(block) // 3).tolist() == [3] * (
        bucket_index(hour_ns) + 1
    )
    rows, _, more = recorder.take_latencies(fleet, more)
    assert (rows[0]["max_ns"], len(rows), more) == (hour_ns, 1, 0)
    assert not fleet.histograms.any()


@pytest.mark.parametrize(
    ("now_ns", "phase"),
    [
        (START_NS, "warmup"),
        (START_NS + S, "measure"),
        (START_NS + 3 * S - 1, "measure"),
        (START_NS + 3 * S, "drain"),
    ],
)
def test_every_group_has_its_gauges_in_the_current_phase(now_ns: int, phase: str) -> None:
    fleet = started_fleet()
    fleet.devices["state"][[0, 1, 4, 6, 7, 8]] = CONNECTED
    for row in range(2):
        set_capacity(fleet, row, 10)
        acquire(fleet, row, 1, 0, START_NS, START_NS)
    rows = rows_of(fleet, now_ns)
    assert {(row.group, row.phase) for row in rows} == {
        (name, phase) for name in ("publishers", "others", "subscribers")
    }
    gauges = {row.group: (row.connected, row.in_flight) for row in rows}
    assert gauges == {"publishers": (2, 2), "others": (1, 0), "subscribers": (3, 0)}
    connected, _, in_flight = recorder.gauges_of(fleet, now_ns).T.tolist()
    assert connected == [2, 1, 3]
    assert in_flight == [2, 0, 0]


def test_gauges_appear_once_however_many_phases_have_counts() -> None:
    fleet = started_fleet()
    fleet.devices["state"] = CONNECTED
    fleet.held["counters"].view(np.int64)[:] = 1
    rows = rows_of(fleet, START_NS + 2 * S)
    assert sum(row.connected for row in rows) == 9
    assert sum(row.owed for row in rows) == fleet.totals.owed == 842


def owed_by_group(fleet: PlannedFleet, now_ns: int) -> list[int]:
    owed: list[int] = recorder.gauges_of(fleet, now_ns)[:, GAUGES.index("owed")].tolist()
    return owed


def test_owed_counts_what_is_due_by_group_in_the_window() -> None:
    fleet = started_fleet()
    # Each of four sends 100 a second, each of two 10 a second.
    assert owed_by_group(fleet, START_NS - 1) == [0, 0, 0]
    assert owed_by_group(fleet, START_NS + S // 2 - 1) == [200, 10, 0]
    assert owed_by_group(fleet, START_NS + 10 * S) == [1200, 60, 0]
    fleet.publishers["due_ns"] = START_NS + 3 * S
    assert owed_by_group(fleet, START_NS + 10 * S) == [0, 0, 0]


def test_owed_follows_the_rate() -> None:
    fleet = started_fleet()
    fleet.program = with_rate(fleet.program, START_NS + S, 3.0)
    assert owed_by_group(fleet, START_NS + 2 * S - 1) == [1600, 80, 0]


def test_process_times_are_those_of_the_scheduler() -> None:
    account = recorder.ProcessAccount()
    before = account.times()
    total = 0
    while account.times().cpu_ns - before.cpu_ns < 3_000_000:
        total += sum(range(1000))
    after = account.times()
    assert after.cpu_ns > before.cpu_ns
    assert after.wait_ns >= before.wait_ns
    assert after.resident_bytes > 10 << 20
