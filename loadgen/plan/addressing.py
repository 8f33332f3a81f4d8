"""How single devices of a plan are named and addressed: identifiers, topics, streams, targets."""

from dataclasses import replace

from loadgen.plan.groups import (
    MESSAGING,
    DeviceGroup,
    publishing_to,
    slow_group,
    topic_number,
    topics_of,
)
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.plan.scenario import Scenario


def client_id(plan: Plan, group: DeviceGroup, device: int) -> str:
    """MQTT client identifier of one device: by the plan's pattern, or unique to the run.

    The run's own kind has at most 23 bytes where the number allows it (MQTT 3.1.1, 3.1.3.1).
    """
    if plan.scenario.client_id is not None:
        own = plan.scenario.client_id.replace("{device}", str(device))
        return own.replace("{group}", str(plan.groups.index(group)))
    return f"{plan.root}{group.name[0]}{plan.groups.index(group)}-{device}"


def may_be_kept(plan: Plan) -> bool:
    """Whether devices that end a run as they began it can stay connected for the next one.

    Not those that leave on request, nor sessions that the broker is to keep: they would not be new.
    Nor slow readers: what their sockets may hold has grown when the window ended.
    """
    lasting = not plan.scenario.churn and all(group.clean_start for group in plan.groups)
    publishing = any(group.publishes for group in plan.groups)
    alike = lasting and slow_group(plan.groups) is None
    return plan.behaviour == MESSAGING and alike and publishing


def without_rates(plan: Plan) -> Plan:
    """Return the plan without what a run can change on the same connections, such as its rates."""
    lasting = {
        name: getattr(plan.scenario, name)
        for name, field in Scenario.fields().items()
        if not field.per_run
    }
    groups = tuple(
        replace(group, publishes=group.publishes and replace(group.publishes, rate=0.0))
        for group in plan.groups
    )
    phases = plan.phases
    return replace(
        plan,
        scenario=Scenario.model_construct(**lasting),
        groups=groups,
        phases=PhasePlan(
            connect_rate=phases.connect_rate, in_flight=phases.in_flight, timeout_s=phases.timeout_s
        ),
        run_tag=0,
        connected_by=None,
        send_tick_us=0,
    )


def topic_filter(plan: Plan, group: DeviceGroup, device: int) -> str:
    """Topic filter that a subscribing device asks for."""
    subscribes = group.subscribes
    if subscribes is None:
        raise ValueError(f"group {group.name} does not subscribe")
    if subscribes.topic is not None:
        return subscribes.topic
    publishes = plan.group(subscribes.publishers).publishes
    if publishes is None:
        raise ValueError(f"group {subscribes.publishers} does not publish")
    prefix = subscribes.topic_prefix or publishes.topic_prefix
    if subscribes.answers:
        return f"{prefix}/{device}"
    number = topic_number(device, group.count, publishes.topics)
    name = f"{prefix}/+" if subscribes.wildcard else f"{prefix}/{number}"
    return name if subscribes.shared is None else f"$share/{subscribes.shared}/{name}"


def target_number(plan: Plan, group: DeviceGroup, device: int) -> int:
    """Which target a device connects to."""
    if group.targets:
        return group.targets[device % len(group.targets)]
    targets = len(plan.targets)
    if not plan.separate_brokers:
        return device % targets
    topics = topics_of(group, plan.groups)
    return topic_number(device, group.count, topics) * targets // topics


def timed_between_hosts(plan: Plan) -> bool:
    """Whether latencies that are the run's result begin on one host and end on another."""

    def hosts(group: DeviceGroup) -> set[int]:
        number = plan.groups.index(group)
        return {w.host for w in plan.workers if any(s.group == number for s in w.shares)}

    for group in plan.groups:
        sender = publishing_to(group, plan.groups)
        if group.timed and sender is not None and len(hosts(group) | hosts(sender)) > 1:
            return True
    # Devices that answer by other rules may send to any group.
    return plan.behaviour != MESSAGING and len({worker.host for worker in plan.workers}) > 1


def streams_received(plan: Plan, group: DeviceGroup, device: int) -> tuple[int, int]:
    """First stream and number of streams that a subscribing device must receive."""
    subscribes = group.subscribes
    if subscribes is None or subscribes.topic is not None:
        return 0, 0
    senders = plan.group(subscribes.publishers)
    publishes = senders.publishes
    if publishes is None:
        raise ValueError(f"group {subscribes.publishers} does not publish")
    if subscribes.answers:
        return publishes.first_stream + device, 1
    topics = publishes.topics
    number, following = 0, topics
    if not subscribes.wildcard:
        number = topic_number(device, group.count, topics)
        following = number + 1
    elif plan.separate_brokers:
        # A wildcard at one of several brokers sees the topics that went there.
        targets = len(plan.targets)
        target = target_number(plan, group, device)
        number = -(-target * topics // targets)
        following = -(-(target + 1) * topics // targets)
    first = -(-number * senders.count // topics)
    last = -(-following * senders.count // topics)
    return publishes.first_stream + first, last - first
