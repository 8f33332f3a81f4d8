"""A chart of figures over a varied value, for a sweep and for runs of several loads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.cases.case import ChartStyle
from loadgen.cases.registry import style_of
from loadgen.report.build.figures import (
    Figure,
    chart,
    color_of,
    from_zero,
    layout,
    line,
    spread_axis,
    varied_axis,
)
from loadgen.report.model import Chart

_SYMBOLS = {"INVALID": "x", "NOT CONFIRMED": "x", "at least": "triangle-up"}
"""Marks of points through which no line goes."""

TAIL = "p99"
"""Figure that is drawn below the others."""


@dataclass(frozen=True, slots=True)
class VariedPoint:
    """Figures at a varied value; `line` names its line, `mark` is empty for a point on it."""

    at: float
    line: str
    figures: Mapping[str, float | None]
    mark: str = ""


def varied_chart(
    title: str, note: str, varied: str, points: Sequence[VariedPoint], style: ChartStyle, unit: str
) -> Chart:
    """Return the lines of a style over a varied value, and the 99th percentile below them.

    The second line of a style with two axes has an axis on the right.
    """
    points = sorted(points, key=lambda point: point.at)
    members: dict[str, list[VariedPoint]] = {}
    for point in points:
        members.setdefault(point.line, []).append(point)
    two_axes = style.two_axes and len(style.lines) > 1
    tail = TAIL not in dict(style.lines) and any(point.figures.get(TAIL) for point in points)
    shown = [*style.lines, *([(TAIL, "99th percentile")] if tail else [])]
    lines: list[Figure] = []
    for place, (label, own) in enumerate(members.items()):
        for which, (key, words) in enumerate(shown):
            lines += _traces(
                ", ".join(filter(None, (words, label))),
                own,
                key,
                color_of(place * len(shown) + which),
                "y3" if tail and key == TAIL else "y2" if two_axes and which == 1 else "y",
            )

    def values(key: str) -> list[float | None]:
        return [point.figures.get(key) for point in points]

    main: Figure = {"domain": [0.4, 1.0]} if tail else {}
    axes: Figure = {"yaxis": from_zero(unit, **main)}
    if two_axes:
        (left, _), (right, _) = style.lines
        axes["yaxis"] = spread_axis(f"{left}, {unit}", values(left), **main)
        # Separate ticks: at the places of the other axis they would be odd numbers.
        main |= {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"}
        axes["yaxis2"] = from_zero(f"{right}, {unit}", **main)
    xaxis = varied_axis(varied, [point.at for point in points], log=varied == "ratio")
    if tail:
        xaxis["anchor"] = "y3"
        axes["yaxis3"] = spread_axis("99P, µs", values(TAIL), domain=[0.0, 0.28])
    return chart(
        title,
        note,
        lines,
        layout(xaxis=xaxis, **axes, showlegend=True),
        height=480 if tail else 360,
    )


def unit_of(case: str) -> str:
    """Return the unit of a case's main figure."""
    return {"avg": "µs", "seconds": "s"}.get(style_of(case).main, "msgs/s")


def _traces(
    title: str, points: Sequence[VariedPoint], key: str, color: str, which_axis: str
) -> list[Figure]:
    """Return a line through the points without a mark, with gaps, and marks for the others."""
    traces = []
    for mark in dict.fromkeys(("", *(point.mark for point in points))):
        drawn = [
            (point.at, point.figures.get(key) if point.mark == mark else None) for point in points
        ]
        if all(y is None for _, y in drawn):
            continue
        label = f"{title}, {mark}" if mark else title
        trace = line(label, drawn, color, "%{y:,.1f}", which_axis, marked=True)
        if mark:
            trace["mode"] = "markers"
            trace["marker"] = {"symbol": _SYMBOLS[mark], "size": 10, "color": color}
        traces.append(trace)
    return traces
