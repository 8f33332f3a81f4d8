"""`loadgen sweep CASE --set NAME=V1,V2`: a grid of runs, or of their limits, in one table."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from loadgen.cases.case import Case
from loadgen.cli import options
from loadgen.cli.cluster import on_testbed, parsed
from loadgen.cli.result_text import print_result, tell
from loadgen.cli.search import searched, with_thresholds
from loadgen.cli.search_view import progress_of, sweep_lines
from loadgen.errors import ScenarioError, UsageError
from loadgen.plan.fields import option_of
from loadgen.plan.scenario import ENCRYPTED
from loadgen.plan.units import parse_count
from loadgen.report.build.sweep_report import sweep_report
from loadgen.report.build.sweep_table import table_of
from loadgen.report.render.text import notice_for
from loadgen.report.render.write import write_report
from loadgen.run.search.sweep import Sweep, SweepResult, points_of, sweep
from loadgen.sentences import CLI_TEXT, RUN_TEXT

Axes = tuple[tuple[str, tuple[str, ...]], ...]


def _axes(pairs: list[str]) -> Axes:
    axes = tuple(
        (name, tuple(text.strip() for text in str(values).split(",")))
        for name, values in options.named_values(pairs, CLI_TEXT.SWEEP_FORM()).items()
    )
    if not all(text for _, texts in axes for text in texts):
        raise ScenarioError(CLI_TEXT.SWEEP_FORM())
    return axes


def _wanted(case: Case[Any], flags: options.Flags) -> Sweep:
    axes = _axes(flags["set_"] or [])
    if not axes:
        raise ScenarioError(RUN_TEXT.NOTHING_SWEPT())
    for field, _ in axes:
        if flags.get(field) is not None:
            raise ScenarioError(CLI_TEXT.OPTION_AND_SET(name=field))
    of_runs, of_search = with_thresholds(flags, flags["search"])
    if not flags["search"]:
        for name in (option.name for option in options.declared("search")):
            if flags[name] if name != "require" else of_search:
                raise UsageError(CLI_TEXT.ONLY_FOR_SEARCH(option=option_of(name.strip("_"))))
    repeat = parsed("repeat", flags["repeat"], parse_count)
    request = flags["for_"] or "rate"
    alone = {**of_runs, "set_": None}
    alone |= {name: one_of(values) for name, values in axes if name == "broker"}
    return Sweep(
        scenario=options.read_scenario(case, alone),
        axes=axes,
        repeat=repeat,
        search=(lambda scenario: searched(scenario, flags, request)) if flags["search"] else None,
    )


def one_of(brokers: Sequence[str]) -> list[str]:
    """Return one broker, an encrypted one if any is: its scenario can have the options of all."""
    encrypted = [url for url in brokers if url.startswith(ENCRYPTED)]
    return (encrypted or [*brokers])[:1]


def sweep_case(case: Case[Any], flags: options.Flags) -> int:
    return _show(played(_wanted(case, flags), f"sweep-{case.name}", flags), flags)


def played(grid: Sweep, kind: str, flags: options.Flags) -> SweepResult:
    """Play a sweep in `--out`, or a new directory named by its kind, with progress."""
    scenarios = [point.scenario for point in points_of(grid)]
    notice = notice_for(grid.scenario.case)
    with progress_of(quiet=flags["quiet"], notice=notice) as show:
        return on_testbed(partial(sweep, grid, watch=show), scenarios, kind, flags)


def _show(result: SweepResult, flags: options.Flags) -> int:
    if not result.measured:
        tell(["loadgen: interrupted before anything was measured"])
        return result.exit_status
    table, brief = table_of(result), flags["quiet"]
    report = sweep_report(table)
    write_report(report, result.directory, "table")
    document = report.document if flags["json_"] else None
    print_result(flags, document, lambda paper: sweep_lines(table, result, paper, brief=brief))
    return result.exit_status
