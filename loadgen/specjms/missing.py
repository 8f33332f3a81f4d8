"""Names of the messages that did not arrive, from the reports of senders and receivers.

A receiver has the gaps of a stream and the number of the next message, only the sender the number
of messages sent. Together they name the messages in gaps and at the end of a stream.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from loadgen.kernels.accounting import Gap, missing_ranges
from loadgen.kernels.arrays import Int64s, Rows
from loadgen.specjms.chain_model import Model, producers_of
from loadgen.specjms.destinations import location_name
from loadgen.specjms.kernels.chains import Chains
from loadgen.specjms.layout import (
    destination_of_stream,
    first_destinations,
    first_streams,
)
from loadgen.specjms.messages import MESSAGES
from loadgen.specjms.topology import suppliers_of

Range = tuple[int, int, int, int]
"""Stream, consumer, first and last sequence; the consumer is 0 if a stream has only one."""

NAMED_LIMIT = 5  # names per destination; further messages are counted
STREAMS_LIMIT = 1_000_000  # in a worker's report; with more, it has only gaps


def gaps_of(model: Model, chains: Chains, gaps: Rows[Gap]) -> list[Range]:
    """Return a worker's gaps, at most NAMED_LIMIT per destination."""
    ranges: list[Range] = []
    firsts = first_streams(model)
    counts: Counter[tuple[int, int]] = Counter()
    for number, consumer, base, streams in _accounts(model, chains):
        pairs = chains.pairs[base : base + len(streams)]
        for at in np.flatnonzero(pairs["gaps"] >= 0).tolist():
            stream = int(streams[at])
            place = number, destination_of_stream(model, number, stream - firsts[number])
            for first, last in islice(missing_ranges(pairs[at], gaps), NAMED_LIMIT - counts[place]):
                counts[place] += 1
                ranges.append((stream, consumer, first, last))
    return ranges


def streams_of(model: Model, chains: Chains) -> dict[str, list[list[int]]] | None:
    """Return the messages sent in each used stream, and the next one that each consumer expects.

    Columns, as JSON values: `sent` has stream and count, `next` has stream, consumer and sequence.
    The result is None if it would exceed STREAMS_LIMIT.
    """
    used = np.flatnonzero(chains.sequences)
    expected: list[Int64s] = []
    for _, consumer, base, streams in _accounts(model, chains):
        following = chains.pairs["expected"][base : base + len(streams)]
        begun = np.flatnonzero(following)
        which = begun + streams.start if isinstance(streams, range) else streams[begun]
        expected.append(np.stack([which, np.full(len(begun), consumer), following[begun]]))
    columns = np.concatenate([np.zeros((3, 0), np.int64), *expected], axis=1)
    if len(used) + columns.shape[1] > STREAMS_LIMIT:
        return None
    return {"sent": [used.tolist(), chains.sequences[used].tolist()], "next": columns.tolist()}


def name_missing(
    model: Model,
    lost: Mapping[int, int],
    gaps: Iterable[Sequence[int]],
    streams: Sequence[Mapping[str, Any]] | None,
) -> dict[int, tuple[tuple[str, ...], int]]:
    """Return by destination the names of missing messages, and the number of unnamed ones.

    `lost` are lost deliveries by destination; `gaps` and `streams` are of all workers. Without
    `streams`, messages at the end of a stream have no name.
    """
    first_of, places = first_streams(model), first_destinations(model)
    wanted = sorted(row for row, count in lost.items() if count > 0)
    by_row: dict[int, list[Range]] = {row: [] for row in wanted}
    types = sorted({type_at(places, row) for row in wanted}) if streams is not None else []
    ends = (_missing_at_ends(model, number, streams or ()) for number in types)
    for stream, consumer, first, last in chain(gaps, *ends):
        number = type_at(first_of, stream)
        row = places[number] + destination_of_stream(model, number, stream - first_of[number])
        if row in by_row and len(by_row[row]) < NAMED_LIMIT:
            by_row[row].append((stream, consumer, first, last))
    named = {}
    for row, ranges in by_row.items():
        names = []
        count = 0
        for stream, consumer, first, last in sorted(ranges):
            count += last - first + 1
            number = type_at(first_of, stream)
            message, producers = MESSAGES[number], producers_of(model, number)
            each = producers // model.count_of(message.sender)
            place = (stream - first_of[number]) % producers // each
            which = f"message {first}" if first == last else f"messages {first} to {last}"
            to = f" at {location_name(message.consumer, consumer)}" if message.pubsub else ""
            names.append(f"{which} from {location_name(message.sender, place)}{to}")
        named[row] = tuple(names), lost[row] - count
    return named


def _accounts(model: Model, chains: Chains) -> Iterable[tuple[int, int, int, Int64s | range]]:
    """Yield a worker's accounts: type, consumer, first pair, and the streams of its pairs."""
    firsts = first_streams(model)
    done: set[int] = set()
    for row, number in np.argwhere(chains.bases >= 0).tolist():
        base = int(chains.bases[row, number])
        if base in done:
            continue
        done.add(base)
        spread = MESSAGES[number].spread
        consumer = 0 if spread == "one" else chains.roles[row].place
        if spread == "family":
            producers = chains.types[number].producers
            role = chains.roles[row]
            families = chains.offered[role.family_first : role.family_first + role.families]
            offsets = (families[:, None] * producers + np.arange(producers)).ravel()
            yield number, consumer, base, firsts[number] + offsets
        else:
            # A large model has many millions of these, of which few are used.
            yield number, consumer, base, range(firsts[number], firsts[number + 1])


def _missing_at_ends(
    model: Model, number: int, streams: Sequence[Mapping[str, Any]]
) -> Iterator[Range]:
    """Yield the messages of a type's streams after the last one that a consumer received."""
    first, end = first_streams(model)[number : number + 2]
    sent: list[tuple[int, int]] = []
    following: dict[tuple[int, int], int] = {}
    for report in streams:
        sent += [used for used in zip(*report["sent"], strict=True) if first <= used[0] < end]
        for stream, consumer, sequence in zip(*report["next"], strict=True):
            if first <= stream < end:
                following[stream, consumer] = sequence
    spread = MESSAGES[number].spread
    consumers: Sequence[int] = range(model.locations.supermarkets if spread == "all" else 1)
    for stream, count in sorted(sent):
        if spread == "family":
            family = destination_of_stream(model, number, stream - first)
            consumers = suppliers_of(family, model.locations.suppliers)
        for consumer in consumers:
            expected = following.get((stream, consumer), 0)
            if expected < count:
                yield stream, consumer, expected, count - 1


def type_at(firsts: Sequence[int], number: int) -> int:
    """Return the type of a stream or destination; `firsts` has the first one of each type."""
    return bisect_right(firsts, number) - 1
