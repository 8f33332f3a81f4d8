"""A grid: every combination of some fields' values, once or several times, or its limit.

    DIR/sweep.json      the grid
    DIR/points.jsonl    one line for each run or search that ended, written as it ends
    DIR/runs/KEY-N/     run directory, or search directory, of repetition N
    DIR/side-M/run-N/   the same of a comparison, whose sides are the points; DIR/CASE/ of a demo
    DIR/saturated/      runs that were made again because the host spoiled them

Every second repetition goes backwards (A B B A), so that a host which becomes slower does so for
all points. KEY is the digest of scenario and search, by which a second start, with the same grid or
a larger one, uses the earlier results. A point that could not be run is tried again then.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loadgen.cases.registry import build_scenario, vary
from loadgen.errors import CannotRunError, LoadgenError, RunDirectoryError, ScenarioError
from loadgen.judge.next_step import PRECISION, Aim
from loadgen.plan.fields import Texts, redact_url
from loadgen.plan.removed import with_removed
from loadgen.plan.scenario import ENCRYPTED, Scenario
from loadgen.run.interrupt import RunInterruptedError
from loadgen.run.progress import Progress, Snapshot
from loadgen.run.rundir import numbered
from loadgen.run.seal import digest_of
from loadgen.run.search.journal import Journal
from loadgen.run.search.search import Search, SearchState, search
from loadgen.run.testbed import Testbed, run_unspoiled
from loadgen.sentences import RUN_TEXT, printable

POINTS_LIMIT = 10_000
_DETAIL_CHARACTERS = 500
MakeSearch = Callable[[Scenario], Search]
Standing = Literal["closed", "not closed", "at least", "nothing held"]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination: the swept fields' values as texts, and the scenario or search to play."""

    values: Mapping[str, str]
    scenario: Scenario
    search: Search | None
    key: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid over `scenario`: `axes` are (field, values as text), the first one varying slowest.

    `search` makes the search of a combination, None to run each as it is. With `again` a run that
    the host spoiled is made again. If it is `strict`, each run must be playable. `points`
    replace those of the axes. Only first repetitions begin after `limit_s` seconds.
    """

    scenario: Scenario
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    repeat: int = 1
    search: MakeSearch | None = None
    again: bool = False
    strict: bool = False
    folder: str = "runs/{key}-{repetition}"
    points: tuple[SweepPoint, ...] = ()
    limit_s: float = math.inf


SIDES = "side-{place}/run-{repetition}"  # folder of a comparison


@dataclass(frozen=True, slots=True)
class PointResult:
    """A run or a search of a point that ended.

    `run` is the directory, within the sweep's, of the run that shows the result, else None. A
    search is `valid` if its limit was closed in on and confirmed. `error` says why the point could
    not be played, "" if it was, and `status` is its exit status. `spoiled` runs were made again.
    """

    key: str
    values: Mapping[str, str]
    repetition: int
    run: str | None
    valid: bool
    seconds: float
    limit: Mapping[str, Any] | None = None
    error: str = ""
    status: int = 0
    spoiled: int = 0

    @property
    def is_done(self) -> bool:
        """True unless it could not be played, or its search ran out of steps."""
        return not self.error and (self.limit is None or self.limit["ended"] != "out of steps")


@dataclass(frozen=True, slots=True)
class SweepState:
    """Where a sweep stands: run or search `number` of `total`.

    `again` is the number of its spoiled runs until now, `snapshot` or `searching` its progress.
    """

    point: SweepPoint
    number: int
    total: int
    repetition: int
    again: int = 0
    snapshot: Snapshot | None = None
    searching: SearchState | None = None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep that ended or was interrupted; `measured` is in the order of the grid."""

    directory: Path
    points: tuple[SweepPoint, ...]
    measured: tuple[PointResult, ...]
    interrupted: bool

    def runs_of(self, point: SweepPoint) -> list[Path]:
        """Return the run directories of a point that were measured."""
        runs = (one.run for one in self.measured if one.key == point.key)
        return [self.directory / run for run in runs if run]

    @property
    def exit_status(self) -> int:
        """0 if all rows are valid or confirmed limits, else 1; 130 interrupted; the highest of the
        runs' if none could be run."""
        if self.interrupted:
            return 130
        if self.measured and all(one.error for one in self.measured):
            return max(one.status for one in self.measured) or 1
        return 0 if all(one.valid for one in self.measured) else 1


Watch = Callable[[SweepState], None]


