"""Actions that a worker repeats: PINGREQ, devices that leave for a while, settled doubts."""

import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from loadgen.kernels.accounting import Gap, make_pairs
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.reactor import ping_idle
from loadgen.kernels.repeats import Doubt, doubt_pairs, note_withheld, settle
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PingReq
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import may_leave
from loadgen.worker.build_fleet import many_rows
from loadgen.worker.clock import clock_ns
from loadgen.worker.closing import range_owners
from loadgen.worker.endings import NO_PINGRESP
from loadgen.worker.outgoing import Outgoing
from loadgen.worker.reporter import Reporter

_PINGREQ = np.frombuffer(bytearray(encode(PingReq(), 4)), np.uint8)
_LEAVE_EVERY_S = 0.02
_TRIES = 20  # to find a connected device; with nearly all away, fewer leave
_SETTLE_EVERY_S = 1.0
_PAIRS_AT_ONCE = 20_000
_GAPS = 1 << 20


def keep_alive(
    fleet: PlannedFleet, outgoing: Outgoing, lost: Callable[[int, str], None]
) -> Callable[[], float]:
    """Return a function that pings devices that were silent for most of their keep-alive.

    `lost(connection, reason)` ends a connection. The function returns the seconds until its next
    call: there are eight calls in the shortest keep-alive, and at least one each second, so that
    no device is silent for all of it. A connection ends if a PINGREQ has no PINGRESP for a
    keep-alive (MQTT 5, 3.1.2.10).
    """
    looked_ns = clock_ns()

    def look() -> float:
        nonlocal looked_ns
        # Overdue devices of the last call: after a stall of ours a PINGRESP may still be unread.
        waited_ns = looked_ns - fleet.devices["pinged_ns"]
        limit_ns = fleet.devices["keep_alive_ns"]
        pinged = (fleet.devices["pinged_ns"] > 0) & (limit_ns > 0)
        for connection in np.flatnonzero(pinged & (waited_ns >= limit_ns)).tolist():
            lost(connection, NO_PINGRESP)
        looked_ns = clock_ns()
        due = np.zeros(len(fleet.devices), np.int64)
        listed = ping_idle(fleet, looked_ns, _PINGREQ, due)
        for connection in due[:listed].tolist():
            outgoing.write(connection, _PINGREQ.tobytes())
        shortest_ns = limit_ns.min(initial=8_000_000_000, where=limit_ns > 0)
        return int(shortest_ns) / 8e9

    return look


def churn(
    fleet: PlannedFleet, reporter: Reporter, random: Random, leave: Callable[[int], None]
) -> Callable[[], float | None]:
    """Return a function that disconnects the devices that are due since its last call.

    It returns the seconds until its next call, None for no more; `leave(connection)` disconnects.
    """
    groups = fleet.plan.groups
    total = sum(
        share.count
        for worker in fleet.plan.workers
        for share in worker.shares
        if may_leave(groups[share.group])
    )
    devices = [row for row in range(len(fleet.devices)) if may_leave(fleet.group_of(row))]
    rate = (fleet.plan.scenario.churn or 0.0) * len(devices) / max(total, 1)
    due, counted_s = 0.0, time.monotonic()

    def let_leave() -> float | None:
        nonlocal due, counted_s
        if not rate:
            return None
        now_s = time.monotonic()
        due += (now_s - counted_s) * rate
        counted_s = now_s
        while due >= 1.0:
            due -= 1.0
            some = (random.choice(devices) for _ in range(_TRIES))
            states = fleet.devices["state"]
            connection = next((one for one in some if states[one] == CONNECTED), None)
            if connection is not None:
                leave(connection)
        return _LEAVE_EVERY_S if reporter.phase in ("warmup", "measure") else None

    return let_leave


# --- doubts ------------------------------------------------------------------------------------


def settle_doubts(fleet: PlannedFleet) -> Callable[[], float | None]:
    """Return a function that settles the doubts of some pairs and returns the seconds until its
    next call, None for no more.

    All pairs have their turn in a second. Nothing is settled if the broker is killed on purpose,
    since it may have forgotten any acknowledgement; nor if a behaviour withholds acknowledgements.
    """
    ranges = _ranges_of(fleet)
    if ranges:
        pairs = len(fleet.pairs)
        fleet.replace(
            doubts=Doubt.rows(pairs), repeats=make_pairs(pairs), repeat_gaps=many_rows(Gap, _GAPS)
        )
    crash = fleet.plan.crash
    if fleet.own is not None or (crash is not None and crash.victim == "broker"):
        ranges = []
    turns: list[list[tuple[int, int]]] = []
    room = 0
    for first, count in ranges:
        if room < count:
            turns.append([])
            room = _PAIRS_AT_ONCE
        turns[-1].append((first, count))
        room -= count
    tables = [np.array(turn, np.int64).T.copy() for turn in turns]
    turn = 0

    def settle_some() -> float | None:
        nonlocal turn
        if not tables:
            return None
        firsts, counts = tables[turn]
        turn = (turn + 1) % len(tables)
        settle(fleet, firsts, counts)
        return _SETTLE_EVERY_S / len(tables)

    return settle_some


def _ranges_of(fleet: PlannedFleet) -> list[tuple[int, int]]:
    """Return (begin, length) of the pairs of each device that can resume a session.

    Long ranges are divided, so that none of them takes long to settle.
    """
    if fleet.own is not None:
        ranges = dict(pairs for row in range(len(fleet.devices)) for pairs in _pairs_of(fleet, row))
    else:
        resumes = [
            group.subscribes is not None
            and group.subscribes.qos > 0
            and (not group.clean_start or bool(group.subscribes.shared))
            for group in fleet.plan.groups
        ]
        received = fleet.ranges[np.array(resumes)[fleet.group[range_owners(fleet)]]]
        firsts, counts = received["pair_first"].tolist(), received["stream_count"].tolist()
        ranges = dict(zip(firsts, counts, strict=True))
    return [
        (first + start, min(_PAIRS_AT_ONCE, count - start))
        for first, count in ranges.items()
        for start in range(0, count, _PAIRS_AT_ONCE)
    ]


def _pairs_of(fleet: PlannedFleet, row: int) -> list[tuple[int, int]]:
    """Return (first, count) of each range of pairs at a device."""
    case_arrays: Any = fleet.own
    if case_arrays is not None:
        pairs: list[tuple[int, int]] = case_arrays.pairs_of(row)
        return pairs
    device = fleet.devices[row]
    numbers = range(device.range_first, device.range_first + device.range_count)
    ranges = (fleet.ranges[number] for number in numbers)
    return [(received.pair_first, received.stream_count) for received in ranges]


def doubt(fleet: PlannedFleet, connection: int) -> None:
    """Note the deliveries that the broker may repeat when a device, which lost its connection, is
    back.
    """
    device = fleet.devices[connection]
    for first, count in _pairs_of(fleet, connection):
        doubt_pairs(fleet, first, count)
    if device.qos2 >= 0:
        fleet.doubtful_ids[device.qos2] = fleet.received_ids[device.qos2]


def withhold(fleet: PlannedFleet, connection: int) -> int:
    """Note the unacknowledged deliveries of a device that is cut off; return their number."""
    device = fleet.devices[connection]
    for index in range(device.held):
        pair = int(fleet.held_pairs[device.holder, index])
        if pair >= 0:
            note_withheld(fleet, pair, int(fleet.held_sequences[device.holder, index]))
    return int(device.held)
