"""Repeated messages that MQTT allows: each is excused for its identity, once.

A delivery of QoS 1 may be repeated if the connection broke before the broker had the PUBACK. That
is in doubt for messages that arrived shortly before: `settle` moves the border, `doubt_pairs` opens
the doubt. A message that our publisher sent again may arrive as often as it was sent; the number of
the copy is in its header. A device that subscribes again gets each retained message once more.
"""

from typing import TYPE_CHECKING

import numpy as np

from loadgen.kernels.accounting import DUPLICATE, account, first_missing, forget_gaps
from loadgen.kernels.arrays import Int64, Int64s, Record, read_i64
from loadgen.kernels.compiled import compiled
from loadgen.kernels.device import AWAY, RESUMED, SHARED
from loadgen.kernels.payload import COPIES_MOST, copy_number

if TYPE_CHECKING:
    from loadgen.kernels.counting import ReceivedMessage
    from loadgen.kernels.fleet import Fleet

COPIES_LIMIT = 1 << 20
WITHHELD_LIMIT = 1 << 16
OWNERS_LIMIT = 1 << 16
_GAPS_LIMIT = 100
"""Gaps of a pair in which the first missing message is searched; with more, all is in doubt."""

# Marks of a message in `copies`, besides the numbers of its copies.
_FIRST_WAS_COPY, _ORIGINAL, _RETAINED, _MARKS = 0, 16, 17, 32


class Doubt(Record):
    """The messages of a pair whose acknowledgement the broker may lack."""

    settled: Int64  # sequences below it arrived so early that they are not in doubt
    newest: Int64  # first missing sequence at the last check
    end: Int64  # first sequence not arrived when the last connection broke; 0 before


class Copy(Record):
    """An entry of the hash table of copies: pair + 1, or 0 if it is free, and sequence and mark."""

    pair: Int64
    identity: Int64


class Withheld(Record):
    """A delivery without acknowledgement when its consumer was cut off, which must come again."""

    pair: Int64
    sequence: Int64
    came: Int64


class Owner(Record):
    """The consumer of a queue that got a message: pair + 1, or 0 if the entry is free."""

    pair: Int64
    sequence: Int64
    row: Int64


@compiled
def settle(fleet: "Fleet", firsts: Int64s, counts: Int64s) -> None:
    """Move the borders of ranges of pairs where messages have arrived since the last look."""
    for index in range(len(firsts)):
        first = int(np.int64(firsts[index]))
        end = first + int(np.int64(counts[index]))
        moved = False
        for number in range(first, end):
            moved = moved or _border(fleet, number) != fleet.doubts[number].newest
        for number in range(first, end if moved else first):
            doubt = fleet.doubts[number]
            doubt.settled = doubt.newest
            doubt.newest = _border(fleet, number)


@compiled
def _border(fleet: "Fleet", number: int) -> int:
    border = first_missing(fleet.pairs, fleet.gaps, number, _GAPS_LIMIT)
    return max(border, int(np.int64(fleet.doubts[number].newest)))


@compiled
def doubt_pairs(fleet: "Fleet", first: int, count: int) -> None:
    """Note that the connection to which these pairs belong broke."""
    for number in range(first, min(first + count, len(fleet.doubts))):
        doubt = fleet.doubts[number]
        doubt.end = fleet.pairs[number].expected
        forget_gaps(fleet.repeats, fleet.repeat_gaps, fleet.repeat_pool, number)
        fleet.repeats[number].expected = doubt.settled