def points_of(grid: Sweep) -> tuple[SweepPoint, ...]:
    """Return every combination; raise ScenarioError before anything is run."""
    if grid.points:
        return grid.points
    if grid.repeat < 1:
        raise ScenarioError(RUN_TEXT.FEW_REPETITIONS(repeat=grid.repeat))
    names = [name for name, _ in grid.axes]
    for name in names:
        field = grid.scenario.fields().get(name)
        many = isinstance(field, Texts) and name != "broker"
        if name == "case" or many or (field is not None and field.load == "kind"):
            raise ScenarioError(RUN_TEXT.NOT_SWEPT(field=name))
    total = grid.repeat
    for name, choices in grid.axes:
        if not choices:
            raise ScenarioError(RUN_TEXT.NO_VALUE(field=name))
        if again := next((one for one in choices if choices.count(one) > 1), ""):
            raise ScenarioError(RUN_TEXT.VALUE_TWICE(field=name, value=again, first=""))
        if name == "broker" and len(choices) > 1 and grid.scenario.broker_name is not None:
            raise ScenarioError(RUN_TEXT.NAME_OF_SEVERAL(count=len(choices)))
        total *= len(choices)
    if total > POINTS_LIMIT:
        raise ScenarioError(RUN_TEXT.MANY_RUNS(total=total, most=POINTS_LIMIT))
    points: dict[str, SweepPoint] = {}
    for combination in itertools.product(*(choices for _, choices in grid.axes)):
        values = dict(zip(names, combination, strict=True))
        scenario = vary(for_broker(grid.scenario, values.get("broker", "")), values)
        search = None if grid.search is None else grid.search(scenario)
        if search is not None and search.aim.field in values:
            raise ScenarioError(RUN_TEXT.SEARCHED(field=search.aim.field))
        key = key_of(scenario, search)
        shown = {name: _shown(name, value) for name, value in values.items()}
        before = points.setdefault(key, SweepPoint(shown, scenario, search, key))
        for swept in (name for name in names if before.values[name] != shown[name]):
            value, first = shown[swept], before.values[swept]  # such as 10k and 10000
            raise ScenarioError(RUN_TEXT.VALUE_TWICE(field=swept, value=value, first=first))
    return tuple(points.values())


def key_of(scenario: Scenario, search: Search | None = None) -> str:
    document = {
        "scenario": with_removed(scenario.plain(), "field"),
        "search": None if search is None else search.digest,
    }
    return digest_of(with_removed(document, "argument"))[:16]


def for_broker(scenario: Scenario, url: str) -> Scenario:
    """Return the scenario for this broker: plain connections have no TLS options."""
    if not url or url.startswith(ENCRYPTED) or scenario.tls:
        return scenario
    kept = scenario.model_fields_set - {"case"}
    fields = {name: getattr(scenario, name) for name in kept if not name.startswith("tls_")}
    return build_scenario(scenario.case, fields | {"broker": url}, {})


def _shown(name: str, value: str) -> str:
    return redact_url(value) if name == "broker" else value


async def sweep(
    grid: Sweep, directory: Path, testbed: Testbed, *, watch: Watch = lambda _state: None
) -> SweepResult:
    """Run the grid, in a new directory or in that of the same sweep, or of a smaller grid.

    Searches that ran out of steps go on if more of them are allowed. Raise ScenarioError for an
    impossible combination, and RunDirectoryError if the directory holds something else or another
    process uses it.
    """
    points = points_of(grid)
    journal = journal_of(directory)
    repetitions = range(1, grid.repeat + 1)
    turns = [
        (point, repetition)
        for repetition in repetitions
        for point in (points if repetition % 2 else reversed(points))
    ]
    with journal.opened():
        results = _begin(grid, points, journal, testbed.command)
        interrupted, last_repetition = False, 0
        for number, (point, repetition) in enumerate(turns, start=1):
            held = results.get((point.key, repetition))
            if held and held.is_done and (not held.run or (directory / held.run).is_dir()):
                # A smaller grid did not know all of the values.
                results[point.key, repetition] = replace(held, values=point.values)
                continue
            if repetition > 1 and sum(result.seconds for result in results.values()) > grid.limit_s:
                break
            state = SweepState(point, number, len(turns), repetition)

            def progress(snapshot: Snapshot, state: SweepState = state) -> None:
                watch(replace(state, snapshot=snapshot))

            watch(state)
            if repetition != last_repetition:
                # Each repetition has new connections.
                await testbed.reset(progress)
                last_repetition = repetition
            names = {"key": point.key, "place": points.index(point) + 1, **point.values}
            part = directory / grid.folder.format_map(names | {"repetition": repetition})
            entry = await _play_point(state, grid, directory, part, testbed, watch, progress)
            if entry is None:
                interrupted = True
                break
            if held and not held.error:
                entry = replace(entry, seconds=entry.seconds + held.seconds)
            results[point.key, repetition] = entry
            journal.write(results.values())
    ordered = (results.get((point.key, number)) for point in points for number in repetitions)
    measured = tuple(one for one in ordered if one is not None)
    return SweepResult(directory, points, measured, interrupted)


