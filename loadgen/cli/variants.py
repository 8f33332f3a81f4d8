"""Commands of a case that has one for each of its variants: `loadgen CASE VARIANT`.

Such a case is a benchmark with run rules: its runs can be repeated, and a run and its repetition be
put into one archive (`loadgen CASE bundle RUN`).
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cases.case import Case, Variants
from loadgen.cli.cases import check_power_logs, play, play_and_show, show, tell
from loadgen.cli.help import add_plain_command
from loadgen.cli.options import (
    Flags,
    add_command,
    case_options,
    declared,
    group,
    help_of,
    read_scenario,
    require_command,
    with_options,
)

if TYPE_CHECKING:
    from loadgen.plan.scenario import Scenario
    from loadgen.report.score_card import ScoreCard

_BUNDLE = """\
Put a run and its repetition into one archive, with the disclosure as far as a tool can fill it.

A run that was changed since it ended is refused. A repetition must have the same scenario and
length, and measure at another time. The disclosure reports a run that is INVALID or not sealed, and
a repetition that is worse.

Example: loadgen CASE bundle runs/20261120T233000Z-CASE
"""


def variants_app(case: Case[Any], variants: Variants) -> typer.Typer:
    """Return the command group of a case with these variants."""
    app = group(help=help_of(case), add_completion=False)
    known = ", ".join(variants.commands)
    require_command(app, f"{case.name}: the {variants.field} is missing; use {known}, or bundle")
    add_plain_command(app, "bundle", _bundle_command(case.name))
    for value, (summary, options) in variants.commands.items():
        doc = f"{summary}\n\nExample: loadgen {case.name} {value} {options}"
        made = partial(_command, case, variants.field, value, doc)
        add_command(app, value, summary, made)
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
    from loadgen.report.render.write import indented
    from loadgen.report.score_card import card_document
    from loadgen.run.archive import repeat_directory
    from loadgen.run.rundir import default_directory, require_free

    directory = flags["out"] or default_directory(datetime.now(UTC), scenario.case)
    again = repeat_directory(directory)
    for path in (directory, again):
        # Both before either: the main run may take an hour.
        require_free(path)
    quiet, as_json = flags["quiet"], flags["json_"]
    cards: list[ScoreCard] = []
    try:
        result = play(scenario, directory, flags)
        status = show(result, scenario, flags, cards=cards)
        if not result.measured or result.interrupted:
            return status
        if not quiet:
            tell(["", f"once more, for reproducibility: {again}"])
        result = play(scenario, again, flags)
        status = max(status, show(result, scenario, flags, cards=cards))
    finally:
        # Also if the repetition failed: the results of the first run are shown.
        if as_json and cards:
            print(indented([card_document(card) for card in cards]).decode(), end="", flush=True)
    if not as_json:
        print("\n".join(["", *_compared(directory, again)]))
    elif not quiet:
        tell(["", *_compared(directory, again)])
    return status


def _compared(directory: Path, again: Path) -> list[str]:
    """Return the comparison of a run and its repetition, in lines."""
    from loadgen.run.archive import compared

    return wrap(compared(directory, again), 100)


def _bundle_command(name: str) -> Callable[..., int]:
    """Return the command that puts runs of a case into archives."""

    def bundle(flags: Flags) -> int:
        from loadgen.run.archive import write_bundle

        print(write_bundle(flags["run"], flags["repeat"], flags["out"]))
        return 0

    return with_options(bundle, declared("bundle"), _BUNDLE.replace("CASE", name))
