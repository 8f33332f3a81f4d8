"""The plan of a scenario, before any host or broker is known, and the way to its workers."""

from typing import Any

import orjson
import pytest

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.plan.groups import ROOT
from loadgen.plan.plan import Plan, document_of, read_plan, rooted
from tests.tables import rows_of


def planned(case: str, **fields: Any) -> Plan:
    return resolve(build_scenario(case, None, fields))


@pytest.mark.parametrize("case", CASES)
def test_everything_that_is_asked_for_is_there(case: str) -> None:
    found = planned(case)
    assert found.scenario.case == case
    streams = 0
    for group in found.groups:
        if group.publishes is not None:
            assert group.publishes.first_stream == streams
            streams += group.count
    assert found.phases.duration_s > 0
    assert (streams == 0) == CASES[case].connects_only


def test_topics_that_are_the_runs_own_get_its_root() -> None:
    for case in ("fanin", "latency", "connburst", "request"):
        fields = {"subscribe": True} if case == "connburst" else {}
        groups = planned(case, **fields).groups
        shown = repr(rooted(groups, "lg7"))
        assert ROOT in repr(groups) and ROOT not in shown and "lg7/" in shown


def test_topics_that_users_name_stay() -> None:
    groups = planned("bridge", front_root="a", backend_root="b").groups
    assert rooted(groups, "lg7") == groups


def test_steps_make_the_window_and_its_mean() -> None:
    found = planned("fanout", steps="50%:10s,100%:30s", duration=5)
    assert found.phases.duration_s == 40 and found.mean_share == 0.875
    assert planned("fanout").mean_share == 1


def test_brokers_that_do_not_know_each_other() -> None:
    urls = ["mqtt://a", "mqtt://b"]
    assert planned("fanin", broker=urls).brokers.separate_count == 1
    two = planned("fanin", broker=urls, separate_brokers=True)
    assert two.brokers.separate_count == two.groups[1].count == 2 and not two.brokers.private
    three = planned("fanin", instances=3)
    assert three.brokers.separate_count == three.groups[1].count == 3 and three.brokers.private


def test_brokers_behind_a_bridge() -> None:
    own = planned("bridge", backends=2, devices=10).brokers
    assert own.addresses == ("auto",) and own.backends == 2 and not own.may_be_several
    given = planned("bridge", broker="mqtt://f", backend=["mqtt://x", "mqtt://y"]).brokers
    assert given.addresses == ("mqtt://f", "mqtt://x", "mqtt://y") and given.backends == 2


@pytest.mark.parametrize(("case", "fields", "crash"), rows_of("plan.crash_commands"))
def test_who_is_cut_off_comes_back(case: str, fields: dict[str, Any], crash: str) -> None:
    found = planned(case, **fields)
    assert found.crash is not None and found.crash.victim == crash
    assert found.reconnect is not None
    assert found.reconnect.delay_s == 0.1
    assert planned(case).crash is None and planned(case).reconnect is None


def test_what_a_broker_must_be_able_to_do() -> None:
    assert planned("fanin").needs.wildcards and not planned("fanout").needs.wildcards
    assert planned("queue").needs.shared
    chain = planned("specjms", base=1, handlers=1, selectors="client").needs
    assert not chain.shared and chain.older == "use --mqtt 3.1.1 --selectors broker"
    assert chain.qos_option.format(highest=0) == """--messages '{"all": {"qos": 0}}'"""
    assert planned("fanin", size="32-100").needs.payload_bytes == 100


@pytest.mark.parametrize("case", CASES)
def test_a_plan_survives_the_way_to_its_workers(case: str) -> None:
    urls = {"broker": "mqtts://me:s3cret@h", "tls_ca": "ca.pem", "tls_resume": True, "seed": 7}
    fields = {} if case == "bridge" else urls
    crash = {"crash_broker": 1, "crash_command": "kill s3cret"} if case == "persistent" else {}
    plan = planned(case, **fields, **crash)
    document = orjson.loads(orjson.dumps(document_of(plan)))
    assert "s3cret" not in str(document)
    read = read_plan(document)
    assert (read.groups, read.tls, read.behaviour) == (plan.groups, plan.tls, plan.behaviour)
    assert read.phases == plan.phases
    assert crash == {} or (read.crash is not None and read.crash.victim == "broker")
    assert (read.scenario.seed, read.version) == (plan.scenario.seed, plan.version)
    assert read.scenario.broker == ("auto",)
