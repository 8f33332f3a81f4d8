"""`loadgen search CASE --for rate|devices|base`: the highest load that is still valid."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from loadgen.cases.case import Case
from loadgen.cli import options
from loadgen.cli.cases import score
from loadgen.cli.cluster import on_testbed, parsed
from loadgen.cli.result_text import print_result, tell
from loadgen.cli.search_view import progress_of, search_lines
from loadgen.errors import ScenarioError, UsageError
from loadgen.judge.next_step import AIMS, aim_for, is_requirement, parse_share, requirements
from loadgen.plan.scenario import Scenario
from loadgen.plan.thresholds import is_threshold
from loadgen.plan.units import parse_count, parse_number
from loadgen.report.render.text import notice_for
from loadgen.run.search.search import Search, SearchResult, search
from loadgen.sentences import CLI_TEXT


def with_thresholds(flags: options.Flags, searching: bool) -> tuple[options.Flags, list[str]]:
    """Split `require` into thresholds of runs, which stay in the options, and those of a search."""
    items = [item.strip() for text in flags["require"] or () for item in text.split(",")]
    of_runs = [
        item for item in items if is_threshold(item) and not (searching and is_requirement(item))
    ]
    return {**flags, "require": of_runs}, [item for item in items if item not in of_runs]


def searched(scenario: Scenario, flags: options.Flags, request: str) -> Search:
    bounds: dict[str, Any] = {
        argument: parsed(name.strip("_").replace("_", "-"), flags[name], reader)
        for name, (argument, reader) in _BOUNDS.items()
        if flags[name] is not None
    }
    step_s = bounds.pop("step_s", None)
    aim = aim_for(scenario, request, **bounds)
    # What a sweep's --set names are axes, which it checks itself.
    fixed = {} if flags.get("search") else options.named_values(flags.get("set_") or [])
    if flags.get(aim.field) is not None or aim.field in fixed:
        raise ScenarioError(CLI_TEXT.SEARCHED(field=aim.field))
    require = requirements(scenario, with_thresholds(flags, searching=True)[1])
    return Search(scenario, aim, require, step_s)


_BOUNDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "from_": ("start", parse_number),
    "to": ("highest", parse_number),
    "precision": ("precision", parse_share),
    "most_steps": ("most_steps", parse_count),
    "step_duration": ("step_s", Scenario.fields()["duration"].read),
}
"""Options of a search, each with its argument in Python and its reader."""


def search_case(case: Case[Any], flags: options.Flags) -> int:
    if flags["for_"] is None:
        raise UsageError(CLI_TEXT.NO_TARGET(aims=", ".join(AIMS)))
    scenario = options.read_scenario(case, with_thresholds(flags, searching=True)[0])
    request = searched(scenario, flags, flags["for_"])
    with progress_of(quiet=flags["quiet"], notice=notice_for(case.name)) as show:
        work = partial(search, request, watch=show)
        result = on_testbed(work, [scenario], f"search-{case.name}", flags)
    return _show(result, flags)


def _show(result: SearchResult, flags: options.Flags) -> int:
    if result.limit is None:
        steps, out = len(result.steps), result.directory
        again = f"continue with the same command and --out {out}"
        tell([f"loadgen: interrupted after {steps} steps; {again}"])
        return result.exit_status
    best = result.best
    card = None
    if best is not None and best.run is not None:
        card = score(result.directory / best.run, result.search.scenario)
    document = None
    if flags["json_"]:
        notice = notice_for(result.search.scenario.case)
        document = {"notice": notice} if notice else {}
        document |= json.loads((result.directory / "search.json").read_text("utf-8"))
    brief = flags["quiet"]
    print_result(flags, document, lambda paper: search_lines(result, card, paper, brief=brief))
    return result.exit_status
