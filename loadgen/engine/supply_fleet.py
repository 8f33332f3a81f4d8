"""What a supply chain adds to the arrays of a fleet."""

import numpy as np

from loadgen.mqtt.in_flight import IN_FLIGHT_DTYPE, RECEIVED_BYTES, SENDER_DTYPE
from loadgen.specjms.chains import Chains
from loadgen.specjms.layout import build_chains, control_bytes, largest_payload_bytes, out_bytes
from loadgen.specjms.plan import SupplyPlan
from loadgen.workload.accounting import make_gaps
from loadgen.workload.fleet import Fleet
from loadgen.workload.payload import HEADER_BYTES, body_crc_states, make_body

_GAPS = 262_144


def equip(fleet: Fleet, plan: SupplyPlan) -> Chains:
    """Give a fleet the arrays, and the sizes of arrays, that a supply chain needs."""
    window = max(
        (group.publishes.window for group in plan.groups if group.publishes is not None), default=1
    )
    chains = build_chains(
        plan.model, plan.root, fleet.group, fleet.device, window, plan.send_tick_us * 1000
    )
    sending, receiving = np.flatnonzero(chains.sending), np.flatnonzero(chains.qos2)
    fleet.devices["sender"] = fleet.devices["qos2"] = -1
    fleet.devices["sender"][sending] = np.arange(len(sending))
    fleet.devices["qos2"][receiving] = np.arange(len(receiving))
    gaps, gap_pool = make_gaps(_GAPS)
    body = make_body(largest_payload_bytes(plan.model) - HEADER_BYTES, plan.seed)
    written = out_bytes(plan.model, plan.root, len(fleet.buffer), window)
    fleet.replace(
        senders=np.zeros(len(sending), SENDER_DTYPE),
        window=np.zeros((len(sending), window), IN_FLIGHT_DTYPE),
        received_ids=np.zeros((len(receiving), RECEIVED_BYTES), np.uint8),
        pairs=chains.pairs,
        gaps=gaps,
        gap_pool=gap_pool,
        body=body,
        body_crc=body_crc_states(body),
        out=np.zeros(written, np.uint8),
        control=np.zeros(control_bytes(written, len(fleet.buffer)), np.uint8),
        own=chains,
    )
    for row in np.flatnonzero(chains.roles["first"] >= 0).tolist():
        kind = chains.types[chains.roles[row].first]
        group = fleet.groups[fleet.devices[row].group]
        group.counts_as = kind.group
        group.packet_most = kind.packet_most
    return chains
