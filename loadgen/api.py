"""Runs, searches and sweeps from Python: scripts, notebooks, pytest.

    from loadgen.api import run, scenario

    result = run(scenario("fanin", devices=1_000, duration=10, broker="mosquitto"))
    assert result.valid, result.reasons
    print(result.latency["end_to_end"].p99_us, result.intervals().num_rows)

`run`, `search`, `sweep` and `compare` block, also if an event loop is running as in a notebook;
`run_async` and so on are awaited. Fields are those of the command line with `_` for `-`, and take
the same texts ("10k", "5m"). Every error is a LoadgenError, and names fields as in Python.
"""

import asyncio
import contextvars
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypedDict, TypeVar, Unpack

from loadgen.cases.registry import build_scenario
from loadgen.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CannotRunError,
    DiskError,
    HostLimitError,
    LoadgenError,
    LocalProtocolError,
    MissingProgramError,
    PowerLogError,
    ProtocolError,
    RemoteProtocolError,
    RunDirectoryError,
    ScenarioError,
    UsageError,
    in_python,
)
from loadgen.judge.next_step import Limit, aim_for, requirements
from loadgen.judge.verdict import Reason, Remark
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.removed import removal
from loadgen.plan.scenario import Scenario, read_toml
from loadgen.plan.units import shown
from loadgen.report.build.compare import Compared, compare_sides, sides_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.build.sweep_report import sweep_report
from loadgen.report.build.sweep_table import SweepTable, table_of
from loadgen.report.headline import headline
from loadgen.report.record import load_intervals, open_run
from loadgen.report.render.write import write_comparison, write_report
from loadgen.report.score_card import Counts, ScoreCard
from loadgen.run.coordinator import RunResult
from loadgen.run.devices_file import DEVICE_SCHEMA, read_devices
from loadgen.run.hosts.remote_host import Agents
from loadgen.run.hosts.worker_pool import WorkerLostError
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.preflight import check_scenario
from loadgen.run.progress import Progress, Snapshot, silent
from loadgen.run.rundir import directory_or_new
from loadgen.run.search.search import Search, SearchResult, SearchState
from loadgen.run.search.search import search as _search
from loadgen.run.search.sweep import SIDES, Sweep, SweepResult, SweepState
from loadgen.run.search.sweep import sweep as _sweep
from loadgen.run.secrets import take_secrets
from loadgen.run.testbed import Testbed as _Testbed
from loadgen.sentences import API_TEXT, PLAN_TEXT, RUN_TEXT
from loadgen.spark.agents import Cluster, HostSource

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DEVICE_SCHEMA",
    "INTERVAL_SCHEMA",
    "Agents",
    "BrokerRefusedError",
    "BrokerUnreachableError",
    "CannotRunError",
    "Cluster",
    "Compared",
    "DiskError",
    "HostLimitError",
    "Interrupt",
    "Limit",
    "LoadgenError",
    "LocalProtocolError",
    "MissingProgramError",
    "PowerLogError",
    "ProtocolError",
    "RemoteProtocolError",
    "Result",
    "RunDirectoryError",
    "RunInterruptedError",
    "Scenario",
    "ScenarioError",
    "ScoreCard",
    "SearchOptions",
    "SearchResult",
    "Snapshot",
    "SweepTable",
    "Testbed",
    "UsageError",
    "WorkerLostError",
    "compare",
    "compare_async",
    "read",
    "run",
    "run_async",
    "scenario",
    "scenario_file",
    "search",
    "search_async",
    "sweep",
    "sweep_async",
]

