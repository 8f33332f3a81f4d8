"""When a worker did not look at its sockets, although it meant to.

A worker asks to be woken: by a message that is due, by its tick, by the end of its stay in compiled
code. One that comes back later than the earliest of these stood still in between, whoever made it:
a signal, a quota, the hypervisor, another program on its processor, or itself while it was busy.
What became ready meanwhile waited for the worker and not for the broker.
"""

from typing import TYPE_CHECKING

from loadgen.kernels.arrays import Int64, Record
from loadgen.kernels.compiled import compiled

if TYPE_CHECKING:
    from loadgen.kernels.fleet import Fleet

STALL_FLOOR_NS = 10_000_000
"""A worker that is late by less than this is slow, not away: a few slices of a shared processor,
or the rows of a second. What it costs shows in the latency series."""
STALLS_LIMIT = 128
"""Stalls that are kept until Python tells them; more than fit into the second of an interval."""
NEVER_NS = 1 << 62


class Stall(Record):
    """From when on the worker was expected, and when it came."""

    start_ns: Int64
    end_ns: Int64


class Attention(Record):
    """When the worker looked last, and when it wants to be woken."""

    seen_ns: Int64
    missed_ns: Int64
    """Since when what is being read may have waited: the begin of a stall, 0 without one."""
    tick_ns: Int64
    """When the worker looks, whatever happens; 0 for not at all."""
    tick_every_ns: Int64
    alarm_ns: Int64
    """When the schedule's timer wakes; 0 for not at all."""
    stall_start_ns: Int64
    stall_end_ns: Int64
    """The last stall."""
    stalls: Int64
    """Rows in `stalls` that Python has not told."""
    stalled_ns: Int64
    longest_stall_ns: Int64
    """Since the last interval."""
    untimed_reads: Int64
    """Since the last read that the kernel's clock timed."""
    busy_ns: Int64
    waited_ns: Int64
    """On a processor, and waiting for one, until the last tick."""
    called: Int64
    """1 when the coordinator has said something."""


@compiled
def wake_ns(fleet: "Fleet", latest_ns: int) -> int:
    """When a worker that waits until `latest_ns` is woken by the schedule at the latest."""
    alarm_ns = fleet.attention.alarm_ns
    return min(latest_ns, alarm_ns) if alarm_ns > 0 else latest_ns


@compiled
def attend(fleet: "Fleet", now_ns: int, asked_ns: int) -> bool:
    """The worker looks at what is ready at `now_ns`; it asked to be woken at `asked_ns` at most.

    Returns whether it stood still before.
    """
    attention = fleet.attention
    since_ns = max(attention.seen_ns, asked_ns)
    attention.seen_ns = now_ns
    stood_still = now_ns - since_ns > STALL_FLOOR_NS and since_ns > 0
    if stood_still:
        _note_stall(fleet, since_ns, now_ns)
    return bool(stood_still)


@compiled
def attend_reading(fleet: "Fleet", now_ns: int, asked_ns: int) -> None:
    """The same of a look after which it reads what is ready."""
    stood_still = attend(fleet, now_ns, asked_ns)
    fleet.attention.missed_ns = fleet.attention.stall_start_ns if stood_still else 0


@compiled
def loop_wake_ns(fleet: "Fleet") -> int:
    """When a worker that waits in its loop is woken at the latest, by the tick or the schedule."""
    return wake_ns(fleet, tick_or(fleet, NEVER_NS))


@compiled
def tick_or(fleet: "Fleet", moment_ns: int) -> int:
    """The tick or this moment, whichever is first."""
    tick_ns = fleet.attention.tick_ns
    return min(moment_ns, tick_ns) if tick_ns > 0 else moment_ns


@compiled
def _note_stall(fleet: "Fleet", start_ns: int, end_ns: int) -> None:
    attention = fleet.attention
    attention.stall_start_ns = start_ns
    attention.stall_end_ns = end_ns
    attention.stalled_ns += end_ns - start_ns
    attention.longest_stall_ns = max(attention.longest_stall_ns, end_ns - start_ns)
    if attention.stalls < STALLS_LIMIT:
        stall = fleet.stalls[attention.stalls]
        stall.start_ns = start_ns
        stall.end_ns = end_ns
        attention.stalls += 1


@compiled
def mostly_stalled(fleet: "Fleet", due_ns: int, done_ns: int) -> bool:
    """Whether the worker stood still for most of the time between the two moments."""
    attention = fleet.attention
    shared_ns = min(done_ns, attention.stall_end_ns) - max(due_ns, attention.stall_start_ns)
    return bool(2 * shared_ns > done_ns - due_ns)


def take_stalls(fleet: "Fleet") -> list[tuple[int, int]]:
    """Start and end of each stall since the last call."""
    count, fleet.attention.stalls = fleet.attention.stalls, 0
    return [(start_ns, end_ns) for start_ns, end_ns in fleet.stalls[:count].tolist()]


def take_stalled(fleet: "Fleet") -> tuple[int, int]:
    """Sum and longest of the stalls since the last call, in ns."""
    attention = fleet.attention
    taken = attention.stalled_ns, attention.longest_stall_ns
    attention.stalled_ns = attention.longest_stall_ns = 0
    return taken
