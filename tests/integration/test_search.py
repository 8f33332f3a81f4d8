"""Searches and rate steps with real workers, on a broker with a ceiling that is known."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from loadgen.brokers.certificates import CertificateFiles
from loadgen.cases.registry import build_scenario
from loadgen.judge.next_step import aim_for, limit_sentence, requirements
from loadgen.plan.scenario import Scenario
from loadgen.run.interrupt import Interrupt
from loadgen.run.search.search import Search, SearchState, silent_broker
from tests.instruments.relay import run_erring
from tests.instruments.runs import url_of
from tests.secured_mosquitto import TlsFiles, run_secured
from tests.testbeds import run, search

CEILING = 3_000


def fanin(**fields: object) -> Scenario:
    settings = {
        "broker": "reflector",
        "devices": 10,
        "warmup": 0.3,
        "duration": 2,
        "drain": 3,
        "settle": 0.2,
    }
    return build_scenario("fanin", None, settings | fields)


async def test_search_finds_the_ceiling_of_the_broker(tmp_path: Path) -> None:
    async with run_erring(f"ceiling={CEILING}") as broker:
        scenario = fanin(broker=url_of(broker))
        aim = aim_for(scenario, "rate", start=2_400, highest=4_000, precision=0.1)
        what = Search(scenario, aim, requirements(scenario, []), 1.5)
        result = await search(what, tmp_path / "s")
    told = [(step.tried.load, step.tried.reasons) for step in result.steps]
    assert result.limit is not None, told
    if result.limit.of_generator:
        pytest.skip("this host took the processor away: nothing is known of the ceiling")
    assert result.limit.load is not None, told
    # A shared host adds what the search itself does not: that is tested without one.
    assert CEILING / 1.25 <= result.limit.load <= CEILING * 1.1, told
    assert len(result.steps) <= 15


async def test_a_broker_that_answers_over_tls_is_not_silent(
    tls: TlsFiles, certificates: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.run.search.search._RECOVERY_S", 5)
    async with run_secured(tls=tls) as broker:
        url = broker.endpoints[0].redacted
        for more, silent in ({"tls_ca": str(certificates.authority)}, ""), ({}, url):
            assert await silent_broker(fanin(broker=url, **more), Interrupt()) == silent


def workers() -> list[psutil.Process]:
    """The worker processes of this process's runs; a worker has its row in its name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name().startswith("loadgen-"):
                found.append(process)
    return found


def hold_down(pid: int, core: int) -> None:
    """Leave the process about a fiftieth of a core that somebody else wants, too."""
    with suppress(OSError):
        os.sched_setaffinity(pid, {core})
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        # Where the kernel weighs sessions first, niceness counts within one only (sched(7)).
        Path(f"/proc/{pid}/autogroup").write_text("19")


@pytest.fixture
def spinner() -> Iterator[psutil.Popen]:
    """A process that wants all of one core while it is not stopped; it is at first."""
    process = psutil.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process.suspend()
        process.cpu_affinity([min(os.sched_getaffinity(0))])
        yield process
    finally:
        process.kill()
        process.wait()


async def test_worker_with_a_small_share_of_a_core_is_the_limit(
    tmp_path: Path, spinner: psutil.Popen
) -> None:
    scenario = fanin()
    aim = aim_for(scenario, "rate", start=2_000, highest=20_000, most_steps=3)
    what = Search(scenario, aim, requirements(scenario, []), 1.5)
    (core,) = spinner.cpu_affinity()
    squeezed: set[int] = set()

    def squeeze(state: SearchState) -> None:
        for worker in workers():
            if worker.pid not in squeezed:
                squeezed.add(worker.pid)
                hold_down(worker.pid, core)
        measuring = state.snapshot is not None and state.snapshot.phase in ("warm-up", "measure")
        (spinner.resume if measuring else spinner.suspend)()

    result = await search(what, tmp_path / "s", watch=squeeze)
    assert result.limit is not None
    assert result.limit.of_generator, [step.tried for step in result.steps]
    assert "GENERATOR_SATURATED" in {why.code for why in result.limit.reasons}
    sentence = limit_sentence(aim, result.limit)
    assert sentence.code == "LIMIT_OF_GENERATOR" or sentence.values["limit"] == "the generator"


async def test_rate_steps_are_judged_on_their_own_and_nothing_is_forgiven(tmp_path: Path) -> None:
    async with run_erring(f"ceiling={CEILING}") as broker:
        fields = {"rate": CEILING, "steps": "50%:2,150%:3,20%:4", "warmup": 0.5}
        result = await run(fanin(broker=url_of(broker), **fields), tmp_path / "run")
    first, second, third = result.steps
    assert [one.facts.schedule.target_rate for one in result.steps] == [1_500, 4_500, 600]
    assert "BACKLOG_GROWS" in second.verdict.codes
    assert "BACKLOG_GROWS" not in first.verdict.codes + third.verdict.codes
    # Every message of the whole schedule was sent and arrived, whichever step it came in.
    assert result.facts.messages.window.sent == pytest.approx(
        2 * 1_500 + 3 * 4_500 + 4 * 600, rel=0.01
    )
    assert (
        result.facts.messages.window.intact
        == result.facts.messages.window.expected
        == result.facts.messages.window.sent
    )
    assert sum(one.facts.messages.window.lost for one in result.steps) == 0
    assert (tmp_path / "run" / "run.json").exists()
