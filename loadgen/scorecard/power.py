"""Power over a measurement window: samples of power logs in, mean watts of every outlet out.

A sample holds until the next one of its outlet. Where the next is much later than usual, the meter
was silent meanwhile: a sample holds at most `HOLD_LIMIT` times the usual spacing of its outlet,
the rest counts as not covered, and the last sample holds for the usual spacing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PowerLogError
from loadgen.scorecard.power_settings import LogSettings, PduLog

HOLD_LIMIT = 2.5
"""How many times the usual spacing a sample is believed; one lost sample is bridged, two not."""

LEAST_COVERAGE = 0.9
"""Share of the measurement window that the samples of each outlet must cover."""

_GRANTED = 0.05
_COARSE = 0.2
"""A counter whose step is more than this share of the energy cannot confirm it."""

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
Window = tuple[int, int]
"""From and until, in UTC nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class EnergyCheck:
    """An outlet's energy over the window by its watts and by its counter of kilowatt-hours.

    The counter shows steps of `resolution_kwh`, so a difference of one step says nothing, and
    5 % are granted on top. "too coarse": the step is so large that agreeing means little.
    """

    watts_kwh: float
    counter_kwh: float
    resolution_kwh: float
    result: Literal["agrees", "disagrees", "too coarse"]


@dataclass(frozen=True, slots=True)
class OutletPower:
    """One outlet over one measurement window.

    `watts` is the time-weighted mean over the covered part, `samples` how many of them hold in
    the window, `coverage` the covered share of it, 0 to 1. `curve` is the covered course: from
    and until (seconds since the window's start) and watts.
    """

    log: str
    watts: float
    samples: int
    coverage: float
    curve: tuple[tuple[float, float, float], ...] = ()
    outlet: str = ""
    node: str = ""
    energy: EnergyCheck | None = None

    @property
    def name(self) -> str:
        """Log and outlet, as a message names them."""
        return f"{self.log}#{self.outlet}" if self.outlet else self.log


def outlets_over(settings: LogSettings, start_ns: int, end_ns: int) -> list[OutletPower]:
    """Every outlet of the logs over a window in UTC, in the order of logs and of their outlets."""
    window = (start_ns, end_ns)
    return [one for log in settings.logs for one in outlets_of_log(log, settings, [window])[0]]


def outlets_of_log(
    log: PduLog, settings: LogSettings, windows: Sequence[Window]
) -> list[list[OutletPower]]:
    """The outlets of one log over each window, in the log's order; raises PowerLogError."""
    # Loaded for a log alone: pandas takes a while.
    from loadgen.scorecard.power_logs import read_log

    outlets = list(read_log(log, settings).groupby("outlet", sort=False))
    return [
        [
            outlet_power(
                str(log.path),
                own["wall_ns"].to_numpy(),
                own["watts"].to_numpy(),
                start_ns,
                end_ns,
                kilowatt_hours=own["kwh"].to_numpy(),
                outlet=str(name),
                node=log.node,
            )
            for name, own in outlets
        ]
        for start_ns, end_ns in windows
    ]


def outlet_power(
    log: str,
    wall_ns: Sequence[int] | Int64Array,
    watts: Sequence[float] | Float64Array,
    start_ns: int,
    end_ns: int,
    *,
    kilowatt_hours: Sequence[float] | Float64Array | None = None,
    outlet: str = "",
    node: str = "",
) -> OutletPower:
    """Time-weighted mean of one outlet's samples over a window.

    `wall_ns` ascends and has the length of `watts`; `start_ns` and `end_ns` are on the same
    clock; `kilowatt_hours` is NaN where there is none. How long a sample holds is settled before
    the window cuts it, so that the sample from before the window counts for the window's
    beginning. With nothing covered, watts is 0.
    """
    at = np.asarray(wall_ns, np.int64)
    level = np.asarray(watts, np.float64)
    until = at + _hold_ns(at)
    since_ns = np.clip(at, start_ns, end_ns)
    until_ns = np.clip(until, start_ns, end_ns)
    covered_ns: Int64Array = np.maximum(until_ns - since_ns, 0)
    total_ns = int(covered_ns.sum())
    used = covered_ns > 0
    mean = float((level * covered_ns).sum() / total_ns) if total_ns else 0.0
    return OutletPower(
        log=log,
        watts=mean,
        samples=int(used.sum()),
        coverage=total_ns / (end_ns - start_ns) if end_ns > start_ns else 0.0,
        curve=tuple(
            zip(
                ((since_ns[used] - start_ns) / 1e9).tolist(),
                ((until_ns[used] - start_ns) / 1e9).tolist(),
                level[used].tolist(),
                strict=True,
            )
        ),
        outlet=outlet,
        node=node,
        energy=_energy(at, level, kilowatt_hours, start_ns, end_ns),
    )


def require_coverage(outlets: Iterable[OutletPower], run: str) -> None:
    """Raises PowerLogError for the first outlet whose samples leave too much of the run open."""
    for outlet in outlets:
        if outlet.coverage < LEAST_COVERAGE:
            raise PowerLogError(
                f"power log {outlet.name} covers {outlet.coverage:.0%} of the measurement window "
                f"of run {run}; at least {LEAST_COVERAGE:.0%} is needed (are pdu_timezone and "
                "pdu_offset right?)"
            )


def _energy(
    at: Int64Array,
    watts: Float64Array,
    kilowatt_hours: Sequence[float] | Float64Array | None,
    start_ns: int,
    end_ns: int,
) -> EnergyCheck | None:
    """Watts against the counter, from the first sample in the window to the last."""
    if kilowatt_hours is None:
        return None
    counter = np.asarray(kilowatt_hours, np.float64)
    inside = np.flatnonzero((at >= start_ns) & (at <= end_ns) & ~np.isnan(counter))
    if len(inside) < 2:
        return None
    first, last = int(inside[0]), int(inside[-1])
    hold = np.diff(at[first : last + 1]).astype(np.float64)
    by_watts = float((watts[first:last] * hold).sum()) / 3.6e15
    by_counter = float(counter[last] - counter[first])
    step = _resolution(counter[inside])
    result: Literal["agrees", "disagrees", "too coarse"] = "agrees"
    if abs(by_counter - by_watts) > step + _GRANTED * by_watts:
        result = "disagrees"
    elif step > _COARSE * by_watts:
        result = "too coarse"
    return EnergyCheck(by_watts, by_counter, step, result)


def _resolution(values: Float64Array) -> float:
    """The step in which a counter is shown: that of its last decimal."""
    fits = (np.allclose(values, np.round(values, d), rtol=0, atol=1e-9) for d in range(7))
    return next((10.0**-decimals for decimals, fit in enumerate(fits) if fit), 0.0)


def _hold_ns(at: Int64Array) -> Int64Array:
    """How long each sample holds, without regard to any window."""
    spacing = np.diff(at)
    usual_ns = int(np.median(spacing[spacing > 0])) if np.any(spacing > 0) else 0
    hold: Int64Array = np.append(np.minimum(spacing, int(HOLD_LIMIT * usual_ns)), usual_ns)
    return hold
