"""The arrays of one worker (kernels/fleet.py), made from its plan.

A connection is a row, not an object. The arrays for rare events, such as a packet cut in two, are
mapped without being touched, so that an idle device costs its row, its CONNECT packet and the
kernel's socket.
"""

import mmap
import socket
import struct
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.errors import BrokerUnreachableError, HostLimitError, ScenarioError
from loadgen.kernels.accounting import Gap, GapPool, make_pairs
from loadgen.kernels.arrays import Record, Rows
from loadgen.kernels.attention import STALLS_LIMIT, Attention, Stall
from loadgen.kernels.counting import EVENT_LIMIT, INTENDED_PHASES
from loadgen.kernels.device import PUSHED_BACK, SHARED, STREAMED, WAITING, WINDOW_FULL, Device
from loadgen.kernels.fleet import (
    ConnectQueue,
    Event,
    GroupRecord,
    Refusal,
    RunConstants,
    Sent,
    Stat,
)
from loadgen.kernels.in_flight import RECEIVED_BYTES, InFlight, Sender
from loadgen.kernels.pacer import (
    ARRIVALS,
    Due,
    Publisher,
    begin_schedule,
    heap_push,
    make_program,
    make_publishers,
)
from loadgen.kernels.payload import HEADER_BYTES, Place, body_crc_states, make_body
from loadgen.kernels.reactor import EVENTS_AT_ONCE
from loadgen.kernels.repeats import COPIES_LIMIT, WITHHELD_LIMIT, Copy, Doubt, Withheld
from loadgen.kernels.sender import BATCH_LIMIT
from loadgen.kernels.syscalls import EVENT_WORDS, MESSAGE_WORDS
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import SERIES
from loadgen.mqtt.violations import VIOLATIONS
from loadgen.plan.addressing import streams_received, target_number
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import (
    MESSAGING,
    DeviceGroup,
    Publishes,
    Target,
    WorkerPlan,
    largest_payload_bytes,
    publishing_to,
    topic_name,
    topic_number,
)
from loadgen.plan.payload_template import no_template, read_template
from loadgen.plan.plan import Plan
from loadgen.worker.clock import clock_ns, clock_words
from loadgen.worker.logins import connect_packet, read_clients
from loadgen.worker.shared_counts import SharedPage, private_page

Table = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BUFFER_BYTES = 256 * 1024
_WHOLE_BYTES = 64 * 1024
"""Longest message that a connection can store whole; longer ones stream."""
_BODY_STATE_BYTES = 8  # the state of a body that is streamed, after its head
GAPS_LIMIT = 1 << 26
_SPARE_EVENTS = 1024  # most events that one `poll` adds without a check for room
_HEADERS_MOST_BYTES = 16  # of a PUBLISH without its topic
_LONGEST_PERIOD_NS = 1e17  # three years; a few of them still fit into 64 bits
_MAP_NORESERVE = 0x4000
_CONNACK_BYTES = 128
"""Longer packets, with properties of many words, each go through Python."""
_TOTALS_OF_A_RUN = (
    *GapPool.names(),
    *("publishes", "damaged", "withdrawn", "lined_up", "scheduled", "heap_size", "owed"),
    *("disconnects", "finished", "withheld", "copies"),
)
"""Bytes of the buffers that do not depend on the number of connections."""


def socket_address(host: str, port: int) -> bytes:
    """Return the `struct sockaddr` of an address; names are looked up."""
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


def _mapped(rows: int, columns: int) -> Bytes:
    """Return zeroed bytes, which use memory only if they are touched, in small pages."""
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


def many_rows(layout: type[Record], count: int) -> Any:
    """Return zeroed records; unused rows take no memory."""
    return _mapped(count, layout.layout.itemsize).reshape(-1).view(layout.layout)


