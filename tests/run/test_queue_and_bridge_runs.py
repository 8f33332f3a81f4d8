"""QUEUE and BRIDGE played against real Mosquittos, small."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.brokers.front import bridge_lines
from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.process import ProgramSettings
from loadgen.cases.registry import build_scenario
from loadgen.plan.plan import Bridge
from loadgen.plan.scenario import Scenario
from loadgen.report.build.summary import summarize_run
from loadgen.run.hosts import load_host
from loadgen.run.progress import Snapshot
from loadgen.run.testbed import Testbed
from tests.needs import needs_mosquitto
from tests.refusals import refused
from tests.run_files import manifest
from tests.testbeds import run
from tests.verdicts import faults

TIMES = {"warmup": 0.2, "duration": 1.2, "settle": 0.2}
QUEUE = {"queues": 3, "consumers": 2, "rate": 900, "batch": 1000, **TIMES}
BRIDGE = {"devices": 40, "rate": 400, "topics": 2, **TIMES}


def queue(**changed: object) -> Scenario:
    return build_scenario("queue", None, {**QUEUE, **changed})


def bridge(**changed: object) -> Scenario:
    return build_scenario("bridge", None, {**BRIDGE, **changed})


def observed(directory: Path) -> dict[str, Any]:
    seen: dict[str, Any] = manifest(directory)["observed"]
    return seen


@needs_mosquitto
async def test_consumer_that_is_cut_off_gets_what_it_held_again(tmp_path: Path) -> None:
    result = await run(queue(broker="mosquitto", crash_consumer=True, workers=2), tmp_path / "run")
    assert not faults(result.verdict.reasons)
    facts = result.facts
    assert facts.messages.window.expected == facts.messages.window.intact > 1000
    assert facts.connects.disconnects == facts.connects.reconnects == 1
    seen = observed(tmp_path / "run")["queue"]
    assert seen["cut_off"]["consumer"] == 3
    # At least once: what was not acknowledged comes again, and what the broker had not yet read.
    again = facts.messages.run.repeated + facts.messages.run.repeated_allowed
    assert again >= seen["cut_off"]["held"] > 0
    spread = seen["spread"]
    assert spread["consumers"] == 6 and spread["received"] == facts.messages.window.intact
    assert [one["queue"] for one in spread["queues"]] == [0, 1, 2]
    card = summarize_run(tmp_path / "run")
    (rate, fewest) = [row for row in card.rows if row.name == "QUEUE"]
    assert rate.value == card.rates["egress"]
    if result.verdict.valid:  # else the rate is that of the full seconds, which may be a burst
        assert rate.value == pytest.approx(900, rel=0.02)
    assert (fewest.value, fewest.max) == (spread["min"], spread["max"])
    assert "3 was cut off" in next(s.note for s in card.sections if "consumers" in s.title)


@needs_mosquitto
async def test_private_bridge_with_durable_consumers(tmp_path: Path) -> None:
    scenario = bridge(backends=2, qos=1, durable=True, acknowledge_every=50)
    result = await run(scenario, tmp_path / "run")
    assert not faults(result.verdict.reasons)
    assert (
        result.facts.messages.window.expected
        == result.facts.messages.window.intact
        == result.facts.messages.window.sent
    )
    seen = observed(tmp_path / "run")["bridge"]
    assert seen["limit"]["side"] in ("none", "generator") and 0 <= seen["front_busy_share"] <= 1
    assert [one["number"] for one in seen["backends"]] == [1, 2]
    for one in seen["backends"]:
        assert one["expected"] == one["received"] == pytest.approx(240, abs=20)
        assert one["rate"] == pytest.approx(200, rel=0.1)
        assert 0 <= one["busy_share"] <= 1 and one["high_water_mark"] >= 0
    card = summarize_run(tmp_path / "run")
    rates = [row for row in card.rows if row.name == "BRIDGE" and row.unit == "msgs/sec"]
    assert [row.value for row in rates[1:]] == [one["rate"] for one in seen["backends"]]
    assert "durable consumers" in rates[0].description


@needs_mosquitto
async def test_a_run_with_another_backend_is_connected_anew(tmp_path: Path) -> None:
    async with Testbed() as testbed:
        for backends in (1, 2):
            scenario = bridge(broker="mosquitto", backends=backends)
            result = await testbed.run(scenario, tmp_path / str(backends))
            assert result.facts.messages.run.lost == 0
            assert len(observed(tmp_path / str(backends))["bridge"]["backends"]) == backends


@needs_mosquitto
async def test_backend_that_goes_away_is_named(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        settings = ProgramSettings(memory_limit_bytes=1 << 28)
        behind = [await stack.enter_async_context(run_mosquitto(settings)) for _ in range(2)]
        backends = [one.endpoints[0] for one in behind]
        lines = bridge_lines(Bridge(2, (), 2, "loadgen/front", "loadgen/back", 0, False), backends)
        front = await stack.enter_async_context(run_mosquitto(replace(settings, more_lines=lines)))

        scenario = bridge(
            broker=front.endpoints[0].redacted,
            backend=[endpoint.redacted for endpoint in backends],
            duration=2.5,
            drain=0.3,
        )

        def kill(snapshot: Snapshot) -> None:
            """Kill a backend once messages arrive in the window, however late that is."""
            if snapshot.phase == "measure" and snapshot.received_per_s and not killed:
                killed.append(True)
                behind[1].kill()

        killed: list[bool] = []
        result = await run(scenario, tmp_path / "run", progress=kill)
        assert result.exit_status == 1
        reasons = {reason.code: reason.values for reason in result.verdict.reasons}
        assert {"DISCONNECTED", "LOST"} <= set(reasons)
        gone = f"backend 2 ({backends[1].redacted})"
        assert reasons["DISCONNECTED"]["backends"] == (f"2 at {gone}",)
        (named,) = reasons["LOST"]["backends"]
        assert named.endswith(f" at {gone}")
        limit = observed(tmp_path / "run")["bridge"]["limit"]
        # A busy host can make the generator the limit, too.
        if "GENERATOR_SATURATED" not in reasons:
            assert limit["side"] == "backend" and gone in limit["detail"]

        with refused("NOT_RUNNING", where=backends[1].redacted):
            await run(scenario, tmp_path / "again")
        assert not (tmp_path / "again").exists()


@needs_mosquitto
async def test_receive_maximum_bounds_the_batch_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 1,000 never fills where the broker sends 5 ahead: nothing more would come."""
    settings = ProgramSettings(more_lines=("max_inflight_messages 5",))
    async with run_mosquitto(settings) as broker:
        scenario = queue(broker=broker.endpoints[0].redacted, drain=1)
        monkeypatch.setattr(load_host, "WORKER_ENTRY", "tests.run.patient_worker:run_worker")
        result = await run(scenario, tmp_path / "run")
    assert not faults(result.verdict.reasons)
