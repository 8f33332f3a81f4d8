"""Power over a measurement window: samples of power logs in, mean watts of every outlet out.

docs/reference/power-logs.md has the rules. An outlet's mean is that of its watts, which a counter
of energy confirms, or that of its counter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np

from loadgen.errors import PowerLogError
from loadgen.report.power.formats import Format
from loadgen.report.power.log import Float64Array, Int64Array, LogSamples, Outlet, Points, read_log
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.power.times import LogError, read_times
from loadgen.sentences import POWER_TEXT

HOLD_LIMIT = 2.5
"""Multiple of the usual spacing for which a sample holds: it bridges one lost sample, not two."""
LEAST_COVERAGE = 0.9  # share of the measurement window that the samples of each outlet must cover
LEAST_SAMPLES = 10  # a mean of fewer samples inside the window gets a remark
NOTABLE_STEP, COARSE_STEP = 0.01, 0.05
"""Shares of the mean: a greater step of watts or of a counter gets a remark, or withholds them."""

_TOLERATED = 0.05  # tolerated difference between watts and counter, as a share of the energy
_NO_CHECK = 0.2  # a counter whose step is more than this share of the energy cannot confirm it
_MOST_REMARKS = 3
_OUTLIER = 10
_TURNS, _TURN_SHARE = 0.9, 0.1
"""Share of samples that go up and down in turn, and their difference as a share of the median."""
_LEAST_WATTS = 0.1
_LARGEST_OUTLET_W = 1e5
"""No outlet has more: energies of intervals that make more are those of a counter."""
_TELLING = 3
"""Number of different values that shows the step of a counter, or that makes a coincidence of equal
watts implausible."""
_NEAR_CHANGE_NS = 86_400 * 10**9
"""A change of the clock within a day of a run makes the times of its samples doubtful."""
_NS_W_IN_KWH = 3.6e15
Window = tuple[int, int]  # start and end, in UTC nanoseconds since the epoch
Result = Literal["agrees", "disagrees", "too coarse", "reset"]


@dataclass(frozen=True, slots=True)
class EnergyCheck:
    """An outlet's energy over the window by its watts and by its counter, in kilowatt-hours.

    The counter moves in steps of `resolution_kwh`. `watts_kwh` is None if the outlet has no watts.
    `result` is "reset" if the counter went back to about zero, but agrees before and after that,
    and "too coarse" if its steps are so large that an agreement means little.
    """

    watts_kwh: float | None
    counter_kwh: float
    resolution_kwh: float
    result: Result


@dataclass(frozen=True, slots=True)
class OutletPower:
    """One outlet over one measurement window.

    `watts` is the time-weighted mean over the covered part, `step` its resolution. `samples` is the
    number of samples that hold in the window, `inside` the number taken in it. `coverage` is the
    covered share of the window, 0 to 1. `curve` has (start, end, watts) of each covered step, in
    seconds since the window's start. `withheld` is the reason why these watts cannot be used;
    `remarks` are sentences that a reader of them needs.
    """

    log: str
    watts: float
    samples: int
    coverage: float
    curve: tuple[tuple[float, float, float], ...] = ()
    outlet: str = ""
    node: str = ""
    energy: EnergyCheck | None = None
    inside: int = 0
    step: float = 0.0
    withheld: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Log and outlet, as messages show them."""
        return f"{self.log}#{self.outlet}" if self.outlet else self.log

    @property
    def gaps(self) -> tuple[float, ...]:
        """The seconds between covered steps that no sample covers."""
        pauses = (later[0] - earlier[1] for earlier, later in pairwise(self.curve))
        return tuple(pause for pause in pauses if pause > 0)


