"""The automaton of a device: its states, events and transitions.

Only `transition` changes the state of a device. It raises ValueError for an event that the table
does not allow. The counts of connecting and connected devices follow from the states.

    IDLE ── CONNECT ──▶ CONNECTING ── OPEN ──▶ AWAIT_CONNACK ── ACCEPT ──▶ CONNECTED
      ▲                     │                    │      └─ REFUSE ──▶ REFUSED   │
      └──── RETRY ──── CLOSED ◀─────────────── LOSE, from every state ──────────┘
"""

from typing import TYPE_CHECKING

import numpy as np

from loadgen.kernels.arrays import Int16, Int32, Int64, Record, Uint32
from loadgen.kernels.compiled import compiled

if TYPE_CHECKING:
    from loadgen.kernels.fleet import Fleet

# States.
IDLE, CONNECTING, AWAIT_CONNACK, CONNECTED, REFUSED, CLOSED = range(6)

# Events.
CONNECT = 0  # SYN sent
OPEN = 1  # the transport is connected, CONNECT sent
ACCEPT = 2  # CONNACK with success
REFUSE = 3  # CONNACK with a failure
LOSE = 4  # the connection is lost, or was not made
RETRY = 5  # another attempt begins

_TABLE = {
    (IDLE, RETRY): IDLE,
    (IDLE, CONNECT): CONNECTING,
    (CONNECTING, OPEN): AWAIT_CONNACK,
    (AWAIT_CONNACK, ACCEPT): CONNECTED,
    (AWAIT_CONNACK, REFUSE): REFUSED,
    (CLOSED, RETRY): IDLE,
    **{(state, LOSE): CLOSED for state in (IDLE, CONNECTING, AWAIT_CONNACK, CONNECTED, REFUSED)},
}
_ILLEGAL = -1
_NEXT = np.array(
    [[_TABLE.get((state, event), _ILLEGAL) for event in range(6)] for state in range(6)], np.int64
)
_IS_CONNECTING = np.array([0, 1, 1, 0, 0, 0], np.int64)
_IS_CONNECTED = np.array([0, 0, 0, 1, 0, 0], np.int64)

# Bits of `flags`.
BLOCKED = 1  # the socket is full
WINDOW_FULL = 2  # as many messages unacknowledged as allowed
STREAMED = 4  # Python reads and writes, for TLS or WebSocket
WAITING = 8  # the publisher is not in the heap
SHARED = 16  # one of several consumers of a queue, so that it sees no order
LISTED = 32  # the device is in `ready`, which must contain it once at most
RESUMED = 64  # its session was resumed by the last CONNACK
PUSHED_BACK = 128  # the publisher is late because it had to wait for its socket or its window

AWAY = 1  # `returned_ns` of a device that is away; its CONNACK replaces it by the time


class Device(Record):
    """A device; a row of another array is -1 if the device has none."""

    written_ns: Int64
    returned_ns: Int64  # last return; 0 if it was never away, AWAY while it is
    left_ns: Int64  # last loss of its connection, less a round trip once it is back
    due_ns: Int64  # when it was to return after it left on request, else 0
    subscribed_ns: Int64  # last SUBACK
    keep_alive_ns: Int64  # of its connection, 0 for none
    taken: Int64  # distinct messages of the window that it received
    syn_ns: Int64
    tcp_ns: Int64
    request_ns: Int64  # time of the SUBSCRIBE
    pinged_ns: Int64  # time of the PINGREQ that has no PINGRESP yet, or 0
    pings: Int32  # PINGREQ packets without a PINGRESP
    acknowledge_every: Int32  # messages in a batch of acknowledgements
    state: Int16
    flags: Int16
    descriptor: Int32
    group: Int32
    publisher: Int32
    range_first: Int32  # row in `ranges` of the first streams that it must receive
    range_count: Int32
    partial_bytes: Int32  # stored bytes of an incomplete packet
    body_left: Int32  # bytes to come of a streamed body; `partial` has the head of its message
    body_crc: Uint32  # CRC-32 of that body so far
    sender: Int32  # row in `senders` and `window`
    qos2: Int32  # row in `received_ids`, or -2 if it got QoS 2 without having requested it
    unit_sent: Int32  # messages sent of the current unit
    held: Int32  # withheld acknowledgements
    holder: Int32  # row in `held_ids`, -1 if every message is acknowledged at once
    responses: Int32  # index in `topic_ends` of the first topic of its responses
    target: Int32
    qos: Int32  # of its subscriptions: the lower of the requested and the granted one


@compiled
def transition(fleet: "Fleet", row: int, event: int) -> None:
    device = fleet.devices[row]
    before = device.state
    after = _NEXT[before, event]
    if after == _ILLEGAL:
        raise ValueError("a device cannot do this in its state")
    totals = fleet.totals
    totals.connecting += _IS_CONNECTING[after] - _IS_CONNECTING[before]
    totals.connected += _IS_CONNECTED[after] - _IS_CONNECTED[before]
    device.state = after
