"""A user's description of the system under test: `--sut sut.toml`.

It is shown on the score card, in the order of the published report, and not verified. Only rack
units and `stored_first` are used further.
"""

from collections.abc import Mapping
from typing import Any, Final

from loadgen import sentences
from loadgen.errors import ScenarioError
from loadgen.plan.fields import Count, FieldKind, Flag, Quantity, TextLine, read_table
from loadgen.plan.scenario import read_toml
from loadgen.sentences import PLAN_TEXT

Description = Mapping[str, Mapping[str, Any]]  # values by part and line

_TITLES: Final = sentences.read_table("loadgen.plan", "sut.toml")
PARTS: Final[Mapping[str, str]] = _TITLES["parts"]
"""Tables of the file, and the title of each on the score card."""
LINES: Final[Mapping[str, str]] = _TITLES["lines"]
"""Keys of a table, in the order of the score card, and the title of each."""

FILE_LIMIT_CHARACTERS: Final = 64 * 1024


class Lines(TextLine):
    allowed = "text of one line in quotes, or a list of such texts"

    def parse(self, value: object) -> object:
        return list(map(super().parse, value)) if isinstance(value, list) else super().parse(value)


_KINDS: Final[Mapping[str, FieldKind]] = {
    **dict.fromkeys(LINES, Lines()),
    "count": Count(1, 1_000_000),
    "rack_units": Quantity(0.01, 1_000_000),
    "stored_first": Flag(),
}


def read_description(text: str) -> dict[str, dict[str, Any]]:
    """Read a description from a file's text; raise ScenarioError that names part and line."""
    tables = read_toml(text, "sut: the file", FILE_LIMIT_CHARACTERS)
    if not tables:
        raise ScenarioError(PLAN_TEXT.EMPTY_DESCRIPTION(parts=PARTS))
    described = read_table("sut", tables, dict.fromkeys(PARTS, _KINDS))
    return {
        part: {line: lines[line] for line in LINES if line in lines}
        for part, lines in described.items()
    }
