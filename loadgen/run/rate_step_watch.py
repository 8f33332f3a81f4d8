"""The rate steps of a run, from samples and interval rows."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from loadgen.judge.backlog import BacklogSample
from loadgen.judge.backlog_watch import without_lost
from loadgen.judge.facts import RunFacts
from loadgen.judge.ledger import Counted, Ledger, ledger_of
from loadgen.judge.live_sample import LiveSample
from loadgen.judge.own_delay import OwnDelay
from loadgen.judge.verdict import RateStepVerdict, judge_rate_step
from loadgen.metrics.interval import Interval
from loadgen.plan.rate_steps import RateStep
from loadgen.run.tally import Tally

NS = 1_000_000_000
BACKLOG_NS = 100_000_000
"""Time between two samples: one a second would show no trend in a step of a few seconds."""


class RateStepWatch:
    """Keeps marks at both ends of each step's judged part, and what was counted within it.

    The losses of a step are known when the run has ended: exactly if the run lost nothing, else up
    to the messages in flight at the ends of the step.
    """

    def __init__(
        self,
        steps: Sequence[RateStep],
        start_ns: int,
        measure_ns: int,
        timed_groups: Collection[str],
    ) -> None:
        self.steps = tuple(steps)
        self.changes: list[tuple[int, float]] = []
        """Time and factor of each change of the rate; the warm-up has that of the first step."""
        self.bounds: list[tuple[int, int]] = []
        """Judged part of each step, as planned (CLOCK_MONOTONIC ns)."""
        change_ns, begin_ns = start_ns, measure_ns
        for step in steps:
            self.changes.append((change_ns, step.share))
            change_ns = begin_ns + int(step.seconds * NS)
            self.bounds.append((begin_ns + int(step.settle_s * NS), change_ns))
            begin_ns = change_ns
        self._tallies = [Tally(timed_groups, ("measure",)) for _ in steps]
        self._bounds: list[LiveSample] = []
        self._least_missing: list[int | None] = [None]
        self._backlog: list[BacklogSample] = []

    def bound(self, sample: LiveSample) -> None:
        """Begin the judged part of a step, or end the one that has begun."""
        self._bounds.append(sample)
        self._least_missing.append(None)
        self.sample(sample)

    def sample(self, sample: LiveSample) -> None:
        """Add a sample of any moment, and one after the drain."""
        # Workers are not read at one moment: a receiver can be ahead of its sender.
        missing = max(0, sample.expected - sample.received)
        least = self._least_missing[-1]
        self._least_missing[-1] = missing if least is None else min(least, missing)
        if not self._backlog or sample.time_ns - self._backlog[-1][0] >= BACKLOG_NS:
            self._backlog.append((sample.time_ns, sample.owed, missing))

    def add(self, row: Interval) -> None:
        """Count a row in the step that held the middle of its interval."""
        middle_ns = row.time_ns + row.span_ns // 2
        last = len(self.bounds) - 1
        for place, (start_ns, end_ns) in enumerate(self.bounds):
            # A late message counts when it came; after the window, in the last step.
            if start_ns <= middle_ns and (middle_ns < end_ns or place == last):
                self._tallies[place].add(row)

    def verdicts(
        self,
        run_facts: RunFacts,
        rate: float,
        own_delay: Callable[[Tally, tuple[int, int]], OwnDelay],
    ) -> tuple[RateStepVerdict, ...]:
        """Return the verdict on each step that ended.

        `rate` is the target of 100 %, and `own_delay` computes that of a step from its rows and
        bounds.
        """
        results = []
        backlog = without_lost(self._backlog, [missing for _, _, missing in self._backlog])
        ended = zip(self._bounds[::2], self._bounds[1::2], strict=False)
        for place, (start, end) in enumerate(ended):
            step, tally = self.steps[place], self._tallies[place]
            counts = tally.counts("measure")
            expected = end.expected - start.expected
            missing = self._lost_by(2 * place + 2) - self._lost_by(2 * place + 1)
            received = expected - min(max(missing, 0), expected)
            sums = {"sent": end.sent - start.sent, "expected": expected, "received": received}
            window = ledger_of(Counted({**counts, **sums}))
            facts = replace(
                run_facts,
                window_s=(end.time_ns - start.time_ns) / NS,
                ending=replace(run_facts.ending, interrupted=False, workers_lost=()),
                connects=replace(
                    run_facts.connects,
                    connected=run_facts.connects.devices,
                    connect_failures=0,
                    closed_at_subscribe=0,
                    disconnects=counts["disconnects"],
                    reconnects=counts["connects"],
                    overdue=0,
                ),
                schedule=replace(
                    run_facts.schedule,
                    target_rate=rate * step.share,
                    scheduled=end.begun - start.begun,
                    owed_at_window_end=0,
                ),
                # Findings about the whole run are not repeated for a step.
                messages=replace(
                    run_facts.messages,
                    window=window,
                    run=Ledger(),
                    imbalances=(),
                    proven=True,
                    held_when_cut=0,
                    waiting=0,
                ),
                generator=replace(
                    run_facts.generator,
                    busy_share=tally.busy_share_max(),
                    own_delay=own_delay(tally, (start.time_ns, end.time_ns)),
                    bounds_broken=(),
                ),
                service=replace(
                    run_facts.service,
                    backlog=tuple(one for one in backlog if start.time_ns <= one[0] <= end.time_ns),
                    standstills=(),
                    arrived=end.received - start.received,
                    latency_p99_us=tally.p99_us("measure", "end_to_end"),
                    thresholds_missed=(),
                ),
            )
            results.append(judge_rate_step(step, facts, end.owed))
        return tuple(results)

    def _lost_by(self, segment: int) -> int:
        """Return the deliveries lost before this segment: those missing at every later moment."""
        later = [least for least in self._least_missing[segment:] if least is not None]
        return min(later, default=0)
