"""Compiles every kernel of the hot path, or loads it from the cache, before workers are forked."""

import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from loadgen.engine.fleet import build_fleet, plan_schedule
from loadgen.engine.reactor import (
    MESSAGING_ENTRY_POINTS,
    TIMER,
    EntryPoints,
    connect_some,
    keep_partial,
    ping_idle,
)
from loadgen.engine.recorder import take_intervals
from loadgen.engine.supply_chain import SUPPLY_ENTRY_POINTS, equip
from loadgen.engine.syscalls import EPOLLIN, arm_timer, close_descriptor, make_timer, watch
from loadgen.mqtt.in_flight import forget_received, set_capacity
from loadgen.specjms.options import Choices, model_of
from loadgen.specjms.plan import SupplyPlan, groups_of_model
from loadgen.workload import traffic
from loadgen.workload.attention import attend_loop
from loadgen.workload.device import CONNECT, LOSE, OPEN, transition
from loadgen.workload.fleet import Counts, Fleet
from loadgen.workload.groups import (
    DeviceGroup,
    Publishes,
    RunPlan,
    Share,
    Subscribes,
    Target,
    WorkerPlan,
)
from loadgen.workload.pacer import with_rate

_LATER_NS = 10**12
_TARGETS = (Target("127.0.0.1", 1),)


def _tiny_fleet() -> Fleet:
    publishes = Publishes("warm", 1, 0, 1.0, 1, qos=1, window=4)
    groups = (
        DeviceGroup("publishers", 1, publishes=publishes),
        DeviceGroup("subscribers", 1, subscribes=Subscribes("publishers", qos=2)),
    )
    return build_fleet(RunPlan(1, 1, 4, groups, _TARGETS, ()), _all(groups))


def _tiny_supply_fleet() -> Fleet:
    model = model_of(Choices(base=1))
    groups = groups_of_model(model)
    plan = SupplyPlan(1, 1, 5, groups, _TARGETS, (), model=model)
    fleet = build_fleet(plan, _all(groups))
    equip(fleet, plan)
    return fleet


def _all(groups: tuple[DeviceGroup, ...]) -> WorkerPlan:
    return WorkerPlan(0, tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups)))


@contextmanager
def _ready(fleet: Fleet) -> Iterator[None]:
    """Give a fleet its descriptors and a schedule that is far away."""
    epoll = selectors.EpollSelector()
    run = fleet.run
    run.epoll, run.timer = epoll.fileno(), make_timer()
    now_ns = time.monotonic_ns()
    run.end_ns = now_ns + 3 * _LATER_NS
    plan_schedule(fleet, now_ns + _LATER_NS)
    try:
        yield
    finally:
        close_descriptor(run.timer)
        epoll.close()


def _warm(fleet: Fleet, kernels: EntryPoints) -> None:
    kernels.pump(fleet)
    kernels.serve(fleet, 0)
    kernels.receive(fleet, 0, fleet.buffer, 0, 1)


def warm(behaviour: str = "messaging") -> None:
    """Compile or load the kernels that a behaviour needs, for workers forked from here to share.

    Calls each once with the types that a run uses; takes minutes when nothing is cached.
    """
    fleet = _tiny_fleet()
    with _ready(fleet):
        _warm(fleet, MESSAGING_ENTRY_POINTS)
        _warm_what_workers_call(fleet)
    if behaviour == "supply_chain":
        fleet = _tiny_supply_fleet()
        with _ready(fleet):
            _warm(fleet, SUPPLY_ENTRY_POINTS)


def _warm_what_workers_call(fleet: Fleet) -> None:
    now_ns = time.monotonic_ns()
    four, run = np.zeros(4, np.int64), fleet.run
    watch(run.epoll, run.timer, EPOLLIN, TIMER, fleet.words)
    arm_timer(run.timer, 0, fleet.clock)
    connect_some(fleet, np.zeros(0, np.int64))
    ping_idle(fleet, now_ns, four, np.zeros(2, np.uint8), four)
    keep_partial(fleet, 0, fleet.buffer, 0, 0, now_ns)
    for event in (CONNECT, OPEN, LOSE):
        transition(fleet, 0, event)
    traffic.record(fleet, 0, 1)
    attend_loop(fleet, now_ns)
    traffic.requeue(fleet, 0)
    fleet.program = with_rate(fleet.program, now_ns + 2 * _LATER_NS, 2.0)
    traffic.reschedule(fleet)
    set_capacity(fleet.senders, fleet.window, 0, 4)
    traffic.give_up_all(fleet, 0)
    traffic.phase_of_arrival(fleet.run, now_ns)
    forget_received(fleet.received_ids, 0)
    traffic.release_held(fleet, 1, 0)
    traffic.redeliver(fleet, 0, True, four, 0)
    take_intervals(fleet, Counts.grid(*fleet.counters.shape), now_ns)
