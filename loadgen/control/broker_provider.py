"""The brokers of a run: started here or only named, the front and the backends of a bridge too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from loadgen.brokers.endpoints import Endpoint, parse_broker
from loadgen.brokers.process import ServedBroker
from loadgen.errors import ScenarioError
from loadgen.workload.workload import Bridge, Brokers

if TYPE_CHECKING:
    from loadgen.brokers.bridge import Route

_INSTRUMENTS = ("reflector", "sink")
"""Brokers of ours that keep nothing on disk."""


@asynccontextmanager
async def provided(wanted: Brokers, faults: str) -> AsyncIterator[ServedBroker]:
    """The brokers that a run asks for, for the length of the block."""
    # Starting brokers needs the MQTT stack; a module that only reads run directories does not.
    if wanted.bridge is not None:
        async with _bridge(wanted, wanted.bridge) as bridge:
            yield bridge
        return
    from loadgen.brokers.start import serve

    async with serve(
        wanted.names,
        instances=wanted.instances,
        persistence=wanted.stores and wanted.private and wanted.names[0] not in _INSTRUMENTS,
        faults=faults,
    ) as served:
        yield served


@asynccontextmanager
async def _bridge(wanted: Brokers, bridge: Bridge) -> AsyncIterator[ServedBroker]:
    """Front and backends, in this order; started here unless URLs name them."""
    if bridge.urls:
        parsed = [parse_broker(url) for url in (*wanted.names, *bridge.urls)]
        endpoints = tuple(endpoint for endpoint in parsed if isinstance(endpoint, Endpoint))
        if len({endpoint.scheme for endpoint in endpoints}) > 1:
            raise ScenarioError("backend: another scheme than broker; allowed: the same in all")
        yield ServedBroker("external", "unknown", endpoints)
        return
    from loadgen.brokers.bridge import serve_bridge

    async with serve_bridge(
        routes(bridge), bridge.backends, bridge.qos, persistence=bridge.durable
    ) as served:
        yield served


def routes(bridge: Bridge) -> "tuple[Route, ...]":
    """What the front forwards, a route a topic."""
    from loadgen.brokers.bridge import routes_of

    return routes_of(bridge.backends, bridge.topics, bridge.front_root, bridge.backend_root)
