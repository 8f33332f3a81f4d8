"""FANIN: many publishers, each with a separate topic, and one wildcard subscriber.

Source, as of all published cases: "IBM MessageSight Appliance v1.0 Performance Benchmarks" (2013),
section "Test cases descriptions".
"""

from typing import Annotated, Literal

from loadgen.cases.case import Case, data_of
from loadgen.plan.fields import Flag
from loadgen.plan.groups import DeviceGroup, Subscribes, wildcard_of
from loadgen.plan.scenario import DeviceCount, RateByDevices, Scenario


class Fanin(Scenario):
    parts = (*Scenario.parts, "window")

    case: Literal["fanin"] = "fanin"
    devices: DeviceCount = 1_000
    rate: RateByDevices = None
    durable: Annotated[bool, Flag()] = False


def _groups(scenario: Fanin) -> tuple[DeviceGroup, ...]:
    count = scenario.devices
    rate = float(count) if scenario.rate is None else scenario.rate
    publishes = scenario.publishes("fanin", rate)
    return (
        DeviceGroup("publishers", count, publishes=publishes, clean_start=not scenario.durable),
        DeviceGroup(
            "subscriber",
            1,
            subscribes=Subscribes((wildcard_of(publishes.topic),), scenario.qos),
            clean_start=not scenario.durable,
            each_broker=True,
        ),
    )


CASE = Case(scenario=Fanin, groups=_groups, **data_of("fanin"))
