"""The charts of a score card as plotly figures (plain data), each with the numbers it shows.

Colours are names such as "$blue" that the page replaces by its theme's, so that one figure serves
light, dark and print. Texts that come from a run are escaped here: plotly reads a subset of HTML.
"""

import csv
import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from loadgen.scorecard.compare import Comparison
from loadgen.scorecard.model import CONNECT_SERIES, Curve, ScoreCard
from loadgen.scorecard.power import OutletPower
from loadgen.scorecard.text import name
from loadgen.scorecard.to_csv import cell

Figure = dict[str, Any]

_SERIES_COLORS = {
    "end_to_end": "$blue",
    "transit": "$aqua",
    "send_delay": "$orange",
    "acknowledge": "$violet",
    "connect": "$blue",
    "tcp": "$aqua",
    "tls": "$orange",
    "connack": "$violet",
    "suback": "$red",
}
MORE_COLORS = ("$blue", "$orange", "$aqua", "$violet", "$red", "$green", "$yellow", "$pink")

_LOG_SPREAD = 8.0
"""Two rates further apart than this factor share a logarithmic axis."""

_LEGEND_IN_COLUMNS = 4
"""A legend of more entries is set in columns."""

_FEW_POINTS = 10
"""So few are marked one by one."""

_MOST_LINES = 8
"""Workers or outlets drawn one by one; of more workers, the mean and the busiest."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure ({"data", "layout"} of plotly), how to read it, and its numbers as CSV."""

    title: str
    note: str
    figure: Figure
    table: str
    height: int = 320


def charts_of(card: ScoreCard) -> list[Chart]:
    """The charts of one run; those without data are left out."""
    curves = card.curves.distribution
    of_connects = [c for c in curves if c.series.rpartition(".")[2] in CONNECT_SERIES]
    of_messages = [c for c in curves if c not in of_connects]
    charts = [
        _distribution(
            "Latency distribution",
            "Microseconds by percentile, on the logarithmic percentile axis of HDR plots: each "
            "step to the right is ten times rarer. end_to_end counts from the intended moment of "
            "sending, transit from the actual one.",
            of_messages,
        ),
        _course(card),
        _connection_curve(card),
        _distribution(
            "Connection latency distribution",
            "Microseconds from the first SYN to CONNACK, and its parts, by percentile.",
            of_connects,
        ),
        _processors(card),
        _power(card),
    ]
    return [chart for chart in charts if chart is not None]


def charts_of_all(cards: Sequence[ScoreCard]) -> list[Chart]:
    """Charts that put several runs side by side, as the published report does."""
    charts = [_fan_out(cards), _latency_by_load(cards)]
    return [chart for chart in charts if chart is not None]


# --- one run --------------------------------------------------------------------------------


def _distribution(title: str, note: str, curves: Sequence[Curve]) -> Chart | None:
    if not curves:
        return None
    data = []
    decades = 1
    for place, curve in enumerate(curves):
        background, _, series = curve.series.rpartition(".")
        xs, ys, told = [], [], []
        for p, value_us in curve.points:
            # The greatest value has no odds above it: it is drawn at twice the count.
            odds = 2.0 * curve.count if p == 100.0 else 1.0 / (1.0 - p / 100.0)
            xs.append(round(odds, 6))
            ys.append(max(value_us, 0.001))
            told.append("maximum" if p == 100.0 else f"{p:.7g}th percentile")
        decades = max(decades, len(str(round(xs[-1]))))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(name(curve.series)),
                "x": xs,
                "y": ys,
                "text": told,
                "hovertemplate": "%{y:,.1f} µs, %{text}",
                "line": {
                    "color": _SERIES_COLORS.get(series, color_of(place)),
                    "width": 2,
                    "dash": "dot" if background else "solid",
                },
            }
        )
    ticks = [10**power for power in range(decades + 1)]
    layout = plot_layout(
        xaxis=plot_axis(
            "percentile",
            type="log",
            tickvals=ticks,
            ticktext=[_percentile_name(power) for power in range(decades + 1)],
        ),
        yaxis=plot_axis("µs", type="log", dtick=1, exponentformat="none", separatethousands=True),
        hovermode="closest",
    )
    if len(data) > _LEGEND_IN_COLUMNS:
        layout["legend"] |= {"entrywidth": 140, "entrywidthmode": "pixels"}
    rows = [
        (curve.series, p, value_us, curve.count) for curve in curves for p, value_us in curve.points
    ]
    return Chart(
        title,
        note,
        {"data": data, "layout": layout},
        csv_of(("series", "percentile", "us", "count"), rows),
        height=360,
    )


