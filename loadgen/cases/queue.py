"""QUEUE, in the place of JMSQUEUE: each message of a topic goes to one of its consumers."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from loadgen.cases.case import Case, Conclusion, Evidence, Review, data_of
from loadgen.judge.verdict import Verdict
from loadgen.plan import scenario as shared
from loadgen.plan.fields import Count, Flag
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.plan.plan import Crash, Plan, plan_of
from loadgen.sentences import CASE_TEXT

QUEUES_SHOWN = 100  # maximum number of queues that are listed: the first ones


class Queue(shared.Scenario):
    search_p99_s = 0.5

    case: Literal["queue"] = "queue"
    rate: shared.TotalRate = 5_000.0
    qos: shared.Qos = 1
    mqtt: shared.MqttVersion = "5"
    queues: Annotated[int, Count(everyday=20, load="amount")] = 10
    consumers: Annotated[int, Count(everyday=21, load="amount")] = 10
    producers: shared.Producers = 1
    batch: Annotated[int, Count(1, 65_535)] = 100
    durable: Annotated[bool, Flag()] = True
    crash_consumer: Annotated[bool, Flag()] = False
    published: Annotated[str | None, shared.published_row("JMSQUEUE")] = None

    def complaints(self) -> Iterator[str]:
        if self.qos != 1:
            yield CASE_TEXT.QUEUE_QOS(qos=self.qos)
        yield from super().complaints()
        if self.mqtt != "5":
            yield CASE_TEXT.QUEUE_MQTT(mqtt=self.mqtt)
        if self.queues * (self.consumers + self.producers) > shared.DEVICES_LIMIT:
            yield CASE_TEXT.MANY_CONSUMERS(most=shared.DEVICES_LIMIT)


def _groups(scenario: Queue) -> tuple[DeviceGroup, ...]:
    queues, batch = scenario.queues, scenario.batch
    publishes = replace(scenario.publishes("queue", scenario.rate), window=batch, unit=batch)
    subscribes = Subscribes(
        (f"$share/consumers/{publishes.topic}",), scenario.qos, acknowledge_every=batch
    )
    return (
        DeviceGroup("producers", queues * scenario.producers, publishes=publishes, topics=queues),
        DeviceGroup(
            "consumers",
            queues * scenario.consumers,
            subscribes=subscribes,
            topics=queues,
            clean_start=not scenario.durable,
        ),
    )


def _plan(scenario: Queue, groups: tuple[DeviceGroup, ...]) -> Plan:
    cuts = scenario.crash_consumer
    return plan_of(
        scenario,
        groups,
        reconnect=scenario.reconnecting(always=cuts),
        crash=Crash("consumer") if cuts else None,
    )


def spread_of(plan: Plan, finals: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the spread of the window's messages over consumers, in all and by queue."""
    taken: dict[int, int] = {}
    consumers = plan.group("consumers")
    index = plan.groups.index(consumers)
    for number, worker in enumerate(plan.workers):
        shares = [share for share in worker.shares if share.group == index]
        devices = [device for share in shares for device in share.devices]
        counts = (finals.get(number, {}).get("spread") or {}).get(consumers.name) or []
        if len(counts) != len(devices):
            return None  # the last answer of a worker is missing
        taken |= zip(devices, counts, strict=True)
    queues: dict[int, list[int]] = {}
    for device in sorted(taken):
        queues.setdefault(consumers.topic_number(device), []).append(taken[device])
    return {
        "consumers": len(taken),
        **_spread(list(taken.values())),
        "queues": [
            {"queue": number, **_spread(counts)}
            for number, counts in list(queues.items())[:QUEUES_SHOWN]
        ],
    }


def _spread(counts: Sequence[int]) -> dict[str, float]:
    return {
        "received": sum(counts),
        "min": min(counts),
        "max": max(counts),
        "mean": statistics.fmean(counts),
        "stdev": statistics.pstdev(counts),
    }


def _review(evidence: Evidence) -> Review:
    def conclude(verdict: Verdict) -> Conclusion:
        spread = spread_of(evidence.plan, evidence.finals)
        return Conclusion(verdict, {"spread": spread, "cut_off": dict(evidence.broken) or None})

    return Review(evidence.facts, conclude)


CASE = Case(scenario=Queue, groups=_groups, plan=_plan, review=_review, **data_of("queue"))
