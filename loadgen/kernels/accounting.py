"""Loss, repetition and order, message by message.

A *pair* is one publisher's stream as one subscriber must receive it. A pair knows the next
sequence it expects; what was skipped is kept as gaps, ranges of missing sequences in a list of the
pair. A message from a gap is late (out of order), any other old message is repeated. What remains
in gaps, or after the last message, is lost; that is counted from the totals, because a lost last
message leaves no gap.
"""

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import Int32, Int64, Record, Rows
from loadgen.kernels.compiled import compiled

NEW, LATE, DUPLICATE = 0, 1, 2

_NONE = -1


class Pair(Record):
    """One stream as one subscriber must receive it."""

    expected: Int64
    """The next sequence."""
    gaps: Int32
    """The newest of its gaps, -1 for none."""


class Gap(Record):
    """Missing sequences `first` to `last`; `older` is the gap of the pair before it, or -1."""

    first: Int64
    last: Int64
    older: Int32


class GapPool(Record):
    """Which rows of the gaps are in use; zeros while none ever was.

    A row is used for the first time only when none was given back, so that memory is touched as it
    is needed.
    """

    free_gap: Int64
    """The gap given back last and 1, 0 for none; `older` leads to the one before."""
    used_gaps: Int64
    """Rows that were ever used."""
    forgotten_gaps: Int64
    """Ranges that found no row."""
    missing: Int64
    """Messages in gaps: a later one of their stream has come, they have not."""


def make_pairs(count: int) -> Rows[Pair]:
    """Pairs that expect sequence 0."""
    pairs = Pair.rows(count)
    pairs["gaps"] = _NONE
    return pairs


@compiled
def account(pairs: Rows[Pair], gaps: Rows[Gap], pool: GapPool, number: int, sequence: int) -> int:
    """Take note of `sequence` arriving on pair `number`; NEW, LATE or DUPLICATE.

    When no row of `gaps` is left the skipped range is forgotten and counted in `pool`: its
    messages, should they still come, are judged as repeated.
    """
    pair = pairs[number]
    expected = pair.expected
    if sequence == expected:
        pair.expected = sequence + 1
        return NEW
    if sequence > expected:
        pool.missing += sequence - expected
        row = _take_row(gaps, pool)
        if row != _NONE:
            gap = gaps[row]
            gap.first = expected
            gap.last = sequence - 1
            gap.older = pair.gaps
            pair.gaps = row
        pair.expected = sequence + 1
        return NEW
    return _fill(pair, gaps, pool, sequence)


@compiled
def _take_row(gaps: Rows[Gap], pool: GapPool) -> int:
    """A row for a new gap; _NONE where all are in use."""
    row = pool.free_gap - 1
    if row != _NONE:
        pool.free_gap = gaps[row].older + 1
    elif pool.used_gaps < len(gaps):
        row = pool.used_gaps
        pool.used_gaps += 1
    else:
        pool.forgotten_gaps += 1
    return row


@compiled
def _fill(pair: Pair, gaps: Rows[Gap], pool: GapPool, sequence: int) -> int:
    """Take a sequence out of the gap that holds it."""
    newer = _NONE
    row = pair.gaps
    while row != _NONE:
        gap = gaps[row]
        if sequence > gap.last:
            return DUPLICATE  # newer gaps come first, so no older one can hold it
        if sequence >= gap.first:
            if gap.first == gap.last:
                if newer == _NONE:
                    pair.gaps = gap.older
                else:
                    gaps[newer].older = gap.older
                gap.older = pool.free_gap - 1
                pool.free_gap = row + 1
            elif sequence == gap.first:
                gap.first = sequence + 1
            elif sequence == gap.last:
                gap.last = sequence - 1
            else:
                _split(pair, gaps, pool, newer, row, sequence)
            pool.missing -= 1
            return LATE
        newer = row
        row = gap.older
    return DUPLICATE


@compiled
def _split(pair: Pair, gaps: Rows[Gap], pool: GapPool, newer: int, row: int, sequence: int) -> None:
    """A sequence within a gap came: what is above it becomes a gap of its own."""
    gap = gaps[row]
    above = _take_row(gaps, pool)
    if above != _NONE:
        upper = gaps[above]
        upper.first = sequence + 1
        upper.last = gap.last
        upper.older = row
        if newer == _NONE:
            pair.gaps = above
        else:
            gaps[newer].older = above
    gap.last = sequence - 1


@compiled
def has_come(pairs: Rows[Pair], gaps: Rows[Gap], number: int, sequence: int) -> bool:
    """Whether `sequence` has arrived on pair `number`."""
    pair = pairs[number]
    if sequence >= pair.expected:
        return False
    row = pair.gaps
    while row != _NONE:
        gap = gaps[row]
        if sequence >= gap.first:
            return bool(sequence > gap.last)
        row = gap.older
    return True


def received_on(pairs: Rows[Pair], gaps: Rows[Gap]) -> npt.NDArray[np.int64]:
    """Distinct messages that each pair has received, shape (pairs,)."""
    received = pairs["expected"].copy()
    for number in np.flatnonzero(pairs["gaps"] != _NONE).tolist():
        row = pairs[number].gaps
        while row != _NONE:
            gap = gaps[row]
            received[number] -= gap.last - gap.first + 1
            row = gap.older
    return received
