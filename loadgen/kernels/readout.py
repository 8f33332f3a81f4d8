"""Reading of a worker's counts for Python, once a second and at the end."""

from loadgen.kernels.accounting import has_come
from loadgen.kernels.arrays import Int32s, Int64Rows, Int64s
from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import bucket_index
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.pacer import owed_messages
from loadgen.metrics.interval import GAUGES

CONNECTED_GAUGE, OWED, IN_FLIGHT = map(GAUGES.index, ("connected", "owed", "in_flight"))


@compiled
def add_gauges(fleet: Fleet, now_ns: int, gauges: Int64Rows) -> None:
    for row in range(len(fleet.devices)):
        device = fleet.devices[row]
        if device.state == CONNECTED:
            gauges[device.group, CONNECTED_GAUGE] += 1
        if device.sender >= 0:
            gauges[device.group, IN_FLIGHT] += fleet.senders[device.sender].in_flight
    if fleet.program[0].clock_ns == 0:
        return
    # One ns before the end is the last moment at which a message can be due.
    until_ns = min(now_ns, fleet.run.end_ns - 1)
    for number in range(len(fleet.publishers)):
        publisher = fleet.publishers[number]
        messages = owed_messages(publisher, fleet.program, until_ns)
        if messages > 0:
            gauges[fleet.devices[publisher.device].group, OWED] += messages


@compiled
def take_slots(
    fleet: Fleet, first: int, taken: Int64Rows, buckets: Int32s, counts: Int64s
) -> tuple[int, int, int]:
    """Move latencies, from slot `first` on, to `taken`, `buckets` and `counts`, as far as they fit.

    A row of `taken` is slot, count, sum, least and greatest in ns, first bucket, buckets. Return
    (the slot to continue with, rows, buckets).
    """
    rows = 0
    size = 0
    for slot in range(first, len(fleet.stats)):
        stat = fleet.stats[slot]
        if stat.count == 0:
            continue
        low = bucket_index(stat.min_ns)
        high = bucket_index(stat.max_ns) + 1
        if rows == len(taken) or size + min(high - low, stat.count) > len(buckets):
            return slot, rows, size
        row = taken[rows]
        row[0] = slot
        row[1] = stat.count
        row[2] = stat.sum_ns
        row[3] = stat.min_ns
        row[4] = stat.max_ns
        row[5] = size
        # Only the buckets in use: all of them are a quarter of a million bytes.
        for bucket in range(low, high):
            count = fleet.histograms[slot, bucket]
            if count > 0:
                fleet.histograms[slot, bucket] = 0
                buckets[size] = bucket
                counts[size] = count
                size += 1
        row[6] = size - row[5]
        stat.count = 0
        stat.sum_ns = 0
        stat.min_ns = 0
        stat.max_ns = 0
        rows += 1
    return len(fleet.stats), rows, size


@compiled
def count_missing(fleet: Fleet, numbers: Int64s, sequences: Int64s) -> int:
    """Return how many of the sequences are missing, for all pairs with these numbers together."""
    missing = 0
    for number in numbers:
        for sequence in sequences:
            if not has_come(fleet.pairs, fleet.gaps, number, sequence):
                missing += 1
    return missing
