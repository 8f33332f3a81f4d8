"""LATENCY: one timed pair while background publishers load the broker."""

from collections.abc import Iterator
from typing import Annotated, Literal

from loadgen.cases.case import Case, data_of
from loadgen.plan import scenario as shared
from loadgen.plan.fields import Count, Quantity
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.sentences import CASE_TEXT


class Latency(shared.Scenario):
    search_p99_s = 0.01

    case: Literal["latency"] = "latency"
    devices: Annotated[
        int, Count(0, shared.DEVICES_LIMIT, everyday=20, short="-d", load="amount")
    ] = 1_000
    rate: shared.TotalRate = 10_000.0
    topics: Annotated[int, Count(everyday=30, load="amount")] = 10
    background_rate: Annotated[
        float | None, Quantity(0.001, shared.RATE_LIMIT, everyday=51, load="amount")
    ] = None
    duration: shared.Duration = 20.0
    max_unacknowledged: shared.MaxUnacknowledged = 100

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.topic is not None and "{group}" not in self.topic:
            yield CASE_TEXT.PAIR_TOPIC()
        if self.devices == 0 and self.background_rate is not None:
            yield CASE_TEXT.NO_BACKGROUND()


def _groups(scenario: Latency) -> tuple[DeviceGroup, ...]:
    given = scenario.background_rate
    rate = float(scenario.devices) if given is None else given
    # A topic without a publisher would add a subscriber that receives nothing.
    topics = min(scenario.topics, scenario.devices)
    background = scenario.publishes("background", rate)
    pair = scenario.publishes("pair", scenario.rate)
    groups = (
        DeviceGroup(
            "background_publishers",
            scenario.devices,
            publishes=background,
            topics=topics,
            timed=False,
        ),
        DeviceGroup(
            "background_subscribers",
            topics,
            subscribes=Subscribes((background.topic,), scenario.qos),
            timed=False,
        ),
        DeviceGroup("pair_publisher", 1, publishes=pair),
        DeviceGroup("pair_subscriber", 1, subscribes=Subscribes((pair.topic,), scenario.qos)),
    )
    return groups if scenario.devices else groups[2:]


CASE = Case(scenario=Latency, groups=_groups, **data_of("latency"))
