"""Brokers of the tests in separate processes."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from loadgen.brokers import process
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import CannotRunError
from tests.instruments import child
from tests.instruments.child import ChildBroker
from tests.instruments.relay import run_relay

CLOSED = Endpoint("mqtt", "127.0.0.1", 1)


def _failing() -> contextlib.AbstractAsyncContextManager[ChildBroker]:
    return process.running(ChildBroker("thing", "1", "tests.instruments.none", CLOSED))


async def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(CannotRunError, match="No module named"):
        await _failing().__aenter__()
    with pytest.raises(CannotRunError, match="cannot listen"):
        await run_relay(CLOSED, host="no such host").__aenter__()


async def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before, children = descriptors(), set(psutil.Process().children())
    for _ in range(2):
        with contextlib.suppress(CannotRunError):
            await _failing().__aenter__()
    assert set(psutil.Process().children()) == children
    assert descriptors() == before


async def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "ANSWER_TIMEOUT_S", 0.1)
    async with asyncio.timeout(60), run_relay(CLOSED) as relay:
        os.kill(relay.pid, signal.SIGSTOP)
        with pytest.raises(CannotRunError, match="did not answer and was killed"):
            await relay.ask()
        with pytest.raises(CannotRunError, match="ended unexpectedly"):
            await relay.ask()
