"""`loadgen demo`: cases at a size that suits this machine, on one score card."""

import sys

from loadgen.cases.registry import CASES, build_scenario
from loadgen.cli.cases import score
from loadgen.cli.options import Flags
from loadgen.cli.result_text import advice_of, labelled, paper_of, tell, two_lines
from loadgen.cli.sweep import played
from loadgen.report.build.cards_report import report_of
from loadgen.report.render.write import write_report
from loadgen.run.environment import host_of
from loadgen.run.search.sweep import Sweep, SweepPoint, key_of
from loadgen.spark.job import make_scorecards

_CONNECTS_SPARE = 1_000
"""Descriptors left to the broker and a worker for everything but devices."""


def sizes(cores: float, descriptors: int) -> dict[str, dict[str, object]]:
    """Return the fields of each case for a host of this size."""
    chosen = {case.name: dict(case.demo) for case in CASES.values() if case.demo}
    for fields in chosen.values():
        for name in ("devices", "rate"):
            if name in fields and cores < 2:
                fields[name] = int(str(fields[name])) // 4
        if "devices" in fields:
            most = max(10, descriptors - _CONNECTS_SPARE)
            fields["devices"] = min(int(str(fields["devices"])), most)
    return chosen


def play_demo(flags: Flags) -> int:
    host = host_of()
    scenarios = [
        build_scenario(case, None, {**fields, "broker": flags["broker"]})
        for case, fields in sizes(host.cores, host.descriptors).items()
    ]
    points = tuple(SweepPoint({"case": one.case}, one, None, key_of(one)) for one in scenarios)
    grid = Sweep(scenarios[0], (), again=True, strict=True, folder="{case}", points=points)
    result = played(grid, "demo", flags)
    if result.interrupted:
        tell([f"loadgen: interrupted; continue with the same command and --out {result.directory}"])
        return result.exit_status
    runs = [(run, point.scenario) for point in points for run in result.runs_of(point)]
    for run, scenario in runs:
        card = score(run, scenario)
        if not flags["quiet"]:
            advice = advice_of(card.verdict.codes)
            paper = paper_of(sys.stderr)
            tell([*two_lines(card, paper), *labelled([("next", advice)] if advice else (), paper)])
    if not flags["quiet"]:
        tell(["making the score card with Spark"])
    cards = make_scorecards([run for run, _ in runs])
    print(write_report(report_of(cards), result.directory)["scorecard.html"].resolve(), flush=True)
    return result.exit_status
