"""Runs that the host spoiled, which are made again.

ROOT/saturated/   spoiled runs, named by their directories within ROOT and a number
"""

from collections.abc import Callable
from pathlib import Path

from loadgen.plan.scenario import Scenario
from loadgen.run.coordinator import RunResult
from loadgen.run.progress import Progress
from loadgen.run.rundir import make_private
from loadgen.run.testbed import Testbed

MOST_AGAIN = 2
"""Most repetitions of a spoiled run."""

SPOILED = frozenset({"GENERATOR_SATURATED", "CLOCK"})
"""Codes of a run in which the host held up the generator."""


async def run_unspoiled(
    testbed: Testbed,
    scenario: Scenario,
    directory: Path,
    root: Path,
    *,
    progress: Progress,
    watch: Callable[[int], None] = lambda _again: None,
) -> tuple[RunResult, int]:
    """Play a scenario, at most twice again if the host spoiled the run.

    Return the last run, which is in `directory`, and the number of the spoiled ones. `watch` gets
    the number of those before each run.
    """
    again = 0
    while True:
        watch(again)
        result = await testbed.run(scenario, directory, progress=progress)
        ended = result.interrupted or not result.measured or again == MOST_AGAIN
        if ended or not SPOILED.intersection(result.verdict.codes):
            return result, again
        again += 1
        _set_aside(directory, root, again)


def _set_aside(directory: Path, root: Path, number: int) -> None:
    aside = root / "saturated"
    if not aside.exists():
        make_private(aside)
    directory.rename(aside / "-".join((*directory.relative_to(root).parts, str(number))))
