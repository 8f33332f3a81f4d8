"""All arrays of a worker: the only list of their names and types (arrays.py)."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadgen.kernels.accounting import Gap, GapPool, Pair
from loadgen.kernels.arrays import (
    Arrays,
    ByteRows,
    Bytes,
    CountRows,
    Float64,
    Grid,
    Int32,
    Int32s,
    Int64,
    Int64Rows,
    Int64s,
    Record,
    Rows,
)
from loadgen.kernels.attention import Attention, Stall
from loadgen.kernels.device import Device
from loadgen.kernels.in_flight import InFlight, Sender
from loadgen.kernels.pacer import Due, ProgramStep, Publisher
from loadgen.kernels.payload import Place
from loadgen.kernels.repeats import Copy, Doubt, Withheld
from loadgen.metrics.interval import COUNTERS


class GroupRecord(Record):
    """The values that the devices of a group share."""

    qos: Int64
    retain: Int64
    size_least: Int64
    size_most: Int64
    packet_most: Int64
    """Upper bound of the bytes that a PUBLISH of the group takes in `out`."""
    body_apart: Int64
    """1 if `out` gets only the head of a message, and its body is sent from `body`."""
    header_place: Int64
    """Place of the header in its messages (kernels/payload.py)."""
    outside_bytes: Int64
    """Bytes of its sizes that are not in the payload: those of a header in another place."""
    period_ns: Float64
    """Time between the messages of one of its publishers, 0 in a closed loop."""
    arrival: Int64
    version: Int64
    property_first: Int64
    property_end: Int64
    """The properties of its PUBLISH packets are properties[property_first : property_end]."""
    body_first: Int64
    body_end: Int64
    crc_first: Int64
    place_first: Int64
    place_end: Int64
    """Its part of `body`, the first of its entries in `body_crc`, and its part of `template`."""
    unit: Int64
    read_most: Int64
    """Bytes that a device takes at a read, at the times of a slow reader; 0 for all that are ready,
    at once."""
    first_stream: Int64
    counts_as: Int64
    """The group whose counters count the messages of its publishers."""
    connack_bytes: Int64
    """Length of its usual CONNACK in `connacks`, 0 before the first."""
    capacity: Int64
    """Messages that each device may have in flight after that CONNACK."""
    keep_alive_ns: Int64
    acknowledge_every: Int64
    """Keep-alive and batch of acknowledgements of each device after that CONNACK."""


class StreamSource(Record):
    """The publishers of messages, or of the requests that they respond to, and their topics."""

    group: Int64
    first_stream: Int64
    senders: Int64
    topics: Int64
    part: Int64
    """Their topics are parts[part : part_end], one after the other."""
    part_end: Int64


class TopicPart(Record):
    """The text pattern_text[start : end] of topics, and the number that follows it."""

    start: Int32
    end: Int32
    number: Int32
    """NO_NUMBER, TOPIC_NUMBER or DEVICE_NUMBER."""


NO_NUMBER, TOPIC_NUMBER, DEVICE_NUMBER = 0, 1, 2


class StreamRange(Record):
    """Streams of one source that a device must receive, with a pair each."""

    stream_first: Int32
    stream_count: Int32
    pair_first: Int32
    source: Int32
    topic: Int32
    """Number of the topic that all of them have, -1 if they have several."""
    qos: Int32
    """QoS with which messages must arrive: the lower of the published and the granted one."""


class ConnectQueue(Record):
    """The queue in `waiting` of devices to connect."""

    first: Int64
    """Place of the next device; place 0 follows the last one."""
    count: Int64
    in_flight: Int64
    """Connects that kernels keep in progress; 0 if Python begins each connect."""
    accepted_ns: Int64
    """Time of the last CONNACK with success."""


class RunConstants(Record):
    """Constants of the run, and its window, which is set when the schedule begins."""

    run_tag: Int64
    seed: Int64
    measure_ns: Int64
    end_ns: Int64
    connect_ns: Int64
    """Begin of the connect phase, 0 before and after it."""
    packet_limit: Int64
    """Limit of the bytes of a packet from the broker."""
    whole_limit: Int64
    """Limit of the bytes of a packet that is stored until it is complete; the body of a longer
    PUBLISH is streamed."""
    wall_ns: Int64
    """CLOCK_REALTIME − the run's clock."""
    tick_ns: Int64
    """Time between two sends; 0 if each message is sent when it is due."""
    epoll: Int64
    timer: Int64
    linger_timer: Int64
    account: Int64
    """Descriptor of the worker's /proc/.../schedstat."""


