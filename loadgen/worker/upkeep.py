"""Actions that a worker repeats: PINGREQ, devices that leave and return, decisions on repeats."""

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import cycle
from math import inf
from random import Random
from typing import Any

import numpy as np

from loadgen.kernels.accounting import Gap, make_pairs
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.pacer import load_time_of
from loadgen.kernels.reactor import ping_idle
from loadgen.kernels.repeats import Doubt, doubt_pairs, note_withheld, settle
from loadgen.kernels.sender import reschedule
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PingReq
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import may_leave, sent_qos
from loadgen.plan.stages import absences
from loadgen.worker.build_fleet import many_rows
from loadgen.worker.clock import clock_ns
from loadgen.worker.closing import range_owners
from loadgen.worker.outgoing import Outgoing

NO_PINGRESP = "no PINGRESP in time"
_PINGREQ = np.frombuffer(bytearray(encode(PingReq(), 4)), np.uint8)
_LEAVE_EVERY_S = 0.02
_NO_RETURN_NS = 3_600_000_000_000
_TRIES = 20  # to find a connected device; with nearly all away, fewer leave
_SETTLE_EVERY_S = 1.0
_PAIRS_AT_ONCE = 20_000
_GAPS = 1 << 20

Absence = tuple[int, int, int, bool]
"""Time at which a device leaves, that of its return, its row, and True if it leaves by stages."""


