"""How devices and messages came back from a crash of the broker, from samples of the live page."""

from dataclasses import dataclass
from typing import Any

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Standing:
    """The workers together at one moment (CLOCK_MONOTONIC ns): devices connected, messages received
    so far, and those owed or under way."""

    time_ns: int
    connected: int
    received: int
    backlog: int


class RecoveryWatch:
    """Looks from the crash on; `devices` were connected then, `usual` messages under way at most.

    The crash is the moment `asked_ns` or, `by_command` of a user, that at which the first device
    had lost its connection: nobody knows how long the command takes to get there.
    """

    def __init__(self, asked_ns: int, devices: int, usual: int, *, by_command: bool) -> None:
        self.crashed_ns = 0 if by_command else asked_ns
        self.first_back_ns = 0
        self.all_back_ns = 0
        self.first_delivery_ns = 0
        self._devices = devices
        self._usual = usual
        self._fewest = devices
        self._received = 0  # when the fewest were connected
        # Each new least backlog since all were back, and when it was seen.
        self._least: list[tuple[int, int]] = []

    def sample(self, seen: Standing) -> None:
        """Take note of how things stand."""
        if seen.connected < self._devices:
            self.crashed_ns = self.crashed_ns or seen.time_ns
        if not self.first_back_ns and seen.connected <= self._fewest:
            self._fewest, self._received = seen.connected, seen.received
        elif not self.first_back_ns:
            self.first_back_ns = seen.time_ns
        if self.first_back_ns and seen.received > self._received:
            self.first_delivery_ns = self.first_delivery_ns or seen.time_ns
        if self.first_back_ns and seen.connected >= self._devices:
            self.all_back_ns = self.all_back_ns or seen.time_ns
        if self.all_back_ns and (not self._least or seen.backlog < self._least[-1][1]):
            self._least.append((seen.time_ns, seen.backlog))

    @property
    def drained_ns(self) -> int:
        """When no more waited than before the crash, but for what never came; 0 for not at all."""
        if not self._least:
            return 0
        bound = self._least[-1][1] + self._usual
        return next(time_ns for time_ns, backlog in self._least if backlog <= bound)

    def document(self, window_ns: int) -> dict[str, Any]:
        """For run.json: the crash in seconds into the window, the rest in seconds after it.

        None for what was not seen.
        """

        def after(moment_ns: int) -> float | None:
            return (moment_ns - self.crashed_ns) / NS if moment_ns else None

        return {
            "crashed_s": (self.crashed_ns - window_ns) / NS if self.crashed_ns else None,
            "first_back_s": after(self.first_back_ns),
            "all_back_s": after(self.all_back_ns),
            "first_delivery_s": after(self.first_delivery_ns),
            "drained_s": after(self.drained_ns),
        }
