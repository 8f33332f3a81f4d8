"""The charts of one run, each with the numbers it shows."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate

from loadgen.metrics.interval import CONNECT_SERIES
from loadgen.report.build import figures
from loadgen.report.build.figures import axis, chart, color_of, from_zero, layout, line
from loadgen.report.build.rows import DATA
from loadgen.report.model import Chart
from loadgen.report.power.power import OutletPower
from loadgen.report.render.text import name
from loadgen.report.score_card import Curve, Curves, ScoreCard
from loadgen.sentences import REPORT_TEXT, percent

_TEXTS: Mapping[str, tuple[str, str]] = DATA["charts"]  # titles and notes
_MOST_LINES = 8
"""Workers or outlets that have a line each; of more, the mean and the busiest are drawn."""
_MIB = 1 << 20


def charts_of(card: ScoreCard) -> list[Chart]:
    """Return the charts of one run; a chart without data is left out."""
    curves = card.curves
    connects = [c for c in curves.distribution if c.series.rpartition(".")[2] in CONNECT_SERIES]
    charts = [
        distribution_chart("latency", [c for c in curves.distribution if c not in connects]),
        _course(curves),
        _connection_curve(curves),
        distribution_chart("connects", connects),
        _processors(card, curves),
        _power(card, curves),
    ]
    return [chart for chart in charts if chart is not None]


def distribution_chart(
    text: str, curves: Sequence[Curve], labels: Sequence[str] = ()
) -> Chart | None:
    """Return the chart of some distributions; `labels` replace the names of their series."""
    if not curves:
        return None
    lines = []
    decades = 1
    titles = labels or [curve.series for curve in curves]
    colors = {title: color_of(place) for place, title in enumerate(dict.fromkeys(titles))}
    for place, (title, curve) in enumerate(zip(titles, curves, strict=True)):
        background, _, series = curve.series.rpartition(".")
        percents = [percent for percent, _ in curve.points]
        # No value is above the greatest one: it is drawn at twice the count.
        odds = [2.0 * curve.count if p == 100.0 else 1 / (1 - p / 100) for p in percents]
        decades = max(decades, len(str(round(odds[-1]))))
        color = colors[title] if labels else DATA["colors"].get(series, colors[title])
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(name(title)),
                "showlegend": title not in titles[:place],
                "x": [round(x, 6) for x in odds],
                "y": [max(value_us, 0.001) for _, value_us in curve.points],
                "text": ["maximum" if p == 100.0 else f"{p:.7g}th percentile" for p in percents],
                "hovertemplate": "%{y:,.1f} µs, %{text}",
                "line": {"color": color, "width": 2, "dash": "dot" if background else "solid"},
            }
        )
    powers = range(decades + 1)
    # 10^power on the axis 1/(1-p): 0, 90%, 99%, 99.9% ...
    names = ["0", "90%", "99%", *(f"99.{'9' * (power - 2)}%" for power in powers[3:])]
    tickvals, ticktext = [10**power for power in powers], names[: len(powers)]
    percentile = axis("percentile", type="log", tickvals=tickvals, ticktext=ticktext)
    look = layout(xaxis=percentile, yaxis=axis("µs", **figures.LOG), hovermode="closest")
    return chart(*_TEXTS[text], lines, look, height=360)


def _course(curves: Curves) -> Chart | None:
    course = curves.course.to_pydict()
    rates = [course["sent"], course["received"]]
    if not any(map(any, rates)):
        return None
    at = _middles(curves)
    highest = [max((rate for rate in one if rate), default=0.0) for one in rates]
    rate_axis = figures.spread_axis("msgs/s", highest, domain=[0.68, 1.0])
    # Usually the two rates are equal: the wider line shows from behind the other.
    drawn: list[tuple[str, Iterable[tuple[float, float | None]], str, str, str, int]] = [
        ("sent", zip(at, rates[0], strict=True), "$blue", "%{y:,.1f} msgs/s", "y", 6),
        ("received", zip(at, rates[1], strict=True), "$orange", "%{y:,.1f} msgs/s", "y", 2),
    ]
    if curves.backlog:
        owed, waiting = ([(sample[0], sample[n]) for sample in curves.backlog] for n in (1, 2))
        drawn.append(("owed by publishers", owed, "$violet", "%{y:,}", "y2", 2))
        drawn.append(("not yet delivered", waiting, "$aqua", "%{y:,}", "y2", 2))
    latencies = {"p50": course["p50_us"], "p99": course["p99_us"]}
    if any(value is not None for value in latencies["p99"]):
        for (level, values), color in zip(latencies.items(), ("$green", "$red"), strict=True):
            drawn.append((level, zip(at, values, strict=True), color, "%{y:,.1f} µs", "y3", 2))
    lines = [
        line(label, points, color, hover, of_axis, marked=None, width=width)
        for label, points, color, hover, of_axis, width in drawn
    ]
    look = layout(
        xaxis=axis(figures.SECONDS, anchor="y3", domain=[0, 1]),
        yaxis=rate_axis,
        yaxis2=from_zero("messages", domain=[0.35, 0.62]),
        yaxis3=axis("µs", **figures.LOG, domain=[0.0, 0.29]),
        **figures.phases_shaded(curves.phases),
    )
    return chart(*_TEXTS["course"], lines, look, height=560)


def _middles(curves: Curves) -> list[float]:
    """Return the middle of each second's part in which messages were due."""
    course = curves.course
    middles = course["covered_at_s"].to_numpy() + course["covered_s"].to_numpy() / 2
    return [float(middle) for middle in middles]


