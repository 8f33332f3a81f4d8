"""Whether a broker has shared subscriptions, asked and then tried before any load."""

import asyncio
import contextlib
import ssl
from typing import Final

import aiomqtt

from loadgen.brokers.client import client_identifier, mqtt_client
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.probe import probe
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.constants import MQTT_5

_MESSAGES: Final = 4
_WAIT_S: Final = 2.0
_SETTLE_S: Final = 0.05
_LACKS: Final = "which queue needs; take another broker, or fanout with --ratio 1"


async def require_shared(
    endpoint: Endpoint, *, tls_context: ssl.SSLContext | None = None, lacks: str = _LACKS
) -> None:
    """Return where two consumers of a shared subscription get each message once between them.

    Brokers without the feature say so in CONNACK (MQTT 5, 3.2.2.3.13), refuse the subscription
    (0x9E), or take `$share/...` for a topic like any other. Raises BrokerRefusedError, one line,
    and what `probe` raises.
    """
    where = endpoint.redacted
    facts = await probe(endpoint, tls_context=tls_context)
    if MQTT_5 not in facts.versions:
        raise BrokerRefusedError(
            f"{where} does not speak MQTT 5 and so promises no shared subscriptions, {lacks}"
        )
    if facts.shared_subscription_available is False:
        raise BrokerRefusedError(f"{where} says that it has no shared subscriptions, {lacks}")
    try:
        copies = await _copies(endpoint, tls_context)
    except (aiomqtt.MqttError, OSError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise BrokerRefusedError(
            f"{where} refused a shared subscription, {lacks}: {reason}"
        ) from None
    if copies != _MESSAGES:
        raise BrokerRefusedError(
            f"{where} has no shared subscriptions, {lacks}: of {_MESSAGES} messages two consumers "
            f"got {copies}"
        )


async def _copies(endpoint: Endpoint, tls_context: ssl.SSLContext | None) -> int:
    """How many messages two consumers of one shared subscription get of `_MESSAGES` sent."""
    name = client_identifier("share")
    async with contextlib.AsyncExitStack() as stack:
        sender, *consumers = [
            await stack.enter_async_context(
                mqtt_client(
                    endpoint, "probe", version=MQTT_5, tls_context=tls_context, timeout_s=_WAIT_S
                )
            )
            for _ in range(3)
        ]
        for consumer in consumers:
            codes = await consumer.subscribe(f"$share/{name}/{name}", qos=1)
            if any(getattr(code, "is_failure", False) for code in codes):
                raise aiomqtt.MqttError(f"SUBACK {codes[0]}")
        for _ in range(_MESSAGES):
            await sender.publish(name, b"?", qos=1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                while sum(len(consumer.messages) for consumer in consumers) < _MESSAGES:
                    await asyncio.sleep(_SETTLE_S)
        # A broker that hands every message to both shows by what comes beyond.
        await asyncio.sleep(_SETTLE_S)
        return sum(len(consumer.messages) for consumer in consumers)
