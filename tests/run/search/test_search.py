import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from loadgen import errors
from loadgen.cases.registry import build_scenario
from loadgen.judge.facts import RunFacts
from loadgen.judge.next_step import CONFIRMS, Probe, Require, aim_for, requirements
from loadgen.plan.scenario import Scenario
from loadgen.run.interrupt import RunInterruptedError
from loadgen.run.rundir import exclusive
from loadgen.run.search import search as play
from loadgen.run.search.search import (
    CONFIRMATIONS,
    Search,
    SearchState,
    SearchStep,
    journal_of,
    served_load,
    step_scenario,
)
from loadgen.run.testbed import Testbed
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.ledgers import facts_with
from tests.refusals import refused
from tests.run.search.fake_runs import FakeRuns
from tests.testbeds import search

NS = 1_000_000_000
SECRET = "correct-horse"


def wanted(**changed: Any) -> Search:
    return wanted_at(f"mqtt://me:{SECRET}@127.0.0.1:1", **changed)


def wanted_at(url: str, **changed: Any) -> Search:
    scenario = build_scenario("fanin", None, {"broker": url, "duration": 10})
    return Search(scenario, aim_for(scenario, "rate", **changed), requirements(scenario, []))


def facts_at(rate: float, ceiling: float, window_s: float = 10.0) -> RunFacts:
    """Return a run at this rate on a broker that serves `ceiling` a second and queues the rest."""
    over = max(0.0, rate - ceiling)
    seconds = range(int(window_s))
    return facts_with(
        window_s=window_s,
        target_rate=rate,
        sent=round(rate * window_s),
        expected=round(rate * window_s),
        received=round(rate * window_s),
        backlog=tuple((second * NS, 0, round(second * over)) for second in seconds),
        latency_p99_us=1000 * (1 + over * window_s),
        latency_bound_us=100_000,
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    fake.judged = lambda scenario: facts_at(scenario.rate or 0, 10_000, scenario.duration)
    fake.says = None
    monkeypatch.setattr(Testbed, "run", fake.run)
    return fake


def windows(steps: Sequence[SearchStep]) -> int:
    """Return the number of runs of these steps: a confirmation that holds has several."""
    return len(whole_windows(steps))


def whole_windows(steps: Sequence[SearchStep]) -> list[bool]:
    """Return for each run of these steps whether its window is whole."""
    whole: list[bool] = []
    for tried in (step.tried for step in steps):
        confirms = tried.purpose in CONFIRMS
        whole += [confirms] * (CONFIRMATIONS if confirms and tried.valid else 1)
    return whole


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


async def test_finds_the_ceiling_and_leaves_it_in_the_directory(
    runs: FakeRuns, tmp_path: Path
) -> None:
    states: list[SearchState] = []
    result = await search(wanted(), tmp_path / "s", watch=states.append)
    assert result.exit_status == 0
    assert result.limit is not None and result.limit.load is not None
    assert result.best is not None
    assert 10_000 / 1.05 <= result.limit.load <= 10_100
    document = json.loads((tmp_path / "s" / "search.json").read_text())
    assert document["limit"]["load"] == result.limit.load
    assert document["limit"]["own"] is False
    assert document["limit"]["run"] == result.best.run
    codes = {why["code"] for why in document["limit"]["reasons"]}
    assert codes <= {"BACKLOG_GROWS", "LATENCY_BOUND"}
    assert len(lines(tmp_path / "s")) == len(result.steps)
    assert journal_of(tmp_path / "s").entries() == result.steps
    assert all((tmp_path / "s" / str(step.run)).is_dir() for step in result.steps)
    assert SECRET not in "".join(p.read_text() for p in (tmp_path / "s").glob("*.json*"))
    assert states[-1].limit == result.limit
    assert result.best.tried.purpose == "confirm"
    assert runs.whole == whole_windows(result.steps)
    assert any(state.snapshot is not None for state in states)
    assert states[-1].bracket == (result.limit.load, result.limit.above)


async def test_what_was_found_is_written_before_devices_disconnect(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_the_broker(*_: object) -> None:
        raise errors.BrokerUnreachableError("gone")

    monkeypatch.setattr(Testbed, "__aexit__", lose_the_broker)
    with pytest.raises(errors.BrokerUnreachableError):
        await search(wanted(), tmp_path / "s")
    assert json.loads((tmp_path / "s" / "search.json").read_text())["limit"]["ended"] == "confirmed"


@pytest.mark.parametrize("broken_at", [1, 4, 7])
async def test_search_that_broke_off_goes_on_where_it_stopped(
    runs: FakeRuns, tmp_path: Path, broken_at: int
) -> None:
    whole = await search(wanted(), tmp_path / "whole")
    runs.played.clear()

    def fall(number: int, directory: Path) -> None:
        if number == broken_at:
            # As a killed process leaves it.
            directory.mkdir(parents=True)
            raise errors.CannotRunError("a worker was killed")

    runs.before = fall
    with pytest.raises(errors.CannotRunError):
        await search(wanted(), tmp_path / "s")
    assert len(journal_of(tmp_path / "s").entries()) == broken_at - 1
    runs.before = lambda number, directory: None
    result = await search(wanted(), tmp_path / "s")
    assert result.limit == whole.limit
    assert [s.tried for s in result.steps] == [s.tried for s in whole.steps]
    assert len(runs.played) == windows(whole.steps) + 1


async def test_a_broker_that_a_step_overloaded_gets_time_to_recover(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.run.search.search._RETRY_S", 0)
    whole = await search(wanted(), tmp_path / "whole")
    runs.played.clear()
    silent = [4, 5]

    def fall(number: int, directory: Path) -> None:
        if number in silent:
            silent.remove(number)
            directory.mkdir(parents=True)
            raise errors.BrokerUnreachableError("the broker sends nothing")

    runs.before = fall
    result = await search(wanted(), tmp_path / "s")
    assert not silent and result.limit == whole.limit
    assert [step.tried for step in result.steps] == [step.tried for step in whole.steps]

    monkeypatch.setattr("loadgen.run.search.search._RECOVERY_S", 0)
    silent, runs.before = [4], fall
    runs.played.clear()
    with pytest.raises(errors.BrokerUnreachableError):
        await search(wanted(), tmp_path / "gone")


async def test_every_window_of_a_confirmation_must_hold(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await search(wanted(), tmp_path / "whole")
    last = len(runs.played)
    runs.played.clear()
    usual = runs.judged

    def disturbed(scenario: Scenario) -> RunFacts:
        if len(runs.played) == last - 1:
            return facts_at(scenario.rate or 0, 1.0, scenario.duration)
        return usual(scenario)

    monkeypatch.setattr(runs, "judged", disturbed)
    result = await search(wanted(), tmp_path / "s")
    confirmations = [step for step in result.steps if step.tried.purpose == "confirm"]
    assert not confirmations[0].tried.valid
    assert result.limit is not None and whole.limit is not None
    assert result.limit.load is not None and result.limit.load <= (whole.limit.load or 0)


async def test_search_that_is_done_is_not_played_again(runs: FakeRuns, tmp_path: Path) -> None:
    first = await search(wanted(), tmp_path / "s")
    runs.played.clear()
    second = await search(wanted(), tmp_path / "s")
    assert (second.limit, second.steps, runs.played) == (first.limit, first.steps, [])


async def test_interrupted_step_does_not_count(runs: FakeRuns, tmp_path: Path) -> None:
    runs.cut_at = 3
    result = await search(wanted(), tmp_path / "s")
    assert (result.limit, len(result.steps), result.exit_status) == (None, 2, 130)
    runs.before = Mock(side_effect=RunInterruptedError("before anything was measured"))
    assert (await search(wanted(), tmp_path / "s")).exit_status == 130
    assert json.loads((tmp_path / "s" / "search.json").read_text())["limit"] is None


async def test_step_whose_broker_went_away_is_not_kept(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the step nothing listens at the broker's address."""
    monkeypatch.setattr("loadgen.run.search.search._RECOVERY_S", 0)
    lost = facts_with(disconnects=3, latency_bound_us=1.0)
    usual = runs.judged

    def away(scenario: Scenario) -> RunFacts:
        return lost if len(runs.played) == 2 else usual(scenario)

    monkeypatch.setattr(runs, "judged", away)
    with refused("BROKER_WENT_AWAY"):
        await search(wanted(), tmp_path / "s")
    assert len(lines(tmp_path / "s")) == 1
    monkeypatch.setattr("loadgen.run.search.search._RECOVERY_S", 5)
    async with serving_little(LittleBroker()) as there:
        runs.played.clear()
        result = await search(wanted_at(there.redacted), tmp_path / "t")
    # It came back: the same load is tried again, and is no limit.
    assert [step.tried.purpose for step in result.steps][1:3] == ["raise", "again"]
    assert result.limit is not None and result.limit.load is not None
    assert 10_000 / 1.05 <= result.limit.load <= 10_100


async def test_search_does_not_go_on_with_another_broker(runs: FakeRuns, tmp_path: Path) -> None:
    runs.broker = {"name": "mosquitto", "version": "2.0.11"}
    runs.cut_at = 3
    cut = await search(wanted(), tmp_path / "s")
    assert [step.broker for step in cut.steps] == ["mosquitto 2.0.11"] * 2
    runs.broker = {"name": "mosquitto", "version": "2.0.12"}
    with pytest.raises(errors.RunDirectoryError) as error:
        await search(wanted(), tmp_path / "s")
    assert error.value.values["before"] == "mosquitto 2.0.11"
    assert error.value.values["broker"] == "mosquitto 2.0.12"
    assert len(journal_of(tmp_path / "s").entries()) == 2
    runs.broker = {"name": "mosquitto", "version": "2.0.11"}
    assert (await search(wanted(), tmp_path / "s")).exit_status == 0


async def test_open_bracket_is_no_success(runs: FakeRuns, tmp_path: Path) -> None:
    result = await search(wanted(most_steps=5), tmp_path / "s")
    assert result.limit is not None and result.limit.ended == "out of steps"
    assert result.exit_status == 1
    top = await search(wanted(highest=5_000), tmp_path / "t")
    assert top.limit is not None and (top.limit.ended, top.exit_status) == ("top of range", 0)


async def test_a_search_whose_time_is_up_confirms_what_held(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step begins and ends at the next two of these times.
    clock = SimpleNamespace(monotonic=itertools.count(step=5.0).__next__)
    monkeypatch.setattr(play, "time", clock)
    result = await search(replace(wanted(), limit_s=30.0), tmp_path / "s")
    assert [step.tried.load for step in result.steps] == [500, 1250, 3125, 7812, 19_530, 7812]
    assert result.limit is not None and result.limit.ended == "out of steps"
    assert (result.limit.load, result.limit.confirmed) == (7812, True)
    again = await search(replace(wanted(), limit_s=30.0), tmp_path / "s")
    assert again.limit == result.limit
    more = await search(wanted(), tmp_path / "s")
    assert more.limit is not None and more.limit.ended == "confirmed"


async def test_a_failed_step_that_took_long_leaves_time_to_close_in(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((*range(0, 45, 5), 60.0, *range(65, 1000, 5)))  # 20 s for the fifth step
    monkeypatch.setattr(play, "time", SimpleNamespace(monotonic=times.__next__))
    result = await search(replace(wanted(), limit_s=80.0), tmp_path / "s")
    assert [step.tried.load for step in result.steps[4:7]] == [19_530, 12_350, 9822]


async def test_a_search_goes_on_with_more_steps(runs: FakeRuns, tmp_path: Path) -> None:
    """It plays what one with that many steps would have played, and none of it twice."""
    whole = await search(wanted(most_steps=15), tmp_path / "whole")
    loads = [step.tried.load for step in whole.steps]
    runs.played.clear()
    first = await search(wanted(most_steps=5), tmp_path / "s")
    assert first.limit is not None and first.limit.ended == "out of steps"
    again = await search(wanted(most_steps=5), tmp_path / "s")
    assert (again.limit, len(runs.played)) == (first.limit, windows(first.steps))
    more = await search(wanted(most_steps=20), tmp_path / "s")
    assert more.limit is not None and whole.limit is not None
    assert (more.limit.ended, more.limit.confirmed) == ("confirmed", True)
    assert more.limit.load == pytest.approx(whole.limit.load, rel=0.1)
    assert windows(more.steps) == len(runs.played) and len(more.steps) > 5
    assert more.steps[:5] == first.steps
    written = json.loads((tmp_path / "s" / "search.json").read_text())
    assert (written["aim"]["most_steps"], written["limit"]["ended"]) == (20, "confirmed")
    assert loads[:3] == [step.tried.load for step in more.steps[:3]]
    with refused("OTHER_SEARCH"):
        await search(wanted(most_steps=20, precision=0.1), tmp_path / "s")


async def test_limit_of_this_host_is_its_own(runs: FakeRuns, tmp_path: Path) -> None:
    def refuse(number: int, directory: Path) -> None:
        if (runs.played[-1].rate or 0) > 4_000:
            raise errors.HostLimitError("too many devices for this host")

    runs.before = refuse
    result = await search(wanted(), tmp_path / "s")
    assert result.limit is not None and result.limit.load is not None
    assert result.limit.of_generator and 4_000 / 1.06 < result.limit.load <= 4_000
    assert [why.code for why in result.limit.reasons] == ["HOST_LIMIT"]


async def test_what_cannot_even_begin_is_an_error(runs: FakeRuns, tmp_path: Path) -> None:
    runs.before = Mock(side_effect=errors.HostLimitError("no descriptors"))
    with pytest.raises(errors.HostLimitError):
        await search(wanted(), tmp_path / "s")


async def test_directory_that_is_in_use_is_refused(runs: FakeRuns, tmp_path: Path) -> None:
    with exclusive(tmp_path / "s"), refused("IN_USE"):
        await search(wanted(), tmp_path / "s")


def test_scenario_of_a_step() -> None:
    what = wanted()
    scenario = step_scenario(what, Probe(1234.5, "raise"))
    assert (scenario.rate, scenario.latency_bound) == (1234.5, 0.1)
    assert (scenario.duration, scenario.warmup) == (5, 0.5)
    short = Search(what.scenario, what.aim, Require(p99_s=None), step_s=1.0)
    raised = step_scenario(short, Probe(1000, "raise"))
    assert (raised.duration, raised.warmup) == (1, 0.5)
    assert step_scenario(short, Probe(1000, "confirm")).duration == 1
    assert step_scenario(short, Probe(1000, "confirm")).latency_bound is None
    burst = build_scenario("connburst", None, {"duration": 9})
    connects = Search(burst, aim_for(burst, "rate"), what.require)
    assert step_scenario(connects, Probe(1000, "raise")).duration == 9
    devices = Search(what.scenario, aim_for(what.scenario, "devices"), what.require)
    assert step_scenario(devices, Probe(1250.0, "raise")).devices == 1250


@pytest.mark.parametrize(("rate", "ceiling"), [(5_000, 10_000), (20_000, 10_000), (11_000, 10_000)])
def test_what_a_failed_step_says_the_broker_served(rate: float, ceiling: float) -> None:
    served = served_load(wanted(), rate, facts_at(rate, ceiling))
    assert served == pytest.approx(min(rate, ceiling), rel=0.01)
    chain = build_scenario("specjms", None, {})
    bases = Search(chain, aim_for(chain, "base"), wanted().require)
    assert bases.aim.start == 20
    of_bases = served_load(bases, rate / 10, facts_at(rate, ceiling))
    assert of_bases == pytest.approx(min(rate, ceiling) / 10, rel=0.01)


def test_served_load_where_it_cannot_be_told() -> None:
    what = wanted()
    assert served_load(what, 100, facts_with(window_s=1, target_rate=100)) is None
    pairs = build_scenario("persistent", None, {})
    other = Search(pairs, aim_for(pairs, "devices"), what.require)
    assert served_load(other, 10, facts_at(1000, 100)) is None
    burst = build_scenario("connburst", None, {})
    connects = Search(burst, aim_for(burst, "rate"), what.require)
    slow = facts_with(connected=1000, connect_seconds=4, connect_rate=500)
    assert served_load(connects, 500, slow) == 250
