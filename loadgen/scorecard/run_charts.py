"""Charts over several runs, as the published report has them for its JMS and MQ cases.

Rates by message size, by fan-out ratio and by number of queue managers (here: backends).
"""

from collections.abc import Callable, Sequence
from typing import Any

from loadgen.scorecard.charts import MORE_COLORS, Chart, csv_of, plot_axis, plot_layout, plot_line
from loadgen.scorecard.model import ScoreCard

Point = tuple[int, float, float, bool]
"""What is varied, sent and received a second, valid."""


def run_charts_of(cards: Sequence[ScoreCard]) -> list[Chart]:
    """The charts for which the runs differ in what is varied; the others are left out."""
    charts = [_by_size(cards), _fan_out_by_size(cards), _by_backends(cards)]
    return [chart for chart in charts if chart is not None]


def _size(card: ScoreCard) -> int | None:
    """Largest payload of the run."""
    size = card.run.scenario.get("size")
    if isinstance(size, (list, tuple)) and size and isinstance(size[-1], int):
        return size[-1]
    return size if isinstance(size, int) else None


def _grouped(
    cards: Sequence[ScoreCard],
    label: Callable[[ScoreCard], str | None],
    varied: Callable[[ScoreCard], int | None],
) -> dict[str, list[Point]]:
    """Points of each label in ascending order, of labels with two different values or more."""
    groups: dict[str, list[Point]] = {}
    for card in cards:
        key, at = label(card), varied(card)
        if key is not None and at is not None:
            point = (at, card.rates["sent"], card.rates["received"], card.verdict.valid)
            groups.setdefault(key, []).append(point)
    return {
        key: sorted(points)
        for key, points in groups.items()
        if len({point[0] for point in points}) > 1
    }


def _integer(card: ScoreCard, name: str) -> int:
    value = card.run.scenario.get(name)
    return value if isinstance(value, int) else 0


# --- by message size ------------------------------------------------------------------------


def _by_size(cards: Sequence[ScoreCard]) -> Chart | None:
    groups = _grouped(cards, _kind, _size)
    if not groups:
        return None
    data: list[dict[str, Any]] = []
    rows: list[Sequence[object]] = []
    for place, (kind, points) in enumerate(groups.items()):
        color = MORE_COLORS[place % len(MORE_COLORS)]
        at = [point[0] for point in points]
        for word, column, dash in (("TX", 1, "dot"), ("RX", 2, "solid")):
            rates = [float(point[column]) for point in points]
            trace = plot_line(f"{kind} {word}", at, rates, color, "%{y:,.1f} msgs/s")
            trace["mode"] = "lines+markers"
            trace["line"]["dash"] = dash
            data.append(trace)
        rows += [(kind, *point) for point in points]
    sizes = sorted({point[0] for points in groups.values() for point in points})
    layout = plot_layout(
        xaxis=plot_axis(
            "payload, bytes", type="log", tickvals=sizes, ticktext=[f"{s:,}" for s in sizes]
        ),
        yaxis=plot_axis("msgs/s", rangemode="tozero"),
        hovermode="x",
        showlegend=True,
    )
    return Chart(
        "Rate by message size",
        "TX is the rate of all publishers together, RX that of all subscribers.",
        {"data": data, "layout": layout},
        csv_of(("case", "bytes", "sent_per_s", "received_per_s", "valid"), rows),
    )


def _kind(card: ScoreCard) -> str | None:
    """What two runs of one line have in common beside the case."""
    case = card.run.case
    if case not in ("fanout", "persistent", "queue", "bridge"):
        return None
    parts = [case.upper(), f"QoS {_integer(card, 'qos')}"]
    if case == "fanout":
        parts.append(f"1:{_integer(card, 'ratio')}")
    if case == "bridge":
        parts.append(f"{_backends(card)} backends")
    return " ".join(parts)


# --- by fan-out ratio -----------------------------------------------------------------------


def _fan_out_by_size(cards: Sequence[ScoreCard]) -> Chart | None:
    def label(card: ScoreCard) -> str | None:
        size = _size(card)
        return f"{size:,} bytes" if card.run.case == "fanout" and size else None

    groups = _grouped(cards, label, lambda card: _integer(card, "ratio") or None)
    if len(groups) < 2:
        return None
    ratios = sorted({point[0] for points in groups.values() for point in points})
    data = []
    rows: list[Sequence[object]] = []
    for place, (size, points) in enumerate(groups.items()):
        at = [f"1:{point[0]}" for point in points]
        color = MORE_COLORS[place % len(MORE_COLORS)]
        trace = plot_line(size, at, [point[2] for point in points], color, "%{y:,.1f} msgs/s")
        trace["mode"] = "lines+markers"
        data.append(trace)
        rows += [(size, *point) for point in points]
    layout = plot_layout(
        xaxis=plot_axis(
            "fan-out ratio",
            type="category",
            categoryorder="array",
            categoryarray=[f"1:{ratio}" for ratio in ratios],
        ),
        yaxis=plot_axis("egress, msgs/s", rangemode="tozero"),
        hovermode="x",
        showlegend=True,
    )
    return Chart(
        "Fan-out by ratio and message size",
        "Rate out of the broker by subscribers a topic, a line for each message size.",
        {"data": data, "layout": layout},
        csv_of(("size", "ratio", "ingress_per_s", "egress_per_s", "valid"), rows),
    )


# --- by number of backends ------------------------------------------------------------------


def _backends(card: ScoreCard) -> int:
    given = card.run.scenario.get("backend")
    return (
        _integer(card, "backends") or (len(given) if isinstance(given, (list, tuple)) else 0) or 1
    )


def _by_backends(cards: Sequence[ScoreCard]) -> Chart | None:
    def label(card: ScoreCard) -> str | None:
        if card.run.case != "bridge":
            return None
        durable = ", durable" if card.run.scenario.get("durable") is True else ""
        return f"QoS {_integer(card, 'qos')}{durable}"

    groups = _grouped(cards, label, _backends)
    if not groups:
        return None
    data = []
    rows: list[Sequence[object]] = []
    for place, (kind, points) in enumerate(groups.items()):
        color = MORE_COLORS[place % len(MORE_COLORS)]
        at = [point[0] for point in points]
        trace = plot_line(kind, at, [point[2] for point in points], color, "%{y:,.1f} msgs/s")
        trace["mode"] = "lines+markers"
        data.append(trace)
        rows += [(kind, *point) for point in points]
    layout = plot_layout(
        xaxis=plot_axis("backends", dtick=1),
        yaxis=plot_axis("forwarded, msgs/s", rangemode="tozero"),
        hovermode="x",
        showlegend=True,
    )
    return Chart(
        "Forwarding rate by number of backends",
        "Messages a second that consumers on the backends received, by how many backends there "
        "were (the report's queue managers).",
        {"data": data, "layout": layout},
        csv_of(("kind", "backends", "sent_per_s", "forwarded_per_s", "valid"), rows),
    )