def _connection_curve(curves: Curves) -> Chart | None:
    bounds = {phase: (start, end) for phase, start, end in curves.phases}
    if "connect" not in bounds or not curves.connected:
        return None
    start, end = bounds["connect"]
    course = [row for row in curves.course.to_pylist() if row["connect_failures"]]
    # A second is complete at its end, the last one when the phase was over.
    at = [0.0, *(min(row["at_s"] + row["span_s"], end) - start for row in course)]
    failed = accumulate((row["connect_failures"] for row in course), initial=0)
    hover = "%{y:,.0f} devices"
    lines = [line("connected", curves.connected, "$blue", hover, marked=None)]
    if course:
        lines.append(line("failed", zip(at, failed, strict=True), "$red", hover, marked=None))
    seconds = from_zero("seconds since the connect phase began")
    look = layout(xaxis=seconds, yaxis=from_zero("devices"), showlegend=len(lines) > 1)
    return chart(*_TEXTS["connected"], lines, look)


def _processors(card: ScoreCard, curves: Curves) -> Chart | None:
    moments = curves.processes.to_pylist()
    watched = () if card.broker is None else card.broker.moments
    if not moments and not watched:
        return None
    used: dict[str, list[tuple[float, float]]] = {}
    at_second: dict[int, list[float]] = {}
    resident: Counter[float] = Counter()
    for moment in sorted(moments, key=lambda moment: f"worker {moment['worker']}"):
        at_s, share = moment["at_s"], 100 * moment["used"]
        used.setdefault(f"worker {moment['worker']}", []).append((at_s, share))
        at_second.setdefault(round(at_s), []).append(share)
    for moment in moments:
        resident[round(moment["at_s"])] += moment["resident_bytes"]
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
    memory: list[tuple[str, Iterable[tuple[float, float]], str]] = []
    if resident:
        memory.append(("memory of all workers", resident.items(), "$aqua"))
    for node in dict.fromkeys(m.node for m in watched):
        label = f"broker {node}".rstrip()
        of_node = [(m.at_s + m.span_s / 2, m) for m in watched if m.node == node]
        shares = [(middle_s, 100 * m.used) for middle_s, m in of_node]
        lines.append(line(label, shares, "$red", "%{y:.1f} %", dash="dash", width=3))
        sizes = [(middle_s, float(m.resident_bytes)) for middle_s, m in of_node]
        memory.append((f"memory of the {label}", sizes, "$violet"))
    for label, in_bytes, color in memory:
        points = [(at, size / _MIB) for at, size in in_bytes]
        lines.append(line(label, points, color, "%{y:,.1f} MiB", "y2"))
    waited = max((moment["waited"] for moment in moments), default=0.0)
    note = REPORT_TEXT.PROCESSORS(broker="broker" if watched else "", waited=percent(waited, 1))
    top = max([105.0, *(105 * m.used for m in watched)])
    look = layout(
        xaxis=axis(figures.SECONDS, anchor="y2"),
        yaxis=axis("% of a processor", range=[0, top], domain=[0.42, 1.0]),
        yaxis2=from_zero("MiB", domain=[0.0, 0.32]),
        showlegend=True,
        **figures.phases_shaded(curves.phases),
    )
    title = "Processor time and memory of generator and broker"
    return chart(title, note, lines, look, height=460)


def _power(card: ScoreCard, curves: Curves) -> Chart | None:
    if card.power is None or not any(outlet.curve for outlet in card.power.outlets):
        return None
    outlets = card.power.outlets
    lines = []
    for place, outlet in enumerate(outlets if len(outlets) <= _MOST_LINES else ()):
        # A step line with the gaps of the log.
        points: list[tuple[float, float | None]] = []
        for since_s, until_s, watts in outlet.curve:
            if points and since_s > points[-1][0] + 0.001:
                points.append((points[-1][0], None))
            points += [(since_s, watts), (until_s, watts)]
        lines.append(line(outlet.name, points, color_of(place), "%{y:,.1f} W"))
    if len(outlets) > 1:
        moments = sorted({edge for o in outlets for step in o.curve for edge in step[:2]})
        total = [(moment, _watts_at(outlets, moment)) for moment in moments]
        lines.append(line("all outlets", total, "$ink", "%{y:,.1f} W", shape="hv", dash="dot"))
    received = zip(_middles(curves), curves.course["received"].to_pylist(), strict=True)
    per_watt = [
        (middle, rate / then)
        for middle, rate in received
        if rate is not None and (then := _watts_at(outlets, middle))
    ]
    axes: figures.Figure = {}
    if per_watt:
        hover = "%{y:,.2f} msgs/s/W"
        lines.append(line("messages per watt", per_watt, "$green", hover, "y2", marked=None))
        axes["yaxis2"] = from_zero("msgs/s/W", domain=[0.0, 0.35])
    # Only the window is measured; phases around it would squeeze it.
    end = max(step[1] for outlet in outlets for step in outlet.curve)
    look = layout(
        xaxis=axis(figures.SECONDS, anchor="y2" if per_watt else "y", range=[0, end]),
        yaxis=from_zero("W", domain=[0.45 if per_watt else 0.0, 1.0]),
        showlegend=True,
        **axes,
        **figures.phases_shaded(curves.phases),
    )
    return chart(*_TEXTS["power"], lines, look, height=460 if per_watt else 320)


def _watts_at(outlets: Sequence[OutletPower], moment_s: float) -> float | None:
    total = 0.0
    for outlet in outlets:
        place = bisect_right(outlet.curve, moment_s, key=lambda step: step[0]) - 1
        if place < 0 or moment_s > outlet.curve[place][1]:
            return None
        total += outlet.curve[place][2]
    return total
