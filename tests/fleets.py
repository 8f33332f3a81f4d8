"""A fleet of a few devices, for tests of what needs no more."""

from typing import Any

from loadgen.cases.registry import resolve
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.plan import rooted
from loadgen.worker.build_fleet import build_fleet
from tests.plans import small_plan


def groups_of(scenario: Any, root: str = "loadgen") -> tuple[DeviceGroup, ...]:
    """The groups of a scenario, their topics below this root."""
    return rooted(resolve(scenario).groups, root)


def total_of(fleet: PlannedFleet, name: str) -> int:
    """A counter, of all groups and phases."""
    return int(fleet.counters[name].sum())


def small_fleet(devices: int = 2) -> PlannedFleet:
    plan = small_plan((DeviceGroup("g", devices),), version=5)
    return build_fleet(plan, plan.workers[0])
