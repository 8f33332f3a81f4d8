"""What `--help` says of every command, and what a shell completes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from loadgen.cases.registry import CASES
from loadgen.cli.app import program

CASE = next(iter(CASES))


def lines() -> Iterator[tuple[str, ...]]:
    """The line of each command, with one case where there is a choice of cases."""

    def under(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name in getattr(found(words)[0], "commands", ()):
            if name not in CASES or name == CASE or not words:
                yield from under((*words, name))

    return under(())


def found(words: tuple[str, ...]) -> tuple[Any, str]:
    """The command of a line and its help text, 80 columns wide."""
    command: Any = program()
    path = "loadgen"
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=80)
    for word in words:
        _, command, _ = command.resolve_command(context, [word])
        context = command.make_context(
            word, [], parent=context, resilient_parsing=True, terminal_width=80
        )
    return command, command.get_help(context)


@pytest.mark.parametrize("words", list(lines()), ids=" ".join)
def test_help_has_an_example_and_cuts_no_summary(words: tuple[str, ...]) -> None:
    _, text = found(words)
    if words:
        assert "Example: loadgen " in " ".join(text.split())
    assert not any(line.endswith("...") for line in text.splitlines() if "Usage" not in line)
    assert "-h, --help" in text


@pytest.mark.parametrize("case", CASES)
def test_common_options_and_those_of_the_case_come_first_and_none_is_left_over(case: str) -> None:
    variants = CASES[case].variants
    words = (case,) if variants is None else (case, next(iter(variants.commands)))
    _, text = found(words)
    headings = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings[0] == "Common:"
    assert f"{case.upper()}:" in headings[1:2] or f"{case.upper()}:" not in headings
    lines = text.splitlines()
    assert next(at for at, line in enumerate(lines) if line.strip()[:9] == "--broker ") < 15
    assert headings[-1] == "Options:"
    assert text.partition("\nOptions:\n")[2].split()[:2] == ["-h,", "--help"]


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("loadgen fan", "fanin"),
        ("loadgen search fanin --step-d", "--step-duration"),
        ("loadgen fanout --rat", "--ratio"),
        ("loadgen sea", "search"),
    ],
)
def test_shell_completes_commands_and_the_options_of_a_case(line: str, completed: str) -> None:
    environment = os.environ | {
        "_LOADGEN_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    answer = subprocess.run(
        [sys.executable, "-m", "loadgen"], env=environment, capture_output=True, text=True
    )
    assert completed in answer.stdout.split()
