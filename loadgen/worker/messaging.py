"""Plain messaging: devices publish, receive and respond as their groups define."""

from loadgen.errors import CannotRunError
from loadgen.kernels.receiver import MESSAGING
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.plan.addressing import filters_of
from loadgen.plan.behaviour import SUBSCRIBE_ID, Behaviour, PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes, Target, one_worker
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import Scenario
from loadgen.worker.closing import sent_by_streams


def behave(fleet: PlannedFleet) -> Behaviour:
    """Return the behaviour of devices that the plan's groups describe."""
    retains = any(group.publishes and group.publishes.retain for group in fleet.plan.groups)

    def subscribe_packets(row: int) -> list[Subscribe]:
        group = fleet.group_of(row)
        if group.subscribes is None:
            raise CannotRunError(f"group {group.name} has nothing to subscribe to")
        # Retained messages of others are not part of the load.
        handling = 2 if fleet.plan.version_of(group) == MQTT_5 and not retains else 0
        subscriptions = (
            Subscription(one, group.subscribes.qos, retain_handling=handling)
            for one in filters_of(group, int(fleet.device[row]))
        )
        return [Subscribe(SUBSCRIBE_ID, tuple(subscriptions))]

    return Behaviour(fleet, MESSAGING, subscribe_packets, lambda: sent_by_streams(fleet))


def tiny_plan() -> Plan:
    groups = (
        DeviceGroup("publishers", 1, publishes=Publishes("warm/{topic}", 1.0, qos=1, window=4)),
        DeviceGroup("subscribers", 1, subscribes=Subscribes(("warm/+",), qos=2)),
    )
    return Plan(
        scenario=Scenario(case="warm"),
        groups=groups,
        targets=(Target("127.0.0.1", 1),),
        workers=(one_worker(groups),),
    )
