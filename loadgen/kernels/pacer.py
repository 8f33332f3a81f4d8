"""The schedule of messages, which depends on the scenario only and not on the sender.

Streams are scheduled in *load time*, which runs at the nominal rate: message k is due at `phase + k
* period` (constant arrivals), at a random time of that period (uniform), or an exponential gap
after message k - 1 (Poisson). A *program* of rate steps maps load time to the clock. Random choices
hash the seed, the stream and k. A stream with a period of 0 is a closed loop: its message is due
when the window has room for it.
"""

import math

import numpy as np

from loadgen.kernels.arrays import Float64, Int32, Int64, Record, Rows
from loadgen.kernels.compiled import compiled

CONSTANT, UNIFORM, POISSON = 0, 1, 2
ARRIVALS = {"constant": CONSTANT, "uniform": UNIFORM, "poisson": POISSON}

_PPM = 1_000_000
_MASK = 0xFFFFFFFF
_NEVER_NS = 1 << 61  # seventy years: later than any schedule ends, and sums with it fit


class Publisher(Record):
    """A stream and its next message."""

    sequence: Int64
    sent: Int64  # messages sent; `sequence` is ahead while a batch is written
    due_ns: Int64
    load_ns: Int64
    phase_ns: Int64  # load time of message 0 of a constant stream
    period_ns: Float64
    stream: Int64
    arrival: Int32
    device: Int32  # row of the device that publishes it
    deliveries: Int32  # that each message must have
    messages: Int64  # that it sends, 0 for no limit


class ProgramStep(Record):
    """A rate of `ppm` millionths of the nominal rate, from `clock_ns` (load time `load_ns`) on."""

    clock_ns: Int64
    load_ns: Int64
    ppm: Int64


class Due(Record):
    """An entry of the heap: a publisher and the due time of its next message."""

    due_ns: Int64
    publisher: Int64


@compiled
def random_unit(seed: int, stream: int, number: int) -> float:
    """Return a number in (0, 1) of 32 random bits, always the same for the same integers."""
    value = 0x9E3779B9
    # One after the other: mixed at once, another seed would only permute the same draws.
    for part in (seed, stream, number):
        value = (value ^ part ^ ((part >> 32) * 0x61C88647)) & _MASK
        value ^= value >> 16
        value = (value * 0x7FEB352D) & _MASK
        value ^= value >> 15
        value = (value * 0x2C1B3C6D) & _MASK
        value ^= value >> 16
    return (value + 0.5) / 4294967296.0


def make_program(start_ns: int) -> Rows[ProgramStep]:
    """Return the program that runs at the nominal rate from `start_ns` on."""
    return ProgramStep.of([(start_ns, 0, _PPM)])


def with_rate(program: Rows[ProgramStep], at_ns: int, factor: float) -> Rows[ProgramStep]:
    """Return the program with `factor`, at least 1e-6, times the nominal rate from `at_ns` on."""
    if factor < 0:
        raise ValueError(f"a rate cannot be {factor} times the nominal one")
    ppm = max(round(factor * _PPM), 1)
    earlier = program[program["clock_ns"] < at_ns]
    if len(earlier) == 0:
        return ProgramStep.of([(program[0].clock_ns, 0, ppm)])
    return ProgramStep.of([*earlier.tolist(), (at_ns, int(load_time_of(earlier, at_ns)), ppm)])


@compiled
def clock_of(program: Rows[ProgramStep], load_ns: int) -> int:
    step = len(program) - 1
    # A step that begins exactly there does not apply yet.
    while step > 0 and program[step].load_ns >= load_ns:
        step -= 1
    begun = program[step]
    ahead_ns = load_ns - begun.load_ns
    if begun.ppm != _PPM:
        stretched_ns = ahead_ns * (np.float64(_PPM) / begun.ppm)
        ahead_ns = int(min(stretched_ns, np.float64(_NEVER_NS)))
    return int(begun.clock_ns + ahead_ns)


