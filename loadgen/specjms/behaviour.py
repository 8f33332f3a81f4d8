"""The supply chain in a worker: subscriptions of its devices, and counts of the worker."""

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from loadgen.kernels.device import AWAY
from loadgen.kernels.in_flight import RECEIVED_BYTES, InFlight, Sender
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.plan.behaviour import SUBSCRIBE_ID, Behaviour, PlannedFleet
from loadgen.plan.groups import Target, one_worker
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import Scenario
from loadgen.specjms import layout
from loadgen.specjms.build_model import model_of
from loadgen.specjms.chain_model import Model
from loadgen.specjms.chain_plan import groups_of_model
from loadgen.specjms.kernels.chains import Chains
from loadgen.specjms.kernels.interactions import SUPPLY_CHAIN
from loadgen.specjms.missing import gaps_of, streams_of
from loadgen.specjms.scenario import SupplyChain

_COUNTED = (
    *("discarded", "discarded_bytes", "calls_dropped", "waited", "duplicated", "out_of_order"),
    *("redelivered", "unmarked", "recovered", "recovered_ns"),
)
_MODELS = TypeAdapter(Model)


def behave(fleet: PlannedFleet) -> Behaviour:
    """Return the behaviour of a model's devices, and add their arrays to the fleet."""
    plan = fleet.plan
    model = _MODELS.validate_python(plan.model)
    parts = layout.parts_of(model)
    chains = equip(fleet, model)

    def subscribe_packets(row: int) -> list[Subscribe]:
        part = parts[int(fleet.group[row])]
        packets, qos = layout.subscriptions_at(model, plan.root, part, int(fleet.device[row]))
        first_id = SUBSCRIBE_ID - len(packets) + 1
        return [
            Subscribe(
                first_id + at,
                tuple(Subscription(topic_filter=text, qos=qos) for text in filters),
            )
            for at, filters in enumerate(packets)
        ]

    return Behaviour(
        fleet,
        SUPPLY_CHAIN,
        subscribe_packets,
        scheduled=lambda: int(chains.sequences.sum()),
        discarded=lambda: chains.state.discarded_in_all,
        final=lambda: {"supply": _counts(model, fleet, chains)},
    )


def tiny_plan() -> Plan:
    model = model_of(SupplyChain(base=1))
    groups = groups_of_model(model)
    return Plan(
        scenario=Scenario(case="warm", mqtt="5"),
        groups=groups,
        targets=(Target("127.0.0.1", 1),),
        workers=(one_worker(groups),),
        model=model,
    )


def equip(fleet: PlannedFleet, model: Model) -> Chains:
    """Add the arrays of a supply chain to a fleet, and resize the fleet's arrays for it."""
    plan = fleet.plan
    window = max(
        (group.publishes.window for group in plan.groups if group.publishes is not None), default=1
    )
    chains = layout.build_chains(
        model, plan.root, fleet.group, fleet.device, window, plan.send_tick_us * 1000
    )
    sending, receiving = np.flatnonzero(chains.sending), np.flatnonzero(chains.qos2)
    fleet.devices["sender"] = fleet.devices["qos2"] = -1
    fleet.devices["sender"][sending] = np.arange(len(sending))
    fleet.devices["qos2"][receiving] = np.arange(len(receiving))
    parts = layout.parts_of(model)
    for number in np.unique(fleet.group).tolist():
        _, qos = layout.subscriptions_at(model, plan.root, parts[number], 0)
        fleet.devices["qos"][fleet.group == number] = qos
    # `control` has room for the output of two calls at a blocked socket.
    written = layout.out_bytes(model, plan.root, len(fleet.buffer), window)
    fleet.replace(
        senders=Sender.rows(len(sending)),
        window=InFlight.grid(window, len(sending)),
        received_ids=np.zeros((len(receiving), RECEIVED_BYTES), np.uint8),
        pairs=chains.pairs,
        out=np.zeros(written, np.uint8),
        control=np.zeros(2 * written + 4 * len(fleet.buffer), np.uint8),
        extension=chains,
    )
    for row in np.flatnonzero(chains.roles["first"] >= 0).tolist():
        kind = chains.types[chains.roles[row].first]
        fleet.groups[fleet.devices[row].group].counts_as = kind.group
    fleet.groups["packet_most"] = int(chains.types["packet_most"].max())
    return chains


def _counts(model: Model, fleet: PlannedFleet, chains: Chains) -> dict[str, Any]:
    """Return the worker's counts, of the window and of the run, and the state of its streams."""
    touched = np.flatnonzero(chains.seen["sent_in_all"] | chains.seen["received_in_all"])
    counts = chains.seen[touched].tolist()
    return {
        "seen": [[row, *seen] for row, seen in zip(touched.tolist(), counts, strict=True)],
        "late": chains.begins["late"].tolist(),
        "inside": chains.begins["inside"].tolist(),
        **{name: getattr(chains.state, name) for name in _COUNTED},
        "calls_open": chains.joins[-1].count,
        "unsent": layout.lines_length(chains),
        "heard": layout.heard_by(model, chains),
        "returned_ns": int(fleet.devices["returned_ns"].max(initial=0)),
        "away": int((fleet.devices["returned_ns"] == AWAY).sum()),
        "gaps": gaps_of(model, chains, fleet.gaps),
        "streams": streams_of(model, chains),
    }
