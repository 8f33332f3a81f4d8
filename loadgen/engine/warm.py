"""Compiles every kernel of the hot path, or loads it from the cache, before workers are forked."""

import selectors
import time

import numpy as np

from loadgen.engine.context import address_table, pump_fleet, serve_fleet
from loadgen.engine.fleet import (
    Fleet,
    build_fleet,
    plan_schedule,
    poll_arguments,
    pump_arguments,
)
from loadgen.engine.reactor import TIMER, connect_some, ping_idle
from loadgen.engine.recorder import take_intervals
from loadgen.engine.syscalls import EPOLLIN, arm_timer, close_descriptor, make_timer, watch
from loadgen.mqtt.in_flight import forget_received, redelivery_order, reset, set_capacity
from loadgen.workload import traffic
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

__all__ = ["warm_kernels", "warm_supply"]


def _tiny_fleet() -> Fleet:
    publishes = Publishes("warm", 1, 0, 1.0, 1, qos=1, window=4)
    groups = (
        DeviceGroup("publishers", 1, publishes=publishes),
        DeviceGroup("subscribers", 1, subscribes=Subscribes("publishers", qos=2)),
    )
    worker = WorkerPlan(0, (Share(0, 0, 1, 1), Share(1, 0, 1, 1)))
    plan = RunPlan(1, 1, 4, groups, (Target("127.0.0.1", 1),), (worker,))
    return build_fleet(plan, worker, np.zeros(traffic.TOTALS, np.int64))


def warm_kernels() -> None:
    """Call each kernel once with the types that a run uses; seconds when nothing is cached."""
    fleet = _tiny_fleet()
    epoll = selectors.EpollSelector()
    timer = make_timer()
    now_ns = time.monotonic_ns()
    try:
        fleet.run[traffic.END_NS] = now_ns + 3 * 10**12
        plan_schedule(fleet, now_ns + 10**12)
        pumping = address_table(pump_arguments(fleet, timer, 0))
        polling = address_table(poll_arguments(fleet, epoll.fileno()))
        pump_fleet(pumping, None)
        serve_fleet(0, -1, polling, pumping, fleet.clock, fleet.totals, None)
        watch(epoll.fileno(), timer, EPOLLIN, TIMER, fleet.words)
        connect_some(
            epoll.fileno(),
            np.zeros(0, np.int64),
            fleet.source,
            fleet.addresses,
            fleet.address_bytes,
            fleet.clock,
            fleet.words,
            fleet.connections,
            fleet.totals,
            fleet.events,
        )
        ping_idle(
            now_ns,
            np.zeros(2, np.int64),
            np.zeros(2, np.uint8),
            fleet.connections,
            np.zeros(2, np.int64),
        )
        arm_timer(timer, 0, fleet.clock)
        traffic.record(fleet.histograms, fleet.stats, 0, 1)
        traffic.push_event(fleet.totals, fleet.events, traffic.BROKEN, 0, 0x95, now_ns)
        fleet.totals[traffic.EVENTS] = 0
        traffic.requeue(
            0, 0, fleet.connections, fleet.run, fleet.totals, fleet.schedule, fleet.heap
        )
        traffic.reschedule(
            fleet.schedule,
            with_rate(fleet.program, now_ns + 2 * 10**12, 2.0),
            fleet.publisher_connection,
            fleet.connections,
            fleet.run,
            fleet.totals,
            fleet.heap,
        )
        traffic.receive(
            fleet.buffer,
            0,
            0,
            now_ns,
            0,
            fleet.connections,
            fleet.groups,
            fleet.run,
            fleet.totals,
            fleet.pairs,
            fleet.holes,
            fleet.hole_state,
            fleet.counters,
            fleet.histograms,
            fleet.stats,
            fleet.senders,
            fleet.window,
            fleet.received_ids,
            fleet.held_ids,
            fleet.schedule,
            fleet.heap,
            fleet.events,
            fleet.control,
            fleet.topics,
            fleet.topic_ends,
            fleet.out,
            0,
        )
        set_capacity(fleet.senders, fleet.window, 0, 4)
        redelivery_order(fleet.senders, fleet.window, 0, np.zeros(4, np.int64))
        reset(fleet.senders, fleet.window, 0)
        forget_received(fleet.received_ids, 0)
        traffic.release_held(1, fleet.connections, fleet.held_ids, fleet.out, 0)
        traffic.redeliver(
            0,
            0,
            True,
            np.zeros(4, np.int64),
            0,
            fleet.connections,
            fleet.groups,
            fleet.run,
            fleet.totals,
            fleet.schedule,
            fleet.senders,
            fleet.window,
            fleet.topics,
            fleet.topic_ends,
            fleet.body,
            fleet.body_crc,
            fleet.template,
            fleet.out,
        )
        take_intervals(fleet, now_ns)
    finally:
        epoll.close()
        close_descriptor(timer)


def warm_supply() -> None:
    """Call each kernel of the supply chain once, after `warm_kernels`."""
    from loadgen.engine.supply import chain_table
    from loadgen.engine.supply_fleet import equip
    from loadgen.specjms.options import Choices, model_of
    from loadgen.specjms.plan import SupplyPlan, groups_of_model

    model = model_of(Choices(base=1))
    groups = groups_of_model(model)
    shares = tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups))
    worker = WorkerPlan(0, shares)
    plan = SupplyPlan(
        run_tag=1,
        seed=1,
        version=5,
        groups=groups,
        targets=(Target("127.0.0.1", 1),),
        workers=(worker,),
        model=model,
    )
    fleet = build_fleet(plan, worker, np.zeros(traffic.TOTALS, np.int64))
    chains = equip(fleet, plan)
    epoll = selectors.EpollSelector()
    timer = make_timer()
    now_ns = time.monotonic_ns()
    try:
        fleet.run[traffic.END_NS] = now_ns
        plan_schedule(fleet, now_ns + 10**12)
        chain = chain_table(chains, fleet.body, fleet.body_crc)
        pumping = address_table(pump_arguments(fleet, timer, 0))
        polling = address_table(poll_arguments(fleet, epoll.fileno()))
        pump_fleet(pumping, chain)
        serve_fleet(0, -1, polling, pumping, fleet.clock, fleet.totals, chain)
    finally:
        epoll.close()
        close_descriptor(timer)
