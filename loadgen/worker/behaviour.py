"""What the devices of a worker do beyond connecting: which arrays, subscriptions and answers.

A worker is given a function that reads its plan into a `Behaviour`: `plain_messaging` here,
`supply_chain` in supply_chain.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from loadgen.errors import CannotRunError
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.reactor import MESSAGING_ENTRY_POINTS, EntryPoints
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.plan.groups import RunPlan, topic_filter
from loadgen.worker.build_fleet import build_fleet
from loadgen.worker.closing import sent_by_streams
from loadgen.worker.frames import Header
from loadgen.worker.shared_counts import LivePage

SUBSCRIBE_ID = 65_535
"""Packet identifier of a device's last SUBSCRIBE, above all of the in-flight window."""

_plans = TypeAdapter(RunPlan)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the devices of one worker do.

    `subscribe_packets(connection)` is what a device subscribes with, all at one QoS and the last
    with SUBSCRIBE_ID; `kernels` are compiled for what their messages mean; `final` is what the
    worker adds to its last answer. `scheduled` are the messages sent by the numbers of their
    streams, `discarded` the deliveries that a selector turned away.
    """

    fleet: Fleet
    subscribe_packets: Callable[[int], list[Subscribe]]
    kernels: EntryPoints = MESSAGING_ENTRY_POINTS
    final: Callable[[], Header] = dict
    scheduled: Callable[[], int] = int
    discarded: Callable[[], int] = int


ReadPlan = Callable[[Any, int, LivePage], Behaviour]
"""Takes the plan as the coordinator sent it, the worker's row and its part of the live page."""


def reader_of(behaviour: str) -> ReadPlan:
    """What reads the plan of a behaviour; one that is not played is not imported."""
    if behaviour == "supply_chain":
        from loadgen.worker.supply_chain import supply_chain

        return supply_chain
    return plain_messaging


def read_plan(document: Any) -> RunPlan:
    """A plan as the coordinator sent it."""
    return _plans.validate_python(document)


def plain_messaging(document: Any, worker: int, page: LivePage) -> Behaviour:
    """Devices publish, receive and respond as their groups say."""
    plan = read_plan(document)
    fleet = build_fleet(plan, plan.workers[worker], page)

    def subscribe_packets(connection: int) -> list[Subscribe]:
        group = fleet.group_of(connection)
        if group.subscribes is None:
            raise CannotRunError(f"group {group.name} has nothing to subscribe to")
        pattern = topic_filter(plan, group, int(fleet.device[connection]))
        subscription = Subscription(topic_filter=pattern, qos=group.subscribes.qos)
        return [Subscribe(SUBSCRIBE_ID, (subscription,))]

    return Behaviour(fleet, subscribe_packets, scheduled=lambda: sent_by_streams(fleet))
