"""The description of the system under test."""

from pathlib import Path

import pytest

from loadgen.plan.sut import LINES, PARTS, read_description
from tests.refusals import refused
from tests.tables import rows_of

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


@pytest.mark.parametrize(("text", "code", "times"), rows_of("plan.descriptions_refused"))
def test_what_cannot_be_used_is_refused_in_one_line(
    text: str, code: str, times: int | None
) -> None:
    with refused(code) as caught:
        read_description(text * (times or 1))
    message = str(caught.value)
    assert "\n" not in message and message.isprintable() and len(message) < 700
