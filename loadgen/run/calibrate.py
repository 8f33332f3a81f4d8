"""The capacity of the generator on this host, measured against brokers that do very little.

Real workers connect and send to the sink, and receive from the reflector. Rates are those of one
worker with a whole core, computed from the processor time of a message: the host also runs the sink
or reflector, so that no observed rate is the generator's alone.
"""

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.reflector import run_reflector, run_sink
from loadgen.errors import CannotRunError
from loadgen.metrics.reducer import reduce_table, summarize
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, Target, WorkerPlan
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.plan.scenario import Scenario
from loadgen.run.environment import CALIBRATION_SCHEMA
from loadgen.run.hosts.worker_pool import start_workers
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.interval_files import IntervalWriter
from loadgen.run.monitor import Monitor
from loadgen.run.phases import PhaseRunner
from loadgen.run.progress import Progress, Snapshot, silent
from loadgen.run.run_state import RunState
from loadgen.run.rundir import EventLog, claim
from loadgen.scratch import scratch_directory
from loadgen.sentences import RUN_TEXT

NS: Final = 1_000_000_000
PERCENTILES: Final = ("p50", "p90", "p99", "max")
SINGLE_RATE: Final = 20_000.0
"""Messages a second over so many connections that each has a separate system call."""
SINGLE_DEVICES: Final = 10_000
SINGLE_RECEIVERS: Final = 1_000
BATCHED_RATE: Final = 200_000.0
BATCHED_RECEIVE_RATE: Final = 100_000.0
BATCHED_PAIRS: Final = 10
BATCH_TICK_US: Final = 1_000
LATENCY_RATE: Final = 10_000.0
SPARE_DESCRIPTORS: Final = 500
PHASES: Final = PhasePlan(warmup_s=0.5, duration_s=3.0, drain_s=3.0)
"""Phases of each play; a shorter calibration is less precise."""
GROUPS: Final = ("senders", "receivers")  # group of each worker
_TOPIC: Final = "calibrate/{topic}"


@dataclass(frozen=True, slots=True)
class Played:
    """The state at the end of a play, and its interval table.

    `rows` are merged by worker, group, phase and series.
    """

    state: RunState
    table: pa.Table
    rows: Mapping[tuple[int, str, str, str], Mapping[str, Any]]

    def row(self, worker: int, group: str, phase: str, series: str = "") -> Mapping[str, Any]:
        """Return a merged interval row; with count 0 if it is missing."""
        return self.rows.get((worker, group, phase, series), {"count": 0})

    def cpu_ns(self, worker: int, phase: str) -> int:
        return int(self.row(worker, "", phase).get("cpu_ns", 0))


async def play(plan: Plan, interrupt: Interrupt | None = None) -> Played:
    """Play the plan's phases against brokers that run already; leave no files.

    Raise CannotRunError if workers are lost, and RunInterruptedError if `interrupt` came.
    """
    run = f"play-{plan.run_tag:08x}"
    with scratch_directory("play") as scratch:
        directory = claim(scratch / "run")
        events = EventLog(directory)
        intervals = IntervalWriter(directory, run, time.monotonic_ns())
        monitor = Monitor(plan, events, intervals, silent)
        try:
            async with start_workers(len(plan.workers), monitor.on_frame) as pool:
                await PhaseRunner(plan, pool, monitor, interrupt or Interrupt()).play()
        finally:
            events.close()
        ending = monitor.state.ending
        if ending == "interrupted":
            raise RunInterruptedError(RUN_TEXT.INTERRUPTED())
        if ending is not None:
            raise CannotRunError(RUN_TEXT.ENDED_EARLY(ending=ending))
        table = pq.read_table(directory / "intervals")
    by = ("worker", "group", "phase", "series")
    rows = {tuple(row[name] for name in by): row for row in reduce_table(table, by).to_pylist()}
    return Played(monitor.state, table, rows)


