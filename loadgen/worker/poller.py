"""The loop of a worker, and calls of the kernels for events of sockets and of the schedule."""

import asyncio
import heapq
import os
import selectors
import socket
from asyncio import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import numpy as np
import uvloop

from loadgen.kernels.attention import take_stalls
from loadgen.kernels.device import LISTED, WAITING
from loadgen.kernels.reactor import CHANNEL, LINGER, TIMER, EntryPoints
from loadgen.kernels.syscalls import EPOLLET, EPOLLIN, arm_timer, make_timer, watch
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import slow_group
from loadgen.worker.channel import Channel
from loadgen.worker.clock import clock_ns
from loadgen.worker.recorder import ProcessAccount

_Arguments = TypeVarTuple("_Arguments")

_LEAST_STAY_NS = 5_000_000
"""Shortest stay in compiled code, since a turn of the loop takes 100 µs; it delays other work."""
_REST_NS = 20_000_000  # longest time for messages in flight to arrive
_ROUNDED_NS = 1_000_000  # delay of libuv's timers, which count whole milliseconds
_READ_S = 0.05  # interval of the reads of slow subscribers
_TICK_NS = 20_000_000
_LONGEST_TICK_NS = 100_000_000  # of workers that share a processor


class Attendance:
    """The detector of stalls and their causes: own work, waiting for a processor, or blocking.

    Compiled code wakes for a tick and stores the scheduler's account of this thread there. The
    difference between two accounts is the cause of a stall between them.
    """

    def __init__(
        self, fleet: PlannedFleet, account: ProcessAccount, send: Callable[..., None]
    ) -> None:
        share = len(fleet.plan.workers) / (os.cpu_count() or 1)
        self._fleet = fleet
        self._send = send
        self._account = account
        attention = fleet.attention
        fleet.run.account = account.schedule
        times = account.times()
        attention.busy_ns, attention.waited_ns = times.cpu_ns, times.wait_ns
        attention.tick_every_ns = int(min(max(_TICK_NS * share, _TICK_NS), _LONGEST_TICK_NS))
        attention.tick_ns = clock_ns() + attention.tick_every_ns
        arm_timer(fleet.run.linger_timer, attention.tick_ns, fleet.clock)

    def end(self) -> None:
        """Stop the tick: later stalls are not part of a run."""
        self._fleet.attention.tick_ns = 0

    def report(self) -> None:
        """Send the stalls since the last call, each with its processor and waiting time."""
        attention = self._fleet.attention
        times = self._account.times()
        spent = times.cpu_ns - attention.busy_ns, times.wait_ns - attention.waited_ns
        attention.busy_ns, attention.waited_ns = times.cpu_ns, times.wait_ns
        stalls = take_stalls(self._fleet)
        total_ns = sum(end_ns - start_ns for start_ns, end_ns in stalls)
        rows = []
        for start_ns, end_ns in stalls:
            most_ns = end_ns - start_ns
            parts = (min(spent_ns * most_ns // total_ns, most_ns) for spent_ns in spent)
            rows.append([start_ns, end_ns, *parts])
        self._send({"stalls": rows})


class WorkerLoop(uvloop.Loop):
    """Event loop whose callback for the sockets runs compiled code; other callbacks wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._due_ns: list[int] = []
        self._is_asked = True

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> Handle:
        self._is_asked = True
        return super().call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> TimerHandle:
        heapq.heappush(self._due_ns, clock_ns() + int(delay * 1e9) + _ROUNDED_NS)
        return super().call_later(delay, self._fire, callback, *args, context=context)

    def _fire(self, callback: Callable[[*_Arguments], object], *args: *_Arguments) -> None:
        self._is_asked = True  # written bytes leave at the end of the turn
        callback(*args)

    def until_due_ns(self) -> int:
        """Return the time until something is due; 0 if the loop needs a turn first."""
        now_ns = clock_ns()
        is_asked, self._is_asked = self._is_asked, False
        while self._due_ns and self._due_ns[0] <= now_ns:
            heapq.heappop(self._due_ns)
            is_asked = True
        return self._due_ns[0] - now_ns if self._due_ns and not is_asked else 0


class Poller:
    """The hot path of one worker; `handle_events()` is called if the kernels queued events."""

    def __init__(
        self,
        fleet: PlannedFleet,
        loop: WorkerLoop,
        kernels: EntryPoints,
        handle_events: Callable[[], None],
    ) -> None:
        self.epoll = selectors.EpollSelector()
        self._fleet = fleet
        self._loop = loop
        self._kernels = kernels
        self._handle_events = handle_events
        self._channel: Channel | None = None
        self._attendance: Attendance | None = None
        self._stalls = fleet.held["attention"]["stalls"]
        columns = (fleet.held["totals"][name] for name in ("events", "rearm", "ready"))
        self._events, self._rearm, self._ready = columns
        self._read_ns = clock_ns()
        slow = slow_group(fleet.plan.groups)
        self._read_rate = slow.subscribes.read_rate if slow and slow.subscribes else 0.0
        self._slow_group = fleet.plan.groups.index(slow) if slow else -1
        self._slow = np.flatnonzero(fleet.group == self._slow_group)
        self._released = False
        run = fleet.run
        run.epoll, run.timer, run.linger_timer = self.epoll.fileno(), make_timer(), make_timer()
        for timer, name in ((run.timer, TIMER), (run.linger_timer, LINGER)):
            watch(run.epoll, timer, EPOLLIN | EPOLLET, name, fleet.words)
        loop.add_reader(run.epoll, self.on_ready)

    def attach(self, channel: Channel, attendance: Attendance) -> None:
        """Leave compiled code for commands on `channel` and to report stalls by `attendance`."""
        watch(self._fleet.run.epoll, channel.descriptor, EPOLLIN, CHANNEL, self._fleet.words)
        self._channel = channel
        self._attendance = attendance

    def on_ready(self) -> None:
        end_ns = clock_ns() + _LEAST_STAY_NS
        stay_ns = self._may_stay_ns()
        # A turn of the loop between two messages over TLS would cost as much as one of them. A turn
        # that the loop already owes comes first.
        while self._serve(stay_ns) and stay_ns and clock_ns() <= end_ns:
            stay_ns = self._may_stay_ns()

    def _may_stay_ns(self) -> int:
        """Return the longest stay in compiled code; 0 if the loop has something to do first."""
        if self._channel is not None and self._channel.is_writing:
            return 0
        stay_ns = self._loop.until_due_ns()
        return max(stay_ns, _LEAST_STAY_NS) if stay_ns else 0

    def _serve(self, stay_ns: int) -> bool:
        """Run compiled code for this time, or until it needs Python; return True if it does."""
        self._kernels.serve(self._fleet, stay_ns)
        if self._stalls[0] and self._attendance is not None:
            self._attendance.report()
        needed = bool(self._events[0])
        self.on_events()
        return needed

    def on_events(self) -> None:
        """Handle the events of a kernel, and send if a publisher no longer has to wait."""
        if self._events[0]:
            self._handle_events()
        if self._rearm[0]:
            self.pump()
        if self._ready[0]:
            self._loop.call_soon(self.on_ready)

    def read_slowly(self) -> float:
        """Let slow subscribers read their share, or all; return the seconds until the next call."""
        fleet, now_ns = self._fleet, clock_ns()
        seconds = (now_ns - self._read_ns) / 1e9
        self._read_ns = now_ns
        share = max(int(self._read_rate * seconds), 1)
        if 0 < fleet.run.end_ns <= now_ns:
            share = len(fleet.buffer)
            self._release()
        fleet.groups[self._slow_group].read_most = share
        flags = fleet.devices["flags"]
        rows = self._slow[flags[self._slow] & LISTED == 0]
        first = int(self._ready[0])
        fleet.ready[first : first + len(rows)] = rows
        self._ready[0] = first + len(rows)
        flags[rows] |= LISTED
        self._serve(0)
        return _READ_S

    def _release(self) -> None:
        """Let the kernel read for slow subscribers as for any other."""
        if self._released:
            return
        self._released = True
        for descriptor in self._fleet.devices["descriptor"][self._slow].tolist():
            if descriptor >= 0:
                with socket.socket(fileno=os.dup(descriptor)) as own:
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, len(self._fleet.buffer))

    def pump(self) -> None:
        self._kernels.pump(self._fleet)
        if self._events[0]:
            self._handle_events()

    async def read_rest(self, limit_s: float) -> None:
        """Read what the sockets hold, for a limited time, so that it does not count as lost."""
        end_ns = clock_ns() + int(limit_s * 1e9)
        is_quiet = False
        while not is_quiet and clock_ns() < end_ns:
            handled, since_ns = self._fleet.totals.publishes, clock_ns()
            needed = self._serve(_REST_NS) or self._ready[0]
            # Compiled code returns earlier for an event, the coordinator or a stall.
            is_quiet = not needed and clock_ns() - since_ns >= _REST_NS
            is_quiet = is_quiet and handled == self._fleet.totals.publishes
            await asyncio.sleep(0)

    def end_schedule(self) -> None:
        self.arm(0)
        self._fleet.totals.heap_size = 0
        # Otherwise an acknowledgement would put a publisher back, which would go on sending.
        self._fleet.devices["flags"] &= ~np.int16(WAITING)

    def arm(self, moment_ns: int) -> None:
        arm_timer(self._fleet.run.timer, moment_ns, self._fleet.clock)
        self._fleet.attention.alarm_ns = moment_ns
