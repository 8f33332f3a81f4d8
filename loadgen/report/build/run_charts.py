"""Charts that put several runs side by side, as the published report has them.

Fan-out and latency by load, rates by message size, by fan-out ratio and by number of queue managers
(here: backends). `_CHARTS` has the figures and the varied value of each. A chart is left out if the
runs do not differ in its value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from loadgen.cases.registry import style_of
from loadgen.report.build.compare import Comparison, Line
from loadgen.report.build.figures import (
    Figure,
    axis,
    chart,
    color_of,
    from_zero,
    layout,
    line,
    log_axis,
    varied_axis,
)
from loadgen.report.model import Chart
from loadgen.report.render.text import name
from loadgen.report.score_card import ScoreCard
from loadgen.sentences import counted

Point = tuple[Any, ...]
"""The varied value, the figures, and the validity of a run."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A line of the chart: `word` ends its name, `figure` is the place of its figure."""

    word: str
    figure: int
    style: Mapping[str, object] = field(default_factory=dict)
    axis: str = "y"


@dataclass(frozen=True, slots=True)
class _RunChart:
    """A chart over several runs.

    `line` returns the line of a run ("" for the only one), None for a run that is not drawn. `over`
    returns the varied value, None if the run lacks it. `axes` are over that value and the first
    figure. `columns` are those of the CSV without `valid`, `figures` those of each run in it.
    """

    title: str
    note: str
    line: Callable[[ScoreCard], str | None]
    over: Callable[[ScoreCard], float | None]
    drawn: tuple[_Drawn, ...]
    columns: tuple[str, ...]
    axes: Callable[[list[Any], list[Any]], Figure]
    hover: str = "%{y:,.1f} msgs/s"
    figures: tuple[Callable[[ScoreCard], float | None], ...] = (
        lambda card: card.rates["sent"],
        lambda card: card.rates["received"],
    )
    least_lines: int = 1


def run_charts_of(cards: Sequence[ScoreCard]) -> list[Chart]:
    """Return the charts whose varied value differs between the runs."""
    return [drawn for kind in _CHARTS if (drawn := _draw(kind, cards)) is not None]


def _draw(kind: _RunChart, cards: Sequence[ScoreCard]) -> Chart | None:
    groups: dict[str, list[Point]] = {}
    for card in cards:
        label, at = kind.line(card), kind.over(card)
        figures = [figure(card) for figure in kind.figures]
        if label is not None and at is not None and None not in figures:
            groups.setdefault(label, []).append((at, *figures, card.verdict.valid))
    groups = {
        label: sorted(points)
        for label, points in groups.items()
        if len({point[0] for point in points}) > 1
    }
    if len(groups) < kind.least_lines:
        return None
    lines = [
        line(
            " ".join(filter(None, (label, drawn.word))),
            [(point[0], point[1 + drawn.figure]) for point in points],
            color_of(place if label else drawn.figure),
            kind.hover,
            drawn.axis,
            marked=True,
            **drawn.style,
        )
        for place, (label, points) in enumerate(groups.items())
        for drawn in kind.drawn
    ]
    rows = [
        (*([label] if label else []), *point)
        for label, points in groups.items()
        for point in points
    ]
    varied, first, *_ = zip(*(point for points in groups.values() for point in points), strict=True)
    return chart(
        kind.title,
        kind.note,
        lines,
        layout(**kind.axes([*varied], [*first]), **({} if "" in groups else {"showlegend": True})),
        ((*kind.columns, "valid"), rows),
    )


# --- what a run says ------------------------------------------------------------------------


def _integer(card: ScoreCard, key: str) -> int:
    value = card.run.scenario.get(key)
    return value if isinstance(value, int) else 0


def _size(card: ScoreCard) -> int | None:
    """Return the largest payload of the run."""
    size = card.run.scenario.get("size")
    if isinstance(size, (list, tuple)) and size and isinstance(size[-1], int):
        return size[-1]
    return size if isinstance(size, int) else None


def _ratio(card: ScoreCard) -> int | None:
    return _integer(card, "ratio") or None


def _backends(card: ScoreCard) -> int:
    given = card.run.scenario.get("backend")
    return (
        _integer(card, "backends") or (len(given) if isinstance(given, (list, tuple)) else 0) or 1
    )


def _background(card: ScoreCard) -> float:
    """Return the background's messages a second."""
    groups = (g for g in card.groups if g.name.startswith("background"))
    return sum(group.counters["sent"] for group in groups) / card.run.seconds


def _latency(column: str) -> Callable[[ScoreCard], float | None]:
    return lambda card: getattr(card.latency.get("end_to_end"), column, None)


def _drawn_over(axis: str) -> Callable[[ScoreCard], str | None]:
    return lambda card: "" if style_of(card.run.case).axis == axis else None


def _kind(card: ScoreCard) -> str | None:
    """Return the name of a line: the case and the values that its runs share."""
    case = card.run.case
    if not style_of(case).by_size:
        return None
    parts = [case.upper(), f"QoS {_integer(card, 'qos')}"]
    if style_of(case).axis == "ratio":
        parts.append(f"1:{_integer(card, 'ratio')}")
    if style_of(case).axis == "backends":
        parts.append(f"{_backends(card)} backends")
    return " ".join(parts)


def _fan_out_of_size(card: ScoreCard) -> str | None:
    size = _size(card)
    return counted(size, "byte") if style_of(card.run.case).axis == "ratio" and size else None


def _forwarded(card: ScoreCard) -> str | None:
    if style_of(card.run.case).axis != "backends":
        return None
    durable = ", durable" if card.run.scenario.get("durable") is True else ""
    return f"QoS {_integer(card, 'qos')}{durable}"