@compiled
def is_excused(fleet: "Fleet", message: "ReceivedMessage", pair: int) -> bool:
    """Note the repeat of an intact message; return True if it is excused.

    The first repeat is excused if the broker may lack the acknowledgement. It must have DUP, except
    in a queue, of which another consumer gets what one had when its connection broke.
    """
    sequence = read_i64(fleet.buffer, message.payload + 8)
    device = fleet.devices[message.row]
    doubtful = message.qos == 1 and pair < len(fleet.doubts) and sequence < fleet.doubts[pair].end
    if device.flags & SHARED:
        doubtful = doubtful and _may_be_passed_on(fleet, pair, sequence)
    else:
        doubtful = doubtful and device.flags & RESUMED > 0 and message.dup > 0
    if doubtful:
        status = account(fleet.repeats, fleet.repeat_gaps, fleet.repeat_pool, pair, sequence)
        doubtful = status != DUPLICATE
    came = fleet.totals.withheld > 0 and _came_again(fleet, pair, sequence)
    number = copy_number(fleet.buffer, message.payload)
    if number > 0:
        first = _mark(fleet, pair, sequence, number) or number == COPIES_MOST
    else:
        # The original follows its copy if a broker passes it on late.
        place = _place_of(fleet, pair, sequence * _MARKS + _FIRST_WAS_COPY)
        first = fleet.copies[place].pair != 0 and _mark(fleet, pair, sequence, _ORIGINAL)
    renewed = device.request_ns > 0 or device.returned_ns < device.subscribed_ns
    retained = message.retain > 0 and device.returned_ns > AWAY and renewed
    if retained:
        retained = _mark(fleet, pair, device.returned_ns >> 20, _RETAINED)  # 2^20 ns: 1 ms
    return bool(doubtful or came or first or retained)


@compiled
def note_owner(fleet: "Fleet", row: int, pair: int, sequence: int) -> None:
    """Note which consumer of a queue got a message, in place of an earlier message."""
    owner = fleet.owners[_owner_place(fleet, pair, sequence)]
    owner.pair = pair + 1
    owner.sequence = sequence
    owner.row = row


@compiled
def _may_be_passed_on(fleet: "Fleet", pair: int, sequence: int) -> bool:
    """Return False if the consumer that got a message never lost its connection."""
    owner = fleet.owners[_owner_place(fleet, pair, sequence)]
    is_known = owner.pair == pair + 1 and owner.sequence == sequence
    return not is_known or fleet.devices[owner.row].left_ns != 0


@compiled
def _owner_place(fleet: "Fleet", pair: int, sequence: int) -> int:
    return (pair * 0x9E3779B1 + sequence) % len(fleet.owners)


@compiled
def note_late(fleet: "Fleet", pair: int, sequence: int) -> None:
    """Note a delivery that fills a gap, and was not made before the connection broke."""
    if pair < len(fleet.doubts) and sequence < fleet.doubts[pair].end:
        account(fleet.repeats, fleet.repeat_gaps, fleet.repeat_pool, pair, sequence)


@compiled
def note_withheld(fleet: "Fleet", pair: int, sequence: int) -> None:
    """Note a delivery that a consumer had not acknowledged when it was cut off."""
    if fleet.totals.withheld < len(fleet.withheld):
        withheld = fleet.withheld[fleet.totals.withheld]
        withheld.pair = pair
        withheld.sequence = sequence
        withheld.came = 0
        fleet.totals.withheld += 1


@compiled
def _came_again(fleet: "Fleet", pair: int, sequence: int) -> bool:
    """Note the repeat of a withheld delivery; return True if it is the first."""
    for index in range(fleet.totals.withheld):
        withheld = fleet.withheld[index]
        if withheld.pair == pair and withheld.sequence == sequence and withheld.came == 0:
            withheld.came = 1
            return True
    return False


@compiled
def note_first_copy(fleet: "Fleet", pair: int, sequence: int, number: int) -> None:
    """Note that a copy was the first delivery of a message."""
    _mark(fleet, pair, sequence, number)
    _mark(fleet, pair, sequence, _FIRST_WAS_COPY)


@compiled
def _place_of(fleet: "Fleet", pair: int, identity: int) -> int:
    """Return the place of an entry, or that of the free one where it belongs."""
    copies = fleet.copies
    place = (pair * 0x9E3779B1 + identity * 0x85EBCA77) % len(copies)
    while copies[place].pair != 0:
        if copies[place].pair == pair + 1 and copies[place].identity == identity:
            break
        place = (place + 1) % len(copies)
    return int(place)


@compiled
def _mark(fleet: "Fleet", pair: int, sequence: int, mark: int) -> bool:
    """Mark a message; return True if it had no such mark, or if the table is full."""
    identity = sequence * _MARKS + mark
    copy = fleet.copies[_place_of(fleet, pair, identity)]
    if copy.pair != 0:
        return False
    if fleet.totals.copies < len(fleet.copies) // 2:
        fleet.totals.copies += 1
        copy.pair = pair + 1
        copy.identity = identity
    return True
