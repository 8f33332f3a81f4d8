"""Watches a broker while a run goes on: its processor time and memory, and what it counts itself.

Processor time and memory are those of the broker's processes on this host and of everything they
started: ten times a second for five minutes, so that the ends of a short measurement window fall
between samples that are close, and then once a second. Processor time comes from the clock of each
process, which counts nanoseconds and keeps what ended threads used.

What a broker counts it publishes under $SYS, which is no standard: `COUNTS` names the topics of the
brokers that are understood. Only those are subscribed to, because some brokers report every
connecting client there, too.

Records are plain dicts, ready for broker.jsonl:

    {"time_ns", "process": {"cpu_ns", "step_ns", "resident_bytes", "processes"}}
    {"time_ns", "broker", "topic", "count", "value", "watched"}
    {"time_ns", "trouble"}

`time_ns` is CLOCK_MONOTONIC, `cpu_ns` what the processes have used since they started, those that
ended meanwhile included, in steps of `step_ns`. `broker` is the place of the endpoint, `count` a
key of `COUNTS`, `value` the broker's number since it started, and `watched` how many messages this
watcher itself has had from it by then.
"""

import asyncio
import itertools
import re
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiomqtt
import psutil

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.packet_stream import client_identifier, tls_context_of
from loadgen.errors import UsageError
from loadgen.mqtt.topics import filter_matches

Record = dict[str, Any]
Recorder = Callable[[Record], None]

_CLOSE_INTERVAL_S: Final = 0.1
_CLOSE_SAMPLES: Final = 3000
_INTERVAL_S: Final = 1.0
_CPUCLOCK_SCHED: Final = 2
_AGAIN_S: Final = 2.0
_CANCEL_AGAIN_S: Final = 0.1
_LONGEST_TOPIC: Final = 200
_LONGEST_NUMBER: Final = 30
_LARGEST: Final = 1 << 62

COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    # Mosquitto (mosquitto(8)); amqtt; EMQX (documentation, metrics); VerneMQ (documentation).
    "publish_received": (
        "$SYS/broker/publish/messages/received",
        "$SYS/broker/messages/publish/received",
        "$SYS/brokers/+/metrics/packets/publish/received",
        "$SYS/+/mqtt/publish/received",
    ),
    "publish_sent": (
        "$SYS/broker/publish/messages/sent",
        "$SYS/broker/messages/publish/sent",
        "$SYS/brokers/+/metrics/packets/publish/sent",
        "$SYS/+/mqtt/publish/sent",
    ),
    "publish_dropped": (
        "$SYS/broker/publish/messages/dropped",
        "$SYS/brokers/+/metrics/messages/dropped",
    ),
}
"""What is counted to the topics under which brokers tell it: PUBLISH packets since their start."""


# --- processes ------------------------------------------------------------------------------


def require_process(pid: int) -> int:
    """The pid; raises UsageError where no such process can be watched."""
    load = load_of((pid,))
    if load is None:
        raise UsageError(f"broker_pid: there is no process {pid} on this host that can be read")
    return pid


def load_of(pids: Iterable[int]) -> Record | None:
    """The `process` of a record: these and all that they started; None where none is alive."""
    return ProcessLoad(lambda: pids).read()


class ProcessLoad:
    """Processor time and memory of processes and of all that they start, read again and again.

    What a process used is kept when it ends; what it used after its last reading is not seen.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], look_interval_s: float = _INTERVAL_S
    ) -> None:
        """`look_interval_s` is between two looks for new processes."""
        self._pids = pids
        self._look_interval_s = look_interval_s
        self._found: frozenset[psutil.Process] = frozenset()
        self._known: tuple[int, ...] = ()
        self._looked_ns = 0
        self._used_ns: dict[psutil.Process, int] = {}

    def read(self) -> Record | None:
        """The `process` of a record; None where none of the processes is alive."""
        # Looking through the process table costs more than reading clocks.
        pids, now_ns = tuple(self._pids()), time.monotonic_ns()
        if pids != self._known or now_ns - self._looked_ns > self._look_interval_s * 1e9:
            self._found = frozenset(_with_children(pids))
            self._known, self._looked_ns = pids, now_ns
        resident_bytes = processes = 0
        for process in self._found:
            with suppress(psutil.Error, OSError):
                self._used_ns[process] = _cpu_ns(process.pid)
                resident_bytes += process.memory_info().rss
                processes += 1
        if not processes:
            return None
        return {
            "cpu_ns": sum(self._used_ns.values()),
            "step_ns": 1,
            "resident_bytes": resident_bytes,
            "processes": processes,
        }


def _with_children(pids: Iterable[int]) -> Iterable[psutil.Process]:
    """The processes and all that they started, in one look however many they are."""
    children: dict[int, list[psutil.Process]] = defaultdict(list)
    processes = {process.pid: process for process in psutil.process_iter()}
    for process in processes.values():
        with suppress(psutil.Error):
            children[process.ppid()].append(process)
    todo = [processes[pid] for pid in pids if pid in processes]
    while todo:
        process = todo.pop()
        yield process
        todo += children[process.pid]


def _cpu_ns(pid: int) -> int:
    """Processor time of a process; its clock's id is that of clock_getcpuclockid(3)."""
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)


