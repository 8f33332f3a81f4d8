"""The interface between a worker and the module with the behaviour of its devices."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from loadgen.errors import CannotRunError
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.handlers import Handlers
from loadgen.mqtt.packets import Subscribe
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.plan import Plan
from loadgen.sentences import PLAN_TEXT

SUBSCRIBE_ID = 65_535
"""Packet identifier of a device's last SUBSCRIBE, above all those of the in-flight window."""
RESUBSCRIBE_ID = SUBSCRIBE_ID - 1_000  # that of the packets of `--resubscribe`


class PlannedFleet(Fleet):
    plan: Plan

    def group_of(self, row: int) -> DeviceGroup:
        return self.plan.groups[int(self.group[row])]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The devices of one worker, and the functions that define their behaviour."""

    fleet: PlannedFleet
    handlers: Handlers  # compiled into the kernels that read and write messages
    subscribe_packets: Callable[[int], list[Subscribe]]  # of a row, the last with SUBSCRIBE_ID
    scheduled: Callable[[], int]  # messages sent, by the numbers of their streams
    discarded: Callable[[], int] = int  # deliveries that did not match a selector
    final: Callable[[], dict[str, Any]] = dict  # JSON values for the last answer of the worker


class BehaviourModule(Protocol):
    def behave(self, fleet: PlannedFleet) -> Behaviour:
        """Return the behaviour of a fleet, after adding the arrays that the fleet needs for it."""

    def tiny_plan(self) -> Plan:
        """Return a plan of one worker with a few devices, for which kernels are compiled."""


def behaviour_module(name: str) -> BehaviourModule:
    """Import the module that a plan names; raises CannotRunError for one outside loadgen."""
    if not name.startswith("loadgen."):
        raise CannotRunError(PLAN_TEXT.BEHAVIOUR(name=name))
    return cast("BehaviourModule", import_module(name))