async def _play_point(
    state: SweepState,
    grid: Sweep,
    root: Path,
    part: Path,
    testbed: Testbed,
    watch: Watch,
    progress: Progress,
) -> PointResult | None:
    """Play one repetition of a point; return None if it was interrupted."""
    point = state.point
    started = time.monotonic()
    entry = PointResult(point.key, point.values, state.repetition, None, False, 0.0)
    run: Path | None = None
    try:
        if point.search is not None:
            ended = await search(
                point.search,
                part,
                testbed,
                watch=lambda searching: watch(replace(state, searching=searching)),
            )
            if ended.limit is None:
                return None
            aim, limit = point.search.aim, asdict(ended.limit) | {"own": ended.limit.of_generator}
            if ended.best is not None and ended.best.run is not None:
                run = ended.directory / ended.best.run
            stands = standing_of(limit, aim)
            limit |= {"field": aim.field, "stands": stands}
            valid = ended.limit.confirmed and stands == "closed"
            entry = replace(entry, valid=valid, limit=limit)
        else:
            result, spoiled = await run_unspoiled(
                testbed,
                point.scenario,
                numbered(part),
                root if grid.again else None,
                progress=progress,
                watch=lambda again: watch(replace(state, again=again)) if again else None,
            )
            entry = replace(entry, spoiled=spoiled)
            if result.interrupted:
                return None
            if result.measured:
                run, entry = result.directory, replace(entry, valid=result.verdict.valid)
            elif grid.strict:
                side = " ".join(point.values.values())
                raise CannotRunError(RUN_TEXT.SIDE(side=side, reason=result.why_unmeasured))
            else:
                why = printable(result.why_unmeasured, _DETAIL_CHARACTERS)
                entry = replace(entry, error=why, status=result.exit_status)
    except RunInterruptedError:
        return None
    except LoadgenError as error:
        if grid.strict:
            raise
        why = printable(f"{type(error).__name__}: {error}", _DETAIL_CHARACTERS)
        entry = replace(entry, error=why, status=error.exit_status)
    path = None if run is None else str(run.relative_to(root))
    return replace(entry, run=path, seconds=time.monotonic() - started)


def standing_of(limit: Mapping[str, Any], aim: Aim | None) -> Standing:
    """Return the standing of a search's limit; only one that was closed in on is a limit.

    Steps can run out with the bracket open ("not closed"), or nothing has failed ("at least").
    """
    load, above = limit["load"], limit["above"]
    if load is None:
        return "nothing held"
    if above is None:
        return "at least"
    precision = PRECISION if aim is None else aim.precision
    # A search of a broker that wavers is content with twice the precision.
    near = limit["ended"] == "confirmed" or above <= load * (1 + precision)
    adjacent = aim is not None and aim.integral and above - load <= 1
    return "closed" if near or adjacent else "not closed"


def journal_of(directory: Path) -> Journal[PointResult]:
    return Journal(directory, "sweep", "points", "runs", PointResult)


def _begin(
    grid: Sweep, points: Sequence[SweepPoint], journal: Journal[PointResult], command: Sequence[str]
) -> dict[tuple[str, int], PointResult]:
    """Write the grid; return earlier results by key and repetition; raise if it lacks one."""
    begun = journal.begun()
    results = {} if begun is None else {(one.key, one.repetition): one for one in journal.entries()}
    keys = {point.key for point in points}
    lost = [
        one
        for (key, repetition), one in results.items()
        if not one.error and (key not in keys or repetition > grid.repeat)
    ]
    if lost:
        raise RunDirectoryError(RUN_TEXT.OTHER_SWEEP(path=journal.directory, rows=len(lost)))
    document = {
        "case": grid.scenario.case,
        "scenario": grid.scenario.plain(),
        "axes": [[name, [_shown(name, value) for value in values]] for name, values in grid.axes],
        "repeat": grid.repeat,
        "search": grid.search is not None,
    }
    journal.begin(document, command)
    return results
