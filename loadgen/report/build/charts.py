"""The charts of one run, each with the numbers it shows."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import accumulate

import pyarrow as pa

from loadgen.metrics.interval import CONNECT_SERIES
from loadgen.report.build.figures import (
    SECONDS,
    Figure,
    axis,
    chart,
    color_of,
    from_zero,
    layout,
    line,
    log_axis,
    phases_shaded,
    spread_axis,
)
from loadgen.report.model import Chart
from loadgen.report.power.power import OutletPower
from loadgen.report.render.text import name
from loadgen.report.score_card import Curve, ScoreCard

_SERIES_COLORS = {
    "end_to_end": "$blue",
    "transit": "$aqua",
    "send_delay": "$orange",
    "acknowledge": "$violet",
    "own_delay": "$green",
    "reconnect": "$pink",
    "pushed_back": "$yellow",
    "connect": "$blue",
    "tcp": "$aqua",
    "tls": "$orange",
    "connack": "$violet",
    "suback": "$red",
}

_MOST_LINES = 8
"""Most workers or outlets that are drawn one by one; of more, the mean and the busiest."""

_MIB = 1 << 20


def charts_of(card: ScoreCard) -> list[Chart]:
    """Return the charts of one run; a chart without data is left out."""
    kept = card.curves  # unpacked once for all charts
    curves = kept.distribution
    of_connects = [c for c in curves if c.series.rpartition(".")[2] in CONNECT_SERIES]
    charts = [
        _distribution(
            "Latency distribution",
            "Microseconds by percentile, on the logarithmic percentile axis of HDR plots: each "
            "step to the right is ten times rarer. end_to_end counts from the intended moment of "
            "sending, transit from the actual one.",
            [c for c in curves if c not in of_connects],
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


def _distribution(title: str, note: str, curves: Sequence[Curve]) -> Chart | None:
    if not curves:
        return None
    lines = []
    decades = 1
    for place, curve in enumerate(curves):
        background, _, series = curve.series.rpartition(".")
        # No value is above the greatest one: it is drawn at twice the count.
        odds = [2.0 * curve.count if p == 100.0 else 1 / (1 - p / 100) for p, _ in curve.points]
        decades = max(decades, len(str(round(odds[-1]))))
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(name(curve.series)),
                "x": [round(x, 6) for x in odds],
                "y": [max(value_us, 0.001) for _, value_us in curve.points],
                "text": [
                    "maximum" if p == 100.0 else f"{p:.7g}th percentile" for p, _ in curve.points
                ],
                "hovertemplate": "%{y:,.1f} µs, %{text}",
                "line": {
                    "color": _SERIES_COLORS.get(series, color_of(place)),
                    "width": 2,
                    "dash": "dot" if background else "solid",
                },
            }
        )
    powers = range(decades + 1)
    # 10^power on the axis 1/(1-p): 0, 90%, 99%, 99.9% ...
    names = ["0", "90%", "99%", *(f"99.{'9' * (power - 2)}%" for power in powers[3:])]
    percentiles = axis(
        "percentile",
        type="log",
        tickvals=[10**power for power in powers],
        ticktext=names[: len(powers)],
    )
    return chart(
        title,
        note,
        lines,
        layout(
            lines,
            xaxis=percentiles,
            yaxis=log_axis("µs", [us for curve in curves for _, us in curve.points]),
            hovermode="closest",
        ),
        height=360,
    )


def _course(card: ScoreCard) -> Chart | None:
    course, backlog = card.curves.course, card.curves.backlog
    rates = [course["sent"].to_pylist(), course["received"].to_pylist()]
    if not any(map(any, rates)):
        return None
    # A rate is that of a whole interval, or of its part in which messages were due, and is drawn in
    # the middle.
    at = _middles(course)
    highest = [max((rate for rate in course if rate), default=0.0) for course in rates]
    rate_axis = spread_axis("msgs/s", highest, domain=[0.68, 1.0])
    if rate_axis.get("type") == "log":
        # A logarithmic axis has no zero: a gap instead.
        rates = [[rate or None for rate in one] for one in rates]
        rate_axis = log_axis("msgs/s", [*rates[0], *rates[1]], domain=[0.68, 1.0])
    lines = [
        line(label, zip(at, one, strict=True), color, "%{y:,.1f} msgs/s", marked=None, width=width)
        # Usually the two are equal: the wider one shows from behind the other.
        for label, one, color, width in zip(
            ("sent", "received"), rates, ("$blue", "$orange"), (6, 2), strict=True
        )
    ]
    for place, (label, color) in enumerate(
        (("owed by publishers", "$violet"), ("not yet delivered", "$aqua")) if backlog else (), 1
    ):
        samples = [(sample[0], sample[place]) for sample in backlog]
        lines.append(line(label, samples, color, "%{y:,}", "y2", marked=None))
    if course["p99_us"].null_count < len(course):
        for label, key, color in (("p50", "p50_us", "$green"), ("p99", "p99_us", "$red")):
            points = zip(at, course[key].to_pylist(), strict=True)
            lines.append(line(label, points, color, "%{y:,.1f} µs", "y3", marked=None))
    latencies = [us for key in ("p50_us", "p99_us") for us in course[key].to_pylist()]
    return chart(
        "Rates, backlog and latency over time",
        "Messages a second in and out; messages that publishers owe and deliveries on their way; "
        "end-to-end latency of what arrived in each second. The phases are shaded; rates of "
        "the seconds in which the load begins and ends are of the part that had load.",
        lines,
        layout(
            xaxis=axis(SECONDS, anchor="y3", domain=[0, 1]),
            yaxis=rate_axis,
            yaxis2=from_zero("messages", domain=[0.35, 0.62]),
            yaxis3=log_axis("µs", latencies, domain=[0.0, 0.29]),
            **phases_shaded(card.curves.phases),
        ),
        height=560,
    )


def _middles(course: pa.Table) -> list[float]:
    """Return the middle of each second's part in which messages were due."""
    middles: list[float] = (
        course["covered_at_s"].to_numpy() + course["covered_s"].to_numpy() / 2
    ).tolist()
    return middles


