"""Messages that a device sends again after its connection broke (MQTT 5, 4.4)."""

import numpy as np
import numpy.typing as npt

from loadgen.kernels import packet_bytes as mqtt
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import phase_of
from loadgen.kernels.device import AWAY
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.handlers import Handlers
from loadgen.kernels.in_flight import AWAIT_PUBACK, AWAIT_PUBCOMP, FREE, release
from loadgen.kernels.payload import COPIES_MOST
from loadgen.kernels.sender import body_apart, write_message
from loadgen.mqtt.constants import PUBREL


@compiled
def write_again(fleet: Fleet, row: int, packet_id: int, dup: int, copy: int, position: int) -> int:
    device = fleet.devices[row]
    message = fleet.window[packet_id - 1, device.sender]
    sequence, intended_ns = int(np.int64(message["sequence"])), message["intended_ns"]
    sent_ns = message["sent_ns"]
    return write_message(
        fleet, device.publisher, sequence, intended_ns, sent_ns, packet_id, dup, copy, position
    )


@compiled
def on_return(fleet: Fleet, row: int) -> None:
    pass


@compiled
def redeliver_some(
    fleet: Fleet,
    row: int,
    session_present: bool,
    slots: npt.NDArray[np.int64],
    count: int,
    now_ns: int,
    handlers: Handlers,
) -> tuple[int, int, int]:
    """Write again the messages that were unacknowledged when the connection broke.

    The payload is marked as a copy if a receiver may get both (payload.py).

    `slots[:count]` are those of `redelivery_order`. If the broker has the session, a PUBLISH has
    DUP, and a message that waits for PUBCOMP gets its PUBREL. If not, messages are sent as new
    ones, and those that the broker had accepted are given up. Return (slots handled, bytes written
    to `out`, bytes of `body` that must follow); fewer slots than `count` if `out` is full or a body
    must follow.
    """
    device = fleet.devices[row]
    group = fleet.groups[device.group]
    room = len(fleet.out) - group.packet_most
    dup = 1 if session_present else 0
    position = 0
    handlers.on_return(fleet, row)
    for index in range(count):
        if position > room:
            return index, position, 0
        slot = slots[index]
        message = fleet.window[slot, device.sender]
        packet_id = slot + 1
        if AWAY < device.returned_ns <= message["sent_ns"]:
            continue  # it was first sent on this connection
        if message["state"] != AWAIT_PUBCOMP:
            copy = 0
            if message["state"] == AWAIT_PUBACK or not session_present:
                copy = min(int(np.int64(message["copies"])) + 1, COPIES_MOST)
                message["copies"] = copy
            position = handlers.write_again(fleet, row, packet_id, dup, copy, position)
            if group.body_apart:
                sequence = int(np.int64(message["sequence"]))
                return index + 1, position, body_apart(fleet, device.publisher, sequence)
        elif session_present:
            position = mqtt.write_ack(fleet.out, position, PUBREL, packet_id)
        else:
            _give_up(fleet, row, packet_id)
            position = handlers.on_acknowledged(fleet, row, packet_id, now_ns, position)[1]
    return count, position, 0


@compiled
def _give_up(fleet: Fleet, row: int, packet_id: int) -> None:
    """End a handshake that was lost with the session."""
    device = fleet.devices[row]
    phase = phase_of(fleet.run, fleet.window[packet_id - 1, device.sender]["intended_ns"])
    fleet.counters[device.group, phase].given_up += 1
    release(fleet.senders, fleet.window, device.sender, packet_id)
    fleet.totals.in_flight -= 1


@compiled
def give_up_all(fleet: Fleet, row: int) -> None:
    """End all handshakes of a device, whose messages are not sent again."""
    sender = fleet.devices[row].sender
    for slot in range(np.int64(fleet.senders[sender]["cursor"])):
        if fleet.window[slot, sender]["state"] != FREE:
            _give_up(fleet, row, slot + 1)
