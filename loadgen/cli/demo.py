"""`loadgen demo`: cases at a size that suits this machine, on one score card."""

import sys
from datetime import UTC, datetime

from loadgen.cases.registry import CASES, build_scenario
from loadgen.cli.cases import play, score
from loadgen.cli.options import Flags
from loadgen.cli.result_text import paper_of, tell, two_lines
from loadgen.report.build.cards_report import report_of
from loadgen.report.render.write import write_report
from loadgen.run.environment import host_of
from loadgen.run.rundir import default_directory, require_free
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
    directory = flags["out"] or default_directory(datetime.now(UTC), "demo")
    require_free(directory)
    broker, quiet = flags["broker"], flags["quiet"]
    host = host_of()
    chosen = sizes(host.cores, host.descriptors)
    scenarios = [
        build_scenario(case, None, {**fields, "broker": broker}) for case, fields in chosen.items()
    ]
    status = 0
    played = []
    for number, scenario in enumerate(scenarios, start=1):
        case, fields = scenario.case, chosen[scenario.case]
        if not quiet:
            tell([f"{number} of {len(chosen)}: {case}"])
        options = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
        words = ("loadgen", case, f"--broker={broker}", *options)
        into = {**flags, "out": directory / case}
        result = play(scenario, into, words, root=directory)
        if result.interrupted or not result.measured:
            return result.exit_status
        card = score(result.directory, scenario)
        if not quiet:
            tell(two_lines(card, paper_of(sys.stderr)))
        status = max(status, result.exit_status)
        played.append(result.directory)
    if not quiet:
        tell(["making the score card with Spark"])
    paths = write_report(report_of(make_scorecards(played)), directory)
    print(paths["scorecard.html"].resolve(), file=sys.stdout, flush=True)
    return status
