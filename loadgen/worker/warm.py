"""Kernels of the hot path compiled, or loaded from the cache, before workers are forked."""

import ctypes
import gc
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np

from loadgen.kernels import counting, reactor, receiver, sender
from loadgen.kernels.compiled.cache import version_directory
from loadgen.kernels.device import CONNECT, LOSE, OPEN, transition
from loadgen.kernels.fleet import CounterRecord
from loadgen.kernels.in_flight import set_capacity
from loadgen.kernels.pacer import with_rate
from loadgen.kernels.readout import count_missing
from loadgen.kernels.repeats import doubt_pairs, note_withheld, settle
from loadgen.kernels.syscalls import EPOLLIN, arm_timer, make_timer, watch
from loadgen.plan.behaviour import BehaviourModule, PlannedFleet, behaviour_module
from loadgen.plan.groups import MESSAGING
from loadgen.worker import messaging
from loadgen.worker.build_fleet import build_fleet, plan_schedule
from loadgen.worker.recorder import gauges_of, take_counters, take_latencies

_LATER_NS = 10**12


Step = Callable[[], object]
Report = Callable[[int, int], None]

_PR_SET_PDEATHSIG = 1


def warm(behaviour: str = MESSAGING, report: Report = lambda *_: None) -> None:
    """Compile or load the kernels that a behaviour needs, for workers forked from here to share.

    In the first run of a version, processes compile on all processors, and `report` is called with
    the number of finished calls and of all.
    """
    fleet, _ = _tiny_fleet(messaging)
    played, kernels = _tiny_fleet(behaviour_module(behaviour))
    sending = int(np.flatnonzero(played.devices["sender"] >= 0)[0])
    with selectors.EpollSelector() as epoll:
        for one in (fleet, played):
            one.run.epoll = epoll.fileno()
            one.run.end_ns = time.monotonic_ns() + 3 * _LATER_NS
        steps: Sequence[Step] = (
            lambda: kernels.pump(played),
            lambda: kernels.serve(played, 0),
            lambda: kernels.receive(played, 0, 0, 1),
            lambda: kernels.redeliver(played, sending, True, np.zeros(4, np.int64), 0, 1),
            *_called_by_workers(fleet),
        )
        marker = version_directory() / behaviour
        if not marker.exists():
            _compile(steps, report)
        for step in steps:
            step()
        with suppress(OSError):
            marker.touch()


def _tiny_fleet(module: BehaviourModule) -> tuple[PlannedFleet, reactor.EntryPoints]:
    plan = module.tiny_plan()
    fleet = build_fleet(plan, plan.workers[0])
    return fleet, reactor.entry_points(module.behave(fleet).handlers)


def _called_by_workers(fleet: PlannedFleet) -> Sequence[Step]:
    now_ns = time.monotonic_ns()
    four, run = np.zeros(4, np.int64), fleet.run

    def take_rows() -> None:
        counting.record(fleet, 0, 1)
        reported = CounterRecord.grid(*fleet.counters.shape)
        take_counters(fleet, reported, gauges_of(fleet, now_ns), now_ns)
        take_latencies(fleet, 0)

    def change_rate() -> None:
        fleet.program = with_rate(fleet.program, now_ns + 2 * _LATER_NS, 2.0)
        sender.reschedule(fleet)

    return (
        lambda: reactor.connect_waiting(fleet, 0),
        lambda: plan_schedule(fleet, now_ns + _LATER_NS),
        lambda: reactor.ping_idle(fleet, now_ns, np.zeros(2, np.uint8), four),
        lambda: reactor.keep_partial(fleet, 0, 0, 0, now_ns),
        take_rows,
        change_rate,
        lambda: sender.requeue(fleet, 0),
        lambda: receiver.release_held(fleet, 1, 0),
        lambda: watch(run.epoll, run.timer, EPOLLIN, reactor.TIMER, fleet.words),
        lambda: arm_timer(run.timer, 0, fleet.clock),
        lambda: os.close(make_timer()),
        lambda: [transition(fleet, 0, event) for event in (CONNECT, OPEN, LOSE)],
        lambda: set_capacity(fleet, 0, 4),
        lambda: sender.give_up_all(fleet, 0),
        lambda: count_missing(fleet, four[:0], four[:0]),
        lambda: counting.phase_of_arrival(fleet.run, now_ns),
        lambda: settle(fleet, four[:0], four[:0]),
        lambda: doubt_pairs(fleet, 0, 0),
        lambda: note_withheld(fleet, 0, 0),
    )


def _compile(steps: Sequence[Step], report: Report) -> None:
    """Make the calls in other processes, which store the code that they compile.

    There is one more than there are processors, as some wait for a kernel of another one.
    """
    if not os.access(version_directory(), os.W_OK):
        return
    to_do, to_do_end = os.pipe()
    done, done_end = os.pipe()
    os.write(to_do_end, bytes(range(len(steps))))
    os.close(to_do_end)
    report(0, len(steps))
    children = []
    for _ in range(len(os.sched_getaffinity(0)) + 1):
        child = os.fork()
        if child == 0:
            _make_calls(steps, to_do, done_end)
        children.append(child)
    os.close(done_end)
    os.close(to_do)
    count = 0
    while os.read(done, 1):
        count += 1
        report(count, len(steps))
    os.close(done)
    for child in children:
        os.waitpid(child, 0)


def _make_calls(steps: Sequence[Step], to_do: int, done: int) -> NoReturn:
    """Make calls until none is left; an error occurs again, and is reported, in the parent."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        gc.disable()  # a tenth of the time; this process ends soon
        while taken := os.read(to_do, 1):
            steps[taken[0]]()
            os.write(done, b".")
    finally:
        os._exit(0)


def main() -> None:
    from loadgen.cases.registry import BEHAVIOURS

    for behaviour in BEHAVIOURS:
        name = behaviour.split(".")[1]

        def report(count: int, total: int, name: str = name) -> None:
            line = f"compiling for this processor, {name}: {count} of {total}"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)

        warm(behaviour, report)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
