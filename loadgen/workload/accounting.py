"""Loss, repetition and order, message by message.

A *pair* is one publisher's stream as one subscriber must receive it. A pair knows the next
sequence it expects; what was skipped is kept as holes, ranges of missing sequences in a list of
the pair. A message from a hole is late (out of order), any other old message is repeated. What
remains in holes, or after the last message, is lost; that is counted from the totals, because a
lost last message leaves no hole.
"""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled

__all__ = [
    "DUPLICATE",
    "FORGOTTEN",
    "FREE_HOLE",
    "HOLE_FIELDS",
    "LATE",
    "NEW",
    "PAIR_FIELDS",
    "PAIR_NEXT",
    "account",
    "make_holes",
    "make_pairs",
    "received_on",
]

Table = npt.NDArray[np.int64]

NEW, LATE, DUPLICATE = 0, 1, 2

PAIR_NEXT, PAIR_HOLES = 0, 1
PAIR_FIELDS = 2

HOLE_FIRST, HOLE_LAST, HOLE_LINK = 0, 1, 2
HOLE_FIELDS = 3

FREE_HOLE, FORGOTTEN = 0, 1
_NONE = -1


def make_pairs(count: int) -> Table:
    """Pairs that expect sequence 0, shape (count, PAIR_FIELDS)."""
    pairs = np.zeros((count, PAIR_FIELDS), np.int64)
    pairs[:, PAIR_HOLES] = _NONE
    return pairs


def make_holes(count: int) -> tuple[Table, Table]:
    """A pool of `count` free holes and its state (first free hole, holes forgotten)."""
    holes = np.zeros((count, HOLE_FIELDS), np.int64)
    holes[:, HOLE_LINK] = np.arange(1, count + 1)
    holes[-1, HOLE_LINK] = _NONE
    return holes, np.array([0, 0], np.int64)


@compiled
def account(pairs: Table, holes: Table, hole_state: Table, pair: int, sequence: int) -> int:
    """Take note of `sequence` arriving on `pair`; NEW, LATE or DUPLICATE.

    When the pool has no hole left the skipped range is forgotten and counted in
    `hole_state[FORGOTTEN]`: its messages, should they still come, are told as repeated.
    """
    expected = pairs[pair, PAIR_NEXT]
    if sequence == expected:
        pairs[pair, PAIR_NEXT] = sequence + 1
        return NEW
    if sequence > expected:
        hole = hole_state[FREE_HOLE]
        if hole == _NONE:
            hole_state[FORGOTTEN] += 1
        else:
            hole_state[FREE_HOLE] = holes[hole, HOLE_LINK]
            holes[hole, HOLE_FIRST] = expected
            holes[hole, HOLE_LAST] = sequence - 1
            holes[hole, HOLE_LINK] = pairs[pair, PAIR_HOLES]
            pairs[pair, PAIR_HOLES] = hole
        pairs[pair, PAIR_NEXT] = sequence + 1
        return NEW
    return _fill(pairs, holes, hole_state, pair, sequence)


@compiled
def _fill(pairs: Table, holes: Table, hole_state: Table, pair: int, sequence: int) -> int:
    before = _NONE
    hole = pairs[pair, PAIR_HOLES]
    while hole != _NONE:
        first = holes[hole, HOLE_FIRST]
        last = holes[hole, HOLE_LAST]
        if sequence > last:
            return DUPLICATE  # newer holes come first, so no older one can hold it
        if sequence >= first:
            if first == last:
                link = holes[hole, HOLE_LINK]
                if before == _NONE:
                    pairs[pair, PAIR_HOLES] = link
                else:
                    holes[before, HOLE_LINK] = link
                holes[hole, HOLE_LINK] = hole_state[FREE_HOLE]
                hole_state[FREE_HOLE] = hole
            elif sequence == first:
                holes[hole, HOLE_FIRST] = sequence + 1
            elif sequence == last:
                holes[hole, HOLE_LAST] = sequence - 1
            else:
                upper = hole_state[FREE_HOLE]
                if upper == _NONE:
                    hole_state[FORGOTTEN] += 1
                else:
                    hole_state[FREE_HOLE] = holes[upper, HOLE_LINK]
                    holes[upper, HOLE_FIRST] = sequence + 1
                    holes[upper, HOLE_LAST] = last
                    holes[upper, HOLE_LINK] = hole
                    if before == _NONE:
                        pairs[pair, PAIR_HOLES] = upper
                    else:
                        holes[before, HOLE_LINK] = upper
                holes[hole, HOLE_LAST] = sequence - 1
            return LATE
        before = hole
        hole = holes[hole, HOLE_LINK]
    return DUPLICATE


def received_on(pairs: Table, holes: Table) -> Table:
    """Distinct messages that each pair has received, shape (pairs,)."""
    received = pairs[:, PAIR_NEXT].copy()
    for pair in np.flatnonzero(pairs[:, PAIR_HOLES] != _NONE).tolist():
        hole = int(pairs[pair, PAIR_HOLES])
        while hole != _NONE:
            received[pair] -= holes[hole, HOLE_LAST] - holes[hole, HOLE_FIRST] + 1
            hole = int(holes[hole, HOLE_LINK])
    return received
