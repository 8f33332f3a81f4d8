"""SIGINT, SIGTERM or SIGHUP: the first ends a run with what it has measured, the second at once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import uvloop

from loadgen.errors import LoadgenError
from loadgen.run.tasks import background
from loadgen.sentences import RUN_TEXT

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

    @asynccontextmanager
    async def before_anything_is_measured(self) -> AsyncIterator[None]:
        """End the block by RunInterruptedError when the end is requested."""

        async def watch() -> None:
            await self.asked.wait()
            raise RunInterruptedError(RUN_TEXT.INTERRUPTED_EARLY())

        async with background(watch()):
            yield


def ending_signals() -> tuple[signal.Signals, ...]:
    always = signal.SIGINT, signal.SIGTERM
    hears = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (*always, signal.SIGHUP) if hears else always


def leave_terminal() -> None:
    """Discard further output if the terminal is gone."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), descriptor)


def interruptible(work: Callable[..., Coroutine[Any, Any, T]]) -> T:
    """Run `work(interrupt=...)` in a new loop, where signals to end request it."""

    async def listening() -> T:
        loop, interrupt = asyncio.get_running_loop(), Interrupt()

        def handle(number: signal.Signals) -> None:
            if number == signal.SIGHUP:
                leave_terminal()
            interrupt.request()

        with ExitStack() as signals:
            for number in ending_signals():
                # Removing a handler of the loop leaves the system's default behind.
                signals.callback(signal.signal, number, signal.getsignal(number))
                signals.callback(loop.remove_signal_handler, number)
                loop.add_signal_handler(number, handle, number)
            return await work(interrupt=interrupt)

    return uvloop.run(listening())
