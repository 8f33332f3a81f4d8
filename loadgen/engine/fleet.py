"""The devices of one worker as arrays: what `traffic` and `reactor` work on.

A connection is a row, not an object. The arrays for what may happen but seldom does, such as a
packet cut in two, are mapped without being touched, so that an idle device costs its row, its
CONNECT packet and the kernel's socket.
"""

import csv
import mmap
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.engine.syscalls import EVENT_WORDS
from loadgen.errors import BrokerUnreachableError, HostLimitError, ScenarioError
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import COUNTERS, SERIES
from loadgen.mqtt import packets
from loadgen.mqtt.codec import encode
from loadgen.mqtt.in_flight import IN_FLIGHT_DTYPE, RECEIVED_BYTES, SENDER_DTYPE
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.workload import traffic
from loadgen.workload.accounting import make_holes, make_pairs
from loadgen.workload.groups import (
    DeviceGroup,
    RunPlan,
    Target,
    WorkerPlan,
    client_id,
    streams_received,
    target_number,
    topic_name,
    topic_number,
)
from loadgen.workload.pacer import (
    ARRIVALS,
    DUE_NS,
    heap_push,
    make_program,
    make_schedule,
)
from loadgen.workload.payload import HEADER_BYTES, body_crc_states, make_body
from loadgen.workload.template import no_template, read_template

__all__ = [
    "Clients",
    "Fleet",
    "build_fleet",
    "connect_packet",
    "plan_schedule",
    "poll_arguments",
    "pump_arguments",
    "read_clients",
    "socket_address",
]

Clients = list[tuple[str, str | None, str | None]]
Table = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BUFFER_BYTES = 256 * 1024
_HOLES = 262_144
_SPARE_EVENTS = 1024  # one `poll` adds that many at most without asking for room
_SESSION_EXPIRY_S = 3600
_CLIENT_COLUMNS = frozenset(("client_id", "username", "password"))
_LONGEST_PERIOD_NS = 1e17  # three years; a few of them still fit into 64 bits
_STRING_BYTES = 65_535  # of a string in MQTT (MQTT 5, 1.5.4)
_MAP_NORESERVE = 0x4000


@dataclass(slots=True)
class Fleet:
    """Arrays of one worker; shapes in `workload.traffic`. `device` and `group` name each row."""

    plan: RunPlan
    group: Table
    device: Table
    connections: Table
    groups: Table
    run: Table
    totals: Table
    counters: Table
    histograms: npt.NDArray[np.uint32]
    stats: Table
    pairs: Table
    holes: Table
    hole_state: Table
    senders: npt.NDArray[Any]
    window: npt.NDArray[Any]
    received_ids: Bytes
    held_ids: Table
    publisher_connection: Table
    streams: Table
    phases: npt.NDArray[np.float64]
    arrivals: Table
    periods_ns: npt.NDArray[np.float64]
    schedule: Table
    program: Table
    heap: Table
    topics: Bytes
    topic_ends: Table
    body: Bytes
    body_crc: Table
    template: Table
    connect_packets: Bytes
    connect_ends: Table
    addresses: Bytes
    address_bytes: Table
    source: Bytes
    buffer: Bytes
    out: Bytes
    tails: Bytes
    batch: Table
    segments: Table
    events: Table
    control: Bytes
    epoll_events: npt.NDArray[np.int32]
    ready: Table
    clock: Table
    words: npt.NDArray[np.int32]

    def group_of(self, connection: int) -> DeviceGroup:
        return self.plan.groups[int(self.group[connection])]


