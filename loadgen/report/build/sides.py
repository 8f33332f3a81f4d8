"""Brokers or runs side by side: the sides that a user named, their verdicts and the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.plan.fields import redact_url
from loadgen.report.build.compare import Comparison, Line, compare, difference_text
from loadgen.report.build.rows import FIGURES
from loadgen.report.build.summary import summarize_run
from loadgen.report.score_card import ScoreCard
from loadgen.sentences import counted

SCHEMA = 1


@dataclass(frozen=True, slots=True, repr=False)
class ComparedSide:
    """The runs of a side, with their directories."""

    name: str
    directories: tuple[Path, ...]
    cards: tuple[ScoreCard, ...]

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the reasons against its runs, each once."""
        return tuple(dict.fromkeys(code for card in self.cards for code in card.verdict.codes))

    @property
    def valid(self) -> bool:
        """True if all runs are VALID."""
        return all(card.verdict.valid for card in self.cards)

    @property
    def invalid_runs(self) -> int:
        """Number of INVALID runs."""
        return sum(not card.verdict.valid for card in self.cards)

    @property
    def broker(self) -> str:
        """Name and version of the broker of its first run."""
        return self.cards[0].run.broker_name

    def __repr__(self) -> str:
        verdict = "VALID" if self.valid else f"INVALID {', '.join(self.codes)}"
        return f"ComparedSide({self.name!r}, {counted(len(self.cards), 'run')}, {verdict})"


@dataclass(frozen=True, slots=True, repr=False)
class Compared:
    """A comparison of sides, a `Comparison` for each case that they have."""

    sides: tuple[ComparedSide, ...]
    cases: tuple[Comparison, ...]

    @property
    def valid(self) -> bool:
        """True if every run is VALID."""
        return all(side.valid for side in self.sides)

    @property
    def rows(self) -> tuple[Line, ...]:
        """The figures of all sides."""
        return tuple(line for comparison in self.cases for line in comparison.lines)

    @property
    def cards(self) -> tuple[ScoreCard, ...]:
        """The score cards of all runs, those of the first side first."""
        return tuple(card for side in self.sides for card in side.cards)

    def __repr__(self) -> str:
        names = " and ".join(side.name for side in self.sides)
        word = "VALID" if self.valid else "INVALID"
        return f"Compared({names}: {word}, {counted(len(self.rows), 'row')})"


def compared_runs(names: Sequence[str], runs: Sequence[Sequence[Path]]) -> Compared:
    """Read the run directories of each side and compare them; raise RunDirectoryError."""
    return compare_sides(
        [
            ComparedSide(name, tuple(paths), tuple(map(summarize_run, paths)))
            for name, paths in zip(names, runs, strict=True)
        ]
    )


def with_brokers(sides: Sequence[ComparedSide]) -> list[ComparedSide]:
    """Return the sides with their brokers' names; if these are the same, their URLs follow."""
    brokers = [side.broker for side in sides]
    return [
        replace(side, name=side.broker)
        if side.broker and brokers.count(side.broker) == 1
        else replace(side, name=" ".join(filter(None, (side.broker, redact_url(side.name)))))
        for side in sides
    ]


def compare_sides(sides: Sequence[ComparedSide]) -> Compared:
    """Compare sides that a user named, the first with each of the others."""
    cards = [_of_side(side.name, card) for side in sides for card in side.cards]
    return Compared(tuple(sides), tuple(compare(cards)))


def _of_side(name: str, card: ScoreCard) -> ScoreCard:
    """Return the card with the side's name as that of its broker, so that the sides differ."""
    broker = {**card.run.broker, "name": name, "version": None}
    return replace(card, run=replace(card.run, broker=broker))


def comparison_document(compared: Compared) -> dict[str, Any]:
    """Return a comparison for programs."""
    return {
        "schema": SCHEMA,
        "sides": [
            {
                "name": side.name,
                "broker": side.broker,
                "runs": [str(directory) for directory in side.directories],
                "valid": side.valid,
                "reasons": list(side.codes),
            }
            for side in compared.sides
        ],
        "rows": [
            {"case": comparison.case, **_row(line)}
            for comparison in compared.cases
            for line in comparison.lines
        ],
        "verdict": {
            "valid": compared.valid,
            "reasons": list(dict.fromkeys(code for side in compared.sides for code in side.codes)),
        },
    }


def _row(line: Line) -> Mapping[str, Any]:
    return {
        "name": line.name,
        "column": column_of(line),
        "unit": line.unit,
        "values": [None if cell is None else list(cell.values) for cell in line.cells],
        "medians": [None if cell is None else cell.median for cell in line.cells],
        "differences": [
            None if one is None else {"ratio": one.ratio, "certain": one.exceeds}
            for one in line.differences
        ],
    }


def column_of(line: Line) -> str:
    """Return the figure of a line as scorecard.json names it, with p99.9 for its title 99.9P."""
    key = next(key for key, title in FIGURES.items() if title == line.column)
    return key.replace("_", ".")


def side_difference(line: Line, place: int) -> str:
    """Return the difference of a side from the first, or why it is uncertain."""
    difference = line.differences[place - 1]
    if difference is not None and difference.absolute and difference.exceeds is False:
        return "too noisy to tell"
    return difference_text(difference)
