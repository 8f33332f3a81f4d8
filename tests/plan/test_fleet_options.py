"""What devices of a fleet are asked to do: scenario, groups and plan of it."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import ScenarioError
from loadgen.plan.addressing import client_id, deliveries_to_each, target_number
from loadgen.plan.fit import needs_of
from loadgen.plan.groups import Reconnect, may_leave
from tests.examples import examples
from tests.fleets import groups_of
from tests.plans import fitted_plan, streams_received
from tests.refusals import refused
from tests.tables import rows_of


@pytest.mark.parametrize(
    ("case", "fields"),
    [(case, {}) for case in CASES if case != "specjms"]
    + [("latency", {"devices": 0}), ("bridge", {"backends": 3})],
)
def test_a_pattern_needs_the_group_where_several_use_it(case: str, fields: dict[str, Any]) -> None:
    groups = len(groups_of(build_scenario(case, None, fields)))
    assert build_scenario(case, None, fields | {"client_id": "{group}-{device}"})
    for listed, using in (({}, groups), ({"clients_file": "c.csv"}, groups - 1)):
        given = fields | listed | {"client_id": "m{device}"}
        if using < 2:
            assert build_scenario(case, None, given)
        else:
            with refused("CLIENT_ID_OF_GROUPS"):
                resolve(build_scenario(case, None, given))


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if "churn" in case.scenario.fields()]
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_churn_is_refused_only_where_nobody_may_leave(case: str, qos: int) -> None:
    if (case == "persistent" and qos == 0) or (case == "queue" and qos != 1):
        return
    try:
        scenario = build_scenario(case, None, {"qos": qos, "churn": 1})
    except ScenarioError:
        assert (case, qos) in (("request", 0), ("request", 1))
        return
    assert any(may_leave(group) for group in groups_of(scenario))


def test_a_will_is_a_topic_of_the_device() -> None:
    for will in ("dead/{device}", "$odd/{}/{ }", "{device}{device}"):
        assert build_scenario("fanin", None, {"will": will}).will == will


def test_devices_return_only_where_asked() -> None:
    assert fitted_plan("fanin").reconnect is None
    assert fitted_plan("fanin", reconnect="200ms").reconnect == Reconnect(0.2, 30.0, 0.5)
    assert fitted_plan("fanin", reconnect=2, reconnect_max=1).reconnect == Reconnect(2.0, 2.0, 0.5)
    assert fitted_plan("persistent", crash_broker=5).reconnect == Reconnect(0.1, 30.0, 0.5)
    plan = fitted_plan("fanin", churn="2k", away="500ms")
    assert (plan.scenario.churn, plan.scenario.away, plan.reconnect) == (2000.0, 0.5, None)


@pytest.mark.parametrize(("fields", "kept"), rows_of("plan.sessions_kept"))
def test_exactly_once_over_two_connections_needs_a_session(
    fields: dict[str, Any], kept: list[bool]
) -> None:
    groups = groups_of(build_scenario("persistent", None, fields))
    assert [group.clean_start for group in groups] == kept


@pytest.mark.parametrize("case", ["fanin", "fanout"])
def test_durable_keeps_every_session(case: str) -> None:
    for durable in (False, True):
        scenario = build_scenario(case, None, {"qos": 1, "durable": durable})
        assert {group.clean_start for group in groups_of(scenario)} == {not durable}


def test_identifiers_and_wills_are_those_of_the_pattern() -> None:
    plan = fitted_plan("fanin", client_id="m-{group}-{device}", will="dead/{device}")
    senders, readers = plan.groups
    assert client_id(plan, senders, 7) == "m-0-7"
    assert client_id(plan, readers, 0) == "m-1-0"
    assert (senders.will, readers.will) == ("dead/{device}", None)


def test_workers_take_processors_in_turn() -> None:
    plan = fitted_plan("fanin", workers=5, affinity="1,4-5")
    assert [worker.processors for worker in plan.workers] == [(1,), (4,), (5,), (1,), (4,)]
    assert {worker.processors for worker in fitted_plan("fanin", workers=2).workers} == {()}
    # Each host has processors of its own.
    two = fitted_plan("fanin", workers=4, affinity="0-1", hosts=2, broker="mqtt://127.0.0.1")
    placed = [(worker.host, worker.processors) for worker in two.workers]
    assert placed == [(0, (0,)), (1, (0,)), (0, (1,)), (1, (1,))]


@examples(60)
@given(
    brokers=st.integers(2, 7),
    case=st.sampled_from(["fanin", "fanout", "persistent", "queue"]),
    size=st.integers(1, 40),
    ratio=st.integers(1, 5),
)
def test_every_message_finds_its_subscribers_at_its_own_broker(
    brokers: int, case: str, size: int, ratio: int
) -> None:
    fields: dict[str, Any] = {
        "fanin": {"devices": size},
        "fanout": {"topics": size, "ratio": ratio},
        "persistent": {"pairs": size, "producers": ratio},
        "queue": {"queues": size, "consumers": ratio},
    }[case]
    plan = fitted_plan(case, brokers, instances=brokers, **fields)
    assert plan.separate_brokers
    senders, readers = plan.groups
    assert senders.publishes is not None
    deliveries = deliveries_to_each(plan, senders)
    owed = {sender: deliveries(sender) for sender in range(senders.count)}
    assert set(owed.values()) == {ratio if case == "fanout" else 1}
    for reader in range(readers.count):
        broker = target_number(plan, readers, reader)
        for stream in chain.from_iterable(streams_received(plan, readers, reader)):
            assert target_number(plan, senders, stream) == broker
            if case != "queue" or reader * size // readers.count != (reader - 1) * size // (
                readers.count
            ):
                owed[stream] -= 1
    assert set(owed.values()) == {0}
    used = {target_number(plan, senders, n) for n in range(senders.count)}
    assert len(used) == min(brokers, senders.topic_count)


@examples(60)
@given(
    brokers=st.integers(2, 7),
    case=st.sampled_from(["fanin", "fanout", "persistent"]),
    size=st.integers(1, 60),
    workers=st.integers(1, 9),
)
def test_ports_are_enough_for_the_block_of_each_broker(
    brokers: int, case: str, size: int, workers: int
) -> None:
    fields: dict[str, Any] = {
        "fanin": {"devices": size},
        "fanout": {"topics": size, "ratio": 3},
        "persistent": {"pairs": size, "producers": 3},
    }[case]
    plan = fitted_plan(case, brokers, instances=brokers, workers=workers, **fields)
    used: Counter[int] = Counter()
    for worker in plan.workers:
        for share in worker.shares:
            group = plan.groups[share.group]
            for device in range(share.start, share.stop, share.step):
                used[target_number(plan, group, device)] += 1
    assert max(used.values()) <= needs_of(plan).ports_per_source_address
    if workers == 1 and size % brokers == 0:
        assert needs_of(plan).ports_per_source_address == max(used.values())


def test_brokers_of_one_system_share_their_topics() -> None:
    plan = fitted_plan("fanin", 3, devices=9)
    assert not plan.separate_brokers
    senders, readers = plan.groups
    assert [target_number(plan, senders, n) for n in range(9)] == [0, 1, 2] * 3
    assert streams_received(plan, readers, 0) == [range(9)]
    apart = replace(plan, separate_brokers=True)
    assert [target_number(apart, senders, n) for n in range(9)] == [0] * 3 + [1] * 3 + [2] * 3
