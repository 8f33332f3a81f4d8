"""What a supply chain adds to the arrays of a fleet."""

import numpy as np

from loadgen.engine.fleet import Fleet
from loadgen.mqtt.in_flight import IN_FLIGHT_DTYPE, RECEIVED_BYTES, SENDER_DTYPE
from loadgen.specjms.layout import (
    Chains,
    build_chains,
    control_bytes,
    largest_payload_bytes,
    out_bytes,
)
from loadgen.specjms.plan import SupplyPlan
from loadgen.workload import traffic
from loadgen.workload.accounting import make_holes
from loadgen.workload.payload import HEADER_BYTES, body_crc_states, make_body

__all__ = ["equip"]

_HOLES = 262_144


def equip(fleet: Fleet, plan: SupplyPlan) -> Chains:
    """Give a fleet the arrays, and the sizes of arrays, that a supply chain needs."""
    window = max(
        (group.publishes.window for group in plan.groups if group.publishes is not None), default=1
    )
    chains = build_chains(
        plan.model, plan.root, fleet.group, fleet.device, window, plan.send_tick_us * 1000
    )
    sending, receiving = np.flatnonzero(chains.sending), np.flatnonzero(chains.qos2)
    fleet.connections[:, traffic.SENDER] = -1
    fleet.connections[sending, traffic.SENDER] = np.arange(len(sending))
    fleet.connections[receiving, traffic.QOS2] = np.arange(len(receiving))
    fleet.senders = np.zeros(len(sending), SENDER_DTYPE)
    fleet.window = np.zeros((len(sending), window), IN_FLIGHT_DTYPE)
    fleet.received_ids = np.zeros((len(receiving), RECEIVED_BYTES), np.uint8)
    fleet.pairs = chains.pairs
    fleet.holes, fleet.hole_state = make_holes(_HOLES)
    fleet.body = make_body(largest_payload_bytes(plan.model) - HEADER_BYTES, plan.seed)
    fleet.body_crc = body_crc_states(fleet.body)
    written = out_bytes(plan.model, plan.root, len(fleet.buffer), window)
    fleet.out = np.zeros(written, np.uint8)
    fleet.control = np.zeros(control_bytes(written, len(fleet.buffer)), np.uint8)
    return chains
