"""The arrays of one worker (kernels/fleet.py), made from its plan.

Arrays for rare events are mapped without being touched, so that an idle device costs its row, its
CONNECT packet and the kernel's socket.
"""

import mmap
import socket
import struct
import time
from array import array
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np

from loadgen.errors import BrokerUnreachableError, HostLimitError, ScenarioError
from loadgen.kernels import fleet as records
from loadgen.kernels import pacer, repeats
from loadgen.kernels.accounting import Gap, GapPool, make_pairs
from loadgen.kernels.arrays import Bytes, Int64s, Record, Rows, joined
from loadgen.kernels.attention import NEVER_NS, STALLS_LIMIT, Attention, Stall
from loadgen.kernels.counting import EVENT_LIMIT, INTENDED_PHASES
from loadgen.kernels.device import PUSHED_BACK, SHARED, STREAMED, WAITING, WINDOW_FULL, Device
from loadgen.kernels.fleet import GroupRecord
from loadgen.kernels.in_flight import RECEIVED_BYTES, InFlight, Sender
from loadgen.kernels.payload import (
    HEADER_BYTES,
    HEADER_PROPERTY,
    IN_FRONT,
    IN_PROPERTY,
    NOWHERE,
    SHORT,
    SHORT_BYTES,
    Place,
    body_crc_states,
    make_body,
)
from loadgen.kernels.reactor import EVENTS_AT_ONCE
from loadgen.kernels.sender import BATCH_LIMIT
from loadgen.kernels.syscalls import EVENT_WORDS, MESSAGE_WORDS
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import SERIES
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import PUBLISH
from loadgen.mqtt.properties import Properties, write_properties
from loadgen.mqtt.violations import VIOLATIONS
from loadgen.plan import addressing, groups
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.deliveries import Flow, TopicSource
from loadgen.plan.payload_template import no_template, read_template
from loadgen.plan.plan import Plan
from loadgen.sentences import WORKER_TEXT
from loadgen.worker.clock import clock_ns, clock_words
from loadgen.worker.logins import Listed, connect_of, listed_clients
from loadgen.worker.shared_counts import SharedPage, private_page

_SLOTS_OF_A_GROUP = len(SERIES) * len(INTENDED_PHASES)
_BUFFER_BYTES = 256 * 1024
_WHOLE_BYTES = 64 * 1024  # longest message that a connection can store whole; longer ones stream
_BODY_STATE_BYTES = 8  # the state of a body that is streamed, after its head
GAPS_LIMIT = 1 << 26
_SPARE_EVENTS = 1024  # most events that one `poll` adds without a check for room
_HEADERS_MOST_BYTES = 16 + len(HEADER_PROPERTY)  # of a PUBLISH without its topic
_LONGEST_PERIOD_NS = 1e17  # three years; a few of them still fit into 64 bits
_MAP_NORESERVE = 0x4000
_CONNACK_BYTES = 128  # longer packets each go through Python
_PLACES = {"payload": IN_FRONT, "property": IN_PROPERTY, "none": NOWHERE}
_NUMBERS = {"": records.NO_NUMBER, "topic": records.TOPIC_NUMBER, "device": records.DEVICE_NUMBER}
_TOTALS_OF_A_RUN = (
    *GapPool.names(),
    *("publishes", "damaged", "withdrawn", "lined_up", "scheduled", "heap_size", "owed"),
    *("disconnects", "finished", "withheld", "copies"),
)


