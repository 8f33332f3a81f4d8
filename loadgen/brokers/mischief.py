"""Faults of single deliveries: lose, repeat, reorder, corrupt, delay.

This file knows sessions and time, but not whence a message came. Every delivery that may go wrong
passes `Mischief.offer`; what was to go to a client earlier is never overtaken but by a swap.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from loadgen.brokers.clients import Ledger, Session
from loadgen.brokers.faults import Dice, Faults
from loadgen.brokers.messages import Outgoing

_SWAP_TIMEOUT_S: Final = 0.5
"""A delivery held to be swapped with the next goes alone when no next one comes."""


class Mischief:
    """Draws the dice of `faults` for every delivery, does what they say, and counts it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._swaps: dict[tuple[Session, bytes], tuple[Outgoing, asyncio.TimerHandle]] = {}
        self.stalled = False
        self.set_faults(Faults())

    def set_faults(self, faults: Faults) -> None:
        """Draw anew, with these; nothing may be held back (see `release`)."""
        self._faults = faults
        self.active = faults.on_deliveries
        self._lose = Dice(faults.lose, f"lose {faults.seed}")
        self._repeat = Dice(faults.repeat, f"repeat {faults.seed}")
        self._reorder = Dice(faults.reorder, f"reorder {faults.seed}")
        self._corrupt = Dice(faults.corrupt, f"corrupt {faults.seed}")
        self._delay = Dice(faults.delay_share, f"delay {faults.seed}")

    @property
    def held(self) -> int:
        """Deliveries that wait for a swap; those in delay lines are their sessions'."""
        return len(self._swaps)

    def offer(self, session: Session, item: Outgoing) -> None:
        """A delivery that may go wrong."""
        counts = self._ledger.counts
        key = session, item.message.topic
        if (swap := self._swaps.pop(key, None)) is not None:
            earlier, timer = swap
            timer.cancel()
            self._pass(session, item)
            self._pass(session, earlier)
            counts.reordered += 1
        elif self._lose.roll():
            counts.lost += 1
        elif self._repeat.roll():
            self._pass(session, item)
            self._pass(session, item)
            counts.repeated += 1
        elif self._reorder.roll():
            timer = self._loop.call_later(_SWAP_TIMEOUT_S, self._unswap, key)
            self._swaps[key] = item, timer
        elif item.message.payload and self._corrupt.roll():
            payload = bytearray(item.message.payload)
            payload[self._corrupt.below(len(payload))] ^= 1 + self._corrupt.below(255)
            self._pass(
                session, item._replace(message=item.message._replace(payload=bytes(payload)))
            )
            counts.corrupted += 1
        else:
            self._pass(session, item)

    def follow(self, session: Session, item: Outgoing) -> None:
        """A delivery that goes right, though not before what is delayed."""
        if session.delay_line:
            session.delay_line.append((session.delay_line[-1][0], item))
        else:
            session.send(item)

    def release(self, sessions: Iterable[Session]) -> None:
        """Let everything go that is held back."""
        for key in list(self._swaps):
            self._unswap(key)
        for session in sessions:
            if session.delay_timer is not None:
                session.delay_timer.cancel()
                session.delay_timer = None
            while session.delay_line:
                session.send(session.delay_line.popleft()[1])

    def after_stall(self, sessions: Iterable[Session]) -> None:
        """Take the delays up again."""
        for session in sessions:
            if session.delay_line and session.delay_timer is None:
                self._on_delay(session)

    def forget(self, session: Session) -> None:
        """The session has ended; what was held to be swapped for it is given up."""
        for key in [key for key in self._swaps if key[0] is session]:
            self._swaps.pop(key)[1].cancel()
            self._ledger.counts.discarded += 1

    def _unswap(self, key: tuple[Session, bytes]) -> None:
        item, timer = self._swaps.pop(key)
        timer.cancel()
        self._pass(key[0], item)

    def _pass(self, session: Session, item: Outgoing) -> None:
        if not (self._faults.delay_ns and self._delay.roll()):
            self.follow(session, item)
            return
        line = session.delay_line
        due_ns = time.monotonic_ns() + self._faults.delay_ns
        line.append((max(due_ns, line[-1][0]) if line else due_ns, item))
        self._ledger.counts.delayed += 1
        if session.delay_timer is None:
            self._on_delay(session)

    def _on_delay(self, session: Session) -> None:
        session.delay_timer = None
        line = session.delay_line
        now_ns = time.monotonic_ns()
        while line and line[0][0] <= now_ns and not self.stalled:
            session.send(line.popleft()[1])
        if line and not self.stalled:
            wait_s = (line[0][0] - now_ns) / 1e9
            session.delay_timer = self._loop.call_later(wait_s, self._on_delay, session)
