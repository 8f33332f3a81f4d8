"""Runs, searches and sweeps of tests, each on a testbed of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.plan.scenario import Scenario
from loadgen.run.coordinator import RunResult
from loadgen.run.progress import Progress, silent
from loadgen.run.search import search as searches
from loadgen.run.search import sweep as sweeps
from loadgen.run.search.search import Search, SearchResult, SearchState
from loadgen.run.search.sweep import Sweep, SweepResult, SweepState
from loadgen.run.testbed import Testbed


async def run(
    scenario: Scenario, directory: Path, *, progress: Progress = silent, **options: Any
) -> RunResult:
    """Play one scenario; `options` are those of a testbed."""
    async with Testbed(lends=False, **options) as testbed:
        return await testbed.run(scenario, directory, progress=progress)


async def search(
    what: Search,
    directory: Path,
    *,
    watch: Callable[[SearchState], None] = lambda _state: None,
    **options: Any,
) -> SearchResult:
    """Find a limit; `options` are those of a testbed."""
    async with Testbed(**options) as testbed:
        return await searches.search(what, directory, testbed, watch=watch)


async def sweep(
    what: Sweep,
    directory: Path,
    *,
    watch: Callable[[SweepState], None] = lambda _state: None,
    **options: Any,
) -> SweepResult:
    """Play a grid; `options` are those of a testbed."""
    async with Testbed(**options) as testbed:
        return await sweeps.sweep(what, directory, testbed, watch=watch)