def _share_of_ratio(ratio: float) -> str:
    return f"1:{ratio:,.0f}"


_CHARTS = (
    _RunChart(
        "Fan-out",
        "Rate into the broker (logarithmic, left) and out of it (right) by subscribers a topic.",
        line=_drawn_over("ratio"),
        over=_ratio,
        drawn=(_Drawn("ingress (left)", 0), _Drawn("egress (right)", 1, axis="y2")),
        columns=("ratio", "ingress_per_s", "egress_per_s"),
        axes=lambda ratios, ingress: {
            "xaxis": varied_axis("fan-out ratio", ratios, _share_of_ratio, log=True),
            "yaxis": log_axis("ingress, msgs/s", ingress),
            # Separate ticks: at the places of the other axis they would be odd numbers.
            "yaxis2": from_zero(
                "egress, msgs/s", overlaying="y", side="right", showgrid=False, tickmode="auto"
            ),
        },
    ),
    _RunChart(
        "Latency by background load",
        "End-to-end latency of the timed pair at different background rates.",
        line=_drawn_over("background"),
        over=_background,
        figures=(_latency("avg"), _latency("p99")),
        drawn=(_Drawn("average", 0), _Drawn("99th percentile", 1)),
        hover="%{y:,.1f} µs",
        columns=("background_per_s", "avg_us", "p99_us"),
        axes=lambda rates, _: {
            "xaxis": varied_axis("background, msgs/s", rates),
            "yaxis": from_zero("µs"),
        },
    ),
    _RunChart(
        "Rate by message size",
        "TX is the rate of all publishers together, RX that of all subscribers.",
        line=_kind,
        over=_size,
        drawn=(_Drawn("TX", 0, {"dash": "dot"}), _Drawn("RX", 1, {"dash": "solid"})),
        columns=("case", "bytes", "sent_per_s", "received_per_s"),
        axes=lambda sizes, _: {
            "xaxis": varied_axis("payload, bytes", sizes, log=True),
            "yaxis": from_zero("msgs/s"),
        },
    ),
    _RunChart(
        "Fan-out by ratio and message size",
        "Rate out of the broker by subscribers a topic, a line for each message size.",
        line=_fan_out_of_size,
        over=_ratio,
        drawn=(_Drawn("", 1),),
        columns=("size", "ratio", "ingress_per_s", "egress_per_s"),
        axes=lambda ratios, _: {
            "xaxis": varied_axis("fan-out ratio", ratios, _share_of_ratio, log=True),
            "yaxis": from_zero("egress, msgs/s"),
        },
        least_lines=2,
    ),
    _RunChart(
        "Forwarding rate by number of backends",
        "Messages a second that consumers on the backends received, by how many backends there "
        "were (the report's queue managers).",
        line=_forwarded,
        over=_backends,
        drawn=(_Drawn("", 1),),
        columns=("kind", "backends", "sent_per_s", "forwarded_per_s"),
        axes=lambda *_: {
            "xaxis": axis("backends", dtick=1),
            "yaxis": from_zero("forwarded, msgs/s"),
        },
    ),
)


# --- every run of a comparison ---------------------------------------------------------------


MOST_SIDES, _MOST_MARKS = 12, 30
"""Most sides that are drawn, and most runs of each."""


def _sampled(values: Sequence[float]) -> list[float]:
    """Return some of many values, evenly by rank, with the least and the greatest."""
    ranked, last = sorted(values), len(values) - 1
    if last < _MOST_MARKS:
        return ranked
    return [ranked[last * n // (_MOST_MARKS - 1)] for n in range(_MOST_MARKS)]


def _share(line: Line, place: int) -> float | None:
    """Return the relative difference of a side from the first one, if it has one."""
    difference = line.differences[place - 1] if place else None
    return None if difference is None else difference.share


def comparison_chart(comparison: Comparison) -> Chart | None:
    """Return every run of a comparison as a mark, as a multiple of the first side's mean.

    Return None if no other side has the load of the first one, as multiples would be meaningless.
    """
    firsts = [
        (item, first.mean)
        for item in comparison.lines
        if (first := item.cells[0]) is not None and first.mean > 0
    ]
    alike = [
        place
        for place, _ in enumerate(comparison.sides)
        if not place or any(_share(item, place) is not None for item, _ in firsts)
    ]
    if not firsts or (len(alike) == 1 and len(comparison.sides) > 1):
        return None
    rows: list[tuple[str, str, str, str, float]] = []
    marks: list[Figure] = []
    for place in alike[:MOST_SIDES]:
        label = comparison.sides[place].label
        runs = [
            (item, value / mean, value)
            for item, mean in firsts
            if (sample := item.cells[place]) is not None
            for value in _sampled(sample.values)
            if value > 0
        ]
        rows += [(label, item.name, item.column, item.unit, value) for item, _, value in runs]
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
    shares = [share for mark in marks for share in mark["x"]]
    return chart(
        f"Runs of {name(comparison.case.upper(), 60)} side by side",
        "Runs as marks: how many times the mean of the first side each is, on a logarithmic axis."
        f" Of a side of more than {_MOST_MARKS} runs some are drawn, evenly by rank.",
        marks,
        layout(
            xaxis=log_axis("times the mean of the first side", shares),
            yaxis=axis("", type="category", autorange="reversed"),
            hovermode="closest",
            showlegend=True,
        ),
        (("side", "name", "column", "unit", "value"), rows),
        height=160 + 24 * len(firsts),
    )
