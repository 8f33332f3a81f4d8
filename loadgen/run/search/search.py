"""A search: each step is a run in its directory. It can be interrupted and continued.

    DIR/search.json      the definition, and the limit after it was found
    DIR/steps.jsonl      one line for each step, written when the step has ended
    DIR/steps/NN-LOAD/   the run directory of each

`judge.next_step` decides the next load. A second start on the same directory continues; an
interrupted step is played again.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from loadgen import errors
from loadgen.brokers.ask import greet
from loadgen.brokers.endpoints import Endpoint, parse_broker
from loadgen.cases.case import Case
from loadgen.cases.registry import CASES, resolve, vary
from loadgen.judge import next_step
from loadgen.judge.backlog import backlog_levels
from loadgen.judge.facts import RunFacts
from loadgen.judge.next_step import CONFIRMS, Aim, Limit, Probe, Require, Tried
from loadgen.judge.verdict import Reason
from loadgen.plan.plan import Plan
from loadgen.plan.removed import with_removed
from loadgen.plan.scenario import Scenario
from loadgen.run.coordinator import RunResult
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.progress import Progress, Snapshot
from loadgen.run.seal import digest_of
from loadgen.run.search.journal import Journal
from loadgen.run.secrets import with_secrets
from loadgen.run.tasks import finished_or
from loadgen.run.testbed import Testbed
from loadgen.sentences import BROKER_TEXT, RUN_TEXT, printable
from loadgen.worker.tls import tls_context

NS = 1_000_000_000
_DETAIL_CHARACTERS = 500
_RECOVERY_S = 60.0  # longest wait for a broker to answer again after a step that overloaded it
_RETRY_S = 1.0
STEP_S = 5.0
"""Window of a step, unless the search has another or that of its scenario is shorter."""
STEP_WARMUP_S = 0.5  # longest warm-up of a step; its devices are already connected
CONFIRMATIONS = 3  # windows of a confirmation, all of which must hold
LONG_CONFIRMATIONS = 2
"""The same for a search without short steps; an earlier step at the load is one of them."""
_SCALES = ("rate", "ratio", "devices", "base")
"""Fields in proportion to which a run's deliveries grow, `devices` if there is no rate."""


@dataclass(frozen=True, slots=True)
class Search:
    """The definition of a search: a scenario whose field `aim.field` varies under `require`.

    `step_s` is the longest window of a step, and each of those that confirm; None for `STEP_S`.
    After about `limit_s` seconds it confirms the highest load that held, and ends.
    """

    scenario: Scenario
    aim: Aim
    require: Require
    step_s: float | None = None
    limit_s: float | None = None

    def __post_init__(self) -> None:
        """Raise ScenarioError if a step cannot be played."""
        if getattr(self.scenario, "steps", None) is not None:
            raise errors.ScenarioError(RUN_TEXT.SEARCHED_STEPS())
        try:
            step_scenario(self, Probe(self.aim.start, "first"))
        except errors.ScenarioError as error:
            # Only the length of a step is checked for the first time here.
            errors.reword(error, re.sub(r"^(--)?duration:", "--step-duration:", str(error)))
            raise

    @property
    def case(self) -> Case[Any]:
        return CASES[self.scenario.case]

    @property
    def has_short_steps(self) -> bool:
        """True if the backlog soon shows if a load holds; others need a full window."""
        return self.require.backlog and not self.case.connects_only and not self.case.disclosure

    @property
    def digest(self) -> str:
        """Digest of the definition without the number of steps that it may take."""
        document = self.document()
        document["scenario"] = with_removed(self.scenario.plain(), "field")
        del document["aim"]["most_steps"]
        return digest_of(with_removed(document, "argument"))

    def document(self) -> dict[str, Any]:
        """Return the definition as JSON values, without any password."""
        return {
            "case": self.scenario.case,
            "scenario": self.scenario.plain(),
            "aim": self.aim.document(),
            "require": asdict(self.require),
            "step_s": self.step_s,
        }


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A step of a search. `run` is its directory within the search's, else None.

    `p99_us` is that of the case's latency. `broker` is its name and version, "" if the step ended
    before they were known.
    """

    number: int
    tried: Tried
    run: str | None
    seconds: float
    sent_per_s: float | None = None
    received_per_s: float | None = None
    lost: int = 0
    p99_us: float | None = None
    busy_share: float | None = None
    broker: str = ""


@dataclass(frozen=True, slots=True)
class SearchState:
    """Where a search stands: `probe` is under way, `snapshot` its progress."""

    search: Search
    steps: tuple[SearchStep, ...]
    probe: Probe | None
    snapshot: Snapshot | None = None
    limit: Limit | None = None

    @property
    def bracket(self) -> tuple[float | None, float | None]:
        """Highest load that holds and lowest that fails."""
        return next_step.bracket_of([step.tried for step in self.steps])


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search. `limit` is None if it was interrupted and can be continued."""

    directory: Path
    search: Search
    steps: tuple[SearchStep, ...]
    limit: Limit | None

    @property
    def best(self) -> SearchStep | None:
        """The last valid step at the limit."""
        load = None if self.limit is None else self.limit.load
        held = [step for step in self.steps if step.tried.valid and step.tried.load == load]
        return held[-1] if held else None

    @property
    def exit_status(self) -> int:
        """0 for a confirmed limit or the highest load to be tried, 130 interrupted, else 1."""
        if self.limit is None:
            return 130
        found = self.limit.confirmed and self.limit.ended in ("confirmed", "top of range")
        return 0 if found else 1


