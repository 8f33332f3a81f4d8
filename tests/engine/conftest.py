"""Fixtures of `harness`, importable however pytest was started."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from loadgen.engine.worker import warm
from tests.engine.harness import Behaviour, Driver, FakeBroker, Forkserver, well_behaved


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Forkserver]:
    made = Forkserver()
    yield made
    made.close()


@pytest.fixture
async def driver(forkserver: Forkserver, tmp_path: Path) -> AsyncIterator[Driver]:
    """A worker that waits to be configured; it must end by itself when the test does."""
    channel, pid = forkserver.start(0)
    made = Driver(channel, tmp_path, pid=pid)
    await made.open()
    try:
        yield made
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        raise
    finally:
        await made.close()
        status = await asyncio.to_thread(forkserver.exit_status, pid)
    assert status == 0, "the worker ended with an error, see above"


@pytest.fixture
async def start_broker() -> AsyncIterator[Callable[..., Awaitable[FakeBroker]]]:
    """Starts fake brokers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(behaviour: Behaviour = well_behaved, **options: Any) -> FakeBroker:
            return await stack.enter_async_context(FakeBroker(behaviour, **options))

        yield start


@pytest.fixture
def collector() -> Iterator[None]:
    """A worker switches the garbage collector off for good; these tests go on."""
    warm()
    yield
    gc.unfreeze()
    gc.enable()
