"""`loadgen sweep CASE --set NAME=V1,V2`: a grid of runs, or of their limits, in one table."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cases.case import Case
from loadgen.cli import options
from loadgen.cli.cases import tell
from loadgen.cli.cluster import hosts_of, on_testbed, parsed
from loadgen.cli.search import (
    of_the_search,
    search_options,
    searched,
    with_thresholds,
)
from loadgen.errors import ScenarioError, UsageError
from loadgen.plan.fields import option_of
from loadgen.plan.units import parse_count
from loadgen.sentences import counted

if TYPE_CHECKING:
    from loadgen.cli.result_text import Paper
    from loadgen.report.build.sweep_table import SweepTable
    from loadgen.run.search.sweep import Sweep, SweepResult, SweepState


SUMMARY = "Run every combination of the values of some fields, for one table and chart."

Axes = tuple[tuple[str, tuple[str, ...]], ...]


def _axes(pairs: list[str]) -> Axes:
    axes = []
    for pair in pairs:
        field, equals, values = pair.partition("=")
        texts = tuple(text.strip() for text in values.split(","))
        if not equals or not field.strip() or not all(texts):
            raise ScenarioError("--set: write it as NAME=V1,V2, for example --set ratio=1,10,100")
        axes.append((field.strip().replace("-", "_"), texts))
    return tuple(axes)


def _wanted(case: Case[Any], flags: options.Flags) -> "Sweep":
    """Return the sweep that the options request; raises ScenarioError."""
    from loadgen.run.search.sweep import Sweep

    axes = _axes(flags["set_"] or [])
    if not axes:
        raise UsageError("--set: nothing is swept; for example --set ratio=1,10,100")
    for field, _ in axes:
        if flags.get(field) is not None:
            raise ScenarioError(f"{field}: given as an option and with --set; give it once")
    of_runs, of_search = with_thresholds(flags, flags["search"])
    if not flags["search"]:
        for name in (option.name for option in options.declared("search")):
            if flags[name] if name != "require" else of_search:
                raise UsageError(
                    f"{option_of(name.strip('_'))}: nothing is searched; use it with --search"
                )
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


def _command(case: Case[Any]) -> Callable[..., int]:
    def command(flags: options.Flags) -> int:
        from loadgen.cli.search_view import search_progress
        from loadgen.report.render.text import notice_for, notice_lines
        from loadgen.run.progress import progress_on
        from loadgen.run.search.sweep import points_of, sweep

        request, quiet = _wanted(case, flags), flags["quiet"]
        scenarios = [point.scenario for point in points_of(request)]
        source = hosts_of(request.scenario, flags)
        notice = notice_for(case.name)
        notices = iter(notice_lines(notice))

        def watch(state: "SweepState") -> None:
            if state.searching is not None:
                show(state.searching, _heading(state))
            elif state.snapshot is not None:
                progress(state.snapshot)
            elif request.search is None and not quiet:
                tell([*notices, _heading(state)])

        searches = request.search is not None
        with (
            search_progress(sys.stderr, quiet=quiet or not searches, notice=notice) as show,
            progress_on(sys.stderr, quiet=quiet or searches) as progress,
        ):
            work, out = partial(sweep, request, watch=watch), flags["out"]
            kind = f"sweep-{case.name}"
            result = on_testbed(work, scenarios, kind, out=out, quiet=quiet, source=source)
        return _show(result, as_json=flags["json_"], quiet=quiet)

    doc = (
        f"Run {case.name} with every combination of the values of some fields, for one table and "
        "chart.\n\nThe same command with the same --out continues a sweep.\n\nExample: "
        f"loadgen sweep {case.name} --set size=32,256,1024 --search"
    )
    fields = [field for field in of_the_search(case) if field.name != "set_"]
    listed = [*search_options(required=False), *fields, *options.declared("run")]
    return options.with_options(command, [*options.declared("sweep"), *listed], doc)


def _heading(state: "SweepState") -> str:
    values = ", ".join(f"{name}={value}" for name, value in state.point.values.items())
    again = f", repetition {state.repetition}" if state.repetition > 1 else ""
    return f"{state.number} of {state.total}: {values}{again}"


def _show(result: "SweepResult", *, as_json: bool, quiet: bool) -> int:
    from loadgen.cli.result_text import labelled, paper_of
    from loadgen.report.build.sweep_report import sweep_report
    from loadgen.report.build.sweep_table import table_of
    from loadgen.report.render.write import write_report

    if not result.measured:
        tell([f"loadgen: interrupted before anything was measured; see {result.directory}"])
        return result.exit_status
    table = table_of(result)
    paths = write_report(sweep_report(table), result.directory, "table")
    if as_json:
        print(paths["table.json"].read_text("utf-8"), end="", flush=True)
    if not (as_json and quiet):
        stream = sys.stderr if as_json else sys.stdout
        paper = paper_of(stream)
        lines = sweep_lines(table, result.exit_status == 0, paper)
        if not quiet:
            lines += labelled(_files(table, result, paths["table.html"]), paper)
        print("\n".join(lines), file=stream, flush=True)
    return result.exit_status


def sweep_lines(table: "SweepTable", valid: bool, paper: "Paper") -> list[str]:
    """Return the verdict, the ranges of the main figures, and the table."""
    from loadgen.cli.result_text import aligned, answer_lines
    from loadgen.report.build.sweep_report import VERDICT, columns_of, ranges_of
    from loadgen.report.render.text import name, notice_lines

    wrong = sum(not row.valid for row in table.rows)
    rows = counted(len(table.rows), "row")
    subject = (f"sweep {table.case} by {', '.join(table.axes)}", table.broker, table.protocol)
    answer = answer_lines(
        valid, f"{wrong} of {rows}" if wrong else rows, subject, ranges_of(table), paper
    )
    columns = columns_of(table)
    cells = [[*map(name, row)] for row in ([*columns], *zip(*columns.values(), strict=True))]
    left = ([*columns].index(VERDICT),)
    return [*notice_lines(table.notice, paper.width), *answer, "", *aligned(cells, left, paper), ""]


def _files(table: "SweepTable", result: "SweepResult", page: Path) -> Iterator[tuple[str, str]]:
    """Yield where the files are, and how to continue."""
    yield "files", f"{result.directory} · page {page}"
    steps = any(row.limit and "out of steps" in row.limit["ended"] for row in table.rows)
    if steps or result.interrupted:
        more = " and a larger --most-steps" if steps else ""
        yield "next", f"continue with the same command, --out {result.directory}{more}"


def app() -> typer.Typer:
    example = "loadgen sweep fanout --set ratio=1,10,100"
    return options.cases_app("sweep", f"{SUMMARY}\n\nExample: {example}", _command)