class _Parts:
    """Bytes end to end, and the begin of each part; there is no object for a part."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, part: bytes) -> None:
        self._bytes += part
        self._ends.append(len(self._bytes))

    def arrays(self) -> tuple[Bytes, Table]:
        """Return the joined bytes, and the ends: one entry more than parts."""
        ends = np.array(self._ends, np.int64)
        return np.frombuffer(self._bytes, np.uint8).copy(), ends


def _received_prefix(group: DeviceGroup, plan: Plan) -> str:
    """Return the begin of the topics that a group receives, up to their number."""
    subscribes, senders = group.subscribes, publishing_to(group, plan.groups)
    if subscribes is None or senders is None or senders.publishes is None:
        return ""
    return f"{subscribes.topic_prefix or senders.publishes.topic_prefix}/"


def _group_rows(plan: Plan) -> tuple[Rows[GroupRecord], Bytes]:
    """Return the groups, and the prefixes of the topics that they receive."""
    rows = GroupRecord.rows(len(plan.groups))
    rows["counts_as"] = np.arange(len(rows))
    parts = _Parts()
    for group in plan.groups:
        parts.append(_received_prefix(group, plan).encode())
    prefixes, ends = parts.arrays()
    rows["prefix"], rows["prefix_end"] = ends[:-1], ends[1:]
    answering = [group for group in plan.groups if group.responds is not None]
    for number, group in enumerate(plan.groups):
        row = rows[number]
        senders = publishing_to(group, plan.groups)
        if senders is not None and senders.publishes is not None:
            row.senders_first = senders.publishes.first_stream
            row.senders = senders.count
            row.senders_topics = senders.publishes.topics
        if group.publishes is not None:
            row.qos = group.publishes.qos
            row.retain = group.publishes.retain
            # Requests have responses, which their senders receive, too.
            answers = sum(publishing_to(one, plan.groups) is group for one in answering)
            row.deliveries = group.publishes.deliveries + answers
            row.size_least, row.size_most = group.publishes.size_bytes
            row.unit = group.publishes.unit
            row.first_stream = group.publishes.first_stream
        if group.responds is not None:
            row.qos = group.responds.qos
        if group.subscribes is not None:
            row.read_most = int(group.subscribes.read_rate > 0)
    return rows, prefixes


def _addresses(targets: tuple[Target, ...]) -> tuple[Bytes, Table]:
    packed = [socket_address(target.host, target.port) for target in targets]
    rows = np.zeros((len(packed), 28), np.uint8)
    for row, address in zip(rows, packed, strict=True):
        row[: len(address)] = np.frombuffer(address, np.uint8)
    return rows, np.array([len(address) for address in packed], np.int64)


def _topic_received(plan: Plan, group: DeviceGroup, number: int) -> int:
    """Number of the one topic that a device receives; -1 where each stream has its own."""
    subscribes, senders = group.subscribes, publishing_to(group, plan.groups)
    if subscribes is None or subscribes.wildcard or senders is None or senders.publishes is None:
        return -1
    if subscribes.answers:
        return number
    return topic_number(number, group.count, senders.publishes.topics)


def _qos_received(plan: Plan, group: DeviceGroup) -> int:
    """Return the QoS of messages for a group whose subscriptions are granted as requested."""
    subscribes, senders = group.subscribes, publishing_to(group, plan.groups)
    if subscribes is None or senders is None or senders.publishes is None:
        return 0 if subscribes is None else subscribes.qos
    published = senders.publishes.qos
    if subscribes.answers:
        answering = (one for one in plan.groups if publishing_to(one, plan.groups) is senders)
        published = max((one.responds.qos for one in answering if one.responds), default=0)
    return min(subscribes.qos, published)


class _Builder:
    """The lists that `build_fleet` fills, device by device."""

    def __init__(self, plan: Plan, count: int) -> None:
        self.plan = plan
        self.devices = Device.rows(count)
        for column in ("descriptor", "publisher", "sender", "qos2", "holder", "responses"):
            self.devices[column] = -1
        if plan.targets[0].transport != "tcp":
            self.devices["flags"] = STREAMED
        self.groups, self.prefixes = _group_rows(plan)
        self.publishing = 0
        self.topics, self.connects = _Parts(), _Parts()
        self.queues: dict[tuple[str, int, int], int] = {}
        self.pairs = self.senders = self.receivers = self.holders = 0
        self.window = self.held = 1

    def add_publisher(self, row: int, owner: DeviceGroup, number: int) -> None:
        publishes = owner.publishes
        if publishes is None:
            return
        device = self.devices[row]
        device.publisher = self.publishing
        self.publishing += 1
        number = topic_number(number, owner.count, publishes.topics)
        topic = topic_name(publishes, number).encode()
        self.topics.append(topic)
        group = self.groups[device.group]
        if self.plan.scenario.payload_template is None and group.size_most > _whole_limit(
            self.plan
        ):
            group.body_apart = 1
        size_bytes = HEADER_BYTES if group.body_apart else group.size_most
        group.packet_most = max(group.packet_most, len(topic) + size_bytes + _HEADERS_MOST_BYTES)
        if publishes.qos > 0:
            self._add_sender(device, publishes.window)

    def add_subscriber(self, row: int, owner: DeviceGroup, number: int) -> None:
        subscribes = owner.subscribes
        if subscribes is None:
            return
        device = self.devices[row]
        first, expected = streams_received(self.plan, owner, number)
        device.stream_first = first
        device.stream_count = expected
        device.topic = _topic_received(self.plan, owner, number)
        device.qos = _qos_received(self.plan, owner)
        device.acknowledge_every = subscribes.acknowledge_every
        device.pair_first = self.pairs
        if subscribes.shared is not None:
            device.flags |= SHARED
            device.pair_first = self.queues.setdefault((owner.name, first, expected), self.pairs)
        if device.pair_first == self.pairs:
            self.pairs += expected
        if subscribes.acknowledge_every > 1 and subscribes.qos == 1:
            device.holder = self.holders
            self.holders += 1
            self.held = max(self.held, subscribes.acknowledge_every)
        if subscribes.qos == 2:
            device.qos2 = self.receivers
            self.receivers += 1

    def add_responder(self, row: int, owner: DeviceGroup) -> None:
        """Add the topics of a responder, one for each of its streams, after all others."""
        asking = publishing_to(owner, self.plan.groups)
        if owner.responds is None or asking is None or asking.publishes is None:
            return
        device = self.devices[row]
        device.responses = len(self.topics)
        first = device.stream_first - asking.publishes.first_stream
        for number in range(first, first + device.stream_count):
            self.topics.append(f"{owner.responds.topic_prefix}/{number}".encode())
        if owner.responds.qos > 0:
            self._add_sender(device, owner.responds.window)

    def _add_sender(self, device: Device, window: int) -> None:
        device.sender = self.senders
        self.senders += 1
        self.window = max(self.window, window)


def _publishers(plan: Plan, group: Table, number: Table, publisher: Table) -> Rows[Publisher]:
    """Return the publishers before their message 0.

    The arrays have, by device, its group, its number there and that of its publisher, -1 for none.
    """
    rows = np.flatnonzero(publisher >= 0)
    owners, numbers = group[rows], number[rows]
    none = Publishes("", 1, 0, 1.0, 1)
    sent = [owner.publishes or none for owner in plan.groups]
    count = np.array([owner.count for owner in plan.groups], np.float64)
    period_ns = np.minimum(count / [publishes.rate for publishes in sent] * 1e9, _LONGEST_PERIOD_NS)
    return make_publishers(
        rows,
        np.array([publishes.first_stream for publishes in sent])[owners] + numbers,
        numbers / count[owners],
        period_ns[owners],
        np.array([ARRIVALS[publishes.arrivals] for publishes in sent])[owners],
    )


def _body_of(plan: Plan) -> tuple[Bytes, Rows[Place]]:
    """Return the body of the largest message, and the places that each message fills."""
    largest = max(largest_payload_bytes(plan.groups), HEADER_BYTES)
    path = plan.scenario.payload or plan.scenario.payload_template
    if path is None:
        return make_body(largest - HEADER_BYTES, plan.scenario.seed), no_template()
    body, template = np.frombuffer(bytearray(Path(path).read_bytes()), np.uint8), no_template()
    if plan.scenario.payload_template is not None:
        body, template = read_template(body.tobytes())
    if len(body) != largest - HEADER_BYTES:
        raise ScenarioError(f"payload: {path} changed its length; run again")
    return body, template


def _whole_limit(plan: Plan) -> int:
    """Return the limit of the bytes of a packet that is stored until it is complete.

    Code that answers a message, or reads its body, needs it as a whole.
    """
    answering = any(owner.responds is not None for owner in plan.groups)
    if answering or plan.behaviour != MESSAGING:
        return plan.max_packet_bytes
    return min(plan.max_packet_bytes, _WHOLE_BYTES)


def _run_of(plan: Plan) -> Rows[RunConstants]:
    rows = RunConstants.rows(1)
    run = rows[0]
    run.run_tag = plan.run_tag
    run.version = plan.version
    run.seed = plan.scenario.seed & 0x7FFFFFFF
    run.packet_limit = plan.max_packet_bytes
    run.whole_limit = _whole_limit(plan)
    run.wall_ns = time.time_ns() - clock_ns()
    run.tick_ns = plan.send_tick_us * 1000
    run.epoll = run.timer = run.linger_timer = run.account = -1
    return rows


def build_fleet(plan: Plan, worker: WorkerPlan, page: SharedPage | None = None) -> PlannedFleet:
    """Expand a worker's shares. `page` is its part of the live page, or a private one."""
    page = page or private_page(1, len(plan.groups))
    group = np.concatenate([np.full(share.count, share.group, np.int64) for share in worker.shares])
    device = np.concatenate(
        [np.arange(share.start, share.stop, share.step, dtype=np.int64) for share in worker.shares]
    )
    count = len(group)
    rows = _Builder(plan, count)
    rows.devices["group"] = group
    clients = (
        None
        if plan.scenario.clients_file is None
        else read_clients(Path(plan.scenario.clients_file))
    )
    for row in range(count):
        owner, number = plan.groups[int(group[row])], int(device[row])
        rows.devices[row].target = target_number(plan, owner, number)
        rows.devices[row].keep_alive_ns = owner.keep_alive_s * 1_000_000_000
        rows.connects.append(connect_packet(plan, owner, number, owner.clean_start, clients))
        rows.add_publisher(row, owner, number)
        rows.add_subscriber(row, owner, number)
    for row in range(count):
        rows.add_responder(row, plan.groups[int(group[row])])
    topics, topic_ends = rows.topics.arrays()
    connect_packets, connect_ends = rows.connects.arrays()
    addresses, address_bytes = _addresses(plan.targets)
    body, template = _body_of(plan)
    slots = len(plan.groups) * len(SERIES) * len(INTENDED_PHASES)
    source = b"" if worker.source_address is None else socket_address(worker.source_address, 0)
    responding = any(owner.responds is not None for owner in plan.groups)
    whole_bytes = _whole_limit(plan)
    buffer_bytes = max(_BUFFER_BYTES, 2 * whole_bytes)
    # With messages that were withheld before, and with a response to each message.
    out_bytes = max(buffer_bytes, 2 * int(rows.groups["packet_most"].max()))
    out_bytes = out_bytes * (1 + responding) + 4 * rows.held
    return PlannedFleet(
        plan=plan,
        group=group,
        device=device,
        devices=rows.devices,
        groups=rows.groups,
        run=_run_of(plan),
        connects=ConnectQueue.rows(1),
        totals=page.totals,
        attention=Attention.rows(1),
        stalls=Stall.rows(STALLS_LIMIT),
        counters=page.counts[0],
        histograms=_mapped(slots, BUCKETS * 4).view(np.uint32),
        stats=Stat.rows(slots),
        pairs=make_pairs(rows.pairs),
        gaps=many_rows(Gap, GAPS_LIMIT),
        refusals=Refusal.rows(256),
        violations=np.zeros(len(VIOLATIONS), np.int64),
        doubts=Doubt.rows(0),
        repeats=make_pairs(0),
        repeat_gaps=Gap.rows(0),
        repeat_pool=GapPool.rows(1),
        copies=many_rows(Copy, COPIES_LIMIT),
        withheld=many_rows(Withheld, WITHHELD_LIMIT),
        prefixes=rows.prefixes,
        senders=Sender.rows(rows.senders),
        window=InFlight.grid(rows.window, rows.senders),
        received_ids=np.zeros((rows.receivers, RECEIVED_BYTES), np.uint8),
        doubtful_ids=np.zeros((rows.receivers, RECEIVED_BYTES), np.uint8),
        held_ids=np.zeros((rows.holders, rows.held), np.int64),
        held_pairs=np.zeros((rows.holders, rows.held), np.int64),
        held_sequences=np.zeros((rows.holders, rows.held), np.int64),
        publishers=_publishers(plan, group, device, rows.devices["publisher"]),
        program=make_program(0),
        heap=Due.rows(max(rows.publishing, 1)),
        topics=topics,
        topic_ends=topic_ends,
        body=body,
        body_crc=body_crc_states(body),
        template=template,
        waiting=np.zeros(max(count, 1), np.int32),
        connect_packets=connect_packets,
        connect_ends=connect_ends,
        connacks=np.zeros((len(plan.groups), _CONNACK_BYTES), np.uint8),
        addresses=addresses,
        address_bytes=address_bytes,
        source=np.frombuffer(bytearray(source), np.uint8),
        buffer=np.zeros(buffer_bytes, np.uint8),
        out=np.zeros(out_bytes, np.uint8),
        partial=_mapped(count, whole_bytes + _BODY_STATE_BYTES),
        batch=Sent.rows(BATCH_LIMIT),
        events=Event.rows(EVENT_LIMIT + _SPARE_EVENTS),
        control=np.zeros(4 * max(buffer_bytes, out_bytes), np.uint8),
        ready=np.zeros(max(count, 1) + EVENTS_AT_ONCE, np.int64),
        epoll_events=np.zeros(EVENTS_AT_ONCE * EVENT_WORDS, np.int32),
        clock=clock_words(),
        message=np.zeros(MESSAGE_WORDS, np.int64),
        words=np.zeros(4, np.int32),
    )


