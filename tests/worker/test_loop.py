"""A worker's loop returns the time until something is due."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from loadgen.worker.poller import WorkerLoop

MS = 1_000_000


def play(what: Callable[[WorkerLoop], Coroutine[Any, Any, None]]) -> None:
    loop = WorkerLoop()
    try:
        loop.run_until_complete(what(loop))
    finally:
        loop.close()


def test_it_may_be_left_alone_until_the_first_of_its_timers() -> None:
    async def ask(loop: WorkerLoop) -> None:
        loop.call_later(60.0, print)
        loop.call_at(loop.time() + 30.0, print)
        loop.until_due_ns()
        assert 29_000 * MS < loop.until_due_ns() <= 30_002 * MS

    play(ask)


def test_what_was_called_or_is_due_has_a_turn_first() -> None:
    async def ask(loop: WorkerLoop) -> None:
        found: list[int] = []
        loop.call_later(60.0, print)
        loop.until_due_ns()
        assert loop.until_due_ns() > 0
        loop.call_soon(lambda: found.append(loop.until_due_ns()))
        assert loop.until_due_ns() == 0
        await asyncio.sleep(0)
        assert found == [0]  # the coroutine is called again after it
        loop.until_due_ns()
        loop.call_later(0.005, lambda: found.append(loop.until_due_ns()))
        assert 0 < loop.until_due_ns() <= 7 * MS
        await asyncio.sleep(0.02)
        assert found == [0, 0]  # it may have written something

    play(ask)


def test_timers_fire_with_their_arguments_and_can_be_cancelled() -> None:
    async def ask(loop: WorkerLoop) -> None:
        fired: list[str] = []
        last: asyncio.Future[str] = loop.create_future()
        loop.call_later(60.0, fired.append, "late")
        loop.call_later(0.001, fired.append, "never").cancel()
        loop.call_later(0, fired.append, "soon")
        # Due after the others, so that it fires behind them, however late the loop is.
        loop.call_later(0.005, last.set_result, "last")
        assert await last == "last"
        assert fired == ["soon"]

    play(ask)
