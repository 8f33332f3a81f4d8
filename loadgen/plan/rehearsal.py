"""The rehearsal of a run before its load, as data that `loadgen.brokers.rehearsal` plays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadgen.mqtt.topics import filter_matches, split_shared
from loadgen.plan.addressing import filters_of
from loadgen.plan.deliveries import direct_senders
from loadgen.plan.groups import DeviceGroup, largest_payload_bytes
from loadgen.plan.plan import Plan

ASKED: Final = b"loadgen asks "  # every payload of a rehearsal begins with this
GREETING_BYTES: Final = 32
TARGETS_ASKED: Final = 16
"""Maximum number of addresses of one system that are checked: the first ones."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A message as a device of the run sends it."""

    topic: str
    qos: int
    size_bytes: int  # of the largest payload
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    group: DeviceGroup
    device: int  # number in the group
    target: int  # number in the plan
    filters: tuple[str, ...] = ()
    qos: int = 0  # of the filters
    publications: tuple[Publication, ...] = ()
    window: int = 0  # messages in flight at most, 0 if it sends nothing or at QoS 0

    @property
    def shares(self) -> bool:
        return any(split_shared(one)[0] is not None for one in self.filters)


def roles_of(plan: Plan) -> tuple[Role, ...]:
    """Return a device of each group at each target of the group; at least two if they share."""
    roles: list[Role] = []
    for group in plan.groups:
        qos = group.subscribes.qos if group.subscribes is not None else 0
        sends = group.publishes or group.responds
        window = 0 if sends is None or sends.qos == 0 else sends.window
        # All have the topics of the first device, so that a message has receivers at each target.
        publications = _publications(plan, group)
        role = Role(group, 0, 0, filters_of(group, 0), qos, publications, window)
        roles += (
            replace(role, device=device, target=target)
            for device, target in placed(plan, group, 2 if role.shares else 1)
        )
    return tuple(roles)


def placed(plan: Plan, group: DeviceGroup, at_least: int = 1) -> list[tuple[int, int]]:
    """Return (device, target) of a group's first devices: one a target, and at least `at_least`."""
    targets = (group.targets or tuple(range(len(plan.targets))))[:TARGETS_ASKED]
    count = min(group.count, max(len(targets), at_least))
    return [(device, targets[device % len(targets)]) for device in range(count)]


def acquainted(roles: Sequence[Role], topic: str) -> tuple[Role, ...]:
    """Add a message from each target to the first role.

    Only a topic that is subscribed to at one broker alone shows that brokers are connected.
    """
    greeting = Publication(topic, 0, GREETING_BYTES)
    greeting_roles: list[Role] = []
    met: set[int] = set()
    for role in roles:
        if role.target not in met:
            role = replace(role, publications=(*role.publications, greeting))
        met.add(role.target)
        greeting_roles.append(role)
    greeted = replace(greeting_roles[0], filters=(*greeting_roles[0].filters, topic))
    return (greeted, *greeting_roles[1:])


def _publications(plan: Plan, group: DeviceGroup) -> tuple[Publication, ...]:
    publishes, responds = group.publishes, group.responds
    publications: list[Publication] = []
    if publishes is not None:
        topic = group.expand(publishes.topic, 0)
        size_bytes = max(publishes.size_bytes)
        publications.append(Publication(topic, publishes.qos, size_bytes, publishes.retain))
    if responds is not None:
        size_bytes = largest_payload_bytes(direct_senders(plan.groups, group.name))
        topic = group.expand(responds.topic, 0)
        publications.append(Publication(topic, responds.qos, size_bytes))
    return tuple(publications)


@dataclass(frozen=True, slots=True)
class Delivery:
    sender: int
    publication: int
    receivers: tuple[int, ...]  # several: of a shared subscription, one of them receives it


def deliveries_of(roles: Sequence[Role], *, separate: bool) -> tuple[Delivery, ...]:
    """Return the expected deliveries; with `separate` each target is a separate broker."""
    deliveries: list[Delivery] = []
    for sender, role in enumerate(roles):
        for number, publication in enumerate(role.publications):
            groups: dict[object, list[int]] = {}
            for receiver, other in enumerate(roles):
                if separate and other.target != role.target:
                    continue
                for one in other.filters:
                    share, plain = split_shared(one)
                    if filter_matches(plain, publication.topic):
                        # A shared filter is delivered to one subscriber, any other to each.
                        groups.setdefault(one if share else receiver, []).append(receiver)
            deliveries += (Delivery(sender, number, tuple(same)) for same in groups.values())
    return tuple(deliveries)
