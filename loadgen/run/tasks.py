"""Tasks next to a block, and work that an event ends early."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

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
        # What went wrong first; the rest followed from it.
        raise errors.exceptions[0] from None


async def every(seconds: float, work: Callable[[], None]) -> None:
    """Call `work` again and again, with `seconds` between two calls."""
    while True:
        work()
        await asyncio.sleep(seconds)


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