def renew_fleet(fleet: PlannedFleet, plan: Plan) -> None:
    """Forget the messages of a run that has none in flight, before another one is played.

    The plans of the two differ in rates and tags alone, and the connections stay.
    """
    fleet.plan = plan
    fleet.run.run_tag = plan.run_tag
    fleet.run.tick_ns = plan.send_tick_us * 1000
    fleet.run.measure_ns = fleet.run.end_ns = 0
    fleet.program = make_program(0)
    fleet.held["doubts"][:] = 0
    if fleet.totals.copies:
        fleet.held["copies"][:] = 0
    for name in _TOTALS_OF_A_RUN:
        fleet.held["totals"][name] = 0
    fleet.counters[:] = fleet.violations[:] = 0
    fleet.pairs[:] = make_pairs(len(fleet.pairs))
    fleet.repeats[:] = make_pairs(len(fleet.repeats))
    publisher = fleet.devices["publisher"]
    fleet.publishers[:] = _publishers(plan, fleet.group, fleet.device, publisher)
    fleet.devices["taken"] = fleet.devices["unit_sent"] = 0
    fleet.devices["flags"] &= ~np.int16(WINDOW_FULL | WAITING | PUSHED_BACK)


def plan_schedule(fleet: PlannedFleet, start_ns: int) -> None:
    """Fix the schedule that begins at `start_ns`; every publisher waits for its message 0."""
    fleet.program = make_program(start_ns)
    begin_schedule(fleet.publishers, fleet.program, fleet.run.seed)
    size = 0
    for number, due_ns in enumerate(fleet.publishers["due_ns"].tolist()):
        if due_ns < fleet.run.end_ns:
            size = heap_push(fleet.heap, size, due_ns, number)
    fleet.totals.heap_size = size
    fleet.totals.scheduled = size
