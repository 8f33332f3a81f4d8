"""Ctrl-C: the first asks a run to end with what it has measured, the second to end at once."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
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


@contextmanager
def listening() -> Iterator[Interrupt]:
    """An interrupt that SIGINT and SIGTERM request, while a loop runs in the main thread."""
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, interrupt.request)
    try:
        yield interrupt
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def interruptible(work: Callable[[Interrupt], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns in a loop of its own; Ctrl-C requests the interrupt that it is given."""

    async def listened() -> T:
        with listening() as interrupt:
            return await work(interrupt)

    return asyncio.run(listened())