Watch = Callable[[SearchState], None]


async def search(
    spec: Search, directory: Path, testbed: Testbed, *, watch: Watch = lambda _state: None
) -> SearchResult:
    """Find the limit, in a new directory or in one where the same search was begun.

    A search that ran out of steps continues if it may make more steps by the same rule. A step ends
    as soon as its verdict is certain, and lends its connections to the next one if the two differ
    in their rates alone.

    Raise RunDirectoryError if the directory holds something else, and LoadgenError if a step cannot
    be run: the steps until then are kept.
    """
    journal = journal_of(directory)
    with journal.opened():
        document = journal.begun(spec.digest, RUN_TEXT.OTHER_SEARCH)
        if document is None:
            notice = {"notice": spec.case.notice} if spec.case.notice else {}
            definition = {**notice, **spec.document(), "step_rule": next_step.STEP_RULE}
            definition |= {"digest": spec.digest, "limit": None}
            document = journal.begin(definition, testbed.command)
        steps = journal.entries()
        while isinstance(probe := _next_step(spec, steps), Probe):
            if document.get("step_rule") != next_step.STEP_RULE:
                raise errors.RunDirectoryError(RUN_TEXT.OTHER_STEP_RULE(path=directory))
            step = await _play_step(SearchState(spec, steps, probe), probe, journal, testbed, watch)
            if step is None:
                return SearchResult(directory, spec, steps, None)
            broke = any(reason.code == "DISCONNECTED" for reason in step.tried.reasons)
            if broke and (silent := await silent_broker(spec.scenario, testbed.interrupt)):
                # No load failed: the step is not stored, and is played again on continuing.
                raise errors.BrokerUnreachableError(RUN_TEXT.BROKER_WENT_AWAY(broker=silent))
            before = next((one.broker for one in steps if one.broker), "")
            # The reflector is this program's: run.json has the version.
            ours = before.startswith("reflector ") and step.broker.startswith("reflector ")
            if before and step.broker and step.broker != before and not ours:
                text = RUN_TEXT.OTHER_BROKER(path=directory, before=before, broker=step.broker)
                raise errors.RunDirectoryError(text)
            steps = (*steps, step)
            journal.write(steps)
        result = SearchResult(directory, spec, steps, probe)
        watch(SearchState(spec, steps, None, limit=probe))
        best = None if result.best is None else result.best.run
        limit = asdict(probe) | {"own": probe.of_generator, "run": best}
        journal.rewrite(document | {"aim": spec.aim.document(), "limit": limit})
    return result


