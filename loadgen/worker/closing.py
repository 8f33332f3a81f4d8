"""Sums over the data of a worker at the end of a run, which do not depend on its counters."""

import fcntl
import termios
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from loadgen.kernels.accounting import missing_ranges, received_on
from loadgen.kernels.arrays import Int64s
from loadgen.kernels.device import CONNECTED, SHARED
from loadgen.kernels.in_flight import FREE
from loadgen.kernels.readout import count_missing
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.frames import Header

MESSAGES_LIMIT = 100_000  # unacknowledged messages, and lengths of streams, in a report
LOST_LIMIT = 100  # ranges of lost messages in a worker's report
UNKNOWN = -1
_NO_BYTES = bytes(4)


def closing_statement(fleet: PlannedFleet, refusal: str, violation: str) -> Header:
    """Return the sums of a run, all phases together, as `judge.ledger.Witness` explains them."""
    totals, refused, counted = fleet.totals, fleet.refusals["count"], fleet.violations
    return {
        "in_flight": int(fleet.senders["in_flight"].sum()),
        "distinct": int(received_on(fleet.pairs, fleet.gaps).sum()),
        "damaged": totals.damaged,
        "publishes": totals.publishes,
        "unread": sum(map(has_unread, fleet.devices["descriptor"].tolist())),
        "refusals": {str(code): int(refused[code]) for code in np.flatnonzero(refused)},
        "refusal": refusal,
        "violation": violation,
        "violations": {str(kind): int(counted[kind]) for kind in np.flatnonzero(counted)},
        "unreleased": totals.unreleased,
        "redelivered": int(fleet.withheld["came"][: totals.withheld].sum()),
        "overtaken": totals.missing - totals.withdrawn,  # refused messages are missing, too
    }


def has_unread(descriptor: int) -> bool:
    """Return True if a socket has unread bytes; -1 stands for no socket."""
    return descriptor >= 0 and fcntl.ioctl(descriptor, termios.FIONREAD, _NO_BYTES) != _NO_BYTES


def sent_by_streams(fleet: PlannedFleet) -> int:
    """Return the number of messages sent; responses, which have no stream, count as well."""
    answering = [group.responds is not None for group in fleet.plan.groups]
    responses = fleet.counters["sent"][np.array(answering, np.bool_)].sum()
    # Before the schedule begins no stream has a next message.
    return int(np.maximum(fleet.publishers["sequence"], 0).sum() + responses)


def unacknowledged(fleet: PlannedFleet) -> Header:
    """Collect (stream, sequence) of the publishers' messages in flight, and the streams' lengths.

    `complete` is False if there are more than MESSAGES_LIMIT, or if other devices have some.
    """
    messages: list[list[int]] = []
    counted = 0
    devices = fleet.devices
    publishing = (devices["publisher"] >= 0) & (devices["sender"] >= 0)
    if fleet.extension is None:
        for row in np.flatnonzero(publishing).tolist():
            sender = int(devices["sender"][row])
            in_flight = int(fleet.senders["in_flight"][sender])
            counted += in_flight
            if in_flight and len(messages) < MESSAGES_LIMIT:
                window = fleet.window[:, sender]
                stream = int(fleet.publishers["stream"][devices["publisher"][row]])
                sequences = window["sequence"][window["awaits"] != FREE].astype(np.int64)
                messages += [[stream, sequence] for sequence in sequences.tolist()]
    complete = counted == int(fleet.senders["in_flight"].sum()) and len(messages) <= MESSAGES_LIMIT
    streams, sent = fleet.publishers["stream"], np.maximum(fleet.publishers["sequence"], 0)
    # Refused messages are in gaps, too, but are not expected.
    all_streams = (
        fleet.extension is None and not fleet.totals.withdrawn and len(sent) <= MESSAGES_LIMIT
    )
    return {
        "messages": messages[:MESSAGES_LIMIT],
        "complete": complete,
        "sent": np.stack([streams, sent], 1).tolist() if all_streams else [],
    }


def missing_of(fleet: PlannedFleet, messages: Sequence[Sequence[int]]) -> int:
    """Return the number of missing deliveries of these messages, (stream, sequence)."""
    by_stream: defaultdict[int, list[int]] = defaultdict(list)
    for stream, sequence in messages:
        by_stream[stream].append(sequence)
    # The consumers of a queue share their pairs.
    ranges = fleet.ranges[np.unique(fleet.ranges["pair_first"], return_index=True)[1]]
    first, count, pairs = (ranges[n] for n in ("stream_first", "stream_count", "pair_first"))
    missing = 0
    for stream, sequences in by_stream.items():
        receiving = (first <= stream) & (stream < first + count)
        numbers = (pairs + stream - first)[receiving].astype(np.int64)
        missing += count_missing(fleet, numbers, np.array(sequences, np.int64))
    return missing


