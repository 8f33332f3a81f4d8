"""`loadgen search CASE --for rate|devices|base`: the highest load that is still valid."""

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cases.case import Case
from loadgen.cli import options
from loadgen.cli.cases import score, tell
from loadgen.cli.cluster import hosts_of, on_testbed, parsed
from loadgen.errors import ScenarioError, UsageError
from loadgen.judge.next_step import (
    AIMS,
    Limit,
    aim_for,
    is_requirement,
    limit_sentence,
    parse_share,
    requirements,
)
from loadgen.plan.scenario import Scenario
from loadgen.plan.thresholds import is_threshold
from loadgen.plan.units import parse_count, parse_number

if TYPE_CHECKING:
    from loadgen.cli.result_text import Paper
    from loadgen.report.score_card import ScoreCard
    from loadgen.run.search.search import Search, SearchResult


SUMMARY = "Find the highest load whose run is VALID, and confirm it."


def search_options(*, required: bool) -> list[inspect.Parameter]:
    listed = options.declared("search")
    if not required:
        listed[0].annotation.__metadata__[0].help += " [default: rate]"
    return listed


def of_the_search(case: Case[Any]) -> list[inspect.Parameter]:
    """Return the options of a case without those of a search."""
    return [part for part in options.case_options(case) if part.name != "require"]


def with_thresholds(flags: options.Flags, searching: bool) -> tuple[options.Flags, list[str]]:
    """Split `require` into thresholds of runs, which stay in the options, and those of a search."""
    items = [item.strip() for text in flags["require"] or () for item in text.split(",")]
    of_runs = [
        item for item in items if is_threshold(item) and not (searching and is_requirement(item))
    ]
    return {**flags, "require": of_runs}, [item for item in items if item not in of_runs]


def searched(scenario: Scenario, flags: options.Flags, request: str) -> "Search":
    """Return the search that the options request; raises ScenarioError."""
    from loadgen.run.search.search import Search

    bounds: dict[str, Any] = {
        argument: parsed(name.strip("_").replace("_", "-"), flags[name], reader)
        for name, (argument, reader) in _BOUNDS.items()
        if flags[name] is not None
    }
    aim = aim_for(scenario, request, **bounds)
    # What a sweep's --set names are axes, which it checks itself.
    fixed = {} if flags.get("search") else options.named_values(flags.get("set_") or [])
    if flags.get(aim.field) is not None or aim.field in fixed:
        raise ScenarioError(f"{aim.field}: it is what is searched; use --from and --to")
    step = flags["step_duration"]
    return Search(
        scenario=scenario,
        aim=aim,
        require=requirements(scenario, with_thresholds(flags, searching=True)[1]),
        step_s=None if step is None else parsed("step-duration", step, _window_s),
    )


def _window_s(text: str) -> float:
    """Read a length that a measurement window may have; raises ValueError."""
    seconds = Scenario.fields()["duration"].read(text)
    assert isinstance(seconds, float)
    return seconds


_BOUNDS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "from_": ("start", parse_number),
    "to": ("highest", parse_number),
    "precision": ("precision", parse_share),
    "most_steps": ("most_steps", parse_count),
}
"""Options of a search, each with its argument of `aim_for` and its reader."""


def _command(case: Case[Any]) -> Callable[..., int]:
    def command(flags: options.Flags) -> int:
        from loadgen.cli.search_view import search_progress
        from loadgen.report.render.text import notice_for
        from loadgen.run.search.search import search

        if flags["for_"] is None:
            raise UsageError(f"--for: the field to search is missing; use {', '.join(AIMS)}")
        scenario = options.read_scenario(case, with_thresholds(flags, searching=True)[0])
        request = searched(scenario, flags, flags["for_"])
        source, quiet = hosts_of(scenario, flags), flags["quiet"]
        with search_progress(sys.stderr, quiet=quiet, notice=notice_for(case.name)) as watch:
            work, out = partial(search, request, watch=watch), flags["out"]
            kind = f"search-{case.name}"
            result = on_testbed(work, [scenario], kind, out=out, quiet=quiet, source=source)
        return _show(result, as_json=flags["json_"], quiet=quiet)

    example = next(aim for aim in AIMS if aim in case.scenario.fields())
    doc = (
        f"Find the highest load of {case.name} whose run is VALID, and confirm it.\n\nThe same "
        "command with the same --out continues a search, also with a larger --most-steps.\n\n"
        f"Example: loadgen search {case.name} --for {example}"
    )
    return options.with_options(
        command,
        [*search_options(required=True), *of_the_search(case), *options.declared("run")],
        doc,
    )


def _show(result: "SearchResult", *, as_json: bool, quiet: bool) -> int:
    """Print the result, and write a score card of the run at the limit."""
    from loadgen.cli.result_text import paper_of
    from loadgen.report.render.text import notice_for

    if result.limit is None:
        steps, out = len(result.steps), result.directory
        again = f"continue with the same command and --out {out}"
        tell([f"loadgen: interrupted after {steps} steps; {again}"])
        return result.exit_status
    best = result.best
    card = None
    if best is not None and best.run is not None:
        card = score(result.directory / best.run, result.search.scenario)
    if as_json:
        notice = notice_for(result.search.scenario.case)
        document = json.loads((result.directory / "search.json").read_text("utf-8"))
        print(json.dumps(({"notice": notice} if notice else {}) | document, indent=2))
    if not (as_json and quiet):
        stream = sys.stderr if as_json else sys.stdout
        lines = search_lines(result, result.limit, card, paper_of(stream), brief=quiet)
        print("\n".join(lines), file=stream, flush=True)
    return result.exit_status


def search_lines(
    result: "SearchResult",
    limit: Limit,
    card: "ScoreCard | None",
    paper: "Paper",
    *,
    brief: bool = False,
) -> list[str]:
    """Return the limit, the figures at it, and unless brief, the steps and where the files are."""
    from loadgen.cli.result_text import answer_lines, labelled
    from loadgen.cli.search_view import step_line
    from loadgen.report.headline import headline
    from loadgen.report.render.text import name, notice_for, notice_lines

    case, out = result.search.scenario.case, result.directory
    broker = () if card is None else (card.run.broker_name, card.run.protocol)
    answer = answer_lines(
        result.exit_status == 0,
        "",
        (f"search {case}", *broker, limit_sentence(result.search.aim, limit)),
        "" if card is None else headline(card),
        paper,
    )
    lines = [*notice_lines(notice_for(case), paper.width), *answer]
    if brief:
        return lines
    best = result.best
    page = (
        "" if best is None or best.run is None else f" · page {out / best.run / 'scorecard.html'}"
    )
    more = f"continue with a larger --most-steps and --out {out}"
    parts = [
        *(("", f"{why.code}: {name(why.detail)}") for why in limit.reasons),
        *(("" if step.number > 1 else "steps", step_line(step)) for step in result.steps),
        ("files", f"{out}{page}"),
        *([("next", more)] if limit.ended == "out of steps" else ()),
    ]
    return [*lines, *labelled(parts, paper)]


def app() -> typer.Typer:
    return options.cases_app(
        "search", f"{SUMMARY}\n\nExample: loadgen search fanin --for rate", _command
    )
