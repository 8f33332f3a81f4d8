"""The brokers of a run: started here or only named, the front and the backends of a bridge too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.brokers.endpoints import Endpoint, parse_broker
from loadgen.errors import ScenarioError
from loadgen.workload.workload import Bridge, Brokers

if TYPE_CHECKING:
    from loadgen.brokers.bridge import Route
    from loadgen.brokers.process import BrokerProcess

_INSTRUMENTS = ("reflector", "sink")
"""Brokers of ours that keep nothing on disk."""


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """The broker of a run: where it is and what is known of it.

    `version` is "unknown" until it was asked. `brokers` are those that were started here; their
    processes change when one is killed and started again.
    """

    name: str
    version: str
    endpoints: tuple[Endpoint, ...]
    brokers: tuple["BrokerProcess", ...] = ()

    @property
    def started_by_us(self) -> bool:
        return bool(self.brokers)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self.brokers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords that no file may have."""
        return tuple(endpoint.password for endpoint in self.endpoints if endpoint.password)


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
        yield ServedBroker(served.name, served.version, served.endpoints, tuple(served.brokers))


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
        yield ServedBroker(
            served.front.name,
            served.front.version,
            tuple(one.endpoints[0] for one in served.brokers),
            served.brokers,
        )


def routes(bridge: Bridge) -> "tuple[Route, ...]":
    """What the front forwards, a route a topic."""
    from loadgen.brokers.bridge import routes_of

    return routes_of(bridge.backends, bridge.topics, bridge.front_root, bridge.backend_root)
