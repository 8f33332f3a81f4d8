"""The commands of `loadgen` with their options, as typer has them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from loadgen import PROGRAM
from loadgen.cases.case import Case, Variants
from loadgen.cases.registry import CASES
from loadgen.cli.help import WIDEST
from loadgen.cli.options import (
    Flags,
    add_command,
    add_plain,
    case_options,
    cases_app,
    command,
    declared,
    field_option,
    group,
    help_of,
    help_text,
    parameter,
    read_scenario,
    require_command,
    with_options,
)
from loadgen.judge.next_step import AIMS
from loadgen.plan.scenario import Scenario
from loadgen.sentences import read_table

NOTHING_STATUS = 2  # exit status of a line that names no command
_FIELDS = read_table("loadgen.cli", "usage.toml")["fields"]
REPORT_FIELDS: Sequence[str] = _FIELDS["report"]
PROBE_FIELDS: Sequence[str] = _FIELDS["probe"]

Aborted = typer.Abort

# The base class of every usage error; where it is imported from differs between typer's versions.
WrongUsage: type[Exception] = typer.BadParameter.__mro__[2]

Options = list[inspect.Parameter]
_DIRECTORIES = "directories"
_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
"""Holds the options that stand before the case."""


def late(place: str) -> Callable[..., int]:
    """Return a function of this package, named MODULE.NAME, that is imported when it is called."""

    def call(*arguments: object) -> int:
        module, _, name = place.partition(".")
        status: int = getattr(import_module(f"loadgen.cli.{module}"), name)(*arguments)
        return status

    return call


def program() -> Any:
    return typer.main.get_command(app())


def app() -> typer.Typer:
    app = group(
        name="loadgen",
        help="MQTT load generator and broker benchmark that judges its own result.",
        context_settings={
            "help_option_names": ["-h", "--help", "--help-all"],
            "max_content_width": WIDEST,
        },
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_root)
    for case in CASES.values():
        add_command(app, case.name, partial(_case_command, case), case.summary)
    for name, made in _COMMANDS.items():
        if isinstance(made, str):
            add_plain(app, name, late(made), name)
        else:
            add_command(app, name, made)
    return app


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


def case_first(words: Sequence[str]) -> list[str]:
    """Return the words after `compare` with the case, or "directories", before the brokers."""
    place = next((at for at, word in enumerate(words) if word in CASES), None)
    if place is not None:
        return [words[place], *words[:place], *words[place + 1 :]]
    return (
        list(words)
        if not words or {"-h", "--help", "--help-all"} & {*words}
        else [_DIRECTORIES, *words]
    )


def _case_command(case: Case[Any]) -> Callable[..., int] | typer.Typer:
    if case.variants is not None:
        return _variants(case, case.variants)

    def play(flags: Flags) -> int:
        return late("cases.play_case")(read_scenario(case, flags), flags)

    listed = [*case_options(case), *declared("run", "result")]
    return with_options(play, listed, help_of(case))


def _variants(case: Case[Any], variants: Variants) -> typer.Typer:
    """Return the group of a case that has a command for each variant, and one for the archive."""
    app = group(help=help_of(case), add_completion=False)
    require_command(app, case.name, variants.field, (*variants.commands, "bundle"))
    bundle = help_text("bundle", case=case.name)
    make = partial(with_options, late("cases.bundle"), declared("bundle"), bundle)
    add_command(app, "bundle", make, bundle.partition("\n")[0])
    listed = [option for option in case_options(case) if option.name != variants.field]
    listed += declared("run", "result", "variants")

    def play(value: str, flags: Flags) -> int:
        scenario = read_scenario(case, {**flags, variants.field: value})
        return late("cases.play_case")(scenario, flags)

    for value, (summary, words) in variants.commands.items():
        doc = f"{summary}\n\nExample: loadgen {case.name} {value} {words}"
        add_command(app, value, partial(with_options, partial(play, value), listed, doc), summary)
    return app


def _of_cases(name: str, place: str, tables: Sequence[str], replaced: Sequence[str]) -> typer.Typer:
    """Return a group with a command for each case, without the options that its tables replace."""

    def made(case: Case[Any]) -> Callable[..., int]:
        own = [one for one in case_options(case) if one.name not in replaced]
        listed = [*declared(*tables), *own, *declared("run")]
        example = next(aim for aim in AIMS if aim in case.scenario.fields())
        doc = help_text(f"{name}_case", case=case.name, field=example)
        return with_options(partial(late(place), case), listed, doc)

    return cases_app(name, made)


def _compare() -> typer.Typer:
    app = _of_cases("compare", "compare.compare_brokers", ("compare",), ("broker",))
    add_plain(app, _DIRECTORIES, late("compare.compare_directories"), _DIRECTORIES)
    return app


def _report() -> Callable[..., int]:
    fields = Scenario.fields()
    listed = [
        *declared("report", "run"),
        *(field_option(fields[name], fields[name].panel) for name in REPORT_FIELDS),
        *declared("report_power"),
    ]
    return command("report", late("report.report"), listed)


def _plan() -> typer.Typer:
    def plan(case: Case[Any]) -> Callable[..., int]:
        run = declared("plan", "run", "result", *(("variants",) if case.variants else ()))
        for option in run:
            # Those of the run alone are taken, so that its command can be planned as it is.
            option.annotation.__metadata__[0].hidden = option.name not in ("each_host", "json_")
        listed = [*case_options(case), *run]
        if case.variants is not None:
            # The command that runs the case has its variants as commands.
            names = "|".join(case.variants.commands)
            argument = typer.Argument(metavar=names, help=f"The same as --{case.variants.field}.")
            listed.insert(0, parameter("variant", str | None, None, argument))
        return with_options(partial(late("plan.show_plan"), case), listed, help_of(case, "plan"))

    return cases_app("plan", plan)


def _tune() -> typer.Typer:
    def check_case(case: Case[Any]) -> Callable[..., int]:
        listed = [_CONTEXT, *case_options(case)]
        doc = help_of(case, "tune check")
        return with_options(partial(late("tune.check_case"), case), listed, doc)

    def check() -> typer.Typer:
        text = help_text("tune_check")
        check = group(help=text, add_completion=False)
        before = [_CONTEXT, *declared("tune_check")]
        check.callback(invoke_without_command=True)(with_options(late("tune.check"), before, text))
        for case in CASES.values():
            add_command(check, case.name, partial(check_case, case), case.summary)
        return check

    app = group(help=help_text("tune"), add_completion=False)
    add_command(app, "check", check, help_text("tune_check").partition("\n")[0])
    add_plain(app, "show", late("tune.show"), "tune_show")
    add_plain(app, "script", late("tune.script"), "tune_script")
    return app


def _probe() -> Callable[..., int]:
    fields = {
        name: kind for case in CASES.values() for name, kind in case.scenario.fields().items()
    }
    text = f"{fields['mqtt'].text} [default: each that the broker speaks]"
    fields["mqtt"] = replace(fields["mqtt"], default=None, text=text)
    listed = [field_option(fields[name], fields[name].panel or "Broker") for name in PROBE_FIELDS]
    return command("probe", late("probe.probe"), [*listed, *declared("probe")])


def _named(name: str, missing: str, places: Mapping[str, str]) -> typer.Typer:
    """Return a group of commands that are declared by tables alone."""
    app = group(help=help_text(name), add_completion=False)
    require_command(app, name, missing, places)
    for one, place in places.items():
        add_plain(app, one, late(place), f"{name}_{one}")
    return app


_COMMANDS: Mapping[str, str | Callable[[], Callable[..., int] | typer.Typer]] = {
    "demo": "demo.play_demo",
    "new": "new.write_scenario",
    "scorecard": "scorecard.make",
    "compare": _compare,
    "report": _report,
    "search": partial(_of_cases, "search", "search.search_case", ("search",), ("require",)),
    "sweep": partial(
        _of_cases, "sweep", "sweep.sweep_case", ("sweep", "search"), ("require", "set_")
    ),
    "plan": _plan,
    "tune": _tune,
    "probe": _probe,
    "power": "power.show",
    "broker": "broker.serve",
    "agent": "agent.join",
    "certificates": "certificates.make",
    "history": partial(
        _named,
        "history",
        "command",
        {name: f"history.{name}" for name in ("add", "remove", "show")},
    ),
    "import": partial(_named, "import", "tool", {"mqttbench": "mqttbench.import_mqttbench"}),
    "calibrate": "calibrate.calibrate",
}
"""The commands after those of the cases: functions, or makers of commands and groups."""