def _next_step(spec: Search, steps: Sequence[SearchStep]) -> Probe | Limit:
    tried, left = [step.tried for step in steps], next_step.STEPS_LIMIT
    if spec.limit_s is not None and steps:
        took_s = [step.seconds for step in steps]
        next_s = sum(took_s) / len(took_s)
        if tried[-1].valid:  # a higher load takes longer, in the ratio of the last two
            before_s, last_s = took_s[-2:][0], took_s[-1]
            next_s = max(before_s, min(last_s**2 / before_s, last_s * next_step.GROWTH))
        left = int((spec.limit_s - sum(took_s)) / next_s)
        if any(one.valid for one in tried) and not any(one.purpose in CONFIRMS for one in tried):
            left = max(left, 1)
    return next_step.next_step(spec.aim, tried, max(left, 0))


async def _play_step(
    state: SearchState, probe: Probe, journal: Journal[SearchStep], testbed: Testbed, watch: Watch
) -> SearchStep | None:
    """Play the next step; return None if it was interrupted."""

    def progress(snapshot: Snapshot) -> None:
        watch(replace(state, snapshot=snapshot))

    watch(state)
    spec, number = state.search, len(state.steps) + 1
    confirms = probe.purpose in CONFIRMS
    if confirms and not spec.has_short_steps:
        await testbed.reset(progress)
    started = time.monotonic()
    try:
        while True:
            try:
                played = await _run_windows(state, probe, journal, testbed, progress)
                break
            except errors.BrokerUnreachableError:
                # A broker may need time to recover from a step that was too much for it.
                if not state.steps or time.monotonic() - started > _RECOVERY_S:
                    raise
                await testbed.reset(progress)
                await asyncio.sleep(_RETRY_S)
    except RunInterruptedError:
        return None
    except errors.HostLimitError as error:
        if not state.steps:
            raise
        reason = Reason("HOST_LIMIT", printable(str(error), _DETAIL_CHARACTERS))
        tried = Tried(probe.load, probe.purpose, False, (reason,))
        return SearchStep(number, tried, None, time.monotonic() - started)
    directory, result, reasons = played
    if result.interrupted:
        return None
    broker = ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        server = orjson.loads((directory / "run.json").read_bytes())["broker"]
        broker = printable(f"{server['name']} {server['version']}", 200)
    facts = result.facts
    window_s = facts.window_s or 1.0
    messages = not spec.case.connects_only
    valid, served = result.measured and not reasons, served_load(spec, probe.load, facts)
    return SearchStep(
        number=number,
        tried=Tried(probe.load, probe.purpose, valid, reasons, served),
        run=str(directory.relative_to(journal.directory)),
        seconds=time.monotonic() - started,
        sent_per_s=facts.on_time / window_s if messages else None,
        received_per_s=facts.messages.window.intact / window_s if messages else None,
        lost=facts.messages.window.lost,
        p99_us=facts.service.latency_p99_us,
        busy_share=facts.generator.busy_share,
        broker=broker,
    )


async def _run_windows(
    state: SearchState,
    probe: Probe,
    journal: Journal[SearchStep],
    testbed: Testbed,
    progress: Progress,
) -> tuple[Path, RunResult, tuple[Reason, ...]]:
    """Run the windows of a step until one does not hold; return the last one and its reasons."""
    spec, confirms = state.search, probe.purpose in CONFIRMS
    scenario, windows = step_scenario(spec, probe), 1
    ends: tuple[bool, ...] = (True, False) if spec.has_short_steps else ()
    if confirms and spec.has_short_steps:
        windows, ends = CONFIRMATIONS, (False,)
    elif confirms:
        held = any(step.tried.valid and step.tried.load == probe.load for step in state.steps)
        windows = LONG_CONFIRMATIONS - held
    for _ in range(windows):
        directory = journal.new_part(f"{len(state.steps) + 1:02d}-{probe.load:.10g}")
        result = await testbed.run(scenario, directory, progress=progress, ends_when_certain=ends)
        reasons = spec.require.unmet(result.verdict, result.facts.messages.window)
        if result.interrupted or reasons or not result.measured:
            break
    return directory, result, reasons


