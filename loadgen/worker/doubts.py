"""The doubts of a worker: which deliveries a broker may repeat (kernels/repeats.py)."""

from collections.abc import Callable

import numpy as np

from loadgen.kernels.accounting import Gap, make_pairs
from loadgen.kernels.repeats import Doubt, doubt_pairs, note_withheld, settle
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.build_fleet import many_rows

_EVERY_S = 1.0
_PAIRS_AT_ONCE = 20_000
_GAPS = 1 << 20


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
        return _EVERY_S / len(tables)

    return settle_some


def _ranges_of(fleet: PlannedFleet) -> list[tuple[int, int]]:
    """Return (begin, length) of the pairs of each device that can resume a session.

    Long ranges are divided, so that none of them takes long to settle.
    """
    ranges: dict[int, int] = {}
    devices = fleet.devices
    if fleet.own is not None:
        ranges = {0: len(fleet.pairs)}
    else:
        resumes = [
            group.subscribes is not None
            and group.subscribes.qos > 0
            and (not group.clean_start or group.subscribes.shared is not None)
            for group in fleet.plan.groups
        ]
        rows = np.flatnonzero((devices["stream_count"] > 0) & np.array(resumes)[fleet.group])
        firsts, counts = devices["pair_first"][rows], devices["stream_count"][rows]
        ranges = dict(zip(firsts.tolist(), counts.tolist(), strict=True))
    return [
        (first + start, min(_PAIRS_AT_ONCE, count - start))
        for first, count in ranges.items()
        for start in range(0, count, _PAIRS_AT_ONCE)
    ]


def doubt(fleet: PlannedFleet, connection: int) -> None:
    """Note the deliveries that the broker may repeat when a device, which lost its connection, is
    back.
    """
    device = fleet.devices[connection]
    first, count = device.pair_first, device.stream_count
    if fleet.own is not None:
        first, count = 0, len(fleet.pairs)
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