def socket_address(host: str, port: int) -> bytes:
    """Return the `struct sockaddr` of an address; names are looked up."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BrokerUnreachableError(WORKER_TEXT.NO_NAME(host=host, reason=str(error))) from None
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
        message = WORKER_TEXT.NOT_MAPPED(size=size, connections=rows, reason=str(error))
        raise HostLimitError(message) from None
    area.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(area, np.uint8)[: rows * columns].reshape(rows, columns)


def many_rows(layout: type[Record], count: int) -> Any:
    """Return zeroed records; unused rows take no memory."""
    return _mapped(count, layout.layout.itemsize).reshape(-1).view(layout.layout)


def _group_rows(plan: Plan) -> Rows[GroupRecord]:
    rows = GroupRecord.rows(len(plan.groups))
    rows["counts_as"] = np.arange(len(rows))
    rows["outside_bytes"] = plan.scenario.outside_bytes
    _set_schedule(rows, plan)
    for number, group in enumerate(plan.groups):
        row = rows[number]
        row.version = plan.version_of(group)
        if group.publishes is not None:
            row.qos = group.publishes.qos
            row.retain = group.publishes.retain
            row.size_least, row.size_most = group.publishes.size_bytes
            row.unit = group.publishes.unit
            row.first_stream = group.publishes.first_stream
        if group.responds is not None:
            row.qos = group.responds.qos
        if group.subscribes is not None:
            row.read_most = int(group.subscribes.read_rate > 0)
    return rows


def _set_schedule(rows: Rows[GroupRecord], plan: Plan) -> None:
    sent = [owner.publishes or groups.Publishes("", 1.0) for owner in plan.groups]
    rate = np.array([publishes.rate for publishes in sent])
    period_ns = np.zeros(len(sent))  # for a closed loop
    count = np.array([owner.count for owner in plan.groups], np.float64)
    np.divide(1e9 * count, rate, out=period_ns, where=rate > 0)
    rows["period_ns"] = np.minimum(period_ns, _LONGEST_PERIOD_NS)
    rows["arrival"] = [pacer.ARRIVALS[publishes.arrivals] for publishes in sent]


def _source_rows(
    plan: Plan, sources: Iterable[TopicSource]
) -> tuple[Rows[records.StreamSource], Rows[records.TopicPart], Bytes]:
    """Return the sources, the parts of their topics and the text of these."""
    numbers = {group.name: number for number, group in enumerate(plan.groups)}
    rows: list[tuple[int, ...]] = []
    parts: list[tuple[int, int, int]] = []
    text = bytearray()
    for source in sources:
        begin = len(parts)
        words = [*groups.NUMBER.split(source.topic), ""]
        for word, number in zip(words[::2], words[1::2], strict=True):
            start = len(text)
            text += word.encode()
            if word or number:
                parts.append((start, len(text), _NUMBERS[number]))
        senders, publishes = source.senders, source.senders.publishes
        first = publishes.first_stream if publishes is not None else 0
        number = numbers[senders.name]
        rows.append((number, first, senders.count, senders.topic_count, begin, len(parts)))
    return records.StreamSource.of(rows), records.TopicPart.of(parts), np.frombuffer(text, np.uint8)


def _addresses(places: Iterable[tuple[str | None, int]]) -> tuple[Bytes, Int64s]:
    """Return a sockaddr for each host and port, and its length, 0 without a host."""
    packed = [socket_address(host, port) if host else b"" for host, port in places]
    rows = bytearray(b"".join(address.ljust(28, b"\0") for address in packed))
    return np.frombuffer(rows, np.uint8).reshape(-1, 28), np.array([*map(len, packed)], np.int64)


class _Builder:
    """The lists that `build_fleet` fills, share by share."""

    def __init__(self, plan: Plan, count: int) -> None:
        self.plan = plan
        self.devices = Device.rows(count)
        for column in ("descriptor", "publisher", "sender", "qos2", "holder", "responses"):
            self.devices[column] = -1
        if plan.targets[0].transport != "tcp":
            self.devices["flags"] = STREAMED
        self.groups = _group_rows(plan)
        self.matches = [addressing.matches_to(plan, group) for group in plan.groups]
        self.sources = list(dict.fromkeys(m.source for one in self.matches for m in one))
        self.deliveries = [addressing.deliveries_to_each(plan, group) for group in plan.groups]
        self.delivered = array("i")
        self.ranges = array("i")
        self.publishing = 0
        self.topics: list[bytes] = []
        self.connects: list[bytes] = []
        self.queues: dict[tuple[str, int, int, int], int] = {}
        self.pairs = self.senders = self.receivers = self.holders = 0
        self.window = self.held = 1

    def add_devices(self, first: int, share: groups.Share, listed: Listed) -> None:
        """Add the devices of a share, from row `first` on, without their responses."""
        owner, plan = self.plan.groups[share.group], self.plan
        rows = self.devices[first : first + share.count]
        rows["group"] = share.group
        rows["target"] = [addressing.target_number(plan, owner, n) for n in share.devices]
        rows["keep_alive_ns"] = owner.keep_alive_s * 1_000_000_000
        for number in share.devices:
            connect = connect_of(plan, owner, number, owner.clean_start, listed)
            self.connects.append(encode(connect, connect.protocol_version))
        if owner.publishes is not None:
            self._add_publishers(rows, share, owner.publishes)
        for row, number in enumerate(share.devices, first):
            self.add_subscriber(row, owner, number)

    def _add_publishers(
        self, rows: Rows[Device], share: groups.Share, publishes: groups.Publishes
    ) -> None:
        rows["publisher"] = np.arange(self.publishing, self.publishing + share.count)
        self.publishing += share.count
        self.delivered.extend(map(self.deliveries[share.group], share.devices))
        owner = self.plan.groups[share.group]
        topics = [owner.expand(publishes.topic, number).encode() for number in share.devices]
        self.topics += topics
        group = self.groups[share.group]
        if publishes.payload_template is None and group.size_most > _whole_limit(self.plan):
            group.body_apart = 1
        size_bytes = HEADER_BYTES if group.body_apart else group.size_most
        size_bytes += group.property_end - group.property_first + _HEADERS_MOST_BYTES
        group.packet_most = max(group.packet_most, size_bytes + max(map(len, topics), default=0))
        if publishes.qos > 0:
            rows["sender"] = np.arange(self.senders, self.senders + share.count)
            self.senders += share.count
            self.window = max(self.window, publishes.window)

    def add_subscriber(self, row: int, owner: groups.DeviceGroup, number: int) -> None:
        subscribes = owner.subscribes
        if subscribes is None:
            return
        device = self.devices[row]
        device.range_first = len(self.ranges) // len(records.StreamRange.names())
        device.qos = subscribes.qos
        device.acknowledge_every = subscribes.acknowledge_every
        for match in self.matches[device.group]:
            streams = addressing.streams_of(match, number)
            if streams:
                self._add_range(device, match, number, streams)
        if subscribes.shared:
            device.flags |= SHARED
        if subscribes.acknowledge_every > 1 and subscribes.qos == 1:
            device.holder = self.holders
            self.holders += 1
            self.held = max(self.held, subscribes.acknowledge_every)
        if subscribes.qos == 2:
            device.qos2 = self.receivers
            self.receivers += 1

    def add_responder(self, row: int, owner: groups.DeviceGroup, number: int) -> None:
        """Add the topics of a responder, one for each of its streams, after all others."""
        if owner.responds is None:
            return
        device = self.devices[row]
        device.responses = len(self.topics)
        (match,) = self.matches[device.group]
        for sender in match.senders_to(number):
            topic = match.source.senders.expand(owner.responds.topic, sender)
            self.topics.append(topic.encode())
        if owner.responds.qos > 0:
            device.sender = self.senders
            self.senders += 1
            self.window = max(self.window, owner.responds.window)

    def _add_range(self, device: Device, match: Flow, number: int, streams: range) -> None:
        """Add streams that a device receives, with pairs that the consumers of a queue share."""
        source, subscribes = match.source, match.receivers.subscribes
        place, pairs = self.sources.index(source), self.pairs
        if match.shared:
            text = match.receivers.expand(match.filter, number)
            key = (text, device.group, place, device.target if match.brokers > 1 else 0)
            pairs = self.queues.setdefault(key, pairs)
        if pairs == self.pairs:
            self.pairs += len(streams)
        senders = match.senders_to(number)
        topic = source.senders.topic_number(senders[0])
        if source.senders.topic_number(senders[-1]) != topic:
            topic = -1
        qos = min(source.qos, subscribes.qos if subscribes is not None else 0)
        self.ranges.extend((streams.start, len(streams), pairs, place, topic, qos))
        device.range_count += 1


def _publishers(
    plan: Plan, senders: Rows[GroupRecord], devices: Rows[Device], number: Int64s, deliveries: Any
) -> Rows[pacer.Publisher]:
    """Return the publishers before their message 0; `number` is each device's in its group."""
    rows = np.flatnonzero(devices["publisher"] >= 0)
    owners, numbers = devices["group"][rows], number[rows]
    count = np.array([owner.count for owner in plan.groups], np.float64)
    publishers = pacer.Publisher.rows(len(rows))
    publishers["device"] = rows
    publishers["stream"] = senders["first_stream"][owners] + numbers
    for name in ("arrival", "period_ns"):
        publishers[name] = senders[name][owners]
    # Constant streams begin one after the other, random ones need no phase.
    phases_ns = numbers / count[owners] * publishers["period_ns"]
    publishers["phase_ns"] = np.where(publishers["arrival"] == pacer.CONSTANT, phases_ns, 0.0)
    publishers["sequence"] = -1
    publishers["deliveries"] = deliveries
    most = [owner.publishes.messages if owner.publishes else 0 for owner in plan.groups]
    publishers["messages"] = np.array(most, np.int64)[owners]
    return publishers


