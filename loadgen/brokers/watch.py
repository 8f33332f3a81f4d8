"""Records of a broker during a run: its processes, and its own counters under $SYS.

Up to ten processes are read ten times a second for five minutes, so that a short window ends
between close samples, and then once a second; more are read less often. Only the topics of `COUNTS`
are subscribed to, because some brokers report every connecting client, too. Records are plain dicts
for broker.jsonl:

    {"time_ns", "node", "process": {"cpu_ns", "step_ns", "resident_bytes", "disk_read_bytes", ...}}
    {"time_ns", "broker", "topic", "count", "value", "watched"}
    {"time_ns", "trouble"}

`time_ns` is CLOCK_MONOTONIC. `node` is the URL of the node's metrics, absent for processes of one
host. `cpu_ns` is the processor time since the start, ended processes included, in steps of
`step_ns`. `broker` is the place of the endpoint, `count` a key of `COUNTS`, and `watched` the
number of messages received from it.
"""

import asyncio
import itertools
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiomqtt

from loadgen.brokers.ask import client_identifier, tls_context_of
from loadgen.brokers.broker_counters import COUNTS
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.this_host import HostProcess, with_descendants
from loadgen.errors import UsageError
from loadgen.mqtt.topics import filter_matches
from loadgen.sentences import BROKER_TEXT

Record = dict[str, Any]
Recorder = Callable[[Record], None]

_CLOSE_INTERVAL_S: Final = 0.1
_CLOSE_SAMPLES: Final = 3000
_EACH_S: Final = 0.01  # interval for each process: reading it takes some 100 µs on a slow host
_INTERVAL_S: Final = 1.0
_CPUCLOCK_SCHED: Final = 2
_AGAIN_S: Final = 2.0
_CANCEL_AGAIN_S: Final = 0.1
_LONGEST_TOPIC: Final = 200
_LARGEST: Final = 1 << 62
_DISK: Final = ("disk_read_bytes", "disk_written_bytes")
_NETWORK: Final = ("network_received_bytes", "network_sent_bytes")
_NUMBER: Final = re.compile(rb"\s*\d{1,30}\s*")


def require_process(pid: int) -> int:
    """Return the pid; raise UsageError if the process cannot be watched."""
    if ProcessLoad(lambda: (pid,)).read() is None:
        raise UsageError(BROKER_TEXT.NO_PROCESS(pid=pid))
    return pid


class ProcessLoad:
    """Reader of the processor time and memory of processes and of their children."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._processes: frozenset[HostProcess] = frozenset()
        self._pids_read: tuple[int, ...] = ()
        self._looked_ns = 0
        self._used_ns: dict[HostProcess, int] = {}
        self._disk_bytes: dict[HostProcess, tuple[int, int]] = {}

    def read(self) -> Record | None:
        """Return the `process` of a record, None if all processes have ended."""
        # Looking through the process table costs more than reading clocks.
        pids, now_ns = tuple(self._pids()), time.monotonic_ns()
        if pids != self._pids_read or now_ns - self._looked_ns > _INTERVAL_S * 1e9:
            self._processes = frozenset(with_descendants(pids))
            self._pids_read, self._looked_ns = pids, now_ns
        resident_bytes = processes = 0
        bytes_by_name: Record = {}
        for process in self._processes:
            with suppress(OSError):
                clock = (~process.pid << 3) | _CPUCLOCK_SCHED  # clock_getcpuclockid(3)
                self._used_ns[process] = time.clock_gettime_ns(clock)
                resident_bytes += process.resident_bytes()
                processes += 1
                if not bytes_by_name:  # the others are in the same namespace
                    bytes_by_name |= zip(_NETWORK, process.network_bytes(), strict=True)
                self._disk_bytes[process] = process.disk_bytes()
        if not processes:
            return None
        if self._disk_bytes:
            sums = map(sum, zip(*self._disk_bytes.values(), strict=True))
            bytes_by_name |= zip(_DISK, sums, strict=True)
        return {
            "cpu_ns": sum(self._used_ns.values()),
            "step_ns": 1,
            "resident_bytes": resident_bytes,
            "processes": processes,
            **bytes_by_name,
        }


def count_of(topic: str) -> str | None:
    for count, filters in COUNTS.items():
        if any(filter_matches(one, topic) for one in filters):
            return count
    return None


@asynccontextmanager
async def watching(
    endpoints: Sequence[Endpoint],
    pids: Callable[[], Iterable[int]],
    record: Recorder,
    *,
    tls_context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Record the broker's load and counts for the length of the block.

    `endpoints` has one of each broker, or is empty for no $SYS. A broker without $SYS or without a
    connection is not an error: the watcher tries again, and records the first error.
    """
    load = ProcessLoad(pids)

    def record_load() -> int:
        """Record the load; return the number of processes."""
        time_ns = time.monotonic_ns()
        process = load.read()
        if process is not None:
            record({"time_ns": time_ns, "process": process})
        return 0 if process is None else int(process["processes"])

    async def sample() -> None:
        for place in itertools.count():
            processes = record_load()
            close_s = _CLOSE_INTERVAL_S if place < _CLOSE_SAMPLES else _INTERVAL_S
            await asyncio.sleep(max(close_s, min(processes * _EACH_S, _INTERVAL_S)))

    watches = [_subscribe(*numbered, record, tls_context) for numbered in enumerate(endpoints)]
    tasks = [asyncio.ensure_future(watch) for watch in (sample(), *watches)]
    try:
        yield
    finally:
        while not all(task.done() for task in tasks):
            # Cancel again: `asyncio.wait_for` of Python 3.11, which aiomqtt uses, loses a
            # cancellation that comes together with an answer.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
        record_load()
    for task in tasks:
        if not task.cancelled():
            task.result()


def mqtt_client(
    endpoint: Endpoint, role: str, tls_context: ssl.SSLContext | None = None
) -> aiomqtt.Client:
    """Return an unconnected client of this broker; `role` is part of its Client Identifier."""
    return aiomqtt.Client(
        endpoint.host,
        endpoint.port,
        username=endpoint.username,
        password=endpoint.password,
        identifier=client_identifier(role),
        transport="websockets" if endpoint.websocket else "tcp",
        websocket_path=endpoint.path if endpoint.websocket else None,
        tls_context=tls_context_of(endpoint, tls_context),
    )


async def _subscribe(
    place: int, endpoint: Endpoint, record: Recorder, tls_context: ssl.SSLContext | None
) -> None:
    reported = False
    watched = 0
    while True:
        try:
            async with mqtt_client(endpoint, "watch", tls_context) as client:
                await client.subscribe([(topic, 0) for names in COUNTS.values() for topic in names])
                async for message in client.messages:
                    watched += 1
                    topic, payload = str(message.topic)[:_LONGEST_TOPIC], message.payload
                    count = count_of(topic)
                    if count and isinstance(payload, bytes) and _NUMBER.fullmatch(payload):
                        record(
                            {
                                "time_ns": time.monotonic_ns(),
                                "broker": place,
                                "topic": topic,
                                "count": count,
                                "value": min(int(payload), _LARGEST),
                                "watched": watched,
                            }
                        )
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            if not reported:
                reported = True
                words = str(error).partition("\n")[0][:_LONGEST_TOPIC]
                record({"time_ns": time.monotonic_ns(), "trouble": f"$SYS: {words}"})
        await asyncio.sleep(_AGAIN_S)
