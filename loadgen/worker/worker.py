"""One worker process: its share of the devices, and the coordinator's commands.

In the order of a run: configure, connect, subscribe, start, conclude, stop. Another run can use the
connections: renew, start, conclude.
"""

import asyncio
import ctypes
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import uvloop

from loadgen.kernels.device import CONNECTED
from loadgen.plan.behaviour import Behaviour, PlannedFleet, behaviour_module
from loadgen.plan.groups import slow_group
from loadgen.plan.plan import read_plan
from loadgen.worker import closing
from loadgen.worker.build_fleet import await_schedule, build_fleet, plan_schedule, renew_fleet
from loadgen.worker.channel import LEASE_S, Channel, Command
from loadgen.worker.clock import clock_ns, follow
from loadgen.worker.durable import forget_sessions
from loadgen.worker.frames import Header
from loadgen.worker.lifecycle import Lifecycle
from loadgen.worker.poller import Attendance, WorkerLoop
from loadgen.worker.reporter import Reporter
from loadgen.worker.shared_counts import open_live_page
from loadgen.worker.subscription_marks import share_streams
from loadgen.worker.upkeep import keep_alive, leave_and_return, settle_doubts, withhold
from loadgen.worker.warm import warm as warm

_PR_SET_TIMERSLACK = 29
_READ_REST_S = 1.0
_COMMANDS = (
    *("configure", "connect", "subscribe", "start", "clock", "end", "drop"),
    *("unacknowledged", "missing", "absent", "sent_on", "conclude", "renew", "stop"),
)


