"""Plotly figures as plain data, with the look that all charts share.

Colours are names such as "$blue" that the page replaces by its theme's, so that one figure serves
light, dark and print. Texts that come from a run are escaped here: plotly reads a subset of HTML.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape, unescape
from typing import Any

from loadgen.report.build.rows import DATA
from loadgen.report.model import Chart
from loadgen.report.render.text import csv_of, name, number

Figure = dict[str, Any]

_LOOK: Figure = DATA["look"]
"""The keys of a layout that all charts share."""

COLORS = ("$blue", "$orange", "$aqua", "$violet", "$red", "$green", "$yellow", "$pink")

SECONDS = "seconds since the measurement began"

_NEAR, _FEW_DECADES = 4.0, 300.0
"""Factors between the ends of a logarithmic axis up to which it has more ticks than decades."""

_FEW_POINTS = 10
"""Most points that are marked one by one."""

_FAR, _SPREAD = 20.0, 8.0
"""Factors between varied values, and between figures, above which their axis is logarithmic."""

_MOST_NAMED = 10
"""Most varied values that are ticks themselves."""

_LEGEND_IN_COLUMNS = 4
"""A legend of more entries is set in columns."""


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

    Each point is marked if `marked`; None leaves that to their number. `style` is plotly's for
    lines.
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


def log_axis(title: str, values: Iterable[float | None], **more: object) -> Figure:
    """Return a logarithmic axis over these values, from tick to tick, each written out.

    Values that are not above zero are ignored.
    """
    positive = [value for value in values if value and value > 0] or [1.0]
    low, high = min(positive), max(positive)
    if low == high:
        low, high = 0.9 * low, 1.1 * high
    ticks = [float(f"{tick:.6g}") for tick in _ticks(low, high)]
    return axis(
        title,
        type="log",
        range=[round(math.log10(end), 6) for end in (ticks[0], ticks[-1])],
        tickvals=ticks,
        ticktext=[f"{tick:,.10g}" for tick in ticks],
        **more,
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers from the last one below to the first one above.

    They have a fixed step, or are 1, 2 and 5 of each decade, or 1 of each of many decades.
    """
    if high < _NEAR * low:
        quarter = (high - low) / 4
        decade = 10.0 ** math.floor(math.log10(quarter))
        step = max(part for part in (1, 2, 5) if part <= quarter / decade * (1 + 1e-9)) * decade
        return [step * n for n in range(math.floor(low / step), math.ceil(high / step - 1e-9) + 1)]
    parts = (1, 2, 5) if high < _FEW_DECADES * low else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    all_ticks = [part * 10.0**decade for decade in decades for part in parts]
    first = max(tick for tick in all_ticks if tick <= low * (1 + 1e-9))
    last = min(tick for tick in all_ticks if tick >= high * (1 - 1e-9))
    return [tick for tick in all_ticks if first <= tick <= last]


def varied_axis(title: str, values: Iterable[float], *, log: bool = False) -> Figure:
    """Return an axis over varied values, which are the ticks unless they are many.

    It is logarithmic if `log` is True or the values lie far apart, so that they do not overlap.
    """
    ticks = sorted(set(values))
    low, high = ticks[0], ticks[-1]
    if low <= 0 or not (log or high > _FAR * low):
        return axis(title)
    if len(ticks) > _MOST_NAMED:
        return log_axis(title, ticks)
    margin = 0.04 * math.log10(high / low) or 0.3
    return axis(
        title,
        type="log",
        range=[round(math.log10(low) - margin, 6), round(math.log10(high) + margin, 6)],
        tickvals=ticks,
        ticktext=[number(value) for value in ticks],
    )


def spread_axis(title: str, values: Iterable[float | None], **more: object) -> Figure:
    """Return an axis that is logarithmic if the values lie far apart, and else begins at 0."""
    positive = [value for value in values if value]
    if positive and max(positive) > _SPREAD * min(positive) > 0:
        return log_axis(title, positive, **more)
    return from_zero(title, **more)


def layout(short_names: Sequence[Figure] = (), /, **more: object) -> Figure:
    """Return a layout in the style of all charts; by default hovering shows all lines at one x.

    The legend of many lines with `short_names` is set in columns.
    """
    legend: Figure = {**_LOOK["layout"]["legend"]}
    if len(short_names) > _LEGEND_IN_COLUMNS:
        legend |= {"entrywidth": 140, "entrywidthmode": "pixels"}
    return {**_LOOK["layout"], "legend": legend, **more}


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
