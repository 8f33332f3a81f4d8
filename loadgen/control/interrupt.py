"""Ctrl-C: the first asks a run to end with what it has measured, the second to end at once."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

from loadgen.errors import LoadgenError

T = TypeVar("T")


class RunInterruptedError(LoadgenError):
    """The run was interrupted before it had measured anything."""

    exit_status: ClassVar[int] = 130


class Interrupt:
    """`asked` is set by the first request to end, `insisted` by the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def request(self) -> None:
        """Ask; ask again to insist."""
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()


def interruptible(work: Callable[..., Coroutine[Any, Any, T]]) -> T:
    """What `work(interrupt=...)` returns in a loop of its own; SIGINT and SIGTERM request it."""

    async def listening() -> T:
        loop, interrupt = asyncio.get_running_loop(), Interrupt()
        with ExitStack() as signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, interrupt.request)
                signals.callback(loop.remove_signal_handler, number)
            return await work(interrupt=interrupt)

    return asyncio.run(listening())
