"""Reports of a worker: interval rows, events, the live page."""

from collections import Counter
from collections.abc import Callable, Sized

from loadgen.kernels.attention import take_stalled
from loadgen.kernels.fleet import CounterRecord
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.clock import clock_ns
from loadgen.worker.frames import Header
from loadgen.worker.recorder import ProcessAccount, Row, gauges_of, take_counters, take_latencies

_NS = 1_000_000_000
_EVENTS_OF_A_KIND = 20
_LATE_S = 0.0005  # delay of the rows after the full second
_DRAIN_S = 0.02
_TURN_S = 0.005  # between the rows of a second, so that no message waits for all of them


class Reporter:
    """Rows and events of one worker since `anchor_ns`; `send(header, block)` transmits them."""

    def __init__(
        self, fleet: PlannedFleet, worker: int, anchor_ns: int, send: Callable[..., None]
    ) -> None:
        self.phase = "connect"
        self._fleet = fleet
        self._worker = worker
        self._anchor_ns = anchor_ns
        self._send = send
        self._events: Counter[str] = Counter()
        self._reported = CounterRecord.grid(*fleet.counters.shape)
        self._start_ns = clock_ns()
        self.account = ProcessAccount()
        self._times = self.account.times()
        self._common: Header = {}
        self._is_counted = False  # latencies of the last second remain to be sent, from `_slot` on
        self._slot = 0

    def renew(self, anchor_ns: int) -> None:
        """Start reporting a new run, and discard unreported values of the last one."""
        while take_latencies(self._fleet, 0)[2]:
            pass
        take_stalled(self._fleet)
        self._reported[:] = 0
        self._events.clear()
        self.phase = "warmup"
        self._anchor_ns = anchor_ns
        self._start_ns = self._fleet.totals.beat_ns = clock_ns()
        self._times = self.account.times()

    @property
    def stopping(self) -> bool:
        return self.phase == "stop"

    def event(self, kind: str, connection: int | None, detail: str) -> None:
        """Report an error; only the first of each kind, so that a storm stays readable."""
        self._events[kind] += 1
        if self._events[kind] > _EVENTS_OF_A_KIND:
            return
        header: Header = {"time_ns": clock_ns(), "kind": kind, "detail": detail}
        if connection is not None:
            header["group"] = self._fleet.group_of(connection).name
            header["device"] = int(self._fleet.device[connection])
        self._send({"event": header})

    def enter(self, phase: str) -> None:
        """Begin a phase; the processor time until now belongs to the previous one."""
        if not self.stopping:
            self.snapshot()
            self.phase = phase

    def until_next_second(self) -> float:
        """Return the seconds until the rows of the current second are due."""
        since_ns = clock_ns() - self._anchor_ns
        return (_NS - since_ns % _NS) / 1e9 + _LATE_S

    def each_second(self) -> float:
        """Send counts, or the next latencies; return the seconds until the next call."""
        if self.stopping:
            return self.until_next_second()
        if self._is_counted:
            self._send_latencies()
        else:
            self._send_counters()
        return _TURN_S if self._is_counted else self.until_next_second()

    def snapshot(self) -> None:
        self._send_counters()
        while self._is_counted:
            self._send_latencies()

    def _send_counters(self) -> None:
        now_ns = clock_ns()
        times = self.account.times()
        gauges = gauges_of(self._fleet, now_ns)
        rows = take_counters(self._fleet, self._reported, gauges, now_ns)
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
        self._common = {
            "worker": self._worker,
            "second": (self._start_ns - self._anchor_ns) // _NS,
            "time_ns": self._start_ns,
            "span_ns": now_ns - self._start_ns,
        }
        self._start_ns = now_ns
        self._times = times
        self._fleet.totals.beat_ns = now_ns
        self._send_rows(rows, b"")
        self._is_counted, self._slot = True, 0

    def _send_latencies(self) -> None:
        rows, block, self._slot = take_latencies(self._fleet, self._slot)
        self._is_counted = self._slot > 0
        if rows:
            self._send_rows(rows, block)

    def _send_rows(self, rows: list[Row], block: bytes) -> None:
        for row in rows:
            row.update(self._common)
        self._send({"interval": rows, "buckets": len(block) // 12}, block)

    def end_window(self) -> None:
        """Report the remaining backlog at the end of the schedule."""
        self.enter("drain")
        gauges_of(self._fleet, clock_ns())
        self._send({"window_end": self._fleet.totals.owed})

    def watch_drain(self, unsent: Sized) -> float | None:
        """Mark on the live page when nothing is left to send or acknowledge; None ends it."""
        if self.phase != "drain":
            return None
        gauges_of(self._fleet, clock_ns())
        totals = self._fleet.totals
        in_flight = totals.in_flight + totals.unreleased
        totals.finished = int(not in_flight and not unsent and not totals.owed)
        return _DRAIN_S
