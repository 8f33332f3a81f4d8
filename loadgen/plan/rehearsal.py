"""What is asked of a broker before the load: the run in small, a device or two of each group.

Pure: which devices connect where, what they subscribe to and publish, and who must receive it.
`loadgen.brokers.rehearse` asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadgen.mqtt.topics import filter_matches, split_shared
from loadgen.plan.addressing import topic_filter
from loadgen.plan.groups import DeviceGroup, topic_name
from loadgen.plan.plan import Plan

ASKED: Final = b"loadgen asks "
"""Every payload of a rehearsal begins with this."""
GREETING_BYTES: Final = 32
TARGETS_ASKED: Final = 16
"""Of more addresses of one system, the first."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A message that a device of the run would send; the size is the largest of its payload."""

    topic: str
    qos: int
    size_bytes: int
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What one device does. `device` is its number in its group, `target` a number of the plan's.

    `window` is how many messages it may want to have in flight, 0 for none.
    """

    group: DeviceGroup
    device: int
    target: int
    filters: tuple[str, ...] = ()
    qos: int = 0  # of the filters
    publications: tuple[Publication, ...] = ()
    window: int = 0

    @property
    def shares(self) -> bool:
        """Whether it shares a subscription with others."""
        return any(split_shared(one)[0] is not None for one in self.filters)


def roles_of(plan: Plan) -> tuple[Role, ...]:
    """A device of each group at each target that the group uses; of consumers that share, two.

    All of a group do what the group's first device does, so that what is published at one target
    has receivers at the others.
    """
    roles: list[Role] = []
    for group in plan.groups:
        shared = group.subscribes is not None and group.subscribes.shared is not None
        for device, target in placed(plan, group, 2 if shared else 1):
            roles.append(
                Role(
                    group,
                    device,
                    target,
                    _filters(plan, group),
                    0 if group.subscribes is None else group.subscribes.qos,
                    _publications(plan, group),
                    _window(group),
                )
            )
    return tuple(roles)


def placed(plan: Plan, group: DeviceGroup, at_least: int = 1) -> list[tuple[int, int]]:
    """(device, target) of the first devices of a group: one a target, and `at_least` in all."""
    targets = (group.targets or tuple(range(len(plan.targets))))[:TARGETS_ASKED]
    count = min(group.count, max(len(targets), at_least))
    return [(device, targets[device % len(targets)]) for device in range(count)]


def acquainted(roles: Sequence[Role], topic: str) -> tuple[Role, ...]:
    """The roles with one message from each target to the first role.

    Consumers that share a subscription are served at each broker by itself, too: that several
    brokers know each other shows only by a topic that the first one alone subscribes to.
    """
    greeting = Publication(topic, 0, GREETING_BYTES)
    found: list[Role] = []
    met: set[int] = set()
    for role in roles:
        if role.target not in met:
            role = replace(role, publications=(*role.publications, greeting))
        met.add(role.target)
        found.append(role)
    found[0] = replace(found[0], filters=(*found[0].filters, topic))
    return tuple(found)


def _filters(plan: Plan, group: DeviceGroup) -> tuple[str, ...]:
    return () if group.subscribes is None else (topic_filter(plan, group, 0),)


def _publications(plan: Plan, group: DeviceGroup) -> tuple[Publication, ...]:
    publishes, responds = group.publishes, group.responds
    found: list[Publication] = []
    if publishes is not None:
        topic = topic_name(publishes, 0)
        found.append(Publication(topic, publishes.qos, max(publishes.size_bytes), publishes.retain))
    if responds is not None and group.subscribes is not None:
        asking = plan.group(group.subscribes.publishers).publishes
        size_bytes = 0 if asking is None else max(asking.size_bytes)
        found.append(Publication(f"{responds.topic_prefix}/0", responds.qos, size_bytes))
    return tuple(found)


def _window(group: DeviceGroup) -> int:
    sends = group.publishes or group.responds
    return 0 if sends is None or sends.qos == 0 else sends.window


# Who receives what ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivery:
    """A publication of a role (numbers in the roles) and those of whom one must receive it.

    Several receivers share one subscription.
    """

    sender: int
    publication: int
    receivers: tuple[int, ...]


def deliveries_of(roles: Sequence[Role], *, apart: bool) -> tuple[Delivery, ...]:
    """What must arrive where. `apart`: each target is a broker by itself."""
    found: list[Delivery] = []
    for sender, role in enumerate(roles):
        for number, publication in enumerate(role.publications):
            groups: dict[object, list[int]] = {}
            for receiver, other in enumerate(roles):
                if apart and other.target != role.target:
                    continue
                for one in other.filters:
                    share, plain = split_shared(one)
                    if filter_matches(plain, publication.topic):
                        # Of one filter that is shared one is served, of others each.
                        groups.setdefault(one if share else receiver, []).append(receiver)
            found += (Delivery(sender, number, tuple(same)) for same in groups.values())
    return tuple(found)
