"""The watches of a run's brokers: broker.jsonl, and the processor time of those of a bridge."""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import DiskError
from loadgen.run.rundir import EventLog, appending
from loadgen.run.tasks import background, every

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
    directory: Path,
    events: EventLog,
    *,
    name: str,
    endpoints: Sequence[Endpoint],
    own_pids: Callable[[], Iterable[int]] | None,
    broker_pid: int | None = None,
    counts: bool = True,
    tls_context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Record the broker's load, and what it counts itself, for the length of the block.

    `endpoints` has one a broker. `own_pids` are the processes of brokers started here, None for
    one that was not: then the process is `broker_pid`, or what listens at the only endpoint where
    that is on this host. `counts` is whether the broker's counts can be held against ours: a
    broker that forwards to others counts more. Several endpoints that were not started here may
    be one broker, so their counts are not asked for. Raises UsageError for a pid without a process.
    """
    from loadgen.brokers.ports import is_local, listening_pids
    from loadgen.brokers.watch import require_process, watching

    pids: Callable[[], Iterable[int]] = own_pids or tuple
    if broker_pid is not None:
        fixed = (require_process(broker_pid),)
        pids = lambda: fixed  # noqa: E731
    elif (
        own_pids is None
        and len(endpoints) == 1
        # Either can take a while on a host with a million sockets, and no load is on yet.
        and await asyncio.to_thread(is_local, endpoints[0].host)
    ):
        found = await asyncio.to_thread(listening_pids, endpoints[0].port)
        pids = lambda: tuple(pid for pid in found if pid != os.getpid())  # noqa: E731
    asked = endpoints if counts and name not in _STUB_BROKERS else ()
    if own_pids is None and len(endpoints) > 1:
        asked = ()
    left = MOST_RECORDS
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
                    events.write(entry["time_ns"], "broker_not_watched", str(error.strerror))

        async with watching(asked, pids, record, tls_context=tls_context):
            yield


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
                text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text()
                ran, waited, _ = map(int, text.split())
                busy.append(ran + waited)
            except (OSError, ValueError):
                busy.append(None)
        if busy:
            loads.append((time.monotonic_ns(), tuple(busy)))

    async with background(every(_BUSY_SAMPLE_S, sample)):
        yield loads
