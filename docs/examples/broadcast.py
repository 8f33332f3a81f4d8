"""BROADCAST: one publisher, and many subscribers of its one topic."""

from typing import Annotated, Literal

from loadgen.cases.case import Case, RowSpec
from loadgen.plan.fields import Count
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.plan.scenario import MaxUnacknowledged, Scenario, TotalRate


class Broadcast(Scenario):
    """Fields of BROADCAST besides those that every case with messages has."""

    case: Literal["broadcast"] = "broadcast"
    rate: TotalRate = 10.0
    subscribers: Annotated[int, Count(text="Subscribers.")] = 1_000
    max_unacknowledged: MaxUnacknowledged = 100


def _groups(scenario: Broadcast) -> tuple[DeviceGroup, ...]:
    publishes = scenario.publishes("broadcast", scenario.rate)
    return (
        DeviceGroup("publisher", 1, publishes=publishes),
        DeviceGroup(
            "subscribers",
            scenario.subscribers,
            subscribes=Subscribes((publishes.topic,), scenario.qos),
            topics=1,
        ),
    )


CASE = Case(
    place=25,
    summary="One publisher, and many subscribers of its one topic.",
    example="loadgen broadcast --subscribers 10k --rate 10",
    scenario=Broadcast,
    groups=_groups,
    rows=(
        RowSpec(
            "BROADCAST",
            "egress_rate",
            "Rate out of the broker at QoS {qos} to {ratio} subscribers. Message size, {size} "
            "bytes.",
        ),
    ),
)
