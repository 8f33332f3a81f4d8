"""The supply chain as a behaviour: devices are those of a model, whose handlers answer."""

from typing import Any

import numpy as np
from pydantic import TypeAdapter

from loadgen.engine.behaviour import SUBSCRIBE_ID, Behaviour
from loadgen.engine.fleet import build_fleet
from loadgen.engine.frames import Header
from loadgen.engine.supply import SUPPLY_ENTRY_POINTS
from loadgen.engine.supply_fleet import equip
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.specjms.layout import lines_length, parts_of, subscriptions_at
from loadgen.specjms.missing import tell_gaps, tell_streams
from loadgen.specjms.plan import SupplyPlan

_plans = TypeAdapter(SupplyPlan)


def supply_chain(document: Any, worker: int, totals: Any) -> Behaviour:
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
        touched = np.flatnonzero(chains.seen["all_sent"] | chains.seen["all_received"])
        counts = chains.seen[touched].tolist()
        return {
            "supply": {
                "seen": [[row, *seen] for row, seen in zip(touched.tolist(), counts, strict=True)],
                "late": chains.begins["late"].tolist(),
                "inside": chains.begins["inside"].tolist(),
                "discarded": chains.state.discarded,
                "discarded_bytes": chains.state.discarded_bytes,
                "calls_dropped": chains.state.calls_dropped,
                "calls_open": chains.joins[-1].count,
                "waited": chains.state.waited,
                "unsent": lines_length(chains),
                "duplicated": chains.state.duplicated,
                "out_of_order": chains.state.out_of_order,
                "holes": tell_gaps(plan.model, chains, fleet.gaps),
                "streams": tell_streams(plan.model, chains),
            }
        }

    return Behaviour(fleet, subscribe_packets, SUPPLY_ENTRY_POINTS, final)
