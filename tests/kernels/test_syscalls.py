"""The system calls of compiled code against those of the standard library."""

import errno
import os
import select
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from loadgen.brokers.ports import listen
from loadgen.kernels import syscalls
from loadgen.worker.build_fleet import socket_address

NO_SOURCE = np.zeros(0, np.uint8)


@pytest.fixture
def clock() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.zeros(syscalls.CLOCK_WORDS, np.int64)


@pytest.fixture
def words() -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.zeros(4, np.int32)


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as made:
        yield made


def waited(epoll: select.epoll, timeout_ms: int = 0) -> dict[int, int]:
    """Return the ready descriptors: data to flags."""
    events = np.zeros(16 * syscalls.EVENT_WORDS, np.int32)
    count = syscalls.wait_events(epoll.fileno(), events, 16, timeout_ms)
    assert count >= 0
    rows = events[: count * syscalls.EVENT_WORDS].reshape(-1, syscalls.EVENT_WORDS)
    return {int(row[syscalls.EVENT_DATA]): int(row[0]) & 0xFFFFFFFF for row in rows}


def test_constants_are_those_of_the_system() -> None:
    assert syscalls.EPOLLIN == select.EPOLLIN
    assert syscalls.EPOLLOUT == select.EPOLLOUT
    assert syscalls.EPOLLHUP == select.EPOLLHUP
    assert syscalls.EPOLLRDHUP == select.EPOLLRDHUP
    assert syscalls.EPOLLET & 0xFFFFFFFF == select.EPOLLET & 0xFFFFFFFF


def test_a_clock_with_an_offset_is_read_and_waited_for(
    epoll: select.epoll,
    clock: np.ndarray[tuple[int], np.dtype[np.int64]],
    words: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> None:
    hour_ns = 3600 * 10**9
    # The last clock is negative, however long this host has been up.
    for ahead_ns in (hour_ns, -hour_ns, -hour_ns - time.monotonic_ns()):
        clock[syscalls.CLOCK_OFFSET] = ahead_ns
        before_ns = time.monotonic_ns()
        found_ns = syscalls.monotonic_ns(clock)
        assert before_ns <= found_ns - ahead_ns <= time.monotonic_ns()
        timer = syscalls.make_timer()
        try:
            syscalls.watch(epoll.fileno(), timer, syscalls.EPOLLIN | syscalls.EPOLLET, -1, words)
            syscalls.arm_timer(timer, found_ns + 20_000_000, clock)
            assert waited(epoll, 10_000) == {-1: syscalls.EPOLLIN}
            assert syscalls.monotonic_ns(clock) >= found_ns + 20_000_000
        finally:
            os.close(timer)


def test_bytes_go_through_a_socket_and_errors_are_negative() -> None:
    near, far = socket.socketpair()
    with near, far:
        buffer = np.arange(100, dtype=np.uint8)
        assert syscalls.send_from(near.fileno(), buffer, 10, 30) == 20
        assert far.recv(100) == bytes(range(10, 30))
        assert syscalls.receive_into(near.fileno(), buffer, 0, 100) == -errno.EAGAIN
        far.send(b"hello")
        assert syscalls.receive_into(near.fileno(), buffer, 90, 100) == 5
        assert buffer[90:95].tobytes() == b"hello"
        assert buffer[89] == 89
        far.close()
        assert syscalls.receive_into(near.fileno(), buffer, 0, 100) == 0
        # A broken pipe is a result, not a signal.
        assert syscalls.send_from(near.fileno(), buffer, 0, 10) == -errno.EPIPE
    assert syscalls.receive_into(near.fileno(), buffer, 0, 1) == -errno.EBADF


def test_a_timer_fires_at_its_moment_and_can_be_put_off(
    epoll: select.epoll,
    clock: np.ndarray[tuple[int], np.dtype[np.int64]],
    words: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> None:
    timer = syscalls.make_timer()
    assert timer >= 0
    try:
        syscalls.watch(epoll.fileno(), timer, syscalls.EPOLLIN | syscalls.EPOLLET, -1, words)
        due_ns = time.monotonic_ns() + 20_000_000
        assert syscalls.arm_timer(timer, due_ns, clock) == 0
        assert waited(epoll, 10_000) == {-1: syscalls.EPOLLIN}
        assert time.monotonic_ns() >= due_ns
        # A timer that was never read fires again when it is armed again, for a past time at once.
        syscalls.arm_timer(timer, 1, clock)
        assert waited(epoll, 10_000) == {-1: syscalls.EPOLLIN}
        syscalls.arm_timer(timer, time.monotonic_ns() + 10**12, clock)
        assert waited(epoll, 20) == {}
        syscalls.arm_timer(timer, 1, clock)
        syscalls.arm_timer(timer, 0, clock)
        assert waited(epoll, 20) == {}
    finally:
        os.close(timer)


def test_a_socket_connects_from_the_address_it_is_told(
    epoll: select.epoll, words: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> None:
    source = np.frombuffer(bytearray(socket_address("127.0.0.9", 0)), np.uint8)
    with listen("127.0.0.1") as listener:
        listener.setblocking(True)
        port = listener.getsockname()[1]
        address = np.frombuffer(bytearray(socket_address("127.0.0.1", port)), np.uint8)
        descriptor = syscalls.open_socket(socket.AF_INET, source, False, words)
        ours = socket.socket(fileno=descriptor)
        with ours:
            assert not os.get_blocking(descriptor)
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert syscalls.connect_socket(descriptor, address) == 0
            theirs, (host, _) = listener.accept()
            theirs.close()
            assert host == "127.0.0.9"
            syscalls.watch(epoll.fileno(), descriptor, syscalls.EPOLLOUT, 5, words)
            assert waited(epoll, 10_000)[5] & syscalls.EPOLLOUT
            assert syscalls.socket_error(descriptor, words) == 0


def test_a_source_address_that_is_not_ours_leaks_no_descriptor(
    words: np.ndarray[tuple[int], np.dtype[np.int32]],
) -> None:
    source = np.frombuffer(bytearray(socket_address("203.0.113.9", 0)), np.uint8)
    first = syscalls.open_socket(socket.AF_INET, source, False, words)
    assert first == -errno.EADDRNOTAVAIL
    probe = syscalls.open_socket(socket.AF_INET, NO_SOURCE, False, words)
    os.close(probe)
    for _ in range(20):
        syscalls.open_socket(socket.AF_INET, source, False, words)
    after = syscalls.open_socket(socket.AF_INET, NO_SOURCE, False, words)
    os.close(after)
    assert after == probe
