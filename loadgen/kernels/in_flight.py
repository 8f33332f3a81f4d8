"""Session state of many connections as arrays (spec 4.1, 4.3, 4.4, 4.9), without an object for any.

Zeros are the state of a new session whose capacity is not yet set. Nothing is allocated or raised.

Outbound, `window[slot, sender]` holds one message of QoS 1 or 2 in flight and its Packet Identifier
is slot + 1, so an acknowledgement finds its message without a search. Free slots form a queue
through the slots themselves: taking one costs the same however the peer acknowledges, and an
identifier comes back as late as possible. SUBSCRIBE and UNSUBSCRIBE share the identifiers (spec
2.2.1) and must use those above `window.shape[0]`. The first slot of all connections comes before
the second of any, so that memory is touched for as many slots as are ever in use.

Inbound, a message of QoS 2 is passed on when its PUBLISH arrives and its identifier is remembered
until PUBREL (the second flow of figure 4.3): one bit an identifier.
"""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.kernels.arrays import Int64, Record, Uint8, Uint16
from loadgen.kernels.compiled import compiled
from loadgen.mqtt.constants import PUBACK, PUBCOMP, PUBREC

if TYPE_CHECKING:
    from loadgen.kernels.fleet import Fleet

FREE: Final = 0

RECEIVED_BYTES: Final = 8_192
"""Bytes of one row of `received_ids`, a bit for each Packet Identifier."""


class Sender(Record):
    """The window of a connection: its slots for messages in flight."""

    capacity: Uint16
    in_flight: Uint16
    """Both count messages."""
    cursor: Uint16
    """The first slot that was never used."""
    first_free: Uint16
    last_free: Uint16
    """The queue of free slots before `cursor`, both slot + 1, or 0 if it is empty."""


class InFlight(Record):
    """A slot of a window, which stays readable after it is freed, until it is acquired again."""

    awaits: Uint8
    """The type of the packet that has to answer the message, or FREE."""
    copies: Uint8
    """Copies of the message that were sent after the first."""
    next_free: Uint16
    sequence: Int64
    """The application's number of the message, which must grow along a row."""
    intended_ns: Int64
    sent_ns: Int64


@compiled
def set_capacity(fleet: "Fleet", sender: int, receive_maximum: int) -> int:
    """Set the number of messages that may be in flight: the window or the peer's Receive Maximum.

    To be called on every CONNACK (spec 3.2.2.3.3; 65,535 if it is absent and in MQTT 3.1.1). If it
    is less than the number in flight, nothing is acquired until acknowledgements arrive.
    """
    capacity = int(min(fleet.window.shape[0], receive_maximum))
    fleet.senders[sender].capacity = capacity
    return capacity


@compiled
def acquire(
    fleet: "Fleet", number: int, qos: int, sequence: int, intended_ns: int, sent_ns: int
) -> int:
    """Take a slot for a PUBLISH of QoS 1 or 2; return its Packet Identifier, or 0."""
    sender = fleet.senders[number]
    if sender.in_flight >= sender.capacity:
        return 0
    slot = sender.cursor
    if slot < fleet.window.shape[0]:
        sender.cursor = slot + 1
    else:
        # capacity <= width, so some used slot is free.
        slot = sender.first_free - 1
        sender.first_free = fleet.window[slot, number].next_free
        if sender.first_free == 0:
            sender.last_free = 0
    sender.in_flight += 1
    message = fleet.window[slot, number]
    message.awaits = PUBACK if qos == 1 else PUBREC
    message.copies = 0
    message.sequence = sequence
    message.intended_ns = intended_ns
    message.sent_ns = sent_ns
    return slot + 1


@compiled
def release(fleet: "Fleet", number: int, packet_id: int) -> None:
    sender, message = fleet.senders[number], fleet.window[packet_id - 1, number]
    message.awaits = FREE
    message.next_free = 0
    if sender.last_free == 0:
        sender.first_free = packet_id
    else:
        fleet.window[sender.last_free - 1, number].next_free = packet_id
    sender.last_free = packet_id
    sender.in_flight -= 1


@compiled
def awaited_answer(fleet: "Fleet", sender: int, packet_id: int) -> int:
    """Return the type of the packet that has to answer a message; FREE if none is in flight."""
    if packet_id < 1 or packet_id > fleet.window.shape[0]:
        return FREE
    return fleet.window[packet_id - 1, sender].awaits


@compiled
def answer(fleet: "Fleet", sender: int, packet_id: int, is_failure: bool) -> None:
    """Note the awaited answer of a message, which ends it unless PUBREL has to follow (4.3.3)."""
    message = fleet.window[packet_id - 1, sender]
    if message.awaits == PUBREC and not is_failure:
        message.awaits = PUBCOMP
    else:
        release(fleet, sender, packet_id)


def redelivery_order(fleet: "Fleet", sender: int) -> NDArray[np.int64]:
    """Return the slots to send again after the session was resumed, oldest first (spec 4.4).

    A message that awaits PUBACK or PUBREC is sent as PUBLISH with DUP, another as PUBREL.
    """
    slots = fleet.window[: fleet.senders[sender].cursor, sender]
    taken = np.flatnonzero(slots["awaits"] != FREE)
    return taken[np.argsort(slots["sequence"][taken])]


@compiled
def accept_qos2(received: NDArray[np.uint8], row: int, packet_id: int) -> bool:
    """Store the identifier of a PUBLISH of QoS 2; return True if it is new (spec 4.3.3).

    `received` has RECEIVED_BYTES a row. The answer is PUBREC in both cases.
    """
    bit = 1 << (packet_id & 7)
    known = received[row, packet_id >> 3]
    received[row, packet_id >> 3] = known | bit
    return bool(known & bit == 0)


@compiled
def is_unreleased(received: NDArray[np.uint8], row: int, packet_id: int) -> bool:
    return bool(received[row, packet_id >> 3] & 1 << (packet_id & 7))


@compiled
def release_qos2(received: NDArray[np.uint8], row: int, packet_id: int) -> bool:
    """Handle a PUBREL; return True if its message was pending. The answer is PUBCOMP anyway."""
    bit = 1 << (packet_id & 7)
    known = received[row, packet_id >> 3]
    received[row, packet_id >> 3] = known & (0xFF ^ bit)
    return bool(known & bit != 0)


@compiled
def forget_received(received: NDArray[np.uint8], row: int) -> int:
    """Forget the QoS 2 messages of a session that was lost; return their number."""
    forgotten = 0
    for index in range(RECEIVED_BYTES):
        bits = int(np.int64(received[row, index]))
        received[row, index] = 0
        while bits > 0:
            forgotten += bits & 1
            bits >>= 1
    return forgotten
