"""The return of devices and messages after a crash of the broker, from samples of a run."""

from typing import Any

from loadgen.judge.live_sample import LiveSample

NS = 1_000_000_000


class RecoveryWatch:
    """The samples after a crash of the broker at `asked_ns`.

    Before it, at most `usual` messages were in flight. A user's command can take any time: with
    `by_command` the crash is when the first device lost its connection.
    """

    def __init__(
        self, asked_ns: int, devices: int, usual: int, *, by_command: bool, lost_before: int = 0
    ) -> None:
        self.crashed_ns = 0 if by_command else asked_ns
        self.first_back_ns = 0
        self.all_back_ns = 0
        self.first_delivery_ns = 0
        self.devices = devices
        self.lost_before = lost_before
        self.fewest = devices  # connected, until the first device returned
        self._usual = usual
        self._received = 0  # when the fewest were connected
        # Each new least backlog since all were back, and when it was seen.
        self._least: list[tuple[int, int]] = []

    def sample(self, seen: LiveSample) -> None:
        if seen.connected < self.devices:
            self.crashed_ns = self.crashed_ns or seen.time_ns
        if not self.first_back_ns and seen.connected <= self.fewest:
            self.fewest, self._received = seen.connected, seen.received
        elif not self.first_back_ns:
            self.first_back_ns = seen.time_ns
        if self.first_back_ns and seen.received > self._received:
            self.first_delivery_ns = self.first_delivery_ns or seen.time_ns
        if self.first_back_ns and seen.connected >= self.devices:
            self.all_back_ns = self.all_back_ns or seen.time_ns
        backlog = seen.owed + seen.under_way
        if self.all_back_ns and (not self._least or backlog < self._least[-1][1]):
            self._least.append((seen.time_ns, backlog))

    def crashed(self, lost: int, brokers: int) -> bool:
        """Return True if a crash explains the run's `lost` connections."""
        # With several brokers, devices are spread evenly, and one of them can be the victim.
        return not self.fewest or lost - self.lost_before >= self.devices // brokers

    @property
    def drained_ns(self) -> int:
        """Time when no more messages waited than before the crash; 0 if that did not happen."""
        if not self._least:
            return 0
        # Messages that never arrive do not count.
        bound = self._least[-1][1] + self._usual
        return next(time_ns for time_ns, backlog in self._least if backlog <= bound)

    def document(self, window_ns: int) -> dict[str, Any]:
        """Return the entry of run.json: the crash in seconds into the window, events after it."""

        def after(moment_ns: int) -> float | None:
            return (moment_ns - self.crashed_ns) / NS if moment_ns else None

        return {
            "crashed_s": (self.crashed_ns - window_ns) / NS if self.crashed_ns else None,
            "first_back_s": after(self.first_back_ns),
            "all_back_s": after(self.all_back_ns),
            "first_delivery_s": after(self.first_delivery_ns),
            "drained_s": after(self.drained_ns),
        }