async def silent_broker(scenario: Scenario, interrupt: Interrupt) -> str:
    """Return a broker of the scenario that answers no CONNECT within a minute, else "".

    A refusal is an answer, unless it says that the broker is not ready. An interrupt ends the wait.
    """
    plan = with_secrets(resolve(scenario))

    async def silent() -> str:
        for endpoint in map(parse_broker, plan.brokers.addresses):
            try:
                async with asyncio.timeout(_RECOVERY_S):
                    while isinstance(endpoint, Endpoint) and not await _answers(endpoint, plan):
                        await asyncio.sleep(_RETRY_S)
            except TimeoutError:
                assert isinstance(endpoint, Endpoint)
                return endpoint.redacted
        return ""

    waiting = await finished_or(silent(), interrupt.asked)
    return "" if waiting.cancelled() else waiting.result()


async def _answers(endpoint: Endpoint, plan: Plan) -> bool:
    try:
        # The plan of a scenario has no addresses yet: the endpoint says if it is encrypted.
        context = tls_context(plan.tls) if endpoint.tls else None
        await greet(endpoint, tls_context=context, versions=(plan.version,))
    except errors.BrokerRefusedError as error:
        return error.code != BROKER_TEXT.NOT_READY.code
    except errors.BrokerUnreachableError:
        return False
    return True


def step_scenario(spec: Search, probe: Probe) -> Scenario:
    scenario, aim = spec.scenario, spec.aim
    changes: dict[str, object] = {
        aim.field: round(probe.load) if aim.integral else probe.load,
        "latency_bound": spec.require.p99_s,
    }
    if spec.has_short_steps:
        changes["duration"] = min(scenario.duration, STEP_S)
        half_s = (spec.step_s or STEP_S) / 2
        changes["warmup"] = min(scenario.warmup, STEP_WARMUP_S, half_s)
    if spec.step_s is not None:
        changes["duration"] = spec.step_s
    return vary(scenario, changes)


def served_load(spec: Search, load: float, facts: RunFacts) -> float | None:
    """Return the load that the broker sustained, None if the run does not show it.

    It is the requested load without the backlog's growth over the window, or without the losses.
    """
    if spec.case.connects_only:
        if facts.connects.connect_rate is None or not facts.connects.connect_seconds:
            return None
        return min(load, facts.connects.connected / facts.connects.connect_seconds)
    scales = spec.aim.field in _SCALES and (
        spec.aim.field != "devices"
        or (spec.case.scales_by_devices and spec.scenario.plain()["rate"] is None)
    )
    expected, target = facts.messages.window.expected, facts.schedule.target_rate
    if not (scales and facts.begun and expected and target and facts.window_s):
        return None
    deliveries = expected / facts.begun
    asked = target * facts.window_s * deliveries
    backlog = tuple(
        (time_ns, 0, round(owed * deliveries) + outstanding)
        for time_ns, owed, outstanding in facts.service.backlog
    )
    growth = 0.0
    if (levels := backlog_levels(backlog)) is not None:
        (first_ns, before), (last_ns, after) = levels
        # The levels are from near the ends of the window, which is longer.
        growth = (after - before) * facts.window_s * NS / (last_ns - first_ns)
    short = max(growth, facts.messages.window.lost, 0.0) / asked
    if spec.case.timed_pair:
        # The sums include the background: they show if all was served, but not how much.
        return load if short < 1 - 1 / (1 + spec.aim.precision) else None
    return load * max(0.0, 1.0 - short)


def journal_of(directory: Path) -> Journal[SearchStep]:
    return Journal(directory, "search", "steps", "steps", SearchStep)
