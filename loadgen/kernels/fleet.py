"""All arrays of a worker: the only list of their names and types (arrays.py)."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt

from loadgen.kernels.accounting import Gap, GapPool, Pair
from loadgen.kernels.arrays import (
    Arrays,
    ByteRows,
    Bytes,
    CountRows,
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
from loadgen.kernels.in_flight import IN_FLIGHT_DTYPE, SENDER_DTYPE
from loadgen.kernels.pacer import Due, ProgramStep, Publisher
from loadgen.kernels.template import Place
from loadgen.metrics.interval import COUNTERS

if TYPE_CHECKING:
    from loadgen.plan.groups import DeviceGroup
    from loadgen.plan.plan import Plan


class Group(Record):
    """What the devices of a group share."""

    qos: Int64
    retain: Int64
    deliveries: Int64
    size_least: Int64
    size_most: Int64
    packet_most: Int64
    """Bytes that no PUBLISH of the group takes in `out`."""
    body_apart: Int64
    """1 where a message in `out` is its head alone, and its body is sent from `body`."""
    unit: Int64
    acknowledge_every: Int64
    read_most: Int64
    """Bytes that a device of it takes at a read, of which the worker makes some a second; 0 for
    all there are, when they come."""
    first_stream: Int64
    counts_as: Int64
    """The group whose counters have what its publishers send."""
    prefix: Int64
    """The topics that its subscribers receive begin with prefixes[prefix : prefix_end]."""
    prefix_end: Int64
    senders_first: Int64
    """First stream, number and topics of the devices that publish to them."""
    senders: Int64
    senders_topics: Int64
    connack_bytes: Int64
    """Of its usual CONNACK in `connacks`, 0 before there is one."""
    capacity: Int64
    """How many messages each device may have under way after that CONNACK."""


class Connects(Record):
    """The devices that wait in `waiting` to be connected."""

    first: Int64
    """Place of the one whose turn it is; behind the last place comes place 0."""
    count: Int64
    in_flight: Int64
    """How many connects kernels keep under way; 0 where Python begins each of them."""
    accepted_ns: Int64
    """When the last CONNACK with success came."""


class Run(Record):
    """Constants of the run, and its window, which is fixed when the schedule begins."""

    run_tag: Int64
    version: Int64
    seed: Int64
    measure_ns: Int64
    end_ns: Int64
    connect_ns: Int64
    """When the connect phase began, 0 before and after it."""
    packet_limit: Int64
    """Bytes of a whole packet from the broker."""
    whole_limit: Int64
    """Bytes of a packet that is kept until it is whole; the body of a longer PUBLISH streams."""
    wall_ns: Int64
    """CLOCK_REALTIME − the run's clock."""
    tick_ns: Int64
    """Between two moments at which messages are sent, 0 for each at its own."""
    epoll: Int64
    timer: Int64
    linger_timer: Int64
    account: Int64
    """Descriptor of what the scheduler says of the worker."""


class Totals(GapPool):
    """How things stand at a worker: its row of the live page (worker/shared_counts.py)."""

    publishes: Int64
    """PUBLISH packets handled, whatever they were."""
    damaged: Int64
    """Damaged messages whose place in a stream is known."""
    withdrawn: Int64
    """Deliveries no longer expected, because the broker refused their message."""
    lined_up: Int64
    """Deliveries to be expected of messages that wait to be sent and have no due moment."""
    in_flight: Int64
    """Messages sent and not yet acknowledged (QoS 1 and 2)."""
    connecting: Int64
    connected: Int64
    scheduled: Int64
    """Publishers whose schedule is not over."""
    heap_size: Int64
    events: Int64
    control_bytes: Int64
    rearm: Int64
    """1 when the heap got an entry that the timer does not know of."""
    ready: Int64
    """Devices in `ready`, which may have more to read."""
    beat_ns: Int64
    """When Python last wrote what follows."""
    connect_failures: Int64
    subscribed: Int64
    owed: Int64
    """Messages due but not yet sent."""
    disconnects: Int64
    finished: Int64
    """1 when the schedule is over, nothing is owed and nothing is unacknowledged."""


class Counts(Record):
    """What is counted of a group and a phase since the run began: `interval.COUNTERS`."""

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
    """A failure code of acknowledgements: how many had it, and 1 when Python was told."""

    count: Int64
    told: Int64


class Event(Record):
    """What Python must look at; its bytes are control[offset : offset + length]."""

    kind: Int32
    device: Int32
    value: Int64
    offset: Int64
    length: Int64
    moment_ns: Int64


class Sent(Record):
    """A message of one write, for the record and for taking it back."""

    sequence: Int64
    due_ns: Int64
    load_ns: Int64
    end: Int64
    """Where it ends in `out`."""
    body_bytes: Int64
    """How much of `body` follows."""
    packet_id: Int64
    deliveries: Int64
    stream: Int64
    destination: Int64


class Fleet(Arrays):
    """The devices of one worker: `group` and `device` name each row, the rest is for kernels."""

    if TYPE_CHECKING:
        plan: Plan
    group: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]

    devices: Rows[Device]
    groups: Rows[Group]
    run: Run
    connects: Connects
    totals: Totals
    attention: Attention
    stalls: Rows[Stall]
    counters: Grid[Counts]
    """By group and phase, in the live page."""
    histograms: CountRows
    """By slot: group, series and phase."""
    stats: Rows[Stat]
    pairs: Rows[Pair]
    gaps: Rows[Gap]
    """In use as `totals` says."""
    refusals: Rows[Refusal]
    """By reason code."""
    violations: Int64s
    """By their number in `violations.WORDS`."""
    prefixes: Bytes
    senders: Annotated[npt.NDArray[np.void], SENDER_DTYPE, 1]
    window: Annotated[npt.NDArray[np.void], IN_FLIGHT_DTYPE, 2]
    received_ids: ByteRows
    held_ids: Int64Rows
    publishers: Rows[Publisher]
    program: Rows[ProgramStep]
    heap: Rows[Due]
    topics: Bytes
    topic_ends: Int64s
    body: Bytes
    body_crc: Int64s
    template: Rows[Place]
    waiting: Int32s
    connect_packets: Bytes
    connect_ends: Int64s
    connacks: ByteRows
    """By group: what its devices usually get for CONNECT, of which Python learns nothing new."""
    addresses: ByteRows
    """One sockaddr a target, begun by its family, least byte first."""
    address_bytes: Int64s
    source: Bytes
    """The sockaddr to connect from, empty for the kernel's choice."""
    buffer: Bytes
    out: Bytes
    partial: ByteRows
    """By device: the begin of a packet that has not come whole. Where only its head is kept, what
    is still to come and the CRC-32 so far stand at `run.whole_limit`, 4 bytes each."""
    batch: Rows[Sent]
    events: Rows[Event]
    control: Bytes
    ready: Int64s
    epoll_events: Int32s
    clock: Int64s
    message: Int64s
    """What `recvmsg` takes and leaves (kernels/syscalls.py)."""
    words: Int32s

    def group_of(self, row: int) -> "DeviceGroup":
        return self.plan.groups[int(self.group[row])]
