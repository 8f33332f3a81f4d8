"""Users of their own for devices, and what each of them may do."""

import pytest

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.plan.accounts import OPERATOR, Account, accounts, login_of
from loadgen.plan.fields import option_of
from loadgen.plan.groups import DeviceGroup
from tests.refusals import refused


def found(case: str, *listed: tuple[str, str], **fields: object) -> dict[str, Account]:
    plan = resolve(build_scenario(case, None, fields))
    return {
        one.user_name: one
        for one in accounts(plan, "key", {plan.groups[0].name: listed} if listed else {})
    }


def test_each_device_has_a_password_and_its_own_topic() -> None:
    users = found("fanout", topics=3, ratio=2)
    assert len(users) == 1 + 3 + 6
    assert users["publishers-2"].publishes == ("+/fanout/2",)
    assert users["publishers-2"].receives == ()
    assert users["subscribers-5"].publishes == ()
    assert users["subscribers-5"].receives == ("+/fanout/2",)
    assert len({one.password for one in users.values()}) == len(users)
    assert users[OPERATOR].receives == ("#", "$SYS/#")


def test_a_login_follows_from_the_key_and_the_number() -> None:
    group = DeviceGroup("publishers", 9)
    assert login_of("key", group, 3) == login_of("key", group, 3)
    assert login_of("key", group, 3)[1] != login_of("other", group, 3)[1]
    assert login_of("key", group, 3)[1] != login_of("key", group, 4)[1]


def test_rights_of_wildcards_queues_answers_and_wills() -> None:
    fanin = found("fanin", devices=2, will="gone/{device}")
    assert fanin["subscriber-0"].receives == ("+/fanin/+",)
    assert fanin["publishers-1"].publishes == ("+/fanin/1", "gone/1")
    queue = found("queue", queues=2, consumers=2)
    assert queue["consumers-3"].receives == ("+/queue/1",)
    request = found("request", devices=4, responders=2)
    asking, answering = request["requesters-3"], request["responders-1"]
    assert asking.publishes == answering.receives == ("+/request/1",)
    assert asking.receives == ("+/response/3",)
    assert answering.publishes == ("+/response/2", "+/response/3")


def test_the_file_of_clients_names_the_first_group() -> None:
    users = found("fanin", ("ann", "a"), ("bob", "b"), devices=2)
    assert users["bob"] == Account("bob", "b", ("+/fanin/1",), ())
    assert "publishers-0" not in users and "subscriber-0" in users


@pytest.mark.parametrize("name", ["tls", "access_control"])
@pytest.mark.parametrize("broker", ["reflector", "mqtt://b", "mqtts://b"])
def test_only_a_private_broker_is_started_so(name: str, broker: str) -> None:
    with refused("ONLY_PRIVATE", option=option_of(name)):
        build_scenario("fanin", None, {"broker": broker, name: True})
    for private in ("mosquitto", "nats"):
        assert build_scenario("fanin", None, {"broker": private, name: True})


@pytest.mark.parametrize("name", ["tls", "access_control"])
def test_a_private_bridge_is_not_started_so(name: str) -> None:
    with refused("PRIVATE_BRIDGE", option=option_of(name)):
        build_scenario("bridge", None, {name: True})
    assert "bridge" in CASES
