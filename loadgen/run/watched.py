"""The watches of a run's brokers: broker.jsonl, and the processor time of those of a bridge."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from loadgen.brokers.process import ServedBroker
from loadgen.errors import CannotRunError, DiskError
from loadgen.plan.plan import Plan
from loadgen.run.power_log import output_of
from loadgen.run.preflight import tls_context
from loadgen.run.redaction import printable
from loadgen.run.rundir import EventLog, appending
from loadgen.run.tasks import background, every, sampled
from loadgen.sentences import RUN_TEXT

BROKER_FILE = "broker.jsonl"
MOST_RECORDS = 1_000_000
"""A week of them; a broker that floods $SYS gets no further."""

_BUSY_SAMPLE_S = 0.5

Loads = list[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and of each process the ns it ran or waited for a processor."""

_STUB_BROKERS = ("reflector", "sink")
"""Instruments of ours that count nothing themselves."""


@asynccontextmanager
async def watched_broker(
    directory: Path, events: EventLog, plan: Plan, broker: ServedBroker
) -> AsyncIterator[None]:
    """Record the broker's load, and what it counts itself, for the length of the block.

    The processes are those of another host that `broker_command` of the scenario reports, those
    started here, `broker_pid` of the scenario, or what listens at the only endpoint if that is on
    this host. Counts are not requested from a bridge, which counts a message
    twice, and not from several endpoints of others, which may be one broker. Raise UsageError for a
    `broker_pid` without a process.
    """
    from loadgen.brokers.ports import is_local, listening_pids
    from loadgen.brokers.watch import require_process, watching

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
    if plan.brokers.bridge is not None or broker.name in _STUB_BROKERS:
        asked = ()
    left = MOST_RECORDS

    def note(error: str) -> None:
        events.write(time.monotonic_ns(), "broker_not_watched", error)

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
        command = plan.scenario.broker_command

        async def sample() -> None:
            record(await processor_record(command or ""))

        async with AsyncExitStack() as stack:
            if command is not None:
                pids = tuple
                await stack.enter_async_context(sampled(sample, note))
            context = tls_context(plan)
            await stack.enter_async_context(watching(asked, pids, record, tls_context=context))
            yield


def stored_messages(directory: Path) -> list[tuple[int, int]]:
    """Return (CLOCK_MONOTONIC ns, messages in its store) whenever a broker reported that number.

    Of several brokers it is the sum. A run whose broker reports none has an empty list.
    """
    lines = (directory / BROKER_FILE).read_bytes().splitlines()
    latest: dict[int, int] = {}
    stored = []
    for record in (orjson.loads(line) for line in lines if b'"stored"' in line):
        latest[record["broker"]] = record["value"]
        stored.append((record["time_ns"], sum(latest.values())))
    return stored


_PROCESSOR_TIME = re.compile(
    r"^(?:process_cpu_seconds_total(?:\{.*\})?\s+(?P<metric>[\d.e+-]+).*"
    r"|(?P<seconds>\d+(?:\.\d+)?)(?:\s+(?P<processors>\d+))?)\s*$",
    re.MULTILINE,
)
"""A line of an exporter, or seconds and perhaps the number of processors."""


async def processor_record(command: str) -> dict[str, Any]:
    """Return the record of a broker on another host; raise CannotRunError without one.

    `processors` is 0 if the command does not print it.
    """
    begun_ns = time.monotonic_ns()
    output = await output_of("--broker-command", command)
    lines = list(_PROCESSOR_TIME.finditer(output))
    if not lines:
        raise CannotRunError(RUN_TEXT.NO_PROCESSOR_TIME(output=printable(output, 60)))
    process = {
        "cpu_ns": round(1e9 * sum(float(line["metric"] or line["seconds"]) for line in lines)),
        "step_ns": 10_000_000,
        "resident_bytes": 0,
        "processes": len(lines),
        "processors": int(lines[0]["processors"] or 0),
    }
    return {"time_ns": (begun_ns + time.monotonic_ns()) // 2, "process": process}


@asynccontextmanager
async def loads_of(pids: Sequence[int]) -> AsyncIterator[Loads]:
    """Sample the first threads of these processes twice a second during the block.

    Mosquitto has one thread that works.
    """
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