def _connection_curve(card: ScoreCard) -> Chart | None:
    bounds = next(((s, e) for phase, s, e in card.curves.phases if phase == "connect"), None)
    if bounds is None or not card.curves.connected:
        return None
    start, end = bounds
    course = [row for row in card.curves.course.to_pylist() if row["connect_failures"]]
    # A second is complete at its end, the last one when the phase was over.
    at = [0.0, *(min(row["at_s"] + row["span_s"], end) - start for row in course)]
    failed = accumulate((row["connect_failures"] for row in course), initial=0)
    hover = "%{y:,.0f} devices"
    lines = [line("connected", card.curves.connected, "$blue", hover, marked=None)]
    if course:
        lines.append(line("failed", zip(at, failed, strict=True), "$red", hover, marked=None))
    return chart(
        "Connection curve",
        "Devices connected since the connect phase began, by the moments of their CONNACK, and "
        "failed attempts by the end of each second.",
        lines,
        layout(
            xaxis=from_zero("seconds since the connect phase began"),
            yaxis=from_zero("devices"),
            showlegend=len(lines) > 1,
        ),
    )


def _processors(card: ScoreCard) -> Chart | None:
    moments = card.curves.processes.to_pylist()
    watched = () if card.broker is None else card.broker.moments
    if not moments and not watched:
        return None
    used: dict[str, list[tuple[float, float]]] = {}
    at_second: dict[int, list[float]] = {}
    resident: Counter[int] = Counter()
    for moment in moments:
        at_s, share = moment["at_s"], 100 * moment["used"]
        used.setdefault(f"worker {moment['worker']}", []).append((at_s, share))
        at_second.setdefault(round(at_s), []).append(share)
        resident[round(at_s)] += moment["resident_bytes"]
    used = dict(sorted(used.items()))
    if len(used) > _MOST_LINES:
        seconds = sorted(at_second.items())
        used = {
            "mean of workers": [(second, sum(shares) / len(shares)) for second, shares in seconds],
            "busiest worker": [(second, max(shares)) for second, shares in seconds],
        }
    lines = [
        line(label, points, color_of(place), "%{y:.1f} %")
        for place, (label, points) in enumerate(used.items())
    ]
    middle = [m.at_s + m.span_s / 2 for m in watched]
    if watched:
        shares = zip(middle, (100 * m.used for m in watched), strict=True)
        lines.append(line("broker", shares, "$red", "%{y:.1f} %", dash="dash", width=3))
    of_broker = dict(zip(middle, (m.resident_bytes for m in watched), strict=True))
    lines += [
        line(label, [(at, b / _MIB) for at, b in sizes.items()], color, "%{y:,.1f} MiB", "y2")
        for label, sizes, color in (
            ("memory of all workers", resident, "$aqua"),
            ("memory of the broker", of_broker, "$violet"),
        )
        if sizes
    ]
    waited = max((moment["waited"] for moment in moments), default=0.0)
    top = max([105.0, *(105 * m.used for m in watched)])
    return chart(
        "Processor time and memory of generator and broker",
        "Share of one processor that each worker used, near 100 % the generator is the limit"
        + (", and that the broker used on all its threads. " if watched else ". ")
        + f"The longest wait of a worker for a processor was {waited:.1%} of a second.",
        lines,
        layout(
            lines,
            xaxis=axis(SECONDS, anchor="y2"),
            yaxis=axis("% of a processor", range=[0, top], domain=[0.42, 1.0]),
            yaxis2=from_zero("MiB", domain=[0.0, 0.32]),
            showlegend=True,
            **phases_shaded(card.curves.phases),
        ),
        height=460,
    )