def keep_alive(
    fleet: PlannedFleet, outgoing: Outgoing, lost: Callable[[int, str], None]
) -> Callable[[], float]:
    """Return a function that pings devices that were silent for most of their keep-alive.

    `lost(connection, reason)` ends a connection without a PINGRESP for a keep-alive (MQTT 5,
    3.1.2.10). The function returns the seconds until its next call, an eighth of the shortest
    keep-alive.
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


def leave_and_return(
    fleet: PlannedFleet, times: tuple[int, int], random: Random, leave: Callable[[int, int], None]
) -> Callable[[], float | None]:
    """Return a function that disconnects the devices that are due to leave since its last call.

    It returns the seconds until its next call, None for no more; `leave(connection, until_ns)`
    disconnects. `times` are the begin of the schedule and the end of the window.
    """
    start_ns, end_ns = times
    absent = merge(_by_stages(fleet, *times), _by_churn(fleet, *times, random))
    coming = next(absent, None)
    late: list[Absence] = []

    def let_leave() -> float | None:
        nonlocal coming
        now_ns = max(clock_ns(), start_ns)
        due = late.copy()
        late.clear()
        while coming is not None and coming[0] <= now_ns:
            due.append(coming)
            coming = next(absent, None)
        for left_ns, until_ns, row, is_staged in due:
            if fleet.devices["state"][row] == CONNECTED:
                if is_staged and (number := int(fleet.devices["publisher"][row])) >= 0:
                    away_ns = load_time_of(fleet.program, until_ns)
                    away_ns -= load_time_of(fleet.program, left_ns)
                    fleet.publishers[number].phase_ns += away_ns
                    fleet.publishers[number].load_ns += away_ns
                leave(row, until_ns)
            elif is_staged and until_ns > now_ns:
                late.append((left_ns, until_ns, row, is_staged))  # it has not connected yet
        if any(is_staged for *_, is_staged in due):
            reschedule(fleet)
            fleet.totals.rearm = 1
        return _LEAVE_EVERY_S if (late or coming is not None) and now_ns < end_ns else None

    return let_leave


def _by_stages(fleet: PlannedFleet, start_ns: int, end_ns: int) -> list[Absence]:
    """Return the absences by stages; devices with messages to account for return at the end."""
    absent: list[Absence] = []
    measure_ns = fleet.run.measure_ns
    for row, device in enumerate(fleet.device.tolist()):
        group = fleet.group_of(row)
        accounts = group.subscribes is not None or sent_qos(group) > 0
        last_ns = end_ns if accounts else end_ns + _NO_RETURN_NS
        for left_s, until_s in absences(group.stages, device):
            left_ns = start_ns if left_s < 0 else measure_ns + int(left_s * 1e9)
            until_ns = last_ns if until_s == inf else measure_ns + int(until_s * 1e9)
            if left_ns < end_ns:
                absent.append((left_ns, min(until_ns, last_ns), row, True))
    return sorted(absent)


def _by_churn(fleet: PlannedFleet, start_ns: int, end_ns: int, random: Random) -> Iterator[Absence]:
    """Yield the absences of devices that are chosen at random, as many a second as requested."""
    scenario, groups = fleet.plan.scenario, fleet.plan.groups
    total = sum(
        share.count
        for worker in fleet.plan.workers
        for share in worker.shares
        if may_leave(groups[share.group])
    )
    devices = [row for row in range(len(fleet.devices)) if may_leave(fleet.group_of(row))]
    rate = (scenario.churn or 0.0) * len(devices) / max(total, 1)
    away_until: dict[int, int] = {}
    for number in range(1, int((end_ns - start_ns) * rate / 1e9) + 1):
        left_ns = start_ns + int(number / rate * 1e9)
        some = (random.choice(devices) for _ in range(_TRIES))
        row = next((one for one in some if away_until.get(one, 0) < left_ns), None)
        if row is not None:
            away_until[row] = left_ns + int(scenario.away * (0.5 + random.random()) * 1e9)
            yield left_ns, away_until[row], row, False


def settle_doubts(fleet: PlannedFleet) -> Callable[[], float | None]:
    """Return a function that settles doubts; it returns the seconds until its next call.

    Each pair has its turn once a second. Doubts stay if the broker is killed on purpose, as it may
    have forgotten any acknowledgement, or if a behaviour withholds acknowledgements.
    """
    ranges = _ranges_of(fleet)
    if ranges:
        pairs = len(fleet.pairs)
        fleet.replace(
            doubts=Doubt.rows(pairs), repeats=make_pairs(pairs), repeat_gaps=many_rows(Gap, _GAPS)
        )
    crash = fleet.plan.crash
    if fleet.extension is not None or (crash is not None and crash.victim == "broker"):
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
    in_turn = cycle(tables)

    def settle_some() -> float | None:
        if not tables:
            return None
        settle(fleet, *next(in_turn))
        return _SETTLE_EVERY_S / len(tables)

    return settle_some


def _ranges_of(fleet: PlannedFleet) -> list[tuple[int, int]]:
    """Return (begin, length) of the pairs of devices that can resume a session, in short pieces."""
    if fleet.extension is not None:
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
    case_arrays: Any = fleet.extension
    if case_arrays is not None:
        pairs: list[tuple[int, int]] = case_arrays.pairs_of(row)
        return pairs
    first, count = fleet.devices[row].range_first, fleet.devices[row].range_count
    ranges = fleet.ranges[first : first + count]
    return [(received.pair_first, received.stream_count) for received in ranges]


def doubt(fleet: PlannedFleet, connection: int) -> None:
    """Note the deliveries that the broker may repeat to a device that lost its connection."""
    device = fleet.devices[connection]
    for first, count in _pairs_of(fleet, connection):
        doubt_pairs(fleet, first, count)
    if device.qos2 >= 0:
        open_ids = fleet.received_ids[device.qos2] | fleet.released_ids[device.qos2]
        fleet.doubtful_ids[device.qos2] |= open_ids
        fleet.released_ids[device.qos2] = 0


def withhold(fleet: PlannedFleet, connection: int) -> int:
    """Note the unacknowledged deliveries of a device that is cut off; return their number."""
    device = fleet.devices[connection]
    for index in range(device.held):
        pair = int(fleet.held_pairs[device.holder, index])
        if pair >= 0:
            note_withheld(fleet, pair, int(fleet.held_sequences[device.holder, index]))
    return int(device.held)
