"""FANOUT: topics with one publisher and many subscribers each."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from loadgen.cases.case import Case, data_of
from loadgen.plan.fields import Count, Flag, Quantity
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.plan.scenario import DEVICES_LIMIT, Scenario, TotalRate, published_row
from loadgen.sentences import CASE_TEXT


class Fanout(Scenario):
    parts = (*Scenario.parts, "window")
    grows = "ratio"

    case: Literal["fanout"] = "fanout"
    rate: TotalRate = 200.0
    topics: Annotated[int, Count(1, DEVICES_LIMIT, everyday=30, load="amount")] = 10
    ratio: Annotated[int, Count(everyday=40, load="amount")] = 100
    slow_subscribers: Annotated[int | None, Count(1, DEVICES_LIMIT)] = None
    read_rate: Annotated[float, Quantity(1, 1e9)] = 1_000.0
    durable: Annotated[bool, Flag()] = False
    published: Annotated[str | None, published_row("FANOUT", "JMSPUBSUB", "JMSFANOUT")] = None

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.topics * (self.ratio + 1) > DEVICES_LIMIT:
            yield CASE_TEXT.MANY_SUBSCRIBERS(
                topics=self.topics, ratio=self.ratio, most=DEVICES_LIMIT
            )
        if self.slow_subscribers is None:
            return
        if self.steps is not None:
            yield CASE_TEXT.SLOW_STEPS()
        if self.slow_subscribers >= self.ratio:
            yield CASE_TEXT.ALL_SLOW(slow=self.slow_subscribers, ratio=self.ratio)
        if self.tls or any("://" in url and not url.startswith("mqtt://") for url in self.broker):
            yield CASE_TEXT.SLOW_TRANSPORT()


def _groups(scenario: Fanout) -> tuple[DeviceGroup, ...]:
    topics, ratio, slow = scenario.topics, scenario.ratio, scenario.slow_subscribers or 0
    publishes = scenario.publishes("fanout", scenario.rate)
    subscribers = DeviceGroup(
        "subscribers",
        topics * (ratio - slow),
        subscribes=Subscribes((publishes.topic,), scenario.qos),
        topics=topics,
        clean_start=not scenario.durable,
    )
    slow_ones = replace(
        subscribers,
        name="slow_subscribers",
        count=topics * slow,
        subscribes=Subscribes((publishes.topic,), scenario.qos, read_rate=scenario.read_rate),
        timed=False,
    )
    return (
        DeviceGroup("publishers", topics, publishes=publishes, clean_start=not scenario.durable),
        subscribers,
        *((slow_ones,) if slow else ()),
    )


CASE = Case(scenario=Fanout, groups=_groups, **data_of("fanout"))
