"""Runs a grid: every combination of some fields' values, once or several times, or its limit.

    DIR/sweep.json      the grid
    DIR/points.jsonl    one line a run or search that ended, written as it ends
    DIR/runs/KEY-N/     run directory, or search directory, of repetition N

KEY is the digest of the whole scenario and of what is searched, so that a second start, with the
same grid or a larger one, keeps what was measured. A point that could not be run is told in its
line, does not end the sweep, and is tried again by the next start.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from loadgen.control.coordinator import run
from loadgen.control.environment import program
from loadgen.control.interrupt import Interrupt, RunInterruptedError
from loadgen.control.progress import Progress, Snapshot
from loadgen.control.redaction import printable, redact_command
from loadgen.control.rundir import exclusive, require_free, write_atomically, write_json
from loadgen.control.seal import digest_of
from loadgen.control.search import Search, SearchState, search, step_scenario, vary
from loadgen.control.worker_pool import WORKER_ENTRY
from loadgen.errors import LoadgenError, RunDirectoryError, ScenarioError
from loadgen.workload.fields import redact_url
from loadgen.workload.scenario import (
    FIELDS,
    Scenario,
    build_scenario,
    scenario_fields,
)
from loadgen.workload.search import PRECISION, Aim, Probe

POINTS_LIMIT = 10_000
_DETAIL_CHARACTERS = 500
_FILE_LIMIT_BYTES = 64 << 20

MakeSearch = Callable[[Scenario], Search]
Standing = Literal["closed", "not closed", "at least", "nothing held"]


@dataclass(frozen=True, slots=True)
class Point:
    """One combination: the swept fields' values as given, and what is played."""

    values: Mapping[str, str]
    scenario: Scenario
    search: Search | None
    key: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid over `scenario`: `axes` are (field, values as text), the first one varying slowest.

    `search` makes the search of a combination, None to run each as it is. `faults` is for a
    reflector that is started here.
    """

    scenario: Scenario
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    repeat: int = 1
    search: MakeSearch | None = None
    faults: str = "none"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run or search of a point that ended.

    `run` is the directory, within the sweep's, of the run that shows the result: the run itself,
    or the one at the limit that was found; None where there is none. `limit` is the search's, with
    how it `stands`; `valid` of a search is a limit that was closed in on and confirmed.
    `error` says why the point could not be played, "" where it was, and `status` is the exit status
    of such a run.
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


@dataclass(frozen=True, slots=True)
class SweepState:
    """Where a sweep stands, for whoever watches."""

    point: Point
    number: int
    total: int
    repetition: int
    snapshot: Snapshot | None = None
    searching: SearchState | None = None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep that ended, or was interrupted and can be gone on with.

    `measured` holds what there is of each point, in the order of the grid.
    """

    directory: Path
    points: tuple[Point, ...]
    measured: tuple[Measured, ...]
    interrupted: bool

    @property
    def exit_status(self) -> int:
        """0 where every row is valid, or its limit closed in on and confirmed; 1 where one is not;
        that of a run that could not be where no row could be run; 130 interrupted."""
        if self.interrupted:
            return 130
        if self.measured and all(one.error for one in self.measured):
            return max(one.status for one in self.measured) or 1
        return 0 if all(one.valid for one in self.measured) else 1


Watch = Callable[[SweepState], None]


def points_of(what: Sweep) -> tuple[Point, ...]:
    """Every combination, checked; raises ScenarioError before anything is run."""
    if what.repeat < 1:
        raise ScenarioError(f"repeat: {what.repeat} is too small; allowed: from 1")
    names = [name for name, _ in what.axes]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f"{name}: swept twice; give all its values at once")
        texts = name in FIELDS and FIELDS[name].kind == "texts"
        if name == "case" or (texts and name != "broker"):
            raise ScenarioError(f"{name}: it cannot be swept; run a sweep for each")
    total = what.repeat
    for name, values in what.axes:
        if not values:
            raise ScenarioError(f"{name}: no value is given; write --set {name}=1,10,100")
        total *= len(values)
    if total > POINTS_LIMIT:
        raise ScenarioError(f"set: {total:,} runs are too many; allowed: {POINTS_LIMIT:,}")
    return tuple(_points(what, names))


def _points(what: Sweep, names: Sequence[str]) -> Iterator[Point]:
    seen: set[str] = set()
    for combination in itertools.product(*(values for _, values in what.axes)):
        values = dict(zip(names, combination, strict=True))
        scenario = vary(_for_broker(what.scenario, values.get("broker", "")), values)
        wanted = None if what.search is None else what.search(scenario)
        if wanted is not None and wanted.aim.field in values:
            raise ScenarioError(f"{wanted.aim.field}: it is searched and cannot be swept")
        if wanted is not None:
            _require_playable(wanted)
        key = _key(scenario, wanted, what.faults)
        # 10k and 10000 are one value.
        if key not in seen:
            seen.add(key)
            yield Point(_shown(values), scenario, wanted, key)


