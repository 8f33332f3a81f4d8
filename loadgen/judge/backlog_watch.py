"""The backlog during the window and the times without any answer, from samples of a run."""

from collections.abc import Sequence
from itertools import accumulate

from loadgen.judge.backlog import BACKLOG_EDGE_NS, BACKLOG_EDGE_SAMPLES, BacklogSample, Standstill
from loadgen.judge.live_sample import LiveSample

NS = 1_000_000_000
SAMPLES = 20  # samples that are kept of a short window; a long one keeps one each second
EDGE_SHARE = 0.1
"""Share of the window at each end, at most `BACKLOG_EDGE_NS`, of which every sample is kept."""
STANDSTILL_S = 0.5
"""Shortest time without any answer, though something came due, that is reported."""
STANDSTILL_MESSAGES = 10
"""Fewest waiting messages of a standstill; fewer can as well have been lost."""
_STANDSTILLS = 100


def without_lost(samples: Sequence[BacklogSample], least: Sequence[int]) -> list[BacklogSample]:
    """Remove deliveries that never arrived; `least` has the fewest missing in each span."""
    never = list(accumulate(reversed(least), min))[::-1]
    return [
        (time_ns, owed, max(0, missing - lost))
        for (time_ns, owed, missing), lost in zip(samples, never, strict=True)
    ]


class BacklogWatch:
    """The samples of a run from the start of its window to the end of its drain."""

    def __init__(self, start_ns: int, end_ns: int, devices: int = 0) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.high_water_mark = 0
        self.subscription_high_water_mark: int | None = None
        self.arrived: int | None = None  # deliveries within the window
        self.last_arrival_ns = 0
        self.last_absence_ns = 0  # a device was away then
        window_ns = end_ns - start_ns
        self._each_ns = min(window_ns // SAMPLES, NS)
        self._edge_ns = min(BACKLOG_EDGE_NS, window_ns * EDGE_SHARE)
        self._kept: list[LiveSample] = []
        # Fewest deliveries that were missing from each kept sample to the next.
        self._least: list[int] = []
        self._answered: LiveSample | None = None  # when the last answer was seen
        self._due: LiveSample | None = None  # when something came due after it
        self._still: LiveSample | None = None  # last sample without an answer
        self._standstills: list[Standstill] = []
        self._received = 0
        self._devices = devices
        # Shares of the run for which a subscription's oldest message had waited at the end.
        self._waits: list[float] = []

    def sample(self, sample: LiveSample) -> None:
        """Add a sample; one after the window only shows which deliveries were lost."""
        if self._least:
            self._least[-1] = min(self._least[-1], sample.under_way)
        if sample.received != self._received:
            self._received, self.last_arrival_ns = sample.received, sample.time_ns
        if not self.start_ns <= sample.time_ns <= self.end_ns:
            return
        if sample.connected < self._devices:
            self.last_absence_ns = sample.time_ns
        self.high_water_mark = max(self.high_water_mark, sample.under_way)
        if sample.most is not None:
            before = self.subscription_high_water_mark or 0
            self.subscription_high_water_mark = max(before, sample.most)
            if self.end_ns - sample.time_ns <= self._edge_ns:
                self._waits.append(sample.waits)
        at_edge = min(sample.time_ns - self.start_ns, self.end_ns - sample.time_ns) <= self._edge_ns
        if at_edge or not self._kept or sample.time_ns - self._kept[-1].time_ns >= self._each_ns:
            self._kept.append(sample)
            self._least.append(sample.under_way)
        self.arrived = sample.received - self._kept[0].received
        if self._answered is None or sample.answered != self._answered.answered:
            self._standstills = list(self.standstills()[:_STANDSTILLS])
            self._answered = sample
            self._due = self._still = None
        elif sample.due > self._answered.due:
            self._due = self._due or sample
            self._still = sample

    def standstills(self) -> tuple[Standstill, ...]:
        """Return the times without an answer; the last can reach to the end of the window."""
        if self._answered is None or self._due is None or self._still is None:
            return tuple(self._standstills)
        from_s = (self._due.time_ns - self.start_ns) / NS
        until_s = (self._still.time_ns - self.start_ns) / NS
        waiting = self._still.due - self._answered.due
        if until_s - from_s < STANDSTILL_S or waiting < STANDSTILL_MESSAGES:
            return tuple(self._standstills)
        return (*self._standstills, Standstill(from_s, until_s, waiting))

    def samples(self) -> list[BacklogSample]:
        """Return the samples of the window, without the deliveries that never arrived."""
        kept = [(sample.time_ns, sample.owed, sample.under_way) for sample in self._kept]
        return without_lost(kept, self._least)

    def waited_s(self) -> float:
        """Return the wait of the oldest message, of all or of one subscription, at the end."""
        waits = []
        ends = [*zip(self.samples(), self._kept, strict=True)][-BACKLOG_EDGE_SAMPLES:]
        for (time_ns, owed, missing), sample in ends:
            served = sample.due - owed - missing
            due_ns = (one.time_ns for one in self._kept if one.due > served)
            waits.append(time_ns - next(due_ns, time_ns))
        of_one_ns = min(self._waits, default=0) * (self.end_ns - self.start_ns)
        return max(min(waits, default=0), of_one_ns) / NS
