"""PERSISTENT: pairs of a publisher and a durable subscriber; the broker stores their messages."""

from collections.abc import Iterator
from typing import Annotated, Literal

from loadgen.cases.case import Case, data_of
from loadgen.plan import scenario as shared
from loadgen.plan.fields import Count, Quantity, Seconds, TextLine
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.plan.plan import Crash, Plan, plan_of
from loadgen.plan.rate_steps import rate_steps
from loadgen.sentences import CASE_TEXT


class Persistent(shared.Scenario):
    parts = (*shared.Scenario.parts, "window")
    grows = "pairs"
    search_p99_s = 0.5

    case: Literal["persistent"] = "persistent"
    rate: shared.TotalRate = 1_000.0
    qos: shared.Qos = 1
    pairs: Annotated[int, Count(everyday=20, load="amount")] = 10
    producers: shared.Producers = 1
    acknowledge_every: shared.AcknowledgeEvery = 1
    crash_broker: Annotated[float | None, Seconds(0, shared.DURATION_LIMIT_S, panel="Broker")] = (
        None
    )
    crash_command: Annotated[str | None, TextLine("command", panel="Broker")] = None
    save_each: shared.SaveEach = False
    rack_units: Annotated[float | None, Quantity(0.1, 10_000, panel="Power")] = None
    published: Annotated[str | None, shared.published_row("PERSISTENT", "JMSPERSISTENT")] = None

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.qos == 0:
            yield CASE_TEXT.STORED_QOS()
        yield from self._crash_complaints()

    def _crash_complaints(self) -> Iterator[str]:
        private = self.broker in shared.PRIVATE_BROKERS
        at_s = self.crash_broker
        steps = rate_steps(self.steps, self.duration, 0)
        length_s = sum(step.seconds for step in steps) or self.duration
        if at_s is not None and not private and self.crash_command is None:
            yield CASE_TEXT.CRASH_OF_URL()
        elif at_s is not None and at_s >= length_s:
            yield CASE_TEXT.CRASH_LATE(at_s=at_s, window_s=length_s)


def _groups(scenario: Persistent) -> tuple[DeviceGroup, ...]:
    pairs = scenario.pairs
    publishes = scenario.publishes("persistent", scenario.rate)
    subscribes = Subscribes(
        (publishes.topic,), scenario.qos, acknowledge_every=scenario.acknowledge_every
    )
    return (
        DeviceGroup("publishers", pairs * scenario.producers, publishes=publishes, topics=pairs),
        DeviceGroup("subscribers", pairs, subscribes=subscribes, clean_start=False),
    )


def _plan(scenario: Persistent, groups: tuple[DeviceGroup, ...]) -> Plan:
    at_s = scenario.crash_broker
    return plan_of(
        scenario,
        groups,
        storage="each change" if scenario.save_each else "periodic",
        reconnect=scenario.reconnecting(always=at_s is not None),
        crash=None if at_s is None else Crash("broker", at_s, scenario.crash_command),
    )


CASE = Case(scenario=Persistent, groups=_groups, plan=_plan, **data_of("persistent"))
