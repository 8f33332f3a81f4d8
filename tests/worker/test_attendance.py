"""A worker detects its stalls and their causes."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadgen.kernels import reactor
from loadgen.kernels.attention import STALL_FLOOR_NS, take_stalls
from loadgen.kernels.syscalls import EPOLLET, EPOLLIN, make_timer, watch
from loadgen.worker.poller import Attendance
from loadgen.worker.recorder import ProcessAccount
from tests.fleets import small_fleet

MS = 1_000_000
serve = reactor.MESSAGING_ENTRY_POINTS.serve


class Attended:
    """The parts of a worker that look at its sockets, without sockets, and its reports."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.fleet = small_fleet()
        self.epoll = select.epoll()
        run = self.fleet.run
        run.epoll, run.linger_timer = self.epoll.fileno(), make_timer()
        watch(run.epoll, run.linger_timer, EPOLLIN | EPOLLET, reactor.LINGER, self.fleet.words)
        serve(self.fleet, 0)  # loads the kernel
        self.account = ProcessAccount()
        self.attendance = Attendance(self.fleet, self.account, self.told.append)

    def look(self) -> None:
        """Run a turn of the worker's loop."""
        serve(self.fleet, 0)
        if self.fleet.attention.stalls:
            self.attendance.report()

    def longest_after(self, act: Callable[[], object]) -> tuple[int, int, int, int]:
        """Return the longest reported stall; a busy host can add shorter ones."""
        self.look()
        self.told.clear()
        act()
        self.look()
        stalls = [tuple(one) for told in self.told for one in told["stalls"]]
        return max(stalls, key=lambda stall: stall[1] - stall[0])

    def close(self) -> None:
        self.epoll.close()
        os.close(self.fleet.run.linger_timer)


@pytest.fixture
def attended() -> Iterator[Attended]:
    made = Attended()
    yield made
    made.close()


def test_a_loop_that_was_busy_tells_so(attended: Attended) -> None:
    def work() -> None:
        while time.thread_time_ns() and time.monotonic_ns() - begun_ns < 5 * STALL_FLOOR_NS:
            pass

    begun_ns = time.monotonic_ns()
    start_ns, end_ns, busy_ns, waited_ns = attended.longest_after(work)
    assert begun_ns < start_ns < end_ns <= time.monotonic_ns()
    assert busy_ns + waited_ns > 0
    assert busy_ns <= end_ns - start_ns


def test_a_loop_that_slept_did_not_ask_for_a_processor(attended: Attended) -> None:
    start_ns, end_ns, busy_ns, _ = attended.longest_after(lambda: time.sleep(0.3))
    assert end_ns - start_ns > 200_000_000
    assert busy_ns < (end_ns - start_ns) // 2


def test_the_tick_is_seen_in_compiled_code_and_does_not_end_the_stay(attended: Attended) -> None:
    for _ in range(5):  # a busy host may stall the worker
        begun_ns, before_ns = time.monotonic_ns(), attended.fleet.attention.tick_ns
        serve(attended.fleet, 100 * MS)
        if not attended.fleet.attention.stalls:
            break
        attended.attendance.report()
    assert time.monotonic_ns() - begun_ns >= 100 * MS
    assert attended.fleet.attention.tick_ns >= before_ns + 80 * MS
    assert attended.fleet.attention.busy_ns > 0


def test_a_worker_that_is_stopped_in_compiled_code_sees_it_though_nothing_comes(
    attended: Attended,
) -> None:
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            serve(attended.fleet, 20_000 * MS)
            os.write(ours, repr(take_stalls(attended.fleet)).encode())
        finally:
            os._exit(0)
    time.sleep(0.1)
    stopped_ns = time.monotonic_ns()
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(child, signal.SIGCONT)
    stalls = os.read(theirs, 1000).decode()
    os.waitpid(child, 0)
    os.close(theirs)
    os.close(ours)
    assert time.monotonic_ns() - stopped_ns < 10_000 * MS
    assert stalls.startswith("[(")


def test_nothing_is_a_stall_when_the_run_is_over(attended: Attended) -> None:
    attended.attendance.end()
    time.sleep(0.1)
    attended.look()
    assert not attended.told


def test_a_stay_ends_when_the_coordinator_speaks(attended: Attended) -> None:
    theirs, ours = os.pipe()
    try:
        watch(attended.fleet.run.epoll, theirs, EPOLLIN, reactor.CHANNEL, attended.fleet.words)
        os.write(ours, b"x")
        begun_ns = time.monotonic_ns()
        for _ in range(2):  # as long as it was not read
            serve(attended.fleet, 20_000 * MS)
        assert time.monotonic_ns() - begun_ns < 10_000 * MS
    finally:
        os.close(theirs)
        os.close(ours)