def _percentile_name(power: int) -> str:
    """10^power on the axis 1/(1-p): 0, 90%, 99%, 99.9% ..."""
    if power < 2:
        return ("0", "90%")[power]
    return f"99.{'9' * (power - 2)}%" if power > 2 else "99%"


def _course(card: ScoreCard) -> Chart | None:
    course = card.curves.course
    timed = any(moment.p99_us is not None for moment in course)
    if not any(moment.sent or moment.received for moment in course):
        return None
    # A rate is that of a whole interval, or of its part in which messages were due: it stands in
    # the middle.
    at = [round(moment.covered_at_s + moment.covered_s / 2, 3) for moment in course]
    sent = [_rounded(moment.sent) for moment in course]
    received = [_rounded(moment.received) for moment in course]
    highest = [max((rate for rate in rates if rate), default=0.0) for rates in (sent, received)]
    apart = max(highest) > _LOG_SPREAD * max(min(highest), 1e-9)
    data: list[Figure] = [
        plot_line("sent", at, _without_zero(sent) if apart else sent, "$blue", "%{y:,.1f} msgs/s"),
        plot_line(
            "received",
            at,
            _without_zero(received) if apart else received,
            "$orange",
            "%{y:,.1f} msgs/s",
        ),
    ]
    # Usually the two are equal: the wider one shows from behind the other.
    data[0]["line"]["width"] = 6
    backlog = card.curves.backlog
    if backlog:
        when = [round(sample[0], 3) for sample in backlog]
        data += [
            plot_line(
                "owed by publishers", when, [b[1] for b in backlog], "$violet", "%{y:,}", "y2"
            ),
            plot_line("not yet delivered", when, [b[2] for b in backlog], "$aqua", "%{y:,}", "y2"),
        ]
    if timed:
        data += [
            plot_line(label, at, [getattr(m, key) for m in course], color, "%{y:,.1f} µs", "y3")
            for label, key, color in (
                ("p50", "p50_us", "$green"),
                ("p99", "p99_us", "$red"),
            )
        ]
    layout = plot_layout(
        xaxis=plot_axis("seconds since the measurement began", anchor="y3", domain=[0, 1]),
        yaxis=plot_axis(
            "msgs/s",
            domain=[0.68, 1.0],
            **({"type": "log", "dtick": 1} if apart else {"rangemode": "tozero"}),
        ),
        yaxis2=plot_axis("messages", domain=[0.35, 0.62], rangemode="tozero"),
        yaxis3=plot_axis(
            "µs",
            domain=[0.0, 0.29],
            type="log",
            exponentformat="none",
            separatethousands=True,
            nticks=5,
        ),
        hovermode="x",
    )
    layout["shapes"], layout["annotations"] = _phases(card)
    for trace in data:
        if len(trace["x"]) <= _FEW_POINTS:
            trace["mode"] = "lines+markers"
    table = csv_of(
        (
            *("at_s", "seconds", "sent_per_s", "received_per_s", "connected"),
            *("p50_us", "p99_us", "max_us"),
        ),
        (
            (
                *(m.covered_at_s, m.covered_s, m.sent, m.received, m.connected),
                *(m.p50_us, m.p99_us, m.max_us),
            )
            for m in course
        ),
    )
    if backlog:
        table += "\r\n" + csv_of(("at_s", "owed", "outstanding"), backlog)
    return Chart(
        "Rates, backlog and latency over time",
        "Messages a second in and out; messages that publishers owe and deliveries on their way; "
        "end-to-end latency of what arrived in each second. The phases are shaded; rates of "
        "the seconds in which the load begins and ends are of the part that had load.",
        {"data": data, "layout": layout},
        table,
        height=560,
    )


