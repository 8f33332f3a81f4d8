"""The watches of a run's brokers: broker.jsonl, and the processor time of those of a bridge."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from loadgen.brokers.broker_counters import counters_of, page_of
from loadgen.brokers.endpoints import INSTRUMENTS
from loadgen.brokers.ports import is_local, listening_pids
from loadgen.brokers.process import ServedBroker
from loadgen.brokers.watch import require_process, watching
from loadgen.errors import CannotRunError, DiskError
from loadgen.plan.plan import Plan
from loadgen.run.power_log import output_of
from loadgen.run.preflight import tls_context
from loadgen.run.rundir import EventLog, appending
from loadgen.run.tasks import background, every, sampled
from loadgen.sentences import RUN_TEXT, printable

BROKER_FILE = "broker.jsonl"
MOST_RECORDS = 1_000_000
"""Maximum number of records in a file: those of a week. It bounds a broker that floods $SYS."""
_BUSY_SAMPLE_S = 0.5
Loads = list[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and of each process the ns it ran or waited for a processor."""


@asynccontextmanager
async def watched_broker(
    directory: Path, events: EventLog, plan: Plan, broker: ServedBroker
) -> AsyncIterator[None]:
    """Record the broker's load, and what it counts itself, for the length of the block.

    The load is that of the nodes of `broker_metrics` of the scenario, or of processes: those
    started here, its `broker_pid`, or what listens at the only endpoint on this host. Counts are
    not requested from a bridge, which counts a message twice, and not from several endpoints of
    others, which may be one broker. Raise UsageError for a `broker_pid` without a process.
    """
    endpoints = [one.endpoints[0] for one in broker.brokers] or broker.endpoints
    named: tuple[int, ...] = ()
    if plan.scenario.broker_pid is not None:
        named = (require_process(plan.scenario.broker_pid),)
    elif (
        not broker.started_by_us
        and len(endpoints) == 1
        # Either can take a while on a host with a million sockets, and no load is on yet.
        and await asyncio.to_thread(is_local, endpoints[0].host)
    ):
        listening = await asyncio.to_thread(listening_pids, endpoints[0].port)
        named = tuple(pid for pid in listening if pid != os.getpid())
    asked = endpoints if broker.started_by_us or len(endpoints) == 1 else ()
    if plan.brokers.bridge is not None or broker.name in INSTRUMENTS:
        asked = ()
    left = MOST_RECORDS

    note = partial(events.write, "broker_not_watched")
    with appending(directory / BROKER_FILE) as file:

        def record(entry: dict[str, Any]) -> None:
            nonlocal left
            if left <= 0:
                return
            left -= 1
            try:
                file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
            except OSError as error:
                # The run matters more than the record of its broker.
                left = 0
                with suppress(DiskError):
                    note(str(error.strerror))

        # Read each time: a broker that crashes on request comes back as another process.
        pids = (lambda: broker.pids) if broker.started_by_us and not named else (lambda: named)

        async def sample(source: str) -> None:
            """Record a node by its page of metrics, from a URL or a command."""
            begun_ns = time.monotonic_ns()
            kind, _, command = source.partition("command:")
            page = await (page_of(source) if kind else output_of("--broker-metrics", command))
            if not (counters := counters_of(page)):
                raise CannotRunError(RUN_TEXT.NO_COUNTERS(source=printable(source, 200)))
            middle_ns = (begun_ns + time.monotonic_ns()) // 2
            # 0 processors are unknown.
            process = {"step_ns": 10_000_000, "processors": 0, **counters}
            record({"time_ns": middle_ns, "node": source, "process": process})

        async with AsyncExitStack() as stack:
            for source in plan.scenario.broker_metrics:
                pids = tuple
                await stack.enter_async_context(sampled(partial(sample, source), note))
            context = tls_context(plan)
            await stack.enter_async_context(watching(asked, pids, record, tls_context=context))
            yield


def stored_messages(directory: Path) -> list[tuple[int, int]]:
    """Return (CLOCK_MONOTONIC ns, messages in all stores) whenever a broker reported its number."""
    lines = (directory / BROKER_FILE).read_bytes().splitlines()
    latest: dict[int, int] = {}
    stored = []
    for record in (orjson.loads(line) for line in lines if b'"stored"' in line):
        latest[record["broker"]] = record["value"]
        stored.append((record["time_ns"], sum(latest.values())))
    return stored


@asynccontextmanager
async def loads_of(pids: Sequence[int]) -> AsyncIterator[Loads]:
    """Sample the first threads of these processes, Mosquitto's that work, twice a second."""
    loads: Loads = []

    def sample() -> None:
        busy: list[int | None] = []
        for pid in pids:
            try:
                text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text("utf-8")
                ran, waited, _ = map(int, text.split())
                busy.append(ran + waited)
            except (OSError, ValueError):
                busy.append(None)
        if busy:
            loads.append((time.monotonic_ns(), tuple(busy)))

    async with background(every(_BUSY_SAMPLE_S, sample)):
        yield loads
