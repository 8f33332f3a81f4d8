"""Spreads groups of devices over workers: what a device costs, and who plays which of them.

The cost model, measured on one core of a current x86 server: a socket call costs some microseconds
whatever it carries, a message well under one. So a publisher that sends one message at a time costs
about ten times one that sends what fell due in a millisecond. The bytes of a message are felt from
some kilobytes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from loadgen.plan.groups import DeviceGroup, Share, publishing_to, sent_rate

CALL_US = 9.0
SEND_US = 1.0
RECEIVE_CALL_US = 4.0
RECEIVE_US = 0.6
KB_US = 0.25
"""To send, or to receive and check, 1,000 bytes of large messages."""
BATCH_S = 0.001
"""Messages due on one connection within this time leave, or arrive, in one socket call."""
WORKER_LOAD = 0.3
"""Share of a core that a worker is planned for: bursts and the broker need the rest."""

Shares = list[tuple[Share, ...]]
"""What each worker plays."""

HostsOfGroups = Mapping[str, tuple[int, ...]]
"""On which hosts the groups of a name are played; those that are not named, on all."""

EVERYWHERE: HostsOfGroups = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Costed:
    """A group with `cores`, what one device takes, and `parts`, into which it can be divided."""

    group: DeviceGroup
    cores: float
    parts: int


def costed(groups: tuple[DeviceGroup, ...]) -> tuple[Costed, ...]:
    """The groups with what they cost, by their own word or by their rates and topics."""
    return tuple(
        Costed(
            group,
            _cores(group, groups) if group.cores is None else group.cores,
            _parts(group, groups) if group.parts is None else group.parts,
        )
        for group in groups
    )


def _cores(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> float:
    """Cores that one device of the group takes to send and to receive."""
    if not group.count:
        return 0.0
    sent = sent_rate(group, groups) / group.count
    senders = publishing_to(group, groups)
    cost_us = sent * (CALL_US / _messages_per_call(sent) + SEND_US + _bytes_us(group))
    if senders is not None and senders.publishes is not None:
        got = senders.publishes.rate * senders.publishes.deliveries / group.count
        cost_us += got * (
            RECEIVE_CALL_US / _messages_per_call(got) + RECEIVE_US + _bytes_us(senders)
        )
    return cost_us * 1e-6


def _bytes_us(senders: DeviceGroup) -> float:
    """What the bytes of one of their messages cost at either end."""
    return sum(senders.publishes.size_bytes) / 2e3 * KB_US if senders.publishes else 0.0


def _messages_per_call(rate: float) -> float:
    return max(1.0, rate * BATCH_S)


def _parts(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> int:
    """Into how many parts a group can be divided: its devices, or the queues they consume.

    The consumers of one queue share its account, which one worker keeps.
    """
    subscribes, senders = group.subscribes, publishing_to(group, groups)
    if subscribes is None or subscribes.shared is None:
        return group.count
    if subscribes.wildcard or senders is None or senders.publishes is None:
        return min(1, group.count)
    return min(senders.publishes.topics, group.count)


def _has_background(groups: tuple[Costed, ...]) -> bool:
    return any(not one.group.timed and one.group.responds is None for one in groups)


def workers_for_load(groups: tuple[Costed, ...], cores: int, hosts: int) -> int:
    """How many workers the load asks for on hosts with this many cores each."""
    load = sum(one.cores * one.group.count for one in groups)
    wanted = min(max(1, cores * hosts - 1), max(1, math.ceil(load / WORKER_LOAD)))
    if _has_background(groups):
        wanted = max(2, wanted)
    return -(-wanted // hosts) * hosts


def most_workers(groups: tuple[Costed, ...]) -> int:
    """How many workers there can be without one that has nothing to do."""
    if not _has_background(groups):
        return sum(one.parts for one in groups)
    return 1 + sum(one.parts for one in groups if not one.group.timed)


def spread(
    groups: tuple[Costed, ...], workers: int, hosts: int = 1, where: HostsOfGroups = EVERYWHERE
) -> Shares:
    """Shares of each worker; a group's devices are dealt out one by one, like cards.

    Neighbouring devices have neighbouring places in the schedule, so dealing keeps the schedule of
    every worker even. Each group begins where the one before stopped, so that groups of a few
    devices do not all meet in the first worker. Queues are dealt whole, neighbours together.
    Worker w is on host w modulo `hosts`; where there are several, a publisher and the subscriber
    with its number are on different ones.
    """
    shares: list[list[Share]] = [[] for _ in range(workers)]
    for lane, members in _lanes(groups, workers, hosts, where):
        step = len(lane)
        dealt = 0
        first: dict[str, int] = {}
        for index in members:
            count, parts = groups[index].group.count, groups[index].parts
            dealt += _meets_its_publisher(groups[index].group, first, dealt, hosts)
            first[groups[index].group.name] = dealt
            for place, worker in enumerate(lane):
                start = (place - dealt) % step
                if start >= parts:
                    continue
                share = Share(index, start, count, step)
                if parts < count:
                    share = _whole_queues(index, count, parts, start, step)
                shares[worker].append(share)
            dealt += parts
    return [tuple(own) for own in shares]


def _meets_its_publisher(
    group: DeviceGroup, first: Mapping[str, int], dealt: int, hosts: int
) -> bool:
    """Whether a group that is dealt from here puts its devices beside those they listen to."""
    publishers = group.subscribes.publishers if group.subscribes is not None else ""
    return hosts > 1 and publishers in first and (dealt - first[publishers]) % hosts == 0


Lane = tuple[Sequence[int], list[int]]
"""Workers, and the groups (by index) that they play."""


def _lanes(
    groups: tuple[Costed, ...], workers: int, hosts: int, where: HostsOfGroups
) -> list[Lane]:
    """Which workers play which groups."""
    everyone = list(range(len(groups)))
    if workers == 1:
        return [(range(1), everyone)]
    if where:
        return _placed(groups, workers, hosts, where)
    if _has_background(groups):
        timed = [index for index in everyone if groups[index].group.timed]
        others = [index for index in everyone if not groups[index].group.timed]
        return [(range(1), timed), (range(1, workers), others)]
    # One device that alone outweighs half a worker's part would lift its worker above the rest.
    half = 0.5 * sum(one.cores * one.group.count for one in groups) / workers
    heavy = [at for at, one in enumerate(groups) if one.group.count == 1 and one.cores > half]
    if heavy and len(heavy) < min(workers, len(groups)):
        last = workers - len(heavy)
        alone = [(range(last + at, last + at + 1), [index]) for at, index in enumerate(heavy)]
        return [(range(last), [i for i in everyone if i not in heavy]), *alone]
    return [(range(workers), everyone)]


def _placed(
    groups: tuple[Costed, ...], workers: int, hosts: int, where: HostsOfGroups
) -> list[Lane]:
    """A lane for each set of hosts; what is timed has a worker of its own beside a background."""
    lanes: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    background = _has_background(groups)
    for index, one in enumerate(groups):
        on = where.get(one.group.name, tuple(range(hosts)))
        lanes.setdefault((on, background and one.group.timed), []).append(index)
    found: list[Lane] = []
    alone: list[int] = []
    for (on, timed), members in sorted(lanes.items(), key=lambda lane: not lane[0][1]):
        lane = [worker for worker in range(workers) if worker % hosts in on]
        lane = [worker for worker in lane if worker not in alone] or lane
        found.append((lane[:1] if timed else lane, members))
        alone += lane[:1] if timed else []
    return found


def _whole_queues(index: int, count: int, queues: int, place: int, places: int) -> Share:
    """The consumers of the queues that fall to one of `places` workers, as one range."""
    each, more = divmod(queues, places)
    first = place * each + min(place, more)
    last = first + each + (place < more)
    # Device j consumes queue j * queues // count.
    return Share(index, -(-first * count // queues), -(-last * count // queues), 1)