def _phases(card: ScoreCard) -> tuple[list[Figure], list[Figure]]:
    """Shading of the phases over all panels, and their names above those that have room."""
    shapes, names = [], []
    phases = card.curves.phases
    whole = max((end for _, _, end in phases), default=0.0) - min(
        (start for _, start, _ in phases), default=0.0
    )
    for phase, start, end in phases:
        shapes.append(
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
        )
        if end - start > 0.08 * whole:
            names.append(
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
            )
    return shapes, names


def _connection_curve(card: ScoreCard) -> Chart | None:
    course = [m for m in card.curves.course if m.connects or m.connect_failures]
    bounds = next(((s, e) for phase, s, e in card.curves.phases if phase == "connect"), None)
    if not course or bounds is None:
        return None
    start, end = bounds
    points = [(0.0, 0, 0)]
    connects = failures = 0
    for moment in course:
        connects += moment.connects
        failures += moment.connect_failures
        # A second is complete at its end, the last one when the phase was over.
        points.append((min(moment.at_s + moment.span_s, end) - start, connects, failures))
    at = [round(point[0], 3) for point in points]
    data = [plot_line("connected", at, [p[1] for p in points], "$blue", "%{y:,.0f} devices")]
    if failures:
        data.append(plot_line("failed", at, [p[2] for p in points], "$red", "%{y:,.0f} devices"))
    for trace in data:
        trace["mode"] = "lines+markers"
    layout = plot_layout(
        xaxis=plot_axis("seconds since the first connect", rangemode="tozero"),
        yaxis=plot_axis("devices", rangemode="tozero"),
        hovermode="x",
        showlegend=len(data) > 1,
    )
    return Chart(
        "Connection curve",
        "Devices connected since the connect phase began, by the end of each second.",
        {"data": data, "layout": layout},
        csv_of(("at_s", "connected", "failed"), points),
    )


