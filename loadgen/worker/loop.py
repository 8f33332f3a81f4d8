"""The loop of a worker, with the time until its next callback."""

import heapq
from asyncio import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

from loadgen.worker.clock import clock_ns

_Arguments = TypeVarTuple("_Arguments")

_ROUNDED_NS = 1_000_000
"""Delay of libuv's timers, which count whole milliseconds."""


class WorkerLoop(uvloop.Loop):
    """Event loop whose callback for the sockets runs compiled code; other callbacks wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._due_ns: list[int] = []
        self._is_asked = True

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> Handle:
        self._is_asked = True
        return super().call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> TimerHandle:
        heapq.heappush(self._due_ns, clock_ns() + int(delay * 1e9) + _ROUNDED_NS)
        return super().call_later(delay, self._fire, callback, *args, context=context)

    def _fire(self, callback: Callable[[*_Arguments], object], *args: *_Arguments) -> None:
        self._is_asked = True  # written bytes leave at the end of the turn
        callback(*args)

    def until_due_ns(self) -> int:
        """Return the time until something is due; 0 if the loop needs a turn first."""
        now_ns = clock_ns()
        is_asked, self._is_asked = self._is_asked, False
        while self._due_ns and self._due_ns[0] <= now_ns:
            heapq.heappop(self._due_ns)
            is_asked = True
        return self._due_ns[0] - now_ns if self._due_ns and not is_asked else 0
