"""The common part of the commands of cases: run one and show its score card."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap

from loadgen.cli.cluster import on_testbed
from loadgen.cli.options import Flags
from loadgen.cli.result_text import Paper, print_result, result_lines, tell, two_lines
from loadgen.cli.search_view import rate_step_lines
from loadgen.errors import LoadgenError, PowerLogError, RunDirectoryError
from loadgen.plan.scenario import Scenario
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.log import require_readable
from loadgen.report.power.settings import LOG_OPTIONS, LogSettings, log_settings
from loadgen.report.render.write import indented, write_report
from loadgen.report.score_card import ScoreCard, card_document
from loadgen.run.archive import compared, repeat_directory, write_bundle
from loadgen.run.coordinator import RunResult
from loadgen.run.progress import progress_on
from loadgen.run.rundir import default_directory, require_free
from loadgen.run.testbed import Testbed


def play(scenario: Scenario, flags: Flags) -> RunResult:
    """Run the scenario into `--out`, on the hosts that the options request, with progress."""
    with progress_on(sys.stderr, quiet=flags["quiet"]) as progress:

        async def work(directory: Path, testbed: Testbed) -> RunResult:
            return await testbed.run(scenario, directory, progress=progress)

        return on_testbed(work, [scenario], scenario.case, flags, lends=False)


def logs_of(scenario: Scenario) -> LogSettings | None:
    """Return the power logs that a scenario names, None without any; raises PowerLogError."""
    return log_settings(scenario.pdu, *(getattr(scenario, name) for name in LOG_OPTIONS))


def score(directory: Path, scenario: Scenario) -> ScoreCard:
    """Return the score card of a run directory, and write it there in every rendering."""
    rack_units = getattr(scenario, "rack_units", None)
    try:
        card = summarize_run(directory, logs_of(scenario), rack_units)
    except PowerLogError:
        # A faulty log must not withhold the score card of a run.
        write_report(report_of([summarize_run(directory, rack_units=rack_units)]), directory)
        raise
    write_report(report_of([card]), directory)
    return card


def show(
    result: RunResult,
    scenario: Scenario,
    flags: Flags,
    *,
    cards: list[ScoreCard] | None = None,
) -> int:
    """Print the result of a run as the options request; return its exit status.

    With `cards` the score card is added to them, and its JSON is left to the caller.
    """
    try:
        card = score(result.directory, scenario)
    except RunDirectoryError as error:
        if result.measured and not result.interrupted:
            raise
        reasons = "; ".join(f"{r.code}: {r.detail}" for r in result.verdict.reasons)
        tell([f"loadgen: {reasons or error}; the results so far are in {result.directory}"])
        return result.exit_status
    except LoadgenError:
        tell([f"results: {result.directory}"])
        raise
    if cards is not None:
        cards.append(card)

    def lines(paper: Paper) -> list[str]:
        if flags["quiet"]:
            return two_lines(card, paper)
        long = result_lines(card, result.directory, paper, long=flags["long"])
        return [*long, *rate_step_lines(result.steps)]

    alone = flags["json_"] and cards is None
    print_result(flags, card_document(card) if alone else None, lines)
    return result.exit_status


def play_case(scenario: Scenario, flags: Flags) -> int:
    """Play a scenario, with `--repeat` twice, and show its results; return the exit status."""
    require_readable(logs_of(scenario))
    if not flags.get("repeat"):
        return show(play(scenario, flags), scenario, flags)
    directory = flags["out"] or default_directory(datetime.now(UTC), scenario.case)
    again = repeat_directory(directory)
    for path in (directory, again):
        # Both before either: the main run may take an hour.
        require_free(path)
    quiet, as_json = flags["quiet"], flags["json_"]
    cards: list[ScoreCard] = []
    try:
        result = play(scenario, {**flags, "out": directory})
        status = show(result, scenario, flags, cards=cards)
        if not result.measured or result.interrupted:
            return status
        if not quiet:
            tell(["", f"once more, for reproducibility: {again}"])
        result = play(scenario, {**flags, "out": again})
        status = max(status, show(result, scenario, flags, cards=cards))
    finally:
        # Also if the repetition failed: the results of the first run are shown.
        if as_json and cards:
            print(indented([card_document(card) for card in cards]).decode(), end="", flush=True)
    print_result(flags, None, lambda _: ["", *wrap(compared(directory, again), 100)])
    return status


def bundle(flags: Flags) -> int:
    print(write_bundle(flags["run"], flags["repeat"], flags["out"]))
    return 0
