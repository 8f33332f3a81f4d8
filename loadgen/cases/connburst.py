"""CONNBURST: a burst of devices that connect and stay."""

from dataclasses import replace
from typing import Annotated, Literal

from loadgen.cases.case import Case, data_of
from loadgen.plan.fields import Flag, Seconds
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.plan.plan import Plan, phases_of, plan_of
from loadgen.plan.scenario import DeviceCount, Drain, Duration, RateByDevices, Scenario, Warmup


class Connburst(Scenario):
    parts = ("fleet",)
    search_p99_s = 1.0

    case: Literal["connburst"] = "connburst"
    devices: DeviceCount = 5_000
    rate: RateByDevices = None
    subscribe: Annotated[bool, Flag()] = False
    duration: Duration = 5.0
    warmup: Warmup = 0.0
    drain: Drain = 0.0
    latency_bound: Annotated[float | None, Seconds(1e-6, 3_600, panel="Run", load="none")] = None


def _groups(scenario: Connburst) -> tuple[DeviceGroup, ...]:
    # One topic for all, as in the published command line ("-rx 0:1:t:1:500000:2:0").
    topic = scenario.topics_of("connburst").replace("{topic}", "0")
    subscribes = Subscribes((topic,), scenario.qos)
    return (
        DeviceGroup(
            "devices", scenario.devices, subscribes=subscribes if scenario.subscribe else None
        ),
    )


def _plan(scenario: Connburst, groups: tuple[DeviceGroup, ...]) -> Plan:
    phases = replace(
        phases_of(scenario),
        # The pause after the connects is part of the time in which all stay connected.
        duration_s=scenario.duration + scenario.warmup,
        connect_rate=scenario.rate,
    )
    return plan_of(scenario, groups, phases=phases)


CASE = Case(scenario=Connburst, groups=_groups, plan=_plan, **data_of("connburst"))
