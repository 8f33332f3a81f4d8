"""Power over a measurement window: samples of power logs in, mean watts of every outlet out.

A sample of watts holds until the next sample of its outlet, but at most `HOLD_LIMIT` times the
usual spacing of that outlet. The rest of a longer gap counts as not covered. The last sample holds
for the usual spacing.

The difference between two samples of an energy counter is the energy used between them, however far
apart they are. If an outlet has watts and a counter, the watts are the figure and the counter
confirms them. If it has only a counter, the counter gives the mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.power_settings import LogSettings, PduLog

HOLD_LIMIT = 2.5
"""Multiple of the usual spacing for which a sample holds: bridges one lost sample, not two."""

LEAST_COVERAGE = 0.9
"""Share of the measurement window that the samples of each outlet must cover."""

LEAST_SAMPLES = 10
"""A mean of fewer samples inside the window gets a remark."""

_GRANTED = 0.05
"""Tolerated difference between watts and counter, as a share of the energy."""
_COARSE = 0.2
"""A counter whose step is more than this share of the energy cannot confirm it."""
_NOTABLE = 0.005
"""A counter whose step is more than this share of the energy gets a remark."""
_RESETS = 0.1
"""A column that falls in more than this share of its steps is not a counter."""

_TELLING = 3
"""Number of different values that shows the step of a counter, or that makes a coincidence of equal
watts implausible."""

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
    went back once, but agrees before and after that. `watts_kwh` is None if the outlet has no
    watts; `result` is then about the counter's resolution, which may be too coarse for a mean.
    """

    watts_kwh: float | None
    counter_kwh: float
    resolution_kwh: float
    result: Literal["agrees", "disagrees", "too coarse", "reset"]


@dataclass(frozen=True, slots=True)
class OutletPower:
    """One outlet over one measurement window.

    `watts` is the time-weighted mean over the covered part. `samples` is the number of samples
    that hold in the window, `inside` the number taken in it. `coverage` is the covered share of
    the window, 0 to 1. `assumed_zone` is the zone of this host if times without a zone were read
    in it by default, else "". `curve` has (start, end, watts) of each covered step, in seconds
    since the window's start.
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
    assumed_zone: str = ""

    @property
    def name(self) -> str:
        """Log and outlet, as messages show them."""
        return f"{self.log}#{self.outlet}" if self.outlet else self.log

    @property
    def withheld(self) -> str:
        """The reason why these watts cannot be used; "" if they can."""
        energy = self.energy
        if energy is None:
            return ""
        if energy.watts_kwh is not None and energy.result == "disagrees":
            return (
                f"the counter of {self.name} counted {energy.counter_kwh:.4g} kWh, and the "
                f"watts make {energy.watts_kwh:.4g} kWh (is a unit or a time zone wrong?)"
            )
        if energy.watts_kwh is None and energy.result == "too coarse":
            return (
                f"{self.name} has a counter alone, which counted {energy.counter_kwh:.4g} kWh in "
                f"steps of {energy.resolution_kwh:.4g} kWh: too coarse for a mean"
            )
        return ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that a reader of these watts needs."""
        sentences = []
        if self.inside < LEAST_SAMPLES:
            taken = f"{self.inside} sample{'' if self.inside == 1 else 's'}"
            sentences.append(f"{self.name} has {taken} inside the window")
        if self.assumed_zone:
            sentences.append(
                f"the times of {self.log} were read as those of {self.assumed_zone}, the zone of "
                "this host (--pdu-timezone names another)"
            )
        energy = self.energy
        if energy is not None and energy.result == "reset":
            sentences.append(f"the counter of {self.name} was reset in the window")
        if energy is not None and energy.watts_kwh is None and energy.counter_kwh:
            share = energy.resolution_kwh / energy.counter_kwh
            if share > _NOTABLE:
                sentences.append(
                    f"a step of the counter of {self.name} is {share:.1%} of its energy"
                )
        return tuple(sentences)


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
    # Imported only for a log: pandas takes a while to load.
    from loadgen.report.power.power_logs import read_log, require_no_clock_change

    samples = read_log(log, settings)
    for window in windows:
        require_no_clock_change(log, samples, settings, window)
    outlets = list(samples.groupby("outlet", sort=False))
    assumed = settings.zone.key if samples["local"].any() and not settings.zone_given else ""
    return [
        [
            outlet_power(
                str(log.path),
                {column: rows[column].to_numpy() for column in _COLUMNS},
                window,
                outlet=str(name),
                node=log.node,
                assumed_zone=assumed,
            )
            for name, rows in outlets
        ]
        for window in windows
    ]


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
        cut = until > since
        return _Steps(since[cut], until[cut], self.level[cut])

    @property
    def covered_ns(self) -> int:
        return int((self.until - self.since).sum())

    @property
    def watt_ns(self) -> float:
        """Watts times nanoseconds."""
        return float((self.level * (self.until - self.since)).sum())


