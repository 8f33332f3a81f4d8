"""What `--help` says of every command, and what a shell completes."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from loadgen.cases.registry import CASES
from loadgen.cli.app import program
from loadgen.cli.main import main
from tests.programs import ROOT, python
from tests.tables import rows_of
from tests.terminal import Captured

CASE = next(iter(CASES))


def lines() -> Iterator[tuple[str, ...]]:
    """The line of each command, with one case where there is a choice of cases."""

    def under(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name in getattr(found(words)[0], "commands", ()):
            if name not in CASES or name == CASE or not words:
                yield from under((*words, name))

    return under(())


root = cache(program)


def found(words: tuple[str, ...]) -> tuple[Any, str]:
    """The command of a line and its help text, 80 columns wide."""
    command: Any = root()
    path = "loadgen"
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=80)
    for word in words:
        _, command, _ = command.resolve_command(context, [word])
        context = command.make_context(
            word, [], parent=context, resilient_parsing=True, terminal_width=80
        )
    return command, command.get_help(context)


def test_help_has_an_example_and_cuts_no_summary() -> None:
    for words in lines():
        _, text = found(words)
        if words:
            assert "Example: loadgen " in " ".join(text.split()), words
        cut = [line for line in text.splitlines() if line.endswith("...") and "Usage" not in line]
        assert not cut, words
        assert "-h, --help" in text, words


def of_case(case: str) -> tuple[str, ...]:
    """The words of a case's command."""
    variants = CASES[case].variants
    return (case,) if variants is None else (case, next(iter(variants.commands)))


@pytest.mark.parametrize("case", CASES)
def test_short_help_has_the_options_of_every_day_in_40_lines_broker_first(case: str) -> None:
    _, text = found(of_case(case))
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    listed = text.partition("Common:\n")[2]
    assert listed.split()[:2] == ["-b,", "--broker"]
    fields = CASES[case].scenario.fields().values()
    everyday = sorted((one for one in fields if one.everyday), key=lambda one: one.everyday)
    places = [listed.index(f"{field.option} ") for field in everyday]
    assert places == sorted(places)
    scenario = "Scenario file" if case == "run" else "--scenario"
    assert all(words in text for words in (scenario, "-o, --out", "--json", "--help-all"))
    assert "--seed" not in text


def test_short_forms_are_unique() -> None:
    for case in CASES.values():
        short = [field.short for field in case.scenario.fields().values() if field.short]
        assert len(set(short)) == len(short) and "-o" not in short


@pytest.mark.parametrize("case", CASES)
def test_complete_help_has_every_option_by_subject(case: str, capsys: Captured) -> None:
    assert main([*of_case(case), "--help-all"]) == 0
    text = capsys.readouterr().out
    headings = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    # The file of a scenario is an argument of `run`.
    first = "Arguments:" if case == "run" else "Common:"
    assert headings[0] == first and headings[-1] == "Options:"
    variants = CASES[case].variants
    known = CASES[case].scenario.fields().keys() - ({variants.field} if variants else set())
    assert all(f" --{name.replace('_', '-')} " in text for name in known)


@pytest.mark.parametrize("case", CASES)
def test_plan_takes_every_option_of_a_run(case: str) -> None:
    run, plan = (
        {name for option in found(words)[0].params for name in option.opts if name != "--variant"}
        for words in (of_case(case), ("plan", case))
    )
    assert run <= plan


@pytest.mark.parametrize("words", [*lines()])
def test_every_command_takes_help_all(words: tuple[str, ...], capsys: Captured) -> None:
    assert main([*words, "--help-all"]) == 0
    assert capsys.readouterr().out.startswith(" ".join(("Usage: loadgen", *words[:1])))


def test_help_has_no_types_of_python() -> None:
    for words in (("scorecard",), ("history", "add"), ("broker",)):
        _, text = found(words)
        assert "list[" not in text and "<" not in text.partition("Options:")[0]


@pytest.mark.parametrize(("line", "completed"), rows_of("cli.completed"))
def test_shell_completes_commands_and_the_options_of_a_case(line: str, completed: str) -> None:
    typed = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    answer = python("-m", "loadgen", cwd=ROOT, _LOADGEN_COMPLETE="complete_bash", **typed)
    assert completed in answer.stdout.split()
