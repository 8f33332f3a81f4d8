"""What is asked of a broker before the load follows from the plan."""

from typing import Any

import pytest

from loadgen.cases.registry import CASES
from loadgen.plan.plan import Plan
from loadgen.plan.rehearsal import TARGETS_ASKED, Role, acquainted, deliveries_of, roles_of
from tests.plans import fitted_plan


def plan_of(case: str, targets: int = 1, **fields: Any) -> Plan:
    urls = [f"mqtt://127.0.0.{number + 1}" for number in range(targets)]
    return fitted_plan(case, targets, broker=urls, **fields)


def seen(roles: tuple[Role, ...]) -> list[tuple[str, int, int, tuple[str, ...], list[str]]]:
    return [
        (r.group.name, r.device, r.target, r.filters, [p.topic for p in r.publications])
        for r in roles
    ]


def test_a_device_of_each_group_does_what_the_group_does() -> None:
    assert seen(roles_of(plan_of("fanin"))) == [
        ("publishers", 0, 0, (), ["lg00000007/fanin/0"]),
        ("subscriber", 0, 0, ("lg00000007/fanin/+",), []),
    ]
    asking, answering = roles_of(plan_of("request", qos=1))
    assert [asking.filters, answering.filters] == [
        (answering.publications[0].topic,),
        (asking.publications[0].topic,),
    ]


def test_the_largest_message_is_asked_for_and_the_window() -> None:
    publishers, _ = roles_of(plan_of("fanin", size="100-5000", qos=1, max_unacknowledged=9))
    (publication,) = publishers.publications
    assert (publication.size_bytes, publication.qos, publishers.window) == (5000, 1, 9)
    assert [role.window for role in roles_of(plan_of("fanin"))] == [0, 0]


def test_two_consumers_share_and_each_message_is_for_one_of_them() -> None:
    roles = roles_of(plan_of("queue"))
    assert [role.shares for role in roles] == [False, True, True]
    (delivery,) = deliveries_of(roles, separate=False)
    assert (delivery.sender, delivery.receivers) == (0, (1, 2))


@pytest.mark.parametrize("separate", [False, True])
def test_several_targets_exchange_unless_they_are_separate(separate: bool) -> None:
    roles = roles_of(plan_of("fanout", 3, separate_brokers=separate))
    pairs = {
        (roles[one.sender].target, roles[receiver].target)
        for one in deliveries_of(roles, separate=separate)
        for receiver in one.receivers
    }
    everyone = {(a, b) for a in range(3) for b in range(3)}
    assert pairs == ({(0, 0), (1, 1), (2, 2)} if separate else everyone)


def test_of_many_targets_some_are_asked() -> None:
    assert len(roles_of(plan_of("fanout", 40, topics=100))) == 2 * TARGETS_ASKED


def test_a_queue_at_several_targets_has_one_message_that_crosses() -> None:
    plan = plan_of("queue", 2)
    roles = acquainted(roles_of(plan), "greeting")
    crossing = [
        (roles[one.sender].target, roles[one.receivers[0]].target)
        for one in deliveries_of(roles, separate=False)
        if roles[one.sender].publications[one.publication].topic == "greeting"
    ]
    assert crossing == [(0, 0), (1, 0)]


def test_every_case_has_roles_and_its_messages_somewhere_to_go() -> None:
    for case in ("fanin", "fanout", "persistent", "latency", "request", "queue"):
        roles = roles_of(plan_of(case))
        sent = {
            (number, place)
            for number, role in enumerate(roles)
            for place in range(len(role.publications))
        }
        assert sent
        assert sent == {
            (one.sender, one.publication) for one in deliveries_of(roles, separate=False)
        }
    assert deliveries_of(roles_of(plan_of("connburst")), separate=False) == ()


@pytest.mark.parametrize("selectors", ["broker", "client"])
def test_a_supply_chain_asks_for_each_of_its_messages(selectors: str) -> None:
    plan = plan_of("specjms", base=2, selectors=selectors)
    roles = CASES["specjms"].roles(plan)
    deliveries = deliveries_of(roles, separate=False)
    assert sum(len(role.publications) for role in roles) == 19
    assert len({(one.sender, one.publication) for one in deliveries}) == 19