class Totals(GapPool):
    """The totals of a worker: its row of the live page (worker/shared_counts.py)."""

    publishes: Int64
    """All PUBLISH packets that were handled."""
    strays: Int64
    """Foreign, misrouted and corrupt messages, and others without a place in a stream."""
    damaged: Int64
    """Damaged messages whose place in a stream is known."""
    withdrawn: Int64
    """Deliveries that are no longer expected, because the broker refused their message."""
    withheld: Int64
    """Number of rows of `withheld`."""
    copies: Int64
    """Number of entries of `copies`."""
    unreleased: Int64
    """Messages of QoS 2 that were received and have no PUBREL yet."""
    lined_up: Int64
    """Deliveries of messages that wait to be sent and have no due time."""
    in_flight: Int64
    """Messages sent and not yet acknowledged (QoS 1 and 2)."""
    connecting: Int64
    connected: Int64
    scheduled: Int64
    """Publishers with messages left in their schedule."""
    heap_size: Int64
    events: Int64
    control_bytes: Int64
    rearm: Int64
    """1 if the timer must be armed again for a new entry of the heap."""
    ready: Int64
    """Number of devices in `ready`, which may have more to read."""
    beat_ns: Int64
    """Time at which Python last wrote the fields below."""
    connect_failures: Int64
    subscribed: Int64
    owed: Int64
    """Messages due but not yet sent."""
    disconnects: Int64
    finished: Int64
    """1 if the schedule is over and no message is unsent or unacknowledged."""


class CounterRecord(Record):
    """The counters of a group and a phase since the begin of the run: `interval.COUNTERS`."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...

        def __setattr__(self, name: str, value: int) -> None: ...

    else:
        __annotations__ = dict.fromkeys(COUNTERS, Int64)


class Stat(Record):
    """Exact figures of a latency histogram."""

    count: Int64
    sum_ns: Int64
    min_ns: Int64
    max_ns: Int64


class Refusal(Record):
    """Number of acknowledgements with a failure code, and 1 if it was reported to Python."""

    count: Int64
    reported: Int64


class Event(Record):
    """An event for Python; its bytes are control[offset : offset + length]."""

    kind: Int32
    device: Int32
    value: Int64
    offset: Int64
    length: Int64
    moment_ns: Int64


class Sent(Record):
    """A message of a batch, to be counted or taken back."""

    sequence: Int64
    due_ns: Int64
    load_ns: Int64
    end: Int64
    """End of the message in `out`."""
    body_bytes: Int64
    """Bytes of `body` that follow it."""
    packet_id: Int64
    deliveries: Int64
    stream: Int64
    destination: Int64


class Fleet(Arrays):
    """The devices of one worker; `group` and `device` identify each row."""

    group: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]

    devices: Rows[Device]
    groups: Rows[GroupRecord]
    run: RunConstants
    connects: ConnectQueue
    totals: Totals
    attention: Attention
    stalls: Rows[Stall]
    counters: Grid[CounterRecord]
    """Counters by group and phase, in the live page."""
    histograms: CountRows
    """Figures by slot: group, series and phase."""
    stats: Rows[Stat]
    pairs: Rows[Pair]
    gaps: Rows[Gap]
    """Gaps of the pairs; `totals` has their use."""
    refusals: Rows[Refusal]
    """Failed acknowledgements by reason code."""
    violations: Int64s
    """Counts by the index of `VIOLATIONS`."""
    doubts: Rows[Doubt]
    """Doubts by pair; empty if no session can be resumed. `repeats` accounts for the repeats."""
    repeats: Rows[Pair]
    repeat_gaps: Rows[Gap]
    repeat_pool: GapPool
    copies: Rows[Copy]
    withheld: Rows[Withheld]
    ranges: Rows[StreamRange]
    """Ranges by device, in order; several consumers of a queue have the same pairs."""
    sources: Rows[StreamSource]
    parts: Rows[TopicPart]
    pattern_text: Bytes
    senders: Rows[Sender]
    window: Grid[InFlight]
    received_ids: ByteRows
    doubtful_ids: ByteRows
    """Those of `received_ids` when the last connection broke, without those that came again."""
    held_ids: Int64Rows
    held_pairs: Int64Rows
    held_sequences: Int64Rows
    """Pair, or -1, and sequence of the messages with these identifiers."""
    publishers: Rows[Publisher]
    program: Rows[ProgramStep]
    heap: Rows[Due]
    topics: Bytes
    topic_ends: Int64s
    header_places: Int64s
    """Places of headers that are not in front of the payload."""
    header_property: Bytes
    properties: Bytes
    body: Bytes
    body_crc: Int64s
    template: Rows[Place]
    waiting: Int32s
    connect_packets: Bytes
    connect_ends: Int64s
    connacks: ByteRows
    """The usual CONNACK of each group, which need not be shown to Python again."""
    addresses: ByteRows
    """A sockaddr for each target; the family comes first, least byte first."""
    address_bytes: Int64s
    source: ByteRows
    source_bytes: Int64s
    """The sockaddr from which each group connects; if it is empty, the kernel chooses."""
    buffer: Bytes
    out: Bytes
    partial: ByteRows
    """The begin of an incomplete packet of each device; its head alone if its body is streamed."""
    batch: Rows[Sent]
    events: Rows[Event]
    control: Bytes
    ready: Int64s
    epoll_events: Int32s
    clock: Int64s
    message: Int64s
    """Scratch of `recvmsg` (kernels/syscalls.py)."""
    words: Int32s
