"""The tick of a worker's loop: it sees that it came late, and says what kept it."""

import time
from typing import Any

from loadgen.engine.attendance import Attendance
from loadgen.workload.attention import STALL_FLOOR_NS
from tests.fleets import small_fleet


def attended() -> tuple[Attendance, list[Any]]:
    """One that has begun to tick, and what it will have sent."""
    told: list[Any] = []
    attendance = Attendance(small_fleet(), told.append)
    attendance.tick()  # loads the kernel
    attendance.tick()
    told.clear()
    return attendance, told


def test_a_loop_that_was_busy_tells_so() -> None:
    attendance, told = attended()
    begun_ns = time.monotonic_ns()
    while time.thread_time_ns() and time.monotonic_ns() - begun_ns < 5 * STALL_FLOOR_NS:
        pass
    assert attendance.tick() >= 0.02
    ((start_ns, end_ns, busy_ns, waited_ns),) = told[0]["stalls"]
    assert begun_ns < start_ns < end_ns <= time.monotonic_ns()
    assert busy_ns + waited_ns > 0
    assert busy_ns <= end_ns - start_ns


def test_a_loop_that_slept_did_not_ask_for_a_processor() -> None:
    attendance, told = attended()
    time.sleep(0.3)
    attendance.tick()
    ((start_ns, end_ns, busy_ns, _),) = told[0]["stalls"]
    assert end_ns - start_ns > 200_000_000
    assert busy_ns < (end_ns - start_ns) // 2


def test_a_stall_is_told_once() -> None:
    attendance, told = attended()
    time.sleep(0.1)
    attendance.tick()
    seen = len(told)
    assert seen == 1
    attendance.tick()
    assert len(told) == seen