def _processors(card: ScoreCard) -> Chart | None:
    moments = card.curves.processes
    watched = () if card.broker is None else card.broker.moments
    if not moments and not watched:
        return None
    workers = sorted({m.worker for m in moments})
    data = []
    if len(workers) <= _MOST_LINES:
        for place, worker in enumerate(workers):
            own = [m for m in moments if m.worker == worker]
            at = [round(m.at_s, 3) for m in own]
            data.append(
                plot_line(
                    f"worker {worker}",
                    at,
                    [100 * m.used for m in own],
                    color_of(place),
                    "%{y:.1f} %",
                )
            )
    else:
        used_at: dict[int, list[float]] = {}
        for moment in moments:
            used_at.setdefault(round(moment.at_s), []).append(100 * moment.used)
        seconds = sorted(used_at)
        for label, pick, color in (
            ("mean of workers", lambda used: sum(used) / len(used), "$blue"),
            ("busiest worker", max, "$orange"),
        ):
            data.append(
                plot_line(label, seconds, [pick(used_at[s]) for s in seconds], color, "%{y:.1f} %")
            )
    middle = [round(m.at_s + m.span_s / 2, 3) for m in watched]
    if watched:
        data.append(
            plot_line("broker", middle, [100 * m.used for m in watched], "$red", "%{y:.1f} %")
        )
        data[-1]["line"] |= {"dash": "dash", "width": 3}
    resident: dict[int, int] = {}
    for moment in moments:
        second = round(moment.at_s)
        resident[second] = resident.get(second, 0) + moment.resident_bytes
    memory: list[tuple[str, Sequence[object], list[float], str]] = [
        ("memory of all workers", [*resident], [b / _MIB for b in resident.values()], "$aqua"),
        ("memory of the broker", middle, [m.resident_bytes / _MIB for m in watched], "$violet"),
    ]
    data += [
        plot_line(label, when, mib, color, "%{y:,.1f} MiB", "y2")
        for label, when, mib, color in memory
        if when
    ]
    waited = max((m.waited for m in moments), default=0.0)
    top = max([105.0, *(105 * m.used for m in watched)])
    layout = plot_layout(
        xaxis=plot_axis("seconds since the measurement began", anchor="y2"),
        yaxis=plot_axis("% of a processor", range=[0, top], domain=[0.42, 1.0]),
        yaxis2=plot_axis("MiB", domain=[0.0, 0.32], rangemode="tozero"),
        hovermode="x",
        showlegend=True,
    )
    layout["shapes"], layout["annotations"] = _phases(card)
    if len(data) > _LEGEND_IN_COLUMNS:
        layout["legend"] |= {"entrywidth": 140, "entrywidthmode": "pixels"}
    table = csv_of(
        ("worker", "at_s", "used", "waited", "resident_bytes"),
        ((m.worker, m.at_s, m.used, m.waited, m.resident_bytes) for m in moments),
    )
    if watched:
        table += "\r\n" + csv_of(
            ("broker_at_s", "seconds", "used", "resident_bytes"),
            ((m.at_s, m.span_s, m.used, m.resident_bytes) for m in watched),
        )
    return Chart(
        "Processor time and memory of generator and broker",
        "Share of one processor that each worker used, near 100 % the generator is the limit"
        + (", and that the broker used on all its threads. " if watched else ". ")
        + f"The longest wait of a worker for a processor was {waited:.1%} of a second.",
        {"data": data, "layout": layout},
        table,
        height=460,
    )


def _power(card: ScoreCard) -> Chart | None:
    if card.power is None or not any(outlet.curve for outlet in card.power.outlets):
        return None
    outlets = card.power.outlets
    data = []
    rows: list[Sequence[object]] = []
    drawn = outlets if len(outlets) <= _MOST_LINES else ()
    for place, outlet in enumerate(drawn):
        at, watts = _steps(outlet)
        data.append(plot_line(name(outlet.name), at, watts, color_of(place), "%{y:,.1f} W"))
    rows += [
        (outlet.node, outlet.log, outlet.outlet, *step)
        for outlet in outlets
        for step in outlet.curve
    ]
    if len(outlets) > 1:
        moments = sorted({edge for o in outlets for step in o.curve for edge in step[:2]})
        total = [_watts_at(outlets, moment) for moment in moments]
        trace = plot_line(
            "all outlets", [round(m, 3) for m in moments], total, "$ink", "%{y:,.1f} W"
        )
        trace["line"] |= {"shape": "hv", "dash": "dot"}
        data.append(trace)
    per_watt = []
    for moment in card.curves.course:
        middle = moment.covered_at_s + moment.covered_s / 2
        watts_then = _watts_at(outlets, middle)
        if moment.received is not None and watts_then:
            per_watt.append((middle, moment.received / watts_then))
    if per_watt:
        trace = plot_line(
            "messages per watt",
            [round(at, 3) for at, _ in per_watt],
            [value for _, value in per_watt],
            "$green",
            "%{y:,.2f} msgs/s/W",
            "y2",
        )
        if len(per_watt) <= _FEW_POINTS:
            trace["mode"] = "lines+markers"
        data.append(trace)
    layout = plot_layout(
        xaxis=plot_axis("seconds since the measurement began", anchor="y2" if per_watt else "y"),
        yaxis=plot_axis("W", rangemode="tozero", domain=[0.45 if per_watt else 0.0, 1.0]),
        hovermode="x",
        showlegend=True,
    )
    if per_watt:
        layout["yaxis2"] = plot_axis("msgs/s/W", rangemode="tozero", domain=[0.0, 0.35])
    layout["shapes"], layout["annotations"] = _phases(card)
    # The window is what was measured; phases around it would squeeze it.
    ends = [step[1] for outlet in outlets for step in outlet.curve]
    layout["xaxis"]["range"] = [0, max(ends)]
    table = csv_of(("node", "log", "outlet", "from_s", "until_s", "watts"), rows)
    table += "\r\n" + csv_of(("at_s", "messages_per_watt"), per_watt)
    return Chart(
        "Power by outlet and messages per watt",
        "Each sample of a power log holds until the next. Messages per watt are those received a "
        "second, divided by the watts of all outlets then.",
        {"data": data, "layout": layout},
        table,
        height=460 if per_watt else 320,
    )


