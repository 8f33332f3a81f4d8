"""A stand-in for the runs of a testbed in tests of searches and sweeps."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.judge.facts import RunFacts
from loadgen.judge.verdict import Verdict, judge
from loadgen.plan.scenario import Scenario
from loadgen.run.coordinator import RunResult
from loadgen.run.progress import Snapshot
from tests.ledgers import facts_with


class FakeRuns:
    """`judged` gives the facts of a scenario, `says` its verdict; both can raise.

    `before` is called with the number and directory of a run, whose run.json has the `broker`. The
    run `cut_at` is interrupted.
    """

    def __init__(self) -> None:
        self.played: list[Scenario] = []
        self.whole: list[bool] = []
        self.before: Callable[[int, Path], None] = lambda number, directory: None
        self.judged: Callable[[Scenario], RunFacts] = lambda scenario: facts_with(
            sent=100, expected=100, received=100, window_s=1
        )
        self.says: Callable[[Scenario], Verdict] | None = lambda scenario: Verdict()
        self.cut_at = 0
        self.measures = True
        self.broker: dict[str, str] | None = None

    async def run(self, scenario: Scenario, directory: Path, **given: Any) -> RunResult:
        self.played.append(scenario)
        self.before(len(self.played), directory)
        given["progress"](Snapshot("measure", devices=1))
        self.whole.append(True not in given.get("ends_when_certain", ()))
        facts = self.judged(scenario)
        verdict = judge(facts) if self.says is None else self.says(scenario)
        await asyncio.to_thread(directory.mkdir, parents=True)
        if self.broker is not None:
            (directory / "run.json").write_text(json.dumps({"broker": self.broker}))
        cut = len(self.played) == self.cut_at
        return RunResult(directory, verdict, cut, self.measures, facts)
