"""Commands of a case that has one for each of its variants: `loadgen CASE VARIANT`.

Such a case is a benchmark with run rules: its runs can be repeated, and a run and its repetition be
put into one archive (`loadgen CASE bundle RUN`).
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cases.case import Case, Variants
from loadgen.cli.cases import check_power_logs, play, play_and_show, show, tell
from loadgen.cli.options import (
    Flags,
    add_command,
    case_options,
    declared,
    group,
    help_of,
    help_text,
    read_scenario,
    require_command,
    with_options,
)

if TYPE_CHECKING:
    from loadgen.plan.scenario import Scenario
    from loadgen.report.score_card import ScoreCard


def variants_app(case: Case[Any], variants: Variants) -> typer.Typer:
    """Return the command group of a case with these variants."""
    app = group(help=help_of(case), add_completion=False)
    require_command(app, case.name, variants.field, (*variants.commands, "bundle"))
    bundle = help_text("bundle", case=case.name)
    make = partial(with_options, _bundle, declared("bundle"), bundle)
    add_command(app, "bundle", make, bundle.partition("\n")[0])
    for value, (summary, options) in variants.commands.items():
        doc = f"{summary}\n\nExample: loadgen {case.name} {value} {options}"
        made = partial(_command, case, variants.field, value, doc)
        add_command(app, value, made, summary)
    return app


def _command(case: Case[Any], field: str, value: str, doc: str) -> Callable[..., int]:
    def command(flags: Flags) -> int:
        scenario = read_scenario(case, {**flags, field: value})
        if flags["repeat"]:
            check_power_logs(scenario)
            return _twice(scenario, flags)
        return play_and_show(scenario, flags)

    fields = [option for option in case_options(case) if option.name != field]
    tables = (table for name in ("run", "result", "variants") for table in declared(name))
    return with_options(command, [*fields, *tables], doc)


def _twice(scenario: "Scenario", flags: Flags) -> int:
    """Run twice, with a score card each, and compare the two."""
    from loadgen.cli.result_text import print_result
    from loadgen.report.render.write import indented
    from loadgen.report.score_card import card_document
    from loadgen.run.archive import compared, repeat_directory
    from loadgen.run.rundir import default_directory, require_free

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


def _bundle(flags: Flags) -> int:
    from loadgen.run.archive import write_bundle

    print(write_bundle(flags["run"], flags["repeat"], flags["out"]))
    return 0