def _steps(outlet: OutletPower) -> tuple[list[float], list[float | None]]:
    """A step line with a gap where the log has one."""
    at: list[float] = []
    watts: list[float | None] = []
    for since_s, until_s, level in outlet.curve:
        if at and since_s > at[-1] + 0.001:
            at.append(at[-1])
            watts.append(None)
        at += [round(since_s, 3), round(until_s, 3)]
        watts += [level, level]
    return at, watts


def _watts_at(outlets: Sequence[OutletPower], moment_s: float) -> float | None:
    """Watts of all outlets at a moment; None where one of them is not covered."""
    total = 0.0
    for outlet in outlets:
        place = bisect_right(outlet.curve, moment_s, key=lambda step: step[0]) - 1
        if place < 0 or moment_s > outlet.curve[place][1]:
            return None
        total += outlet.curve[place][2]
    return total


# --- several runs ---------------------------------------------------------------------------


def _fan_out(cards: Sequence[ScoreCard]) -> Chart | None:
    """Ingress on a logarithmic left axis, egress on the right, by ratio: report, FANOUT."""
    points = []
    for card in cards:
        ratio = card.run.scenario.get("ratio")
        if card.run.case == "fanout" and isinstance(ratio, int):
            points.append((ratio, card.rates["sent"], card.rates["received"], card.verdict.valid))
    points.sort()
    if len({point[0] for point in points}) < 2:
        return None
    at = [f"1:{ratio}" for ratio, *_ in points]
    data = [
        plot_line("ingress (left)", at, [p[1] for p in points], "$blue", "%{y:,.1f} msgs/s"),
        plot_line(
            "egress (right)", at, [p[2] for p in points], "$orange", "%{y:,.1f} msgs/s", "y2"
        ),
    ]
    for trace in data:
        trace["mode"] = "lines+markers"
    layout = plot_layout(
        xaxis=plot_axis("fan-out ratio", type="category"),
        yaxis=plot_axis("ingress, msgs/s", type="log", dtick=1),
        # Ticks of its own: placed beside those of the other axis they would be odd numbers.
        yaxis2=plot_axis(
            "egress, msgs/s",
            overlaying="y",
            side="right",
            showgrid=False,
            tickmode="auto",
            rangemode="tozero",
        ),
        hovermode="x",
    )
    return Chart(
        "Fan-out",
        "Rate into the broker (logarithmic, left) and out of it (right) by subscribers a topic.",
        {"data": data, "layout": layout},
        csv_of(("ratio", "ingress_per_s", "egress_per_s", "valid"), points),
    )


def _latency_by_load(cards: Sequence[ScoreCard]) -> Chart | None:
    """Average latency of the pair by the rate of the background: report, LATENCY."""
    points = []
    for card in cards:
        summary = card.latency.get("end_to_end")
        if card.run.case != "latency" or summary is None or summary.avg is None:
            continue
        load = sum(
            group.counters["sent"]
            for group in card.curves.groups
            if group.name.startswith("background")
        )
        points.append((load / card.run.seconds, summary.avg, summary.p99, card.verdict.valid))
    points.sort(key=lambda point: point[0])
    if len({point[0] for point in points}) < 2:
        return None
    at = [round(point[0], 3) for point in points]
    data = [
        plot_line("average", at, [p[1] for p in points], "$blue", "%{y:,.1f} µs"),
        plot_line("99th percentile", at, [p[2] for p in points], "$orange", "%{y:,.1f} µs"),
    ]
    for trace in data:
        trace["mode"] = "lines+markers"
    layout = plot_layout(
        xaxis=plot_axis("background, msgs/s"),
        yaxis=plot_axis("µs", rangemode="tozero"),
        hovermode="x",
    )
    return Chart(
        "Latency by background load",
        "End-to-end latency of the timed pair beside different background rates.",
        {"data": data, "layout": layout},
        csv_of(("background_per_s", "avg_us", "p99_us", "valid"), points),
    )


