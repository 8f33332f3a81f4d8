"""Power over a measurement window: samples of power logs in, mean watts of every outlet out.

A sample of watts holds until the next one of its outlet. Where the next is much later than usual,
the meter was silent meanwhile: a sample holds at most `HOLD_LIMIT` times the usual spacing of its
outlet, the rest counts as not covered, and the last sample holds for the usual spacing.

A counter of energy says what was used between two of its samples, however far apart they are. Where
an outlet has watts and a counter, the watts are the figure and the counter confirms them; a counter
alone gives the mean by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.report.power.power_settings import LogSettings, PduLog

HOLD_LIMIT = 2.5
"""How many times the usual spacing a sample is believed; one lost sample is bridged, two not."""

LEAST_COVERAGE = 0.9
"""Share of the measurement window that the samples of each outlet must cover."""

LEAST_SAMPLES = 10
"""A mean of fewer samples inside the window is told as such."""

_GRANTED = 0.05
_COARSE = 0.2
"""A counter whose step is more than this share of the energy cannot confirm it."""
_NOTABLE = 0.005
"""A counter's step that is more than this share of the energy is told beside the figure."""
_RESETS = 0.1
"""A counter that goes back in more than this share of its steps does not count up."""

_TELLING = 3
"""So many different values of a counter show in what steps it counts; so many of watts are not the
same by chance."""

_NS_W_IN_KWH = 3.6e15

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
Window = tuple[int, int]
"""From and until, in UTC nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class EnergyCheck:
    """An outlet's energy over the window by its watts and by its counter, in kilowatt-hours.

    The counter shows steps of `resolution_kwh`, so a difference of one step says nothing, and
    5 % are granted on top. "too coarse": the step is so large that agreeing means little. "reset":
    the counter went back, and agrees before and after that. `watts_kwh` is None where the outlet
    has no watts of its own: then the result says whether the counter is fine enough for a mean.
    """

    watts_kwh: float | None
    counter_kwh: float
    resolution_kwh: float
    result: Literal["agrees", "disagrees", "too coarse", "reset"]


@dataclass(frozen=True, slots=True)
class OutletPower:
    """One outlet over one measurement window.

    `watts` is the time-weighted mean over the covered part, `samples` how many of them hold in
    the window, `inside` how many were taken in it, `coverage` the covered share of it, 0 to 1.
    `assumed_zone` is the zone in which its times were read though nobody named one, else "".
    `curve` is the covered course: from and until (seconds since the window's start) and watts.
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
        """Log and outlet, as a message names them."""
        return f"{self.log}#{self.outlet}" if self.outlet else self.log

    @property
    def withheld(self) -> str:
        """Why no figure can be made of these watts; "" where one can."""
        energy = self.energy
        if energy is None:
            return ""
        if energy.watts_kwh is not None and energy.result == "disagrees":
            return (
                f"the counter of {self.name} counted {energy.counter_kwh:.4g} kWh, and the "
                f"watts meanwhile make {energy.watts_kwh:.4g} kWh (is a unit or a time zone wrong?)"
            )
        if energy.watts_kwh is None and energy.result == "too coarse":
            return (
                f"{self.name} has a counter alone, which counted {energy.counter_kwh:.4g} kWh in "
                f"steps of {energy.resolution_kwh:.4g} kWh: too coarse for a mean"
            )
        return ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What must be known of these watts."""
        told = []
        if self.inside < LEAST_SAMPLES:
            taken = f"{self.inside} sample{'' if self.inside == 1 else 's'}"
            told.append(f"{self.name} has {taken} inside the window")
        if self.assumed_zone:
            told.append(
                f"the times of {self.log} were read as those of {self.assumed_zone}, the zone of "
                "this host (--pdu-timezone names another)"
            )
        energy = self.energy
        if energy is not None and energy.result == "reset":
            told.append(f"the counter of {self.name} was reset in the window")
        if energy is not None and energy.watts_kwh is None and energy.counter_kwh:
            share = energy.resolution_kwh / energy.counter_kwh
            if share > _NOTABLE:
                told.append(f"a step of the counter of {self.name} is {share:.1%} of its energy")
        return tuple(told)


def outlets_over(settings: LogSettings, start_ns: int, end_ns: int) -> list[OutletPower]:
    """Every outlet of the logs over a window in UTC, in the order of logs and of their outlets."""
    window = (start_ns, end_ns)
    return [one for log in settings.logs for one in outlets_of_log(log, settings, [window])[0]]


def outlets_of_log(
    log: PduLog, settings: LogSettings, windows: Sequence[Window]
) -> list[list[OutletPower]]:
    """The outlets of one log over each window, in the log's order; raises PowerLogError."""
    # Loaded for a log alone: pandas takes a while.
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
                {column: own[column].to_numpy() for column in _COLUMNS},
                window,
                outlet=str(name),
                node=log.node,
                assumed_zone=assumed,
            )
            for name, own in outlets
        ]
        for window in windows
    ]


