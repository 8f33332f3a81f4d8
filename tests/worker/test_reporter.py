"""Reports of a second: everything once, latencies a few at a time."""

from collections import Counter
from typing import Any

from loadgen.kernels import counting
from loadgen.metrics.interval import SERIES, Interval
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes
from loadgen.worker.build_fleet import build_fleet
from loadgen.worker.clock import clock_ns
from loadgen.worker.recorder import SLOTS_AT_ONCE, decode_intervals
from loadgen.worker.reporter import Reporter
from tests.worker.harness import one_worker_plan


def recorded() -> tuple[PlannedFleet, Counter[tuple[str, str]]]:
    """Return a fleet with latencies in every series of two groups, and their numbers."""
    plan = one_worker_plan(
        DeviceGroup("publishers", 1, publishes=Publishes("t/{topic}", 1.0)),
        DeviceGroup("subscribers", 1, subscribes=Subscribes(("t/{topic}",))),
    )
    fleet = build_fleet(plan, plan.workers[0])
    wanted: Counter[tuple[str, str]] = Counter()
    for group, owner in enumerate(plan.groups):
        for place, series in enumerate(SERIES):
            for value_ns in range(1000, 1001 + place):
                counting.record(fleet, counting.slot_of(group, place, counting.MEASURE), value_ns)
                wanted[owner.name, series] += 1
    return fleet, wanted


class Coordinator:
    """A reader of frames, like the coordinator."""

    def __init__(self) -> None:
        self.frames: list[list[Interval]] = []

    def hear(self, header: dict[str, Any], block: bytes) -> None:
        self.frames.append(decode_intervals(header, block))

    @property
    def counted(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for rows in self.frames:
            found.update({(row.group, row.series): row.count for row in rows if row.series})
        return found


def test_latencies_of_a_second_come_a_few_at_each_turn() -> None:
    fleet, wanted = recorded()
    coordinator = Coordinator()
    reporter = Reporter(fleet, 0, clock_ns(), coordinator.hear)
    turns = 1
    while reporter.each_second() < 0.01:
        turns += 1
    first, *others = coordinator.frames
    assert {row.group for row in first} == {"", "publishers", "subscribers"}
    assert not [row for row in first if row.series]
    assert turns == len(coordinator.frames) == 4
    assert max(map(len, others)) <= SLOTS_AT_ONCE
    assert coordinator.counted == wanted
    assert {(row.second, row.time_ns, row.span_ns) for row in first} == {
        (row.second, row.time_ns, row.span_ns) for rows in others for row in rows
    }


def test_end_of_a_phase_leaves_nothing_for_later() -> None:
    fleet, wanted = recorded()
    coordinator = Coordinator()
    reporter = Reporter(fleet, 0, clock_ns(), coordinator.hear)
    for _ in range(2):
        assert reporter.each_second() < 0.01
    # What comes meanwhile to a series that was sent already is in none of the two rows twice.
    counting.record(fleet, counting.slot_of(0, 0, counting.MEASURE), 5)
    wanted["publishers", SERIES[0]] += 1
    reporter.enter("drain")
    assert coordinator.counted == wanted
    assert reporter.each_second() > 0 and coordinator.counted == wanted
