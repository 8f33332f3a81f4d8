"""From a scenario to workers that fit the host."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import HostLimitError
from loadgen.plan.fit import SPARE_DESCRIPTORS, Host, describe, fit_plan, needs_of
from loadgen.plan.groups import Target, WorkerPlan, target_url
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import read_toml
from tests.examples import examples
from tests.refusals import refused
from tests.tables import rows_of

GIB = 1 << 30
SMALL = Host(cores=2, descriptors=20_000, memory_bytes=24 * GIB, local_ports=28_000)
LARGE = Host(cores=12, descriptors=200_000, memory_bytes=98 * GIB, local_ports=60_000)
LOOPBACK = (Target("127.0.0.1", 1883),)
REMOTE = (Target("192.0.2.7", 1883),)


def plan(
    case: str, host: Host = SMALL, targets: tuple[Target, ...] = LOOPBACK, **flags: object
) -> Plan:
    # A broker that is started here has the host's limits, too: see limits.toml.
    scenario = build_scenario(case, None, {"broker": "mqtt://127.0.0.1"} | flags)
    return fit_plan(resolve(scenario), host, targets, 0x1234)


def devices_of(made: Plan, worker: WorkerPlan) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for share in worker.shares:
        numbers = range(share.start, share.stop, share.step)
        found.setdefault(made.groups[share.group].name, []).extend(numbers)
    return found


def held(worker: WorkerPlan) -> int:
    return sum(share.count for share in worker.shares)


FLAGS: dict[str, st.SearchStrategy[dict[str, object]]] = {
    "fanin": st.fixed_dictionaries({"devices": st.integers(1, 300)}),
    "fanout": st.fixed_dictionaries({"topics": st.integers(1, 9), "ratio": st.integers(1, 30)}),
    "persistent": st.fixed_dictionaries({"pairs": st.integers(1, 40)}),
    "latency": st.fixed_dictionaries(
        {"devices": st.integers(0, 200), "topics": st.integers(1, 20)}
    ),
    "connburst": st.fixed_dictionaries({"devices": st.integers(1, 300)}),
}


@given(st.data(), st.sampled_from(sorted(FLAGS)), st.sampled_from([None, 1, 2, 3, 7, 64]))
@examples(200)
def test_the_shares_of_all_workers_partition_every_group(
    data: st.DataObject, case: str, workers: int | None
) -> None:
    flags = data.draw(FLAGS[case])
    host = Host(2, SPARE_DESCRIPTORS + data.draw(st.integers(40, 400)), 24 * GIB, 28_000)
    try:
        made = plan(case, host, LOOPBACK, workers=workers, **flags)
    except HostLimitError:
        assert workers is not None
        return
    assert [worker.worker for worker in made.workers] == list(range(len(made.workers)))
    for index, group in enumerate(made.groups):
        numbers = [
            number
            for worker in made.workers
            for share in worker.shares
            if share.group == index
            for number in range(share.start, share.stop, share.step)
        ]
        assert sorted(numbers) == list(range(group.count))
    for worker in made.workers:
        assert 0 < held(worker) <= host.descriptors - SPARE_DESCRIPTORS


BY_NAME = {"SMALL": SMALL, "LARGE": LARGE, "FITS": Host(2, 1000 + SPARE_DESCRIPTORS, GIB, 28_000)}


class TestWorkers:
    @pytest.mark.parametrize(("case", "host", "flags", "workers"), rows_of("plan.workers"))
    def test_number(self, case: str, host: str, flags: dict[str, Any], workers: int) -> None:
        made = plan(case, BY_NAME[host], **flags)
        assert len(made.workers) == workers
        assert needs_of(made).descriptors_per_worker <= BY_NAME[host].descriptors

    def test_large_messages_take_processor_and_memory(self) -> None:
        small, large = (
            needs_of(plan("fanout", LARGE, ratio=1, rate=2_000, size=size))
            for size in ("64", "1MB")
        )
        assert 0.9 < large.cores - small.cores < 1.1
        assert large.memory_bytes - small.memory_bytes > 4 * 999_936  # each worker has the body

    def test_few_fast_publishers_cost_less_than_many_slow_ones(self) -> None:
        few = plan("persistent", LARGE, pairs=10, rate="100k")
        many = plan("persistent", LARGE, pairs=10_000, rate="100k")
        assert len(few.workers) < len(many.workers)


class TestShares:
    def test_publishers_are_dealt_one_by_one(self) -> None:
        made = plan("fanin", workers=3, devices=9)
        assert [devices_of(made, worker) for worker in made.workers] == [
            {"publishers": [0, 2, 4, 6, 8]},
            {"publishers": [1, 3, 5, 7]},
            {"subscriber": [0]},
        ]

    def test_workers_get_the_same_part(self) -> None:
        made = plan("fanout", workers=4, topics=10, ratio=10)
        assert {held(worker) for worker in made.workers} <= {27, 28}

    def test_small_groups_do_not_all_meet_in_the_first_worker(self) -> None:
        made = plan("persistent", workers=4, pairs=2)
        assert [held(worker) for worker in made.workers] == [1, 1, 1, 1]

    def test_the_timed_pair_has_a_worker_of_its_own(self) -> None:
        made = plan("latency")
        assert len(made.workers) == 2
        assert devices_of(made, made.workers[0]) == {"pair_publisher": [0], "pair_subscriber": [0]}
        for worker in made.workers[1:]:
            assert set(devices_of(made, worker)) == {
                "background_publishers",
                "background_subscribers",
            }

    def test_one_worker_plays_all_when_asked(self) -> None:
        made = plan("latency", workers=1)
        assert len(devices_of(made, made.workers[0])) == 4

    def test_a_subscriber_that_takes_everything_gets_its_own_worker_at_a_high_rate(self) -> None:
        made = plan("fanin", LARGE, devices="50k", rate="500k")
        assert devices_of(made, made.workers[-1]) == {"subscriber": [0]}
        assert all("subscriber" not in devices_of(made, w) for w in made.workers[:-1])

    def test_and_shares_one_where_that_would_leave_a_worker_idle(self) -> None:
        # The subscriber would take a twentieth of what its one fellow worker sends.
        made = plan("fanin", devices="10k", rate="10k", workers=2)
        assert min(held(worker) for worker in made.workers) > 4_000


class TestSourceAddresses:
    def test_none_while_ports_suffice(self) -> None:
        assert {w.source_address for w in plan("connburst", devices="20k").workers} == {None}

    def test_one_for_each_worker_when_devices_outnumber_ports_on_loopback(self) -> None:
        made = plan("connburst", devices="100k")
        addresses = [worker.source_address for worker in made.workers]
        assert addresses == [f"127.1.0.{n}" for n in range(1, 7)]
        assert needs_of(made).ports_per_source_address <= SMALL.local_ports

    def test_endpoints_multiply_the_ports(self) -> None:
        host = dataclasses.replace(LARGE, local_ports=1000)
        targets = tuple(Target(f"192.0.2.{n}", 1883) for n in range(10))
        made = plan("connburst", host, targets, devices=9_900)
        assert made.workers[0].source_address is None

    def test_a_network_that_is_given_is_used(self) -> None:
        made = plan("fanin", workers=3, source_address="127.0.0.0/16")
        assert [w.source_address for w in made.workers] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        one = plan("fanin", workers=3, source_address="127.0.0.9")
        assert {w.source_address for w in one.workers} == {"127.0.0.9"}

    def test_more_workers_where_addresses_allow_it(self) -> None:
        host = dataclasses.replace(LARGE, local_ports=1000)
        made = plan("connburst", host, REMOTE, devices=5_000, source_address="10.0.0.0/24")
        assert len(made.workers) == 6
        assert needs_of(made).ports_per_source_address <= 990

    def test_ports_are_counted_by_target_when_step_and_targets_share_a_factor(self) -> None:
        # Two workers and two targets: each worker's devices all go to one of them.
        targets = (Target("192.0.2.1", 1), Target("192.0.2.2", 1))
        made = plan("connburst", targets=targets, devices=1000, workers=2)
        made = dataclasses.replace(
            made,
            workers=tuple(
                dataclasses.replace(w, source_address=f"10.0.0.{w.worker}") for w in made.workers
            ),
        )
        assert needs_of(made).ports_per_source_address == 500


class TestLimits:
    def test_memory_on_both_sides(self) -> None:
        need = needs_of(plan("connburst", devices="10k")).memory_bytes
        enough = dataclasses.replace(SMALL, memory_bytes=int(need / 0.9) + 2)
        assert plan("connburst", enough, devices="10k")
        short = dataclasses.replace(SMALL, memory_bytes=int(need / 0.9) - 1000)
        with refused("MEMORY"):
            plan("connburst", short, devices="10k")

    def test_encryption_takes_memory(self) -> None:
        plain = needs_of(plan("connburst", devices="10k")).memory_bytes
        tls = (Target("127.0.0.1", 8883, "tls"),)
        encrypted = needs_of(plan("connburst", targets=tls, devices="10k")).memory_bytes
        assert encrypted - plain == 10_000 * (49 << 10)

    @pytest.mark.parametrize(
        ("fields", "more_bytes"),
        [({"qos": 2}, 3 * 8_192), ({"qos": 1, "acknowledge_every": 1_000}, 24 * 1_000)],
    )
    def test_identifiers_of_subscribers_take_memory(
        self, fields: dict[str, Any], more_bytes: int
    ) -> None:
        simple = needs_of(plan("persistent", pairs=500, qos=1)).memory_bytes
        assert needs_of(plan("persistent", pairs=500, **fields)).memory_bytes == (
            simple + 500 * more_bytes
        )

    def test_a_run_tag_has_32_bits(self) -> None:
        with pytest.raises(ValueError, match="32 bits"):
            fit_plan(resolve(build_scenario("fanin", None, {})), SMALL, LOOPBACK, 1 << 32)

    def test_a_million_devices_fit_a_small_host(self) -> None:
        made = plan("connburst", devices="1M")
        needs = needs_of(made)
        assert len(made.workers) == 51
        assert needs.memory_bytes < 12 * GIB and needs.descriptors_per_worker <= 20_000


HOSTS = {
    "SMALL": SMALL,
    "FEW_PORTS": dataclasses.replace(LARGE, local_ports=1_000),
    "FEW_FILES": dataclasses.replace(SMALL, descriptors=1_000),
    "NO_FILES": Host(2, SPARE_DESCRIPTORS, GIB, 28_000),
    "THOUSAND_FILES": Host(64, 1_024, 1 << 50, 60_000),
}
LIMITS = read_toml((Path(__file__).parent / "limits.toml").read_text())["limits"]


@pytest.mark.parametrize(
    ("case", "host", "addresses", "flags", "code", "values", "fits"),
    LIMITS,  # type: ignore[arg-type]
)
def test_a_limit_and_what_keeps_it(
    case: str,
    host: str,
    addresses: list[str],
    flags: dict[str, Any],
    code: str,
    values: dict[str, Any],
    fits: dict[str, Any],
) -> None:
    instances = (flags | fits).get("instances", 1)
    targets = tuple(Target(address, 1883) for address in addresses) * instances
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    with refused(code, **values):
        plan(case, HOSTS[host], targets, **flags)
    if fits:
        assert plan(case, HOSTS[host], targets, **(flags | fits)).workers


def groups_by_host(made: Plan) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for worker in made.workers:
        found.setdefault(worker.host, set()).update(devices_of(made, worker))
    return found


def host_of_device(made: Plan, group: str, device: int) -> int:
    return next(w.host for w in made.workers if device in devices_of(made, w).get(group, []))


class TestSeveralHosts:
    def test_workers_are_numbered_over_all_hosts_and_each_has_some(self) -> None:
        made = plan("fanin", hosts=3, workers=7, devices=700)
        assert [worker.worker for worker in made.workers] == list(range(7))
        assert [worker.host for worker in made.workers] == [0, 1, 2, 0, 1, 2, 0]

    def test_a_publisher_and_its_subscriber_are_on_different_hosts(self) -> None:
        for hosts, pairs in ((2, 10), (4, 10), (3, 9)):
            made = plan("persistent", hosts=hosts, pairs=pairs)
            for pair in range(pairs):
                publisher = host_of_device(made, "publishers", pair)
                assert publisher != host_of_device(made, "subscribers", pair)

    def test_on_one_host_a_pair_may_share_a_worker(self) -> None:
        made = plan("persistent", workers=2, pairs=10)
        workers = [devices_of(made, worker) for worker in made.workers]
        assert workers[0]["publishers"] == workers[0]["subscribers"]

    def test_the_timed_pair_is_on_one_host(self) -> None:
        made = plan("latency", hosts=3)
        pair = {"pair_publisher", "pair_subscriber"}
        assert [sorted(pair & names) != [] for names in groups_by_host(made).values()].count(
            True
        ) == 1
        assert not pair & groups_by_host(made)[1]

    def test_a_place_for_each_group(self) -> None:
        made = plan("fanout", hosts=3, place=["publishers=0", "subscribers=1,2"], workers=6)
        assert groups_by_host(made) == {0: {"publishers"}, 1: {"subscribers"}, 2: {"subscribers"}}

    def test_a_place_in_one_text_and_a_singular_group(self) -> None:
        made = plan("fanin", hosts=2, place="publishers=0 subscribers=1")
        assert groups_by_host(made) == {0: {"publishers"}, 1: {"subscriber"}}

    def test_the_beginning_of_several_names(self) -> None:
        made = plan("latency", hosts=2, place=["pair=1", "background=0"])
        assert groups_by_host(made)[1] == {"pair_publisher", "pair_subscriber"}
        assert not groups_by_host(made)[0] & {"pair_publisher", "pair_subscriber"}

    def test_a_kind_of_location_and_the_handlers_of_one_location_apart(self) -> None:
        own: dict[str, Any] = {"topology": "horizontal", "base": 1, "workers": 6}
        made = plan("specjms", hosts=3, place=["SM=0,1", "DC=2", "SP=2", "HQ=2"], **own)
        assert "1.drivers" in groups_by_host(made)[0] | groups_by_host(made)[1]
        assert {"1.order", "2.pOrder", "5.statInfoSM"} <= groups_by_host(made)[2]
        made = plan("specjms", hosts=2, place=["1.orderConf=0", "1.shipInfo=1"], **own)
        assert host_of_device(made, "1.orderConf", 0) != host_of_device(made, "1.shipInfo", 0)

    def test_each_hosts_own_limits_count(self) -> None:
        scenario = build_scenario(
            "connburst", None, {"broker": "mqtt://h", "devices": 2000, "hosts": 2}
        )
        poor = dataclasses.replace(SMALL, memory_bytes=1 << 20, name="poor")
        with refused("MEMORY", where="host 'poor': ", devices=1000, workers=1, several=None):
            fit_plan(resolve(scenario), (SMALL, poor), REMOTE, 1)

    def test_ports_are_each_hosts_own(self) -> None:
        made = plan("connburst", targets=REMOTE, devices="50k", hosts=2)
        assert needs_of(made).ports_per_source_address == 25_000

    def test_source_addresses_of_each_host(self) -> None:
        def used(text: str) -> list[str | None]:
            made = plan(
                "connburst", targets=REMOTE, devices=4000, hosts=2, workers=4, source_address=text
            )
            return [worker.source_address for worker in made.workers]

        each = ["10.1.0.1", "10.2.0.1", "10.1.0.2", "10.2.0.2"]
        assert used("10.1.0.0/24,10.2.0.0/24") == each
        assert used("10.0.0.0/24") == ["10.0.0.1", "10.0.0.128", "10.0.0.2", "10.0.0.129"]
        with refused("NETWORKS", networks=3, count=2):
            used("10.1.0.0/24,10.2.0.0/24,10.3.0.0/24")

    def test_a_shared_network_stands_for_the_addresses_that_a_host_has(self) -> None:
        flags = {"broker": "mqtt://h", "devices": 100, "hosts": 2, "source_address": "10.0.0.0/8"}
        plan = resolve(build_scenario("connburst", None, flags))
        one, two = (
            dataclasses.replace(SMALL, name=name, addresses=("127.0.0.1", "fd00::1", address))
            for name, address in (("a", "10.0.0.7"), ("b", "10.9.9.9"))
        )
        made = fit_plan(plan, (one, two), REMOTE, 1)
        assert [worker.source_address for worker in made.workers] == ["10.0.0.7", "10.9.9.9"]
        with refused("NO_ADDRESS_IN", where="host 'c': "):
            fit_plan(
                plan, (one, dataclasses.replace(SMALL, name="c", addresses=("::1",))), REMOTE, 1
            )

    def test_the_fullest_host_is_what_is_needed(self) -> None:
        needs = needs_of(plan("connburst", targets=REMOTE, devices=5001, hosts=2))
        assert (needs.devices, needs.workers) == (2501, 1)


@pytest.mark.parametrize(("case", "flags", "tick_us"), rows_of("plan.pacing"))
def test_pacing(case: str, flags: dict[str, Any], tick_us: int) -> None:
    assert plan(case, **flags).send_tick_us == tick_us


class TestContents:
    def test_what_the_scenario_says(self) -> None:
        scenario = build_scenario("fanin", None, {"mqtt": "5", "seed": 9})
        made = fit_plan(resolve(scenario), SMALL, LOOPBACK, 7, username="me", password="s3cret")
        assert (made.version, made.scenario.seed, made.run_tag) == (5, 9, 7)
        assert (made.username, made.password, made.encrypted) == ("me", "s3cret", False)
        assert plan("fanin").version == 4

    def test_two_runs_do_not_share_topics(self) -> None:
        scenario = build_scenario("fanin", None, {})
        prefixes = set()
        for tag in (1, 2):
            publishes = fit_plan(resolve(scenario), SMALL, LOOPBACK, tag).groups[0].publishes
            assert publishes is not None
            prefixes.add(publishes.topic)
        assert prefixes == {"lg00000001/fanin/{topic}", "lg00000002/fanin/{topic}"}

    # Only one version has ciphers that can be chosen.
    @pytest.mark.parametrize("version", [{"tls_ciphers": "AES"}, {"tls_version": "1.2"}])
    @pytest.mark.parametrize("trust", [{"tls_ca": "ca.pem"}, {"tls_verify": False}])
    def test_tls_is_taken_along_where_a_target_is_encrypted(
        self, version: dict[str, str], trust: dict[str, Any]
    ) -> None:
        flags: dict[str, Any] = {"broker": "mqtts://h", **trust, **version}
        made = plan("fanin", targets=(Target("127.0.0.1", 8883, "tls"),), **flags)
        assert made.encrypted
        assert (made.tls.ca_file, made.tls.verify) == (trust.get("tls_ca"), "tls_ca" in trust)
        assert made.tls.version == "1.2"

    def test_a_password_alone_needs_mqtt_5(self) -> None:
        with refused("PASSWORD_WITHOUT_USER"):
            fit_plan(resolve(build_scenario("fanin", None, {})), SMALL, LOOPBACK, 1, password="x")
        five = build_scenario("fanin", None, {"mqtt": 5})
        assert fit_plan(resolve(five), SMALL, LOOPBACK, 1, password="x").password == "x"

    @pytest.mark.parametrize(
        ("size", "limit"), [("32", 1 << 16), ("61440", 1 << 16), ("61441", 1 << 17)]
    )
    def test_packets_are_bounded_by_the_payload(self, size: str, limit: int) -> None:
        assert plan("fanin", size=size).max_packet_bytes == limit


class TestDescribe:
    def test_is_plain_and_secret_free(self) -> None:
        scenario = build_scenario("latency", None, {})
        made = fit_plan(resolve(scenario), SMALL, LOOPBACK, 7, username="me", password="s3cret")
        text = json.dumps(describe(made))
        assert "s3cret" not in text
        found = json.loads(text)
        assert found["run_tag"] == "00000007"
        assert found["workers"] == 2 and len(found["shares"]) == 2
        assert found["targets"] == ["mqtt://127.0.0.1:1883"]
        assert found["groups"][0]["name"] == "background_publishers"
        assert found["shares"][0]["devices"] == {"pair_publisher": 1, "pair_subscriber": 1}
        assert found["needs"]["descriptors_per_worker"] == 1210

    @pytest.mark.parametrize(("url", "target"), rows_of("plan.target_urls"))
    def test_urls(self, url: str, target: list[Any]) -> None:
        assert target_url(Target(*target)) == url
