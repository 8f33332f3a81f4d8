"""The chart of a comparison: its figures over a varied load, or every run of it as a mark."""

from collections.abc import Mapping, Sequence
from html import escape

from loadgen.cases.registry import style_of
from loadgen.report.build.compare import Comparison, Line, differing_facts, facts_of, label_of
from loadgen.report.build.figures import Figure, axis, chart, color_of, layout, log_axis
from loadgen.report.build.sweep_table import FIGURES, figures_of, median_of
from loadgen.report.build.varied_chart import VariedPoint, unit_of, varied_chart
from loadgen.report.model import Chart
from loadgen.report.render.text import name
from loadgen.report.score_card import ScoreCard

_SCENARIO = "scenario."
_VARIED = ("ratio", "background_rate", "backends", "size", "rate", "devices")
"""Fields over which a chart is drawn, the first that differs; then any other number."""

_NEAREST = (0.9, 1.1)
"""Least extent of the axis of multiples: it does not zoom into equal values."""

MOST_SIDES, _MOST_MARKS = 12, 30
"""Most sides that are drawn, and most runs of each."""


def comparison_chart(cards: Sequence[ScoreCard], comparison: Comparison) -> Chart | None:
    """Return the chart of a comparison; None if the loads differ in no number."""
    return _varied_chart(cards, comparison) or _marks_chart(comparison)


def _varied_chart(cards: Sequence[ScoreCard], comparison: Comparison) -> Chart | None:
    """Return figures over the field of the scenario in which the sides differ, if there is one."""
    facts = [facts_of(cards[side.runs[0]]) for side in comparison.sides]
    differing = differing_facts(facts)
    fields = [key.removeprefix(_SCENARIO) for key in differing if key.startswith(_SCENARIO)]
    ordered = [*(field for field in _VARIED if field in fields), *fields]
    values = ([_number(one.get(f"{_SCENARIO}{field}")) for one in facts] for field in ordered)
    over = next((pair for pair in zip(ordered, values, strict=True) if None not in pair[1]), None)
    if over is None:
        return None
    field, at = over
    others = [key for key in differing if key != f"{_SCENARIO}{field}"]
    points = []
    for side, of_side, value in zip(comparison.sides, facts, at, strict=True):
        runs = [cards[run] for run in side.runs]
        mark = "" if all(card.verdict.valid for card in runs) else "INVALID"
        points.append(VariedPoint(value or 0.0, label_of(of_side, others), _medians(runs), mark))
    words = field.replace("_", " ")
    return varied_chart(
        f"{name(comparison.case.upper(), 60)} by {words}",
        "A point for each side, the median of its runs. A cross is INVALID.",
        words,
        points,
        style_of(comparison.case),
        unit_of(comparison.case),
    )


def _medians(runs: Sequence[ScoreCard]) -> Mapping[str, float | None]:
    figures = [figures_of(card) for card in runs]
    return {key: median_of(one[key] for one in figures) for key in FIGURES}


def _number(value: object) -> float | None:
    """Return a number of a scenario, or the largest payload of a size."""
    if isinstance(value, (list, tuple)) and value:
        value = value[-1]
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _share(line: Line, place: int) -> float | None:
    """Return the relative difference of a side from the first one, if it has one."""
    difference = line.differences[place - 1] if place else None
    return None if difference is None else difference.share


def _marks_chart(comparison: Comparison) -> Chart | None:
    """Return every run of a comparison as a mark, as a multiple of the first side's median.

    Return None if no other side has the load of the first one, as multiples would be meaningless.
    """
    firsts = [
        (item, first.median)
        for item in comparison.lines
        if (first := item.cells[0]) is not None and first.median > 0
    ]
    alike = [
        place
        for place, _ in enumerate(comparison.sides)
        if not place or any(_share(item, place) is not None for item, _ in firsts)
    ]
    if not firsts or (len(alike) == 1 and len(comparison.sides) > 1):
        return None
    marks: list[Figure] = []
    for place in alike[:MOST_SIDES]:
        label = comparison.sides[place].label
        runs = [
            (item, value / middle, value)
            for item, middle in firsts
            if (sample := item.cells[place]) is not None
            for value in sample.values[:_MOST_MARKS]
            if value > 0
        ]
        marks.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(name(label)),
                "x": [float(f"{share:.6g}") for _, share, _ in runs],
                "y": [
                    escape(name(f"{item.name} {item.column}, {item.unit}")) for item, _, _ in runs
                ],
                "text": [f"{value:,.6g} {escape(name(item.unit))}" for item, _, value in runs],
                "hovertemplate": "%{text}, %{x:.4g} times",
                "marker": {
                    "color": color_of(place),
                    "size": 9,
                    "symbol": ("circle", "diamond", "square", "cross")[place % 4],
                },
            }
        )
    shares = [*_NEAREST, *(share for mark in marks for share in mark["x"])]
    return chart(
        f"Runs of {name(comparison.case.upper(), 60)} side by side",
        "Runs as marks: how many times the median of the first side each is, on a logarithmic axis;"
        f" the first {_MOST_MARKS} of each side.",
        marks,
        layout(
            xaxis=log_axis("times the median of the first side", shares),
            yaxis=axis("", type="category", autorange="reversed"),
            hovermode="closest",
            showlegend=True,
        ),
        height=160 + 24 * len(firsts),
    )
