"""The facts of the generator's own delay in a window, from the workers' and hosts' records."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.judge.own_delay import DelayGap, LongestStall, OwnDelay, TimeTaken
from loadgen.run.host_watch import GAP_NS, NS, HostAttendance, HostSample, between
from loadgen.run.tally import Tally

PHASE = "measure"
"""Whose messages count; what came late for the window is in it."""


ProcessGap = tuple[str, int, int]
"""Time in which a process that watches workers did not run: its name, start and end in ns."""


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

    @property
    def ns(self) -> int:
        """Length of the stall."""
        return self.end_ns - self.start_ns

    def within(self, start_ns: int, end_ns: int) -> "WorkerStall":
        """Return the part of it in this time, which can be empty."""
        first_ns, last_ns = max(self.start_ns, start_ns), min(self.end_ns, end_ns)
        part = max(last_ns - first_ns, 0) / self.ns
        busy_ns, waited_ns = int(self.busy_ns * part), int(self.waited_ns * part)
        return WorkerStall(self.worker, first_ns, last_ns, busy_ns, waited_ns)


def watchers_gaps(
    attendance: HostAttendance, hosts: Mapping[int, Sequence[HostSample]]
) -> tuple[ProcessGap, ...]:
    """Return the times in which the coordinator or an agent did not run."""
    gaps: list[ProcessGap] = [("the coordinator", *times) for times in attendance.gaps]
    for samples in hosts.values():
        host = samples[-1].host
        gaps += [(f"the agent of host {host}", *times) for times in samples[-1].gaps]
    return tuple(gaps)


def _cuts(hosts: Iterable[Sequence[HostSample]], gaps: Sequence[ProcessGap]) -> list[ProcessGap]:
    """Return the times in which nothing came from a host although its agent and we ran."""
    cuts: list[ProcessGap] = []
    for samples in hosts:
        for start_ns, end_ns in samples[-1].silences if samples else ():
            ours = (min(until_ns, end_ns) - max(from_ns, start_ns) for _, from_ns, until_ns in gaps)
            if sum(max(part_ns, 0) for part_ns in ours) < (end_ns - start_ns) / 2:
                cuts.append((f"host {samples[-1].host}", start_ns, end_ns))
    return cuts


def own_delay_of(
    stalls: Sequence[WorkerStall],
    hosts: Iterable[Sequence[HostSample]],
    tally: Tally,
    window: tuple[int, int],
    watchers: Sequence[ProcessGap] = (),
) -> OwnDelay:
    """Return the facts of a window whose messages are in `tally`.

    `hosts` are the samples of each host, `watchers` the gaps of the processes that watch the
    workers. The host's part is that of the host of the worker that stood longest.
    """
    begun_ns = window[0]
    by_worker: defaultdict[int, list[WorkerStall]] = defaultdict(list)
    for stall in stalls:
        part = stall.within(*window)
        if part.end_ns > part.start_ns:
            by_worker[part.worker].append(part)
    worst = max(by_worker.values(), key=lambda parts: sum(part.ns for part in parts), default=[])
    stalled, longest = max(worst, key=lambda part: part.ns, default=None), None
    samples: Sequence[HostSample] = ()
    for of_host in (every := list(hosts)):
        if len(every) == 1 or (stalled and any(stalled.worker in one.workers for one in of_host)):
            samples = of_host
    if stalled is not None:
        start_s = (stalled.start_ns - begun_ns) / NS
        host = samples[-1].host if samples else ""
        longest = LongestStall(stalled.worker, start_s, stalled.ns / NS, host)
    busy_s, waited_s = tally.busiest_s()
    spans = [(*gap, True) for gap in watchers]
    spans += [
        (f"worker {stall.worker}", stall.start_ns, stall.end_ns, False)
        for stall in stalls
        if stall.ns >= GAP_NS
    ]

    def gaps_of(spans: Iterable[tuple[str, int, int, bool]]) -> tuple[DelayGap, ...]:
        return tuple(
            DelayGap(name, (start_ns - begun_ns) / NS, (end_ns - start_ns) / NS, watches)
            for name, start_ns, end_ns, watches in spans
        )

    return OwnDelay(
        stalled_s=sum(part.ns for part in worst) / NS,
        longest=longest,
        in_stalls=TimeTaken(
            *between(samples, [(part.start_ns, part.end_ns) for part in worst]),
            sum(part.waited_ns for part in worst) / NS,
            sum(part.busy_ns for part in worst) / NS,
        ),
        in_window=TimeTaken(*between(samples, [window]), waited_s, busy_s),
        gaps=gaps_of(spans),
        cuts=gaps_of((*cut, False) for cut in _cuts(every, watchers)),
        read_p99_us=tally.p99_us(PHASE, "own_delay"),
        send_p99_us=tally.own_send_p99_us(PHASE),
    )
