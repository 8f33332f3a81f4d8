"""Stalls: times in which a worker did not look at its sockets as planned.

A worker arms timers for the next due message, its tick, and the end of its stay in compiled code.
If it wakes later than the earliest of these, messages waited for the worker and not for the broker.
"""

from typing import TYPE_CHECKING

from loadgen.kernels.arrays import Int64, Record
from loadgen.kernels.compiled import compiled

if TYPE_CHECKING:
    from loadgen.kernels.fleet import Fleet

STALL_FLOOR_NS = 10_000_000  # a shorter delay shows in the latency series only
STALLS_LIMIT = 128  # stalls that are stored until Python reports them
NEVER_NS = 1 << 62


class Stall(Record):
    """The planned and the actual time of a wake-up."""

    start_ns: Int64
    end_ns: Int64


class Attention(Record):
    """The last look of a worker at its sockets, and its next planned wake-up."""

    seen_ns: Int64
    missed_ns: Int64  # begin of the stall before the current read, or 0
    tick_ns: Int64  # next tick, 0 for none
    tick_every_ns: Int64
    alarm_ns: Int64  # time for which the schedule's timer is armed, 0 for none
    stall_start_ns: Int64  # of the last stall
    stall_end_ns: Int64
    stalls: Int64  # rows of `stalls` that Python has not reported yet
    stalled_ns: Int64  # sum since the last interval
    longest_stall_ns: Int64  # since the last interval
    untimed_reads: Int64  # since the last one that was timed by the kernel's clock
    busy_ns: Int64  # time on a processor, at the last tick
    waited_ns: Int64  # time waiting for one, at the last tick
    called: Int64  # 1 if a message from the coordinator is waiting


@compiled
def wake_ns(fleet: "Fleet", latest_ns: int) -> int:
    """Return the time of the next wake-up of a worker that waits until `latest_ns`."""
    alarm_ns = fleet.attention.alarm_ns
    return min(latest_ns, alarm_ns) if alarm_ns > 0 else latest_ns


@compiled
def tick_or(fleet: "Fleet", moment_ns: int) -> int:
    tick_ns = fleet.attention.tick_ns
    return min(moment_ns, tick_ns) if tick_ns > 0 else moment_ns


@compiled
def attend(fleet: "Fleet", now_ns: int, asked_ns: int) -> None:
    """Note that the worker looks at its sockets; it was to wake at `asked_ns` at the latest."""
    attention = fleet.attention
    since_ns = max(attention.seen_ns, asked_ns)
    attention.seen_ns = now_ns
    attention.missed_ns = 0
    if since_ns <= 0 or now_ns - since_ns <= STALL_FLOOR_NS:
        return
    attention.missed_ns = attention.stall_start_ns = since_ns
    attention.stall_end_ns = now_ns
    attention.stalled_ns += now_ns - since_ns
    attention.longest_stall_ns = max(attention.longest_stall_ns, now_ns - since_ns)
    if attention.stalls < STALLS_LIMIT:
        stall = fleet.stalls[attention.stalls]
        stall.start_ns = since_ns
        stall.end_ns = now_ns
        attention.stalls += 1


@compiled
def mostly_stalled(fleet: "Fleet", due_ns: int, done_ns: int) -> bool:
    """Return True if the worker was stalled for most of the time between the two."""
    attention = fleet.attention
    shared_ns = min(done_ns, attention.stall_end_ns) - max(due_ns, attention.stall_start_ns)
    return bool(2 * shared_ns > done_ns - due_ns)


def take_stalls(fleet: "Fleet") -> list[tuple[int, int]]:
    """Return start and end of each stall since the last call."""
    count, fleet.attention.stalls = fleet.attention.stalls, 0
    return [(start_ns, end_ns) for start_ns, end_ns in fleet.stalls[:count].tolist()]


def take_stalled(fleet: "Fleet") -> tuple[int, int]:
    """Return sum and maximum of the stalls since the last call, in ns."""
    attention = fleet.attention
    taken = attention.stalled_ns, attention.longest_stall_ns
    attention.stalled_ns = attention.longest_stall_ns = 0
    return taken