def comparison_chart(comparison: Comparison) -> Chart | None:
    """Every run of a comparison as a mark, as its difference from the first side's mean."""
    lines = [line for line in comparison.lines if line.cells[0] is not None and line.cells[0].mean]
    if not lines:
        return None
    labels = [f"{line.name} {line.column}, {line.unit}" for line in lines]
    data = []
    rows: list[Sequence[object]] = []
    for place, side in enumerate(comparison.sides):
        x, y, told = [], [], []
        for label, line in zip(labels, lines, strict=True):
            first, cell = line.cells[0], line.cells[place]
            assert first is not None
            for value in () if cell is None else cell.values:
                x.append(round(100 * (value / first.mean - 1), 4))
                y.append(escape(name(label)))
                told.append(f"{value:,.6g} {escape(name(line.unit))}")
                rows.append((side.label, line.name, line.column, line.unit, value))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(name(side.label)),
                "x": x,
                "y": y,
                "text": told,
                "hovertemplate": "%{text}, %{x:+.2f} %",
                "marker": {
                    "color": color_of(place),
                    "size": 9,
                    "symbol": ("circle", "diamond", "square", "cross")[place % 4],
                },
            }
        )
    return Chart(
        f"Runs of {name(comparison.case.upper(), 60)} side by side",
        "Every run as one mark: how far it is from the mean of the first side.",
        {
            "data": data,
            "layout": plot_layout(
                xaxis=plot_axis(
                    "% from the mean of the first", zeroline=True, zerolinecolor="$axis"
                ),
                yaxis=plot_axis("", type="category", autorange="reversed"),
                hovermode="closest",
                showlegend=True,
            ),
        },
        csv_of(("side", "name", "column", "unit", "value"), rows),
        height=160 + 24 * len(labels),
    )


# --- parts of figures -----------------------------------------------------------------------


def plot_line(
    label: str,
    x: Sequence[object],
    y: Sequence[float | None],
    color: str,
    hover: str,
    axis: str = "y",
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape(label),
        "x": list(x),
        "y": [None if value is None else round(value, 4) for value in y],
        "yaxis": axis,
        "hovertemplate": hover,
        "line": {"color": color, "width": 2},
    }


def plot_axis(title: str, **more: Any) -> Figure:
    """An axis as all charts have it."""
    return {
        "title": {"text": escape(title), "font": {"size": 12}, "standoff": 8},
        "gridcolor": "$grid",
        "linecolor": "$axis",
        "zeroline": False,
        "automargin": True,
        **more,
    }


def plot_layout(**more: Any) -> Figure:
    """A layout as all charts have it."""
    return {
        "paper_bgcolor": "$surface",
        "plot_bgcolor": "$surface",
        "font": {"color": "$ink", "size": 12},
        "margin": {"l": 56, "r": 16, "t": 44, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.06, "yanchor": "bottom"},
        "hoverlabel": {"align": "left"},
        **more,
    }


def color_of(place: int) -> str:
    """Colour of the place-th line of a chart with any number of them."""
    return MORE_COLORS[place % len(MORE_COLORS)]


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def _without_zero(values: Iterable[float | None]) -> list[float | None]:
    """A logarithmic axis has no zero: a gap instead."""
    return [value or None for value in values]


def csv_of(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The data of a chart, for its download."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    return table.getvalue()
