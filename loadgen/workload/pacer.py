"""When each message is due: a schedule fixed by the scenario, whatever happens to the sender.

Streams are laid out in *load time*, which runs at the scenario's nominal rate: message k of a
stream is due at `phase + k * period` (constant arrivals), at a random moment of that period
(uniform), or an exponential gap after message k - 1 (Poisson). A *program* of rate steps maps
load time to the clock; changing the rate appends a step, so the schedule is extended and nothing
owed is forgiven. Random choices hash the seed, the stream and k, so a schedule does not depend on
how devices are spread over workers.

The publishers of a worker wait in one binary heap ordered by due time.
"""

import math

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled

__all__ = [
    "ARRIVALS",
    "CONSTANT",
    "DUE_NS",
    "LOAD_NS",
    "POISSON",
    "SCHEDULE_FIELDS",
    "SEQUENCE",
    "STREAM",
    "UNIFORM",
    "advance",
    "clock_of",
    "heap_pop",
    "heap_push",
    "heap_replace",
    "load_time_of",
    "make_program",
    "make_schedule",
    "owed_messages",
    "random_unit",
    "with_rate",
]

Table = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

CONSTANT, UNIFORM, POISSON = 0, 1, 2
ARRIVALS = {"constant": CONSTANT, "uniform": UNIFORM, "poisson": POISSON}

SEQUENCE, DUE_NS, LOAD_NS, PHASE_NS, STREAM, ARRIVAL = 0, 1, 2, 3, 4, 5
SCHEDULE_FIELDS = 6

STEP_CLOCK_NS, STEP_LOAD_NS, STEP_PPM = 0, 1, 2
_PPM = 1_000_000
_MASK = 0xFFFFFFFF
_NEVER_NS = 1 << 61  # seventy years: later than any schedule ends, and sums with it fit


@compiled
def random_unit(seed: int, stream: int, number: int) -> float:
    """A number in (0, 1), the same for the same three integers; 32 random bits."""
    value = 0x9E3779B9
    # One after the other: mixed at once, another seed would only number the same draws anew.
    for part in (seed, stream, number):
        value = (value ^ part ^ ((part >> 32) * 0x61C88647)) & _MASK
        value ^= value >> 16
        value = (value * 0x7FEB352D) & _MASK
        value ^= value >> 15
        value = (value * 0x2C1B3C6D) & _MASK
        value ^= value >> 16
    return (value + 0.5) / 4294967296.0


def make_program(start_ns: int) -> Table:
    """The program that runs at the nominal rate from `start_ns` on.

    Shape (steps, 3): clock and load time at which the step begins (ns), rate in millionths of
    the nominal one.
    """
    return np.array([[start_ns, 0, _PPM]], np.int64)


def with_rate(program: Table, at_ns: int, factor: float) -> Table:
    """The program with the rate `factor` times the nominal one from `at_ns` on.

    The least factor is a millionth, at which a schedule as good as stands still. Raises ValueError
    for a negative one.
    """
    if factor < 0:
        raise ValueError(f"a rate cannot be {factor} times the nominal one")
    ppm = max(round(factor * _PPM), 1)
    earlier = program[program[:, STEP_CLOCK_NS] < at_ns]
    if len(earlier) == 0:
        step = [int(program[0, STEP_CLOCK_NS]), 0, ppm]
        return np.array([step], np.int64)
    step = [at_ns, int(load_time_of(earlier, at_ns)), ppm]
    return np.vstack((earlier, np.array([step], np.int64)))


@compiled
def clock_of(program: Table, load_ns: int) -> int:
    """Clock (ns) at which the load time `load_ns` is reached."""
    step = len(program) - 1
    # A step that begins exactly there is not needed yet: what was due before it stays so.
    while step > 0 and program[step, STEP_LOAD_NS] >= load_ns:
        step -= 1
    ahead_ns = load_ns - program[step, STEP_LOAD_NS]
    if program[step, STEP_PPM] != _PPM:
        stretched_ns = ahead_ns * (np.float64(_PPM) / program[step, STEP_PPM])
        ahead_ns = np.int64(min(stretched_ns, np.float64(_NEVER_NS)))
    return int(program[step, STEP_CLOCK_NS] + ahead_ns)


@compiled
def load_time_of(program: Table, clock_ns: int) -> int:
    """Load time (ns) at `clock_ns`."""
    step = len(program) - 1
    while step > 0 and program[step, STEP_CLOCK_NS] > clock_ns:
        step -= 1
    ahead_ns = clock_ns - program[step, STEP_CLOCK_NS]
    if program[step, STEP_PPM] != _PPM:
        ahead_ns = np.int64(ahead_ns * (program[step, STEP_PPM] / np.float64(_PPM)))
    return int(program[step, STEP_LOAD_NS] + ahead_ns)


