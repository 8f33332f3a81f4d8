"""What each of several hosts needs, and how few would do."""

from pathlib import Path

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import Target
from loadgen.plan.host_needs import HostNeeds, fewest_hosts, host_like, host_needs
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import read_toml

GIB = 1 << 30
HOST = Host(cores=2, descriptors=20_000, memory_bytes=20 * GIB, local_ports=28_000)
REMOTE = (Target("192.0.2.7", 1883),)
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def planned(case: str, **flags: object) -> Plan:
    return resolve(build_scenario(case, None, {"broker": "mqtt://192.0.2.7"} | flags))


def fewest(case: str, host: Host = HOST, **flags: object) -> tuple[int, str]:
    return fewest_hosts(planned(case, **flags), host, REMOTE)


class TestFewest:
    def test_a_small_load_fits_on_one(self) -> None:
        assert fewest("fanin") == (1, "")

    def test_ports_ask_for_more(self) -> None:
        hosts, because = fewest("connburst", devices="100k")
        assert hosts == 4
        assert "33,334 connections to one broker address need more" in because

    def test_addresses_for_them_do_as_well(self) -> None:
        assert fewest("connburst", devices="100k", source_address="10.0.0.0/8")[0] == 1

    def test_memory(self) -> None:
        hosts, because = fewest("connburst", devices="10M", source_address="10.0.0.0/8")
        assert hosts == 6 and "GiB of memory" in because
        large = host_like("memory=200GiB", HOST)
        assert fewest("connburst", large, devices="10M", source_address="10.0.0.0/8")[0] == 1

    def test_processors(self) -> None:
        hosts, because = fewest("fanout", topics=100, ratio=10, rate="100k")
        assert hosts > 1 and "of 2 processors" in because

    def test_the_rate_of_connects(self) -> None:
        hosts, because = fewest("connburst", devices=20_000, rate="50k")
        assert (hosts, because) == (3, "a host makes at most 20,000 connects a second")

    def test_one_fewer_does_not_do_whatever_was_asked_for(self) -> None:
        asked = planned("connburst", devices="100k", hosts=9)
        assert fewest_hosts(asked, HOST, REMOTE) == fewest("connburst", devices="100k")

    def test_none_would_do(self) -> None:
        tiny = host_like("memory=1MiB", HOST)
        assert fewest("fanin", tiny)[0] == 0


class TestNeeds:
    def test_those_of_the_fullest_host(self) -> None:
        asked = planned("connburst", devices=50_001, rate=1000, hosts=2, duration=20)
        needs = host_needs(fit_plan(asked, HOST, REMOTE, 1), HOST)
        assert (needs.hosts, needs.devices, needs.workers) == (2, 25_001, 2)
        assert needs.connects_per_s == 500
        assert needs.connect_s == pytest.approx(50.0, abs=0.1)
        assert needs.run_s == pytest.approx(70.0, abs=0.1)

    def test_connects_are_as_fast_as_a_host_can(self) -> None:
        asked = planned("connburst", devices=20_000)
        needs = host_needs(fit_plan(asked, HOST, REMOTE, 1), HOST)
        assert needs.connects_per_s == 20_000 and needs.connect_s == 1.0


def published(name: str) -> HostNeeds:
    file = read_toml((SCENARIOS / name).read_text("utf-8"))
    asked = resolve(build_scenario("fanout", file, {}))
    targets = tuple(Target(f"192.0.2.{n + 1}", 1883) for n in range(len(asked.brokers.names)))
    return host_needs(fit_plan(asked, HOST, targets, 1), HOST)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "devices", "connect_s"),
    [("emqx-100m.toml", 1_000_000, 1_010), ("hivemq-200m.toml", 1_000_000, 37 * 60)],
)
def test_the_largest_published_tests_are_planned(name: str, devices: int, connect_s: int) -> None:
    needs = published(name)
    assert needs.devices == pytest.approx(devices, rel=0.02)
    assert needs.connect_s == pytest.approx(connect_s, rel=0.02)
    assert 1 < needs.fewest < needs.hosts


class TestHostLike:
    def test_what_is_named_is_changed(self) -> None:
        found = host_like("cores=16, memory=64GiB,descriptors=1M,ports=60k", HOST)
        assert found == Host(16, 1_000_000, 64 * GIB, 60_000)

    @pytest.mark.parametrize("text", ["", "cores", "cores=x", "disks=2", "cores=0", "memory=1.5"])
    def test_what_cannot_be(self, text: str) -> None:
        with pytest.raises(ValueError):
            host_like(text, HOST)
