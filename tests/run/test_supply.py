"""The supply chain, played by real workers on Mosquitto, with faults on command."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import RunDirectoryError, ScenarioError
from loadgen.run.archive import write_bundle
from loadgen.run.coordinator import RunResult
from loadgen.run.seal import verify
from loadgen.specjms.messages import TYPES
from tests.instruments.runs import play_erring
from tests.needs import needs_mosquitto
from tests.refusals import refused
from tests.run_files import manifest
from tests.testbeds import run

pytestmark = needs_mosquitto


async def played(
    directory: Path, faults: str = "none", **fields: Any
) -> tuple[RunResult, dict[str, Any]]:
    usual = {"broker": "mosquitto", "base": 5}
    times = {"warmup": 0.3, "duration": 2, "drain": 20, "settle": 0.2}
    fields = {**usual, **times, **fields}
    if faults == "none":
        result = await run(build_scenario("specjms", None, fields), directory)
    else:
        result = await play_erring(directory, "specjms", faults, **fields)
    return result, json.loads((directory / "specjms.json").read_bytes())


def counts(document: dict[str, Any], *keys: str) -> dict[str, tuple[int, ...]]:
    return {row["message"]: tuple(row[key] for key in keys) for row in document["types"]}


def failed(document: dict[str, Any], test: str) -> list[str]:
    return [f["subject"] for f in document["audit"][test]["findings"] if not f["pass"]]


async def test_a_sound_run_is_what_the_formulas_say(tmp_path: Path) -> None:
    # Several workers: no account crosses from one to another.
    result, document = await played(tmp_path / "run", workers=3, drivers=2)
    known = manifest(tmp_path / "run")
    rows = counts(document, "sent", "expected", "received")
    for name, (sent, expected, received) in rows.items():
        assert expected == received >= sent > 0, name
    for row in document["types"]:
        whole = document["window_s"]
        # One interaction more or less, and the draw of z.
        assert row["sent"] == pytest.approx(row["target_sent_per_s"] * whole, abs=4), row
    for test in ("message_count", "delivery_time", "delivered"):
        assert known["audit"][test]["pass"] is True
    assert known["observed"]["specjms"]["audit"] == document["audit"]
    assert "destinations" not in known["observed"]["specjms"]
    assert {row["message"] for row in document["destinations"]} == set(TYPES)
    assert document["calls_without_all_offers"] == document["discarded"] == 0
    assert document["changed_options"] == []
    assert not {"LOST", "DUPLICATED", "OUT_OF_ORDER", "CORRUPT"} & set(result.verdict.codes)
    assert "specjms.json" in (tmp_path / "run" / "SHA256SUMS").read_text()
    assert verify(tmp_path / "run", known).state == "intact"
    archive = write_bundle(tmp_path / "run")
    with zipfile.ZipFile(archive) as jar:
        assert jar.testzip() is None
        assert {"FinalRun/specjms.json", "DriverOutput/FinalRun-events.jsonl"} <= {*jar.namelist()}
    with refused("EXISTS", RunDirectoryError):
        write_bundle(tmp_path / "run")


async def test_one_lost_offer_is_found_and_named(tmp_path: Path) -> None:
    times = {"duration": 3, "drain": 1, "report_every": 600}
    result, document = await played(tmp_path / "run", "lose=1/6,only=+/+/IncomingOffersQ", **times)
    assert result.exit_status == 1
    assert result.verdict.codes[-1] == "AUDIT"
    subjects = ["offer at DC0_IncomingOffersQ", "calls for offers"]
    assert failed(document, "delivered") == subjects
    (found, calls) = (f for f in document["audit"]["delivered"]["findings"] if not f["pass"])
    assert "missing: message" in found["observed"] and "from SP" in found["observed"]
    assert calls["subject"] == "calls for offers"
    called = counts(document, "sent")
    assert called["pOrder"][0] < called["callForOffers"][0]
    assert document["calls_without_all_offers"] >= 1
    # The verdict's own reasons are failures of the run; the audit reports its own.
    rules = {rule["rule"]: (rule["kept"], rule["observed"]) for rule in document["rules"]}
    assert "LOST" in result.verdict.codes
    codes = ", ".join(code for code in result.verdict.codes if code != "AUDIT")
    assert rules["no failures or exceptions (3.5)"] == (False, codes)
    assert rules["progress reported every 5 min (3.3)"] == (False, "600 s")
    separate = rules["broker and clients on separate machines (3.9)"]
    assert separate == (False, "broker on the client's host")


def named_of(row: dict[str, Any]) -> int:
    words = [name.split() for name in row["missing"]]
    return sum(int(w[3]) - int(w[1]) + 1 if w[0] == "messages" else 1 for w in words)


async def test_what_left_no_gap_is_named_across_workers(tmp_path: Path) -> None:
    # All of a type that causes nothing: its receiver does not know that there was any.
    result, document = await played(
        tmp_path / "run", "lose=1,only=+/+/POrderConfQ", workers=3, drain=1
    )
    assert result.facts.ending.workers_lost == ()
    (row,) = (row for row in document["destinations"] if row["message"] == "pOrderConf")
    assert row["received_in_all"] == 0
    assert named_of(row) == row["expected_in_all"] > 0
    assert row["missing_unnamed"] == 0
    assert {name.split(" from ")[0].split()[1] for name in row["missing"]} == {"0"}


async def test_the_first_exception_ends_a_run(tmp_path: Path) -> None:
    result, document = await played(
        tmp_path / "run", "drop=1/10,only=+/+/OrderQ", duration=30, on_exception="stop"
    )
    assert result.exit_status == 1
    assert "DISCONNECTED" in result.verdict.codes
    assert document["window_s"] < 29
    rules = {rule["rule"]: rule["kept"] for rule in document["rules"]}
    assert rules["no failures or exceptions (3.5)"] is False
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"cut"' in events and '"exception"' in events


async def test_devices_come_back_and_lose_nothing_that_is_persistent(tmp_path: Path) -> None:
    """Again and again a client is cut off; handlers carry on with what was under way."""
    result, document = await played(
        tmp_path / "run", "reset=400ms", duration=3, drain=10, on_exception="go_on"
    )
    assert document["window_s"] == pytest.approx(3, abs=0.01)
    # The relay goes on cutting while the run ends: the last client it cut may not be back.
    assert result.facts.connects.reconnects > 20
    assert "DISCONNECTED" not in result.verdict.codes
    lost = {
        row["message"]
        for row in document["destinations"]
        if row["expected_in_all"] != row["received_in_all"]
    }
    persistent = {row["message"] for row in document["types"] if row["qos"] > 0}
    assert not lost & persistent
    assert document["calls_without_all_offers"] == document["messages_with_unsent_effects"] == 0


def test_an_address_that_is_not_given_is_refused() -> None:
    fields = {"messages": {"order": {"endpoint": 2}}}
    with refused("ENDPOINT", endpoint=2, count=1):
        resolve(build_scenario("specjms", None, fields))
    two = {**fields, "broker": ["mqtt://a:1883", "mqtt://b:1883"]}
    groups = {group.name: group for group in resolve(build_scenario("specjms", None, two)).groups}
    assert groups["1.order"].targets == (1,)
    assert groups["1.orderConf"].targets == ()


def test_only_a_private_broker_is_killed() -> None:
    with refused("RECOVERY_OF_URL", ScenarioError):
        build_scenario("specjms", None, {"recovery": 60, "broker": "mqtt://a:1883"})
    plan = resolve(build_scenario("specjms", None, {"recovery": 60, "drain": 5}))
    assert plan.crash is not None and plan.crash.victim == "broker"
    assert plan.phases.drain_s == plan.crash.recovery_s == 60
    assert plan.reconnect is not None and not plan.phases.stops_at_exception
