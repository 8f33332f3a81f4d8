"""The common part of the commands of cases: run one and show its score card."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cases.case import Case
from loadgen.cli.cluster import on_testbed
from loadgen.cli.options import (
    Flags,
    case_options,
    declared,
    help_of,
    read_scenario,
    with_options,
)
from loadgen.errors import LoadgenError, PowerLogError, RunDirectoryError
from loadgen.plan.scenario import Scenario

if TYPE_CHECKING:
    from loadgen.cli.result_text import Paper
    from loadgen.report.score_card import ScoreCard
    from loadgen.run.coordinator import RunResult
    from loadgen.run.testbed import Testbed


def case_command(case: Case[Any]) -> Callable[..., int]:
    def command(flags: Flags) -> int:
        return play_and_show(read_scenario(case, flags), flags)

    options = [*case_options(case), *declared("run"), *declared("result")]
    return with_options(command, options, help_of(case))


def play_and_show(scenario: Scenario, flags: Flags) -> int:
    """Run the scenario with the options of a run; return the exit status."""
    check_power_logs(scenario)
    return show(play(scenario, flags), scenario, flags)


def play(
    scenario: Scenario, flags: Flags, command: Sequence[str] = (), *, root: Path | None = None
) -> "RunResult":
    """Run the scenario into `--out`, on the hosts that the options request, with progress.

    With a `root` a run that the host spoiled is made again, at most twice.
    """
    from loadgen.run.progress import progress_on
    from loadgen.run.testbed import run_unspoiled

    quiet = flags["quiet"]

    def watch(again: int) -> None:
        if again and not quiet:
            tell([f"{scenario.case}{again_note(again)}"])

    with progress_on(sys.stderr, quiet=quiet) as progress:

        async def work(directory: Path, testbed: "Testbed") -> "RunResult":
            result, _ = await run_unspoiled(
                testbed, scenario, directory, root, progress=progress, watch=watch
            )
            return result

        return on_testbed(work, [scenario], scenario.case, flags, command=command, lends=False)


def check_power_logs(scenario: Scenario) -> None:
    """Refuse power logs that cannot be used before a run is made for them; raises PowerLogError.

    They may still grow; what they cover is judged after the run.
    """
    if not scenario.pdu:
        return
    from loadgen.report.power.log import require_readable
    from loadgen.report.power.settings import LOG_OPTIONS, log_settings

    settings = log_settings(scenario.pdu, *(getattr(scenario, name) for name in LOG_OPTIONS))
    if settings is not None:
        require_readable(settings)


def score(directory: Path, scenario: Scenario) -> "ScoreCard":
    """Return the score card of a run directory, and write it there in every rendering."""
    from loadgen.report.build.cards_report import report_of
    from loadgen.report.build.summary import summarize_run
    from loadgen.report.render.write import write_report

    rack_units: Any = scenario.plain().get("rack_units")
    try:
        card = summarize_run(
            directory,
            scenario.pdu,
            scenario.pdu_timezone,
            rack_units,
            pdu_columns=scenario.pdu_columns,
            pdu_offset=scenario.pdu_offset,
            pdu_format=scenario.pdu_format,
        )
    except PowerLogError:
        # A faulty log must not withhold the score card of a run.
        write_report(report_of([summarize_run(directory, rack_units=rack_units)]), directory)
        raise
    write_report(report_of([card]), directory)
    return card


def show(
    result: "RunResult",
    scenario: Scenario,
    flags: Flags,
    *,
    cards: "list[ScoreCard] | None" = None,
) -> int:
    """Print the result of a run as the options request; return its exit status.

    With `cards` the score card is added to them, and its JSON is left to the caller: one command
    that makes several runs still prints one document.
    """
    from loadgen.cli.result_text import print_result, result_lines, two_lines
    from loadgen.cli.search_view import rate_step_lines
    from loadgen.report.score_card import card_document

    try:
        card = score(result.directory, scenario)
    except RunDirectoryError as error:
        if result.measured and not result.interrupted:
            raise
        reasons = "; ".join(f"{r.code}: {r.detail}" for r in result.verdict.reasons)
        tell([f"loadgen: {reasons or error}; what there is is in {result.directory}"])
        return result.exit_status
    except LoadgenError:
        tell([f"results: {result.directory}"])
        raise
    if cards is not None:
        cards.append(card)

    def lines(paper: "Paper") -> list[str]:
        if flags["quiet"]:
            return two_lines(card, paper)
        long = result_lines(card, result.directory, paper, long=flags["long"])
        return [*long, *rate_step_lines(result.steps)]

    alone = flags["json_"] and cards is None
    print_result(flags, card_document(card) if alone else None, lines)
    return result.exit_status


def again_note(again: int) -> str:
    """Return the part of a line of progress about a run that is made again."""
    return f", again ({again}): the host spoiled the run" if again else ""


def tell(lines: Sequence[str]) -> None:
    """Write lines for people to stderr."""
    print("\n".join(lines), file=sys.stderr)
