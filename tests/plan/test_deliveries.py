"""Deliveries of mixed groups, compared with a model that looks at each device."""

import random
from collections import Counter, defaultdict
from itertools import chain, count, pairwise
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import ScenarioError
from loadgen.plan.addressing import deliveries_to_each
from loadgen.plan.deliveries import mean_deliveries
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes, Target
from loadgen.plan.plan import Plan
from tests.instruments.delivery_rules import Mix
from tests.plans import small_plan, streams_received

LEVELS = ("a", "b", "{device}", "{topic}", "d{device}", "t{topic}", "0", "1", "d2")
WILD = (*LEVELS, "+", "+")
NAMES = ("one", "two", "three", "four", "five")


def some_filter(draw: random.Random) -> str:
    levels = draw.choices(WILD, k=draw.randint(1, 3))
    if draw.random() < 0.3:
        levels[-1] = "#"
    share = draw.choice(("", "", "", "$share/s/", "$share/{topic}/", "$share/u/"))
    return share + "/".join(levels)


def some_mix(seed: int) -> list[dict[str, Any]]:
    """Up to five groups that publish, subscribe, or both."""
    draw = random.Random(seed)
    tables: list[dict[str, Any]] = []
    for name in NAMES[: draw.randint(2, 5)]:
        table = {"name": name, "count": draw.randint(1, 12), "qos": draw.choice("012")}
        if draw.random() < 0.7:
            table["topic"] = "/".join(draw.choices(LEVELS, k=draw.randint(1, 3)))
            table["retain"] = draw.random() < 0.3
        if draw.random() < 0.8:
            table["subscribe"] = [some_filter(draw) for _ in range(draw.randint(1, 3))]
            table["subscribe_qos"] = draw.choice("012")
            if draw.random() < 0.3:
                table |= {"clean": False, "stages": [{"devices": 1}]}
        topics = draw.choice((0, 1, draw.randint(1, 14)))
        if topics and "{topic}" in str(table):
            table["topics"] = topics
        tables.append(table)
    return tables


def check(plan: Plan, mix: Mix) -> int:
    """Compare the plan's deliveries with the model; return their number."""
    received = {
        (group.name, device): Counter(chain.from_iterable(streams_received(plan, group, device)))
        for group in plan.groups
        for device in range(group.count)
    }
    each = mix.deliveries().most
    assert {device: streams.total() for device, streams in received.items() if streams} == each
    totals: defaultdict[str, list[int]] = defaultdict(list)
    for stream, publication in enumerate(mix.publications):
        deliveries = mix.deliveries(publication.__eq__)
        assert +deliveries.most == {
            device: streams[stream] for device, streams in received.items() if streams[stream]
        }
        group, number = publication.sender
        sender = next(one for one in plan.groups if one.name == group)
        fewest, most = deliveries.total
        assert fewest == most == deliveries_to_each(plan, sender)(number)
        totals[group].append(most)
    for sender in plan.groups:
        if of_each := totals[sender.name]:
            mean = sum(of_each) / sender.count
            assert mean_deliveries(sender, plan.groups, plan.separate_count) == pytest.approx(mean)
    return sum(map(sum, totals.values()))


def test_random_mixes_are_exact_or_refused() -> None:
    played, refused, deliveries = 0, Counter[str](), 0
    for seed in count():
        tables = some_mix(seed)
        if not any("topic" in table for table in tables):
            continue
        try:
            plan = resolve(build_scenario("run", {"group": tables}, {"mqtt": "5"}))
        except ScenarioError as error:
            refused[error.code] += 1
            # Patterns of two groups may name one subscription or match, although no device's do.
            assert Mix(tables).is_open() or error.code in ("SHARED_BY_GROUPS", "STAGES_NOT_STORED")
            continue
        assert not Mix(tables).is_open()
        deliveries += check(plan, Mix(tables))
        targets = tuple(Target("127.0.0.1", port) for port in (1, 2, 3))
        apart = small_plan(plan.groups, targets=targets, version=5, separate_brokers=True)
        deliveries += check(apart, Mix(tables, brokers=3))
        played += 1
        if played == 60:
            break
    assert refused.keys() == {"OVERLAP", "SHARED_BY_GROUPS", "STAGES_NOT_STORED"}
    assert refused.total() > 20 and deliveries > 1_000


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
