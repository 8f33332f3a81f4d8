"""Turns: the same load for several brokers, repeated in an order that treats them alike.

    DIR/side-1/run-1/   run 1 of the first side
    DIR/saturated/      runs that were made again because the host spoiled them

The sides go A B B A A B, so that a host which becomes slower or faster does so for all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.cases.registry import resolve
from loadgen.errors import CannotRunError, ScenarioError
from loadgen.plan.scenario import Scenario
from loadgen.run.coordinator import RunResult
from loadgen.run.preflight import check_host
from loadgen.run.progress import Snapshot
from loadgen.run.rundir import require_free
from loadgen.run.secrets import with_secrets
from loadgen.run.testbed import Testbed, run_unspoiled
from loadgen.sentences import RUN_TEXT

MOST_REPEATED = 1_000


@dataclass(frozen=True, slots=True)
class Turn:
    """A run of a comparison: its side and its number, both from 1 on, and its place of `total`.

    `again` is the number of its spoiled runs until now. `snapshot` is the progress.
    """

    side: int
    number: int
    place: int
    total: int
    again: int = 0
    snapshot: Snapshot | None = None

    @property
    def folder(self) -> Path:
        """The run's directory in that of the comparison."""
        return Path(f"side-{self.side}", f"run-{self.number}")


@dataclass(frozen=True, slots=True)
class TurnsResult:
    """The runs of each side; `repeated` is the number of spoiled ones that were made again."""

    directory: Path
    runs: tuple[tuple[RunResult, ...], ...]
    repeated: int = 0
    interrupted: bool = False


Watch = Callable[[Turn], None]


def turns(sides: int, repeat: int) -> Iterator[Turn]:
    """Yield the turns: every second round has the sides in reverse."""
    place = 0
    for number in range(1, repeat + 1):
        order = range(1, sides + 1)
        for side in order if number % 2 else reversed(order):
            place += 1
            yield Turn(side, number, place, sides * repeat)


async def take_turns(
    scenarios: Sequence[Scenario],
    directory: Path,
    testbed: Testbed,
    *,
    repeat: int = 3,
    watch: Watch = lambda _turn: None,
) -> TurnsResult:
    """Play the scenario of each side `repeat` times, on a testbed that lends no connections.

    A run that the host spoiled is made again, at most twice. An interruption ends the
    turns with the runs that are complete. Raise LoadgenError if a run cannot be played.
    """
    if not 1 <= repeat <= MOST_REPEATED:
        raise ScenarioError(RUN_TEXT.REPEAT(repeat=repeat, most=MOST_REPEATED))
    require_free(directory)
    for scenario in scenarios:
        check_host(with_secrets(resolve(scenario)))
    runs: list[list[RunResult]] = [[] for _ in scenarios]
    repeated = 0
    for turn in turns(len(scenarios), repeat):
        result, again = await run_unspoiled(
            testbed,
            scenarios[turn.side - 1],
            directory / turn.folder,
            directory,
            progress=lambda snapshot, now=turn: watch(replace(now, snapshot=snapshot)),  # type: ignore[misc]
            watch=lambda again, now=turn: watch(replace(now, again=again)),  # type: ignore[misc]
        )
        repeated += again
        if result.interrupted:
            break
        if not result.measured:
            raise CannotRunError(RUN_TEXT.SIDE(side=turn.side, reason=result.why_unmeasured))
        runs[turn.side - 1].append(result)
    return TurnsResult(directory, tuple(map(tuple, runs)), repeated, result.interrupted)
