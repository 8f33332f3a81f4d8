"""Names and addresses of a plan's single devices: identifiers, topics, streams, targets."""

from collections.abc import Callable
from dataclasses import replace

from loadgen.plan.deliveries import Flow, direct_senders, matches_of, received_by
from loadgen.plan.groups import MESSAGING, DeviceGroup, slow_group
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.plan.scenario import Scenario


def client_id(plan: Plan, group: DeviceGroup, device: int) -> str:
    """Return the client identifier of a device, by the plan's pattern or unique to the run."""
    if plan.scenario.client_id is not None:
        own = plan.scenario.client_id.replace("{device}", str(device))
        return own.replace("{group}", str(plan.groups.index(group)))
    # With a short number at most 23 bytes (MQTT 3.1.1, 3.1.3.1).
    return f"{plan.root}{group.name[0]}{plan.groups.index(group)}-{device}"


def may_be_kept(plan: Plan) -> bool:
    """Return True if the plan's devices can stay connected for the next run."""
    # They must end a run as they began it, and begin the next one with new sessions.
    lasting = not plan.scenario.churn and all(
        group.clean_start and not group.stages for group in plan.groups
    )
    publishing = any(group.publishes for group in plan.groups)
    # Slow readers have larger receive buffers after the window.
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


def filters_of(group: DeviceGroup, device: int) -> tuple[str, ...]:
    patterns = group.subscribes.filters if group.subscribes is not None else ()
    return tuple(group.expand(pattern, device) for pattern in patterns)


def target_number(plan: Plan, group: DeviceGroup, device: int) -> int:
    if group.targets:
        return group.targets[device % len(group.targets)]
    targets = len(plan.targets)
    if plan.separate_count == 1:
        return device % targets
    return group.topic_number(device) * targets // group.topic_count


def timed_between_hosts(plan: Plan) -> bool:
    """Return True if latencies of the run's result begin on one host and end on another."""

    def hosts(group: DeviceGroup) -> set[int]:
        number = plan.groups.index(group)
        return {w.host for w in plan.workers if any(s.group == number for s in w.shares)}

    for group in plan.groups:
        senders = direct_senders(plan.groups, group.name) if group.timed else ()
        if any(len(hosts(group) | hosts(sender)) > 1 for sender in senders):
            return True
    # Devices of any other behaviour may send to any group.
    return plan.behaviour != MESSAGING and len({worker.host for worker in plan.workers}) > 1


def matches_to(plan: Plan, group: DeviceGroup) -> tuple[Flow, ...]:
    return tuple(received_by(plan.groups, group.name, plan.separate_count))


def deliveries_to_each(plan: Plan, group: DeviceGroup) -> Callable[[int], int]:
    """Return a function of the deliveries of each message of a publishing device."""
    stated = group.publishes.deliveries if group.publishes is not None else 0
    if stated is not None:
        return lambda device: stated
    matches = [
        match
        for match in matches_of(plan.groups, plan.separate_count)
        if match.source.senders.name == group.name
    ]
    return lambda device: sum(match.copies(device) for match in matches)


def streams_of(match: Flow, device: int) -> range:
    publishes, senders = match.source.senders.publishes, match.senders_to(device)
    first = publishes.first_stream if publishes is not None else 0
    return range(first + senders.start, first + senders.stop)
