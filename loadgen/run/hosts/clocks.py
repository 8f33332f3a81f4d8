"""The lead of another host's clock over ours, with a bound: pure, from round trips.

The other clock is read between our question and its answer: it is ahead by at least `theirs −
received` and at most `theirs − sent`. Two clocks drift apart at a steady rate; the straight lines
through these ranges of all stored round trips bound the rate and the present lead.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

KEPT = 64  # round trips, the shortest of each slot
SLOT_NS = 500_000_000
DRIFT_LIMIT = 5e-4
"""Fastest correction of a clock by NTP that the kernel allows (adjtimex(2)); crystals differ by a
tenth of it."""
WANDER = 1e-6  # largest change of the drift of two hosts over the time of the stored round trips

_pairs = lru_cache(maxsize=KEPT)(partial(np.triu_indices, k=1))


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`theirs_ns` is the other clock, read between `sent_ns` and `received_ns` of ours."""

    sent_ns: int
    theirs_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        return self.received_ns - self.sent_ns


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """The other clock is ahead by `offset_ns`, give or take `bound_ns`.

    `drift` is how much faster it goes, `round_trip_ns` the shortest of the round trips.
    """

    offset_ns: int
    bound_ns: int
    drift: float
    round_trip_ns: int

    def least_error_ns(self, before: "ClockEstimate") -> int:
        """Return the least error of the offset of `before`; above its bound if a clock jumped."""
        return abs(self.offset_ns - before.offset_ns) - self.bound_ns


class ClockWatch:
    def __init__(self) -> None:
        self._trips: list[RoundTrip] = []

    def add(self, trip: RoundTrip) -> None:
        """Keep this round trip if it is the shortest of its slot."""
        last = self._trips[-1] if self._trips else None
        if last is None or trip.sent_ns // SLOT_NS != last.sent_ns // SLOT_NS:
            self._trips = [*self._trips[1 - KEPT :], trip]
        elif trip.round_trip_ns <= last.round_trip_ns:
            self._trips[-1] = trip

    def estimate(self, now_ns: int) -> ClockEstimate | None:
        """Return the estimate at this time of our clock, None before the first round trip."""
        while self._trips:
            found = _estimated(self._trips, now_ns)
            if found is not None:
                return found
            # No line goes through all of them: a clock was set, and the older ones are wrong.
            self._trips = self._trips[(len(self._trips) + 1) // 2 :]
        return None


def _estimated(trips: list[RoundTrip], now_ns: int) -> ClockEstimate | None:
    """Return the estimate, None if no steady drift explains these round trips."""
    first_ns = trips[0].theirs_ns - trips[0].sent_ns  # keeps the numbers small
    at = np.array([(trip.sent_ns + trip.received_ns) / 2 - now_ns for trip in trips])
    least = np.array([float(trip.theirs_ns - trip.received_ns - first_ns) for trip in trips])
    most = np.array([float(trip.theirs_ns - trip.sent_ns - first_ns) for trip in trips])
    earlier, later = _pairs(len(at))
    apart = at[later] - at[earlier]
    # The drifts that lead from each range to each later one.
    slowest = float(np.max((least[later] - most[earlier]) / apart, initial=-DRIFT_LIMIT))
    fastest = float(np.min((most[later] - least[earlier]) / apart, initial=DRIFT_LIMIT))
    if slowest > fastest:
        return None
    lower = float(np.max(least - (slowest - WANDER) * at))
    upper = float(np.min(most - (fastest + WANDER) * at))
    if lower > upper:
        return None
    offset_ns, bound_ns = first_ns + round((lower + upper) / 2), -int(-(upper - lower) // 2)
    shortest_ns = int(np.min(most - least))
    return ClockEstimate(offset_ns, bound_ns, (slowest + fastest) / 2, shortest_ns)