def _contents(plan: Plan, rows: Rows[GroupRecord]) -> tuple[Bytes, Int64s, Rows[Place], Bytes]:
    """Return bodies, CRCs, places to fill, and properties; the row of each group gets its parts."""
    plain = [group for group in plan.groups if group.publishes and not _file_of(group.publishes)]
    sizes = [group.publishes.size_bytes for group in plain if group.publishes]
    # Behind a short header the body is longer.
    shortest = HEADER_BYTES - SHORT_BYTES if any(low < HEADER_BYTES for low, _ in sizes) else 0
    filler_bytes = max(groups.largest_payload_bytes(plain) - HEADER_BYTES, shortest)
    filler = make_body(filler_bytes, plan.scenario.seed)
    bodies, crcs, places = [filler], [body_crc_states(filler)], [cast("Int64s", no_template())]
    usual_place = _PLACES[plan.scenario.header]
    properties = bytearray()
    parts = {"": (0, len(filler), 0, 0, 0, usual_place)}
    for number, group in enumerate(plan.groups):
        path = "" if group.publishes is None else _file_of(group.publishes)
        if group.publishes is not None and path not in parts:
            body, template = np.frombuffer(Path(path).read_bytes(), np.uint8), no_template()
            header_place = usual_place
            if group.publishes.payload_template is not None:
                body, template, header_place = read_template(body.tobytes())
                header_place = max(header_place, usual_place)
            if len(body) != group.publishes.size_bytes[1] - HEADER_BYTES:
                raise ScenarioError(WORKER_TEXT.PAYLOAD_CHANGED(path=path))
            first, crc, place = (sum(map(len, one)) for one in (bodies, crcs, places))
            part = (first, first + len(body), crc, place, place + len(template), header_place)
            parts[path] = part
            bodies.append(body)
            places.append(cast("Int64s", template))
            crcs.append(body_crc_states(body))
        row = rows[number]
        row.body_first, row.body_end, row.crc_first, *rest = parts[path]
        row.place_first, row.place_end, row.header_place = rest
        row.property_first = len(properties)
        if (sent := group.publishes) is not None:
            stated = Properties(
                message_expiry_interval=sent.expiry_s, user_property=sent.user_properties
            )
            properties += write_properties(stated, PUBLISH)
        properties += HEADER_PROPERTY if row.header_place == IN_PROPERTY else b""
        row.property_end = len(properties)
    template = cast("Rows[Place]", np.concatenate(places))
    text = np.frombuffer(properties, np.uint8)
    return np.concatenate(bodies), np.concatenate(crcs), template, text


