"""What a broker says of itself: the versions of MQTT that it speaks, its CONNACK, its name."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadgen.brokers.client import PacketStream, client_identifier, shown
from loadgen.brokers.door import (
    KEEP_ALIVE_S,
    REACH_S,
    WRONG_VERSION,
    Knock,
    admitted,
    knocked,
    refusal,
)
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import CannotRunError, RemoteProtocolError
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
class Greeting:
    """How a broker answered CONNECT.

    `versions` are the protocol versions with which it took a connection (3 is MQTT 3.1, 4 is
    3.1.1), of those that it was asked for. `said` are the properties of its MQTT 5 CONNACK (section
    3.2.2.3), None where it does not speak MQTT 5. `answered_s` is how long its answer took, with
    all that comes before it.
    """

    endpoint: Endpoint
    connect: Connect
    versions: tuple[int, ...]
    said: Properties | None
    answered_s: float

    @property
    def newest(self) -> Connect:
        """CONNECT with the newest version that it speaks."""
        return replace(self.connect, protocol_version=self.versions[-1])


async def greet(
    endpoint: Endpoint,
    *,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = REACH_S,
    versions: Sequence[int] = (MQTT_5, MQTT_3_1_1),
    login: Connect | None = None,
) -> Greeting:
    """Connect with each of these versions, with the endpoint's user or that of `login`.

    `tls_context` is used for mqtts and wss (the system's trust when None). Raises
    BrokerUnreachableError when nothing answers within `timeout_s`, BrokerRefusedError when
    something else than a broker does, or the broker does not want this client.
    """
    asking = connect_of(endpoint, MQTT_5)
    if login is not None:
        asking = replace(asking, user_name=login.user_name, password=login.password)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    knocks = [
        Knock(
            endpoint,
            # A broker ends a client's connection when another comes by its name.
            replace(asking, client_id=client_identifier("probe"), protocol_version=version),
            tls_context,
        )
        for version in versions
    ]
    async with contextlib.AsyncExitStack() as stack:
        for knock in knocks:
            stack.push_async_callback(knock.close)
        await knocked(knocks, timeout_s)
        answered_s = loop.time() - begun_s
        spoken = [knock for knock in knocks if knock.connack and not knock.connack.reason_code]
        if not spoken:
            raise _unwelcome(knocks)
        for knock in spoken:
            assert knock.stream is not None
            knock.stream.send(Disconnect())
    said = [
        knock.connack.properties
        for knock in spoken
        if knock.packet.protocol_version == MQTT_5 and knock.connack
    ]
    return Greeting(
        endpoint=endpoint,
        connect=asking,
        versions=tuple(sorted(knock.packet.protocol_version for knock in spoken)),
        said=said[0] if said else None,
        answered_s=answered_s,
    )


async def version_of(
    endpoint: Endpoint, connect: Connect, tls_context: ssl.SSLContext | None = None
) -> str:
    """What the broker says of its version, with the version and the login of `connect`.

    Asked on a connection of its own: some brokers end one that asks for $SYS.
    """
    asking = replace(
        connect_of(endpoint, connect.protocol_version),
        user_name=connect.user_name,
        password=connect.password,
    )
    try:
        stream, connack = await admitted(endpoint, asking, tls_context)
    except CannotRunError:
        return UNKNOWN
    try:
        return await stated_version(stream, connack)
    finally:
        await stream.close()


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
