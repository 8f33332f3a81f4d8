"""The workers' counts at one moment: the one sample from which a run is watched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveSample:
    time_ns: int  # CLOCK_MONOTONIC
    connected: int = 0
    sent: int = 0  # with responses
    begun: int = 0  # without responses
    expected: int = 0  # deliveries
    received: int = 0  # deliveries
    owed: int = 0  # messages due and not sent
    under_way: int = 0  # deliveries that may still arrive
    due: int = 0  # events that should cause an answer
    answered: int = 0  # answers of the broker
    most: int | None = None  # under way to the subscription with most of them; None if unknown
    waits: float = 0.0  # longest wait of a subscription, as a share of the run