class Worker:
    """The parts of one worker and the commands that step it through a run."""

    def __init__(self, loop: WorkerLoop, channel: Channel) -> None:
        self.loop = loop
        self.channel = channel
        self.fleet: PlannedFleet
        self.behaviour: Behaviour
        self.reporter: Reporter
        self.lifecycle: Lifecycle
        self.attendance: Attendance
        self._stopped = False
        self._timers: list[asyncio.TimerHandle] = []
        self.commands: dict[str, Command] = {name: getattr(self, name) for name in _COMMANDS}

    async def configure(self, header: Header) -> Header:
        """Build the fleet and everything that runs it."""
        row, plan = int(header["worker"]), read_plan(header["plan"])
        follow(int(header.get("clock_offset_ns", 0)))
        self.channel.lease_s = float(header.get("lease_s", LEASE_S))
        page = open_live_page(Path(header["live"]), int(header["workers"]), len(plan.groups))
        self.fleet = fleet = build_fleet(plan, plan.workers[row], page.of(row))
        await_schedule(fleet)
        self.behaviour = behaviour = behaviour_module(plan.behaviour).behave(fleet)
        share_streams(fleet, Path(header["live"]), row)
        self.reporter = Reporter(fleet, row, int(header["anchor_ns"]), self.channel.send)
        self.lifecycle = lifecycle = Lifecycle(behaviour, self.loop, self.reporter)
        wait_s = self.reporter.until_next_second()
        self.loop.call_later(wait_s, self._repeat, self._each_second)
        self.attendance = Attendance(fleet, self.reporter.account, self.channel.send)
        lifecycle.poller.attach(self.channel, self.attendance)
        outgoing = lifecycle.outgoing
        self._repeat(keep_alive(fleet, outgoing, lifecycle.lost))
        self._repeat(settle_doubts(fleet))
        if slow_group(fleet.plan.groups) is not None:
            self._repeat(lifecycle.poller.read_slowly)
        if len(fleet.held_ids):
            self._repeat(outgoing.release_stale)
        _keep_time(fleet.plan.workers[row].processors)
        return {"pid": os.getpid(), "devices": len(fleet.devices)}

    def _repeat(self, action: Callable[[], float | None]) -> None:
        """Call `action` now and again after the seconds that it returns, until the worker stops."""
        wait_s = None if self._stopped else action()
        if wait_s is not None:
            self.loop.call_later(wait_s, self._repeat, action)

    def _each_second(self) -> float | None:
        if self.channel.lease_is_over():
            self.channel.close()
            return None
        return self.reporter.each_second()

    async def connect(self, header: Header) -> Header:
        """Connect every device, paced and bounded in flight; answer after the last attempt."""
        lifecycle = self.lifecycle
        first_ns = self.fleet.connects.accepted_ns = clock_ns()
        self.fleet.run.connect_ns = header["start_ns"]
        await lifecycle.connector.connect_all(
            header.get("rate"),
            int(header["in_flight"]),
            float(header["timeout_s"]),
            first_in_flight=int(header["first_in_flight"]),
        )
        self.fleet.run.connect_ns = 0
        ctypes.CDLL(None).malloc_trim(0)  # memory of the first connects
        for reason, count in lifecycle.failures.items():
            self.reporter.event("connect", None, f"{count} devices could not connect: {reason}")
        return {
            "connected": self.fleet.totals.connected,
            "failures": dict(lifecycle.failures),
            "first_ns": first_ns,
            "last_ns": self.fleet.connects.accepted_ns,
        }

    async def subscribe(self, header: Header) -> Header:
        self.reporter.enter("subscribe")
        return await self.lifecycle.subscriptions.subscribe_all(header["timeout_s"])

    async def start(self, header: Header) -> Header:
        """Fix the schedule; it runs by itself until the end of the window."""
        fleet, reporter, lifecycle = self.fleet, self.reporter, self.lifecycle
        reporter.enter("warmup")
        fleet.run.measure_ns = header["measure_ns"]
        fleet.run.end_ns = header["end_ns"]
        plan_schedule(fleet, int(header["start_ns"]), header["rates"])
        times = (int(header["start_ns"]), int(header["end_ns"]))
        random = lifecycle.connector.random
        self._repeat(leave_and_return(fleet, times, random, lifecycle.leave))
        if rate := fleet.plan.scenario.resubscribe:
            self._repeat(lifecycle.subscriptions.turns(rate))
        self._at(int(header["measure_ns"]), lambda: reporter.enter("measure"))
        self._at(int(header["end_ns"]), self._end_window)
        lifecycle.poller.arm(int(header["start_ns"]))
        return {}

    def _end_window(self) -> None:
        self.reporter.end_window()
        pending = self.lifecycle.outgoing.pending
        self._repeat(lambda: self.reporter.watch_drain(pending))

    def _at(self, moment_ns: int, action: Callable[[], None]) -> None:
        timer = self.loop.call_later(max(moment_ns - clock_ns(), 0) / 1e9, action)
        self._timers.append(timer)

    async def clock(self, header: Header) -> Header:
        """Follow the run's clock by the offset that the agent of this host has measured."""
        follow(int(header["offset_ns"]), self.fleet)
        return {}

    async def end(self, header: Header) -> Header:
        """End the schedule at a moment, or now if that is over, unless it ends before."""
        at_ns = max(int(header["at_ns"]), clock_ns())
        if at_ns < self.fleet.run.end_ns:
            for timer in self._timers:
                timer.cancel()
            self.fleet.run.end_ns = at_ns
            self._at(at_ns, self._end_window)
        return {"at_ns": at_ns}

    async def drop(self, header: Header) -> Header:
        """Cut off a device, as if it were killed; answer its number of unacknowledged messages."""
        fleet = self.fleet
        wanted = (fleet.group == int(header["group"])) & (fleet.device == int(header["device"]))
        rows = np.flatnonzero(wanted & (fleet.devices["state"] == CONNECTED)).tolist()
        held = sum(withhold(fleet, row) for row in rows)
        for connection in rows:
            self.lifecycle.lost(connection, "cut off on request")
        return {"dropped": len(rows), "held": held}

    async def unacknowledged(self, header: Header) -> Header:
        await self.lifecycle.poller.read_rest(_READ_REST_S)
        return closing.unacknowledged(self.fleet)

    async def missing(self, header: Header) -> Header:
        """Return the number of missing deliveries of these messages, and all other missing ones."""
        await self.lifecycle.poller.read_rest(_READ_REST_S)
        messages = header["messages"]
        return {
            "missing": closing.missing_of(self.fleet, messages),
            "named": closing.lost_ranges(self.fleet, header.get("sent", ()), messages),
        }

    async def absent(self, header: Header) -> Header:
        unserved = self.lifecycle.subscriptions.unserved
        return {"streams": closing.absent_streams(self.fleet, unserved)}

    async def sent_on(self, header: Header) -> Header:
        return closing.sent_on(self.fleet, header["streams"])

    async def conclude(self, header: Header) -> Header:
        """Account for the run and send the remaining rows; counting ends here."""
        fleet, lifecycle = self.fleet, self.lifecycle
        streams, subscriptions = lifecycle.streams, lifecycle.subscriptions
        # Messages of the window that each device took, by group of shared subscribers.
        queues = {
            group.name: fleet.devices["taken"][fleet.group == index].tolist()
            for index, group in enumerate(fleet.plan.groups)
            if group.subscribes is not None and group.subscribes.shared
        }
        overdue = lifecycle.connector.overdue()
        unserved = subscriptions.failures_again()
        lifecycle.connector.stop()
        lifecycle.poller.end_schedule()
        await lifecycle.poller.read_rest(_READ_REST_S)
        # No message must be handled between the last rows and the statement of their sums.
        self.reporter.enter("stop")
        statement = closing.closing_statement(fleet, lifecycle.refusal, lifecycle.violation)
        statement["scheduled"] = self.behaviour.scheduled()
        statement["discarded"] = self.behaviour.discarded()
        devices = closing.device_columns(fleet) if fleet.plan.scenario.per_device else None
        return {
            "final": self.behaviour.final()
            | {
                "closing": statement,
                "forgotten_gaps": fleet.totals.forgotten_gaps,
                "overdue": overdue,
                "subscribe_failures": unserved,
                "resubscribed": subscriptions.answered,
                "spread": queues,
                "devices": devices,
                "tls": None if streams is None else streams.handshakes.summary(),
            }
        }

    async def renew(self, header: Header) -> Header:
        """Prepare another run on the same connections; the plans are equal `without_rates`."""
        # A run that was cut ended before its schedule did.
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.reporter.renew(int(header["anchor_ns"]))
        self.lifecycle.refusal = self.lifecycle.violation = ""
        renew_fleet(self.fleet, read_plan(header["plan"]))
        return {"connected": self.fleet.totals.connected}

    async def stop(self, header: Header) -> Header:
        """Disconnect in order, remove durable sessions from the broker."""
        fleet = self.fleet
        self._stopped = True
        self.attendance.end()
        for connection in np.flatnonzero(fleet.devices["state"] == CONNECTED).tolist():
            self.lifecycle.disconnect(connection, "stopped")
            if connection % 500 == 0:
                await asyncio.sleep(0)
        remaining = await forget_sessions(fleet, self.lifecycle.streams)
        if remaining:
            detail = f"{remaining} durable sessions may remain at the broker"
            self.reporter.event("cleanup", None, detail)
        return {}


def _keep_time(processors: tuple[int, ...]) -> None:
    """Reduce delays of this process: separate processors, no timer slack, no garbage collector."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    if processors:
        os.sched_setaffinity(0, processors)
    gc.collect()
    gc.freeze()
    gc.disable()


def run_worker(sock: socket.socket) -> None:
    """Run a worker process: execute the commands on `sock` until it closes."""

    loop = WorkerLoop()

    async def obey() -> None:
        channel = Channel(loop)
        await channel.obey(sock, Worker(loop, channel).commands)

    uvloop.run(obey(), loop_factory=lambda: loop)
