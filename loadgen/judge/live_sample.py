"""The workers' counts at one moment: the one sample from which a run is watched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveSample:
    """Sums over all workers at `time_ns` (CLOCK_MONOTONIC).

    `sent` includes responses and `begun` does not. `expected` and `received` are deliveries, and
    `under_way` those that may still arrive; `owed` are messages due and not sent. `due` counts what
    should cause an answer, `answered` what the broker sent. `most` is the number under way to the
    subscription that has most of them, None if it is unknown; `waits` is the longest wait of a
    subscription, as a share of the run.
    """

    time_ns: int
    connected: int = 0
    sent: int = 0
    begun: int = 0
    expected: int = 0
    received: int = 0
    owed: int = 0
    under_way: int = 0
    due: int = 0
    answered: int = 0
    most: int | None = None
    waits: float = 0.0
