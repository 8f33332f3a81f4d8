"""Timers of the worker as a whole: an action that says when it wants to be called again."""

import asyncio
from collections.abc import Callable

Repeated = Callable[[], float | None]
"""Does its work and returns the seconds until the next time, None to end."""


def repeat(loop: asyncio.AbstractEventLoop, action: Repeated) -> None:
    """Call `action` now, and again as long as it names a time."""
    wait_s = action()
    if wait_s is not None:
        loop.call_later(wait_s, repeat, loop, action)
