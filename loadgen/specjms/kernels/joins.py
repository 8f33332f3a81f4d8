"""The open calls for offers: a hash table with open addressing in one array.

The key is the interaction number. An entry lives from the first offer to the last one, or until the
run ends. One table per worker has all offers to a distribution centre.
"""

from loadgen.kernels.arrays import Int64, Record, Rows
from loadgen.kernels.compiled import compiled

OPEN, COMPLETE, FULL = 0, 1, 2

_FILL_PERCENT = 75


class Join(Record):
    """An open call: offers so far, and the best of them. Free if `key` is 0."""

    key: Int64  # interaction number + 1
    count: Int64
    price: Int64
    supplier: Int64


def make_joins(capacity: int) -> Rows[Join]:
    """Make an empty table for at least `capacity` open calls; one more row counts the entries."""
    rows = 1
    while rows * _FILL_PERCENT < capacity * 100:
        rows *= 2
    return Join.rows(rows + 1)


@compiled
def _home(number: int, rows: int) -> int:
    value = ((number & 0xFFFFFFFF) * 0x45D9F3B + (number >> 32) * 0x61C88647) & 0x7FFFFFFF
    value ^= value >> 15
    value = (value * 0x2C1B3C6D) & 0x7FFFFFFF
    value ^= value >> 13
    return int(value & (rows - 1))


@compiled
def join_offer(
    joins: Rows[Join], number: int, wanted: int, price: int, supplier: int
) -> tuple[int, int]:
    """Add an offer to the call `number`, which expects `wanted` offers; return (outcome, supplier).

    OPEN: more offers are expected. COMPLETE: this was the last one, and the call is removed. The
    supplier has the lowest price, and the lowest number among equals. FULL: there is no place for a
    new call.
    """
    if wanted <= 1:
        return COMPLETE, supplier
    rows = len(joins) - 1
    entries = joins[rows]
    key = number + 1
    row = _home(number, rows)
    while joins[row].key != 0 and joins[row].key != key:
        row = (row + 1) & (rows - 1)
    join = joins[row]
    if join.key == 0:
        if (entries.count + 1) * 100 > rows * _FILL_PERCENT:
            return FULL, -1
        entries.count += 1
        join.key = key
        join.count = 0
    better = join.count == 0 or price < join.price
    if not better and price == join.price:
        better = supplier < join.supplier
    if better:
        join.price = price
        join.supplier = supplier
    join.count += 1
    if join.count < wanted:
        return OPEN, -1
    best = join.supplier
    _remove(joins, rows, row)
    return COMPLETE, best


@compiled
def _remove(joins: Rows[Join], rows: int, row: int) -> None:
    """Free a row and move up entries that probed past it, so that no search ends too early."""
    joins[rows].count -= 1
    free = row
    following = row
    while True:
        following = (following + 1) & (rows - 1)
        if joins[following].key == 0:
            break
        home = _home(joins[following].key - 1, rows)
        # The entry may move if its home is not cyclically within (free, following].
        if (following - home) & (rows - 1) >= (following - free) & (rows - 1):
            joins[free] = joins[following]
            free = following
    joins[free].key = 0
