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
from loadgen.kernels.repeats import Copy, Doubt, Owner, Withheld
from loadgen.metrics.interval import COUNTERS


class GroupRecord(Record):
    qos: Int64
    retain: Int64
    size_least: Int64
    size_most: Int64
    packet_most: Int64  # upper bound of the bytes of a PUBLISH in `out`
    body_apart: Int64  # 1 if `out` gets only the head, and the body is sent from `body`
    header_place: Int64  # place of the header in its messages (payload.py)
    outside_bytes: Int64  # bytes of a message size that are not payload: a header elsewhere
    period_ns: Float64  # between the messages of a publisher, 0 in a closed loop
    arrival: Int64
    version: Int64
    property_first: Int64  # its part of `properties`
    property_end: Int64
    body_first: Int64  # its part of `body`
    body_end: Int64
    crc_first: Int64  # the first of its entries in `body_crc`
    place_first: Int64  # its part of `template`
    place_end: Int64
    unit: Int64
    read_most: Int64  # bytes of one read of a slow reader, 0 for all that are ready
    first_stream: Int64
    counts_as: Int64  # group whose counters count the messages of its publishers
    connack_bytes: Int64  # length of its usual CONNACK in `connacks`, 0 before the first
    capacity: Int64  # after that CONNACK: messages that each device may have in flight
    keep_alive_ns: Int64  # after that CONNACK
    acknowledge_every: Int64  # after that CONNACK: batch of acknowledgements


class StreamSource(Record):
    """The publishers of messages, or of the requests that they respond to, and their topics."""

    group: Int64
    first_stream: Int64
    senders: Int64
    topics: Int64
    part: Int64  # their topics are parts[part : part_end], one after the other
    part_end: Int64


class TopicPart(Record):
    """The text pattern_text[start : end] of topics, and the number that follows it."""

    start: Int32
    end: Int32
    number: Int32  # NO_NUMBER, TOPIC_NUMBER or DEVICE_NUMBER


NO_NUMBER, TOPIC_NUMBER, DEVICE_NUMBER = 0, 1, 2


class StreamRange(Record):
    """Streams of one source that a device must receive, with a pair each."""

    stream_first: Int32
    stream_count: Int32
    pair_first: Int32
    source: Int32
    topic: Int32  # number of the topic that all of them have, -1 if they have several
    qos: Int32  # of the messages: the lower of the published and the granted one


class ConnectQueue(Record):
    """The queue in `waiting` of devices to connect."""

    first: Int64  # place of the next device; place 0 follows the last one
    count: Int64
    in_flight: Int64  # connects that kernels keep in progress; 0 if Python begins each
    accepted_ns: Int64  # last CONNACK with success


class RunConstants(Record):
    """Constants of the run, and its window, which is set when the schedule begins."""

    run_tag: Int64
    seed: Int64
    measure_ns: Int64
    end_ns: Int64
    connect_ns: Int64  # begin of the connect phase, 0 before and after it
    packet_limit: Int64  # bytes of a packet from the broker at most
    whole_limit: Int64  # bytes of a packet that is stored whole; a longer body is streamed
    wall_ns: Int64  # CLOCK_REALTIME − the run's clock
    tick_ns: Int64  # between two sends; 0 if each message is sent when it is due
    epoll: Int64
    timer: Int64
    linger_timer: Int64
    account: Int64  # descriptor of the worker's /proc/.../schedstat


class Totals(GapPool):
    """The totals of a worker: its row of the live page (worker/shared_counts.py)."""

    publishes: Int64  # all PUBLISH packets that were handled
    strays: Int64  # foreign, misrouted, corrupt and other messages without a place in a stream
    damaged: Int64  # damaged messages whose place in a stream is known
    withdrawn: Int64  # deliveries no longer expected, because the broker refused their message
    withheld: Int64  # rows of `withheld`
    copies: Int64  # entries of `copies`
    unreleased: Int64  # messages of QoS 2 that were received and have no PUBREL yet
    lined_up: Int64  # deliveries of messages that wait to be sent and have no due time
    in_flight: Int64  # messages of QoS 1 and 2 sent and not yet acknowledged
    connecting: Int64
    connected: Int64
    scheduled: Int64  # publishers with messages left in their schedule
    heap_size: Int64
    events: Int64
    control_bytes: Int64
    rearm: Int64  # 1 if the timer must be armed again for a new entry of the heap
    ready: Int64  # devices in `ready`, which may have more to read
    beat_ns: Int64  # when Python last wrote the fields below
    connect_failures: Int64
    subscribed: Int64
    owed: Int64  # messages due but not yet sent
    disconnects: Int64
    finished: Int64  # 1 if the schedule is over and no message is unsent or unacknowledged


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
    end: Int64  # end of the message in `out`
    body_bytes: Int64  # bytes of `body` that follow it
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
    counters: Grid[CounterRecord]  # by group and phase, in the live page
    histograms: CountRows  # by slot: group, series and phase
    stats: Rows[Stat]
    pairs: Rows[Pair]
    gaps: Rows[Gap]  # of the pairs; `totals` has their use
    refusals: Rows[Refusal]  # failed acknowledgements by reason code
    violations: Int64s  # counts by the index of `VIOLATIONS`
    doubts: Rows[Doubt]  # by pair; empty if no session can be resumed
    repeats: Rows[Pair]  # pairs of the repeats that are in doubt
    repeat_gaps: Rows[Gap]
    repeat_pool: GapPool
    copies: Rows[Copy]
    withheld: Rows[Withheld]
    owners: Rows[Owner]  # by pair and sequence; of the latest messages of queues
    ranges: Rows[StreamRange]  # by device; several consumers of a queue have the same pairs
    sources: Rows[StreamSource]
    parts: Rows[TopicPart]
    pattern_text: Bytes
    senders: Rows[Sender]
    window: Grid[InFlight]
    received_ids: ByteRows
    fresh_ids: ByteRows  # one row: of the messages of QoS 2 in the bytes at hand
    released_ids: ByteRows  # of PUBREL packets on this connection
    doubtful_ids: ByteRows  # both of these when connections broke, without those seen again
    held_ids: Int64Rows
    held_pairs: Int64Rows  # of the messages with these identifiers; -1 for none
    held_sequences: Int64Rows
    publishers: Rows[Publisher]
    program: Rows[ProgramStep]
    heap: Rows[Due]
    topics: Bytes
    topic_ends: Int64s
    header_places: Int64s  # places of headers that are not in front of the payload
    header_property: Bytes
    properties: Bytes
    body: Bytes
    body_crc: Int64s
    template: Rows[Place]
    waiting: Int32s
    connect_packets: Bytes
    connect_ends: Int64s
    connacks: ByteRows  # usual CONNACK of each group, which need not be shown to Python again
    addresses: ByteRows  # sockaddr of each target; the family comes first, least byte first
    address_bytes: Int64s
    source: ByteRows  # sockaddr from which each group connects, or empty
    source_bytes: Int64s
    buffer: Bytes
    out: Bytes
    partial: ByteRows  # begin of an incomplete packet; its head alone if its body is streamed
    batch: Rows[Sent]
    events: Rows[Event]
    control: Bytes
    ready: Int64s
    epoll_events: Int32s
    clock: Int64s
    message: Int64s  # scratch of `recvmsg` (syscalls.py)
    words: Int32s
