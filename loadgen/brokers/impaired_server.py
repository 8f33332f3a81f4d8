"""A relay of bytes with a link that is impaired; run as a module it is the child of `impaired.py`.

It knows nothing of MQTT, so that TLS and WebSocket pass as they are. Timers of the loop are as
coarse as a millisecond.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from loadgen.brokers.child import Json, Serving, run_child
from loadgen.brokers.ports import listen
from loadgen.workload.impairment import Impairment, parse_impairment

_HELD_BYTES: Final = 4 << 20
"""What one connection may have on its way in one direction; then it is not read."""


class End(asyncio.Protocol):
    """One end of a connection; what it reads goes to `other` when the link lets it."""

    def __init__(self, link: "Link", other: "End | None" = None) -> None:
        self.other = other
        self._link = link
        self._transport: asyncio.Transport | None = None
        # What is on its way: when it is due, and the bytes, empty for the end of the stream.
        self._line: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._sent_s = 0.0  # when the last of it has left at the link's rate
        self._timer: asyncio.TimerHandle | None = None
        self._holds = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are no subclass of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self._link.ends.add(self)
        if self.other is None:
            self.hold()
            self._link.reach(self)

    def joined(self, other: "End") -> None:
        """The other side is there."""
        self.other = other
        self.release()
        self.deliver()

    def data_received(self, data: bytes) -> None:
        impairment, now_s = self._link.impairment, self._link.now_s()
        due_s = now_s
        if impairment.bits_per_s:
            self._sent_s = max(self._sent_s, now_s) + 8 * len(data) / impairment.bits_per_s
            due_s = self._sent_s
        jitter_s = impairment.jitter_s
        due_s += impairment.delay_s + (random.uniform(-jitter_s, jitter_s) if jitter_s else 0.0)
        self._take(due_s, data)

    def _take(self, due_s: float, data: bytes) -> None:
        line = self._line
        line.append((max(due_s, line[-1][0]) if line else due_s, data))
        self._held_bytes += len(data)
        if self._held_bytes >= _HELD_BYTES > self._held_bytes - len(data):
            self.hold()
        if self._timer is None:
            self.deliver()

    def deliver(self) -> None:
        """Pass on what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s, line, other = self._link.now_s(), self._line, self.other
        if self._link.stalled or other is None:
            return
        while line and line[0][0] <= now_s:
            _, data = line.popleft()
            other.write(data)
            before, self._held_bytes = self._held_bytes, self._held_bytes - len(data)
            if before >= _HELD_BYTES > self._held_bytes:
                self.release()
        if line:
            self._timer = self._link.call_later(line[0][0] - now_s, self.deliver)
        elif self._transport is None:
            self._link.ends.discard(self)

    def write(self, data: bytes) -> None:
        """Send; nothing is the end."""
        if self._transport is None:
            return
        if data:
            self._transport.write(data)
        else:
            self._transport.close()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.release()

    def hold(self) -> None:
        """Stop reading until `release` was called as often."""
        self._holds += 1
        if self._holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def is_open(self) -> bool:
        """Whether it is one of two ends that are there."""
        return self._transport is not None and self.other is not None

    def cut(self) -> None:
        """Reset the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None and self.other is not None:
            self.other.cut()
        # What is on its way still arrives, and the end after it.
        self._take(self._link.now_s() + self._link.impairment.delay_s, b"")


class Link:
    """All connections to one broker, and what is wrong with them."""

    def __init__(self, broker: tuple[str, int], impairment: Impairment) -> None:
        loop = asyncio.get_running_loop()
        self.impairment = impairment
        self.ends: set[End] = set()
        self.stalled = False
        self.now_s = loop.time
        self.call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] = (
            loop.call_later
        )
        self._loop = loop
        self._broker = broker
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._counts = {"stalls": 0, "cuts": 0, "connections_cut": 0}

    def reach(self, client: End) -> None:
        """Connect to the broker on behalf of a client."""
        task = self._loop.create_task(self._reach(client))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _reach(self, client: End) -> None:
        try:
            _, end = await self._loop.create_connection(lambda: End(self, client), *self._broker)
        except OSError:
            client.cut()
            self.ends.discard(client)
        else:
            client.joined(end)

    def answer(self, question: Json) -> Json:
        """Begin or end the schedule of stalls and cuts; what it came to."""
        if question.get("begin"):
            self._again("stall", self.impairment.stall_every_s, self._stall)
            self._again("cut", self.impairment.cut_s, self._cut)
        if question.get("end"):
            self._stop()
        return dict(self._counts)

    def close(self) -> None:
        """Cut every connection."""
        self._stop()
        for task in self._opening:
            task.cancel()
        for end in list(self.ends):
            end.cut()

    def _again(self, name: str, after_s: float, act: Callable[[], None]) -> None:
        if after_s:
            self._timers[name] = self.call_later(after_s, act)

    def _stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._pass()

    def _stall(self) -> None:
        self._again("stall", self.impairment.stall_every_s, self._stall)
        self._again("pass", self.impairment.stall_s, self._pass)
        self._counts["stalls"] += 1
        self.stalled = True

    def _pass(self) -> None:
        self.stalled = False
        for end in list(self.ends):
            end.deliver()

    def _cut(self) -> None:
        self._again("cut", self.impairment.cut_s, self._cut)
        self._counts["cuts"] += 1
        self._counts["connections_cut"] += sum(map(End.is_open, self.ends)) // 2
        for end in list(self.ends):
            end.cut()


async def serve(config: Json) -> Serving:
    """The child: what `run_child` wants."""
    link = Link(tuple(config["broker"]), parse_impairment(config["impairment"]))
    listener = listen(config["host"], config["port"])
    server = await asyncio.get_running_loop().create_server(
        lambda: End(link), sock=listener, backlog=4096
    )

    def close() -> None:
        server.close()
        link.close()

    return Serving({"port": listener.getsockname()[1]}, link.answer, close)


if __name__ == "__main__":
    run_child(serve)
