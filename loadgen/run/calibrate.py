"""The capacity of the generator on this host, measured against brokers that do very little.

It consists of a few short plays with real workers: connecting and sending to the discarding sink,
receiving and the latency floor through the reflector. Rates are those of one worker with a whole
core, computed from the processor time of each message: on a host that also runs the sink or the
reflector, no observed rate is the generator's alone.

The result is stored in the user's cache directory and goes into the environment record of later
runs on the same host, kernel, processor and version.
"""

import os
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.reflector import run_reflector
from loadgen.brokers.sink import run_sink
from loadgen.errors import CannotRunError
from loadgen.metrics.reducer import summarize
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, Target, WorkerPlan
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.plan.scenario import Scenario
from loadgen.run.calibration import SCHEMA
from loadgen.run.interrupt import Interrupt
from loadgen.run.play import Played, play
from loadgen.run.progress import Progress, Snapshot, silent

NS: Final = 1_000_000_000
PERCENTILES: Final = ("p50", "p90", "p99", "max")
SINGLE_RATE: Final = 20_000.0
"""Messages a second over so many connections that each leaves, or arrives, in a separate call."""
SINGLE_DEVICES: Final = 10_000
SINGLE_RECEIVERS: Final = 1_000
BATCHED_RATE: Final = 200_000.0
BATCHED_RECEIVE_RATE: Final = 100_000.0
BATCHED_PAIRS: Final = 10
BATCH_TICK_US: Final = 1_000
LATENCY_RATE: Final = 10_000.0
SPARE_DESCRIPTORS: Final = 500

Role = tuple[int, str]
"""A worker and the group that it plays."""
SENDERS: Final[Role] = (0, "senders")
RECEIVERS: Final[Role] = (1, "receivers")


PHASES: Final = PhasePlan(warmup_s=0.5, duration_s=3.0, drain_s=3.0)
"""Phases of each play; a shorter calibration is less precise."""


async def calibrate(
    key: Mapping[str, object],
    descriptors: int,
    *,
    phases: PhasePlan = PHASES,
    progress: Progress = silent,
    interrupt: Interrupt | None = None,
) -> dict[str, Any]:
    """Play the sequence; the result as JSON values, under the identity `key` of the host.

    `descriptors` is what one process may open. Raises CannotRunError where a play came to
    nothing and RunInterruptedError when `interrupt` came.
    """
    began_s = time.monotonic()
    stop = Interrupt() if interrupt is None else interrupt
    load = os.getloadavg()[0]
    devices = min(SINGLE_DEVICES, descriptors - SPARE_DESCRIPTORS)
    if devices < 1:
        raise CannotRunError(
            f"calibration needs more than {SPARE_DESCRIPTORS} open files; raise ulimit -n"
        )

    async def play_on(
        endpoint: Endpoint, what: str, groups: tuple[DeviceGroup, ...], tick_us: int = 0
    ) -> Played:
        progress(Snapshot(f"calibrate: {what}"))
        return await play(_plan(groups, endpoint, tick_us), phases, interrupt=stop)

    async with run_sink() as sink:
        (endpoint,) = sink.endpoints
        many = (_senders(devices, SINGLE_RATE),)
        single = await play_on(endpoint, "connects, single sends", many)
        few = (_senders(BATCHED_PAIRS, BATCHED_RATE),)
        batched = await play_on(endpoint, "batched sends", few, BATCH_TICK_US)
    async with run_reflector() as reflector:
        (endpoint,) = reflector.endpoints
        spread = _exchange(1, SINGLE_RECEIVERS, SINGLE_RATE / SINGLE_RECEIVERS)
        received_single = await play_on(endpoint, "single receives", spread)
        pairs = _exchange(BATCHED_PAIRS, BATCHED_PAIRS, BATCHED_RECEIVE_RATE)
        received_batched = await play_on(endpoint, "batched receives", pairs, BATCH_TICK_US)
        timed = await play_on(endpoint, "latency", _exchange(1, 1, LATENCY_RATE))
    return {
        "schema": SCHEMA,
        "key": dict(key),
        "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round(time.monotonic() - began_s, 1),
        "load_average_before": round(load, 2),
        "connect": _connects(single, devices),
        "send": {
            "single": _rate(single, SENDERS, "sent"),
            "batched": _rate(batched, SENDERS, "sent"),
        },
        "receive": {
            "single": _rate(received_single, RECEIVERS, "received"),
            "batched": _rate(received_batched, RECEIVERS, "received"),
        },
        "latency": {
            "rate": LATENCY_RATE,
            "transit_us": _latency_us(timed, RECEIVERS, "transit"),
            "end_to_end_us": _latency_us(timed, RECEIVERS, "end_to_end"),
        },
        "send_delay": {
            "single_us": _latency_us(single, SENDERS, "send_delay"),
            "latency_us": _latency_us(timed, SENDERS, "send_delay"),
        },
    }


