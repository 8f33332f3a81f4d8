"""What was owed and under way during the window, and when nothing came back, from samples.

What never arrives is no backlog: a sample's deliveries under way are those that a later sample, or
the end of the drain, no longer misses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from loadgen.judge.backlog import BACKLOG_EDGE_NS, BacklogSample, Standstill

NS = 1_000_000_000
SAMPLES = 20
"""Samples that are kept of a window; a long one gets one each second."""
EDGE_SHARE = 0.1
"""Of the window at each end, and at most `BACKLOG_EDGE_NS`, in which every sample is kept: between
the two it is judged whether a backlog grew."""
STANDSTILL_S = 0.5
"""So long without any answer, though something came due, is said; shorter is a host's hiccup."""
STANDSTILL_MESSAGES = 10
"""Fewer that wait may as well have been lost."""
_STANDSTILLS = 100


def without_lost(samples: Sequence[BacklogSample], least: Sequence[int]) -> list[BacklogSample]:
    """The samples without the deliveries that never arrived.

    `least` is how few were missing between each sample and the next, or the end of the drain.
    """
    never = list(accumulate(reversed(least), min))[::-1]
    return [
        (time_ns, owed, max(0, missing - lost))
        for (time_ns, owed, missing), lost in zip(samples, never, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Sight:
    """The workers together at one moment (CLOCK_MONOTONIC ns).

    `due` counts what should bring an answer: deliveries expected and messages owed; `answered`
    what the broker sent: deliveries of any kind and acknowledgements. `most` is how many deliveries
    are under way to the subscription that has most, None where nobody looked.
    """

    time_ns: int
    owed: int
    under_way: int
    due: int
    answered: int
    most: int | None = None


class BacklogWatch:
    """Looks at a run from the start of its window (`start_ns`) to the end of its drain."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.high_water_mark = 0
        self.subscription_high_water_mark: int | None = None
        window_ns = end_ns - start_ns
        self._each_ns = min(window_ns // SAMPLES, NS)
        self._edge_ns = min(BACKLOG_EDGE_NS, window_ns * EDGE_SHARE)
        self._kept: list[BacklogSample] = []
        # Fewest deliveries that were missing from each kept sample to the next.
        self._least: list[int] = []
        self._answered: Sight | None = None  # when the last answer was seen
        self._due: Sight | None = None  # when something came due after it
        self._still: Sight | None = None  # the last sight of that kind
        self._standstills: list[Standstill] = []

    def sample(self, sight: Sight) -> None:
        """Take note of a sight; those after the window only tell what was lost."""
        if self._least:
            self._least[-1] = min(self._least[-1], sight.under_way)
        if not self.start_ns <= sight.time_ns <= self.end_ns:
            return
        self.high_water_mark = max(self.high_water_mark, sight.under_way)
        if sight.most is not None:
            before = self.subscription_high_water_mark or 0
            self.subscription_high_water_mark = max(before, sight.most)
        if self._is_kept(sight.time_ns):
            self._kept.append((sight.time_ns, sight.owed, sight.under_way))
            self._least.append(sight.under_way)
        self._watch_answers(sight)

    def _is_kept(self, time_ns: int) -> bool:
        at_edge = min(time_ns - self.start_ns, self.end_ns - time_ns) <= self._edge_ns
        return at_edge or not self._kept or time_ns - self._kept[-1][0] >= self._each_ns

    def _watch_answers(self, sight: Sight) -> None:
        if self._answered is None or sight.answered != self._answered.answered:
            self._end_standstill()
            self._answered = sight
            self._due = self._still = None
        elif sight.due > self._answered.due:
            self._due = self._due or sight
            self._still = sight

    def _end_standstill(self) -> None:
        found = self._standstill()
        if found is not None and len(self._standstills) < _STANDSTILLS:
            self._standstills.append(found)

    def _standstill(self) -> Standstill | None:
        """The time without an answer that goes on, where it is long enough."""
        if self._answered is None or self._due is None or self._still is None:
            return None
        from_s = (self._due.time_ns - self.start_ns) / NS
        until_s = (self._still.time_ns - self.start_ns) / NS
        waiting = self._still.due - self._answered.due
        if until_s - from_s < STANDSTILL_S or waiting < STANDSTILL_MESSAGES:
            return None
        return Standstill(from_s, until_s, waiting)

    def standstills(self) -> tuple[Standstill, ...]:
        """When nothing was answered; the last one may last to the end of the window."""
        last = self._standstill()
        return (*self._standstills, *(() if last is None else (last,)))

    def samples(self) -> list[BacklogSample]:
        """The samples of the window, without the deliveries that never arrived."""
        return without_lost(self._kept, self._least)