async def calibrate(
    key: Mapping[str, object],
    descriptors: int,
    *,
    phases: PhasePlan = PHASES,
    progress: Progress = silent,
    interrupt: Interrupt | None = None,
) -> dict[str, Any]:
    """Play the sequence; return the result as JSON values, under the identity `key` of the host.

    `descriptors` is what one process may open. Raise CannotRunError if a play has no result, and
    RunInterruptedError if `interrupt` came.
    """
    began_s = time.monotonic()
    load = os.getloadavg()[0]
    devices = min(SINGLE_DEVICES, descriptors - SPARE_DESCRIPTORS)
    if devices < 1:
        raise CannotRunError(RUN_TEXT.FEW_DESCRIPTORS(least=SPARE_DESCRIPTORS))

    async def play_on(
        endpoint: Endpoint, title: str, groups: tuple[DeviceGroup, ...], tick_us: int = 0
    ) -> Played:
        progress(Snapshot(f"calibrate: {title}"))
        plan = Plan(
            run_tag=secrets.randbits(32),
            scenario=Scenario(case="calibrate"),
            groups=groups,
            targets=(Target(endpoint.host, endpoint.port),),
            workers=tuple(
                WorkerPlan(index, (Share(index, 0, group.count, 1),))
                for index, group in enumerate(groups)
            ),
            phases=phases,
            send_tick_us=tick_us,
            max_packet_bytes=1 << 16,
        )
        return await play(plan, interrupt)

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
    connected = single.state.connected
    if connected is None or connected.failures or connected.done != devices:
        failures = tuple(connected.failures) if connected else ()
        raise CannotRunError(RUN_TEXT.NOT_CONNECTED(devices=devices, failures=failures))
    return {
        "schema": CALIBRATION_SCHEMA,
        "key": dict(key),
        "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round(time.monotonic() - began_s, 1),
        "load_average_before": round(load, 2),
        "connect": {
            "devices": devices,
            "per_s": round(devices / connected.seconds),
            "cpu_us": round(single.cpu_ns(0, "connect") / devices / 1000, 2),
        },
        "send": {"single": _rate(single, 0, "sent"), "batched": _rate(batched, 0, "sent")},
        "receive": {
            "single": _rate(received_single, 1, "received"),
            "batched": _rate(received_batched, 1, "received"),
        },
        "latency": {
            "rate": LATENCY_RATE,
            "transit_us": _latency_us(timed, 1, "transit"),
            "end_to_end_us": _latency_us(timed, 1, "end_to_end"),
        },
        "send_delay": {
            "single_us": _latency_us(single, 0, "send_delay"),
            "latency_us": _latency_us(timed, 0, "send_delay"),
        },
    }


def _rate(played: Played, worker: int, counter: str) -> dict[str, Any]:
    """Return the rate and processor time of a message, and the rate that fills a core."""
    start_ns, end_ns = played.state.windows["measure"]
    messages = int(played.row(worker, GROUPS[worker], "measure").get(counter, 0))
    cpu_ns = played.cpu_ns(worker, "measure")
    if not messages or not cpu_ns:
        raise CannotRunError(RUN_TEXT.NO_MESSAGE(group=GROUPS[worker]))
    return {
        "rate": round(messages * NS / (end_ns - start_ns)),
        "cpu_us": round(cpu_ns / messages / 1000, 3),
        "per_s": round(messages / cpu_ns * NS),
    }


def _latency_us(played: Played, worker: int, series: str) -> dict[str, float]:
    summary = summarize(played.row(worker, GROUPS[worker], "measure", series))
    if not summary.count:
        raise CannotRunError(RUN_TEXT.NO_MESSAGE(group=GROUPS[worker]))
    values = {name: summary.figure(name) for name in PERCENTILES}
    return {name: round(float(value), 3) for name, value in values.items() if value is not None}


def _senders(count: int, rate: float) -> DeviceGroup:
    return DeviceGroup(GROUPS[0], count, publishes=Publishes(_TOPIC, rate))


def _exchange(senders: int, receivers: int, rate: float) -> tuple[DeviceGroup, ...]:
    """Return groups of which `senders` publish `rate` messages a second, each to its receivers."""
    return (
        _senders(senders, rate),
        DeviceGroup(GROUPS[1], receivers, subscribes=Subscribes((_TOPIC,)), topics=senders),
    )