def _file_of(publishes: groups.Publishes) -> str:
    return publishes.payload or publishes.payload_template or ""


def _out_bytes(plan: Plan, rows: _Builder, buffer_bytes: int) -> int:
    """Return the size of `out`, with withheld answers and a response to each message."""
    responding = any(owner.responds is not None for owner in plan.groups)
    out_bytes = max(buffer_bytes, 2 * int(rows.groups["packet_most"].max()))
    return out_bytes * (1 + responding) + 4 * rows.held


def _header_places(plan: Plan, rows: Rows[GroupRecord]) -> Int64s:
    """Return the places of headers other than IN_FRONT."""
    places = set(rows["header_place"].tolist()) - {IN_FRONT}
    sizes = [one.publishes.size_bytes[0] for one in plan.groups if one.publishes]
    return np.array([*places, *(SHORT for size in sizes if size < HEADER_BYTES)], np.int64)


def _whole_limit(plan: Plan) -> int:
    """Return the most bytes of a packet that is stored whole: any packet, if code reads it."""
    answering = any(owner.responds is not None for owner in plan.groups)
    moved = plan.scenario.header != "payload" or any(
        group.publishes and group.publishes.payload_template for group in plan.groups
    )
    if answering or moved or plan.behaviour != groups.MESSAGING:
        return plan.max_packet_bytes
    return min(plan.max_packet_bytes, _WHOLE_BYTES)


