"""Charts of a comparison and of a sweep: figures over a varied value, or latencies of each side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.cases.registry import style_of
from loadgen.report.build import figures
from loadgen.report.build.charts import distribution_chart
from loadgen.report.build.compare import Comparison, differing_facts, facts_of, label_of
from loadgen.report.build.figures import chart, color_of, from_zero, layout, line
from loadgen.report.build.sweep_table import FIGURES, figures_of
from loadgen.report.headline import median_of
from loadgen.report.model import Chart
from loadgen.report.render.text import name
from loadgen.report.score_card import ScoreCard
from loadgen.sentences import REPORT_TEXT

_SCENARIO = "scenario."
_VARIED = ("ratio", "background_rate", "backends", "size", "rate", "devices")
"""Fields over which a chart is drawn, the first that differs; then any other number."""

MOST_SIDES, _MOST_RUNS = 12, 5  # maximum number of sides that are drawn, and of runs of each

_SYMBOLS = {"INVALID": "x", "NOT CONFIRMED": "x", "at least": "triangle-up"}
"""Marks of points through which no line goes."""
_LEGEND_ROW = 20  # height of two entries of a legend
_DASHES = ("solid", "dash", "dot", "dashdot")  # of the figures of a side
_TAIL = "p99"  # figure that is drawn below the others


@dataclass(frozen=True, slots=True)
class VariedPoint:
    """Figures at a varied value; `line` names its line, `mark` is empty for a point on it."""

    at: float
    line: str
    figures: Mapping[str, float | None]
    mark: str = ""


def varied_chart(case: str, field: str, points: Sequence[VariedPoint]) -> Chart:
    """Return the lines of a case's style over a field, and the 99th percentile below them.

    The second line of a style with two axes has an axis on the right. Points with a mark are drawn
    separately. Of several sides each has a colour, and each figure a dash.
    """
    style, varied = style_of(case), field.replace("_", " ")
    unit = FIGURES[style.main].unit
    points = sorted(points, key=lambda point: point.at)
    members: dict[str, list[VariedPoint]] = {}
    for point in points:
        members.setdefault(point.line, []).append(point)
    two_axes = style.two_axes and len(style.lines) > 1
    tail = _TAIL not in dict(style.lines) and any(point.figures.get(_TAIL) for point in points)
    shown = [*style.lines, *([(_TAIL, "99th percentile")] if tail else [])]
    lines: list[figures.Figure] = []
    for label, along in members.items():
        for which, (key, words) in enumerate(shown):
            of_axis = "y3" if tail and key == _TAIL else "y2" if two_axes and which == 1 else "y"
            several = len(members) > 1
            color = color_of([*members].index(label) if several else which)
            dash = _DASHES[which] if several else _DASHES[0]
            for mark in dict.fromkeys(("", *(point.mark for point in along))):
                drawn = [(p.at, p.figures.get(key) if p.mark == mark else None) for p in along]
                if all(y is None for _, y in drawn):
                    continue
                words_of_line = ", ".join(filter(None, (words, label, mark)))
                trace = line(
                    words_of_line, drawn, color, "%{y:,.1f}", of_axis, marked=True, dash=dash
                )
                if mark:
                    trace["mode"] = "markers"
                    trace["marker"] = {"symbol": _SYMBOLS[mark], "size": 10, "color": color}
                    # The note explains marks: a legend has one entry for each line.
                    trace["showlegend"] = all(p.mark for p in along)
                lines.append(trace)

    def values(key: str) -> list[float | None]:
        return [point.figures.get(key) for point in points]

    main: figures.Figure = {"domain": [0.4, 1.0]} if tail else {}
    axes: figures.Figure = {"yaxis": from_zero(unit, **main)}
    if two_axes:
        (left, _), (right, _) = style.lines
        axes["yaxis"] = figures.spread_axis(f"{left}, {unit}", values(left), **main)
        # Separate ticks: at the places of the other axis they would be odd numbers.
        main |= {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"}
        axes["yaxis2"] = from_zero(f"{right}, {unit}", **main)
    xaxis = figures.varied_axis(varied, [point.at for point in points], log=field == "ratio")
    if tail:
        xaxis["anchor"] = "y3"
        axes["yaxis3"] = figures.spread_axis("p99, µs", values(_TAIL), domain=[0.0, 0.28])
    look = layout(xaxis=xaxis, **axes, showlegend=True)
    title = f"{name(case.upper(), 60)} by {varied}"
    height = (480 if tail else 360) + _LEGEND_ROW * max(0, len(lines) // 2 - 2)
    return chart(title, REPORT_TEXT.VARIED(), lines, look, height=height)


def comparison_chart(cards: Sequence[ScoreCard], comparison: Comparison) -> Chart | None:
    """Return figures over the field of the scenario in which the sides differ, or their latencies.

    Return None if there is nothing to draw.
    """
    facts = [facts_of(cards[side.runs[0]]) for side in comparison.sides]
    differing = differing_facts(facts)
    fields = [key.removeprefix(_SCENARIO) for key in differing if key.startswith(_SCENARIO)]
    for varied in (*(field for field in _VARIED if field in fields), *fields):
        at = [_number(side.get(f"{_SCENARIO}{varied}")) for side in facts]
        if None not in at:
            break
    else:
        return _distributions(cards, comparison)
    names = [key for key in differing if key != f"{_SCENARIO}{varied}"]
    points = []
    for side, of_side, value in zip(comparison.sides, facts, at, strict=True):
        runs = [cards[run] for run in side.runs]
        of_runs = [figures_of(card) for card in runs]
        medians = {key: median_of(run[key] for run in of_runs) for key in FIGURES}
        mark = "" if all(card.verdict.valid for card in runs) else "INVALID"
        points.append(VariedPoint(value or 0.0, label_of(of_side, names), medians, mark))
    return varied_chart(comparison.case, varied, points)


def _number(value: object) -> float | None:
    """Return a number of a scenario, or the largest payload of a size."""
    if isinstance(value, (list, tuple)) and value:
        value = value[-1]
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _distributions(cards: Sequence[ScoreCard], comparison: Comparison) -> Chart | None:
    """Return the latencies of each run, or the times of its connects; a side has one colour."""
    for series in ("end_to_end", "connect"):
        curves = [
            (side.label, curve)
            for side in comparison.sides[:MOST_SIDES]
            for run in side.runs[:_MOST_RUNS]
            for curve in cards[run].curves.distribution
            if curve.series == series
        ]
        if curves:
            return distribution_chart("sides", [c for _, c in curves], [name(n) for n, _ in curves])
    return None
