"""A supply chain over workers: every device once, the consumers of a queue together."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import HostLimitError
from loadgen.plan.fit import Host, describe, fit_plan
from loadgen.plan.groups import Target
from loadgen.plan.plan import Plan
from loadgen.specjms.layout import parts_of
from loadgen.specjms.messages import MESSAGES
from tests.examples import examples
from tests.refusals import refused

HOST = Host(cores=8, descriptors=20_000, memory_bytes=32 << 30, local_ports=28_000)


def planned(host: Host = HOST, **fields: Any) -> Plan:
    scenario = build_scenario("specjms", None, fields)
    return fit_plan(resolve(scenario), host, (Target("127.0.0.1", 1883),), 0xABC)


def test_its_kernels_are_loaded_before_its_plan_is_known() -> None:
    assert planned().behaviour == CASES["specjms"].behaviour
    others = {case.behaviour for case in CASES.values() if case.name != "specjms"}
    assert others == {Plan.__dataclass_fields__["behaviour"].default}


@examples(25)
@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["horizontal", "vertical"]),
)
def test_every_device_is_played_once_and_queues_are_whole(
    base: int, workers: int, handlers: int, drivers: int, topology: str
) -> None:
    plan = planned(
        base=base, workers=workers, handlers=handlers, drivers=drivers, topology=topology
    )
    parts = parts_of(plan.model)
    played: Counter[tuple[int, int]] = Counter()
    home: dict[tuple[int, int], int] = {}
    for worker in plan.workers:
        for share in worker.shares:
            part = parts[share.group]
            for device in share.devices:
                played[share.group, device] += 1
                if part.role == "handlers":
                    queue = (share.group, device // part.per_place)
                    assert home.setdefault(queue, worker.worker) == worker.worker
    assert set(played.values()) == {1}
    assert len(played) == sum(part.count for part in parts)
    assert [group.name for group in plan.groups] == [part.name for part in parts]
    assert [group.count for group in plan.groups] == [part.count for part in parts]


def test_groups_say_who_publishes_and_who_keeps_a_session() -> None:
    plan = planned(base=20, handlers=2, drivers=3)
    groups = {group.name: group for group in plan.groups}
    assert groups["1.order"].publishes is None
    drivers = groups["5.drivers"].publishes
    assert drivers is not None
    assert drivers.rate == pytest.approx(20 / 0.086625)
    assert drivers.qos == 0
    durable = {name for name, group in groups.items() if not group.clean_start}
    persistent = {f"{m.interaction}.{m.name}" for m in MESSAGES if m.persistent}
    assert durable == persistent
    streams = [
        (group.publishes.first_stream, group.count) for group in plan.groups if group.publishes
    ]
    assert streams[0][0] == 0
    for (first, count), (following, _) in pairwise(streams):
        assert following == first + count
    assert describe(plan)["run_tag"] == "00000abc"


def test_load_decides_the_number_of_workers() -> None:
    assert len(planned(base=10).workers) == 1
    assert len(planned(base=500).workers) > 1


def test_a_host_that_is_too_small_is_told() -> None:
    small = Host(cores=2, descriptors=300, memory_bytes=32 << 30, local_ports=28_000)
    with refused("BROKER_FILES", HostLimitError, limit=300):
        planned(small, base=50, workers=1)