_COLUMNS = ("wall_ns", "watts", "kwh", "step_kwh")
"""Columns of an outlet's samples, as `power_logs.parse_power_log` returns them."""


def outlet_power(
    log: str,
    samples: Mapping[str, NDArray[Any]],
    window: Window,
    *,
    outlet: str = "",
    node: str = "",
    assumed_zone: str = "",
) -> OutletPower:
    """Weigh the samples of one outlet, which have `_COLUMNS`, by time over a window.

    `wall_ns` ascends and is on the clock of the window. The hold time of a sample is computed
    before the window cuts it, so that the last sample before the window counts for the window's
    beginning. If no part is covered, watts is 0. Raise PowerLogError if the outlet has only a
    counter and the counter does not count up.
    """
    start_ns, end_ns = window
    at, level = samples["wall_ns"], samples["watts"]
    counter = _Counter.of(at, samples["kwh"], samples["step_kwh"])
    taken = ~np.isnan(level)
    if taken.any() or counter is None:
        moments = at[taken]
        steps = _Steps(moments, moments + _hold_ns(moments), level[taken])
        energy = None if counter is None else counter.against(steps, start_ns, end_ns)
    else:
        if not counter.counts_up:
            raise PowerLogError(
                f"power log {log}: the energy of outlet {outlet!r} does not count up, so it is no "
                "counter; a column of watts is needed"
            )
        moments = counter.at
        steps = counter.steps
        energy = counter.alone(start_ns, end_ns)
    covered = steps.within(start_ns, end_ns)
    covered_ns = covered.covered_ns
    return OutletPower(
        log=log,
        watts=covered.watt_ns / covered_ns if covered_ns else 0.0,
        samples=len(covered.level),
        coverage=covered_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(
            zip(
                ((covered.since - start_ns) / 1e9).tolist(),
                ((covered.until - start_ns) / 1e9).tolist(),
                covered.level.tolist(),
                strict=True,
            )
        ),
        outlet=outlet,
        node=node,
        energy=energy,
        inside=int(((moments >= start_ns) & (moments < end_ns)).sum()),
        assumed_zone=assumed_zone,
    )


def require_usable(outlets: Iterable[OutletPower], run: str) -> None:
    """Raise PowerLogError for the first outlet whose samples cover too little of the run, or repeat
    those of another log."""
    seen: dict[tuple[tuple[float, float, float], ...], OutletPower] = {}
    for outlet in outlets:
        other = seen.setdefault(outlet.curve, outlet)
        if other.log != outlet.log and len({watts for _, _, watts in outlet.curve}) >= _TELLING:
            raise PowerLogError(
                f"power logs {other.name} and {outlet.name} have the same samples, which would be "
                "added twice; name each outlet once"
            )
        if outlet.coverage < LEAST_COVERAGE:
            raise PowerLogError(
                f"power log {outlet.name} covers {outlet.coverage:.0%} of the measurement window "
                f"of run {run}; at least {LEAST_COVERAGE:.0%} is needed (are pdu_timezone and "
                "pdu_offset right?)"
            )


