"""Kernels of the hot path compiled, or loaded from the cache, before workers are forked."""

import ctypes
import gc
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn

import numpy as np

from loadgen.kernels import traffic
from loadgen.kernels.compiled.cache import version_directory
from loadgen.kernels.device import CONNECT, LOSE, OPEN, transition
from loadgen.kernels.fleet import Counts, Fleet
from loadgen.kernels.in_flight import forget_received, set_capacity
from loadgen.kernels.pacer import with_rate
from loadgen.kernels.reactor import (
    MESSAGING_ENTRY_POINTS,
    TIMER,
    EntryPoints,
    connect_some,
    keep_partial,
    ping_idle,
)
from loadgen.kernels.syscalls import EPOLLIN, arm_timer, close_descriptor, make_timer, watch
from loadgen.plan.groups import (
    DeviceGroup,
    Publishes,
    RunPlan,
    Share,
    Subscribes,
    Target,
    WorkerPlan,
)
from loadgen.worker.build_fleet import build_fleet, plan_schedule
from loadgen.worker.closing import count_missing
from loadgen.worker.recorder import take_intervals

_LATER_NS = 10**12
_TARGETS = (Target("127.0.0.1", 1),)


def _tiny_fleet() -> Fleet:
    publishes = Publishes("warm", 1, 0, 1.0, 1, qos=1, window=4)
    groups = (
        DeviceGroup("publishers", 1, publishes=publishes),
        DeviceGroup("subscribers", 1, subscribes=Subscribes("publishers", qos=2)),
    )
    return build_fleet(RunPlan(1, 1, 4, groups, _TARGETS, ()), _all(groups))


def _tiny_supply_chain() -> tuple[Fleet, EntryPoints]:
    from loadgen.specjms.build_model import Choices, model_of
    from loadgen.specjms.chain_plan import SupplyPlan, groups_of_model
    from loadgen.worker.supply_chain import SUPPLY_ENTRY_POINTS, equip

    model = model_of(Choices(base=1))
    groups = groups_of_model(model)
    plan = SupplyPlan(1, 1, 5, groups, _TARGETS, (), model=model)
    fleet = build_fleet(plan, _all(groups))
    equip(fleet, plan)
    return fleet, SUPPLY_ENTRY_POINTS


def _all(groups: tuple[DeviceGroup, ...]) -> WorkerPlan:
    return WorkerPlan(0, tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups)))


@contextmanager
def _ready(fleet: Fleet) -> Iterator[Fleet]:
    """Give a fleet its epoll set and an end that is far away; it has no timer."""
    with selectors.EpollSelector() as epoll:
        fleet.run.epoll = epoll.fileno()
        fleet.run.end_ns = time.monotonic_ns() + 3 * _LATER_NS
        yield fleet


BEHAVIOURS = ("messaging", "supply_chain")
Step = Callable[[], object]
Report = Callable[[int, int], None]

_PR_SET_PDEATHSIG = 1


def warm(behaviour: str = "messaging", report: Report = lambda *_: None) -> None:
    """Compile or load the kernels that a behaviour needs, for workers forked from here to share.

    Each is called once with the types that a run uses. In the first run of a version, processes
    compile on all processors, and `report` is called with the number of finished calls and of all.
    """
    with ExitStack() as stack:
        fleet = stack.enter_context(_ready(_tiny_fleet()))
        steps = [*_entry_points(fleet, MESSAGING_ENTRY_POINTS), *_called_by_workers(fleet)]
        if behaviour == "supply_chain":
            own, kernels = _tiny_supply_chain()
            entry_points = _entry_points(stack.enter_context(_ready(own)), kernels)
            steps[: len(entry_points)] = entry_points
        marker = version_directory() / behaviour
        if not marker.exists():
            _compile(steps, report)
        for step in steps:
            step()
        with suppress(OSError):
            marker.touch()


def _entry_points(fleet: Fleet, kernels: EntryPoints) -> Sequence[Step]:
    return (
        lambda: kernels.pump(fleet),
        lambda: kernels.serve(fleet, 0),
        lambda: kernels.receive(fleet, 0, 0, 1),
        lambda: kernels.redeliver(fleet, _sender_of(fleet), True, np.zeros(4, np.int64), 0, 1),
    )


def _sender_of(fleet: Fleet) -> int:
    """A device that sends at QoS 1 or 2."""
    return int(np.flatnonzero(fleet.devices["sender"] >= 0)[0])


def _called_by_workers(fleet: Fleet) -> Sequence[Step]:
    now_ns = time.monotonic_ns()
    four, run = np.zeros(4, np.int64), fleet.run

    def take_rows() -> None:
        traffic.record(fleet, 0, 1)
        take_intervals(fleet, Counts.grid(*fleet.counters.shape), now_ns)

    def change_rate() -> None:
        fleet.program = with_rate(fleet.program, now_ns + 2 * _LATER_NS, 2.0)
        traffic.reschedule(fleet)

    return (
        lambda: connect_some(fleet, np.zeros(0, np.int64)),
        lambda: plan_schedule(fleet, now_ns + _LATER_NS),
        lambda: ping_idle(fleet, now_ns, four, np.zeros(2, np.uint8), four),
        lambda: keep_partial(fleet, 0, fleet.buffer, 0, 0, now_ns),
        take_rows,
        change_rate,
        lambda: traffic.requeue(fleet, 0),
        lambda: traffic.release_held(fleet, 1, 0),
        lambda: watch(run.epoll, run.timer, EPOLLIN, TIMER, fleet.words),
        lambda: arm_timer(run.timer, 0, fleet.clock),
        lambda: close_descriptor(make_timer()),
        lambda: [transition(fleet, 0, event) for event in (CONNECT, OPEN, LOSE)],
        lambda: set_capacity(fleet.senders, fleet.window, 0, 4),
        lambda: traffic.give_up_all(fleet, 0),
        lambda: count_missing(fleet, four[:0], four[:0]),
        lambda: traffic.phase_of_arrival(fleet.run, now_ns),
        lambda: forget_received(fleet.received_ids, 0),
    )


# --- the first run -----------------------------------------------------------------------------


def _compile(steps: Sequence[Step], report: Report) -> None:
    """Make the calls in other processes, which store the code that they compile.

    Each takes the next call of a queue. There is one process more than there are processors, as
    some wait for a kernel that another one compiles.
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
    """Compile everything, and say so on stderr."""
    for behaviour in BEHAVIOURS:
        name = behaviour.replace("_", " ")

        def report(count: int, total: int, name: str = name) -> None:
            line = f"compiling for this processor, {name}: {count} of {total}"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)

        warm(behaviour, report)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
