"""A front broker that forwards to backends: started here from Mosquittos, or only checked."""

import contextlib
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from loadgen.brokers.ask import connect_of
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import default_memory_limit_bytes, run_mosquitto
from loadgen.brokers.process import ProgramSettings, ServedBroker
from loadgen.brokers.rehearsal import ClientPool, PoolClient
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.packets import Publish
from loadgen.sentences import BROKER_TEXT, listed

FORWARD_TIMEOUT_S: Final = 10.0
"""A bridge that connects later is not set up, or cannot reach its backend."""
_AGAIN_S: Final = 0.25
_RESTART_S: Final = 1
_MAX_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Route:
    """A topic of the front, and its name at the backend with this number (from 0)."""

    backend: int
    front_topic: str
    backend_topic: str


def routes_of(backends: int, topics: int, front_root: str, backend_root: str) -> tuple[Route, ...]:
    """Return a route a topic: `FRONT_ROOT/B/T` to `BACKEND_ROOT/B/T`, B from 1, T from 0 on."""
    return tuple(
        Route(number, f"{front_root}/{number + 1}/{topic}", f"{backend_root}/{number + 1}/{topic}")
        for number in range(backends)
        for topic in range(topics)
    )


def bridge_lines(
    routes: Sequence[Route], backends: Sequence[Endpoint], qos: int
) -> tuple[str, ...]:
    """Return the lines of mosquitto.conf for these routes, one connection for each backend."""
    lines: list[str] = []
    for number, endpoint in enumerate(backends):
        lines += [
            f"connection loadgen-{number + 1}",
            f"address {endpoint.host}:{endpoint.port}",
            f"remote_clientid loadgen-bridge-{number + 1}",
            # A session of the bridge outlives a lost connection: with QoS 1 and 2 its queue stays.
            f"cleansession {'false' if qos else 'true'}",
            "bridge_protocol_version mqttv311",
            "start_type automatic",
            f"restart_timeout {_RESTART_S}",
            "notifications false",
        ]
        for route in routes:
            if route.backend == number:
                # Mosquitto maps prefixes: the last level is the same on both sides.
                front, _, level = route.front_topic.rpartition("/")
                back = route.backend_topic.rpartition("/")[0]
                lines.append(f"topic {level} out {qos} {front}/ {back}/")
    return tuple(lines)


@contextlib.asynccontextmanager
async def serve_bridge(
    routes: Sequence[Route], backends: int, qos: int, *, persistence: bool = False
) -> AsyncIterator[ServedBroker]:
    """Run a front Mosquitto that forwards these routes to private backends, for the block.

    The front is the first of its brokers. With `persistence` all keep their sessions on disk. Raise
    CannotRunError, or BrokerRefusedError for a route that does not forward.
    """
    settings = ProgramSettings(
        persistence=persistence,
        memory_limit_bytes=default_memory_limit_bytes(backends + 1),
    )
    async with contextlib.AsyncExitStack() as stack:
        behind = [await stack.enter_async_context(run_mosquitto(settings)) for _ in range(backends)]
        lines = bridge_lines(routes, [broker.endpoints[0] for broker in behind], qos)
        front = await stack.enter_async_context(run_mosquitto(replace(settings, more_lines=lines)))
        brokers = (front, *behind)
        where = tuple(broker.endpoints[0] for broker in brokers)
        yield ServedBroker(front.name, front.version, where, brokers)


async def require_forwarding(
    fronts: Sequence[Endpoint],
    backends: Sequence[Endpoint],
    routes: Sequence[Route],
    *,
    version: int = 4,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = FORWARD_TIMEOUT_S,
) -> None:
    """Send a message along every route, from each front, until all have arrived.

    Raise BrokerRefusedError with a route that forwards nothing, and the errors of `ask`.
    """
    for front in fronts:
        token = f"loadgen-route-{uuid.uuid4().hex[:12]}".encode()
        missing = {(route.backend, route.backend_topic): route for route in routes}
        async with ClientPool(tls_context) as pool:
            sender, *receivers = [
                await pool.join(broker, connect_of(broker, version))
                for broker in (front, *backends)
            ]
            for number, receiver in enumerate(receivers):
                topics = [route.backend_topic for route in routes if route.backend == number]
                await pool.subscribed(receiver, topics, 1, timeout_s)
            end_s = time.monotonic() + timeout_s
            while missing and time.monotonic() < end_s:
                for route in missing.values():
                    sender.publish(Publish(route.front_topic, token))
                await pool.until(partial(_all_arrived, receivers, token, missing), _AGAIN_S)
        if missing:
            shown = [
                f"{one.front_topic} to {backends[one.backend].redacted} as {one.backend_topic}"
                for one in missing.values()
            ]
            routes_shown = listed(shown, _MAX_SHOWN, "more topics")
            message = BROKER_TEXT.NOT_FORWARDED(where=front.redacted, routes=routes_shown)
            raise BrokerRefusedError(message)


def _all_arrived(
    receivers: Sequence[PoolClient], token: bytes, missing: dict[tuple[int, str], Route]
) -> bool:
    """Remove the routes of received messages from `missing`; return True if none is left."""
    for number, receiver in enumerate(receivers):
        for message in receiver.inbox:
            if message.payload == token:
                missing.pop((number, message.topic_name), None)
    return not missing