# --- $SYS -----------------------------------------------------------------------------------


def count_of(topic: str) -> str | None:
    """Which of `COUNTS` a topic carries."""
    for count, filters in COUNTS.items():
        if any(filter_matches(one, topic) for one in filters):
            return count
    return None


def _number(payload: object) -> int | None:
    """A count as brokers print it; None for anything else."""
    if not isinstance(payload, bytes | bytearray) or len(payload) > _LONGEST_NUMBER:
        return None
    text = bytes(payload).decode("ascii", "replace").strip()
    return min(int(text), _LARGEST) if re.fullmatch(r"\d+", text) else None


@asynccontextmanager
async def watching(
    endpoints: Sequence[Endpoint],
    pids: Callable[[], Iterable[int]],
    record: Recorder,
    *,
    tls_context: ssl.SSLContext | None = None,
    interval_s: float | None = None,
) -> AsyncIterator[None]:
    """Record the broker's load and counts for the length of the block.

    `endpoints` are one a broker, empty for no $SYS; `pids` gives the processes to read at any
    time, none for none. A broker that offers no $SYS or goes away is not an error: the watcher
    asks again every two seconds and records what was in the way once. `interval_s` is between two
    readings of the processes, by default as the module says.
    """
    load = ProcessLoad(pids)
    tasks = [asyncio.ensure_future(_sample(load, record, interval_s))]
    tasks += [
        asyncio.ensure_future(_subscribe(place, endpoint, record, tls_context))
        for place, endpoint in enumerate(endpoints)
    ]
    try:
        yield
    finally:
        while not all(task.done() for task in tasks):
            # Again, because one that comes together with an answer is lost in `asyncio.wait_for`
            # of Python 3.11, by which aiomqtt waits.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
        _record_load(load, record)
    for task in tasks:
        if not task.cancelled():
            task.result()


async def _sample(load: ProcessLoad, record: Recorder, interval_s: float | None) -> None:
    for place in itertools.count():
        _record_load(load, record)
        close = _CLOSE_INTERVAL_S if place < _CLOSE_SAMPLES else _INTERVAL_S
        await asyncio.sleep(close if interval_s is None else interval_s)


def _record_load(load: ProcessLoad, record: Recorder) -> None:
    time_ns = time.monotonic_ns()
    found = load.read()
    if found is not None:
        record({"time_ns": time_ns, "process": found})


def mqtt_client(
    endpoint: Endpoint,
    role: str,
    *,
    version: int = 4,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = 10.0,
) -> aiomqtt.Client:
    """A client of this broker, not yet connected; `role` is part of its Client Identifier.

    `tls_context` is used for mqtts and wss (the system's trust when None).
    """
    return aiomqtt.Client(
        endpoint.host,
        endpoint.port,
        username=endpoint.username,
        password=endpoint.password,
        identifier=client_identifier(role),
        protocol=aiomqtt.ProtocolVersion(version),
        transport="websockets" if endpoint.websocket else "tcp",
        websocket_path=endpoint.path if endpoint.websocket else None,
        tls_context=tls_context_of(endpoint, tls_context),
        timeout=timeout_s,
    )


async def _subscribe(
    place: int, endpoint: Endpoint, record: Recorder, tls_context: ssl.SSLContext | None
) -> None:
    reported = False
    watched = 0
    while True:
        client = mqtt_client(endpoint, "watch", tls_context=tls_context)
        try:
            async with client:
                topics = [(topic, 0) for names in COUNTS.values() for topic in names]
                await client.subscribe(topics)
                async for message in client.messages:
                    watched += 1
                    topic = str(message.topic)[:_LONGEST_TOPIC]
                    count, value = count_of(topic), _number(message.payload)
                    if count is not None and value is not None:
                        record(
                            {
                                "time_ns": time.monotonic_ns(),
                                "broker": place,
                                "topic": topic,
                                "count": count,
                                "value": value,
                                "watched": watched,
                            }
                        )
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            if not reported:
                reported = True
                words = str(error).partition("\n")[0][:_LONGEST_TOPIC]
                record({"time_ns": time.monotonic_ns(), "trouble": f"$SYS: {words}"})
        await asyncio.sleep(_AGAIN_S)
