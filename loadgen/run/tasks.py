"""Tasks next to a block, samples during it, and work that an event ends early."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from loadgen.errors import CannotRunError

T = TypeVar("T")


@asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these during the block and cancel them at its end; an error in one ends the block."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        # The first error; the others followed from it.
        raise errors.exceptions[0] from None


async def every(seconds: float, work: Callable[[], None]) -> None:
    """Call `work` again and again, with `seconds` between two calls."""
    while True:
        work()
        await asyncio.sleep(seconds)


@asynccontextmanager
async def sampled(
    sample: Callable[[], Awaitable[None]], failed: Callable[[str], None], every_s: float = 1.0
) -> AsyncIterator[None]:
    """Await `sample()` at the begin of the block, at multiples of `every_s` and at its end.

    The first sample must succeed. `failed` gets the first error of each later gap.
    """

    async def keep_sampling() -> None:
        is_gap = False
        while True:
            await asyncio.sleep(every_s - time.time() % every_s)
            was_gap, is_gap = is_gap, False
            try:
                await sample()
            except (CannotRunError, OSError) as error:
                is_gap = True
                if not was_gap:
                    failed(str(error))

    await sample()
    async with background(keep_sampling()):
        yield
    with suppress(CannotRunError, OSError):
        await sample()


async def finished_or(
    work: Coroutine[Any, Any, T] | asyncio.Task[T], *events: asyncio.Event
) -> asyncio.Task[T]:
    """Return the task of `work` after it ended, or was cancelled because an event came first."""
    task = asyncio.ensure_future(work)
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait((task, *waits), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (task, *waits):
            one.cancel()
        await asyncio.gather(task, *waits, return_exceptions=True)
    return task
