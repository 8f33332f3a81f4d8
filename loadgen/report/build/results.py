"""The results of several runs as one table: a row a figure and side, with mean and spread."""

from collections.abc import Sequence

from loadgen.plan.tables import Cell, DataTable
from loadgen.report.build.compare import Comparison, Sample, sample_of
from loadgen.report.build.rows import FIGURES, Row, RowKey, in_report_order, keyed
from loadgen.report.render.text import name, number
from loadgen.report.score_card import ScoreCard
from loadgen.sentences import counted

MOST_APART = 6
"""Most runs that are shown one by one; of more, sides come first and runs are folded."""

_REMARKS_DIFFER = " Other runs of it say the same with other figures."


def is_merged(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> bool:
    """Return True if runs are shown as sides: some are repetitions, or they are many."""
    repeated = any(len(side.runs) > 1 for item in comparisons for side in item.sides)
    return repeated or len(cards) > MOST_APART


def results_table(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> DataTable:
    """Return the rows of all runs in the order of the published card.

    A row is a side if runs are merged, else a run.
    """
    merged = is_merged(cards, comparisons)
    sides = _sides(cards, comparisons if merged else ())
    keyed_rows = [[keyed(cards[run].rows) for run in runs] for _, runs in sides]
    # The names are those of the side's run with the most rows.
    templates = [max(rows, key=len) for rows in keyed_rows]
    key_of = {id(row): key for template in templates for key, row in template.items()}
    lines: dict[RowKey, list[tuple[Cell | str | float | None, ...]]] = {}
    for place, row in in_report_order([[*template.values()] for template in templates]):
        key = key_of[id(row)]
        same = [rows[key] for rows in keyed_rows[place] if key in rows]
        remarks = list(dict.fromkeys(other.remark for other in same if other.remark))
        remark = "".join(remarks[:1]) + (_REMARKS_DIFFER if len(remarks) > 1 else "")
        invalid = [cards[run].verdict.word == "INVALID" for run in sides[place][1]]
        side = _side_cell(cards, sides[place], invalid, merged)
        columns = zip(*(other.figures for other in same), strict=True)
        lines.setdefault(key, []).append(
            (
                row.type,
                row.name,
                Cell(row.description, notes=(row.unit,), remark=remark),
                *([side] if len(cards) > 1 else []),
                *(sample_cell(sample_of(values), wrong=any(invalid)) for values in columns),
            )
        )
    side_title = ("Side" if merged else "Run",) if len(cards) > 1 else ()
    words = ("Type", "Name", "Description", *side_title)
    return DataTable(
        "Results",
        "",
        (*words, *FIGURES.values()),
        # The sides of a figure follow one another.
        tuple(line for group in lines.values() for line in group),
        texts=tuple(range(len(words))),
        look="score",
    )


def sample_cell(sample: Sample | None, notes: tuple[str, ...] = (), *, wrong: bool = False) -> Cell:
    """Return a cell with mean and standard deviation, empty if there is no sample."""
    if sample is None:
        return Cell(None)
    more = "" if sample.stdev is None else f"± {number(sample.stdev)}"
    return Cell(sample.mean, more, notes, wrong=wrong)


def headline(row: Row) -> str:
    """Return the main figure of a row, in words; "" if it has no figure."""
    figures = (("", row.value), ("50P ", row.p50), ("AVG ", row.avg), ("MAX ", row.max))
    shown = next((f"{title}{number(value)}" for title, value in figures if value is not None), "")
    return shown and f"{name(row.name)} {shown} {name(row.unit)}"


def _sides(
    cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the label and the runs of each side; a run that is not compared is a side."""
    sides = [
        (side.label if len(comparison.sides) > 1 else "", side.runs)
        for comparison in comparisons
        for side in comparison.sides
    ]
    compared = {run for _, runs in sides for run in runs}
    return sides + [("", (place,)) for place in range(len(cards)) if place not in compared]


def _side_cell(
    cards: Sequence[ScoreCard],
    side: tuple[str, tuple[int, ...]],
    invalid: Sequence[bool],
    merged: bool,
) -> Cell:
    label, runs = side
    count = f"{sum(invalid)} of {len(runs)} " if 0 < sum(invalid) < len(runs) else ""
    notes = (f"{count}INVALID",) if any(invalid) else ()
    if merged:
        title = label or cards[runs[0]].run.case.upper()
        return Cell(title, notes=(counted(len(runs), "run"), *notes), wrong=any(invalid))
    number_of_run = runs[0] + 1
    return Cell(
        f"run {number_of_run}", notes=notes, wrong=any(invalid), link=f"run-{number_of_run}"
    )
