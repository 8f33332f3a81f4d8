"""Groups of devices at Mosquitto, counted by a subscriber that is not ours.

MIXES="$(seq 60)" pytest tests/integration/test_group_runs.py -k random    plays these seeds.
"""

import json
import os
import sys
from asyncio import create_subprocess_exec
from collections import Counter
from pathlib import Path

import aiomqtt
import pyarrow.parquet as pq
import pytest

from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import ScenarioError
from loadgen.report.build.summary import summarize_run
from tests.instruments.delivery_rules import Mix
from tests.integration.listener import HANG_S, listening
from tests.needs import needs_mosquitto
from tests.plan.test_deliveries import some_mix
from tests.run_files import manifest
from tests.tables import DATA, table
from tests.testbeds import run
from tests.verdicts import faults

JSON = '{"sensor": {device:2}, "header": "{loadgen}", "celsius": 2{random:1}}'


@needs_mosquitto
async def test_the_ledger_of_a_mix_is_what_another_subscriber_counts(tmp_path: Path) -> None:
    (tmp_path / "reading.json").write_text(JSON)
    mix = Mix(table("mix")["group"], qos=1)
    assert not mix.is_open() and len({one.topic for one in mix.publications}) == 37
    async with run_mosquitto() as broker:
        endpoint = broker.endpoints[0]
        async with listening(endpoint) as heard:
            words = ("run", str(DATA / "mix.toml"), f"--broker={endpoint.redacted}", "--out=run")
            command = (sys.executable, "-m", "loadgen", *words, "--quiet")
            await (await create_subprocess_exec(*command, cwd=tmp_path)).wait()
        # Each late subscriber gets what is retained, and nothing else.
        late: Counter[str] = Counter()
        async with aiomqtt.Client(endpoint.host, endpoint.port, timeout=HANG_S) as client:
            for one in ("#", "status/machines/3", "hall/#"):
                await client.subscribe(one, qos=1)
            await client.publish("end", qos=1)
            async for message in client.messages:
                if str(message.topic) == "end":
                    break
                late[str(message.topic)] += 1
    assert late.total() == mix.retained_for("#", "status/machines/3", "hall/#") == 6
    sent = Counter(topic for topic, _ in heard)
    for topic, payload in heard:
        if topic.startswith("plant/"):
            assert json.loads(payload)["sensor"] == int(topic.split("/")[1])
    ledger = manifest(tmp_path / "run")["ledger"]["run"]
    expected = mix.deliveries(lambda one: sent[one.topic])
    assert sent.total() == ledger["sent"] > 300 and len(sent) == 37
    assert (ledger["expected"],) * 2 == (ledger["intact"],) * 2 == expected.total
    assert not any(ledger[name] for name in ("lost", "repeated", "misrouted", "foreign", "damaged"))


@needs_mosquitto
@pytest.mark.parametrize("seed", os.environ.get("MIXES", "16 75 92").split())
async def test_random_groups_receive_what_the_rules_say(tmp_path: Path, seed: str) -> None:
    (file := tmp_path / "reading.json").write_text(JSON)
    groups = some_mix(int(seed))
    for group in groups:
        group.pop("stages", None)
        if "topic" in group:
            group["payload_template"] = str(file)
    fields = {"mqtt": "5", "rate": 150, "warmup": 0.2, "duration": 0.8, "per_device": True}
    try:
        resolve(build_scenario("run", {"group": groups}, fields))
    except ScenarioError as error:
        pytest.skip(f"refused: {error.code}")
    async with run_mosquitto() as broker, listening(broker.endpoints[0]) as heard:
        where = {"broker": broker.endpoints[0].redacted}
        await run(build_scenario("run", {"group": groups}, fields | where), tmp_path / "run")
    mix, found = Mix(groups), pq.read_table(tmp_path / "run" / "devices").to_pylist()
    sent = {(row["group"], row["device"]): row["sent"] for row in found}
    topics = [one.topic for one in mix.publications for _ in range(sent[one.sender])]
    assert Counter(topics) == Counter(topic for topic, _ in heard)
    expected = mix.deliveries(lambda one: sent[one.sender])
    ledger = manifest(tmp_path / "run")["ledger"]["run"]
    assert (ledger["expected"],) * 2 == (ledger["intact"],) * 2 == expected.total
    # Which device gets a shared message is open, and its row is empty.
    for row in found:
        device = row["group"], row["device"]
        if (count := row["received"]) is not None:
            assert expected.fewest[device] <= count <= expected.most[device]


@needs_mosquitto
@pytest.mark.parametrize(("name", "count", "least"), [("storm", 20, 290), ("retained", 2, 100)])
async def test_devices_that_come_later_have_their_times(
    tmp_path: Path, name: str, count: int, least: int
) -> None:
    scenario = build_scenario("run", table(name), {})
    result = await run(scenario, tmp_path / "run")
    assert not faults(result.verdict.reasons), result.verdict
    document = manifest(tmp_path / "run")
    (seen,) = document["observed"]["run"]["returns"]
    assert (seen["group"], seen["returned"]) == ("sleepers", count)
    # All messages: in a storm, of half a second of warm-up and one of the window.
    ledger = document["ledger"]["run"]
    assert seen["stored"] == ledger["intact"] == ledger["expected"] >= least
    assert 0 < seen["back_seconds"] <= seen["catch_up_seconds"] < 0.8
    assert seen["catch_up_rate"] == seen["stored"] / seen["catch_up_seconds"]
    shown = {row.name: row.value for row in summarize_run(tmp_path / "run").rows}
    figures = (seen["back_seconds"], seen["catch_up_seconds"])
    assert (shown["RUN.RETURN"], shown["RUN.CATCHUP"]) == figures
