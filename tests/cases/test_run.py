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
from loadgen.plan.scenario import read_toml, to_toml
from loadgen.plan.stages import Stage

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def groups_of(*tables: dict[str, Any], **fields: Any) -> tuple[DeviceGroup, ...]:
    return resolve(build_scenario("run", {"group": list(tables)}, fields)).groups


def sender(**keys: Any) -> dict[str, Any]:
    return {"name": "senders", "count": 4, "topic": "a/{device}"} | keys


def reader(*filters: str, **keys: Any) -> dict[str, Any]:
    return {"name": "readers", "count": 2, "subscribe": list(filters)} | keys


def test_each_key_has_its_place_in_a_group() -> None:
    both, plain, idle = groups_of(
        sender(
            count="1k",
            topics=5,
            topic="{group}/{topic}/d{device}",
            rate="2k",
            qos=1,
            size="64-100",
            retain=True,
            max_unacknowledged=7,
            subscribe="x/{group}/+",
            subscribe_qos=2,
            clean=False,
            keep_alive="20s",
            session_expiry="10m",
            mqtt="5",
            clients_file="clients.csv",
            will="gone/{device}",
            payload="body.json",
            expiry=30,
            user_properties={"site": "north"},
            stages=[{"at": 0, "devices": 10}, {"at": "2s", "devices": "1k", "over": 1}],
        ),
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


def staged(table: dict[str, Any], *moments: float) -> dict[str, Any]:
    return table | {"stages": [{"at": at, "devices": 2} for at in moments]}


def test_rates_are_one_a_second_for_each_device_and_scale_together() -> None:
    tables = sender(), sender(name="fast", topic="b/{device}", rate=36), reader("#")
    rates = [group.publishes.rate for group in groups_of(*tables) if group.publishes]
    scaled = [group.publishes.rate for group in groups_of(*tables, rate=400) if group.publishes]
    assert rates == [4, 36] and scaled == [40, 360]


def test_a_scenario_is_read_from_what_it_writes() -> None:
    scenario = build_scenario("run", {"group": [sender(size="40-50"), reader("a/+")]}, {"qos": 1})
    again = build_scenario("run", read_toml(to_toml(scenario)), {})
    assert again.group == scenario.group and resolve(again).groups == resolve(scenario).groups


def test_needs_of_the_broker_are_those_of_the_groups() -> None:
    tables = sender(qos=2, size=5000), reader("$share/s/a/+")
    needs = resolve(build_scenario("run", {"group": list(tables)}, {"mqtt": "5"})).needs
    assert (needs.qos, needs.payload_bytes) == (2, 5000) and needs.wildcards and needs.shared


@pytest.mark.parametrize(
    ("tables", "fields", "code"),
    [
        ([], {}, "VALUE"),
        (["x"], {}, "NOT_A_TABLE"),
        ([sender(rat=1)], {}, "UNKNOWN_LINE"),
        ([sender(rate=0)], {}, "VALUE"),
        ([sender(name="a b")], {}, "GROUP_NAME"),
        ([{"topic": "a"}], {}, "NO_COUNT"),
        ([sender(), sender()], {}, "GROUP_TWICE"),
        ([reader("a")], {}, "NO_TOPIC"),
        ([sender(), reader("a", size=40)], {}, "NO_EFFECT"),
        ([sender(subscribe_qos=1)], {}, "NO_EFFECT"),
        ([sender(topics=3)], {}, "TOPICS_NO_EFFECT"),
        ([sender(topic="a/+")], {}, "TOPIC"),
        ([sender(topic="$SYS/x")], {}, "TOPIC"),
        ([sender(topic="a/{number}")], {}, "TOPIC"),
        ([sender(topic="a/1{device}")], {}, "TOPIC"),
        ([sender(topic="{device}-{topic}")], {}, "TOPIC"),
        ([sender(), reader("a/#/b")], {}, "FILTER"),
        ([sender(), reader("$share/s/a/+")], {}, "SHARED_FILTER"),
        ([sender(), reader("a/+", "a/1")], {}, "OVERLAP"),
        ([sender(retain=True)], {"reconnect": 1}, "RETAINED_AGAIN"),
        ([sender(size=40)], {"payload": "file"}, "SIZE_OF_PAYLOAD"),
        ([sender(payload="a", payload_template="b")], {}, "TWO_PAYLOADS"),
        ([sender(expiry=5)], {}, "ONLY_MQTT_5"),
        ([sender(user_properties=5, mqtt="5")], {}, "VALUE"),
        ([sender(session_expiry=5, mqtt="5")], {}, "NO_EFFECT"),
        ([sender(password="secret")], {}, "VALUE"),
        ([sender(will="a/#")], {}, "WILL_TOPIC"),
        (
            [sender(), reader("a/+", mqtt="3.1.1")],
            {"mqtt": "5", "header": "property"},
            "HEADER_PROPERTY",
        ),
        ([staged(sender(), 1)], {}, "STAGES"),
        ([staged(sender(), 0, 0)], {}, "STAGES"),
        ([staged(sender(count=1), 0)], {}, "STAGES"),
        ([staged(sender(), 0)], {"steps": "50%,100%"}, "STAGES_STEPS"),
        ([sender(qos=1), staged(reader("a/+", qos=1), 0)], {}, "STAGES_NOT_STORED"),
        ([sender(), staged(reader("a/+", qos=1, clean=False), 0)], {}, "STAGES_NOT_STORED"),
        (
            [sender(qos=1, expiry=5), staged(reader("a/+", qos=1, clean=False), 0)],
            {"mqtt": "5"},
            "STAGES_NOT_STORED",
        ),
        (
            [sender(), reader("$share/s/a/+"), reader("$share/s/a/+", name="others")],
            {"mqtt": "5"},
            "SHARED_BY_GROUPS",
        ),
    ],
)
def test_refusals_are_one_line(tables: list[Any], fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        resolve(build_scenario("run", {"group": tables}, fields))
    of_group = refused.value.values.get("fault")
    assert getattr(of_group, "code", refused.value.code) == code
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("stem", "devices", "sent", "delivered"),
    [
        ("run", 1_314, 1_300, 1_000 * 10.3 + 300 * (10 / 3 + 1)),
        ("mqttbs-conn-10k", 10_000, 0, 0),
        ("mqttbs-conn-1m", 1_000_000, 0, 0),
        ("mqttbs-fanout-1-1k", 1_001, 1, 1_000),
        ("mqttbs-fanout-5-1000", 1_005, 250, 250_000),
        ("mqttbs-p2p-1k", 2_000, 1_000, 1_000),
        ("mqttbs-p2p-50k", 100_000, 50_000, 50_000),
        ("mqttbs-sharedsub-1k-5", 1_005, 1_000, 1_000),
        ("mqttbs-sharedsub-50k-500", 50_500, 50_000, 50_000),
        ("emqx-2m", 1_020, 2_000, 2_000_000),
        ("emqx-10m", 10_001_050, 5_000, 1_000_000),
        ("emqx-mysql", 100_000, 100_000, 0),
        ("tbmq-3m", 3_100, 1_000, 3_000_000),
        ("tbmq-p2p-1m", 1_000_000, 500_000, 500_000),
        ("tbmq-100m", 100_000_500, 3_000_000, 3_000_000),
        ("rabbit-100k", 200_000, 833.4, 833.4),
        ("rabbit-3m", 3_000_000, 8_333.4, 8_333.4),
        ("flashmq", 1_000, 25_000, 25_000),
        ("bifromq-shared", 40_400, 40_000, 40_000),
        ("bifromq-262", 10_035_390, 1_260_000, 1_260_000),
    ],
)
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
        counts=Counts(),  # type: ignore[arg-type]
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
