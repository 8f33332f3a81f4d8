"""What a broker can do, asked before any load is put on it."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.brokers.client import PacketStream, client_identifier, shown
from loadgen.brokers.door import KEEP_ALIVE_S, REACH_S, WRONG_VERSION, Knock, knocked, refusal
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from loadgen.mqtt.properties import Properties

_VERSION_TOPICS: Final = (
    "$SYS/broker/version",
    # One of each node, and the product's name beside it.
    "$SYS/brokers/+/version",
    "$SYS/brokers/+/sysdescr",
)
_MAX_VERSION_CHARACTERS: Final = 200
_ANSWER_S: Final = 1.0
_RETAINED_S: Final = 0.3
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker said about itself.

    `versions` are the protocol versions it accepted a connection with (3 is MQTT 3.1, 4 is 3.1.1),
    of those that it was asked for. The others are from its MQTT 5 CONNACK (section 3.2.2.3), the
    specification's defaults where it was silent, and None where it does not speak MQTT 5. `version`
    is what it publishes of itself, escaped, at most 200 characters; "unknown" if nothing.
    """

    endpoint: Endpoint
    version: str
    versions: tuple[int, ...]
    receive_maximum: int | None
    maximum_qos: int | None
    maximum_packet_size_bytes: int | None
    topic_alias_maximum: int | None
    server_keep_alive_s: int | None
    retain_available: bool | None
    wildcard_subscription_available: bool | None
    subscription_identifier_available: bool | None
    shared_subscription_available: bool | None


async def probe(
    endpoint: Endpoint,
    *,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = REACH_S,
    older: tuple[int, ...] = (MQTT_3_1_1,),
) -> BrokerFacts:
    """Connect with MQTT 5 and each `older` version and gather what the broker says.

    `tls_context` is used for mqtts and wss (the system's trust when None). Raises
    BrokerUnreachableError when nothing answers within `timeout_s`, BrokerRefusedError when
    something else than a broker does, or the broker does not want this client.
    """
    knocks = tuple(
        Knock(endpoint, connect_of(endpoint, version), tls_context) for version in (MQTT_5, *older)
    )
    try:
        await knocked(knocks, timeout_s)
        spoken = [knock for knock in knocks if knock.connack and not knock.connack.reason_code]
        if not spoken:
            raise _unwelcome(knocks)
        version = UNKNOWN
        for knock in spoken:
            assert knock.stream is not None and knock.connack is not None
            if version == UNKNOWN:
                version = await stated_version(knock.stream, knock.connack)
            knock.stream.send(Disconnect())
    finally:
        for knock in knocks:
            await knock.close()
    said = knocks[0].connack.properties if knocks[0] in spoken and knocks[0].connack else None
    versions = tuple(sorted(knock.packet.protocol_version for knock in spoken))

    def number(value: int | None, silent: int | None = None) -> int | None:
        return None if said is None else silent if value is None else value

    def flag(value: int | None) -> bool | None:
        return None if said is None else value != 0

    properties = said or Properties()
    return BrokerFacts(
        endpoint=endpoint,
        version=version,
        versions=versions,
        receive_maximum=number(properties.receive_maximum, 65535),
        maximum_qos=number(properties.maximum_qos, 2),
        maximum_packet_size_bytes=number(properties.maximum_packet_size),
        topic_alias_maximum=number(properties.topic_alias_maximum, 0),
        server_keep_alive_s=number(properties.server_keep_alive),
        retain_available=flag(properties.retain_available),
        wildcard_subscription_available=flag(properties.wildcard_subscription_available),
        subscription_identifier_available=flag(properties.subscription_identifier_available),
        shared_subscription_available=flag(properties.shared_subscription_available),
    )


def connect_of(endpoint: Endpoint, version: int) -> Connect:
    """CONNECT of a client of ours with the endpoint's login."""
    return Connect(
        client_identifier("probe"),
        version,
        keep_alive=KEEP_ALIVE_S,
        user_name=endpoint.username,
        password=None if endpoint.password is None else endpoint.password.encode(),
    )


def _unwelcome(knocks: Sequence[Knock]) -> Exception:
    """The error of a port where no version of MQTT was accepted."""
    for knock in knocks:
        if knock.connack is not None and knock.connack.reason_code not in WRONG_VERSION:
            return refusal(knock.endpoint, knock.connack, knock.packet.protocol_version)
    for knock in knocks:
        if knock.connack is not None:
            return refusal(knock.endpoint, knock.connack, knock.packet.protocol_version)
    assert knocks[0].error is not None
    return knocks[0].error


async def stated_version(stream: PacketStream, connack: ConnAck) -> str:
    """What the broker says of its version in CONNACK or publishes of it; "unknown" for nothing."""
    for name, value in connack.properties.user_property:
        if "version" in name.lower() and value.strip():
            return shown_version(value.encode())
    asked = tuple(Subscription(topic) for topic in _VERSION_TOPICS)
    stream.send(Subscribe(1, asked))
    told: dict[str, str] = {}
    try:
        async with asyncio.timeout(_ANSWER_S) as limit:
            while len(told) < 2:
                packet = await stream.receive()
                if isinstance(packet, SubAck):
                    # Retained messages come at once, or never.
                    limit.reschedule(asyncio.get_running_loop().time() + _RETAINED_S)
                elif isinstance(packet, Publish) and packet.payload:
                    what = packet.topic_name.rpartition("/")[2]
                    told.setdefault(what, shown_version(packet.payload))
                    if packet.topic_name == _VERSION_TOPICS[0]:
                        break
    except (TimeoutError, OSError, RemoteProtocolError):
        pass
    return " ".join(told[what] for what in ("sysdescr", "version") if what in told) or UNKNOWN


def shown_version(payload: bytes) -> str:
    """What a broker says of itself, printable ASCII, at most 200 characters; or "unknown"."""
    return shown(payload, _MAX_VERSION_CHARACTERS) or UNKNOWN