def lost_ranges(
    fleet: PlannedFleet, sent: Sequence[Sequence[int]], excepted: Iterable[Sequence[int]]
) -> list[list[Any]]:
    """Return the missing messages: [stream, first, last, group, device], at most LOST_LIMIT.

    `sent` has the lengths of the streams to examine, `excepted` (stream, sequence) to omit.
    """
    length = {stream: count for stream, count in sent}  # noqa: C416 (pairs are lists)
    unless: defaultdict[int, set[int]] = defaultdict(set)
    for stream, sequence in excepted:
        unless[stream].add(sequence)
    lost: list[list[Any]] = []
    seen: set[int] = set()
    for row, received in zip(range_owners(fleet).tolist(), fleet.ranges, strict=True):
        first_pair, stream = int(received.pair_first), int(received.stream_first)
        if first_pair in seen:
            continue  # the consumers of a queue share their pairs
        seen.add(first_pair)
        whom = [fleet.group_of(row).name, int(fleet.device[row])]
        for at in range(int(received.stream_count)):
            if stream + at in length:
                gaps = _not_come(fleet, first_pair + at, length[stream + at])
                for first, last in _without(gaps, unless[stream + at]):
                    lost.append([stream + at, first, last, *whom])
                    if len(lost) == LOST_LIMIT:
                        return lost
    return lost


def range_owners(fleet: PlannedFleet) -> Int64s:
    """Return the row of the device of each range of streams."""
    return np.repeat(np.arange(len(fleet.devices)), fleet.devices["range_count"])


def _not_come(fleet: PlannedFleet, number: int, length: int) -> list[tuple[int, int]]:
    """Return (first, last) of each missing range of sequences in a stream of this length."""
    pair = fleet.pairs[number]
    at_end = [(int(pair.expected), length - 1)] if pair.expected < length else []
    return [*at_end, *missing_ranges(pair, fleet.gaps)][::-1]


def _without(
    ranges: Iterable[tuple[int, int]], sequences: Collection[int]
) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        for sequence in sorted(one for one in sequences if first <= one <= last):
            if first < sequence:
                yield first, sequence - 1
            first = sequence + 1
        if first <= last:
            yield first, last


def absent_streams(fleet: PlannedFleet, unserved: Iterable[int]) -> list[list[int]]:
    """Return the streams of devices that never connected: [first, count, devices].

    Devices without a subscription (`unserved`) count too, if they received nothing. A queue counts
    once, if all its consumers are absent.
    """
    devices = fleet.devices
    never = (devices["state"] != CONNECTED) & (devices["returned_ns"] == 0)
    never[list(unserved)] = True
    came = np.concatenate([[0], np.cumsum(received_on(fleet.pairs, fleet.gaps))])
    is_absent = never[range_owners(fleet)]
    present = set(fleet.ranges["pair_first"][~is_absent].tolist())
    places: dict[int, tuple[int, int]] = {}
    for received in fleet.ranges[is_absent]:
        first, count = int(received.pair_first), int(received.stream_count)
        if first not in present and came[first + count] == came[first]:
            places[first] = int(received.stream_first), count
    return [[*streams, times] for streams, times in Counter(places.values()).items()]


def sent_on(fleet: PlannedFleet, streams: Sequence[Sequence[int]]) -> Header:
    """Return the number of messages sent here on streams, each [first, count, times].

    `complete` is False if one of the messages sent is not expected at every subscriber.
    """
    number = fleet.publishers["stream"].astype(np.int64)
    order = np.argsort(number)
    number = number[order]
    sent = np.maximum(fleet.publishers["sequence"][order], 0)
    until = np.concatenate([[0], np.cumsum(sent)])
    total = 0
    for first, count, times in streams:
        begin, end = np.searchsorted(number, (first, first + count))
        total += int(until[end] - until[begin]) * times
    return {"sent": total, "complete": fleet.extension is None and fleet.totals.withdrawn == 0}


def device_columns(fleet: PlannedFleet) -> dict[str, Int64s]:
    """Return the figures of each device, for `per_device`, with numbers as in the plan.

    `received` is UNKNOWN if consumers share messages or the pool of gaps ran out. `stream` and
    `sent` are UNKNOWN if the device does not publish.
    """
    devices = fleet.devices
    publisher = devices["publisher"]
    publishes = publisher >= 0
    stream = np.full(len(devices), UNKNOWN, np.int64)
    sent = stream.copy()
    stream[publishes] = fleet.publishers["stream"][publisher[publishes]]
    sent[publishes] = fleet.publishers["sequence"][publisher[publishes]]
    before = np.concatenate([[0], np.cumsum(received_on(fleet.pairs, fleet.gaps))])
    ranges = fleet.ranges
    pairs, streams = ranges["pair_first"], ranges["stream_count"]
    begin, end = devices["range_first"], devices["range_first"] + devices["range_count"]
    until = np.concatenate([[0], np.cumsum(before[pairs + streams] - before[pairs])])
    received = until[end] - until[begin]
    counts = np.concatenate([[0], np.cumsum(streams, dtype=np.int64)])
    first = np.append(ranges["stream_first"], 0).astype(np.int64)
    shared = (devices["flags"] & SHARED) != 0
    received[shared | bool(fleet.totals.forgotten_gaps)] = UNKNOWN
    return {
        "group": devices["group"].astype(np.int64),
        "device": fleet.device.copy(),
        "target": devices["target"].astype(np.int64),
        "connected": (devices["state"] == CONNECTED).astype(np.int64),
        "stream": stream,
        "sent": sent,
        "first_stream": np.where(end > begin, first[begin], 0),
        "streams": counts[end] - counts[begin],
        "received": received,
        "received_in_window": devices["taken"].astype(np.int64),
    }
