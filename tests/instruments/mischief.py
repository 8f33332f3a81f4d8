"""Faults of single deliveries: lost, repeated, reordered, damaged, misrouted, delayed and others.

This file knows who gets deliveries and time, but not whence a message came. Every delivery that may
go wrong passes `Mischief.offer`; what was to go to a client earlier is never overtaken but by a
swap.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from loadgen.mqtt.constants import MQTT_5
from tests.instruments.faults import COUNTED_AS, ON_DELIVERIES, Dice, FaultCounts, Faults
from tests.instruments.packets import Delivery, with_topic_alias
from tests.instruments.transcript import Transcript

if TYPE_CHECKING:
    from tests.instruments.relay import Client as Receiver
else:
    Receiver = Any

_SWAP_TIMEOUT_S: Final = 0.5
"""A delivery held to be swapped with the next goes alone when no next one comes."""


@dataclass(slots=True)
class Notes:
    """The counts of a relay, and its transcript."""

    counts: FaultCounts
    transcript: Transcript

    def fault(self, name: str, client_id: str, payload: bytes | None = None) -> None:
        """Count a fault that happened to a client or to its message."""
        count = COUNTED_AS[name]
        setattr(self.counts, count, getattr(self.counts, count) + 1)
        self.transcript.fault(name, client_id, payload)


Elsewhere = Callable[[Receiver, Delivery, Dice], Receiver | None]
"""A client that is there and did not ask for a message; None where there is none."""


class Mischief:
    """Draws the dice of `faults` for every delivery, does what they say, and counts it."""

    def __init__(self, notes: Notes, elsewhere: Elsewhere) -> None:
        self._notes = notes
        self._elsewhere = elsewhere
        self._loop = asyncio.get_running_loop()
        self._swaps: dict[tuple[Receiver, bytes], tuple[Delivery, asyncio.TimerHandle]] = {}
        # The topics of the last two deliveries that had different ones.
        self._topics = (b"", b"")
        self.stalled = False
        self.set_faults(Faults())

    def set_faults(self, faults: Faults) -> None:
        """Draw anew, with these; nothing may be held back (see `release`)."""
        self._delay_ns = faults.delay_ns
        self.active = faults.on_deliveries
        self._dice = {name: faults.dice(name) for name in ON_DELIVERIES if faults.chance(name)}
        self._delay = faults.dice("delay")

    @property
    def held(self) -> int:
        """Deliveries that wait for a swap; those in delay lines are their receivers'."""
        return len(self._swaps)

    def offer(self, receiver: Receiver, item: Delivery) -> None:
        """A delivery that may go wrong."""
        topic = item.message.topic
        if topic != self._topics[1]:
            self._topics = self._topics[1], topic
        if (swap := self._swaps.pop((receiver, topic), None)) is not None:
            earlier, timer = swap
            timer.cancel()
            self._pass(receiver, item)
            self._pass(receiver, earlier)
            self._notes.fault("reorder", receiver.client_id, earlier.message.payload)
            return
        for name, dice in self._dice.items():
            if dice.roll() and _ACTS[name](self, receiver, item, dice):
                if name != "reorder":
                    self._notes.fault(name, receiver.client_id, item.message.payload)
                return
        self._pass(receiver, item)

    def follow(self, receiver: Receiver, item: Delivery) -> None:
        """A delivery that goes right, though not before what is delayed."""
        if receiver.delay_line:
            receiver.delay_line.append((receiver.delay_line[-1][0], item))
        else:
            receiver.send(item)

    def release(self, receivers: Iterable[Receiver]) -> None:
        """Let everything go that is held back."""
        for key in list(self._swaps):
            self._unswap(key)
        for receiver in receivers:
            if receiver.delay_timer is not None:
                receiver.delay_timer.cancel()
                receiver.delay_timer = None
            while receiver.delay_line:
                receiver.send(receiver.delay_line.popleft()[1])

    def after_stall(self, receivers: Iterable[Receiver]) -> None:
        """Take the delays up again."""
        for receiver in receivers:
            if receiver.delay_line and receiver.delay_timer is None:
                self._on_delay(receiver)

    def forget(self, receiver: Receiver) -> None:
        """The receiver has ended; what was held to be swapped for it is given up."""
        for key in [key for key in self._swaps if key[0] is receiver]:
            self._swaps.pop(key)[1].cancel()
            self._notes.counts.discarded += 1

    # What each fault does; False where it cannot happen to this delivery.

    def _lose(self, receiver: Receiver, item: Delivery, _dice: Dice) -> bool:
        receiver.settle(item)
        return True

    def _repeat(self, receiver: Receiver, item: Delivery, _dice: Dice) -> bool:
        self._pass(receiver, item)
        self._pass(receiver, item.made_up())
        return True

    def _reorder(self, receiver: Receiver, item: Delivery, _dice: Dice) -> bool:
        key = receiver, item.message.topic
        self._swaps[key] = item, self._loop.call_later(_SWAP_TIMEOUT_S, self._unswap, key)
        return True

    def _corrupt(self, receiver: Receiver, item: Delivery, dice: Dice) -> bool:
        payload = bytearray(item.message.payload)
        if not payload:
            return False
        payload[dice.below(len(payload))] ^= 1 + dice.below(255)
        self._pass(receiver, item._replace(message=item.message._replace(payload=bytes(payload))))
        return True

    def _misroute(self, receiver: Receiver, item: Delivery, dice: Dice) -> bool:
        other = self._elsewhere(receiver, item, dice)
        if other is None:
            return False
        receiver.settle(item)
        self._pass(other, item.made_up())
        return True

    def _mislabel(self, receiver: Receiver, item: Delivery, _dice: Dice) -> bool:
        topic = self._topics[0] or item.message.topic + b"/other"
        self._pass(receiver, item._replace(message=item.message._replace(topic=topic)))
        return True

    def _foreign(self, receiver: Receiver, item: Delivery, dice: Dice) -> bool:
        self._pass(receiver, item)
        payload = dice.noise(len(item.message.payload))
        self._pass(receiver, item.made_up(item.message._replace(payload=payload)))
        return True

    def _downgrade(self, receiver: Receiver, item: Delivery, _dice: Dice) -> bool:
        if not item.qos:
            return False
        receiver.settle(item)
        self._pass(receiver, item.made_up(qos=0))
        return True

    def _alias(self, receiver: Receiver, item: Delivery, _dice: Dice) -> bool:
        if receiver.version != MQTT_5:
            return False
        self._pass(receiver, item._replace(message=with_topic_alias(item.message)))
        return True

    def _unswap(self, key: tuple[Receiver, bytes]) -> None:
        item, timer = self._swaps.pop(key)
        timer.cancel()
        self._pass(key[0], item)

    def _pass(self, receiver: Receiver, item: Delivery) -> None:
        if not (self._delay_ns and self._delay.roll()):
            self.follow(receiver, item)
            return
        line = receiver.delay_line
        due_ns = time.monotonic_ns() + self._delay_ns
        line.append((max(due_ns, line[-1][0]) if line else due_ns, item))
        self._notes.fault("delay", receiver.client_id, item.message.payload)
        if receiver.delay_timer is None:
            self._on_delay(receiver)

    def _on_delay(self, receiver: Receiver) -> None:
        receiver.delay_timer = None
        line = receiver.delay_line
        now_ns = time.monotonic_ns()
        while line and line[0][0] <= now_ns and not self.stalled:
            receiver.send(line.popleft()[1])
        if line and not self.stalled:
            wait_s = (line[0][0] - now_ns) / 1e9
            receiver.delay_timer = self._loop.call_later(wait_s, self._on_delay, receiver)


_ACTS: Final[dict[str, Callable[[Mischief, Receiver, Delivery, Dice], bool]]] = {
    "lose": Mischief._lose,
    "repeat": Mischief._repeat,
    "reorder": Mischief._reorder,
    "corrupt": Mischief._corrupt,
    "misroute": Mischief._misroute,
    "mislabel": Mischief._mislabel,
    "foreign": Mischief._foreign,
    "downgrade": Mischief._downgrade,
    "alias": Mischief._alias,
}
