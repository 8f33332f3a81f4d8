"""Runs of several brokers in turn."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.scenario import Scenario
from loadgen.run.coordinator import RunResult
from loadgen.run.progress import silent
from loadgen.run.rundir import make_folder
from loadgen.run.search.turns import take_turns, turns
from loadgen.run.testbed import run_unspoiled
from tests.refusals import refused

SATURATED = Verdict((Reason("GENERATOR_SATURATED", "late"),))
SIDES = [build_scenario("fanin", None, {"broker": name}) for name in ("mosquitto", "nats")]


@dataclass
class Played:
    """A testbed whose runs have these verdicts, one after the other, and are VALID afterwards."""

    verdicts: list[Verdict] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    ends: dict[str, bool] = field(default_factory=lambda: {"interrupted": False, "measured": True})

    async def run(self, scenario: Scenario, directory: Path, *, progress: Any) -> RunResult:
        make_folder(directory)
        self.brokers.append(scenario.broker[0])
        verdict = self.verdicts.pop(0) if self.verdicts else Verdict()
        return RunResult(directory, verdict, facts=None, **self.ends)  # type: ignore[arg-type]


def take(testbed: Played, directory: Path, repeat: int = 1) -> Any:
    return asyncio.run(take_turns(SIDES, directory, testbed, repeat=repeat))  # type: ignore[arg-type]


def test_each_second_round_has_the_sides_in_reverse() -> None:
    assert [(turn.side, turn.number) for turn in turns(2, 3)] == [
        *((1, 1), (2, 1), (2, 2), (1, 2), (1, 3), (2, 3))
    ]


def test_each_side_has_its_runs(tmp_path: Path) -> None:
    testbed = Played()
    result = take(testbed, tmp_path, repeat=2)
    assert testbed.brokers == ["mosquitto", "nats", "nats", "mosquitto"]
    assert [[str(run.directory.relative_to(tmp_path)) for run in runs] for runs in result.runs] == [
        ["side-1/run-1", "side-1/run-2"],
        ["side-2/run-1", "side-2/run-2"],
    ]
    assert not result.repeated and not result.interrupted


@pytest.mark.parametrize(("saturated", "counted"), [(1, 0), (2, 0), (3, 1)])
def test_a_saturated_run_is_repeated_at_most_twice(
    tmp_path: Path, saturated: int, counted: int
) -> None:
    testbed = Played([SATURATED] * saturated)
    result = take(testbed, tmp_path)
    assert result.repeated == min(saturated, 2)
    assert sum(not run.verdict.valid for run in result.runs[0]) == counted
    aside = sorted(path.name for path in (tmp_path / "saturated").iterdir())
    assert aside == [f"side-1-run-1-{again + 1}" for again in range(min(saturated, 2))]


def test_a_spoiled_run_of_an_earlier_start_stays(tmp_path: Path) -> None:
    scenario, directory = build_scenario("fanin", None, {}), tmp_path / "run"
    for start in (1, 2):
        testbed: Any = Played([SATURATED])
        asyncio.run(run_unspoiled(testbed, scenario, directory, tmp_path, progress=silent))
        directory.rename(tmp_path / f"last-{start}")
    aside = sorted(path.name for path in (tmp_path / "saturated").iterdir())
    assert aside == ["run-1", "run-1-2"]


def test_an_interruption_ends_the_turns(tmp_path: Path) -> None:
    result = take(Played(ends={"interrupted": True, "measured": True}), tmp_path)
    assert result.interrupted and result.runs == ((), ())


def test_a_run_that_measures_nothing_is_an_error(tmp_path: Path) -> None:
    with refused("SIDE", side=1):
        take(Played(ends={"interrupted": False, "measured": False}), tmp_path)
    with refused("REPEAT", repeat=0):
        take(Played(), tmp_path / "other", repeat=0)
