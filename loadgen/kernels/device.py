"""A device as an automaton: its states, what happens to it, and what follows.

Whatever changes the state of a device calls `transition`; what the table does not name is a
mistake of ours and raises ValueError. The counts of devices that connect and of those that are
connected follow from the states.

    IDLE ── CONNECT ──▶ CONNECTING ── OPEN ──▶ AWAIT_CONNACK ── ACCEPT ──▶ CONNECTED
      ▲                     │                    │      └─ REFUSE ──▶ REFUSED   │
      └──── RETRY ──── CLOSED ◀─────────────── LOSE, from every state ──────────┘
"""

from typing import TYPE_CHECKING

import numpy as np

from loadgen.kernels.arrays import Int16, Int32, Int64, Record
from loadgen.kernels.compiled import compiled

if TYPE_CHECKING:
    from loadgen.kernels.fleet import Fleet

# States.
IDLE, CONNECTING, AWAIT_CONNACK, CONNECTED, REFUSED, CLOSED = range(6)

# Events.
CONNECT = 0  # SYN sent
OPEN = 1  # the transport is there, CONNECT sent
ACCEPT = 2  # CONNACK with success
REFUSE = 3  # CONNACK with a failure
LOSE = 4  # the connection is gone, or never came
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
BLOCKED = 1  # the socket takes no more for now
WINDOW_FULL = 2  # as many messages unacknowledged as allowed
STREAMED = 4  # Python reads and writes: TLS or WebSocket is between packets and socket
WAITING = 8  # the publisher is not in the heap
SHARED = 16  # one of several consumers of a queue: order is between them, not of one
LISTED = 32  # the device is in `ready`, where it must be only once
RESUMED = 64  # its session was resumed, and every PUBLISH since then was one sent again
PUSHED_BACK = 128  # the publisher is late because it had to wait for its socket or its window
BODY = 256  # a message's body streams through; `partial` has its head and how far it has come

AWAY = 1
"""`returned_ns` while a device is away. It receives nothing then; its CONNACK puts the moment
there, because what waited for it may come in the same bytes."""


class Device(Record):
    """One device; -1 in a row number means that it has none."""

    written_ns: Int64
    returned_ns: Int64
    """When it last came back; 0 while it never was away, AWAY while it is."""
    taken: Int64
    """Distinct messages of the window that it received."""
    syn_ns: Int64
    tcp_ns: Int64
    request_ns: Int64
    """When SUBSCRIBE was sent."""
    pinged_ns: Int64
    """When the PINGREQ was sent that has no PINGRESP yet, 0 when none waits."""
    state: Int16
    flags: Int16
    descriptor: Int32
    group: Int32
    publisher: Int32
    pair_first: Int32
    stream_first: Int32
    stream_count: Int32
    partial_bytes: Int32
    """Bytes kept of a packet that has not come whole."""
    sender: Int32
    """Row in `senders` and `window`."""
    qos2: Int32
    """Row in `received_ids`."""
    unit_sent: Int32
    """Messages sent of the unit under way."""
    held: Int32
    """Acknowledgements withheld."""
    holder: Int32
    """Row in `held_ids`; without one every message is acknowledged at once."""
    responses: Int32
    """Where the topics of its responses begin in `topic_ends`."""
    target: Int32
    topic: Int32
    """Number of the one topic that it receives, -1 for one to each stream."""
    qos: Int32
    """QoS with which messages must come: the lower of the published and the granted one."""


@compiled
def transition(fleet: "Fleet", row: int, event: int) -> None:
    """Let an event happen to a device."""
    device = fleet.devices[row]
    before = device.state
    after = _NEXT[before, event]
    if after == _ILLEGAL:
        raise ValueError("a device cannot do this in its state")
    totals = fleet.totals
    totals.connecting += _IS_CONNECTING[after] - _IS_CONNECTING[before]
    totals.connected += _IS_CONNECTED[after] - _IS_CONNECTED[before]
    device.state = after
