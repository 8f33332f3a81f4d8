"""The five cases as groups of devices and rows of the score card."""

from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.case import MEASURES
from loadgen.cases.registry import CASES, build_scenario
from loadgen.mqtt.topics import is_wild
from loadgen.plan.addressing import deliveries_to_each, filters_of
from loadgen.plan.deliveries import direct_senders, mean_deliveries
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.scenario import Scenario, read_toml
from tests.examples import examples
from tests.fleets import groups_of
from tests.plans import small_plan, streams_received
from tests.refusals import refused
from tests.tables import rows_of

TABLES: dict[str, Any] = read_toml((Path(__file__).parent / "cases.toml").read_text())
NOTHING = {"count": 5, "publishes": None, "subscribes": None}
ALIKE = tuple(case for case in CASES if case != "specjms")
"""The cases whose groups are known here; those of a supply chain are its model's."""


def groups(case: str, **flags: object) -> dict[str, DeviceGroup]:
    return {group.name: group for group in groups_of(build_scenario(case, None, flags), "r")}


@pytest.mark.parametrize("case", ALIKE)
def test_groups_have_the_names_that_results_use(case: str) -> None:
    assert list(groups(case)) == TABLES["groups"][case]


@pytest.mark.parametrize(
    ("case", "flags", "group", "facts"),
    [*TABLES["facts"], ("connburst", {"devices": 5}, "devices", NOTHING)],
)
def test_the_groups_of_a_case(
    case: str, flags: dict[str, object], group: str, facts: dict[str, object]
) -> None:
    found = groups(case, **flags)[group]
    for name, wanted in facts.items():
        assert attrgetter(name)(found) == (tuple(wanted) if isinstance(wanted, list) else wanted)


@pytest.mark.parametrize(
    ("case", "flags", "topics", "copies"),
    [("fanin", {"devices": 1234}, 1234, 1), ("fanout", {"topics": 7, "ratio": 13}, 7, 13)],
)
def test_topics_and_deliveries_of_publishers(
    case: str, flags: dict[str, object], topics: int, copies: int
) -> None:
    found = groups(case, **flags)
    publishes = found["publishers"].publishes
    assert publishes is not None and found["publishers"].distinct(publishes.topic) == topics
    assert mean_deliveries(found["publishers"], tuple(found.values())) == copies


def test_latency_without_background() -> None:
    assert tuple(groups("latency", devices=0)) == ("pair_publisher", "pair_subscriber")


@st.composite
def small_scenarios(draw: st.DrawFn) -> Scenario:
    case = draw(st.sampled_from(["fanin", "fanout", "persistent", "latency"]))
    few = st.integers(1, 30)
    flags: dict[str, dict[str, object]] = {
        "fanin": {"devices": draw(few)},
        "fanout": {"topics": draw(few), "ratio": draw(few)},
        "persistent": {"pairs": draw(few)},
        "latency": {"devices": draw(st.integers(0, 30)), "topics": draw(few)},
    }
    return build_scenario(case, None, flags[case])


@given(small_scenarios())
@examples(100)
def test_every_message_has_exactly_its_deliveries(scenario: Scenario) -> None:
    """Streams are contiguous, and each stream is received by as many devices as it promises."""
    plan = small_plan(groups_of(scenario), targets=())
    received: dict[int, int] = {}
    for group in plan.groups:
        for device in range(group.count):
            for stream in chain.from_iterable(streams_received(plan, group, device)):
                received[stream] = received.get(stream, 0) + 1
    stream = 0
    for group in plan.groups:
        if group.publishes is not None:
            assert group.publishes.first_stream == stream
            deliveries = deliveries_to_each(plan, group)
            for device in range(group.count):
                assert received.pop(stream) == deliveries(device)
                stream += 1
    assert received == {}


