"""Spreads groups of devices over workers, by the cost of a device.

The cost model was measured on one core of a current x86 server: a socket call takes some
microseconds whatever it carries, and a message well under one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadgen.plan.deliveries import direct_senders, received_by, sent_rate
from loadgen.plan.groups import DeviceGroup, Share

CALL_US = 9.0
SEND_US = 1.0
RECEIVE_CALL_US = 4.0
RECEIVE_US = 0.6
KB_US = 0.25  # time to send, or to receive and check, 1,000 bytes of large messages
BATCH_S = 0.001
"""Messages due on one connection within this time are sent, or received, in one socket call."""
WORKER_LOAD = 0.3
"""Planned load of a worker, as share of a core: bursts and the broker need the rest."""

Shares = list[tuple[Share, ...]]  # the devices of each worker

HostsOfGroups = Mapping[str, tuple[int, ...]]
"""The hosts of groups by name; groups that are not named are on all hosts."""


def costed(groups: tuple[DeviceGroup, ...], brokers: int = 1) -> tuple[DeviceGroup, ...]:
    """Return the groups with `cores` and `parts`, which follow from rates and topics."""
    return tuple(
        replace(group, cores=_cores(group, groups, brokers), parts=_parts(group))
        if group.parts < 0
        else group
        for group in groups
    )


def _cores(group: DeviceGroup, groups: tuple[DeviceGroup, ...], brokers: int) -> float:
    """Calculate the share of a core that one device takes to send and to receive."""
    if not group.count:
        return 0.0
    if group.is_closed:
        return 1.0 / group.count  # at an unknown rate, the group takes one processor
    sent = sent_rate(group, groups) / group.count
    cost_us = sent * (CALL_US / _messages_per_call(sent) + SEND_US + _bytes_us(group))
    received = [
        (match.source.rate * match.mean_copies() / group.count, match.source.senders)
        for match in received_by(groups, group.name, brokers)
    ]
    got = sum(rate for rate, _ in received)
    cost_us += got * (RECEIVE_CALL_US / _messages_per_call(got) + RECEIVE_US)
    cost_us += sum(rate * _bytes_us(senders) for rate, senders in received)
    return cost_us * 1e-6


def _bytes_us(senders: DeviceGroup) -> float:
    """Return the time that the bytes of one message take at either end."""
    return sum(senders.publishes.size_bytes) / 2e3 * KB_US if senders.publishes else 0.0


def _messages_per_call(rate: float) -> float:
    return max(1.0, rate * BATCH_S)


def _parts(group: DeviceGroup) -> int:
    """Return the most parts of a group: its devices, or the queues that they consume."""
    # One worker counts the messages of a queue.
    shared = group.subscribes.shared if group.subscribes is not None else ()
    return min([group.count, *map(group.distinct, shared)])


def _has_background(groups: tuple[DeviceGroup, ...]) -> bool:
    return any(not one.timed and one.responds is None for one in groups)


def workers_for_load(groups: tuple[DeviceGroup, ...], cores: float, hosts: int) -> int:
    load = sum(one.cores * one.count for one in groups)
    wanted = min(max(1, math.floor(cores * hosts) - 1), max(1, math.ceil(load / WORKER_LOAD)))
    if _has_background(groups):
        wanted = max(2, wanted)
    return -(-wanted // hosts) * hosts


def most_workers(groups: tuple[DeviceGroup, ...]) -> int:
    """Return the largest number of workers that leaves none of them idle."""
    if not _has_background(groups):
        return sum(one.parts for one in groups)
    return 1 + sum(one.parts for one in groups if not one.timed)


def spread(
    groups: tuple[DeviceGroup, ...],
    workers: int,
    hosts: int = 1,
    where: HostsOfGroups | None = None,
) -> Shares:
    """Return the shares of each worker; worker w is on host w modulo `hosts`.

    Devices are dealt out one by one, like cards: neighbours have neighbouring places in the
    schedule, so every worker gets an even one. Each group begins at the worker after the last of
    the group before. Queues stay undivided. With several hosts, a publisher and the subscriber with
    its number are on different ones.
    """
    shares: list[list[Share]] = [[] for _ in range(workers)]
    for lane, members in _lanes(groups, workers, hosts, where):
        step = len(lane)
        dealt = 0
        first: dict[str, int] = {}
        for index in members:
            count, parts = groups[index].count, groups[index].parts
            if hosts > 1:
                dealt += _meets_its_publisher(groups[index], groups, first, dealt, hosts)
            first[groups[index].name] = dealt
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
    group: DeviceGroup,
    groups: tuple[DeviceGroup, ...],
    first: Mapping[str, int],
    dealt: int,
    hosts: int,
) -> bool:
    """Return True if dealing from here puts subscribers on the hosts of their publishers."""
    senders = (one.name for one in direct_senders(groups, group.name))
    return any(name in first and (dealt - first[name]) % hosts == 0 for name in senders)


Lane = tuple[Sequence[int], list[int]]  # workers, and the indexes of the groups that they run


def _lanes(
    groups: tuple[DeviceGroup, ...], workers: int, hosts: int, where: HostsOfGroups | None
) -> list[Lane]:
    everyone = list(range(len(groups)))
    if workers == 1:
        return [(range(1), everyone)]
    if where:
        return _placed(groups, workers, hosts, where)
    if _has_background(groups):
        timed = [index for index in everyone if groups[index].timed]
        others = [index for index in everyone if not groups[index].timed]
        return [(range(1), timed), (range(1, workers), others)]
    # A device that takes more than half a worker's load would overload a worker with other devices.
    half = 0.5 * sum(one.cores * one.count for one in groups) / workers
    heavy = [at for at, one in enumerate(groups) if one.count == 1 and one.cores > half]
    if heavy and len(heavy) < min(workers, len(groups)):
        last = workers - len(heavy)
        alone = [(range(last + at, last + at + 1), [index]) for at, index in enumerate(heavy)]
        return [(range(last), [i for i in everyone if i not in heavy]), *alone]
    return [(range(workers), everyone)]


def _placed(
    groups: tuple[DeviceGroup, ...], workers: int, hosts: int, where: HostsOfGroups
) -> list[Lane]:
    """Return a lane for each set of hosts; timed groups are separate from a background."""
    lanes: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    background = _has_background(groups)
    for index, one in enumerate(groups):
        on = where.get(one.name, tuple(range(hosts)))
        lanes.setdefault((on, background and one.timed), []).append(index)
    placed: list[Lane] = []
    alone: list[int] = []
    for (on, timed), members in sorted(lanes.items(), key=lambda lane: not lane[0][1]):
        lane = [worker for worker in range(workers) if worker % hosts in on]
        lane = [worker for worker in lane if worker not in alone] or lane
        placed.append((lane[:1] if timed else lane, members))
        alone += lane[:1] if timed else []
    return placed


def _whole_queues(index: int, count: int, queues: int, place: int, places: int) -> Share:
    """Return the consumers of the queues of one of `places` workers, as one range."""
    each, more = divmod(queues, places)
    first = place * each + min(place, more)
    last = first + each + (place < more)
    # Device j consumes queue j * queues // count.
    return Share(index, -(-first * count // queues), -(-last * count // queues), 1)
