"""The offers to one call, collected: a hash table with open addressing in one array.

Keyed by interaction number; the distribution centre that called has all consumers of its offers in
one worker, so one table a worker is enough. An entry lives from the first offer to the last one; a
call of which an offer was lost keeps its entry until the run ends.
"""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled

__all__ = ["COMPLETE", "FULL", "JOIN_FIELDS", "OPEN", "join_offer", "make_joins"]

Table = npt.NDArray[np.int64]

KEY, COUNT, PRICE, SUPPLIER = 0, 1, 2, 3
JOIN_FIELDS = 4

OPEN, COMPLETE, FULL = 0, 1, 2

_FILL_PERCENT = 75


def make_joins(capacity: int) -> Table:
    """An empty table for at least `capacity` open calls, shape (a power of two, JOIN_FIELDS).

    A row is free when its KEY, interaction number + 1, is 0. Row 0 of an extra line at the end
    counts the entries.
    """
    rows = 1
    while rows * _FILL_PERCENT < capacity * 100:
        rows *= 2
    return np.zeros((rows + 1, JOIN_FIELDS), np.int64)


@compiled
def _home(number: int, rows: int) -> int:
    value = ((number & 0xFFFFFFFF) * 0x45D9F3B + (number >> 32) * 0x61C88647) & 0x7FFFFFFF
    value ^= value >> 15
    value = (value * 0x2C1B3C6D) & 0x7FFFFFFF
    value ^= value >> 13
    return int(value & (rows - 1))


@compiled
def join_offer(
    joins: Table, number: int, wanted: int, price: int, supplier: int
) -> tuple[int, int]:
    """Take an offer to the call `number`, of which `wanted` are to come: (outcome, supplier).

    OPEN: more are to come. COMPLETE: this was the last one; the supplier with the lowest price,
    the lowest number among equals, is returned and the call forgotten. FULL: a new call and no
    place for it.
    """
    if wanted <= 1:
        return COMPLETE, supplier
    rows = len(joins) - 1
    key = number + 1
    row = _home(number, rows)
    while joins[row, KEY] != 0 and joins[row, KEY] != key:
        row = (row + 1) & (rows - 1)
    if joins[row, KEY] == 0:
        if (joins[rows, 0] + 1) * 100 > rows * _FILL_PERCENT:
            return FULL, -1
        joins[rows, 0] += 1
        joins[row, KEY] = key
        joins[row, COUNT] = 0
    better = joins[row, COUNT] == 0 or price < joins[row, PRICE]
    if not better and price == joins[row, PRICE]:
        better = supplier < joins[row, SUPPLIER]
    if better:
        joins[row, PRICE] = price
        joins[row, SUPPLIER] = supplier
    joins[row, COUNT] += 1
    if joins[row, COUNT] < wanted:
        return OPEN, -1
    best = joins[row, SUPPLIER]
    _remove(joins, rows, row)
    return COMPLETE, best


@compiled
def _remove(joins: Table, rows: int, row: int) -> None:
    """Free a row and move up what probed past it, so that no search ends too early."""
    joins[rows, 0] -= 1
    hole = row
    following = row
    while True:
        following = (following + 1) & (rows - 1)
        if joins[following, KEY] == 0:
            break
        home = _home(joins[following, KEY] - 1, rows)
        # The entry may move when its home is not cyclically within (hole, following].
        if (following - home) & (rows - 1) >= (following - hole) & (rows - 1):
            for column in range(JOIN_FIELDS):
                joins[hole, column] = joins[following, column]
            hole = following
    joins[hole, KEY] = 0
