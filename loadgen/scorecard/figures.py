"""Plotly figures as plain data, with the look that all charts share.

Colours are names such as "$blue" that the page replaces by its theme's, so that one figure serves
light, dark and print. Texts that come from a run are escaped here: plotly reads a subset of HTML.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from loadgen.scorecard.text import csv_of, name

Figure = dict[str, Any]
Table = tuple[Sequence[str], Iterable[Sequence[object]]]
"""Header and rows."""

COLORS = ("$blue", "$orange", "$aqua", "$violet", "$red", "$green", "$yellow", "$pink")

LOG_MICROSECONDS = {"type": "log", "exponentformat": "none", "separatethousands": True}
SECONDS = "seconds since the measurement began"

_FEW_POINTS = 10
"""So few are marked one by one."""

_LEGEND_IN_COLUMNS = 4
"""A legend of more entries is set in columns."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure ({"data", "layout"} of plotly), how to read it, and its numbers as CSV."""

    title: str
    note: str
    figure: Figure
    table: str
    height: int = 320


def chart(
    title: str,
    note: str,
    lines: Sequence[Figure],
    layout: Figure,
    *tables: Table,
    height: int = 320,
) -> Chart:
    """A chart of these lines; the numbers of each table stand below one another in the CSV."""
    figure = {"data": [*lines], "layout": layout}
    return Chart(title, note, figure, "\r\n".join(csv_of(*table) for table in tables), height)


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
    """A line through (x, y) points, with a gap where y is None.

    Points are marked one by one where `marked`; None leaves that to their number. `style` is
    plotly's for lines.
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
    """An axis as all charts have it."""
    return {
        "title": {"text": escape(title), "font": {"size": 12}, "standoff": 8},
        "gridcolor": "$grid",
        "linecolor": "$axis",
        "zeroline": False,
        "automargin": True,
        **more,
    }


def from_zero(title: str, **more: object) -> Figure:
    """An axis that begins at 0."""
    return axis(title, rangemode="tozero", **more)


def layout(short_names: Sequence[Figure] = (), /, **more: object) -> Figure:
    """A layout as all charts have it; by default hovering shows all lines at one x.

    Of many lines with short names the legend is set in columns.
    """
    legend: Figure = {"orientation": "h", "x": 0, "y": 1.06, "yanchor": "bottom"}
    if len(short_names) > _LEGEND_IN_COLUMNS:
        legend |= {"entrywidth": 140, "entrywidthmode": "pixels"}
    return {
        "paper_bgcolor": "$surface",
        "plot_bgcolor": "$surface",
        "font": {"color": "$ink", "size": 12},
        "margin": {"l": 56, "r": 16, "t": 44, "b": 44},
        "legend": legend,
        "hoverlabel": {"align": "left"},
        "hovermode": "x",
        **more,
    }


def phases_shaded(phases: Iterable[tuple[str, float, float]]) -> Figure:
    """Shapes and annotations of a layout: phases shaded over all panels, named where room is."""
    phases = list(phases)
    whole = max((end for _, _, end in phases), default=0.0) - min(
        (start for _, start, _ in phases), default=0.0
    )
    return {
        "shapes": [
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": start,
                "x1": end,
                "y0": 0,
                "y1": 1,
                "line": {"width": 0},
                "fillcolor": "$measure" if phase == "measure" else "$phase",
                "layer": "below",
            }
            for phase, start, end in phases
        ],
        "annotations": [
            {
                "xref": "x",
                "yref": "paper",
                "x": (start + end) / 2,
                "y": 1,
                "yanchor": "bottom",
                "showarrow": False,
                "text": escape(phase),
                "font": {"size": 11, "color": "$muted"},
            }
            for phase, start, end in phases
            if end - start > 0.08 * whole
        ],
    }


def color_of(place: int) -> str:
    """Colour of the place-th line of a chart with any number of them."""
    return COLORS[place % len(COLORS)]
