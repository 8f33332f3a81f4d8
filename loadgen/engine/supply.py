"""The reactor's kernels for a supply chain (specjms/kernels.py)."""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.engine.reactor import EntryPoints, pump_due, serve_devices
from loadgen.specjms.kernels import SUPPLY_CHAIN
from loadgen.workload.fleet import Fleet
from loadgen.workload.traffic import receive_packets


@compiled
def serve(fleet: Fleet, linger_ns: int) -> int:
    return serve_devices(fleet, linger_ns, SUPPLY_CHAIN)


@compiled
def pump(fleet: Fleet) -> int:
    return pump_due(fleet, SUPPLY_CHAIN)


@compiled
def receive(
    fleet: Fleet, row: int, buffer: npt.NDArray[np.uint8], end: int, now_ns: int
) -> tuple[int, int]:
    return receive_packets(fleet, row, buffer, end, now_ns, SUPPLY_CHAIN)


SUPPLY_ENTRY_POINTS = EntryPoints(serve, pump, receive)