def _run_of(plan: Plan) -> Rows[records.RunConstants]:
    rows = records.RunConstants.rows(1)
    run = rows[0]
    run.run_tag = plan.run_tag
    run.seed = plan.scenario.seed & 0x7FFFFFFF
    run.packet_limit = plan.max_packet_bytes
    run.whole_limit = _whole_limit(plan)
    run.wall_ns = time.time_ns() - clock_ns()
    run.tick_ns = plan.send_tick_us * 1000
    run.epoll = run.timer = run.linger_timer = run.account = -1
    return rows


def build_fleet(
    plan: Plan, worker: groups.WorkerPlan, page: SharedPage | None = None
) -> PlannedFleet:
    """Expand a worker's shares. `page` is its part of the live page, None for a private one."""
    page = page or private_page(1, len(plan.groups))
    group = np.concatenate([np.full(share.count, share.group, np.int64) for share in worker.shares])
    steps = [(share.start, share.stop, share.step) for share in worker.shares]
    device = np.concatenate([np.arange(*step, dtype=np.int64) for step in steps])
    count = len(group)
    rows = _Builder(plan, count)
    listed = listed_clients(plan)
    body, body_crc, template, properties = _contents(plan, rows.groups)
    firsts = accumulate((share.count for share in worker.shares), initial=0)
    shares = [*zip(firsts, worker.shares, strict=False)]
    for first, share in shares:
        rows.add_devices(first, share, listed)
    for first, share in shares:
        for row, number in enumerate(share.devices, first):
            rows.add_responder(row, plan.groups[share.group], number)
    topics, topic_ends = joined(rows.topics)
    sources, parts, pattern_text = _source_rows(plan, rows.sources)
    connect_packets, connect_ends = joined(rows.connects)
    addresses, address_bytes = _addresses((one.host, one.port) for one in plan.targets)
    source, source_bytes = _addresses((groups.source_of(one, worker), 0) for one in plan.groups)
    slots, whole_bytes = len(plan.groups) * _SLOTS_OF_A_GROUP, _whole_limit(plan)
    buffer_bytes = max(_BUFFER_BYTES, 2 * whole_bytes)
    out_bytes = _out_bytes(plan, rows, buffer_bytes)
    return PlannedFleet(
        plan=plan,
        group=group,
        device=device,
        devices=rows.devices,
        groups=rows.groups,
        run=_run_of(plan),
        connects=records.ConnectQueue.rows(1),
        totals=page.totals,
        attention=Attention.rows(1),
        stalls=Stall.rows(STALLS_LIMIT),
        counters=page.counts[0],
        histograms=_mapped(slots, BUCKETS * 4).view(np.uint32),
        stats=records.Stat.rows(slots),
        pairs=make_pairs(rows.pairs),
        gaps=many_rows(Gap, GAPS_LIMIT),
        refusals=records.Refusal.rows(256),
        violations=np.zeros(len(VIOLATIONS), np.int64),
        doubts=repeats.Doubt.rows(0),
        repeats=make_pairs(0),
        repeat_gaps=Gap.rows(0),
        repeat_pool=GapPool.rows(1),
        copies=many_rows(repeats.Copy, repeats.COPIES_LIMIT),
        withheld=many_rows(repeats.Withheld, repeats.WITHHELD_LIMIT),
        owners=many_rows(repeats.Owner, repeats.OWNERS_LIMIT),
        ranges=np.array(rows.ranges, np.int32).view(records.StreamRange.layout),
        sources=sources,
        parts=parts,
        pattern_text=pattern_text,
        senders=Sender.rows(rows.senders),
        window=InFlight.grid(rows.window, rows.senders),
        received_ids=np.zeros((rows.receivers, RECEIVED_BYTES), np.uint8),
        fresh_ids=np.zeros((1, RECEIVED_BYTES), np.uint8),
        released_ids=np.zeros((rows.receivers, RECEIVED_BYTES), np.uint8),
        doubtful_ids=np.zeros((rows.receivers, RECEIVED_BYTES), np.uint8),
        held_ids=np.zeros((rows.holders, rows.held), np.int64),
        held_pairs=np.zeros((rows.holders, rows.held), np.int64),
        held_sequences=np.zeros((rows.holders, rows.held), np.int64),
        publishers=_publishers(plan, rows.groups, rows.devices, device, rows.delivered),
        program=pacer.make_program(0),
        heap=pacer.Due.rows(max(rows.publishing, 1)),
        topics=topics,
        topic_ends=topic_ends,
        header_places=_header_places(plan, rows.groups),
        header_property=np.frombuffer(bytearray(HEADER_PROPERTY), np.uint8),
        properties=properties,
        body=body,
        body_crc=body_crc,
        template=template,
        waiting=np.zeros(max(count, 1), np.int32),
        connect_packets=connect_packets,
        connect_ends=connect_ends,
        connacks=np.zeros((len(plan.groups), _CONNACK_BYTES), np.uint8),
        addresses=addresses,
        address_bytes=address_bytes,
        source=source,
        source_bytes=source_bytes,
        buffer=np.zeros(buffer_bytes, np.uint8),
        out=np.zeros(out_bytes, np.uint8),
        partial=_mapped(count, whole_bytes + _BODY_STATE_BYTES),
        batch=records.Sent.rows(BATCH_LIMIT),
        events=records.Event.rows(EVENT_LIMIT + _SPARE_EVENTS),
        control=np.zeros(4 * max(buffer_bytes, out_bytes), np.uint8),
        ready=np.zeros(max(count, 1) + EVENTS_AT_ONCE, np.int64),
        epoll_events=np.zeros(EVENTS_AT_ONCE * EVENT_WORDS, np.int32),
        clock=clock_words(),
        message=np.zeros(MESSAGE_WORDS, np.int64),
        words=np.zeros(4, np.int32),
    )


