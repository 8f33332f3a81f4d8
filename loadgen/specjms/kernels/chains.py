"""The arrays of a supply chain in addition to those of a fleet; `layout` builds them."""

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
"""Bits dropped from the number of a latency bucket: eight coarse buckets per power of two."""
HEARD_COLUMNS = (BUCKETS >> COARSE_BITS) + 1
NO_ACTION, MAKE_OFFER, JOIN_OFFERS = range(3)


class TypeRow(Record):
    qos: Int64
    transacted: Int64  # 1 if it belongs to the transaction of the message that causes it
    kind: Int64  # kind of the receiving location, or ALL or FAMILIES
    group: Int64  # row of its counters, -1 if its interaction is off
    interaction: Int64
    stream_first: Int64
    streams: Int64
    producers: Int64
    fixed: Int64  # 1 if each producer sends to one destination only
    destination: Int64  # number of its first destination
    deliveries: Int64  # consumers of each message, 0 if the family decides
    sizes: Annotated[npt.NDArray[np.int64], np.int64, 3]  # payload bytes by size class
    body_first: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Start of the content of each class in `bodies`, and its CRC-32."""
    body_crc: Annotated[npt.NDArray[np.int64], np.int64, 3]
    percent: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Share of each class if the type draws a class for each message, else -1."""
    output_first: Int64
    outputs: Int64
    held: Int64  # transacted outputs that delay the acknowledgement of the input
    action: Int64
    handlers: Int64  # consumers at each location, which share its messages
    begins: Int64  # 1 if it begins an interaction
    packet_most: Int64  # upper bound for the bytes of a PUBLISH of the type


class DeviceRole(Record):
    late_ns: Int64  # lateness beyond which a driver's message counts as late
    place: Int32  # number of its location
    producer: Int32  # number among the producers of its message types
    first: Int32  # type that a driver begins with, -1 for a handler
    family_first: Int32
    families: Int32
    term_first: Int32
    terms: Int32
    wait_head: Int32
    wait_tail: Int32
    center: Int32  # distribution centre of a supermarket
    headquarters: Int32


class Term(Record):
    """An alternative of a selector's term, term_bytes[start:end]."""

    term: Int64
    start: Int64
    end: Int64


class Destination(Record):
    """Bounds of a destination's topic in `topics`, and of its MQTT 5 properties in `properties`."""

    topic_start: Int64
    topic_end: Int64
    property_start: Int64
    property_end: Int64


class Transaction(Record):
    """An input that is acknowledged after all of its outputs are."""

    open: Int32  # outputs not yet acknowledged
    packet_id: Int32
    answer: Int32
    link: Int32


class CauseRow(Record):
    """A message in flight: its type, transaction, destination and number of consumers."""

    type: Int32
    transaction: Int32
    destination: Int32
    deliveries: Int32
    sequence: Int64


class Seen(Record):
    """Counts of a destination: of interactions begun in the window, then of the whole run.

    A row fits in a line of the processor's cache, so that the second count of a message costs next
    to nothing.
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
    free_waiting: Int64
    free_transaction: Int64
    checked: Int64  # messages until the next one is checked
    check_every: Int64
    order: Int64  # count of caused messages; it orders them in the in-flight window
    discarded: Int64  # deliveries of the window that a selector at the receiver refused
    discarded_bytes: Int64
    discarded_in_all: Int64
    calls_dropped: Int64  # offers that found the table of open calls full
    slow_ns: Int64
    small_percent: Int64
    medium_percent: Int64
    waited: Int64  # messages that had to wait for the window
    duplicated: Int64  # repeated deliveries of the whole run; below, those out of order
    out_of_order: Int64
    redelivered: Int64  # deliveries that the broker marked as repeated (DUP)
    unmarked: Int64  # repeated deliveries that neither the broker nor the sender marked
    recovered: Int64
    """Deliveries that had waited for a handler that was away; below, the time of the last one."""
    recovered_ns: Int64


class Chains(Arrays):
    """The arrays of the supply chain's kernels, without those of every worker."""

    types: Rows[TypeRow]
    outputs: Int64s  # types that each type causes, end to end
    roles: Rows[DeviceRole]
    bases: Int64Rows  # first accounting pair of a type at a device, -1 for none
    sequences: Int64s  # next sequence of each stream sent by this worker
    offered: Int64s  # product families of each supplier, end to end
    answers: Int64s  # number of suppliers that offer each family
    terms: Rows[Term]
    term_bytes: Bytes
    destinations: Rows[Destination]
    topics: Bytes
    properties: Bytes
    joins: Rows[Join]
    waiting: Rows[InteractionNote]  # notes with outputs that wait for the window
    transactions: Rows[Transaction]
    causes: Grid[CauseRow]  # messages in flight, by row of the in-flight window and slot
    seen: Rows[Seen]
    begins: Rows[Begun]
    state: HandlerState
    notes: Rows[InteractionNote]
    """Scratch notes of the received message and of the begun interaction."""
    pairs: Rows[Pair]
    last: Int64Rows  # sequence after the last one received, by pair and handler of a location
    heard_at: Int64Rows  # row in `heard` of a type at a device, -1 for none
    heard: CountRows
    """Delivery times of the window by event handler: coarse buckets, and a count of slow ones."""
    bodies: Bytes
    sent_notes: Grid[InteractionNote]
    """Notes to write messages in flight again, by row of the in-flight window and slot."""

    sending: npt.NDArray[np.bool_]  # devices that need a row in the in-flight window
    qos2: npt.NDArray[np.bool_]  # devices that receive at QoS 2

    def pairs_of(self, row: int) -> list[tuple[int, int]]:
        """Return (first, count) of the accounting pairs of each type at a device."""
        families = int(self.roles[row].families)
        ranges = []
        for number in np.flatnonzero(self.bases[row] >= 0).tolist():
            kind = self.types[number]
            of_families = kind.kind == FAMILIES
            count = families * int(kind.producers) if of_families else int(kind.streams)
            ranges.append((int(self.bases[row, number]), count))
        return ranges


chains_of = pointer_to(Chains)
