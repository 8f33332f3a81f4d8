"""Stages of a group: the number of its connected devices in the course of a run.

A stage has the devices with the lowest numbers. Times count from the beginning of the window, and
the first stage holds before it. The schedule of a device that is away stands still.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

STAGES_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Stage:
    """A number of devices that is reached at `at_s + over_s`."""

    at_s: float
    devices: int
    over_s: float = 0.0


def absences(stages: Sequence[Stage], device: int) -> Iterator[tuple[float, float]]:
    """Yield the begin and the end of each absence of a device; infinite if it has none."""
    left_s = -float("inf") if stages and device >= stages[0].devices else None
    for before, stage in pairwise(stages):
        if before.devices <= device < stage.devices and left_s is not None:
            yield left_s, _moment(stage, device - before.devices, before)
            left_s = None
        elif stage.devices <= device < before.devices:
            left_s = _moment(stage, before.devices - 1 - device, before)
    if left_s is not None:
        yield left_s, float("inf")


def _moment(stage: Stage, place: int, before: Stage) -> float:
    """Return when a device arrives or leaves, from its position among those that do so."""
    return stage.at_s + stage.over_s * place / abs(stage.devices - before.devices)


def longest_absence_s(stages: Sequence[Stage], count: int, start_s: float, end_s: float) -> float:
    """Return the longest absence of a device between two times, found at the edges of stages."""
    return max(
        min(until_s, end_s) - max(left_s, start_s)
        for device in {0, count - 1, *(stage.devices - n for stage in stages for n in (0, 1))}
        if 0 <= device < count
        for left_s, until_s in ((0.0, 0.0), *absences(stages, device))
    )


def presence(
    stages: Sequence[Stage], count: int, seconds: float, warmup_s: float = 0.0, most_s: float = inf
) -> float:
    """Return the share of a window for which devices are connected, as a mean.

    Each counts for at most `most_s` seconds, of which the warm-up takes the first.
    """
    stages, count = (stages, count) if stages else ((Stage(0.0, 1),), 1)
    total_s = 0.0
    for device in range(count):
        away_s = sum(
            min(end_s, seconds) - max(begin_s, 0.0)
            for begin_s, end_s in absences(stages, device)
            if begin_s < seconds and end_s > 0
        )
        left_s = most_s - warmup_s if device < stages[0].devices else most_s
        total_s += min(seconds - away_s, max(left_s, 0.0))
    return total_s / (count * seconds) if seconds else 1.0


def stage_fault(stages: Sequence[Stage], count: int) -> str | None:
    """Return the fault of the stages of a group; None for good ones."""
    if stages[0].at_s or stages[0].over_s:
        return "must begin with at = 0"
    for before, stage in pairwise(stages):
        if stage.at_s < before.at_s + before.over_s or stage.at_s == before.at_s:
            return f"must not begin at {stage.at_s:g} s, before the last one is reached"
    if max(stage.devices for stage in stages) > count:
        return "must not have more devices than the group"
    return None