def _require_playable(wanted: Search) -> None:
    """Raises ScenarioError where no step of the search could be played."""
    try:
        step_scenario(wanted, Probe(wanted.aim.start, "first"))
    except ScenarioError as error:
        # The step's own time is the only field that is checked for the first time here.
        text = str(error)
        raise ScenarioError(f"step-{text}" if text.startswith("duration:") else text) from None


def _for_broker(scenario: Scenario, url: str) -> Scenario:
    """The scenario as this broker understands it: plain connections have no TLS options."""
    if url.partition("://")[0] not in ("mqtt", "ws"):
        return scenario
    kept = scenario.model_fields_set - {"case"}
    fields = {name: getattr(scenario, name) for name in kept if not name.startswith("tls_")}
    return build_scenario(scenario.case, fields | {"broker": url}, {})


def _shown(values: Mapping[str, str]) -> dict[str, str]:
    """The values as they may be written down: brokers without their passwords."""
    return {
        name: redact_url(value) if name == "broker" else value for name, value in values.items()
    }


def _key(scenario: Scenario, wanted: Search | None, faults: str) -> str:
    document = {
        "scenario": scenario_fields(scenario),
        "search": None if wanted is None else wanted.document(),
        "faults": faults,
    }
    return digest_of(document)[:16]


async def sweep(
    what: Sweep,
    directory: Path,
    *,
    watch: Watch = lambda _state: None,
    interrupt: Interrupt | None = None,
    command: Sequence[str] = (),
    entry: str = WORKER_ENTRY,
) -> SweepResult:
    """Play the grid, in a new directory or in that of the same sweep, or of a smaller grid.

    Raises ScenarioError for a combination that cannot be, and RunDirectoryError where the directory
    holds something else or another process is in it.
    """
    interrupt = Interrupt() if interrupt is None else interrupt
    points = points_of(what)
    with exclusive(directory):
        return await _sweep(what, points, directory, watch, interrupt, command, entry)


async def _sweep(
    what: Sweep,
    points: tuple[Point, ...],
    directory: Path,
    watch: Watch,
    interrupt: Interrupt,
    command: Sequence[str],
    entry: str,
) -> SweepResult:
    kept = _opened(what, points, directory, command)
    total = len(points) * what.repeat
    number = 0
    stopped = False
    for repetition in range(1, what.repeat + 1):
        for point in points:
            number += 1
            held = kept.get((point.key, repetition))
            if held is not None and _is_kept(held, directory):
                # A smaller grid did not know all of the values.
                kept[point.key, repetition] = replace(held, values=point.values)
                continue
            state = SweepState(point, number, total, repetition)
            watch(state)
            one = await _play(what, state, directory, watch, interrupt, command, entry)
            if one is None:
                stopped = True
                break
            kept[point.key, repetition] = one
            _write_points(directory, kept)
        if stopped:
            break
    repetitions = range(1, what.repeat + 1)
    ordered = [kept.get((point.key, r)) for point in points for r in repetitions]
    measured = tuple(one for one in ordered if one is not None)
    return SweepResult(directory, points, measured, stopped)


def _is_kept(held: Measured, directory: Path) -> bool:
    """Whether a row need not be measured again: it was, and its files are still there."""
    return not held.error and (held.run is None or (directory / held.run).is_dir())


async def _play(
    what: Sweep,
    state: SweepState,
    directory: Path,
    watch: Watch,
    interrupt: Interrupt,
    command: Sequence[str],
    entry: str,
) -> Measured | None:
    """One repetition of a point; None when it was interrupted."""
    point = state.point
    started = time.monotonic()
    name = f"{point.key}-{state.repetition}"

    def measured(
        run: Path | None = None,
        valid: bool = False,
        limit: Mapping[str, Any] | None = None,
        error: str = "",
        status: int = 0,
    ) -> Measured:
        return Measured(
            key=point.key,
            values=point.values,
            repetition=state.repetition,
            run=None if run is None else str(run.relative_to(directory)),
            valid=valid,
            seconds=time.monotonic() - started,
            limit=limit,
            error=printable(error, _DETAIL_CHARACTERS),
            status=status,
        )

    try:
        if point.search is not None:
            found = await search(
                point.search,
                directory / "runs" / name,
                watch=lambda searching: watch(_with(state, None, searching)),
                interrupt=interrupt,
                command=command,
                entry=entry,
            )
            if found.limit is None:
                return None
            best = found.best
            path = None
            if best is not None and best.run is not None:
                path = found.directory / best.run
            aim, limit = point.search.aim, asdict(found.limit)
            stands = standing_of(limit, aim)
            limit |= {"own": found.limit.own, "field": aim.field, "stands": stands}
            return measured(path, found.limit.confirmed and stands == "closed", limit)
        path = _free(directory / "runs", name)
        result = await run(
            point.scenario,
            path,
            progress=_progress(watch, state),
            interrupt=interrupt,
            command=command,
            faults=what.faults,
            entry=entry,
        )
    except RunInterruptedError:
        return None
    except LoadgenError as error:
        return measured(error=f"{type(error).__name__}: {error}", status=error.exit_status)
    if result.interrupted:
        return None
    if not result.measured:
        reasons = result.verdict.reasons
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in reasons)
        return measured(error=why or "nothing was measured", status=result.exit_status)
    return measured(path, result.verdict.valid)


