"""Names and addresses of a plan's single devices: identifiers, topics, streams, targets."""

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
    """Return the MQTT client identifier of a device: by the plan's pattern, or unique to the run.

    Without a pattern it has at most 23 bytes if the number is short enough (MQTT 3.1.1, 3.1.3.1).
    """
    if plan.scenario.client_id is not None:
        own = plan.scenario.client_id.replace("{device}", str(device))
        return own.replace("{group}", str(plan.groups.index(group)))
    return f"{plan.root}{group.name[0]}{plan.groups.index(group)}-{device}"


def may_be_kept(plan: Plan) -> bool:
    """Return True if the plan's devices can stay connected for the next run.

    They must end a run as they began it. Churn and stored sessions rule it out, because the next
    run would not begin with new sessions. So do slow readers: their receive buffers are larger
    after the window.
    """
    lasting = not plan.scenario.churn and all(group.clean_start for group in plan.groups)
    publishing = any(group.publishes for group in plan.groups)
    alike = lasting and slow_group(plan.groups) is None
    return plan.behaviour == MESSAGING and alike and publishing


def without_rates(plan: Plan) -> Plan:
    """Return the plan without the values that may differ between runs on the same connections."""
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
    if group.targets:
        return group.targets[device % len(group.targets)]
    targets = len(plan.targets)
    if not plan.separate_brokers:
        return device % targets
    topics = topics_of(group, plan.groups)
    return topic_number(device, group.count, topics) * targets // topics


def timed_between_hosts(plan: Plan) -> bool:
    """Return True if latencies of the run's result begin on one host and end on another."""

    def hosts(group: DeviceGroup) -> set[int]:
        number = plan.groups.index(group)
        return {w.host for w in plan.workers if any(s.group == number for s in w.shares)}

    for group in plan.groups:
        sender = publishing_to(group, plan.groups)
        if group.timed and sender is not None and len(hosts(group) | hosts(sender)) > 1:
            return True
    # Devices of any other behaviour may send to any group.
    return plan.behaviour != MESSAGING and len({worker.host for worker in plan.workers}) > 1


def streams_received(plan: Plan, group: DeviceGroup, device: int) -> tuple[int, int]:
    """Return the first stream and the number of streams that a device must receive."""
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
        # At one of several brokers a wildcard matches only the topics that are published there.
        targets = len(plan.targets)
        target = target_number(plan, group, device)
        number = -(-target * topics // targets)
        following = -(-(target + 1) * topics // targets)
    first = -(-number * senders.count // topics)
    last = -(-following * senders.count // topics)
    return publishes.first_stream + first, last - first