def await_schedule(fleet: PlannedFleet) -> None:
    """Count what arrives as warm-up until the times of the run are known."""
    fleet.run.measure_ns, fleet.run.end_ns = NEVER_NS, 0


def renew_fleet(fleet: PlannedFleet, plan: Plan) -> None:
    """Forget the messages of a finished run; the next plan differs in rates and tags alone."""
    fleet.plan = plan
    fleet.run.run_tag = plan.run_tag
    fleet.run.tick_ns = plan.send_tick_us * 1000
    await_schedule(fleet)
    fleet.program = pacer.make_program(0)
    fleet.held["doubts"][:] = 0
    if fleet.totals.copies:
        fleet.held["copies"][:] = 0
    for name in _TOTALS_OF_A_RUN:
        fleet.held["totals"][name] = 0
    fleet.counters[:] = fleet.violations[:] = 0
    fleet.pairs[:] = make_pairs(len(fleet.pairs))
    fleet.repeats[:] = make_pairs(len(fleet.repeats))
    deliveries = fleet.publishers["deliveries"].copy()
    _set_schedule(fleet.groups, plan)
    fleet.publishers[:] = _publishers(plan, fleet.groups, fleet.devices, fleet.device, deliveries)
    fleet.devices["taken"] = fleet.devices["unit_sent"] = 0
    fleet.devices["flags"] &= ~np.int16(WINDOW_FULL | WAITING | PUSHED_BACK)


def plan_schedule(
    fleet: PlannedFleet, start_ns: int, rates: Iterable[tuple[int, float]] = ()
) -> None:
    """Fix the schedule that begins at `start_ns`; every publisher waits for its message 0.

    `rates` are the moments (ns) from which on the rate is a factor of the nominal one.
    """
    fleet.program = pacer.make_program(start_ns)
    for at_ns, factor in rates:
        fleet.program = pacer.with_rate(fleet.program, at_ns, factor)
    pacer.begin_schedule(fleet.publishers, fleet.program, fleet.run.seed)
    size = 0
    for number, due_ns in enumerate(fleet.publishers["due_ns"].tolist()):
        if due_ns < fleet.run.end_ns:
            size = pacer.heap_push(fleet.heap, size, due_ns, number)
    fleet.totals.heap_size = size
    fleet.totals.scheduled = size