def standing_of(limit: Mapping[str, Any], aim: Aim | None) -> Standing:
    """What a search's end says of the limit; only what is closed in on is one.

    A load that held twice is not yet a limit: steps may have run out with the bracket open ("not
    closed"), or nothing that was tried failed ("at least").
    """
    load, above = limit["load"], limit["above"]
    if load is None:
        return "nothing held"
    if above is None:
        return "at least"
    precision = PRECISION if aim is None else aim.precision
    near = above <= load * (1 + precision) or (aim is not None and aim.whole and above - load <= 1)
    return "closed" if near else "not closed"


def _with(
    state: SweepState, snapshot: Snapshot | None, searching: SearchState | None
) -> SweepState:
    return SweepState(state.point, state.number, state.total, state.repetition, snapshot, searching)


def _progress(watch: Watch, state: SweepState) -> Progress:
    return lambda snapshot: watch(_with(state, snapshot, None))


# The sweep's directory ------------------------------------------------------------------------


def _opened(
    what: Sweep, points: Sequence[Point], directory: Path, command: Sequence[str]
) -> dict[tuple[str, int], Measured]:
    """What was measured before, by key and repetition; writes the grid."""
    path = directory / "sweep.json"
    kept: dict[tuple[str, int], Measured] = {}
    if path.exists():
        if _case_of(path) != what.scenario.case:
            raise RunDirectoryError(
                f"{printable(str(directory), 200)} holds a sweep of another case; name another "
                "directory with --out"
            )
        kept = {(one.key, one.repetition): one for one in read_points(directory)}
        _require_grown(what, points, directory, kept.values())
    else:
        require_free(directory)
    document = {
        "schema": 1,
        "kind": "sweep",
        "case": what.scenario.case,
        "scenario": scenario_fields(what.scenario),
        "axes": [
            [name, [_shown({name: value})[name] for value in values]] for name, values in what.axes
        ],
        "repeat": what.repeat,
        "search": what.search is not None,
        "program": program(),
        "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "command": redact_command(command),
    }
    try:
        (directory / "runs").mkdir(parents=True, exist_ok=True)
        write_json(path, document)
    except OSError as error:
        raise RunDirectoryError(
            f"sweep directory {printable(str(directory), 200)} cannot be written: "
            f"{error.strerror}; name another with --out"
        ) from None
    return kept


def _require_grown(
    what: Sweep, points: Sequence[Point], directory: Path, kept: Iterable[Measured]
) -> None:
    """Refuse a grid that leaves out what was measured: its table would take the other's place.

    Keys are of the whole scenario and search, so that this is so for any other option, too. What
    could not be run is no loss.
    """
    keys = {point.key for point in points}
    lost = [one for one in kept if not one.error]
    lost = [one for one in lost if one.key not in keys or one.repetition > what.repeat]
    if lost:
        raise RunDirectoryError(
            f"{printable(str(directory), 200)} holds another sweep: {len(lost)} of its rows would "
            "not be in the table; name another directory with --out, or ask for the same with "
            "more values"
        )


def _case_of(path: Path) -> object:
    try:
        return orjson.loads(path.read_bytes()[:_FILE_LIMIT_BYTES])["case"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _free(parent: Path, name: str) -> Path:
    """A directory of this name, or with a number where a run that was cut off left one."""
    path = parent / name
    number = 2
    while path.exists():
        path = parent / f"{name}.{number}"
        number += 1
    return path


def _write_points(directory: Path, kept: Mapping[tuple[str, int], Measured]) -> None:
    lines = [orjson.dumps(asdict(one), option=orjson.OPT_APPEND_NEWLINE) for one in kept.values()]
    write_atomically(directory / "points.jsonl", b"".join(lines))


def read_points(directory: Path) -> tuple[Measured, ...]:
    """What a sweep's directory tells; raises RunDirectoryError where it is damaged."""
    path = directory / "points.jsonl"
    if not path.exists():
        return ()
    try:
        lines = path.read_bytes()[:_FILE_LIMIT_BYTES].splitlines()
        return tuple(Measured(**orjson.loads(line)) for line in lines)
    except (OSError, ValueError, TypeError):
        raise RunDirectoryError(
            f"{printable(str(path), 200)} is damaged; name another directory with --out"
        ) from None