@compiled
def load_time_of(program: Rows[ProgramStep], clock_ns: int) -> int:
    step = len(program) - 1
    while step > 0 and program[step].clock_ns > clock_ns:
        step -= 1
    begun = program[step]
    ahead_ns = clock_ns - begun.clock_ns
    if begun.ppm != _PPM:
        ahead_ns = int(ahead_ns * (begun.ppm / np.float64(_PPM)))
    return int(begun.load_ns + ahead_ns)


@compiled
def _load_of_message(publisher: Publisher, sequence: int, seed: int) -> int:
    """Return the load time of message `sequence`; if Poisson, it must be the next message."""
    stream, period_ns = publisher.stream, publisher.period_ns
    if publisher.arrival != POISSON:
        phase_ns, arrival = publisher.phase_ns, publisher.arrival
        return int(load_of(stream, sequence, phase_ns, period_ns, arrival, seed))
    gap_ns = -math.log(random_unit(seed, stream, sequence)) * period_ns
    return int(publisher.load_ns + np.int64(gap_ns))


@compiled
def load_of(
    stream: int, sequence: int, phase_ns: int, period_ns: float, arrival: int, seed: int
) -> int:
    """Return the load time of a message of a constant or uniform stream."""
    unit = random_unit(seed, stream, sequence) if arrival == UNIFORM else 0.0
    return int(phase_ns + np.int64((sequence + unit) * period_ns))


@compiled
def advance(publisher: Publisher, program: Rows[ProgramStep], seed: int) -> int:
    """Move the publisher to its next message; return its due time in ns."""
    sequence = publisher.sequence + 1
    is_over = 0 < publisher.messages <= sequence
    load_ns = _NEVER_NS if is_over else _load_of_message(publisher, sequence, seed)
    publisher.sequence = sequence
    publisher.load_ns = load_ns
    # In a closed loop the publisher that sent least recently comes first.
    publisher.due_ns = max(clock_of(program, load_ns), publisher.due_ns)
    return int(publisher.due_ns)


@compiled
def begin_schedule(publishers: Rows[Publisher], program: Rows[ProgramStep], seed: int) -> None:
    """Set every publisher to its message 0."""
    for row in range(len(publishers)):
        advance(publishers[row], program, seed)


@compiled
def owed_messages(publisher: Publisher, program: Rows[ProgramStep], now_ns: int) -> int:
    """Return the number of messages due and not sent; for random arrivals, the expected number."""
    if publisher.due_ns > now_ns or publisher.period_ns == 0.0:
        return 0
    ahead_ns = load_time_of(program, now_ns) - publisher.load_ns
    owed = 1 + int(np.int64(max(ahead_ns, 0) / publisher.period_ns))
    if publisher.arrival == CONSTANT:
        # Times are whole nanoseconds, so that the quotient may be off by a message or two.
        current = publisher.sequence
        while owed > 1 and now_ns < _due_ns_of(publisher, program, current + owed - 1):
            owed -= 1
        while now_ns >= _due_ns_of(publisher, program, current + owed):
            owed += 1
    return owed


@compiled
def _due_ns_of(publisher: Publisher, program: Rows[ProgramStep], sequence: int) -> int:
    """Return the due time of message `sequence` of a constant stream."""
    return clock_of(program, _load_of_message(publisher, sequence, 0))


@compiled
def heap_push(heap: Rows[Due], size: int, due_ns: int, publisher: int) -> int:
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if heap[parent].due_ns <= due_ns:
            break
        heap[position] = heap[parent]
        position = parent
    heap[position].due_ns = due_ns
    heap[position].publisher = publisher
    return size + 1


@compiled
def heap_replace(heap: Rows[Due], size: int, due_ns: int, publisher: int) -> None:
    position = 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1].due_ns < heap[child].due_ns:
            child += 1
        if heap[child].due_ns >= due_ns:
            break
        heap[position] = heap[child]
        position = child
    heap[position].due_ns = due_ns
    heap[position].publisher = publisher


@compiled
def heap_pop(heap: Rows[Due], size: int) -> int:
    """Remove the earliest entry of heap[:size]; return the new size."""
    if size > 1:
        last = heap[size - 1]
        heap_replace(heap, size - 1, last.due_ns, last.publisher)
    return size - 1