@dataclass(frozen=True, slots=True)
class _Steps:
    """A course of watts in steps, ascending and apart: `level` from `since` on, until `until`."""

    since: Int64Array
    until: Int64Array
    level: Float64Array

    def within(self, start_ns: int, end_ns: int) -> "_Steps":
        """Those in a window, cut to it."""
        since = np.clip(self.since, start_ns, end_ns)
        until = np.clip(self.until, start_ns, end_ns)
        some = until > since
        return _Steps(since[some], until[some], self.level[some])

    @property
    def covered_ns(self) -> int:
        return int((self.until - self.since).sum())

    @property
    def watt_ns(self) -> float:
        """Watts times nanoseconds."""
        return float((self.level * (self.until - self.since)).sum())


_COLUMNS = ("wall_ns", "watts", "kwh", "step_kwh")
"""Of an outlet's samples, as `power_logs.parse_power_log` gives them."""


def outlet_power(
    log: str,
    samples: Mapping[str, NDArray[Any]],
    window: Window,
    *,
    outlet: str = "",
    node: str = "",
    assumed_zone: str = "",
) -> OutletPower:
    """Time-weighted mean of one outlet's samples, which have `_COLUMNS`, over a window.

    `wall_ns` ascends and is on the clock of the window. How long a sample holds is settled before
    the window cuts it, so that the sample from before the window counts for the window's
    beginning. With nothing covered, watts is 0. Raises PowerLogError for a counter alone that does
    not count up.
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
    own = steps.within(start_ns, end_ns)
    covered_ns = own.covered_ns
    return OutletPower(
        log=log,
        watts=own.watt_ns / covered_ns if covered_ns else 0.0,
        samples=len(own.level),
        coverage=covered_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(
            zip(
                ((own.since - start_ns) / 1e9).tolist(),
                ((own.until - start_ns) / 1e9).tolist(),
                own.level.tolist(),
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
    """Raises PowerLogError for the first outlet whose samples leave too much of the run open, or
    are those of another log."""
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
    """How long each sample holds, without regard to any window."""
    spacing = np.diff(at)
    usual_ns = int(np.median(spacing[spacing > 0])) if np.any(spacing > 0) else 0
    hold: Int64Array = np.append(np.minimum(spacing, int(HOLD_LIMIT * usual_ns)), usual_ns)
    return hold


# --- counters -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Counter:
    """An outlet's counter of kilowatt-hours; `step` is what it counts in."""

    at: Int64Array
    kwh: Float64Array
    step: float

    @classmethod
    def of(cls, at: Int64Array, kwh: Float64Array, step_kwh: Float64Array) -> "_Counter | None":
        """None where there are not two samples of a counter."""
        known = ~np.isnan(kwh)
        if known.sum() < 2:
            return None
        return cls(at[known], kwh[known], _resolution(kwh[known], float(np.nanmin(step_kwh))))

    @property
    def counts_up(self) -> bool:
        """Whether it is a counter; energies of one interval each go up and down."""
        steps = np.diff(self.kwh)
        return bool((steps < 0).sum() <= max(1.0, _RESETS * len(steps)))

    @property
    def steps(self) -> _Steps:
        """The mean watts between samples; nothing where the counter was reset."""
        used_kwh, span_ns = np.diff(self.kwh), np.diff(self.at)
        some = (used_kwh >= 0) & (span_ns > 0)
        watts = used_kwh[some] * _NS_W_IN_KWH / span_ns[some]
        return _Steps(self.at[:-1][some], self.at[1:][some], watts)

    def alone(self, start_ns: int, end_ns: int) -> EnergyCheck:
        """What it says of a window by itself."""
        own = self.steps.within(start_ns, end_ns)
        used_kwh = own.watt_ns / _NS_W_IN_KWH
        result: Literal["agrees", "too coarse", "reset"] = "agrees"
        if self.step > _GRANTED * used_kwh:
            result = "too coarse"
        elif self._resets(start_ns, end_ns):
            result = "reset"
        return EnergyCheck(None, used_kwh, self.step, result)

    def against(self, watts: _Steps, start_ns: int, end_ns: int) -> EnergyCheck | None:
        """Held against watts, from its first sample in the window to its last.

        None where it is no counter, has too few samples there, or the watts are silent too long.
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
    """Steps that follow one another as one: from and until."""
    apart = np.flatnonzero(steps.since[1:] > steps.until[:-1]) + 1
    firsts = np.concatenate(([0], apart)).astype(np.int64)[: len(steps.since)]
    return steps.since[firsts], steps.until[np.append(firsts[1:] - 1, len(steps.until) - 1)]


def _resolution(values: Float64Array, decimal: float) -> float:
    """The step in which a counter counts: its last decimal that is not always 0.

    A counter can count in tenths and be shown in thousandths; a few values say nothing of that.
    """
    steps = np.unique(np.rint(values / decimal)) if decimal else np.zeros(0)
    while len(steps) >= _TELLING and not np.any(steps % 10):
        steps, decimal = steps / 10, decimal * 10
    return decimal