@given(small_scenarios())
@examples(50)
def test_topics_of_different_groups_do_not_meet(scenario: Scenario) -> None:
    plan = small_plan(groups_of(scenario), targets=())
    owners: dict[str, str] = {}
    for group in plan.groups:
        if group.publishes is not None:
            for device in range(group.count):
                name = group.expand(group.publishes.topic, device)
                assert owners.setdefault(name, group.name) == group.name
    for group in plan.groups:
        if group.subscribes is not None:
            (sender,) = direct_senders(plan.groups, group.name)
            for one in (one for d in range(group.count) for one in filters_of(group, d)):
                assert is_wild(one) or owners[one] == sender.name


@pytest.mark.parametrize("case", ["fanin", "fanout", "persistent", "latency", "queue", "request"])
@pytest.mark.parametrize("pattern", ["plant/{group}/x{device}/t", "{group}/{topic}"])
def test_topics_of_the_user_have_the_same_deliveries(case: str, pattern: str) -> None:
    plans = [
        small_plan(groups_of(build_scenario(case, None, {"topic": topic})), targets=())
        for topic in (pattern, None)
    ]
    for group, usual in zip(*(plan.groups for plan in plans), strict=True):
        ranges = [streams_received(plans[0], group, d) for d in range(min(20, group.count))]
        assert ranges == [streams_received(plans[1], usual, d) for d in range(len(ranges))]
        topics = [] if group.publishes is None else [group.publishes.topic]
        filters = [] if group.subscribes is None else group.subscribes.filters
        assert not any("$run" in one or "loadgen" in one for one in (*topics, *filters))


@pytest.mark.parametrize(("case", "topic", "code"), rows_of("cases.topics_refused"))
def test_topics_that_a_case_cannot_have(case: str, topic: str, code: str) -> None:
    with refused(code):
        build_scenario(case, None, {"topic": topic})


FIGURES = tuple(figure for case in CASES.values() for figure in case.published)


class TestRows:
    @pytest.mark.parametrize("case", CASES)
    def test_rows_are_those_of_the_published_score_card(self, case: str) -> None:
        info = CASES[case]
        assert info.name == case and info.example.startswith(f"loadgen {case} ")
        for row in info.rows:
            assert MEASURES[row.measure].type == TABLES["types"][row.name]
            assert row.description.endswith((".", ")"))
        assert info.rows[0].name == ("jms@{Topology}" if case == "specjms" else case.upper())

    def test_every_measure_is_published_once(self) -> None:
        rows = {
            (row.name, row.measure)
            for case in CASES.values()
            for row in case.rows
            if not row.unpublished
        }
        # Of several lines of a row, such as the ratios of FANOUT.SEC, the first is the card's.
        figures = list(dict.fromkeys((figure.name, figure.measure) for figure in FIGURES))
        # Rows over JMS and MQ are published under other names than ours.
        ours = {row for row in rows if row[0] in {name for name, _ in figures}}
        secured = {(f"{name}.SEC", measure) for name, measure in ours}
        theirs = {(f.name, f.measure) for f in FIGURES if not f.relation}
        # The mean connection latency is not on the published score card, but in its key results.
        extra = {("CONNBURST", "connect_latency")}
        assert theirs - secured == ours | extra
        assert {name for name, _ in theirs & secured} == {"FANIN.SEC", "FANOUT.SEC"}
        measures = {
            row.measure
            for case in CASES.values()
            if "published" in case.scenario.fields()
            for row in case.rows
        }
        assert measures <= {measure for _, measure in figures}

    def test_published_figures_agree_with_each_other(self) -> None:
        values = {f.measure: f.value for f in FIGURES if not f.relation and ".SEC" not in f.name}
        assert values["egress_rate"] == 100 * (values["ingress_rate"] or 0)
        assert values["messages_per_rack_unit"] == (values["persistent_rate"] or 0) / 2


def test_cases_are_found_in_their_order() -> None:
    places = [case.place for case in CASES.values()]
    assert places == sorted(places) and len(set(places)) == len(places)
    assert all(CASES[name].name == name for name in CASES)
