"""Runs one after the other on one testbed: what they share, and what they must not."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.metrics.interval import CONNECT_SERIES
from loadgen.plan.scenario import Scenario
from loadgen.report.build.summary import summarize_run
from loadgen.run.coordinator import RunResult
from loadgen.run.progress import Progress, Snapshot, silent
from loadgen.run.testbed import Testbed
from tests.instruments.relay import ErringBroker, run_erring
from tests.instruments.runs import url_of
from tests.needs import needs_mosquitto
from tests.run_files import manifest
from tests.verdicts import faults

TIMES = {"warmup": 0.2, "duration": 0.6, "settle": 0.1, "drain": 1}


def fanin(broker: str, **changed: object) -> Scenario:
    fields = {"broker": broker, "devices": 50, "rate": 500, "qos": 1, **TIMES, **changed}
    return build_scenario("fanin", None, fields)


def is_kept(result: RunResult) -> bool:
    return "kept_from" in manifest(result.directory)["connect"]


class NumberedRuns(Testbed):
    """A testbed whose runs are in directories with numbers."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(**options)
        self.directory = directory
        self.played = 0

    async def play(
        self, scenario: Scenario, progress: Progress = silent, **options: Any
    ) -> RunResult:
        self.played += 1
        directory = self.directory / str(self.played)
        return await self.run(scenario, directory, progress=progress, **options)


@pytest.fixture
async def testbed(tmp_path: Path) -> AsyncIterator[NumberedRuns]:
    async with NumberedRuns(tmp_path) as testbed:
        yield testbed


@pytest.fixture
async def reflector() -> AsyncIterator[ErringBroker]:
    async with run_erring() as broker:
        yield broker


@needs_mosquitto
@pytest.mark.parametrize("secured", [{}, {"tls": True, "arrivals": "poisson", "qos": 2}])
async def test_runs_that_differ_in_their_rate_share_connections(
    testbed: NumberedRuns, secured: dict[str, Any]
) -> None:
    first = await testbed.play(fanin("mosquitto", **secured))
    second = await testbed.play(fanin("mosquitto", rate=900, **secured))
    third = await testbed.play(fanin("mosquitto", rate=200, duration=0.8, **secured))
    assert [faults(one.verdict.reasons) for one in (first, second, third)] == [(), (), ()]
    documents = [manifest(one.directory) for one in (first, second, third)]
    assert [one["connect"]["connected"] for one in documents] == [51, 51, 51]
    begun = documents[0]["id"]
    assert [one["connect"].get("kept_from") for one in documents] == [None, begun, begun]
    assert [one["subscribe"].get("kept_from") for one in documents] == [None, begun, begun]
    assert len({one["plan"]["run_tag"] for one in documents}) == 3
    assert list(documents[0]["windows"])[:2] == ["connect", "subscribe"]
    assert list(documents[1]["windows"]) == ["warmup", "measure", "drain"]
    for document, rate, seconds in zip(documents, (500, 900, 200), (0.8, 0.8, 1.0), strict=True):
        ledger = document["ledger"]["run"]
        if not secured.get("arrivals"):
            assert ledger["sent"] == pytest.approx(rate * seconds, abs=2)
        assert ledger["sent"] == ledger["acknowledged"] == ledger["expected"] == ledger["intact"]
        assert document["ledger"]["proven"]
    card = summarize_run(second.directory)
    assert (card.connect.connected, card.connect.seconds, card.counts.connects) == (51, None, 0)
    assert not set(card.latency).intersection(CONNECT_SERIES)


async def test_a_step_whose_verdict_is_certain_lends_its_connections(
    testbed: NumberedRuns, reflector: ErringBroker
) -> None:
    url = url_of(reflector)
    for rate in (500, 900):
        step = await testbed.play(fanin(url, rate=rate, duration=60), ends_when_certain=(True,))
        assert faults(step.verdict.reasons) == ()
        assert 1 <= step.facts.window_s < 20
    whole = await testbed.play(fanin(url, rate=700))
    assert is_kept(step) and is_kept(whole)
    assert faults(whole.verdict.reasons) == ()
    # The schedule of a step that was cut reaches into the next one's time, and sends nothing there.
    ledger = manifest(whole.directory)["ledger"]["run"]
    assert ledger["sent"] == pytest.approx(700 * 0.8, abs=2)


