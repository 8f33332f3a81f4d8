"""RUN: groups of a file, what is refused of them, and the public suites as such files."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.case import Evidence
from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import ScenarioError
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.deliveries import delivered_rate
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes
from loadgen.plan.scenario import read_toml, toml_lines
from loadgen.plan.stages import Stage
from tests.tables import table

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TABLES: dict[str, Any] = read_toml((Path(__file__).parent / "groups.toml").read_text())


def groups_of(*tables: dict[str, Any], **fields: Any) -> tuple[DeviceGroup, ...]:
    return resolve(build_scenario("run", {"group": list(tables)}, fields)).groups


def sender(**keys: Any) -> dict[str, Any]:
    return {"name": "senders", "count": 4, "topic": "a/{device}"} | keys


def reader(*filters: str, **keys: Any) -> dict[str, Any]:
    return {"name": "readers", "count": 2, "subscribe": list(filters)} | keys


def test_each_key_has_its_place_in_a_group() -> None:
    both, plain, idle = groups_of(
        sender(**table("cases")["every_key"]),
        reader("senders/#", acknowledge_every=9, mqtt="3.1"),
        {"count": 3},
        keep_alive=45,
        qos=1,
        arrivals="poisson",
    )
    assert both == DeviceGroup(
        "senders",
        1000,
        Publishes(
            *("senders/{topic}/d{device}", 2000.0, 1, True, (64, 100), "poisson", 7),
            payload="body.json",
            messages=9,
            expiry_s=30,
            user_properties=(("site", "north"),),
        ),
        Subscribes(("x/senders/+",), 2),
        topics=5,
        clean_start=False,
        session_expiry_s=600,
        keep_alive_s=20,
        version=5,
        clients_file="clients.csv",
        will="gone/{device}",
        stages=(Stage(0, 10), Stage(2, 1000, 1)),
    )
    assert plain.subscribes == Subscribes(("senders/#",), 1, 9) and plain.keep_alive_s == 45
    assert plain.version == 3
    assert idle == DeviceGroup("group3", 3, keep_alive_s=45, version=4)


def test_rates_are_one_a_second_for_each_device_and_scale_together() -> None:
    tables = sender(), sender(name="fast", topic="b/{device}", rate=36), reader("#")
    rates = [group.publishes.rate for group in groups_of(*tables) if group.publishes]
    scaled = [group.publishes.rate for group in groups_of(*tables, rate=400) if group.publishes]
    assert rates == [4, 36] and scaled == [40, 360]


def test_a_scenario_is_read_from_what_it_writes() -> None:
    scenario = build_scenario("run", {"group": [sender(size="40-50"), reader("a/+")]}, {"qos": 1})
    again = build_scenario("run", read_toml(toml_lines(scenario.plain())), {})
    assert again.group == scenario.group and resolve(again).groups == resolve(scenario).groups


def test_needs_of_the_broker_are_those_of_the_groups() -> None:
    tables = sender(qos=2, size=5000), reader("$share/s/a/+")
    needs = resolve(build_scenario("run", {"group": list(tables)}, {"mqtt": "5"})).needs
    assert (needs.qos, needs.payload_bytes) == (2, 5000) and needs.wildcards and needs.shared


@pytest.mark.parametrize(("tables", "fields", "code"), TABLES["refused"])
def test_refusals_are_one_line(tables: list[Any], fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        resolve(build_scenario("run", {"group": tables}, fields))
    of_group = refused.value.values.get("fault")
    assert getattr(of_group, "code", refused.value.code) == code
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(("stem", "devices", "sent", "delivered"), TABLES["suites"])
def test_public_suites_have_their_connections_and_rates(
    stem: str, devices: int, sent: float, delivered: float
) -> None:
    text = (SCENARIOS / f"{stem}.toml").read_text("utf-8")
    keys = read_toml(text)
    plan = resolve(build_scenario(str(keys["case"]), keys, {}))
    assert sum(group.count for group in plan.groups) == devices
    rates = [group.publishes.rate for group in plan.groups if group.publishes is not None]
    assert sum(rates) == pytest.approx(sent)
    assert delivered_rate(plan.groups) == pytest.approx(delivered, rel=1e-3)
    assert stem == "run" or "# Source: " in text


def test_results_have_a_line_for_each_group() -> None:
    plan = resolve(build_scenario("run", {"group": [sender(), reader("a/+")]}, {}))

    class Counts:
        def total(self, group: str, name: str, phase: str | None = None) -> int:
            counts = {("senders", "sent"): 40, ("readers", "received"): 80}
            return counts.get((group, name), 0) if phase == "measure" else 0

    evidence: Any = Evidence(
        plan=plan,
        facts=_Facts(),  # type: ignore[arg-type]
        finals={},
        windows={"measure": (10, 30)},
        counts=Counts(),
        course=lambda name, group: [(0, 20, 8), (20, 40, 12)] if group == "senders" else [],
    )
    late = CASES["run"].review(evidence).conclude(Verdict((Reason("RATE_MISSED", ""),))).observed
    # Of the messages that were due in the window, only those that were sent in it.
    assert late is not None and [one["sent_rate"] for one in late["groups"]] == [5, 0]
    observed = CASES["run"].review(evidence).conclude(Verdict(())).observed
    assert observed is not None
    assert [
        (one["group"], one["devices"], one["sent_rate"], one["received_rate"], one["p99_us"])
        for one in observed["groups"]
    ] == [("senders", 4, 20, 0, None), ("readers", 2, 0, 40, None)]
    (table,) = CASES["run"].tables(observed)
    assert [row[:4] for row in table.rows] == [("senders", 4, 20, 0), ("readers", 2, 0, 40)]


class _Facts:
    window_s = 2.0
