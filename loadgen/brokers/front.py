"""A front broker that forwards to backends: started here from Mosquittos, or only checked."""

import contextlib
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from loadgen.brokers.ask import connect_of
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import default_memory_limit_bytes, run_mosquitto
from loadgen.brokers.process import ProgramSettings, ServedBroker
from loadgen.brokers.rehearsal import ClientPool
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.packets import Publish
from loadgen.plan.plan import Bridge
from loadgen.sentences import BROKER_TEXT, listed

FORWARD_TIMEOUT_S: Final = 10.0
"""A bridge that connects later is not set up, or cannot reach its backend."""
_AGAIN_S: Final = 0.25
_RESTART_S: Final = 1
_MAX_SHOWN: Final = 3


def bridge_lines(bridge: Bridge, backends: Sequence[Endpoint]) -> tuple[str, ...]:
    """Return the lines of mosquitto.conf for a bridge, one connection for each backend."""
    lines: list[str] = []
    for number, endpoint in enumerate(backends, start=1):
        lines += [
            f"connection loadgen-{number}",
            f"address {endpoint.host}:{endpoint.port}",
            f"remote_clientid loadgen-bridge-{number}",
            # A session of the bridge outlives a lost connection: with QoS 1 and 2 its queue stays.
            f"cleansession {'false' if bridge.qos else 'true'}",
            "bridge_protocol_version mqttv311",
            "start_type automatic",
            f"restart_timeout {_RESTART_S}",
            "notifications false",
        ]
        # Mosquitto maps prefixes: the last level is the same on both sides.
        prefixes = f"{bridge.front_root}/{number}/ {bridge.backend_root}/{number}/"
        lines += (f"topic {topic} out {bridge.qos} {prefixes}" for topic in range(bridge.topics))
    return tuple(lines)


@contextlib.asynccontextmanager
async def serve_bridge(bridge: Bridge) -> AsyncIterator[ServedBroker]:
    """Run a front Mosquitto that forwards to private backends, for the block.

    The front is the first of its brokers. If the bridge is durable, all keep their sessions on
    disk. Raise CannotRunError if one cannot be started.
    """
    settings = ProgramSettings(
        persistence=bridge.durable,
        memory_limit_bytes=default_memory_limit_bytes(bridge.backends + 1),
    )
    async with contextlib.AsyncExitStack() as stack:
        behind = [
            await stack.enter_async_context(run_mosquitto(settings)) for _ in range(bridge.backends)
        ]
        lines = bridge_lines(bridge, [broker.endpoints[0] for broker in behind])
        front = await stack.enter_async_context(run_mosquitto(replace(settings, more_lines=lines)))
        brokers = (front, *behind)
        where = tuple(broker.endpoints[0] for broker in brokers)
        yield ServedBroker(front.name, front.version, where, brokers)


async def require_forwarding(
    front: Endpoint,
    backends: Sequence[Endpoint],
    bridge: Bridge,
    *,
    version: int = 4,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = FORWARD_TIMEOUT_S,
) -> None:
    """Send a message on every topic of the bridge until all have arrived at their backends.

    Raise BrokerRefusedError with a topic that is not forwarded, and the errors of `ask`.
    """
    token = f"loadgen-route-{uuid.uuid4().hex[:12]}".encode()
    # By the name of each topic at its backend: the name at the front, and the backend.
    missing = {
        f"{bridge.backend_root}/{number}/{topic}": (f"{bridge.front_root}/{number}/{topic}", where)
        for number, where in enumerate(backends, start=1)
        for topic in range(bridge.topics)
    }
    async with ClientPool(tls_context) as pool:
        sender, *receivers = [
            await pool.join(broker, connect_of(broker, version)) for broker in (front, *backends)
        ]
        for number, receiver in enumerate(receivers, start=1):
            topics = [f"{bridge.backend_root}/{number}/{topic}" for topic in range(bridge.topics)]
            await pool.subscribed(receiver, topics, 1, timeout_s)

        def have_arrived() -> bool:
            for message in chain.from_iterable(receiver.inbox for receiver in receivers):
                if message.payload == token:
                    missing.pop(message.topic_name, None)
            return not missing

        end_s = time.monotonic() + timeout_s
        while missing and time.monotonic() < end_s:
            for front_topic, _ in missing.values():
                sender.publish(Publish(front_topic, token))
            await pool.until(have_arrived, _AGAIN_S)
    if missing:
        shown = [f"{sent} to {at.redacted} as {topic}" for topic, (sent, at) in missing.items()]
        routes = listed(shown, _MAX_SHOWN, "more topics")
        raise BrokerRefusedError(BROKER_TEXT.NOT_FORWARDED(where=front.redacted, routes=routes))