def outlets_over(
    settings: LogSettings, windows: Sequence[Window], read: Iterable[LogSamples] | None = None
) -> list[list[OutletPower]]:
    """Return every outlet over each window in UTC, in the order of logs and of their outlets.

    `read` are the samples of the logs, if they were read before. Raise PowerLogError.
    """
    outlets: list[list[OutletPower]] = [[] for _ in windows]
    read = read or (read_log(log, settings) for log in settings.logs)
    for log, samples in zip(settings.logs, read, strict=True):
        path, form, remarks = str(log.path), samples.format, list[str]()
        steps = [steps_of(path, outlet, form) for outlet in samples.outlets]
        if samples.local and not settings.zone_given:
            remarks.append(POWER_TEXT.ZONE_ASSUMED(log=path, zone=settings.zone.key))
        if unused := [f"{title} ({why})" for title, why, is_power in samples.unused if is_power]:
            remarks.append(POWER_TEXT.UNUSED(log=path, columns=tuple(unused[:8])))
        for window, of_window in zip(windows, outlets, strict=True):
            if samples.local:
                _require_no_clock_change(path, samples, settings.zone, window)
            for outlet, of_outlet in zip(samples.outlets, steps, strict=True):
                power = outlet_power(log, outlet, of_outlet, window, form, settings.offset_ns)
                of_window.append(replace(power, remarks=(*power.remarks, *remarks)))
    return outlets


