"""Plans of a few groups without the scenario of a case, and plans of a case on small hosts."""

from dataclasses import fields
from typing import Any

from loadgen.cases.registry import build_scenario, resolve
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.plan.addressing import matches_to, streams_of
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import DeviceGroup, Target, WorkerPlan, one_worker
from loadgen.plan.plan import Plan, with_shared_fields
from loadgen.plan.scenario import Scenario

_OF_PLAN = frozenset(field.name for field in fields(Plan))


def small_plan(
    groups: tuple[DeviceGroup, ...],
    targets: tuple[Target, ...] = (Target("127.0.0.1", 1),),
    workers: tuple[WorkerPlan, ...] = (),
    *,
    run_tag: int = 1,
    version: int = 4,
    **given: Any,
) -> Plan:
    """A plan of these groups, on one worker unless others are given.

    `given` are fields of the plan or of its scenario.
    """
    own = {name: given.pop(name) for name in _OF_PLAN & given.keys()}
    scenario = Scenario.model_validate({"case": "test", "mqtt": VERSION_NAMES[version]} | given)
    return Plan(
        scenario=scenario,
        groups=with_shared_fields(groups, scenario),
        targets=targets,
        workers=workers or (one_worker(groups),),
        run_tag=run_tag,
        **own,
    )


def streams_received(plan: Plan, group: DeviceGroup, device: int) -> list[range]:
    """The ranges of streams that a device must receive."""
    return [found for flow in matches_to(plan, group) if (found := streams_of(flow, device))]


HOST = Host(cores=4, descriptors=20_000, memory_bytes=64 << 30, local_ports=28_000)


def fitted_plan(case: str, targets: int = 1, host: Host = HOST, **fields: Any) -> Plan:
    """Return the plan of a case, fitted to a host and to brokers on as many addresses."""
    where = tuple(Target(f"127.0.0.{number + 1}", 1883) for number in range(targets))
    return fit_plan(resolve(build_scenario(case, None, fields)), host, where, 7)
