"""What a worker knows of each of its devices at the end of a run, for `RunPlan.per_device`."""

import numpy as np

from loadgen.engine.fleet import Fleet, Table
from loadgen.workload import traffic
from loadgen.workload.accounting import FORGOTTEN, received_on
from loadgen.workload.pacer import SEQUENCE, STREAM

__all__ = ["UNKNOWN", "device_columns"]

UNKNOWN = -1


def device_columns(fleet: Fleet) -> dict[str, Table]:
    """One entry a device in each column, numbers as in the plan.

    group, device, target    of the plan
    connected                1 while it is
    stream, sent             its own stream and the messages sent of it, UNKNOWN without one
    first_stream, streams    those that it must receive; no streams where it receives none
    received                 distinct messages of all phases, UNKNOWN where consumers share them
                             or the pool of holes ran out
    received_in_window       of these, the ones intended in the measurement window
    """
    connections = fleet.connections
    publisher = connections[:, traffic.PUBLISHER]
    publishes = publisher >= 0
    stream = np.full(len(connections), UNKNOWN, np.int64)
    sent = stream.copy()
    stream[publishes] = fleet.schedule[publisher[publishes], STREAM]
    sent[publishes] = fleet.schedule[publisher[publishes], SEQUENCE]
    before = np.concatenate([[0], np.cumsum(received_on(fleet.pairs, fleet.holes))])
    first = connections[:, traffic.PAIR_FIRST]
    count = connections[:, traffic.STREAM_COUNT]
    received = before[first + count] - before[first]
    shared = (connections[:, traffic.FLAGS] & traffic.SHARED) != 0
    received[shared | bool(fleet.hole_state[FORGOTTEN])] = UNKNOWN
    return {
        "group": connections[:, traffic.GROUP].copy(),
        "device": fleet.device.copy(),
        "target": connections[:, traffic.TARGET].copy(),
        "connected": (connections[:, traffic.STATE] == traffic.CONNECTED).astype(np.int64),
        "stream": stream,
        "sent": sent,
        "first_stream": connections[:, traffic.STREAM_FIRST].copy(),
        "streams": count.copy(),
        "received": received,
        "received_in_window": connections[:, traffic.TAKEN].copy(),
    }
