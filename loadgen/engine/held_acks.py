"""Acknowledgements that wait for others of their batch, and the end of their patience.

Owns what each device withheld at the last look.
"""

import numpy as np

from loadgen.engine.outgoing import Outgoing
from loadgen.workload.fleet import Fleet
from loadgen.workload.traffic import release_held

_STALE_S = 0.1


class HeldAcks:
    """Sends withheld acknowledgements whose batch does not fill any more."""

    def __init__(self, fleet: Fleet, outgoing: Outgoing) -> None:
        self._fleet = fleet
        self._outgoing = outgoing
        self._before = fleet.devices["held"].copy()

    def release_stale(self) -> float:
        """Send the batches that did not grow since the last look; seconds until the next."""
        fleet = self._fleet
        held = fleet.devices["held"].copy()
        for connection in np.flatnonzero((held > 0) & (held == self._before)).tolist():
            size = release_held(fleet, connection, 0)
            self._outgoing.write(connection, fleet.out[:size].tobytes())
        self._before = held
        return _STALE_S