T = TypeVar("T")
P = ParamSpec("P")
Requirements = Mapping[str, str] | Sequence[str]


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """One run: its directory, its score card, and shortcuts into that.

    `interrupted`: the run was ended early, and what it measured until then is kept.
    """

    directory: Path
    card: ScoreCard
    interrupted: bool = False

    def __repr__(self) -> str:
        case = self.card.run.case
        return f"Result({case} {self.card.verdict.word}: {headline(self.card)})"

    @property
    def valid(self) -> bool:
        return self.card.verdict.valid

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why the run is not valid, each with its code."""
        return self.card.verdict.reasons

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Notes that do not affect the verdict."""
        return self.card.verdict.remarks

    @property
    def counts(self) -> Counts:
        """Messages intended in the window, and deliveries."""
        return self.card.counts

    @property
    def rates(self) -> Mapping[str, float]:
        """Messages a second: sent, expected, received."""
        return self.card.rates

    @property
    def latency(self) -> Mapping[str, LatencySummary]:
        """Latencies by series: end_to_end, transit, send_delay, acknowledge, connect ..."""
        return self.card.latency

    @in_python()
    def intervals(self) -> "pa.Table":
        """Read the interval table (INTERVAL_SCHEMA), by worker, second, group, phase and series."""
        return load_intervals(open_run(self.directory))

    @in_python()
    def devices(self) -> "pa.Table":
        """Return a row a device (DEVICE_SCHEMA); raise RunDirectoryError without `per_device`."""
        return read_devices(self.directory)