def _power(card: ScoreCard) -> Chart | None:
    if card.power is None or not any(outlet.curve for outlet in card.power.outlets):
        return None
    outlets = card.power.outlets
    lines = [
        line(outlet.name, _steps(outlet), color_of(place), "%{y:,.1f} W")
        for place, outlet in enumerate(outlets if len(outlets) <= _MOST_LINES else ())
    ]
    if len(outlets) > 1:
        moments = sorted({edge for o in outlets for step in o.curve for edge in step[:2]})
        total = [(moment, _watts_at(outlets, moment)) for moment in moments]
        lines.append(line("all outlets", total, "$ink", "%{y:,.1f} W", shape="hv", dash="dot"))
    per_watt = []
    course = card.curves.course
    for middle, received in zip(_middles(course), course["received"].to_pylist(), strict=True):
        watts_then = _watts_at(outlets, middle)
        if received is not None and watts_then:
            per_watt.append((middle, received / watts_then))
    axes: Figure = {}
    if per_watt:
        hover = "%{y:,.2f} msgs/s/W"
        lines.append(line("messages per watt", per_watt, "$green", hover, "y2", marked=None))
        axes["yaxis2"] = from_zero("msgs/s/W", domain=[0.0, 0.35])
    # Only the window is measured; phases around it would squeeze it.
    end = max(step[1] for outlet in outlets for step in outlet.curve)
    return chart(
        "Power by outlet and messages per watt",
        "Each sample of a power log holds until the next. Messages per watt are those received a "
        "second, divided by the watts of all outlets then.",
        lines,
        layout(
            xaxis=axis(SECONDS, anchor="y2" if per_watt else "y", range=[0, end]),
            yaxis=from_zero("W", domain=[0.45 if per_watt else 0.0, 1.0]),
            showlegend=True,
            **axes,
            **phases_shaded(card.curves.phases),
        ),
        height=460 if per_watt else 320,
    )


def _steps(outlet: OutletPower) -> list[tuple[float, float | None]]:
    """Return the points of a step line with the gaps of the log."""
    points: list[tuple[float, float | None]] = []
    for since_s, until_s, watts in outlet.curve:
        if points and since_s > points[-1][0] + 0.001:
            points.append((points[-1][0], None))
        points += [(since_s, watts), (until_s, watts)]
    return points


def _watts_at(outlets: Sequence[OutletPower], moment_s: float) -> float | None:
    """Return the watts of all outlets at a moment; None if one of them is not covered."""
    total = 0.0
    for outlet in outlets:
        place = bisect_right(outlet.curve, moment_s, key=lambda step: step[0]) - 1
        if place < 0 or moment_s > outlet.curve[place][1]:
            return None
        total += outlet.curve[place][2]
    return total