def _require_no_clock_change(log: str, samples: LogSamples, zone: ZoneInfo, window: Window) -> None:
    """Raise PowerLogError if the clock of a log changes near a window."""
    moments = [outlet.points.at for outlet in samples.outlets]
    first_ns = max(min(int(at[0]) for at in moments), window[0] - _NEAR_CHANGE_NS)
    last_ns = min(max(int(at[-1]) for at in moments), window[1] + _NEAR_CHANGE_NS)
    first, last = (datetime.fromtimestamp(ns // 10**9, zone) for ns in (first_ns, last_ns))
    if first_ns <= last_ns and first.utcoffset() != last.utcoffset():
        raise PowerLogError(POWER_TEXT.CLOCK_CHANGES(log=log, zone=zone.key))


@dataclass(frozen=True, slots=True)
class Steps:
    """Watts in ascending, disjoint steps: `level` holds from `since` until `until`."""

    since: Int64Array
    until: Int64Array
    level: Float64Array

    def within(self, start_ns: int, end_ns: int) -> "Steps":
        since = np.clip(self.since, start_ns, end_ns)
        until = np.clip(self.until, start_ns, end_ns)
        cut = (until > since) & ~np.isnan(self.level)
        return Steps(since[cut], until[cut], self.level[cut])

    @property
    def covered_ns(self) -> int:
        return int((self.until - self.since).sum())

    @property
    def watt_ns(self) -> float:
        return float((self.level * (self.until - self.since)).sum())


def steps_of(log: str, outlet: Outlet, form: Format) -> Steps:
    """Return the watts of an outlet; raise PowerLogError for a lone counter that is not one."""
    points = outlet.points
    if points.role != "kwh":
        return _held(points, form) if points.role == "watts" else _of_intervals(points, form)
    if reason := _counter_failure(points, alone=True):
        raise PowerLogError(POWER_TEXT.NO_COUNTER(log=log, name=outlet.name, why=reason))
    return _counted(points)


def outlet_power(
    log: PduLog, outlet: Outlet, steps: Steps, window: Window, form: Format, offset_ns: int = 0
) -> OutletPower:
    """Return the mean of an outlet over a window, 0 W if no part is covered.

    The clock of its steps is ahead by `offset_ns`.
    """
    start_ns, end_ns = window = (window[0] + offset_ns, window[1] + offset_ns)
    covered, points = steps.within(start_ns, end_ns), outlet.points
    step_w, usual_ns = _resolution(points), _usual_ns(points.at)
    if points.role != "watts":
        span_ns = covered.covered_ns if points.role == "kwh" else usual_ns
        step_w *= _NS_W_IN_KWH / max(span_ns, 1)
    is_inside = (points.at >= start_ns) & (points.at < end_ns)
    since_s, until_s = (covered.since - start_ns) / 1e9, (covered.until - start_ns) / 1e9
    power = OutletPower(
        log=str(log.path),
        watts=covered.watt_ns / covered.covered_ns if covered.covered_ns else 0.0,
        samples=len(covered.level),
        coverage=covered.covered_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(zip(since_s.tolist(), until_s.tolist(), covered.level.tolist(), strict=True)),
        outlet=outlet.name,
        node=log.node,
        energy=_energy_check(outlet, steps, window),
        inside=int(is_inside.sum()),
        step=step_w,
    )
    notes = [*_remarks_on(power, points.role)]
    if outlet.watts is not None:
        notes += _odd_samples(power.name, points.values[is_inside])
        if points.is_mean or form.stamp == "end":
            values = {"seconds": usual_ns / 1e9, "stamp": form.stamp or "start"}
            notes.append(POWER_TEXT.EDGES(name=power.name, **values))
    return replace(power, withheld=_reason_to_withhold(power), remarks=tuple(notes))


def _reason_to_withhold(power: OutletPower) -> str:
    """Return the reason why the watts of an outlet cannot be used, "" if they can."""
    name, energy = power.name, power.energy
    if energy is not None and energy.watts_kwh is not None and energy.result == "disagrees":
        values = {"counter_kwh": energy.counter_kwh, "watts_kwh": energy.watts_kwh}
        return POWER_TEXT.COUNTER_DISAGREES(name=name, **values)
    if energy is not None and energy.watts_kwh is None and energy.result == "too coarse":
        values = {"counter_kwh": energy.counter_kwh, "step_kwh": energy.resolution_kwh}
        return POWER_TEXT.COUNTER_COARSE(name=name, **values)
    if 0 < power.watts < _LEAST_WATTS:
        return POWER_TEXT.TINY(name=name, watts=power.watts)
    if power.step > COARSE_STEP * power.watts > 0:
        share = power.step / power.watts
        return POWER_TEXT.WATTS_COARSE(name=name, step=power.step, share=share)
    return ""


def _remarks_on(power: OutletPower, role: str) -> Iterator[str]:
    if power.inside < LEAST_SAMPLES:
        yield POWER_TEXT.FEW_SAMPLES(name=power.name, samples=power.inside)
    if power.energy is not None and power.energy.result == "reset":
        yield POWER_TEXT.RESET(name=power.name)
    if NOTABLE_STEP * power.watts < power.step <= COARSE_STEP * power.watts:
        figure = {"kwh": "counter", "interval": "energy"}.get(role, role)
        share = power.step / power.watts
        yield POWER_TEXT.STEP(figure=figure, name=power.name, share=share)


def _odd_samples(name: str, watts: Float64Array) -> Iterator[str]:
    """Yield remarks about an outlier, zeros between other watts, and two levels in turn."""
    watts = watts[~np.isnan(watts)]
    used = np.flatnonzero(watts)
    if not len(used):
        return
    median, most = float(np.median(watts)), float(watts.max())
    if most >= _OUTLIER * median > 0:
        yield POWER_TEXT.OUTLIER(name=name, watts=most, median=median)
    if zeros := int((watts[used[0] : used[-1]] == 0).sum()):
        yield POWER_TEXT.ZEROS(name=name, zeros=zeros)
    changes = np.diff(watts)
    turns = changes[1:] * changes[:-1] < 0
    if len(turns) >= LEAST_SAMPLES and turns.mean() >= _TURNS:
        typical = float(np.median(np.abs(changes)))
        if typical > _TURN_SHARE * median:
            low, high = median - typical / 2, median + typical / 2
            yield POWER_TEXT.ALTERNATING(name=name, low=low, high=high)


def verdict_on(outlets: Sequence[OutletPower]) -> tuple[bool, str]:
    """Return True if the watts of outlets cannot be used, and all reasons and remarks."""
    withheld = [outlet.withheld for outlet in outlets if outlet.withheld]
    remarks = dict.fromkeys(remark for outlet in outlets for remark in outlet.remarks)
    remark = "; ".join([*withheld[:_MOST_REMARKS], *list(remarks)[:_MOST_REMARKS]])
    word = "Withheld" if withheld else "Power"
    return bool(withheld), f"{word}: {remark}." if remark else ""


def require_distinct(outlets: Sequence[OutletPower]) -> None:
    """Raise PowerLogError for the first outlet whose samples are those of another one."""
    seen: dict[tuple[tuple[float, float, float], ...], OutletPower] = {}
    for outlet in outlets:
        other = seen.setdefault(outlet.curve, outlet)
        if other is not outlet and len({watts for _, _, watts in outlet.curve}) >= _TELLING:
            raise PowerLogError(POWER_TEXT.SAME_SAMPLES(first=other.name, second=outlet.name))


def require_usable(outlets: Sequence[OutletPower], run: str) -> None:
    """Raise PowerLogError for an outlet whose samples cover too little, or repeat another's."""
    require_distinct(outlets)
    for outlet in outlets:
        if outlet.coverage < LEAST_COVERAGE:
            values = {"coverage": outlet.coverage, "least": LEAST_COVERAGE}
            raise PowerLogError(POWER_TEXT.COVERS_LITTLE(log=outlet.name, run=run, **values))


def _usual_ns(at: Int64Array) -> int:
    spacing = np.diff(at)
    return int(np.median(spacing)) if len(spacing) else 0


def _held(points: Points, form: Format) -> Steps:
    """Return the time for which each sample of watts holds, before any window cuts it."""
    at, spacing, usual_ns = points.at, np.diff(points.at), _usual_ns(points.at)
    if form.hold:
        return Steps(at, at + np.append(spacing, int(spacing.max(initial=0))), points.values)
    held = np.minimum(spacing, int(HOLD_LIMIT * usual_ns))
    if form.stamp == "end":
        return Steps(at - np.insert(held, 0, usual_ns), at, points.values)
    return Steps(at, at + np.append(held, usual_ns), points.values)


def _of_intervals(points: Points, form: Format) -> Steps:
    """Return the watts of energies that were each used since the sample before."""
    at, usual_ns = points.at, _usual_ns(points.at)
    if not usual_ns:
        return Steps(at[:0], at[:0], points.values[:0])
    spacing = np.insert(np.diff(at), 0, usual_ns)
    # A sample after a gap is of the usual interval before it, not of the gap.
    spans = np.where(spacing <= 1.5 * usual_ns, spacing, usual_ns)
    level = points.values * _NS_W_IN_KWH / spans
    if form.stamp == "start":
        return Steps(at, at + np.append(spans[1:], usual_ns), level)
    return Steps(at - spans, at, level)


def _counted(points: Points) -> Steps:
    """Return the mean watts between samples of a counter, without spans in which it was reset."""
    used_kwh, span_ns = np.diff(points.values), np.diff(points.at)
    rising = used_kwh >= 0
    watts = used_kwh[rising] * _NS_W_IN_KWH / span_ns[rising]
    return Steps(points.at[:-1][rising], points.at[1:][rising], watts)


def _counter_failure(points: Points, *, alone: bool) -> str:
    """Return the reason why energies are not those of a counter, "" if they may be."""
    values, gains = points.values, np.diff(points.values)
    before, after = values[:-1][gains < 0], values[1:][gains < 0]
    about_zero = 3 * float(gains.max(initial=0.0)) + _resolution(points)
    too_many = len(after) > max(1.0, 0.1 * len(gains))
    if too_many or np.any(after > about_zero) or np.any(after > 0.1 * before):
        return "falls, but not to about zero"
    if points.is_counter or not alone:
        return ""
    if values[0] < gains[gains > 0].sum():
        return "starts below its total increase"
    usual_ns = max(_usual_ns(points.at), 1)
    is_plausible = float(np.median(values)) * _NS_W_IN_KWH / usual_ns <= _LARGEST_OUTLET_W
    return "may be the energy of intervals" if is_plausible else ""


def _energy_check(outlet: Outlet, steps: Steps, window: Window) -> EnergyCheck | None:
    """Compare the energy of a window by counter and by watts; None if they cannot be compared."""
    points = outlet.energy
    if points is None or points.role != "kwh":
        return None
    is_back = np.diff(points.values) < 0
    resets = int((is_back & (points.at[1:] > window[0]) & (points.at[:-1] < window[1])).sum())
    step = _resolution(points)
    if outlet.watts is None:
        used_kwh = steps.within(*window).watt_ns / _NS_W_IN_KWH
        is_coarse = step > COARSE_STEP * used_kwh
        result: Result = "too coarse" if is_coarse else "reset" if resets else "agrees"
        return EnergyCheck(None, used_kwh, step, result)
    inside = np.flatnonzero((points.at >= window[0]) & (points.at <= window[1]))
    if len(inside) < 2 or _counter_failure(points, alone=False):
        return None
    counted = _counted(points).within(int(points.at[inside[0]]), int(points.at[inside[-1]]))
    edges = zip(counted.since.tolist(), counted.until.tolist(), strict=True)
    spans = [steps.within(*edge) for edge in edges]
    by_counter = counted.watt_ns / _NS_W_IN_KWH
    by_watts = sum(span.watt_ns for span in spans) / _NS_W_IN_KWH
    covered_ns = sum(span.covered_ns for span in spans)
    if covered_ns < LEAST_COVERAGE * counted.covered_ns or not covered_ns:
        return None
    differs = abs(by_counter - by_watts) > step * (1 + resets) + _TOLERATED * by_watts
    is_coarse = step > _NO_CHECK * by_watts
    result = "reset" if resets else "too coarse" if is_coarse else "agrees"
    return EnergyCheck(by_watts, by_counter, step, "disagrees" if differs else result)


def _resolution(points: Points) -> float:
    """Return the step of readings: their last decimal place that is not always 0."""
    values, decimal = points.values[~np.isnan(points.values)], points.step
    if not decimal or not np.isfinite(decimal):
        return 0.0
    steps = np.unique(np.rint(values / decimal))
    # Few values do not show a step, and whole watts can be round by chance: more are needed.
    while len(steps) >= (_TELLING if points.role != "watts" or decimal < 0.99 else 2 * _TELLING):
        if np.any(steps % 10):
            break
        steps, decimal = steps / 10, decimal * 10
    return decimal


@dataclass(frozen=True, slots=True)
class Overview:
    """Power logs over a window, by their names."""

    logs: Sequence[tuple[str, LogSamples]]
    outlets: Sequence[OutletPower]
    window: str

    @property
    def watts(self) -> float:
        return sum(outlet.watts for outlet in self.outlets)


def overview(settings: LogSettings, start: str | None = None, end: str | None = None) -> Overview:
    """Return what logs say over a window, by default that of all their samples.

    Raise PowerLogError if a log cannot be used, or does not cover the window.
    """
    read = [read_log(log, settings) for log in settings.logs]
    starts, ends = [], []
    for log, samples in zip(settings.logs, read, strict=True):
        for outlet in samples.outlets:
            steps = steps_of(str(log.path), outlet, samples.format)
            has_watts = ~np.isnan(steps.level)
            starts += steps.since[has_watts][:1].tolist()
            ends += steps.until[has_watts][-1:].tolist()
    start_ns = min(starts, default=0) - settings.offset_ns
    end_ns = max(ends, default=0) - settings.offset_ns
    is_chosen = start is not None or end is not None
    start_ns = start_ns if start is None else _moment(start, settings)
    end_ns = end_ns if end is None else _moment(end, settings)
    shown = " to ".join(
        f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%SZ}" for ns in (start_ns, end_ns)
    )
    if end_ns <= start_ns and is_chosen:
        raise PowerLogError(POWER_TEXT.NO_WINDOW(window=shown))
    (outlets,) = outlets_over(settings, [(start_ns, end_ns)], read)
    if is_chosen:
        require_usable(outlets, shown)
    else:
        require_distinct(outlets)
        outlets = [_without_gaps(outlet) for outlet in outlets]
    logs = [(str(log.path), of) for log, of in zip(settings.logs, read, strict=True)]
    return Overview(logs, outlets, shown)


def _without_gaps(outlet: OutletPower) -> OutletPower:
    """Mark the watts of an outlet as withheld if its samples cover too little of their time."""
    curve = outlet.curve
    share = 1 - sum(outlet.gaps) / (curve[-1][1] - curve[0][0]) if curve else 0.0
    if share >= LEAST_COVERAGE:
        return outlet
    values = {"coverage": share, "least": LEAST_COVERAGE, "run": "its samples"}
    return replace(outlet, withheld=POWER_TEXT.COVERS_LITTLE(log=outlet.name, **values))


def _moment(text: str, settings: LogSettings) -> int:
    """Read a time in UTC nanoseconds; raise PowerLogError."""
    try:
        return int(read_times([text], [0], Format(dates="ymd"), settings.zone)[0][0])
    except LogError:
        raise PowerLogError(POWER_TEXT.NO_MOMENT(text=text)) from None
