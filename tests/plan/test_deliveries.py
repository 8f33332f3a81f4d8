"""Deliveries of mixed groups, compared with a model that looks at each topic and each filter."""

import random
from collections import Counter, defaultdict
from itertools import chain, pairwise

import pytest

from loadgen.errors import ScenarioError
from loadgen.plan.addressing import (
    deliveries_to_each,
    filters_of,
    target_number,
)
from loadgen.plan.deliveries import mean_deliveries, require_exact
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes, Target
from loadgen.plan.plan import Plan
from tests.plans import small_plan, streams_received

LEVELS = ("a", "b", "{device}", "{topic}", "d{device}", "t{topic}", "0", "1", "d2")
WILD = (*LEVELS, "+", "+")
NAMES = ("one", "two", "three", "four", "five")


def reaches(wanted: str, topic: str) -> bool:
    """MQTT 5, section 4.7, written down once more, and differently from the program's tree."""
    filter_levels, levels = wanted.split("/"), topic.split("/")
    if wanted[0] in "+#" and topic.startswith("$"):
        return False
    if filter_levels[-1] == "#":
        filter_levels.pop()
        levels = levels[: len(filter_levels)] if len(levels) >= len(filter_levels) else []
    same = (f in ("+", t) for f, t in zip(filter_levels, levels, strict=False))
    return len(filter_levels) == len(levels) and all(same)


def some_filter(draw: random.Random) -> str:
    levels = draw.choices(WILD, k=draw.randint(1, 3))
    if draw.random() < 0.3:
        levels[-1] = "#"
    share = draw.choice(("", "", "", "$share/s/", "$share/{topic}/", "$share/u/"))
    return share + "/".join(levels)


def some_mix(seed: int) -> tuple[DeviceGroup, ...]:
    """Up to five groups that publish, subscribe, or both."""
    draw = random.Random(seed)
    groups: list[DeviceGroup] = []
    stream = 0
    for name in NAMES[: draw.randint(2, 5)]:
        count = draw.randint(1, 12)
        publishes = subscribes = None
        if draw.random() < 0.7:
            topic = "/".join(draw.choices(LEVELS, k=draw.randint(1, 3)))
            publishes = Publishes(topic, 10.0, first_stream=stream)
            stream += count
        if draw.random() < 0.8:
            subscribes = Subscribes(tuple(some_filter(draw) for _ in range(draw.randint(1, 3))))
        topics = draw.choice((0, 1, draw.randint(1, 14)))
        groups.append(DeviceGroup(name, count, publishes, subscribes, topics=topics))
    return tuple(groups)


def overlaps(groups: tuple[DeviceGroup, ...]) -> bool:
    """Whether MQTT leaves the number of copies open, or two groups share a subscription."""
    topics = {
        group.expand(group.publishes.topic, device)
        for group in groups
        if group.publishes is not None
        for device in range(group.count)
    }
    shared: defaultdict[str, set[str]] = defaultdict(set)
    for group in groups:
        for device in range(group.count):
            filters = filters_of(group, device)
            for one in filters:
                if one.startswith("$share/"):
                    shared[one].add(group.name)
            plain = [one.split("/", 2)[2] if one.startswith("$share/") else one for one in filters]
            if any(sum(reaches(one, topic) for one in plain) > 1 for topic in topics):
                return True
    return any(len(owners) > 1 for owners in shared.values())


def check(plan: Plan) -> int:
    """Compare the plan's deliveries with the model; return their number."""
    expected: Counter[int] = Counter()
    queues: set[tuple[object, ...]] = set()
    for sender in plan.groups:
        publishes = sender.publishes
        if publishes is None:
            continue
        for number in range(sender.count):
            topic, stream = sender.expand(publishes.topic, number), publishes.first_stream + number
            place = target_number(plan, sender, number) if plan.separate_count > 1 else 0
            for group in plan.groups:
                for device in range(group.count):
                    there = target_number(plan, group, device) if plan.separate_count > 1 else 0
                    streams = chain.from_iterable(streams_received(plan, group, device))
                    matching = [
                        one
                        for one in filters_of(group, device)
                        if place == there
                        and reaches(one.split("/", 2)[2] if "$share" in one else one, topic)
                    ]
                    assert list(streams).count(stream) == len(matching)
                    for one in matching:
                        queue = (stream, one, place)
                        if "$share" not in one or queue not in queues:
                            expected[stream] += 1
                        queues.add(queue)
            assert deliveries_to_each(plan, sender)(number) == expected[stream]
        first = publishes.first_stream
        mean = sum(expected[first + n] for n in range(sender.count)) / sender.count
        assert mean_deliveries(sender, plan.groups, plan.separate_count) == pytest.approx(mean)
    return expected.total()


def test_random_mixes_are_exact_or_refused() -> None:
    played = refused = deliveries = 0
    seed = 0
    while played < 60:
        groups = some_mix(seed)
        seed += 1
        if overlaps(groups):
            with pytest.raises(ScenarioError):
                require_exact(groups)
            refused += 1
            continue
        try:
            require_exact(groups)
        except ScenarioError as error:
            # Patterns of different groups that could name one shared subscription.
            assert "share" in str(error)
            continue
        played += 1
        deliveries += check(small_plan(groups, targets=(), version=5))
        targets = tuple(Target("127.0.0.1", port) for port in (1, 2, 3))
        check(small_plan(groups, targets=targets, version=5, separate_brokers=True))
    assert refused > 10 and deliveries > 1_000


def test_a_pattern_never_reaches_system_topics() -> None:
    system = DeviceGroup("system", 2, Publishes("$a/{device}", 1.0))
    listener = DeviceGroup("listener", 1, None, Subscribes(("#", "$a/1")))
    plan = small_plan((system, listener))
    assert streams_received(plan, listener, 0) == [range(1, 2)]


def test_a_large_group_is_worked_out_from_its_patterns() -> None:
    devices, groups = 100_000_000, 500
    senders = DeviceGroup("senders", devices, Publishes("c/{topic}/{device}", 3e6), topics=groups)
    readers = DeviceGroup("readers", groups, None, Subscribes(("c/{device}/+",)))
    plan = small_plan((senders, readers))
    assert mean_deliveries(senders, plan.groups) == 1
    ranges = [streams_received(plan, readers, reader)[0] for reader in range(groups)]
    assert {len(one) for one in ranges} == {200_000}
    assert all(a.stop == b.start for a, b in pairwise(ranges))


def test_groups_with_a_topic_without_readers_expect_nothing() -> None:
    quiet = DeviceGroup("quiet", 3, Publishes("q/{device}", 1.0))
    assert mean_deliveries(quiet, (quiet,)) == 0
    assert deliveries_to_each(small_plan((quiet,)), quiet)(2) == 0
