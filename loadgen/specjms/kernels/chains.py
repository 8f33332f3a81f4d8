"""The arrays of a supply chain in addition to those of a fleet; `layout` builds them."""

from typing import Annotated

import numpy as np
import numpy.typing as npt

from loadgen.kernels import arrays
from loadgen.kernels.accounting import Pair
from loadgen.metrics.histogram import BUCKETS
from loadgen.specjms.kernels.joins import Join
from loadgen.specjms.kernels.trailer import InteractionNote

ALL, FAMILIES = -1, -2
COARSE_BITS = 7  # dropped from a latency bucket: eight coarse buckets per power of two
HEARD_COLUMNS = (BUCKETS >> COARSE_BITS) + 1
NO_ACTION, MAKE_OFFER, JOIN_OFFERS = range(3)


class TypeRow(arrays.Record):
    qos: arrays.Int64
    transacted: arrays.Int64  # 1 if it belongs to the transaction of the message that causes it
    kind: arrays.Int64  # kind of the receiving location, or ALL or FAMILIES
    group: arrays.Int64  # row of its counters, -1 if its interaction is off
    interaction: arrays.Int64
    stream_first: arrays.Int64
    streams: arrays.Int64
    producers: arrays.Int64
    fixed: arrays.Int64  # 1 if each producer sends to one destination only
    destination: arrays.Int64  # number of its first destination
    deliveries: arrays.Int64  # consumers of each message, 0 if the family decides
    sizes: Annotated[npt.NDArray[np.int64], np.int64, 3]  # payload bytes by size class
    body_first: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Start of the content of each class in `bodies`, and its CRC-32."""
    body_crc: Annotated[npt.NDArray[np.int64], np.int64, 3]
    percent: Annotated[npt.NDArray[np.int64], np.int64, 3]
    """Share of each class if the type draws a class for each message, else -1."""
    output_first: arrays.Int64
    outputs: arrays.Int64
    held: arrays.Int64  # transacted outputs that delay the acknowledgement of the input
    action: arrays.Int64
    handlers: arrays.Int64  # consumers at each location, which share its messages
    begins: arrays.Int64  # 1 if it begins an interaction
    packet_most: arrays.Int64  # upper bound for the bytes of a PUBLISH of the type


class DeviceRole(arrays.Record):
    late_ns: arrays.Int64  # lateness beyond which a driver's message counts as late
    place: arrays.Int32  # number of its location
    producer: arrays.Int32  # number among the producers of its message types
    first: arrays.Int32  # type that a driver begins with, -1 for a handler
    family_first: arrays.Int32
    families: arrays.Int32
    term_first: arrays.Int32
    terms: arrays.Int32
    wait_head: arrays.Int32
    wait_tail: arrays.Int32
    center: arrays.Int32  # distribution centre of a supermarket
    headquarters: arrays.Int32


class Term(arrays.Record):
    """An alternative of a selector's term, term_bytes[start:end]."""

    term: arrays.Int64
    start: arrays.Int64
    end: arrays.Int64


class Destination(arrays.Record):
    """Bounds of a destination's topic in `topics`, and of its MQTT 5 properties in `properties`."""

    topic_start: arrays.Int64
    topic_end: arrays.Int64
    property_start: arrays.Int64
    property_end: arrays.Int64


class Transaction(arrays.Record):
    """An input that is acknowledged after all of its outputs are."""

    open: arrays.Int32  # outputs not yet acknowledged
    packet_id: arrays.Int32
    answer: arrays.Int32
    link: arrays.Int32


class CauseRow(arrays.Record):
    """A message in flight: its type, transaction, destination and number of consumers."""

    type: arrays.Int32
    transaction: arrays.Int32
    destination: arrays.Int32
    deliveries: arrays.Int32
    sequence: arrays.Int64


class Seen(arrays.Record):
    """Counts of a destination: of interactions begun in the window, then of the whole run."""

    sent: arrays.Int64
    expected: arrays.Int64
    received: arrays.Int64
    duplicated: arrays.Int64
    sent_in_all: arrays.Int64
    expected_in_all: arrays.Int64
    received_in_all: arrays.Int64


class Begun(arrays.Record):
    """Counts of an interaction: begun behind schedule, begun in the window."""

    late: arrays.Int64
    inside: arrays.Int64


class HandlerState(arrays.Record):
    free_waiting: arrays.Int64
    free_transaction: arrays.Int64
    checked: arrays.Int64  # messages until the next one is checked
    check_every: arrays.Int64
    order: arrays.Int64  # count of caused messages; it orders them in the in-flight window
    discarded: arrays.Int64  # deliveries of the window that a selector at the receiver refused
    discarded_bytes: arrays.Int64
    discarded_in_all: arrays.Int64
    calls_dropped: arrays.Int64  # offers that found the table of open calls full
    slow_ns: arrays.Int64
    small_percent: arrays.Int64
    medium_percent: arrays.Int64
    waited: arrays.Int64  # messages that had to wait for the window
    duplicated: arrays.Int64  # repeated deliveries of the whole run; below, those out of order
    out_of_order: arrays.Int64
    redelivered: arrays.Int64  # deliveries that the broker marked as repeated (DUP)
    unmarked: arrays.Int64  # repeated deliveries that neither the broker nor the sender marked
    recovered: arrays.Int64  # deliveries that had waited for a disconnected handler
    recovered_ns: arrays.Int64  # when the last of them came


class Chains(arrays.Arrays):
    """The arrays of the supply chain's kernels, without those of every worker."""

    types: arrays.Rows[TypeRow]
    outputs: arrays.Int64s  # types that each type causes, end to end
    roles: arrays.Rows[DeviceRole]
    bases: arrays.Int64Rows  # first accounting pair of a type at a device, -1 for none
    sequences: arrays.Int64s  # next sequence of each stream sent by this worker
    offered: arrays.Int64s  # product families of each supplier, end to end
    answers: arrays.Int64s  # number of suppliers that offer each family
    terms: arrays.Rows[Term]
    term_bytes: arrays.Bytes
    destinations: arrays.Rows[Destination]
    topics: arrays.Bytes
    properties: arrays.Bytes
    joins: arrays.Rows[Join]
    waiting: arrays.Rows[InteractionNote]  # notes with outputs that wait for the window
    transactions: arrays.Rows[Transaction]
    causes: arrays.Grid[CauseRow]  # messages in flight, by row of the in-flight window and slot
    seen: arrays.Rows[Seen]
    begins: arrays.Rows[Begun]
    state: HandlerState
    notes: arrays.Rows[InteractionNote]  # scratch, of the received and of the begun one
    pairs: arrays.Rows[Pair]
    last: (
        arrays.Int64Rows
    )  # sequence after the last one received, by pair and handler of a location
    heard_at: arrays.Int64Rows  # row in `heard` of a type at a device, -1 for none
    heard: arrays.CountRows  # of the window by handler: coarse buckets, and a count of slow ones
    bodies: arrays.Bytes
    sent_notes: arrays.Grid[InteractionNote]  # of messages in flight, by sender and slot

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


chains_of = arrays.pointer_to(Chains)