def _connects(played: Played, devices: int) -> dict[str, Any]:
    result = played.state.connected
    if result is None or result.failures or result.done != devices or result.seconds <= 0:
        failed = dict(result.failures) if result else {}
        raise CannotRunError(f"calibration could not connect {devices} devices: {failed}")
    cpu_us = played.cpu_ns(0, "connect") / devices / 1000
    return {
        "devices": devices,
        "per_s": round(devices / result.seconds),
        "cpu_us": round(cpu_us, 2),
    }


def _rate(played: Played, who: Role, counter: str) -> dict[str, Any]:
    """Return the rate and processor time of a message, and the rate that fills a core."""
    worker, group = who
    start_ns, end_ns = played.state.windows.get("measure", (0, 0))
    messages, cpu_ns = played.total(worker, group, counter), played.cpu_ns(worker, "measure")
    if not messages or not cpu_ns:
        raise CannotRunError(f"calibration saw no message of {group}; is this host overloaded?")
    return {
        "rate": round(messages * NS / (end_ns - start_ns)),
        "cpu_us": round(cpu_ns / messages / 1000, 3),
        "per_s": round(messages / cpu_ns * NS),
    }


def _latency_us(played: Played, who: Role, series: str) -> dict[str, float]:
    worker, group = who
    summary = summarize(played.row(worker, group, "measure", series))
    if not summary.count:
        raise CannotRunError(f"calibration saw no message of {group}; is this host overloaded?")
    values = {name: getattr(summary, name) for name in PERCENTILES}
    return {name: round(float(value), 3) for name, value in values.items() if value is not None}


# What is played -------------------------------------------------------------------------------


def _senders(count: int, rate: float, deliveries: int = 0) -> DeviceGroup:
    _, name = SENDERS
    return DeviceGroup(
        name, count, publishes=Publishes(f"calibrate/{name}", count, 0, rate, deliveries)
    )


def _exchange(senders: int, receivers: int, rate: float) -> tuple[DeviceGroup, ...]:
    """Return groups of which `senders` publish `rate` messages a second, each to its share of
    receivers."""
    return (
        _senders(senders, rate, receivers // senders),
        DeviceGroup(RECEIVERS[1], receivers, subscribes=Subscribes(SENDERS[1])),
    )


def _plan(groups: tuple[DeviceGroup, ...], endpoint: Endpoint, tick_us: int) -> Plan:
    """Return a plan with a worker for each group, against one broker."""
    return Plan(
        run_tag=secrets.randbits(32),
        scenario=Scenario(case="calibrate"),
        groups=groups,
        targets=(Target(endpoint.host, endpoint.port),),
        workers=tuple(
            WorkerPlan(index, (Share(index, 0, group.count, 1),))
            for index, group in enumerate(groups)
        ),
        send_tick_us=tick_us,
        max_packet_bytes=1 << 16,
    )
