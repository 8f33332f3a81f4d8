"""A scenario, resolved once: what the run asks for, before any host or broker is known."""

from typing import Any

import pytest

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.plan.workload import ROOT, Workload, rooted


def workload(case: str, **fields: Any) -> Workload:
    return resolve(build_scenario(case, None, fields))


@pytest.mark.parametrize("case", CASES)
def test_everything_that_is_asked_for_is_there(case: str) -> None:
    found = workload(case)
    assert found.case is CASES[case] and found.given["case"] == case
    streams = 0
    for group in found.groups:
        if group.publishes is not None:
            assert group.publishes.first_stream == streams
            streams += group.count
    assert found.phases.duration_s > 0
    assert (streams == 0) == found.case.connects_only


def test_topics_that_are_the_runs_own_get_its_root() -> None:
    for case in ("fanin", "latency", "connburst", "request"):
        fields = {"subscribe": True} if case == "connburst" else {}
        groups = workload(case, **fields).groups
        shown = repr(rooted(groups, "lg7"))
        assert ROOT in repr(groups) and ROOT not in shown and "'lg7/" in shown


def test_topics_that_users_name_stay() -> None:
    groups = workload("bridge", front_root="a", backend_root="b").groups
    assert rooted(groups, "lg7") == groups


def test_steps_make_the_window_and_its_mean() -> None:
    found = workload("fanout", steps="50%:10s,100%:30s", duration=5)
    assert found.phases.duration_s == 40 and found.mean_share == 0.875
    assert workload("fanout").mean_share == 1


def test_brokers_that_do_not_know_each_other() -> None:
    urls = ["mqtt://a", "mqtt://b"]
    assert workload("fanin", broker=urls).brokers.apart == 1
    apart = workload("fanin", broker=urls, separate_brokers=True)
    assert apart.brokers.apart == apart.groups[1].count == 2 and not apart.brokers.private
    three = workload("fanin", instances=3)
    assert three.brokers.apart == three.groups[1].count == 3 and three.brokers.private


def test_brokers_behind_a_bridge() -> None:
    own = workload("bridge", backends=2, devices=10).brokers
    assert own.addresses == ("auto",) and own.backends == 2 and not own.may_be_several
    given = workload("bridge", broker="mqtt://f", backend=["mqtt://x", "mqtt://y"]).brokers
    assert given.addresses == ("mqtt://f", "mqtt://x", "mqtt://y") and given.backends == 2


@pytest.mark.parametrize(
    ("case", "fields", "crash"),
    [
        ("persistent", {"crash_broker": 5}, "broker"),
        ("queue", {"crash_consumer": True}, "consumer"),
    ],
)
def test_who_is_cut_off_comes_back(case: str, fields: dict[str, Any], crash: str) -> None:
    found = workload(case, **fields)
    assert found.crash == crash and found.reconnect is not None
    assert found.reconnect.delay_s == 0.1
    assert workload(case).crash == "" and workload(case).reconnect is None


def test_what_a_broker_must_be_able_to_do() -> None:
    assert workload("fanin").needs.wildcards and not workload("fanout").needs.wildcards
    assert workload("queue").needs.shared
    chain = workload("specjms", base=1, handlers=1, selectors="client").needs
    assert not chain.shared and chain.older == "use --mqtt 3.1.1 --selectors broker"
    assert chain.qos_option.format(highest=0) == """--messages '{"all": {"qos": 0}}'"""
    assert workload("fanin", size="32-100").needs.payload_bytes == 100
