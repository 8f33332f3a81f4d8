"""The commands of `loadgen`, as typer has them."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from loadgen import PROGRAM
from loadgen.cases.case import Case
from loadgen.cases.registry import CASES
from loadgen.cli import (
    agent,
    broker,
    calibrate,
    certificates,
    compare,
    demo,
    history,
    import_,
    new,
    plan,
    power,
    probe,
    report,
    scorecard,
    search,
    sweep,
    tune,
)
from loadgen.cli.cases import case_command
from loadgen.cli.help import WIDEST
from loadgen.cli.options import add_command, add_plain, group
from loadgen.cli.variants import variants_app

NOTHING_STATUS = 2
"""Exit status of a line that names no command."""

Aborted = typer.Abort

# The base class of every usage error; where it is imported from differs between typer's versions.
WrongUsage: type[Exception] = typer.BadParameter.__mro__[2]


def program() -> Any:
    """Return click's command of the program."""
    return typer.main.get_command(app())


def app() -> typer.Typer:
    app = group(
        name="loadgen",
        help="MQTT load generator and broker benchmark that judges its own result.",
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": WIDEST,
        },
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_root)
    for case in CASES.values():
        add_command(app, case.name, partial(_case_command, case), case.summary)
    add_plain(app, "demo", demo.play_demo, "demo")
    add_plain(app, "new", new.write_scenario, "new")
    add_plain(app, "scorecard", scorecard.make, "scorecard")
    add_command(app, "compare", compare.app)
    add_command(app, "report", report.command)
    for name, module in (("search", search), ("sweep", sweep), ("plan", plan), ("tune", tune)):
        add_command(app, name, module.app)
    add_command(app, "probe", probe.command)
    add_plain(app, "power", power.show, "power")
    add_plain(app, "broker", broker.serve, "broker")
    add_plain(app, "agent", agent.join, "agent")
    add_plain(app, "certificates", certificates.make, "certificates")
    add_command(app, "history", history.app)
    add_command(app, "import", import_.app)
    add_plain(app, "calibrate", calibrate.calibrate, "calibrate")
    return app


def _case_command(case: Case[Any]) -> Callable[..., int] | typer.Typer:
    if case.variants is None:
        return case_command(case)
    return variants_app(case, case.variants)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(PROGRAM)
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(NOTHING_STATUS)
