"""The arrays of a supply chain, beside those of a fleet; `layout` makes them from a model."""

from typing import Annotated

import numpy as np
import numpy.typing as npt

from loadgen.kernels.accounting import Pair
from loadgen.kernels.arrays import (
    Arrays,
    Bytes,
    CountRows,
    Grid,
    Int32,
    Int64,
    Int64Rows,
    Int64s,
    Record,
    Rows,
    pointer_to,
)
from loadgen.metrics.histogram import BUCKETS
from loadgen.specjms.kernels.joins import Join
from loadgen.specjms.kernels.trailer import InteractionNote

ALL, FAMILIES = -1, -2
COARSE_BITS = 7
"""Buckets of a latency histogram that one coarse bucket takes together: eight to a power of two."""
HEARD_COLUMNS = (BUCKETS >> COARSE_BITS) + 1
NO_ACTION, MAKE_OFFER, JOIN_OFFERS = range(3)


class TypeRow(Record):
    """One row a message type."""

    qos: Int64
    transacted: Int64
    """1 when it counts for the transaction of what caused it."""
    kind: Int64
    """Kind of the location it goes to, or ALL or FAMILIES."""
    group: Int64
    """Row of its counters, -1 when its interaction is off."""
    interaction: Int64
    stream_first: Int64
    streams: Int64
    producers: Int64
    fixed: Int64
    """1 when each producer sends to one destination only."""
    destination: Int64
    """Number of its first destination."""
    deliveries: Int64
    """Consumers of each message, 0 where the family decides."""
    sizes: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Payload bytes by size class."""
    body_first: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Where the content of each class begins in `bodies`, and its CRC-32."""
    body_crc: Annotated[npt.NDArray[np.int64], np.int64, 3]
    percent: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Share of each class where the type draws its own, else -1."""
    output_first: Int64
    outputs: Int64
    held: Int64
    """Transacted outputs for which the acknowledgement of the input waits."""
    action: Int64
    handlers: Int64
    """Consumers at each location, which share what comes to it."""
    begins: Int64
    """1 when it begins an interaction."""
    packet_most: Int64
    """Bytes that no PUBLISH of the type exceeds."""


class DeviceRole(Record):
    """What a device is."""

    late_ns: Int64
    """A driver that sends later than this missed its time."""
    place: Int32
    """Number of its location."""
    producer: Int32
    """Number among the producers of what it sends."""
    first: Int32
    """Type that a driver begins with, -1 for a handler."""
    family_first: Int32
    families: Int32
    term_first: Int32
    terms: Int32
    wait_head: Int32
    wait_tail: Int32
    center: Int32
    """Distribution centre of a supermarket."""
    headquarters: Int32


class Term(Record):
    """An alternative of a selector's term, term_bytes[start:end]."""

    term: Int64
    start: Int64
    end: Int64


class Destination(Record):
    """Where its topic and its MQTT 5 properties lie in `topics` and `properties`."""

    topic_start: Int64
    topic_end: Int64
    property_start: Int64
    property_end: Int64


class Transaction(Record):
    """An input that is acknowledged when its outputs are."""

    open: Int32
    """Outputs not yet acknowledged."""
    packet_id: Int32
    answer: Int32
    link: Int32


class CauseRow(Record):
    """A message under way: its type and transaction, where it goes, and to how many."""

    type: Int32
    transaction: Int32
    destination: Int32
    deliveries: Int32
    sequence: Int64


class Seen(Record):
    """Counts of a destination: of interactions begun in the window, then of the whole run.

    Within a line of the processor's cache, so that the second account of a message costs next to
    nothing.
    """

    sent: Int64
    expected: Int64
    received: Int64
    duplicated: Int64
    sent_in_all: Int64
    expected_in_all: Int64
    received_in_all: Int64


class Begun(Record):
    """Counts of an interaction: begun behind schedule, begun in the window."""

    late: Int64
    inside: Int64


class HandlerState(Record):
    """What the worker's handlers share."""

    free_waiting: Int64
    free_transaction: Int64
    checked: Int64
    """Messages until the next one is checked."""
    check_every: Int64
    order: Int64
    """Grows with each message that is caused, as the in-flight window wants it."""
    discarded: Int64
    """Deliveries of the window that a selector at the receiver refused."""
    discarded_bytes: Int64
    discarded_in_all: Int64
    calls_dropped: Int64
    """Offers that found no place to wait in."""
    slow_ns: Int64
    small_percent: Int64
    medium_percent: Int64
    waited: Int64
    """Messages that had to wait for the window."""
    duplicated: Int64
    """Deliveries of the whole run that came again, and below that came too late."""
    out_of_order: Int64
    redelivered: Int64
    """Deliveries that the broker marked as repeated (DUP)."""
    unmarked: Int64
    """Deliveries that came again though neither the broker nor the sender marked them so."""
    recovered: Int64
    """Deliveries that had waited for a handler that was away, and when the last one came."""
    recovered_ns: Int64


class Chains(Arrays):
    """The arrays of `kernels`, but for those that a worker has in any case."""

    types: Rows[TypeRow]
    outputs: Int64s
    """Types that a type causes, end to end."""
    roles: Rows[DeviceRole]
    bases: Int64Rows
    """First accounting pair of a type at a device, -1 for none."""
    sequences: Int64s
    """Next sequence of each stream sent by this worker."""
    offered: Int64s
    """Product families of each supplier, end to end."""
    answers: Int64s
    """Suppliers that offer a family."""
    terms: Rows[Term]
    term_bytes: Bytes
    destinations: Rows[Destination]
    topics: Bytes
    properties: Bytes
    joins: Rows[Join]
    waiting: Rows[InteractionNote]
    """Notes whose outputs wait for the window."""
    transactions: Rows[Transaction]
    causes: Grid[CauseRow]
    """By row of the in-flight window and slot."""
    seen: Rows[Seen]
    begins: Rows[Begun]
    state: HandlerState
    notes: Rows[InteractionNote]
    """Scratch: of what is received, of what is begun."""
    pairs: Rows[Pair]
    last: Int64Rows
    """By pair and handler of a location: the sequence that follows the last one it received."""
    heard_at: Int64Rows
    """Row in `heard` of a type at a device, -1 for none."""
    heard: CountRows
    """Delivery times of the window by event handler: coarse buckets, and those above the limit."""
    bodies: Bytes
    kept: Grid[InteractionNote]
    """By row of the in-flight window and slot: what a message is written from, should it have to be
    again."""

    sending: npt.NDArray[np.bool_]
    """Devices that need a row in the in-flight window."""
    qos2: npt.NDArray[np.bool_]
    """Devices that receive at QoS 2."""


chains_of = pointer_to(Chains)
