"""Loss, repetition and order of messages.

A *pair* is one publisher's stream as one subscriber must receive it. Skipped messages are gaps:
ranges of missing sequences. A message from a gap is late (out of order), any other old one a
duplicate. Lost messages are counted from the totals, because a lost last message leaves no gap.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import Int32, Int64, Record, Rows
from loadgen.kernels.compiled import compiled

NEW, LATE, DUPLICATE = 0, 1, 2

_NONE = -1


class Pair(Record):
    expected: Int64  # next expected sequence
    gaps: Int32  # newest gap of the pair, or -1


class Gap(Record):
    """Missing sequences `first` to `last`; `older` is the previous gap of the pair, or -1."""

    first: Int64
    last: Int64
    older: Int32


class GapPool(Record):
    """The use of the rows of gaps. A released row is used again before a new one."""

    free_gap: Int64  # row released last, plus 1, or 0; its `older` links to the one before
    used_gaps: Int64  # rows that have been in use
    forgotten_gaps: Int64  # ranges for which no row was left
    missing: Int64  # messages in gaps: a later one of their stream has arrived


def make_pairs(count: int) -> Rows[Pair]:
    """Return pairs that expect sequence 0."""
    pairs = Pair.rows(count)
    pairs["gaps"] = _NONE
    return pairs


@compiled
def account(pairs: Rows[Pair], gaps: Rows[Gap], pool: GapPool, number: int, sequence: int) -> int:
    """Record the arrival of `sequence` on pair `number`; return NEW, LATE or DUPLICATE.

    If no row of `gaps` is left, the skipped messages count as duplicates when they arrive.
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
    """Return a row for a new gap, or _NONE if all are in use."""
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
    """Remove a sequence from the gap that contains it."""
    newer = _NONE
    row = pair.gaps
    while row != _NONE:
        gap = gaps[row]
        if sequence > gap.last:
            return DUPLICATE  # newer gaps come first, so no older one contains it
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
    """Split a gap in two around a sequence that arrived."""
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
    """Return True if `sequence` has arrived on pair `number`."""
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


@compiled
def first_missing(pairs: Rows[Pair], gaps: Rows[Gap], number: int, most: int) -> int:
    """Return the first missing sequence of a pair; 0 if the pair has more gaps than `most`."""
    pair = pairs[number]
    first = pair.expected
    row = pair.gaps
    while row != _NONE:
        most -= 1
        if most < 0:
            return 0
        gap = gaps[row]
        first = gap.first
        row = gap.older
    return int(first)


@compiled
def forget_gaps(pairs: Rows[Pair], gaps: Rows[Gap], pool: GapPool, number: int) -> None:
    """Release the gaps of a pair; their messages no longer count as missing."""
    pair = pairs[number]
    while pair.gaps != _NONE:
        row = pair.gaps
        gap = gaps[row]
        pool.missing -= gap.last - gap.first + 1
        pair.gaps = gap.older
        gap.older = pool.free_gap - 1
        pool.free_gap = row + 1


def missing_ranges(pair: Pair, gaps: Rows[Gap]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the missing sequences of a pair, the newest first."""
    row = pair.gaps
    while row != _NONE:
        gap = gaps[row]
        yield int(gap.first), int(gap.last)
        row = gap.older


def received_on(pairs: Rows[Pair], gaps: Rows[Gap]) -> npt.NDArray[np.int64]:
    received = pairs["expected"].copy()
    for number in np.flatnonzero(pairs["gaps"] != _NONE).tolist():
        received[number] -= sum(
            last - first + 1 for first, last in missing_ranges(pairs[number], gaps)
        )
    return received
