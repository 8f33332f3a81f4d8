"""The network path of a load host to the broker, which is tried if answers or segments are missing.

If the path works, even a stalled broker accepts a connection: its kernel does it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from random import choice

from loadgen.brokers.ports import open_socket
from loadgen.run.host_watch import GAPS_LIMIT, retransmitted_data

LOOK_S = 0.05
SILENT_S = 0.1
TRY_S = 0.2  # for a connection, and three times what the first one took
LACKING = 3
"""The path is tried if this many answers are missing at the rate of the last two seconds."""
_LOOKS = 40


class PathWatch:
    """The times without an answer in which the broker's address could not be reached."""

    def __init__(self, answers: Callable[[], int]) -> None:
        """Watch the numbers of answers so far that `answers` returns."""
        self.silences: deque[tuple[int, int]] = deque(maxlen=GAPS_LIMIT)
        self._count = answers
        self._targets: Sequence[tuple[str, int]] = ()
        self._try_s = TRY_S
        self._resent_last: int | None = None
        self._tried_ns = 0  # the last answer before the path was last tried
        self._answers: deque[tuple[int, int]] = deque([(time.monotonic_ns(), 0)], maxlen=_LOOKS)

    def use(self, targets: Sequence[tuple[str, int]], reached_s: float) -> None:
        """Try these addresses; a connection to one of them took this long."""
        self._targets, self._try_s = targets, TRY_S + 3 * reached_s

    def add_silence(self, start_ns: int, end_ns: int) -> None:
        """Add a silence that was noticed elsewhere, or prolong the last one."""
        if self.silences and start_ns <= self.silences[-1][1]:
            start_ns = self.silences.pop()[0]
        self.silences.append((start_ns, end_ns))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now_ns, resent_before, self._resent_last = time.monotonic_ns(), self._resent_last, None
            (first_ns, before), (since_ns, last) = self._answers[0], self._answers[-1]
            silent_ns = now_ns - since_ns
            if self._has_more() or silent_ns < SILENT_S * 1e9 or not self._targets:
                continue
            self._resent_last = retransmitted_data()
            if resent_before not in (None, self._resent_last):
                # A segment is sent again after up to 0.2 s.
                since_ns = max(since_ns, now_ns - 200_000_000)
            # A broker that sends little is not silent so soon.
            elif since_ns == self._tried_ns or not (
                (last - before) * silent_ns >= LACKING * (since_ns - first_ns) > 0
            ):
                continue
            while not self._has_more() and not await self._is_reached():
                self.add_silence(since_ns, time.monotonic_ns())
            self._resent_last, self._tried_ns = None, self._answers[-1][0]

    def _has_more(self) -> bool:
        answers = self._count()
        more = answers != self._answers[-1][1]
        if more:
            self._answers.append((time.monotonic_ns(), answers))
        return more

    async def _is_reached(self) -> bool:
        address, port = choice(self._targets)
        try:
            async with asyncio.timeout(self._try_s):
                (await open_socket(address, port)).close()
        except OSError as error:
            await asyncio.sleep(LOOK_S)
            return isinstance(error, ConnectionRefusedError)
        return True
