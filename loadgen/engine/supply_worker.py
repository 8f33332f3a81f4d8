"""A worker that plays a share of a supply chain: its handlers answer what they receive.

`run_worker` and `warm` are what the forkserver asks of a worker's module.
"""

import socket

import numpy as np
from pydantic import TypeAdapter

from loadgen.engine.fleet import Fleet
from loadgen.engine.streams import Streams
from loadgen.engine.supply import chain_table, receive_supply
from loadgen.engine.supply_fleet import equip
from loadgen.engine.warm import warm_supply
from loadgen.engine.worker import SUBSCRIBE_ID, Header, Worker
from loadgen.engine.worker import run_worker as run_any_worker
from loadgen.mqtt.packets import Subscribe, Subscription
from loadgen.specjms import kernels
from loadgen.specjms.layout import (
    Chains,
    lines_length,
    parts_of,
    subscriptions_at,
)
from loadgen.specjms.missing import tell_holes, tell_streams
from loadgen.specjms.plan import SupplyPlan
from loadgen.workload.groups import RunPlan

__all__ = ["SupplyWorker", "run_worker", "warm"]

_plans = TypeAdapter(SupplyPlan)


class SupplyWorker(Worker):
    """A worker whose devices are those of a model."""

    plan: SupplyPlan
    chains: Chains

    def read_plan(self, document: Header) -> RunPlan:
        self.plan = _plans.validate_python(document)
        return self.plan

    def build(self, plan: RunPlan) -> Fleet:
        fleet = super().build(plan)
        self.chains = equip(fleet, self.plan)
        return fleet

    def _bind_arguments(self) -> None:
        super()._bind_arguments()
        self.chain_table = chain_table(self.chains, self.fleet.body, self.fleet.body_crc)

    def make_streams(self) -> Streams:
        return _SupplyStreams(self)

    def subscribe_packets(self, connection: int) -> list[Subscribe]:
        part = parts_of(self.plan.model)[int(self.fleet.group[connection])]
        device = int(self.fleet.device[connection])
        wanted = subscriptions_at(self.plan.model, self.plan.root, part, device)
        first_id = SUBSCRIBE_ID - len(wanted.packets) + 1
        return [
            Subscribe(
                first_id + at,
                tuple(Subscription(topic_filter=text, qos=wanted.qos) for text in filters),
            )
            for at, filters in enumerate(wanted.packets)
        ]

    def final(self) -> Header:
        """Counts by destination, of the window and of the run, and what is known of the streams."""
        chains = self.chains
        touched = np.flatnonzero(chains.seen.any(axis=1))
        fleet = self.fleet
        return {
            "specjms": {
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
                "holes": tell_holes(self.plan.model, chains, fleet.holes),
                "streams": tell_streams(self.plan.model, chains),
            }
        }


class _SupplyStreams(Streams):
    """TLS and WebSocket connections of a supply chain."""

    def __init__(self, worker: SupplyWorker) -> None:
        super().__init__(worker.fleet, worker.loop, worker.on_events, worker.stream_failed)
        self.worker = worker
        self.acknowledgements = np.zeros(len(worker.fleet.out), np.uint8)

    def scan(self, end: int, now_ns: int, connection: int) -> tuple[int, int]:
        fleet = self.fleet
        chain = self.worker.chain_table
        assert chain is not None
        return receive_supply(
            chain,
            fleet.buffer,
            0,
            end,
            now_ns,
            connection,
            fleet.connections,
            fleet.groups,
            fleet.run,
            fleet.totals,
            fleet.pairs,
            fleet.holes,
            fleet.hole_state,
            fleet.counters,
            fleet.histograms,
            fleet.stats,
            fleet.senders,
            fleet.window,
            fleet.received_ids,
            fleet.held_ids,
            fleet.schedule,
            fleet.heap,
            fleet.events,
            fleet.control,
            self.acknowledgements,
            0,
        )


def run_worker(channel: socket.socket) -> None:
    """Body of a worker process: obey frames on `channel` until it closes."""
    run_any_worker(channel, SupplyWorker)


def warm() -> None:
    """Compile or load every kernel, so that workers forked from here share them."""
    warm_supply()
