"""The supply chain as a behaviour: devices are those of a model, whose handlers answer."""

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from loadgen.engine.behaviour import SUBSCRIBE_ID, Behaviour
from loadgen.engine.fleet import Table, build_fleet
from loadgen.engine.frames import Header
from loadgen.engine.supply import chain_table
from loadgen.engine.supply_fleet import equip
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.specjms import kernels
from loadgen.specjms.layout import lines_length, parts_of, subscriptions_at
from loadgen.specjms.missing import tell_holes, tell_streams
from loadgen.specjms.plan import SupplyPlan

_plans = TypeAdapter(SupplyPlan)


def supply_chain(document: Any, worker: int, totals: Table) -> Behaviour:
    """Devices are those of a model; their handlers answer what they receive."""
    plan = _plans.validate_python(document)
    fleet = build_fleet(plan, plan.workers[worker], totals)
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
        touched = np.flatnonzero(chains.seen.any(axis=1))
        return {
            "supply": {
                "seen": [[int(row), *chains.seen[row].tolist()] for row in touched],
                "late": chains.begins[kernels.BEGUN_LATE].tolist(),
                "inside": chains.begins[kernels.BEGUN_INSIDE].tolist(),
                "discarded": int(chains.state[kernels.DISCARDED]),
                "discarded_bytes": int(chains.state[kernels.DISCARDED_BYTES]),
                "calls_dropped": int(chains.state[kernels.CALLS_DROPPED]),
                "calls_open": int(chains.joins[-1, 0]),
                "waited": int(chains.state[kernels.WAITED]),
                "unsent": lines_length(chains),
                "duplicated": int(chains.state[kernels.DUPLICATED]),
                "out_of_order": int(chains.state[kernels.OUT_OF_ORDER]),
                "holes": tell_holes(plan.model, chains, fleet.holes),
                "streams": tell_streams(plan.model, chains),
            }
        }

    chain = chain_table(chains, fleet.body, fleet.body_crc)
    return Behaviour(fleet, subscribe_packets, chain, final)
