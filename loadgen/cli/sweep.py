"""`loadgen sweep CASE --set NAME=V1,V2`: a grid of runs, or of their limits, in one table."""

import sys
from functools import partial
from typing import Any

from loadgen.cases.case import Case
from loadgen.cli import options
from loadgen.cli.cluster import on_testbed, parsed
from loadgen.cli.result_text import print_result, tell
from loadgen.cli.search import searched, with_thresholds
from loadgen.cli.search_view import search_progress, sweep_lines
from loadgen.errors import ScenarioError, UsageError
from loadgen.plan.fields import option_of
from loadgen.plan.units import parse_count
from loadgen.report.build.sweep_report import sweep_report
from loadgen.report.build.sweep_table import table_of
from loadgen.report.render.text import notice_for, notice_lines
from loadgen.report.render.write import write_report
from loadgen.run.progress import progress_on
from loadgen.run.search.sweep import Sweep, SweepResult, SweepState, points_of, sweep
from loadgen.sentences import CLI_TEXT, RUN_TEXT

Axes = tuple[tuple[str, tuple[str, ...]], ...]


def _axes(pairs: list[str]) -> Axes:
    axes = []
    for pair in pairs:
        field, equals, values = pair.partition("=")
        texts = tuple(text.strip() for text in values.split(","))
        if not equals or not field.strip() or not all(texts):
            raise ScenarioError(CLI_TEXT.SWEEP_FORM())
        axes.append((field.strip().replace("-", "_"), texts))
    return tuple(axes)


def _wanted(case: Case[Any], flags: options.Flags) -> Sweep:
    """Return the sweep that the options request; raises ScenarioError."""
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
    for name, values in axes:
        if name == "broker":
            # What is encrypted has options that a plain connection refuses (`run.search.sweep`).
            encrypted = [url for url in values if url.startswith(("mqtts:", "wss:"))]
            alone["broker"] = (encrypted or list(values))[:1]
    return Sweep(
        scenario=options.read_scenario(case, alone),
        axes=axes,
        repeat=repeat,
        search=(lambda scenario: searched(scenario, flags, request)) if flags["search"] else None,
    )


def sweep_case(case: Case[Any], flags: options.Flags) -> int:
    request, quiet = _wanted(case, flags), flags["quiet"]
    scenarios = [point.scenario for point in points_of(request)]
    notice = notice_for(case.name)
    notices = iter(() if request.search else notice_lines(notice))

    def watch(state: SweepState) -> None:
        if state.searching is not None:
            show(state.searching, _heading(state))
        elif state.snapshot is not None:
            progress(state.snapshot)
        elif request.search is None and not quiet:
            tell([*notices, _heading(state)])

    with (
        search_progress(quiet=quiet or request.search is None, notice=notice) as show,
        progress_on(sys.stderr, quiet=quiet or request.search is not None) as progress,
    ):
        work = partial(sweep, request, watch=watch)
        result = on_testbed(work, scenarios, f"sweep-{case.name}", flags)
    return _show(result, flags)


def _heading(state: SweepState) -> str:
    values = ", ".join(f"{name}={value}" for name, value in state.point.values.items())
    again = f", repetition {state.repetition}" if state.repetition > 1 else ""
    return f"{state.number} of {state.total}: {values}{again}"


def _show(result: SweepResult, flags: options.Flags) -> int:
    if not result.measured:
        tell([f"loadgen: interrupted before anything was measured; see {result.directory}"])
        return result.exit_status
    table, brief = table_of(result), flags["quiet"]
    report = sweep_report(table)
    write_report(report, result.directory, "table")
    document = report.document if flags["json_"] else None
    print_result(flags, document, lambda paper: sweep_lines(table, result, paper, brief=brief))
    return result.exit_status
