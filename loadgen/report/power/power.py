"""Power over a measurement window: samples of power logs in, mean watts of every outlet out.

A sample of watts holds until the next sample of its outlet, but at most `HOLD_LIMIT` times the
usual spacing of that outlet. The rest of a longer gap counts as not covered. The last sample holds
for the usual spacing. A log that has changes only says so with `hold=change`: its samples hold
until the next one. With `stamp=end` a sample is the mean of the time before it.

The difference between two samples of an energy counter is the energy used between them, however far
apart they are. If an outlet has watts and a counter, the watts are the figure and the counter
confirms them. If it has only a counter, the counter gives the mean.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.formats import Format
from loadgen.report.power.log import LogSamples, Outlet, Points, read_log
from loadgen.report.power.messages import PowerMessage, PowerRemark, WithheldPower
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.power.times import changes_of

HOLD_LIMIT = 2.5
"""Multiple of the usual spacing for which a sample holds: bridges one lost sample, not two."""

LEAST_COVERAGE = 0.9
"""Share of the measurement window that the samples of each outlet must cover."""

LEAST_SAMPLES = 10
"""A mean of fewer samples inside the window gets a remark."""

NOTABLE_STEP, COARSE_STEP = 0.01, 0.05
"""Shares of the mean: a greater step of watts or of a counter gets a remark, or withholds them."""

_TOLERATED = 0.05
"""Tolerated difference between watts and counter, as a share of the energy."""
_NO_CHECK = 0.2
"""A counter whose step is more than this share of the energy cannot confirm it."""
_MOST_REMARKS = 3
_OUTLIER = 10
_LEAST_WATTS = 0.1
_LARGEST_OUTLET_W = 1e5
"""No outlet has more: energies of intervals that make more are those of a counter."""
_TELLING = 3
"""Number of different values that shows the step of a counter, or that makes a coincidence of equal
watts implausible."""
_NEAR_CHANGE_NS = 86_400 * 10**9
"""A change of the clock within a day of a run makes the times of its samples doubtful."""

_NS_W_IN_KWH = 3.6e15

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
Window = tuple[int, int]
"""Start and end, in UTC nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class EnergyCheck:
    """An outlet's energy over the window by its watts and by its counter, in kilowatt-hours.

    The counter moves in steps of `resolution_kwh`, so a difference of one step is tolerated, plus
    5 %. "too coarse": the step is so large that an agreement means little. "reset": the counter
    went back to about zero, but agrees before and after that. `watts_kwh` is None if the outlet
    has no watts; `result` is then about the counter's resolution, which may be too coarse.
    """

    watts_kwh: float | None
    counter_kwh: float
    resolution_kwh: float
    result: Literal["agrees", "disagrees", "too coarse", "reset"]


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


def outlets_over(settings: LogSettings, start_ns: int, end_ns: int) -> list[OutletPower]:
    """Return every outlet over a window in UTC, in the order of logs and of their outlets."""
    window = (start_ns, end_ns)
    return [
        outlet for log in settings.logs for outlet in outlets_of_log(log, settings, [window])[0]
    ]


def outlets_of_log(
    log: PduLog, settings: LogSettings, windows: Sequence[Window]
) -> list[list[OutletPower]]:
    """Return the outlets of one log over each window, in the log's order; raise PowerLogError."""
    samples = read_log(log, settings)
    for window in windows:
        require_no_clock_change(log, samples, settings, window)
    return [outlets_of_samples(log, samples, settings, window) for window in windows]


def outlets_of_samples(
    log: PduLog, samples: LogSamples, settings: LogSettings, window: Window
) -> list[OutletPower]:
    """Return the outlets of the samples of a log over a window; raise PowerLogError."""
    path = str(log.path)
    remarks: list[str] = []
    if samples.local and not settings.zone_given:
        remarks.append(PowerRemark.ZONE_ASSUMED(log=path, zone=settings.zone.key))
    if unused := [f"{title} ({why})" for title, why, is_power in samples.unused if is_power]:
        remarks.append(PowerRemark.UNUSED(log=path, columns=tuple(unused[:8])))
    return [
        outlet_power(log, outlet, window, samples.format, settings.offset_ns, remarks)
        for outlet in samples.outlets
    ]


