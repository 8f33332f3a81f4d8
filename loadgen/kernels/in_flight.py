"""Messages in flight of many connections, as arrays (spec 4.1, 4.3, 4.4, 4.9).

`window[slot, sender]` holds a message sent at QoS 1 or 2; its Packet Identifier is slot + 1. Free
slots form a queue, so that an identifier comes back as late as possible. SUBSCRIBE and UNSUBSCRIBE
must use identifiers above `window.shape[0]` (spec 2.2.1). The first slot of all connections comes
before the second of any, so that unused slots take no memory. A received message of QoS 2 has a bit
for its identifier until PUBREL (figure 4.3, second flow).
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

RECEIVED_BYTES: Final = 8_192  # of one row of `received_ids`, a bit for each Packet Identifier


class Sender(Record):
    """The window of a connection: its slots for messages in flight."""

    capacity: Uint16  # messages that may be in flight
    in_flight: Uint16
    cursor: Uint16  # the first slot that was never used
    first_free: Uint16  # queue of free slots before `cursor`: slot + 1, or 0
    last_free: Uint16


class InFlight(Record):
    """A slot of a window, which stays readable after it is freed, until it is acquired again."""

    awaits: Uint8  # type of the packet that has to answer the message, or FREE
    copies: Uint8  # of the message that were sent after the first
    next_free: Uint16
    sequence: Int64  # the application's number of the message, which must grow along a row
    intended_ns: Int64
    sent_ns: Int64


@compiled
def set_capacity(fleet: "Fleet", sender: int, receive_maximum: int) -> int:
    """Limit the messages in flight to the window and the Receive Maximum (spec 3.2.2.3.3)."""
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
    """Return the slots to send again after the session was resumed, oldest first (spec 4.4)."""
    slots = fleet.window[: fleet.senders[sender].cursor, sender]
    taken = np.flatnonzero(slots["awaits"] != FREE)
    return taken[np.argsort(slots["sequence"][taken])]


@compiled
def accept_qos2(received: NDArray[np.uint8], row: int, packet_id: int) -> bool:
    """Store the identifier of a PUBLISH of QoS 2; return True if it is new (spec 4.3.3)."""
    bit = 1 << (packet_id & 7)
    known = received[row, packet_id >> 3]
    received[row, packet_id >> 3] = known | bit
    return bool(known & bit == 0)


@compiled
def is_unreleased(received: NDArray[np.uint8], row: int, packet_id: int) -> bool:
    return bool(received[row, packet_id >> 3] & 1 << (packet_id & 7))


@compiled
def release_qos2(received: NDArray[np.uint8], row: int, packet_id: int) -> bool:
    """Handle a PUBREL; return True if its message was pending."""
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
