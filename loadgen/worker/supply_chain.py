"""The supply chain as a behaviour: devices are those of a model, whose handlers answer.

What it adds to the engine stands here: its arrays in a fleet, the reactor's kernels compiled for
its messages (specjms/kernels/interactions.py), what its devices subscribe to and what a worker
reports of them.
"""

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from loadgen.kernels.device import AWAY
from loadgen.kernels.fleet import Fleet
from loadgen.kernels.in_flight import IN_FLIGHT_DTYPE, RECEIVED_BYTES, SENDER_DTYPE
from loadgen.kernels.reactor import entry_points
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.specjms.chain_plan import SupplyPlan
from loadgen.specjms.kernels.chains import Chains
from loadgen.specjms.kernels.interactions import SUPPLY_CHAIN
from loadgen.specjms.layout import (
    build_chains,
    control_bytes,
    heard_by,
    lines_length,
    out_bytes,
    parts_of,
    subscriptions_at,
)
from loadgen.specjms.missing import gaps_of, streams_of
from loadgen.worker.behaviour import SUBSCRIBE_ID, Behaviour
from loadgen.worker.build_fleet import build_fleet
from loadgen.worker.frames import Header
from loadgen.worker.shared_counts import LivePage

_COUNTED = (
    *("discarded", "discarded_bytes", "calls_dropped", "waited", "duplicated", "out_of_order"),
    *("redelivered", "unmarked", "recovered", "recovered_ns"),
)
_plans = TypeAdapter(SupplyPlan)


SUPPLY_ENTRY_POINTS = entry_points(SUPPLY_CHAIN)


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
    parts = parts_of(plan.model)
    for number in np.unique(fleet.group).tolist():
        asked = subscriptions_at(plan.model, plan.root, parts[number], 0)
        fleet.devices["qos"][fleet.group == number] = asked.qos
    written = out_bytes(plan.model, plan.root, len(fleet.buffer), window)
    fleet.replace(
        senders=np.zeros(len(sending), SENDER_DTYPE),
        window=np.zeros((window, len(sending)), IN_FLIGHT_DTYPE),
        received_ids=np.zeros((len(receiving), RECEIVED_BYTES), np.uint8),
        pairs=chains.pairs,
        out=np.zeros(written, np.uint8),
        control=np.zeros(control_bytes(written, len(fleet.buffer)), np.uint8),
        own=chains,
    )
    for row in np.flatnonzero(chains.roles["first"] >= 0).tolist():
        kind = chains.types[chains.roles[row].first]
        fleet.groups[fleet.devices[row].group].counts_as = kind.group
    fleet.groups["packet_most"] = int(chains.types["packet_most"].max())
    return chains


def supply_chain(document: Any, worker: int, page: LivePage) -> Behaviour:
    """Devices are those of a model; their handlers answer what they receive."""
    plan = _plans.validate_python(document)
    fleet = build_fleet(plan, plan.workers[worker], page)
    chains = equip(fleet, plan)

    def subscribe_packets(connection: int) -> list[Subscribe]:
        part = parts_of(plan.model)[int(fleet.group[connection])]
        wanted = subscriptions_at(plan.model, plan.root, part, int(fleet.device[connection]))
        first_id = SUBSCRIBE_ID - len(wanted.packets) + 1
        return [
            Subscribe(
                first_id + at,
                tuple(Subscription(topic_filter=text, qos=wanted.qos) for text in filters),
            )
            for at, filters in enumerate(wanted.packets)
        ]

    def final() -> Header:
        """Counts by destination, of the window and of the run, and what is known of the streams."""
        touched = np.flatnonzero(chains.seen["sent_in_all"] | chains.seen["received_in_all"])
        counts = chains.seen[touched].tolist()
        return {
            "supply": {
                "seen": [[row, *seen] for row, seen in zip(touched.tolist(), counts, strict=True)],
                "late": chains.begins["late"].tolist(),
                "inside": chains.begins["inside"].tolist(),
                **{name: getattr(chains.state, name) for name in _COUNTED},
                "calls_open": chains.joins[-1].count,
                "unsent": lines_length(chains),
                "heard": heard_by(plan.model, chains),
                "returned_ns": int(fleet.devices["returned_ns"].max(initial=0)),
                "away": int((fleet.devices["returned_ns"] == AWAY).sum()),
                "gaps": gaps_of(plan.model, chains, fleet.gaps),
                "streams": streams_of(plan.model, chains),
            }
        }

    return Behaviour(
        fleet,
        subscribe_packets,
        SUPPLY_ENTRY_POINTS,
        final,
        scheduled=lambda: int(chains.sequences.sum()),
        discarded=lambda: chains.state.discarded_in_all,
    )