def require_no_clock_change(
    log: PduLog, samples: LogSamples, settings: LogSettings, window: Window
) -> None:
    """Raise PowerLogError, with the moment, if the clock of a log changes near a window.

    Times that name their zone are not affected.
    """
    if not samples.local:
        return
    figures = [p for outlet in samples.outlets for p in (outlet.watts, outlet.energy) if p]
    first_ns = max(min(int(p.at[0]) for p in figures), window[0] - _NEAR_CHANGE_NS)
    last_ns = min(max(int(p.at[-1]) for p in figures), window[1] + _NEAR_CHANGE_NS)
    for change_ns in changes_of(settings.zone, first_ns, last_ns):
        time = f"{datetime.fromtimestamp(change_ns / 1e9, settings.zone):%Y-%m-%d %H:%M}"
        values = {"zone": settings.zone.key, "time": time}
        raise PowerLogError(PowerMessage.CLOCK_CHANGES(log=log.path, **values))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Watts in ascending, disjoint steps: `level` holds from `since` until `until`."""

    since: Int64Array
    until: Int64Array
    level: Float64Array

    def within(self, start_ns: int, end_ns: int) -> "_Steps":
        """Return the steps in a window, cut to it."""
        since = np.clip(self.since, start_ns, end_ns)
        until = np.clip(self.until, start_ns, end_ns)
        cut = (until > since) & ~np.isnan(self.level)
        return _Steps(since[cut], until[cut], self.level[cut])

    @property
    def covered_ns(self) -> int:
        return int((self.until - self.since).sum())

    @property
    def watt_ns(self) -> float:
        """Watts times nanoseconds."""
        return float((self.level * (self.until - self.since)).sum())


@dataclass(frozen=True, slots=True)
class _Reading:
    """The figure of an outlet that gives its watts, before a window cuts it."""

    figure: Literal["watts", "counter", "energy"]
    points: Points
    steps: _Steps
    step_w: float
    counter: "_Counter | None"


def span_of(log: str, outlet: Outlet, form: Format) -> Window:
    """Return the start of the first sample's time and the end of the last one's."""
    steps = _reading_of(log, outlet, form).steps
    covered = ~np.isnan(steps.level)
    if not covered.any():
        return 0, 0
    return int(steps.since[covered][0]), int(steps.until[covered][-1])


def _reading_of(log: str, outlet: Outlet, form: Format) -> _Reading:
    """Return the figure to use; raise PowerLogError for a lone counter that does not count up."""
    points = outlet.energy
    counter = None
    if points is not None and points.kind == "energy":
        counter = _Counter(points, _resolution(points))
    if outlet.watts is not None:
        if counter is not None and counter.failure(alone=False):
            counter = None
        steps = _held(outlet.watts, form)
        return _Reading("watts", outlet.watts, steps, _resolution(outlet.watts), counter)
    if counter is not None:
        if failure := counter.failure(alone=True):
            raise PowerLogError(PowerMessage.NO_COUNTER(log=log, name=outlet.name, why=failure))
        return _Reading("counter", counter.points, counter.steps, 0.0, counter)
    points = points or Points("interval", np.zeros(0, np.int64), np.zeros(0), 0.0)
    step_w = _resolution(points) * _NS_W_IN_KWH / max(_usual_ns(points.at), 1)
    return _Reading("energy", points, _of_intervals(points, form), step_w, None)


def outlet_power(
    log: PduLog,
    outlet: Outlet,
    window: Window,
    form: Format,
    offset_ns: int = 0,
    remarks: Sequence[str] = (),
) -> OutletPower:
    """Weigh the samples of one outlet by time over a window; their clock is ahead by an offset.

    The hold time of a sample is computed before the window cuts it, so that the last sample before
    the window counts for the window's beginning. If no part is covered, watts is 0. Raise
    PowerLogError if the outlet has only a counter and the counter does not count up.
    """
    start_ns, end_ns = window[0] + offset_ns, window[1] + offset_ns
    name = f"{log.path}#{outlet.name}" if outlet.name else str(log.path)
    reading = _reading_of(str(log.path), outlet, form)
    points, step_w = reading.points, reading.step_w
    covered = reading.steps.within(start_ns, end_ns)
    covered_ns = covered.covered_ns
    watts = covered.watt_ns / covered_ns if covered_ns else 0.0
    energy: EnergyCheck | None = None
    if reading.counter is not None and reading.figure == "counter":
        energy = reading.counter.alone(start_ns, end_ns)
        step_w = watts * energy.resolution_kwh / energy.counter_kwh if energy.counter_kwh else 0.0
    elif reading.counter is not None:
        energy = reading.counter.against(reading.steps, start_ns, end_ns)
    is_inside = (points.at >= start_ns) & (points.at < end_ns)
    inside = int(is_inside.sum())
    notes: list[str] = []
    if inside < LEAST_SAMPLES:
        notes.append(PowerRemark.FEW_SAMPLES(name=name, samples=inside))
    notes += remarks
    if energy is not None and energy.result == "reset":
        notes.append(PowerRemark.RESET(name=name))
    if watts and NOTABLE_STEP < step_w / watts <= COARSE_STEP:
        notes.append(PowerRemark.STEP(figure=reading.figure, name=name, share=step_w / watts))
    if reading.figure == "watts":
        notes += _odd_samples(name, points.values[is_inside])
        if points.is_mean or form.stamp == "end":
            values = {"seconds": _usual_ns(points.at) / 1e9, "stamp": form.stamp or "start"}
            notes.append(PowerRemark.EDGES(name=name, **values))
    since_s, until_s = (covered.since - start_ns) / 1e9, (covered.until - start_ns) / 1e9
    return OutletPower(
        log=str(log.path),
        watts=watts,
        samples=len(covered.level),
        coverage=covered_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(zip(since_s.tolist(), until_s.tolist(), covered.level.tolist(), strict=True)),
        outlet=outlet.name,
        node=log.node,
        energy=energy,
        inside=inside,
        step=step_w,
        withheld=_withheld(name, watts, step_w, energy),
        remarks=tuple(notes),
    )


def _withheld(name: str, watts: float, step_w: float, energy: EnergyCheck | None) -> str:
    """Return the reason why these watts cannot be used, "" if they can."""
    if energy is not None and energy.watts_kwh is not None and energy.result == "disagrees":
        values = {"counter_kwh": energy.counter_kwh, "watts_kwh": energy.watts_kwh}
        return WithheldPower.COUNTER_DISAGREES(name=name, **values)
    if energy is not None and energy.watts_kwh is None and energy.result == "too coarse":
        values = {"counter_kwh": energy.counter_kwh, "step_kwh": energy.resolution_kwh}
        return WithheldPower.COUNTER_COARSE(name=name, **values)
    if 0 < watts < _LEAST_WATTS:
        return WithheldPower.TINY(name=name, watts=watts)
    if step_w > COARSE_STEP * watts > 0:
        return WithheldPower.WATTS_COARSE(name=name, step=step_w, share=step_w / watts)
    return ""


def _odd_samples(name: str, watts: Float64Array) -> list[str]:
    """Return remarks about an outlier, and about zeros between other watts."""
    watts = watts[~np.isnan(watts)]
    used = np.flatnonzero(watts)
    if not len(used):
        return []
    notes: list[str] = []
    median, most = float(np.median(watts)), float(watts.max())
    if most >= _OUTLIER * median > 0:
        notes.append(PowerRemark.OUTLIER(name=name, watts=most, median=median))
    zeros = int((watts[used[0] : used[-1]] == 0).sum())
    if zeros:
        notes.append(PowerRemark.ZEROS(name=name, zeros=zeros))
    return notes


def verdict_on(outlets: Sequence[OutletPower]) -> tuple[bool, str]:
    """Return True if the watts of outlets cannot be used, and all reasons and remarks."""
    withheld = [outlet.withheld for outlet in outlets if outlet.withheld]
    remarks = dict.fromkeys(remark for outlet in outlets for remark in outlet.remarks)
    remark = "; ".join([*withheld[:_MOST_REMARKS], *list(remarks)[:_MOST_REMARKS]])
    word = "Withheld" if withheld else "Power"
    return bool(withheld), f"{word}: {remark}." if remark else ""


def require_usable(outlets: Iterable[OutletPower], run: str) -> None:
    """Raise PowerLogError for the first outlet whose samples cover too little of the run, or repeat
    those of another log."""
    seen: dict[tuple[tuple[float, float, float], ...], OutletPower] = {}
    for outlet in outlets:
        other = seen.setdefault(outlet.curve, outlet)
        if other.log != outlet.log and len({watts for _, _, watts in outlet.curve}) >= _TELLING:
            raise PowerLogError(PowerMessage.SAME_SAMPLES(first=other.name, second=outlet.name))
        if outlet.coverage < LEAST_COVERAGE:
            values = {"coverage": outlet.coverage, "least": LEAST_COVERAGE}
            raise PowerLogError(PowerMessage.COVERS_LITTLE(log=outlet.name, run=run, **values))


def _usual_ns(at: Int64Array) -> int:
    spacing = np.diff(at)
    return int(np.median(spacing)) if len(spacing) else 0


def _held(points: Points, form: Format) -> _Steps:
    """Return the time for which each sample of watts holds, before any window cuts it."""
    at, spacing, usual_ns = points.at, np.diff(points.at), _usual_ns(points.at)
    if form.hold:
        last_ns = int(spacing.max(initial=0))
        return _Steps(at, at + np.append(spacing, last_ns), points.values)
    held = np.minimum(spacing, int(HOLD_LIMIT * usual_ns))
    if form.stamp == "end":
        return _Steps(at - np.insert(held, 0, usual_ns), at, points.values)
    return _Steps(at, at + np.append(held, usual_ns), points.values)


def _of_intervals(points: Points, form: Format) -> _Steps:
    """Return the watts of energies that were each used since the sample before."""
    usual_ns = _usual_ns(points.at)
    spacing = np.insert(np.diff(points.at), 0, usual_ns)
    # A sample after a gap is of the usual interval before it, not of the gap.
    spans = np.where(spacing <= 1.5 * usual_ns, spacing, usual_ns)
    if not usual_ns:
        return _Steps(points.at[:0], points.at[:0], points.values[:0])
    level = points.values * _NS_W_IN_KWH / spans
    if form.stamp == "start":
        return _Steps(points.at, points.at + np.append(spans[1:], usual_ns), level)
    return _Steps(points.at - spans, points.at, level)


# --- counters -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Counter:
    """An outlet's counter of kilowatt-hours, with its resolution `step`."""

    points: Points
    step: float

    def failure(self, *, alone: bool) -> str:
        """Return the reason why this is not a counter, "" if it is one.

        A counter resets to about zero. One that is not stated starts at or above what it gains,
        and would make impossible watts if it were the energy of each interval.
        """
        values = self.points.values
        gains = np.diff(values)
        rises = gains[gains > 0]
        if not len(values):
            return "has no value"
        about_zero = 3 * float(np.max(rises, initial=0.0)) + self.step
        after_falls = values[1:][gains < 0]
        if np.any(after_falls > about_zero) or len(after_falls) > max(1.0, 0.1 * len(gains)):
            return "falls to other values than about zero"
        if np.any(after_falls > 0.1 * values[:-1][gains < 0]):
            return "falls to other values than about zero"
        if not alone or self.points.is_counter:
            return ""
        if values[0] < rises.sum():
            return "starts below what it gains"
        spacing_ns = _usual_ns(self.points.at)
        as_interval = float(np.median(values)) * _NS_W_IN_KWH / max(spacing_ns, 1)
        return (
            "" if as_interval > _LARGEST_OUTLET_W else "would be plausible as energy of intervals"
        )

    @property
    def steps(self) -> _Steps:
        """The mean watts between samples, without the spans in which the counter was reset."""
        used_kwh, span_ns = np.diff(self.points.values), np.diff(self.points.at)
        rising = used_kwh >= 0
        watts = used_kwh[rising] * _NS_W_IN_KWH / span_ns[rising]
        return _Steps(self.points.at[:-1][rising], self.points.at[1:][rising], watts)

    def alone(self, start_ns: int, end_ns: int) -> EnergyCheck:
        """Return the energy of a window by the counter alone."""
        used_kwh = self.steps.within(start_ns, end_ns).watt_ns / _NS_W_IN_KWH
        result: Literal["agrees", "too coarse", "reset"] = "agrees"
        if self.step > COARSE_STEP * used_kwh:
            result = "too coarse"
        elif self._resets(start_ns, end_ns):
            result = "reset"
        return EnergyCheck(None, used_kwh, self.step, result)

    def against(self, watts: _Steps, start_ns: int, end_ns: int) -> EnergyCheck | None:
        """Compare the counter with watts, from its first sample in the window to its last.

        Return None if it has too few samples there, or the watts have gaps.
        """
        at = self.points.at
        inside = np.flatnonzero((at >= start_ns) & (at <= end_ns))
        if len(inside) < 2:
            return None
        counted = self.steps.within(int(at[inside[0]]), int(at[inside[-1]]))
        spans = [
            watts.within(int(since), int(until))
            for since, until in zip(*_joined(counted), strict=True)
        ]
        by_watts = sum(span.watt_ns for span in spans) / _NS_W_IN_KWH
        covered_ns = sum(span.covered_ns for span in spans)
        if covered_ns < LEAST_COVERAGE * counted.covered_ns or not covered_ns:
            return None
        by_counter = counted.watt_ns / _NS_W_IN_KWH
        resets = self._resets(start_ns, end_ns)
        result: Literal["agrees", "disagrees", "too coarse", "reset"] = "agrees"
        if abs(by_counter - by_watts) > self.step * (1 + resets) + _TOLERATED * by_watts:
            result = "disagrees"
        elif resets:
            result = "reset"
        elif self.step > _NO_CHECK * by_watts:
            result = "too coarse"
        return EnergyCheck(by_watts, by_counter, self.step, result)

    def _resets(self, start_ns: int, end_ns: int) -> int:
        back = np.diff(self.points.values) < 0
        at = self.points.at
        return int((back & (at[1:] > start_ns) & (at[:-1] < end_ns)).sum())


def _joined(steps: _Steps) -> tuple[Int64Array, Int64Array]:
    """Join steps without a gap between them; return the starts and the ends."""
    after_gap = np.flatnonzero(steps.since[1:] > steps.until[:-1]) + 1
    firsts = np.concatenate(([0], after_gap)).astype(np.int64)[: len(steps.since)]
    return steps.since[firsts], steps.until[np.append(firsts[1:] - 1, len(steps.until) - 1)]


def _resolution(points: Points) -> float:
    """Return the step of readings: their last decimal place that is not always 0.

    A meter can count in tenths and show thousandths; a few values do not reveal it. Round watts
    are common, so that only many of them show a step of tens.
    """
    values, decimal = points.values[~np.isnan(points.values)], points.step
    if not decimal or not np.isfinite(decimal):
        return 0.0
    steps = np.unique(np.rint(values / decimal))
    while len(steps) >= (_TELLING if points.kind != "power" or decimal < 0.99 else 2 * _TELLING):
        if np.any(steps % 10):
            break
        steps, decimal = steps / 10, decimal * 10
    return decimal
