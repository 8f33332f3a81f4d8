"""What a worker reports without being asked: interval rows, events, the live page.

Owns the phase of the run, and the totals that no kernel counts.
"""

from collections import Counter
from collections.abc import Callable, Sized

from loadgen.engine.clock import clock_ns
from loadgen.engine.frames import Header
from loadgen.engine.recorder import owed_by_group, process_times, take_intervals
from loadgen.workload.attention import take_stalled
from loadgen.workload.fleet import Counts, Fleet

_NS = 1_000_000_000
_EVENTS_OF_A_KIND = 20
_LATE_S = 0.0005  # rows are taken this long after the full second
_DRAIN_S = 0.02


class Reporter:
    """Rows and events of one worker; `send(header, block)` takes them to the coordinator.

    `worker` is its row of the plan, `anchor_ns` the moment from which seconds are counted.
    """

    def __init__(
        self, fleet: Fleet, worker: int, anchor_ns: int, send: Callable[..., None]
    ) -> None:
        self.phase = "connect"
        self._fleet = fleet
        self._worker = worker
        self._anchor_ns = anchor_ns
        self._send = send
        self._events: Counter[str] = Counter()
        self._reported = Counts.grid(*fleet.counters.shape)
        self._start_ns = clock_ns()
        self._times = process_times()

    @property
    def stopping(self) -> bool:
        return self.phase == "stop"

    def event(self, kind: str, connection: int | None, detail: str) -> None:
        """Report what went wrong; the first of each kind, so that a storm stays readable."""
        self._events[kind] += 1
        if self._events[kind] > _EVENTS_OF_A_KIND:
            return
        header: Header = {"time_ns": clock_ns(), "kind": kind, "detail": detail}
        if connection is not None:
            header["group"] = self._fleet.group_of(connection).name
            header["device"] = int(self._fleet.device[connection])
        self._send({"event": header})

    def enter(self, phase: str) -> None:
        """A phase begins; the processor time until now belongs to the one before."""
        if not self.stopping:
            self.snapshot()
            self.phase = phase

    def until_next_second(self) -> float:
        """Seconds until the rows of the second under way are due."""
        since_ns = clock_ns() - self._anchor_ns
        return (_NS - since_ns % _NS) / 1e9 + _LATE_S

    def snapshot(self) -> None:
        """Send what was counted since the last snapshot."""
        now_ns = clock_ns()
        times = process_times()
        rows, block = take_intervals(self._fleet, self._reported, now_ns)
        stalled_ns, longest_stall_ns = take_stalled(self._fleet)
        rows.append(
            {
                "group": "",
                "phase": self.phase,
                "series": "",
                "cpu_ns": times.cpu_ns - self._times.cpu_ns,
                "wait_ns": times.wait_ns - self._times.wait_ns,
                "stalled_ns": stalled_ns,
                "resident_bytes": times.resident_bytes,
                "longest_stall_ns": longest_stall_ns,
            }
        )
        common = {
            "worker": self._worker,
            "second": (self._start_ns - self._anchor_ns) // _NS,
            "time_ns": self._start_ns,
            "span_ns": now_ns - self._start_ns,
        }
        for row in rows:
            row.update(common)
        self._start_ns = now_ns
        self._times = times
        self._fleet.totals.owed = sum(row.get("owed", 0) for row in rows)
        self._fleet.totals.beat_ns = now_ns
        self._send({"interval": rows, "buckets": len(block) // 12}, block)

    def end_window(self) -> None:
        """The schedule is over: report the backlog that is left."""
        self.enter("drain")
        backlog, age_ns = owed_by_group(self._fleet, clock_ns())
        total = int(backlog.sum())
        self._fleet.totals.owed = total
        self._send({"window_end": {"owed": total, "owed_oldest_ns": age_ns}})

    def watch_drain(self, unsent: Sized) -> float:
        """Say on the live page when nothing is left to send or to be acknowledged.

        `unsent` holds the connections with bytes that their socket did not take.
        """
        backlog, _ = owed_by_group(self._fleet, clock_ns())
        self._fleet.totals.owed = int(backlog.sum())
        in_flight = self._fleet.totals.in_flight
        self._fleet.totals.finished = int(not in_flight and not unsent and not backlog.any())
        return _DRAIN_S
