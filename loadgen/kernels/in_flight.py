"""Session state of many connections as arrays (spec 4.1, 4.3, 4.4, 4.9), without an object for any.

A worker makes the arrays with `np.zeros`; a row is one connection, and zeros are the state of a new
session whose capacity is not yet set. Every function is compiled like those of packet_bytes.py:
nothing is allocated or raised, and errors are results.

Outbound, `window[slot, row]` holds one message of QoS 1 or 2 in flight and its Packet Identifier is
slot + 1, so an acknowledgement finds its message without a search. Free slots form a queue through
the slots themselves: taking one costs the same however the peer acknowledges, and an identifier
comes back as late as possible. SUBSCRIBE and UNSUBSCRIBE share the identifiers (spec 2.2.1) and
must use those above `window.shape[0]`. The first slot of all connections comes before the second of
any, so that memory is touched for as many slots as are ever in use, not for the whole window.

Inbound, a message of QoS 2 is passed on when its PUBLISH arrives and its identifier is remembered
until PUBREL (the second flow of figure 4.3): one bit an identifier.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.kernels.compiled import compiled
from loadgen.kernels.packet_bytes import OK
from loadgen.mqtt.constants import PUBACK
from loadgen.mqtt.violations import ANSWERS, WRONG_ACKNOWLEDGEMENT

FREE: Final = 0
AWAIT_PUBACK: Final = 1
AWAIT_PUBREC: Final = 2
AWAIT_PUBCOMP: Final = 3

# Statuses besides OK, distinct from those of packet_bytes.py.
UNKNOWN_PACKET_ID: Final = -3
WRONG_STATE: Final = -4

# Bytes of one row of `received`, a bit for each Packet Identifier.
RECEIVED_BYTES: Final = 8_192

# `capacity` and `in_flight` count messages. `cursor` is the first slot that was never used; the
# free slots before it form the queue from `first_free` to `last_free`, both slot + 1, 0 when empty.
SENDER_DTYPE: Final = np.dtype(
    [
        ("capacity", np.uint16),
        ("in_flight", np.uint16),
        ("cursor", np.uint16),
        ("first_free", np.uint16),
        ("last_free", np.uint16),
    ]
)

# `sequence` is the application's number of the message and must grow along a row. `copies` of it
# were sent after the first. What is stored
# stays readable after the slot is freed, until it is acquired again. 32 bytes.
IN_FLIGHT_DTYPE: Final = np.dtype(
    [
        ("state", np.uint8),
        ("copies", np.uint8),
        ("next_free", np.uint16),
        ("sequence", np.uint64),
        ("intended_ns", np.int64),
        ("sent_ns", np.int64),
    ],
    align=True,
)


@compiled
def set_capacity(
    senders: NDArray[np.void], window: NDArray[np.void], row: int, receive_maximum: int
) -> int:
    """Set the number of messages that may be in flight: the window or the peer's Receive Maximum.

    To be called on every CONNACK (spec 3.2.2.3.3; 65,535 if it is absent and in MQTT 3.1.1). If it
    is less than the number in flight, nothing is acquired until acknowledgements arrive.
    """
    capacity = int(min(window.shape[0], receive_maximum))
    senders[row]["capacity"] = capacity
    return capacity


@compiled
def acquire(
    senders: NDArray[np.void],
    window: NDArray[np.void],
    row: int,
    qos: int,
    sequence: int,
    intended_ns: int,
    sent_ns: int,
) -> int:
    """Take a slot for a PUBLISH of QoS 1 or 2; return its Packet Identifier, or 0."""
    sender = senders[row]
    if sender["in_flight"] >= sender["capacity"]:
        return 0
    slot = int(np.int64(sender["cursor"]))
    if slot < window.shape[0]:
        sender["cursor"] = slot + 1
    else:
        # capacity <= width, so some used slot is free.
        slot = int(np.int64(sender["first_free"])) - 1
        sender["first_free"] = window[slot, row]["next_free"]
        if sender["first_free"] == 0:
            sender["last_free"] = 0
    sender["in_flight"] = sender["in_flight"] + 1
    message = window[slot, row]
    message["state"] = AWAIT_PUBACK if qos == 1 else AWAIT_PUBREC
    message["copies"] = 0
    message["sequence"] = sequence
    message["intended_ns"] = intended_ns
    message["sent_ns"] = sent_ns
    return slot + 1


@compiled
def release(senders: NDArray[np.void], window: NDArray[np.void], row: int, packet_id: int) -> None:
    """Free the slot of a message in flight."""
    sender = senders[row]
    window[packet_id - 1, row]["state"] = FREE
    window[packet_id - 1, row]["next_free"] = 0
    if sender["last_free"] == 0:
        sender["first_free"] = packet_id
    else:
        window[int(np.int64(sender["last_free"])) - 1, row]["next_free"] = packet_id
    sender["last_free"] = packet_id
    sender["in_flight"] = sender["in_flight"] - 1


@compiled
def _status(window: NDArray[np.void], row: int, packet_id: int, state: int) -> int:
    """Return OK if the identifier is in flight and in this state."""
    if packet_id < 1 or packet_id > window.shape[0]:
        return UNKNOWN_PACKET_ID
    found = window[packet_id - 1, row]["state"]
    if found == FREE:
        return UNKNOWN_PACKET_ID
    return OK if found == state else WRONG_STATE


@compiled
def on_puback(
    senders: NDArray[np.void], window: NDArray[np.void], row: int, packet_id: int
) -> tuple[int, int]:
    """End a message on PUBACK, whatever its reason; return (status, sent_ns), 0 unless OK."""
    status = _status(window, row, packet_id, AWAIT_PUBACK)
    if status != OK:
        return status, 0
    release(senders, window, row, packet_id)
    return OK, int(window[packet_id - 1, row]["sent_ns"])


@compiled
def on_pubrec(
    senders: NDArray[np.void], window: NDArray[np.void], row: int, packet_id: int, reason_code: int
) -> tuple[int, int]:
    """Handle a PUBREC; return (status, sent_ns).

    The answer is PUBREL, unless `reason_code` is 0x80 or more, which ends the message (spec 4.3.3).
    """
    status = _status(window, row, packet_id, AWAIT_PUBREC)
    if status != OK:
        return status, 0
    if reason_code >= 0x80:
        release(senders, window, row, packet_id)
    else:
        window[packet_id - 1, row]["state"] = AWAIT_PUBCOMP
    return OK, int(window[packet_id - 1, row]["sent_ns"])


@compiled
def on_pubcomp(
    senders: NDArray[np.void], window: NDArray[np.void], row: int, packet_id: int
) -> tuple[int, int]:
    """End a message on PUBCOMP, whatever its reason; return (status, sent_ns)."""
    status = _status(window, row, packet_id, AWAIT_PUBCOMP)
    if status != OK:
        return status, 0
    release(senders, window, row, packet_id)
    return OK, int(window[packet_id - 1, row]["sent_ns"])


@compiled
def wrong_acknowledgement(state: int, packet_type: int) -> int:
    """Return the violation of answering a message in this state with this packet."""
    row = (state - AWAIT_PUBACK) * len(ANSWERS)
    return WRONG_ACKNOWLEDGEMENT + row + packet_type - PUBACK


def redelivery_order(
    senders: NDArray[np.void], window: NDArray[np.void], row: int
) -> NDArray[np.int64]:
    """Return the slots to send again after the session was resumed, oldest first (spec 4.4).

    AWAIT_PUBACK and AWAIT_PUBREC mean PUBLISH with DUP, AWAIT_PUBCOMP means PUBREL.
    """
    slots = window[: senders["cursor"][row], row]
    taken = np.flatnonzero(slots["state"] != FREE)
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
