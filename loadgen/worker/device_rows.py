"""The figures of each device of a worker at the end of a run, for `Plan.per_device`."""

import numpy as np
import numpy.typing as npt

from loadgen.kernels.accounting import received_on
from loadgen.kernels.device import CONNECTED, SHARED
from loadgen.plan.behaviour import PlannedFleet

Table = npt.NDArray[np.int64]

UNKNOWN = -1


def device_columns(fleet: PlannedFleet) -> dict[str, Table]:
    """Return columns with an entry for each device, numbers as in the plan.

    group, device, target    of the plan
    connected                1 while it is
    stream, sent             its own stream and the messages sent of it, UNKNOWN without one
    first_stream, streams    those that it must receive; 0 streams if it receives nothing
    received                 distinct messages of all phases, UNKNOWN if consumers share them
                             or the pool of gaps ran out
    received_in_window       of these, the ones intended in the measurement window
    """
    devices = fleet.devices
    publisher = devices["publisher"]
    publishes = publisher >= 0
    stream = np.full(len(devices), UNKNOWN, np.int64)
    sent = stream.copy()
    stream[publishes] = fleet.publishers["stream"][publisher[publishes]]
    sent[publishes] = fleet.publishers["sequence"][publisher[publishes]]
    before = np.concatenate([[0], np.cumsum(received_on(fleet.pairs, fleet.gaps))])
    first = devices["pair_first"]
    count = devices["stream_count"].astype(np.int64)
    received = before[first + count] - before[first]
    shared = (devices["flags"] & SHARED) != 0
    received[shared | bool(fleet.totals.forgotten_gaps)] = UNKNOWN
    return {
        "group": devices["group"].astype(np.int64),
        "device": fleet.device.copy(),
        "target": devices["target"].astype(np.int64),
        "connected": (devices["state"] == CONNECTED).astype(np.int64),
        "stream": stream,
        "sent": sent,
        "first_stream": devices["stream_first"].astype(np.int64),
        "streams": count,
        "received": received,
        "received_in_window": devices["taken"].astype(np.int64),
    }
