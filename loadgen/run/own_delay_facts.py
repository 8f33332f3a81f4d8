"""The facts of the generator's own delay in a window, from the workers' and hosts' records."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.judge.own_delay import DelayGap, LongestStall, OwnDelay, TimeTaken
from loadgen.run.host_watch import GAP_NS, NS, HostAttendance, HostSample, between
from loadgen.run.tally import Tally

PHASE = "measure"
"""Whose messages count; what came late for the window is in it."""


@dataclass(frozen=True, slots=True)
class ProcessGap:
    """A time in which a process that watches workers did not run (CLOCK_MONOTONIC)."""

    process: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class WorkerStall:
    """Time in which a worker did not look at its sockets (CLOCK_MONOTONIC).

    For `busy_ns` of it the worker ran, for `waited_ns` it waited for a processor.
    """

    worker: int
    start_ns: int
    end_ns: int
    busy_ns: int
    waited_ns: int

    def within(self, start_ns: int, end_ns: int) -> "WorkerStall":
        """Return the part of it in this time, which can be empty."""
        first_ns, last_ns = max(self.start_ns, start_ns), min(self.end_ns, end_ns)
        part = max(last_ns - first_ns, 0) / (self.end_ns - self.start_ns)
        busy_ns, waited_ns = int(self.busy_ns * part), int(self.waited_ns * part)
        return WorkerStall(self.worker, first_ns, last_ns, busy_ns, waited_ns)


def watchers_gaps(
    attendance: HostAttendance, hosts: Mapping[int, Sequence[HostSample]]
) -> tuple[ProcessGap, ...]:
    """Return the times in which the coordinator or an agent did not run."""
    ours = (ProcessGap("the coordinator", *times) for times in attendance.gaps)
    agents = (
        ProcessGap(f"the agent of host {number}", *times)
        for number, samples in hosts.items()
        for times in samples[-1].gaps
    )
    return (*ours, *agents)


def own_delay_of(
    stalls: Sequence[WorkerStall],
    hosts: Iterable[Sequence[HostSample]],
    tally: Tally,
    window: tuple[int, int],
    gaps: Sequence[ProcessGap] = (),
) -> OwnDelay:
    """Return the facts of a window whose messages are in `tally`; `hosts` are the samples of each
    host, `gaps` those of the processes that watch the workers.

    The host's part is that of the host of the worker that stood longest.
    """
    by_worker: defaultdict[int, list[WorkerStall]] = defaultdict(list)
    for stall in stalls:
        part = stall.within(*window)
        if part.end_ns > part.start_ns:
            by_worker[part.worker].append(part)
    worst = max(by_worker.values(), key=_seconds, default=[])
    longest = max(worst, key=lambda stall: stall.end_ns - stall.start_ns, default=None)
    busy_s, waited_s = tally.busiest_s()
    samples = _host_of(None if longest is None else longest.worker, hosts)
    return OwnDelay(
        stalled_s=_seconds(worst),
        longest=None if longest is None else _longest(longest, window[0]),
        in_stalls=TimeTaken(
            *between(samples, [(stall.start_ns, stall.end_ns) for stall in worst]),
            sum(stall.waited_ns for stall in worst) / NS,
            sum(stall.busy_ns for stall in worst) / NS,
        ),
        in_window=TimeTaken(*between(samples, [window]), waited_s, busy_s),
        gaps=(
            *(_gap(gap.process, gap, window[0], watcher=True) for gap in gaps),
            *(
                _gap(f"worker {stall.worker}", stall, window[0], watcher=False)
                for stall in stalls
                if stall.end_ns - stall.start_ns >= GAP_NS
            ),
        ),
        read_p99_us=tally.p99_us(PHASE, "own_delay"),
        send_p99_us=tally.own_send_p99_us(PHASE),
    )


def _gap(
    process: str, times: ProcessGap | WorkerStall, begun_ns: int, *, watcher: bool
) -> DelayGap:
    start_s, seconds = (times.start_ns - begun_ns) / NS, (times.end_ns - times.start_ns) / NS
    return DelayGap(process, start_s, seconds, watcher)


def _host_of(worker: int | None, hosts: Iterable[Sequence[HostSample]]) -> Sequence[HostSample]:
    """Return the samples of the only host, or of the worker's; () if it is unknown."""
    known = list(hosts)
    own = (samples for samples in known if any(worker in one.workers for one in samples))
    return known[0] if len(known) == 1 else next(own, ())


def _longest(stall: WorkerStall, begun_ns: int) -> LongestStall:
    return LongestStall(stall.worker, (stall.start_ns - begun_ns) / NS, _seconds([stall]))


def _seconds(stalls: Sequence[WorkerStall]) -> float:
    return sum(stall.end_ns - stall.start_ns for stall in stalls) / NS