async def test_what_differs_in_more_than_rates_is_connected_anew(
    testbed: NumberedRuns, reflector: ErringBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(reflector)
    await testbed.play(fanin(url))
    told: list[str] = []
    paced = await testbed.play(fanin(url, connect_rate=2000), lambda seen: told.append(seen.phase))
    assert told[0] == "leave" and "broker" in told
    monkeypatch.setenv("TESTED_OTHER_USER", "tested-user-2")
    other_user = await testbed.play(fanin(url, connect_rate=2000, user="env:TESTED_OTHER_USER"))
    larger = await testbed.play(fanin(url, size=100))
    await reflector.drop_connections(1)
    await asyncio.sleep(0.3)
    after_loss = await testbed.play(fanin(url, size=100, rate=600))
    last = testbed._last
    assert last is not None
    os.kill(last.pool.pids[0], signal.SIGKILL)
    await last.pool.lost.wait()
    after_death = await testbed.play(fanin(url, size=100, rate=700))
    for result in (paced, other_user, larger, after_loss, after_death):
        assert not is_kept(result)
        assert faults(result.verdict.reasons) == ()


async def test_slow_readers_are_connected_anew(
    testbed: NumberedRuns, reflector: ErringBroker
) -> None:
    what = {"ratio": 5, "slow_subscribers": 1, "read_rate": 1000, "rate": 20, "qos": 1, **TIMES}
    scenario = build_scenario("fanout", None, {"broker": url_of(reflector), **what})
    for _ in range(2):
        result = await testbed.play(scenario)
        assert faults(result.verdict.reasons) == ()
        ledger = manifest(result.directory)["ledger"]["run"]
        assert ledger["intact"] == ledger["expected"]
        assert not is_kept(result)


async def test_run_after_one_that_went_wrong_is_connected_anew(
    testbed: NumberedRuns, reflector: ErringBroker
) -> None:
    url = url_of(reflector)
    for wrong in ("lose=1/20", "repeat=1/20"):
        await reflector.set_faults(wrong)
        bad = await testbed.play(fanin(url, qos=0))
        assert faults(bad.verdict.reasons)
        assert not is_kept(bad)
    await reflector.set_faults("none")
    good = await testbed.play(fanin(url, qos=0, rate=600))
    again = await testbed.play(fanin(url, qos=0, rate=700))
    assert [is_kept(good), is_kept(again)] == [False, True]
    assert [faults(one.verdict.reasons) for one in (good, again)] == [(), ()]


async def test_interrupted_run_on_kept_connections_has_its_results(
    testbed: NumberedRuns, reflector: ErringBroker
) -> None:
    await testbed.play(fanin(url_of(reflector)))

    def stop(snapshot: Snapshot) -> None:
        if snapshot.phase == "measure":
            testbed.interrupt.asked.set()

    long = fanin(url_of(reflector), rate=1000, duration=60)
    cut = await testbed.play(long, progress=stop)
    assert (cut.exit_status, cut.measured, is_kept(cut)) == (130, True, True)
    ledger = manifest(cut.directory)["ledger"]["run"]
    assert 0 < ledger["sent"] == ledger["intact"]


async def test_who_insists_does_not_wait_for_a_worker_that_hangs(
    tmp_path: Path, reflector: ErringBroker
) -> None:
    async with NumberedRuns(tmp_path) as testbed:
        await testbed.play(fanin(url_of(reflector)))
        last = testbed._last
        assert last is not None
        (worker,) = last.pool.pids
        os.kill(worker, signal.SIGSTOP)
        testbed.interrupt.request()
        testbed.interrupt.request()
        async with asyncio.timeout(5):  # a worker has ten seconds to disconnect
            await testbed.reset()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


async def test_broker_of_the_testbed_is_for_scenarios_that_name_none(
    tmp_path: Path, reflector: ErringBroker
) -> None:
    fields = {"devices": 5, "rate": 50, **TIMES}
    async with NumberedRuns(tmp_path, broker="reflector") as testbed:
        unnamed = await testbed.play(build_scenario("fanin", None, fields))
        named = await testbed.play(
            build_scenario("fanin", None, {**fields, "broker": url_of(reflector)})
        )
    brokers = [manifest(result.directory)["broker"] for result in (unnamed, named)]
    assert [broker["started_by_us"] for broker in brokers] == [True, False]