@compiled
def _load_of_message(
    schedule: Table, periods_ns: Numbers, publisher: int, sequence: int, seed: int
) -> int:
    """Load time of message `sequence`; for Poisson the one after the row's current message."""
    period_ns = periods_ns[publisher]
    arrival = schedule[publisher, ARRIVAL]
    if arrival == CONSTANT:
        return int(schedule[publisher, PHASE_NS] + np.int64(sequence * period_ns))
    unit = random_unit(seed, schedule[publisher, STREAM], sequence)
    if arrival == UNIFORM:
        return int(schedule[publisher, PHASE_NS] + np.int64((sequence + unit) * period_ns))
    return int(schedule[publisher, LOAD_NS] + np.int64(-math.log(unit) * period_ns))


@compiled
def advance(schedule: Table, periods_ns: Numbers, program: Table, publisher: int, seed: int) -> int:
    """Step the publisher to its next message; the moment (ns) at which that one is due."""
    sequence = schedule[publisher, SEQUENCE] + 1
    load_ns = _load_of_message(schedule, periods_ns, publisher, sequence, seed)
    due_ns = clock_of(program, load_ns)
    schedule[publisher, SEQUENCE] = sequence
    schedule[publisher, LOAD_NS] = load_ns
    schedule[publisher, DUE_NS] = due_ns
    return due_ns


def make_schedule(
    streams: Table,
    phases: Numbers,
    periods_ns: Numbers,
    arrivals: Table,
    program: Table,
    seed: int,
) -> Table:
    """Schedule rows of publishers that stand before their message 0.

    All arrays but `program` have one entry a publisher. Constant streams begin at
    phase · period of load time, `phases` in [0, 1); random ones need no phase.
    """
    schedule = np.zeros((len(streams), SCHEDULE_FIELDS), np.int64)
    schedule[:, STREAM] = streams
    schedule[:, ARRIVAL] = arrivals
    schedule[:, PHASE_NS] = np.where(arrivals == CONSTANT, phases * periods_ns, 0.0)
    schedule[:, SEQUENCE] = -1
    _stand_before_first(schedule, periods_ns, program, seed)
    return schedule


@compiled
def _stand_before_first(schedule: Table, periods_ns: Numbers, program: Table, seed: int) -> None:
    for publisher in range(len(schedule)):
        advance(schedule, periods_ns, program, publisher, seed)


@compiled
def owed_messages(
    schedule: Table, periods_ns: Numbers, program: Table, publisher: int, now_ns: int
) -> int:
    """Messages of the publisher due at or before `now_ns` and not sent.

    Exact for constant arrivals, the expected number for random ones.
    """
    if schedule[publisher, DUE_NS] > now_ns:
        return 0
    ahead_ns = load_time_of(program, now_ns) - schedule[publisher, LOAD_NS]
    owed = 1 + int(np.int64(max(ahead_ns, 0) / periods_ns[publisher]))
    if schedule[publisher, ARRIVAL] == CONSTANT:
        # Moments are whole nanoseconds, so the quotient may be off by a message or two.
        current = schedule[publisher, SEQUENCE]
        while owed > 1 and now_ns < _due_ns_of(
            schedule, periods_ns, program, publisher, current + owed - 1
        ):
            owed -= 1
        while now_ns >= _due_ns_of(schedule, periods_ns, program, publisher, current + owed):
            owed += 1
    return owed


@compiled
def _due_ns_of(
    schedule: Table, periods_ns: Numbers, program: Table, publisher: int, sequence: int
) -> int:
    """When message `sequence` of a constant stream is due."""
    return clock_of(program, _load_of_message(schedule, periods_ns, publisher, sequence, 0))


@compiled
def heap_push(heap: Table, size: int, due_ns: int, publisher: int) -> int:
    """Add an entry to heap[:size] (columns due_ns, publisher); the new size."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if heap[parent, 0] <= due_ns:
            break
        heap[position, 0] = heap[parent, 0]
        heap[position, 1] = heap[parent, 1]
        position = parent
    heap[position, 0] = due_ns
    heap[position, 1] = publisher
    return size + 1


@compiled
def heap_replace(heap: Table, size: int, due_ns: int, publisher: int) -> None:
    """Replace the earliest entry of heap[:size]."""
    position = 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if heap[child, 0] >= due_ns:
            break
        heap[position, 0] = heap[child, 0]
        heap[position, 1] = heap[child, 1]
        position = child
    heap[position, 0] = due_ns
    heap[position, 1] = publisher


@compiled
def heap_pop(heap: Table, size: int) -> int:
    """Remove the earliest entry of heap[:size]; the new size."""
    if size > 1:
        due_ns = heap[size - 1, 0]
        publisher = heap[size - 1, 1]
        heap_replace(heap, size - 1, due_ns, publisher)
    return size - 1