def socket_address(host: str, port: int) -> bytes:
    """The `struct sockaddr` of an address; names are looked up."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerUnreachableError(
            f"cannot resolve {host!r}: {error}; check the host in --broker"
        ) from None
    family, _, _, _, address = found[0]
    if family == socket.AF_INET:
        packed = socket.inet_pton(family, str(address[0]))
        return struct.pack("=H", family) + struct.pack(">H", port) + packed + bytes(8)
    packed = socket.inet_pton(family, str(address[0]).partition("%")[0])
    scope = int(address[3]) if len(address) > 3 else 0
    return (
        struct.pack("=H", family) + struct.pack(">HI", port, 0) + packed + struct.pack("=I", scope)
    )


def read_clients(path: Path) -> Clients:
    """Client identifier, user name and password of each device, from a CSV file with a header.

    Raises ScenarioError for a file that cannot be read, columns that are not known, and a row
    without an identifier or with that of another. No value is ever shown.
    """
    shown = ascii(str(path)[:200])[1:-1]
    try:
        # A spreadsheet's mark of the encoding is no part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.reader(lines)
            names = next(rows, [])
            if "client_id" not in names or not _CLIENT_COLUMNS.issuperset(names):
                raise ScenarioError(
                    f"clients_file: {shown} begins without the names of its columns; allowed: "
                    "client_id,username,password"
                )
            return _clients(((rows.line_num, row) for row in rows), names, shown)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no CSV text"
        raise ScenarioError(f"clients_file: {shown} cannot be read: {reason}") from None


def _clients(rows: Iterable[tuple[int, list[str]]], names: list[str], shown: str) -> Clients:
    clients: Clients = []
    lines: dict[str, int] = {}
    for line, row in rows:
        if not row:
            continue
        where = f"clients_file: line {line} of {shown}"
        if len(row) != len(names):
            raise ScenarioError(f"{where} has {len(row)} values and the header {len(names)}")
        fields = dict(zip(names, row, strict=True))
        own = fields["client_id"]
        if not own or len(own.encode()) > _STRING_BYTES or "\0" in own:
            raise ScenarioError(f"{where} has no client_id that MQTT allows")
        if own in lines:
            raise ScenarioError(f"{where} has the client_id of line {lines[own]}")
        lines[own] = line
        clients.append((own, fields.get("username") or None, fields.get("password") or None))
    return clients


def _will(group: DeviceGroup, device: int) -> packets.Will | None:
    will = group.will
    if will is None:
        return None
    topic = will.topic.replace("{device}", str(device))
    return packets.Will(topic, will.payload.encode(), will.qos, will.retain)


def connect_packet(
    plan: RunPlan,
    group: DeviceGroup,
    device: int,
    clean_start: bool,
    clients: Clients | None = None,
) -> bytes:
    """CONNECT of one device; `clients` has a row for each device of the first group."""
    client, user_name, password = client_id(plan, group, device), plan.username, plan.password
    if clients is not None and group is plan.groups[0]:
        client, user_name, password = clients[device]
    properties = NO_PROPERTIES
    if plan.version == 5 and not clean_start:
        properties = Properties(session_expiry_interval=_SESSION_EXPIRY_S)
    return encode(
        packets.Connect(
            client_id=client,
            protocol_version=plan.version,
            clean_start=clean_start,
            keep_alive=group.keep_alive_s,
            user_name=user_name,
            password=None if password is None else password.encode(),
            will=_will(group, device),
            properties=properties,
        ),
        plan.version,
    )


def _mapped(rows: int, columns: int) -> Bytes:
    """Zeroed bytes that cost memory only where they are touched, in small pages."""
    size = max(rows * columns, 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        area = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise HostLimitError(
            f"cannot map {size} bytes for {rows} connections: {error}; use more --workers"
        ) from None
    area.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(area, np.uint8)[: rows * columns].reshape(rows, columns)


def _blob(parts: list[bytes]) -> tuple[Bytes, Table]:
    """The parts end to end, and where each begins (one entry more than parts)."""
    ends = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    return np.frombuffer(bytearray(b"".join(parts)), np.uint8), ends


def _group_rows(plan: RunPlan) -> Table:
    rows = np.zeros((len(plan.groups), traffic.GROUP_FIELDS), np.int64)
    for row, group in zip(rows, plan.groups, strict=True):
        if group.publishes is not None:
            row[traffic.QOS] = group.publishes.qos
            row[traffic.RETAIN] = group.publishes.retain
            row[traffic.DELIVERIES] = group.publishes.deliveries
            row[traffic.SIZE_LEAST], row[traffic.SIZE_MOST] = group.publishes.size_bytes
            row[traffic.UNIT] = group.publishes.unit
            row[traffic.FIRST_STREAM] = group.publishes.first_stream
        if group.responds is not None:
            row[traffic.QOS] = group.responds.qos
        if group.subscribes is not None:
            row[traffic.ACKNOWLEDGE_EVERY] = group.subscribes.acknowledge_every
    return rows


def _addresses(targets: tuple[Target, ...]) -> tuple[Bytes, Table]:
    packed = [socket_address(target.host, target.port) for target in targets]
    rows = np.zeros((len(packed), 28), np.uint8)
    for row, address in zip(rows, packed, strict=True):
        row[: len(address)] = np.frombuffer(address, np.uint8)
    return rows, np.array([len(address) for address in packed], np.int64)


def _response_topics(plan: RunPlan, group: DeviceGroup, device: int) -> list[bytes]:
    """Where a device answers each stream that it receives."""
    if group.subscribes is None or group.responds is None:
        raise ValueError(f"group {group.name} does not respond")
    publishes = plan.group(group.subscribes.publishers).publishes
    if publishes is None:
        raise ValueError(f"group {group.subscribes.publishers} does not publish")
    first, streams = streams_received(plan, group, device)
    asking = range(first - publishes.first_stream, first - publishes.first_stream + streams)
    return [f"{group.responds.topic_prefix}/{number}".encode() for number in asking]


def build_fleet(plan: RunPlan, worker: WorkerPlan, totals: Table) -> Fleet:
    """Expand a worker's shares. `totals` is the worker's row of the live page, `TOTALS` long."""
    group = np.concatenate([np.full(share.count, share.group, np.int64) for share in worker.shares])
    device = np.concatenate(
        [np.arange(share.start, share.stop, share.step, dtype=np.int64) for share in worker.shares]
    )
    count = len(group)
    connections = np.zeros((count, traffic.CONNECTION_FIELDS), np.int64)
    connections[:, traffic.FD] = -1
    connections[:, traffic.GROUP] = group
    for column in (
        traffic.PUBLISHER,
        traffic.SENDER,
        traffic.QOS2,
        traffic.HOLDER,
        traffic.RESPONSES,
    ):
        connections[:, column] = -1
    if plan.targets[0].transport != "tcp":
        connections[:, traffic.FLAGS] = traffic.STREAMED

    publishing: list[int] = []
    topic_parts: list[bytes] = []
    streams: list[int] = []
    phases: list[float] = []
    periods: list[float] = []
    arrivals: list[int] = []
    senders = 0
    qos2_receivers = 0
    holders = 0
    hold = 1
    queues: dict[tuple[str, int, int], int] = {}
    pairs = 0
    window = 1
    connect_parts: list[bytes] = []
    clients = None if plan.clients_file is None else read_clients(Path(plan.clients_file))
    for row in range(count):
        owner = plan.groups[int(group[row])]
        number = int(device[row])
        connections[row, traffic.TARGET] = target_number(plan, owner, number)
        connect_parts.append(connect_packet(plan, owner, number, owner.clean_start, clients))
        publishes = owner.publishes
        if publishes is not None:
            connections[row, traffic.PUBLISHER] = len(publishing)
            publishing.append(row)
            topic = topic_number(number, owner.count, publishes.topics)
            topic_parts.append(topic_name(publishes, topic).encode())
            streams.append(publishes.first_stream + number)
            phases.append(number / owner.count)
            periods.append(min(owner.count / publishes.rate * 1e9, _LONGEST_PERIOD_NS))
            arrivals.append(ARRIVALS[publishes.arrivals])
            if publishes.qos > 0:
                connections[row, traffic.SENDER] = senders
                senders += 1
                window = max(window, publishes.window)
        if owner.subscribes is not None:
            first, expected = streams_received(plan, owner, number)
            connections[row, traffic.STREAM_FIRST] = first
            connections[row, traffic.STREAM_COUNT] = expected
            queue = (owner.name, first, expected)
            if owner.subscribes.shared is not None:
                connections[row, traffic.FLAGS] |= traffic.SHARED
            if owner.subscribes.shared is not None and queue in queues:
                connections[row, traffic.PAIR_FIRST] = queues[queue]
            else:
                queues[queue] = pairs
                connections[row, traffic.PAIR_FIRST] = pairs
                pairs += expected
            if owner.subscribes.acknowledge_every > 1 and owner.subscribes.qos == 1:
                connections[row, traffic.HOLDER] = holders
                holders += 1
                hold = max(hold, owner.subscribes.acknowledge_every)
            if owner.subscribes.qos == 2:
                connections[row, traffic.QOS2] = qos2_receivers
                qos2_receivers += 1
    for row in range(count):
        owner = plan.groups[int(group[row])]
        if owner.responds is not None:
            connections[row, traffic.RESPONSES] = len(topic_parts)
            topic_parts += _response_topics(plan, owner, int(device[row]))
            if owner.responds.qos > 0:
                connections[row, traffic.SENDER] = senders
                senders += 1
                window = max(window, owner.responds.window)
    topics, topic_ends = _blob(topic_parts)
    connect_packets, connect_ends = _blob(connect_parts)
    addresses, address_bytes = _addresses(plan.targets)
    largest = max(
        (owner.publishes.size_bytes[1] for owner in plan.groups if owner.publishes is not None),
        default=HEADER_BYTES,
    )
    body = make_body(largest - HEADER_BYTES, plan.seed)
    template = no_template()
    given = plan.payload_file or plan.payload_template
    if given is not None:
        body = np.frombuffer(bytearray(Path(given).read_bytes()), np.uint8)
        if plan.payload_template is not None:
            body, template = read_template(body.tobytes())
        if len(body) != largest - HEADER_BYTES:
            raise ScenarioError(f"payload: {given} changed its length; run again")
    holes, hole_state = make_holes(_HOLES if pairs else 1)
    run = np.zeros(traffic.RUN_FIELDS, np.int64)
    run[traffic.RUN_TAG] = plan.run_tag
    run[traffic.VERSION] = plan.version
    run[traffic.SEED] = plan.seed & 0x7FFFFFFF
    run[traffic.PACKET_LIMIT] = plan.max_packet_bytes
    run[traffic.WALL_NS] = time.time_ns() - time.monotonic_ns()
    slots = len(plan.groups) * len(SERIES) * len(traffic.INTENDED_PHASES)
    source = b"" if worker.source_address is None else socket_address(worker.source_address, 0)
    buffer_bytes = max(_BUFFER_BYTES, 2 * plan.max_packet_bytes)
    responding = any(owner.responds is not None for owner in plan.groups)
    return Fleet(
        plan=plan,
        group=group,
        device=device,
        connections=connections,
        groups=_group_rows(plan),
        run=run,
        totals=totals,
        counters=np.zeros(
            (len(plan.groups), len(traffic.INTENDED_PHASES), len(COUNTERS)), np.int64
        ),
        histograms=_mapped(slots, BUCKETS * 4).view(np.uint32),
        stats=np.zeros((slots, 4), np.int64),
        pairs=make_pairs(pairs),
        holes=holes,
        hole_state=hole_state,
        senders=np.zeros(senders, SENDER_DTYPE),
        window=np.zeros((senders, window), IN_FLIGHT_DTYPE),
        received_ids=np.zeros((qos2_receivers, RECEIVED_BYTES), np.uint8),
        held_ids=np.zeros((holders, hold), np.int64),
        publisher_connection=np.array(publishing, np.int64),
        streams=np.array(streams, np.int64),
        phases=np.array(phases, np.float64),
        arrivals=np.array(arrivals, np.int64),
        periods_ns=np.array(periods, np.float64),
        schedule=np.zeros((len(publishing), 6), np.int64),
        program=make_program(0),
        heap=np.zeros((max(len(publishing), 1), 2), np.int64),
        topics=topics,
        topic_ends=topic_ends,
        body=body,
        body_crc=body_crc_states(body),
        template=template,
        connect_packets=connect_packets,
        connect_ends=connect_ends,
        addresses=addresses,
        address_bytes=address_bytes,
        source=np.frombuffer(bytearray(source), np.uint8),
        buffer=np.zeros(buffer_bytes, np.uint8),
        # With what was withheld before, and with a response to each message.
        out=np.zeros(buffer_bytes * (1 + responding) + 4 * hold, np.uint8),
        tails=_mapped(count, plan.max_packet_bytes),
        batch=np.zeros((traffic.BATCH_LIMIT, traffic.BATCH_FIELDS), np.int64),
        segments=np.zeros((4096, 3), np.int64),
        events=np.zeros((traffic.EVENT_LIMIT + _SPARE_EVENTS, traffic.EVENT_FIELDS), np.int64),
        control=np.zeros(4 * buffer_bytes, np.uint8),
        epoll_events=np.zeros(256 * EVENT_WORDS, np.int32),
        ready=np.zeros(max(count, 1) + 256, np.int64),
        clock=np.zeros(4, np.int64),
        words=np.zeros(4, np.int32),
    )


def plan_schedule(fleet: Fleet, start_ns: int) -> None:
    """Fix the schedule that begins at `start_ns`; every publisher waits for its message 0."""
    fleet.program = make_program(start_ns)
    fleet.schedule = make_schedule(
        fleet.streams,
        fleet.phases,
        fleet.periods_ns,
        fleet.arrivals,
        fleet.program,
        int(fleet.run[traffic.SEED]),
    )
    size = 0
    for publisher, due_ns in enumerate(fleet.schedule[:, DUE_NS].tolist()):
        if due_ns < fleet.run[traffic.END_NS]:
            size = heap_push(fleet.heap, size, due_ns, publisher)
    fleet.totals[traffic.HEAP_SIZE] = size
    fleet.totals[traffic.SCHEDULED] = size


def poll_arguments(fleet: Fleet, epoll: int) -> tuple[Any, ...]:
    """Arguments of `reactor.poll`."""
    f = fleet
    return (
        epoll,
        f.epoll_events,
        f.ready,
        f.clock,
        f.words,
        f.buffer,
        f.out,
        f.tails,
        f.connect_packets,
        f.connect_ends,
        f.connections,
        f.groups,
        f.run,
        f.totals,
        f.pairs,
        f.holes,
        f.hole_state,
        f.counters,
        f.histograms,
        f.stats,
        f.senders,
        f.window,
        f.received_ids,
        f.held_ids,
        f.schedule,
        f.heap,
        f.events,
        f.control,
        f.topics,
        f.topic_ends,
    )


def pump_arguments(fleet: Fleet, timer: int, tick_ns: int) -> tuple[Any, ...]:
    """Arguments of `reactor.pump`."""
    f = fleet
    return (
        timer,
        tick_ns,
        f.clock,
        f.out,
        f.batch,
        f.segments,
        f.publisher_connection,
        f.connections,
        f.groups,
        f.run,
        f.totals,
        f.counters,
        f.histograms,
        f.stats,
        f.senders,
        f.window,
        f.schedule,
        f.heap,
        f.periods_ns,
        f.program,
        f.topics,
        f.topic_ends,
        f.body,
        f.body_crc,
        f.template,
        f.events,
        f.control,
    )
