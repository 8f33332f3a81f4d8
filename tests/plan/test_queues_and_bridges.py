"""QUEUE and BRIDGE as groups, plans and scenarios; what stands beside them in the report."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.plan.addressing import filters_of, target_number
from loadgen.plan.deliveries import mean_deliveries
from loadgen.plan.fields import Choice
from loadgen.plan.fit import SPARE_DESCRIPTORS, Host, fit_plan, needs_of
from loadgen.plan.groups import Target
from loadgen.plan.scenario import Scenario, read_toml
from tests.examples import examples
from tests.fleets import groups_of
from tests.plans import small_plan
from tests.refusals import refused

HOST = Host(cores=2, descriptors=20_000, memory_bytes=24 << 30, local_ports=28_000)
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def bridge(**flags: object) -> Scenario:
    return build_scenario("bridge", None, flags)


def targets(count: int) -> tuple[Target, ...]:
    return tuple(Target("127.0.0.1", 2000 + number) for number in range(count))


class TestQueue:
    def test_producers_send_units_and_consumers_share(self) -> None:
        scenario = build_scenario("queue", None, {"queues": 4, "consumers": 3, "batch": 50})
        producers, consumers = groups_of(scenario, "r")
        assert producers.publishes is not None and consumers.subscribes is not None
        assert (producers.count, consumers.count) == (4, 12)
        assert (producers.publishes.unit, producers.publishes.window) == (50, 50)
        assert mean_deliveries(producers, (producers, consumers)) == 1
        assert consumers.subscribes.acknowledge_every == 50
        assert not consumers.clean_start
        filters = {filters_of(consumers, device) for device in range(12)}
        assert filters == {(f"$share/consumers/r/queue/{number}",) for number in range(4)}

    def test_several_producers_of_a_queue(self) -> None:
        producers, _ = groups_of(build_scenario("queue", None, {"queues": 4, "producers": 3}))
        assert producers.publishes is not None
        assert producers.count == 12 and producers.topic_count == 4

    @given(
        st.integers(1, 12),
        st.integers(1, 9),
        st.integers(1, 3),
        st.integers(1, 20),
        st.integers(0, 60),
    )
    @examples(150)
    def test_all_consumers_of_a_queue_are_in_one_worker(
        self, queues: int, consumers: int, producers: int, workers: int, spare: int
    ) -> None:
        flags = {"queues": queues, "consumers": consumers, "producers": producers}
        scenario = build_scenario("queue", None, {**flags, "workers": workers})
        # Descriptors for the whole, or what is asked for could be refused.
        host = Host(2, SPARE_DESCRIPTORS + queues * (consumers + producers) + spare, 24 << 30, 9999)
        plan = fit_plan(resolve(scenario), host, targets(1), 7)
        where: dict[int, int] = {}
        seen: list[list[int]] = [[], []]
        for worker in plan.workers:
            assert worker.shares, "a worker without devices"
            for share in worker.shares:
                devices = range(share.start, share.stop, share.step)
                assert len(devices) > 0
                seen[share.group] += devices
                if share.group == 1:
                    for device in devices:
                        queue = plan.groups[1].topic_number(device)
                        assert where.setdefault(queue, worker.worker) == worker.worker
        assert [sorted(devices) for devices in seen] == [
            list(range(queues * producers)),
            list(range(queues * consumers)),
        ]
        assert len(plan.workers) == min(workers, queues * (producers + 1))


class TestBridge:
    @given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 40), st.integers(1, 3))
    @examples(60)
    def test_producers_and_topics_are_spread_over_backends(
        self, backends: int, topics: int, more: int, fronts: int
    ) -> None:
        devices = backends * topics + more
        scenario = bridge(
            broker=[f"mqtt://f{n}" for n in range(fronts)],
            backend=[f"mqtt://b{n}" for n in range(backends)],
            devices=devices,
            topics=topics,
            rate=1000,
        )
        assert resolve(scenario).brokers.backends == backends
        groups = groups_of(scenario, "lg0")
        plan = small_plan(groups, targets=targets(fronts + backends))
        sending = [group for group in groups if group.publishes is not None]
        consuming = [group for group in groups if group.subscribes is not None]
        assert sum(group.count for group in sending) == devices
        rates = [group.publishes.rate for group in sending if group.publishes is not None]
        assert sum(rates) == pytest.approx(1000)
        for number, group in enumerate(consuming):
            assert group.count == topics
            for device in range(group.count):
                assert target_number(plan, group, device) == fronts + number
                expected = f"loadgen/back/{number + 1}/{device}"
                assert filters_of(group, device) == (expected,)
        for group in sending:
            reached = {target_number(plan, group, device) for device in range(group.count)}
            assert reached == set(range(min(fronts, group.count)))

    def test_topics_do_not_depend_on_the_run(self) -> None:
        producers, consumers = groups_of(bridge(front_root="a/b", backend_root="c"), "lg1234")
        assert producers.publishes is not None and consumers.subscribes is not None
        assert producers.publishes.topic == "a/b/1/{topic}"
        assert consumers.subscribes.filters == ("c/1/{topic}",) == (producers.publishes.arrives_as,)

    def test_all_producers_count_against_the_ports_of_the_front(self) -> None:
        plan = fit_plan(resolve(bridge(devices=10_000, backends=3)), HOST, targets(4), 7)
        assert needs_of(plan).ports_per_source_address == 10_000
        assert {worker.source_address for worker in plan.workers} == {None}
        # The front is started here and needs descriptors of its own.
        host = replace(HOST, descriptors=40_000)
        crowded = fit_plan(resolve(bridge(devices=35_000, backends=3)), host, targets(4), 7)
        assert all(worker.source_address for worker in crowded.workers)

    def test_durable_consumers_keep_their_session(self) -> None:
        _, consumers = groups_of(bridge(qos=1, durable=True, acknowledge_every=200))
        assert not consumers.clean_start and consumers.subscribes is not None
        assert consumers.subscribes.acknowledge_every == 200
        assert groups_of(bridge())[1].clean_start


def test_persistent_with_several_producers_and_withheld_acknowledgements() -> None:
    flags = {"pairs": 4, "producers": 3, "acknowledge_every": 100}
    publishers, subscribers = groups_of(build_scenario("persistent", None, flags))
    assert publishers.publishes is not None and subscribers.subscribes is not None
    assert (publishers.count, subscribers.count, publishers.topic_count) == (12, 4, 4)
    assert subscribers.subscribes.acknowledge_every == 100
    with refused("NO_EFFECT", needed="--qos 1"):
        build_scenario("persistent", None, {**flags, "qos": 2})


CHOICES: dict[str, tuple[str, ...]] = {
    name: field.choices
    for name, case in CASES.items()
    if isinstance(field := case.scenario.fields().get("published"), Choice)
}


class TestPublished:
    def test_every_row_over_jms_and_mq_has_a_case_a_figure_and_a_relation(self) -> None:
        names = {name for names in CHOICES.values() for name in names}
        figures = {figure.name for case in CASES.values() for figure in case.published}
        relations = {f.name: f.relation for c in CASES.values() for f in c.published if f.relation}
        rows = {"JMSPUBSUB", "JMSQUEUE", "JMSPERSISTENT", "JMSFANOUT", "WMQPUBSUB", "WMQDURABLE"}
        assert rows <= names <= figures and set(relations) == rows
        # What a rendering repeats is bounded.
        assert all(len(text) <= 300 and text.isprintable() for text in relations.values())

    @pytest.mark.parametrize("name", [n for names in CHOICES.values() for n in names])
    def test_every_row_has_scenario_files(self, name: str) -> None:
        for suffix in ("", "-published"):
            path = SCENARIOS / f"{name.lower()}{suffix}.toml"
            file = read_toml(path.read_text())
            scenario = build_scenario(str(file["case"]), file, {})
            assert scenario.published in (name, None)
            assert name in CHOICES[scenario.case]
            assert scenario.size == ((100, 100) if name in LARGER else (32, 32))


LARGER = ("JMSPERSISTENT", "JMSFANOUT")
