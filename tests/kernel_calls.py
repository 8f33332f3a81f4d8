"""Kernels that take handlers, as tests call them: for messaging and for a supply chain."""

import numpy as np

from loadgen.kernels import sender
from loadgen.kernels.compiled import compiled
from loadgen.kernels.receiver import MESSAGING, SCRATCH_BYTES
from loadgen.plan.behaviour import PlannedFleet
from loadgen.specjms.kernels.interactions import SUPPLY_CHAIN


@compiled
def send_due(
    fleet: PlannedFleet, number: int, now_ns: int, sent_ns: int, limit: int
) -> tuple[int, int]:
    return sender.send_due(fleet, number, now_ns, sent_ns, limit, MESSAGING)


@compiled
def record_sent(fleet: PlannedFleet, number: int, count: int, sent: int, sent_ns: int) -> None:
    sender.record_sent(fleet, number, count, sent, sent_ns, MESSAGING)


@compiled
def begin_interactions(
    fleet: PlannedFleet, number: int, now_ns: int, sent_ns: int, limit: int
) -> tuple[int, int]:
    return sender.send_due(fleet, number, now_ns, sent_ns, limit, SUPPLY_CHAIN)


@compiled
def record_interactions(
    fleet: PlannedFleet, number: int, count: int, sent: int, sent_ns: int
) -> None:
    sender.record_sent(fleet, number, count, sent, sent_ns, SUPPLY_CHAIN)


def fill(fleet: PlannedFleet, data: bytes) -> None:
    """Put what a device received where its kernel reads it, and nothing behind it."""
    scratch_bytes = SCRATCH_BYTES if len(fleet.header_places) else 0
    fleet.buffer = np.frombuffer(bytearray(data + bytes(scratch_bytes)), np.uint8)
