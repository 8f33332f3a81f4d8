"""The content of power logs, with the watts that the score card would use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from loadgen.errors import PowerLogError
from loadgen.report.power.log import LogSamples, read_log
from loadgen.report.power.messages import LogError, PowerMessage
from loadgen.report.power.power import (
    LEAST_COVERAGE,
    OutletPower,
    outlets_of_samples,
    require_distinct,
    require_no_clock_change,
    require_usable,
    steps_of,
    verdict_on,
)
from loadgen.report.power.settings import LogSettings
from loadgen.report.power.times import Clock


@dataclass(frozen=True, slots=True)
class Overview:
    """Power logs over a window, by their names; `watts` is the sum over the outlets."""

    logs: Sequence[tuple[str, LogSamples]]
    outlets: Sequence[OutletPower]
    window: str
    watts: float
    withheld: bool
    remark: str


def overview(settings: LogSettings, start: str | None = None, end: str | None = None) -> Overview:
    """Return what logs say over a window, by default that of all their samples.

    Raise PowerLogError if a log cannot be used, or does not cover the window.
    """
    read = [(log, read_log(log, settings)) for log in settings.logs]
    starts, ends = [], []
    for log, samples in read:
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
        raise PowerLogError(PowerMessage.NO_WINDOW(window=shown))
    outlets = []
    for log, samples in read:
        if is_chosen:
            require_no_clock_change(log, samples, settings, (start_ns, end_ns))
        outlets += outlets_of_samples(log, samples, settings, (start_ns, end_ns))
    if is_chosen:
        require_usable(outlets, shown)
    else:
        require_distinct(outlets)
        outlets = [_without_gaps(outlet) for outlet in outlets]
    logs = [(str(log.path), samples) for log, samples in read]
    withheld, remark = verdict_on(outlets)
    watts = sum(outlet.watts for outlet in outlets)
    return Overview(logs, outlets, shown, watts, withheld, remark)


def _without_gaps(outlet: OutletPower) -> OutletPower:
    """Mark the watts of an outlet as withheld if its samples cover too little of their time."""
    curve = outlet.curve
    covered_s = sum(until_s - since_s for since_s, until_s, _ in curve)
    share = covered_s / (curve[-1][1] - curve[0][0]) if curve else 0.0
    if share >= LEAST_COVERAGE:
        return outlet
    values = {"coverage": share, "least": LEAST_COVERAGE, "run": "its samples"}
    return replace(outlet, withheld=PowerMessage.COVERS_LITTLE(log=outlet.name, **values))


def _moment(text: str, settings: LogSettings) -> int:
    """Read a time in UTC nanoseconds; raise PowerLogError."""
    try:
        clock = Clock("ymd")
        clock.add(text, 0)
        return int(clock.resolve(settings.zone)[0][0])
    except LogError:
        raise PowerLogError(PowerMessage.NO_MOMENT(text=text)) from None
