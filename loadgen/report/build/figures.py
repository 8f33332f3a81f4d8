"""Plotly figures as plain data, with the look that all charts share.

Colours are names such as "$blue" that the page replaces by its theme's, so that one figure serves
light, dark and print. Texts that come from a run are escaped here: plotly reads a subset of HTML.
"""

from collections.abc import Iterable, Sequence
from html import escape, unescape
from typing import Any

from loadgen.report.build.rows import DATA
from loadgen.report.model import Chart
from loadgen.report.render.text import csv_of, name, number

Figure = dict[str, Any]
_LOOK: Figure = DATA["look"]  # the keys of a layout that all charts share
LOG: Figure = _LOOK["log"]  # keys of a logarithmic axis
COLORS = ("$blue", "$orange", "$aqua", "$violet", "$red", "$green", "$yellow", "$pink")
SECONDS = "seconds since the measurement began"
_FEW_POINTS = 10  # maximum number of points that have a marker each

_FAR, _SPREAD = 20.0, 8.0
"""Factors between varied values, and between figures, above which their axis is logarithmic."""

_MOST_NAMED = 10  # maximum number of varied values that have a tick each


def chart(
    title: str, note: str, lines: Sequence[Figure], layout: Figure, height: int = 320
) -> Chart:
    """Return a chart of these lines; its CSV has a row for each of their points."""
    rows = []
    for trace in lines:
        of_axis = layout[trace.get("yaxis", "y").replace("y", "yaxis")]
        label, unit = unescape(trace["name"]), unescape(of_axis["title"]["text"])
        texts = trace.get("text") or [""] * len(trace["x"])
        points = zip(trace["x"], trace["y"], texts, strict=True)
        rows += [(label, x, y, unit, text) for x, y, text in points]
    header = ("line", unescape(layout["xaxis"]["title"]["text"]), "value", "unit", "note")
    return Chart(title, note, {"data": [*lines], "layout": layout}, csv_of(header, rows), height)


def line(
    label: str,
    points: Iterable[tuple[object, float | None]],
    color: str,
    hover: str,
    axis: str = "y",
    *,
    marked: bool | None = False,
    **style: object,
) -> Figure:
    """Return a line through (x, y) points, with a gap if y is None.

    Points are marked if `marked`; None marks a few points only. `style` is plotly's for lines.
    """
    points = list(points)
    if marked is None:
        marked = len(points) <= _FEW_POINTS
    return {
        "type": "scatter",
        "mode": "lines+markers" if marked else "lines",
        "name": escape(name(label)),
        "x": [round(x, 3) if isinstance(x, float) else x for x, _ in points],
        "y": [None if y is None else round(y, 4) for _, y in points],
        "yaxis": axis,
        "hovertemplate": hover,
        "line": {"color": color, "width": 2, **style},
    }


def axis(title: str, **more: object) -> Figure:
    titled: Figure = {"title": {"text": escape(title), **_LOOK["axis_title"]}}
    return {**titled, **_LOOK["axis"], **more}


def from_zero(title: str, **more: object) -> Figure:
    return axis(title, rangemode="tozero", **more)


def varied_axis(title: str, values: Iterable[float], *, log: bool = False) -> Figure:
    """Return an axis over varied values, logarithmic if `log` or if they lie far apart.

    The values are its ticks then, unless they are many.
    """
    ticks = sorted(set(values))
    if ticks[0] <= 0 or not (log or ticks[-1] > _FAR * ticks[0]):
        return axis(title)
    if len(ticks) > _MOST_NAMED:
        return axis(title, **LOG)
    named = {"tickvals": ticks, "ticktext": [number(value) for value in ticks]}
    return axis(title, **LOG, **named)


def spread_axis(title: str, values: Iterable[float | None], **more: object) -> Figure:
    """Return an axis that is logarithmic if the values lie far apart, and else begins at 0."""
    positive = [value for value in values if value]
    if positive and max(positive) > _SPREAD * min(positive) > 0:
        return axis(title, **LOG, **more)
    headroom = {"include": 1.1 * max(positive, default=0.0)}
    return from_zero(title, autorangeoptions=headroom, **more)


def layout(**more: object) -> Figure:
    """Return a layout in the style of all charts; by default hovering shows all lines at one x."""
    return {**_LOOK["layout"], **more}


def phases_shaded(phases: Iterable[tuple[str, float, float]]) -> Figure:
    """Return shapes and annotations of a layout: shaded phases, named if there is room."""
    phases = list(phases)
    first = min((start for _, start, _ in phases), default=0.0)
    total = max((end for _, _, end in phases), default=0.0) - first
    shaded = [
        {"x0": start, "x1": end, "fillcolor": "$measure" if phase == "measure" else "$phase"}
        for phase, start, end in phases
    ]
    named = [
        {"x": (start + end) / 2, "text": escape(phase)}
        for phase, start, end in phases
        if end - start > 0.08 * total
    ]
    return {
        "shapes": [{**_LOOK["phase"], **shape} for shape in shaded],
        "annotations": [{**_LOOK["phase_name"], **text} for text in named],
    }


def color_of(place: int) -> str:
    return COLORS[place % len(COLORS)]
