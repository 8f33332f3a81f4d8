"""Plans of a few groups, without the scenario of a case."""

from dataclasses import fields
from typing import Any

from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.plan.groups import DeviceGroup, Share, Target, WorkerPlan
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import Scenario

_OF_PLAN = frozenset(field.name for field in fields(Plan))


def one_worker(groups: tuple[DeviceGroup, ...]) -> WorkerPlan:
    """A worker with all devices of these groups."""
    return WorkerPlan(0, tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups)))


def small_plan(
    groups: tuple[DeviceGroup, ...],
    targets: tuple[Target, ...] = (Target("127.0.0.1", 1),),
    workers: tuple[WorkerPlan, ...] = (),
    *,
    run_tag: int = 1,
    version: int = 4,
    **given: Any,
) -> Plan:
    """A plan of these groups; `given` are fields of the plan or of its scenario."""
    own = {name: given.pop(name) for name in _OF_PLAN & given.keys()}
    return Plan(
        scenario=Scenario.model_validate({"case": "test", "mqtt": VERSION_NAMES[version]} | given),
        groups=groups,
        targets=targets,
        workers=workers,
        run_tag=run_tag,
        **own,
    )