def _hold_ns(at: Int64Array) -> Int64Array:
    """Return the time for which each sample holds, before any window cuts it."""
    spacing = np.diff(at)
    usual_ns = int(np.median(spacing[spacing > 0])) if np.any(spacing > 0) else 0
    hold: Int64Array = np.append(np.minimum(spacing, int(HOLD_LIMIT * usual_ns)), usual_ns)
    return hold


# --- counters -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Counter:
    """An outlet's counter of kilowatt-hours, with its resolution `step`."""

    at: Int64Array
    kwh: Float64Array
    step: float

    @classmethod
    def of(cls, at: Int64Array, kwh: Float64Array, step_kwh: Float64Array) -> "_Counter | None":
        """Return the counter of these samples; None if fewer than two have one."""
        counted = ~np.isnan(kwh)
        if counted.sum() < 2:
            return None
        return cls(at[counted], kwh[counted], _resolution(kwh[counted], float(np.nanmin(step_kwh))))

    @property
    def counts_up(self) -> bool:
        """True for a counter; energies of single intervals go up and down."""
        steps = np.diff(self.kwh)
        return bool((steps < 0).sum() <= max(1.0, _RESETS * len(steps)))

    @property
    def steps(self) -> _Steps:
        """The mean watts between samples, without the spans in which the counter was reset."""
        used_kwh, span_ns = np.diff(self.kwh), np.diff(self.at)
        rising = (used_kwh >= 0) & (span_ns > 0)
        watts = used_kwh[rising] * _NS_W_IN_KWH / span_ns[rising]
        return _Steps(self.at[:-1][rising], self.at[1:][rising], watts)

    def alone(self, start_ns: int, end_ns: int) -> EnergyCheck:
        """Return the energy of a window by the counter alone."""
        used = self.steps.within(start_ns, end_ns)
        used_kwh = used.watt_ns / _NS_W_IN_KWH
        result: Literal["agrees", "too coarse", "reset"] = "agrees"
        if self.step > _GRANTED * used_kwh:
            result = "too coarse"
        elif self._resets(start_ns, end_ns):
            result = "reset"
        return EnergyCheck(None, used_kwh, self.step, result)

    def against(self, watts: _Steps, start_ns: int, end_ns: int) -> EnergyCheck | None:
        """Compare the counter with watts, from its first sample in the window to its last.

        Return None if it does not count up, has too few samples there, or the watts have gaps.
        """
        inside = np.flatnonzero((self.at >= start_ns) & (self.at <= end_ns))
        if len(inside) < 2 or not self.counts_up:
            return None
        counted = self.steps.within(int(self.at[inside[0]]), int(self.at[inside[-1]]))
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
        if abs(by_counter - by_watts) > self.step * (1 + resets) + _GRANTED * by_watts:
            result = "disagrees"
        elif resets:
            result = "reset"
        elif self.step > _COARSE * by_watts:
            result = "too coarse"
        return EnergyCheck(by_watts, by_counter, self.step, result)

    def _resets(self, start_ns: int, end_ns: int) -> int:
        back = np.diff(self.kwh) < 0
        return int((back & (self.at[1:] > start_ns) & (self.at[:-1] < end_ns)).sum())


def _joined(steps: _Steps) -> tuple[Int64Array, Int64Array]:
    """Join steps without a gap between them; return the starts and the ends."""
    after_gap = np.flatnonzero(steps.since[1:] > steps.until[:-1]) + 1
    firsts = np.concatenate(([0], after_gap)).astype(np.int64)[: len(steps.since)]
    return steps.since[firsts], steps.until[np.append(firsts[1:] - 1, len(steps.until) - 1)]


def _resolution(values: Float64Array, decimal: float) -> float:
    """Return the step of a counter: its last decimal place that is not always 0.

    A counter can count in tenths and be shown in thousandths; a few values do not reveal it.
    """
    steps = np.unique(np.rint(values / decimal)) if decimal else np.zeros(0)
    while len(steps) >= _TELLING and not np.any(steps % 10):
        steps, decimal = steps / 10, decimal * 10
    return decimal