def _speaking(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the same verb with errors that name Python's arguments."""

    @functools.wraps(verb)
    async def speaking(*args: P.args, **named: P.kwargs) -> T:
        with in_python():
            for name in named:
                if removed := removal(name, "argument"):
                    raise UsageError(PLAN_TEXT.REMOVED(name=name, removed=removed))
            return await verb(*args, **named)

    return speaking


@in_python()
def scenario(case: str, **fields: object) -> Scenario:
    """Return a scenario of a case; raise ScenarioError in one line for a wrong field."""
    return build_scenario(case, None, fields)


@in_python()
def scenario_file(path: str | Path, case: str | None = None, **fields: object) -> Scenario:
    """Read a scenario from a TOML file; `fields` override it; `case` is needed if it names none."""
    try:
        keys = read_toml(Path(path).read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, OSError) else "not text"
        raise ScenarioError(API_TEXT.UNREADABLE_SCENARIO(path=Path(path), reason=reason)) from None
    named = case or keys.get("case")
    if not isinstance(named, str):
        raise ScenarioError(API_TEXT.NO_CASE())
    return build_scenario(named, keys, fields)


@in_python()
def read(directory: str | Path) -> Result:
    card = summarize_run(Path(directory))
    return Result(Path(directory), card, any(r.code == "INTERRUPTED" for r in card.verdict.reasons))


@_speaking
async def run_async(
    scenario: Scenario | str,
    out: str | Path | None = None,
    *,
    progress: Progress = silent,
    interrupt: Interrupt | None = None,
    cluster: HostSource | None = None,
) -> Result:
    """Play a scenario, or a case by its name, into `out` (default: runs/TIME-CASE).

    `progress` is called several times a second, and `interrupt.request()` ends the run with what it
    has measured. `cluster` has the hosts that play it, as many as the scenario names. Raise
    LoadgenError if the run could not be played or nothing was measured; an INVALID run is a result.
    """
    scenario = _scenario_of(scenario)
    async with _testbed("run", scenario, out, cluster, interrupt) as (testbed, directory):
        result = await testbed.run(scenario, directory, progress=progress)
    return await _scored(result)


class Testbed:
    """Plays runs, one after the other; broker and workers end with the block.

        async with Testbed(broker="mosquitto") as testbed:
            results = [await testbed.run(scenario("fanin", rate=rate)) for rate in (1_000, 2_000)]

    Runs that differ in their rates alone share the broker and the connections of their devices.
    `broker` is for scenarios that name none, and `interrupt.request()` ends a run with what it has
    measured.
    """

    __test__ = False  # pytest must not collect it

    def __init__(
        self, broker: str | Sequence[str] = "auto", *, interrupt: Interrupt | None = None
    ) -> None:
        command = ("loadgen.api.Testbed.run",)
        self._testbed = _Testbed(broker, interrupt=interrupt, command=command)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._testbed.__aexit__()

    async def run(
        self, scenario: Scenario, out: str | Path | None = None, *, progress: Progress = silent
    ) -> Result:
        """Play a scenario as `run_async` does, on this testbed."""
        with in_python(), directory_or_new(out, scenario.case) as directory:
            return await _scored(await self._testbed.run(scenario, directory, progress=progress))


async def _scored(result: RunResult) -> Result:
    card = await asyncio.to_thread(summarize_run, result.directory)
    return Result(result.directory, card, result.interrupted)


class SearchOptions(TypedDict, total=False):
    start: float  # the first load
    highest: float  # that may be tried
    precision: float  # how far above the limit the lowest load that failed may be, 0.05
    most_steps: int  # 20
    require: Requirements  # as `--require`: {"lost": "0.1%", "p99": "50ms"}
    step_s: float  # longest window of a step, and each of the three that confirm


def _search_of(scenario: Scenario, target: str, options: SearchOptions) -> Search:
    bounds: dict[str, Any] = dict(options)
    if unknown := sorted(bounds.keys() - SearchOptions.__annotations__.keys()):
        known = tuple(SearchOptions.__annotations__)
        raise ScenarioError(API_TEXT.SEARCH_ARGUMENT(name=unknown[0], known=known))
    require = bounds.pop("require", ())
    # 100 and 100.0 are one number, also in the digest by which a search is continued.
    for name in bounds.keys() - {"most_steps"}:
        if isinstance(bounds[name], int):
            bounds[name] = float(bounds[name])
    step_s = bounds.pop("step_s", None)
    pairs = [f"{k}={v}" for k, v in require.items()] if isinstance(require, Mapping) else require
    aim = aim_for(scenario, target, **bounds)
    return Search(scenario, aim, requirements(scenario, pairs), step_s)


@_speaking
async def search_async(
    scenario: Scenario | str,
    target: str = "rate",
    out: str | Path | None = None,
    *,
    watch: Callable[[SearchState], None] = lambda _state: None,
    interrupt: Interrupt | None = None,
    cluster: HostSource | None = None,
    **options: Unpack[SearchOptions],
) -> SearchResult:
    """Find the highest `target` (rate, devices, base) of a scenario, or of a case by its name.

    The same call with the same `out` continues an interrupted search, and with a larger
    `most_steps` one that ran out of steps. `result.limit` has the load, its confirmation, the
    reasons why the next load failed, and `own` if these are the generator's fault; it is None if
    `interrupt` ended the search.
    """
    scenario = _scenario_of(scenario)
    async with _testbed("search", scenario, out, cluster, interrupt) as (testbed, directory):
        wanted = _search_of(scenario, target, options)
        return await _search(wanted, directory, testbed, watch=watch)


@_speaking
async def sweep_async(
    scenario: Scenario | str,
    axes: Mapping[str, Sequence[object]],
    out: str | Path | None = None,
    *,
    repeat: int = 1,
    target: str | None = None,
    watch: Callable[[SweepState], None] = lambda _state: None,
    interrupt: Interrupt | None = None,
    cluster: HostSource | None = None,
    **options: Unpack[SearchOptions],
) -> SweepTable:
    """Play every combination of the axes' values: {"ratio": [1, 10, 100], "size": [32, 256]}.

    With `target`, find the limit of each. The same `out` keeps earlier results; the table is
    written there as table.html, .md, .csv and .json. A row that could not be played has the reason
    in `reasons`; an interrupted table ends where the sweep did.
    """
    scenario = _scenario_of(scenario)
    if not axes:
        raise ScenarioError(RUN_TEXT.NOTHING_SWEPT())
    for name, values in axes.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise ScenarioError(API_TEXT.AXIS(name=name, value=shown(values)))

    def searching(one: Scenario) -> Search:
        return _search_of(one, target or "rate", options)

    grid = Sweep(
        scenario=scenario,
        axes=tuple((name, tuple(map(_text, values))) for name, values in axes.items()),
        repeat=repeat,
        search=None if target is None else searching,
    )
    async with _testbed("sweep", scenario, out, cluster, interrupt) as (testbed, directory):
        result = await _sweep(grid, directory, testbed, watch=watch)
    return await asyncio.to_thread(_tabled, result)


def _tabled(result: SweepResult) -> SweepTable:
    """Return the table, and write every rendering of it unless it is empty."""
    table = table_of(result)
    if result.measured:
        write_report(sweep_report(table), result.directory, "table")
    return table


@_speaking
async def compare_async(
    scenario: Scenario | str,
    brokers: Sequence[str],
    out: str | Path | None = None,
    *,
    repeat: int = 3,
    watch: Callable[[SweepState], None] = lambda _state: None,
    interrupt: Interrupt | None = None,
    cluster: HostSource | None = None,
) -> Compared:
    """Play the scenario with each of the brokers in turn, `repeat` times, and compare them.

    The same `out` continues. If other programs disturb a run, it is repeated, at most twice. Raise
    RunInterruptedError if `interrupt` comes before each broker has a run.
    """
    scenario = _scenario_of(scenario)
    if len(brokers) < 2 or len(set(brokers)) < len(brokers):
        raise UsageError(API_TEXT.FEW_BROKERS())
    axes = (("broker", tuple(brokers)),)
    grid = Sweep(scenario, axes, repeat, again=True, strict=True, folder=SIDES)
    async with _testbed("compare", scenario, out, cluster, interrupt) as (testbed, directory):
        result = await _sweep(grid, directory, testbed, watch=watch)
    sides = await asyncio.to_thread(sides_of, result, summarize_run)
    if len(sides) < len(brokers):
        raise RunInterruptedError(API_TEXT.INTERRUPTED())
    compared = compare_sides(sides)
    await asyncio.to_thread(write_comparison, compared, directory)
    return compared


@asynccontextmanager
async def _testbed(
    verb: str,
    scenario: Scenario,
    out: str | Path | None,
    cluster: HostSource | None,
    interrupt: Interrupt | None,
) -> AsyncIterator[tuple[_Testbed, Path]]:
    """Provide a testbed with the hosts of a cluster, or on this host alone, and the directory."""
    name, is_run = f"{verb}-{scenario.case}", verb == "run"
    with directory_or_new(out, scenario.case if is_run else name) as directory:
        take_secrets(scenario.plain())  # before Spark is started with this environment
        check_scenario(scenario)
        command = (f"loadgen.api.{verb}", scenario.case)
        async with nullcontext() if cluster is None else cluster.opened() as hosts:
            testbed = _Testbed(hosts=hosts, interrupt=interrupt, command=command, lends=not is_run)
            async with testbed:
                yield testbed, directory


def _scenario_of(scenario: Scenario | str) -> Scenario:
    return scenario if isinstance(scenario, Scenario) else build_scenario(str(scenario), None, {})


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return f"{value[0]}-{value[1]}"
    return repr(value) if isinstance(value, float) else str(value)


def _wait(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the coroutine's result; wait in another thread if this one has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    running: list[Callable[[], object]] = []

    async def watched() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        running.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await make()

    with ThreadPoolExecutor(max_workers=1) as thread:
        future = thread.submit(contextvars.copy_context().run, lambda: asyncio.run(watched()))
        try:
            return future.result()
        finally:
            # Ctrl-C in a notebook: nothing may go on running behind it.
            if not future.done():
                for cancel in running:
                    cancel()


def _waited_for(awaited: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @functools.wraps(awaited)
    def waiting(*args: P.args, **named: P.kwargs) -> T:
        return _wait(lambda: awaited(*args, **named))

    waiting.__name__ = awaited.__name__.removesuffix("_async")
    return waiting


run = _waited_for(run_async)
search = _waited_for(search_async)
sweep = _waited_for(sweep_async)
compare = _waited_for(compare_async)
