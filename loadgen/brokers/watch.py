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
import ipaddress
import itertools
import os
import re
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil

from loadgen.brokers.client import PacketStream, client_identifier
from loadgen.brokers.door import KEEP_ALIVE_S, Knock, refusal, silence
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.probe import connect_of
from loadgen.errors import CannotRunError, RemoteProtocolError, UsageError
from loadgen.mqtt.constants import MQTT_3_1_1
from loadgen.mqtt.packets import Disconnect, Packet, PingReq, Publish, Subscribe, Subscription
from loadgen.mqtt.topics import filter_matches

Record = dict[str, Any]
Recorder = Callable[[Record], None]

_CLOSE_INTERVAL_S: Final = 0.1
_CLOSE_SAMPLES: Final = 3000
_INTERVAL_S: Final = 1.0
_CPUCLOCK_SCHED: Final = 2
_AGAIN_S: Final = 2.0
_ANSWER_S: Final = 10.0
_LONGEST_TOPIC: Final = 200
_LONGEST_NUMBER: Final = 30
_LARGEST: Final = 1 << 62
_LISTEN: Final = " 0A "  # the state in a line of /proc/net/tcp

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


def is_local(host: str) -> bool:
    """Whether a host name or address is this host's; a name is looked up."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    own = {a.address.partition("%")[0] for links in psutil.net_if_addrs().values() for a in links}
    return any(
        address in own or ipaddress.ip_address(str(address).partition("%")[0]).is_loopback
        for address in map(str, found)
    )


def listening_pids(port: int) -> tuple[int, ...]:
    """Processes of this host that listen on a TCP port, as far as this user may see.

    Straight from /proc: psutil makes an object of every connection, of which there may be a
    million.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    return tuple(sorted(pid for pid in psutil.pids() if _has_open(pid, sockets)))


def _listening_inodes(port: int) -> Iterable[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), Path(table).open(encoding="ascii") as lines:
            for line in lines:
                if f":{port:04X} " in line and _LISTEN in line:
                    _, address, _, state, *_, inode = line.split()[:10]
                    if state == _LISTEN.strip() and address.endswith(f":{port:04X}"):
                        yield inode


def _has_open(pid: int, files: Collection[str]) -> bool:
    """Whether one of a process's descriptors is one of these files, by the names of their links."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                if os.readlink(descriptor.path) in files:  # noqa: PTH115  # of many, and quick
                    return True
    return False


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
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        _record_load(load, record)
    for result in results:
        if isinstance(result, Exception):
            raise result


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


async def _subscribe(
    place: int, endpoint: Endpoint, record: Recorder, tls_context: ssl.SSLContext | None
) -> None:
    reported = False
    watched = 0
    topics = tuple(Subscription(topic) for names in COUNTS.values() for topic in names)
    while True:
        try:
            async with _connected(endpoint, tls_context) as stream:
                stream.send(Subscribe(1, topics))
                while True:
                    packet = await _next(stream)
                    if not isinstance(packet, Publish):
                        continue
                    watched += 1
                    topic = packet.topic_name[:_LONGEST_TOPIC]
                    count, value = count_of(topic), _number(packet.payload)
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
        except (CannotRunError, RemoteProtocolError, OSError) as error:
            if not reported:
                reported = True
                words = str(error).partition("\n")[0][:_LONGEST_TOPIC]
                record({"time_ns": time.monotonic_ns(), "trouble": f"$SYS: {words}"})
        await asyncio.sleep(_AGAIN_S)


@asynccontextmanager
async def _connected(
    endpoint: Endpoint, tls_context: ssl.SSLContext | None
) -> AsyncIterator[PacketStream]:
    """A connection for the length of the block; the error of one that is not made is not explained.

    To explain it takes more connections (`door.admitted`), and the broker is being measured.
    """
    connect = replace(connect_of(endpoint, MQTT_3_1_1), client_id=client_identifier("watch"))
    knock = Knock(endpoint, connect, tls_context)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await knock.run()
        if knock.stream is None or knock.connack is None:
            raise knock.error or silence(knock, _ANSWER_S)
        if knock.connack.reason_code:
            raise refusal(endpoint, knock.connack, connect.protocol_version)
        try:
            yield knock.stream
        finally:
            knock.stream.send(Disconnect())
    finally:
        await knock.close()


async def _next(stream: PacketStream) -> Packet:
    """The next packet but answers to our PINGREQ; OSError where one is not answered."""
    for _ in range(2):
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_ALIVE_S / 2):
                return await stream.receive()
        stream.send(PingReq())
    raise TimeoutError("the broker does not answer PINGREQ")
