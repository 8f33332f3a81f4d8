"""The description of the system under test."""

from pathlib import Path

import pytest

from loadgen.errors import ScenarioError
from loadgen.plan.sut import LINES, PARTS, read_description

EXAMPLE = (Path(__file__).parents[2] / "docs/examples/sut.toml").read_text("utf-8")


def test_the_example_has_every_part_and_names_every_line() -> None:
    described = read_description(EXAMPLE)
    assert tuple(described) == tuple(PARTS)
    assert described["machine"]["rack_units"] == 2
    assert described["broker"]["stored_first"] is False
    assert isinstance(described["broker"]["configuration"], list)
    comments = [line for line in EXAMPLE.splitlines() if line.startswith("#")]
    assert all(name in " ".join(comments) for name in LINES)


def test_lines_come_in_the_order_of_the_card() -> None:
    described = read_description('[machine]\nos = "a"\nprocessors = "b"\n')
    assert list(described["machine"]) == ["processors", "os"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "describes nothing"),
        ("a = [", "the file is not TOML"),
        ("[" * 5_000, "the file is not TOML"),
        ("#" * 70_000, "more than 65,536 characters"),
        ("[brocker]", "'brocker' is unknown; did you mean 'broker'"),
        ("broker = 1", "broker: 1 is not a table"),
        ('[machine]\nbois = "x"', "machine: 'bois' is unknown; did you mean 'bios'"),
        ("[machine]\nos = 3", "machine.os: 3 is not text; allowed: text of one line in quotes"),
        ('[machine]\nos = "a\\nb"', "machine.os: .* holds control"),
        ('[machine]\nos = ["a", " "]', "machine.os: nothing is given"),
        ("[machine]\nrack_units = 0", "machine.rack_units: 0 is too small"),
        ("[machine]\nrack_units = nan", "machine.rack_units: nan is not a finite number"),
        ("[clients]\ncount = 1.5", "clients.count: 1.5 is not a whole number"),
        ("[broker]\nstored_first = 1", "broker.stored_first: 1 is neither true nor false"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=f"sut.*{said}") as caught:
        read_description(text)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable() and len(message) < 700
