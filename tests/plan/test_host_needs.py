"""What each of several hosts needs, and how few would do."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.plan import fit
from loadgen.plan.fit import Host, fit_plan, needs_by_host
from loadgen.plan.groups import Target
from loadgen.plan.host_needs import fewest_hosts, host_like, host_needs, role_needs
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import read_toml
from tests.tables import rows_of

GIB = 1 << 30
HOST = Host(cores=2, descriptors=20_000, memory_bytes=20 * GIB, local_ports=28_000)
REMOTE = (Target("192.0.2.7", 1883),)
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def planned(case: str, **flags: object) -> Plan:
    return resolve(build_scenario(case, None, {"broker": "mqtt://192.0.2.7"} | flags))


def fewest(case: str, host: Host = HOST, **flags: object) -> tuple[int, str]:
    return fewest_hosts(planned(case, **flags), host, REMOTE)


@pytest.mark.parametrize(("case", "flags", "like", "hosts", "because"), rows_of("plan.fewest"))
def test_the_fewest_hosts(
    case: str, flags: dict[str, Any], like: str, hosts: int, because: str
) -> None:
    found, why = fewest(case, host_like(like, HOST) if like else HOST, **flags)
    assert found == hosts and because in why and bool(why) == bool(because)


def test_the_needs_of_the_fullest_host() -> None:
    asked = planned("connburst", devices=50_001, rate=1000, hosts=2, duration=20)
    needs = host_needs(fit_plan(asked, HOST, REMOTE, 1), HOST)
    assert (needs["hosts"], needs["devices"], needs["workers"]) == (2, 25_001, 2)
    assert needs["connects_per_s"] == 500 and needs["connect_s"] == pytest.approx(50.0, abs=0.1)
    assert needs["run_s"] == pytest.approx(70.0, abs=0.1)
    needs = host_needs(fit_plan(planned("connburst", devices=20_000), HOST, REMOTE, 1), HOST)
    assert needs["connects_per_s"] == 20_000 and needs["connect_s"] == 1.0


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "devices", "connect_s"),
    [("emqx-100m.toml", 1_000_000, 1_010), ("hivemq-200m.toml", 1_000_000, 37 * 60)],
)
def test_the_largest_published_tests_are_planned(
    name: str, devices: int, connect_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "fit_plan", tried := Mock(wraps=fit_plan))
    asked = resolve(build_scenario("fanout", read_toml((SCENARIOS / name).read_text()), {}))
    targets = tuple(Target(f"192.0.2.{n + 1}", 1883) for n in range(len(asked.brokers.names)))
    needs = host_needs(fit_plan(asked, HOST, targets, 1), HOST)
    assert tried.call_count <= 3  # each takes a second
    assert needs["devices"] == pytest.approx(devices, rel=0.02)
    assert needs["connect_s"] == pytest.approx(connect_s, rel=0.02)
    assert 1 < needs["fewest"] < needs["hosts"]


def test_what_each_role_needs_and_which_limit_binds() -> None:
    asked = planned("fanout", topics=2, ratio=500, hosts=3, place=["pub=0", "sub=1,2"])
    made = fit_plan(asked, HOST, REMOTE, 1)
    publishers, subscribers = role_needs(made)
    assert (publishers["hosts"], subscribers["hosts"]) == ([0], [1, 2])
    assert subscribers["memory_bytes"] == 500 * publishers["memory_bytes"] > 0
    total = sum(needs.cores for needs in needs_by_host(made))
    assert publishers["cores"] + subscribers["cores"] == pytest.approx(total)
    for binding, flags in (
        ("local ports", {"devices": "100k"}),
        ("memory", {"devices": "10M", "source_address": "10.0.0.0/8"}),
        ("connects a second", {"devices": 20_000, "rate": "50k"}),
    ):
        many = planned("connburst", hosts=20, **flags)
        assert host_needs(fit_plan(many, HOST, REMOTE, 1), HOST)["binding"] == binding


def test_values_of_a_host_are_changed() -> None:
    found = host_like("cores=0.2, memory=64GiB,descriptors=1M,ports=60k", HOST)
    assert found == Host(0.2, 1_000_000, 64 * GIB, 60_000)
    for text in ("", "cores", "cores=x", "disks=2", "cores=0", "memory=1.5"):
        with pytest.raises(ValueError):
            host_like(text, HOST)
