"""What a broker can do, asked before any load is put on it."""

import asyncio
import contextlib
import os
import ssl
from dataclasses import dataclass, replace
from typing import Final

from loadgen.brokers.client import PacketStream, client_identifier, packet_stream, shown
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError, RemoteProtocolError
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.packets import ConnAck, Connect, Disconnect, Publish, Subscribe, Subscription
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode, is_failure, reason_name

_VERSION_TOPIC: Final = "$SYS/broker/version"
_MAX_VERSION_CHARACTERS: Final = 200
_REACH_TIMEOUT_S: Final = 5.0
_VERSION_TIMEOUT_S: Final = 1.0
_KEEP_ALIVE_S: Final = 60
_UNKNOWN: Final = "unknown"

# With these a broker says that it does not speak the version, not that it does not want us.
_WRONG_VERSION: Final = (
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
)
_LOGIN: Final = "check user and password, and what the broker allows"
_LATER: Final = "try again when the broker is ready"
# What to do about a refusal.
_WAYS: Final[dict[int, str]] = {
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: _LOGIN,
    ReasonCode.NOT_AUTHORIZED: _LOGIN,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: _LOGIN,
    ConnectReturnCode.NOT_AUTHORIZED: _LOGIN,
    ReasonCode.SERVER_UNAVAILABLE: _LATER,
    ReasonCode.SERVER_BUSY: _LATER,
    ConnectReturnCode.SERVER_UNAVAILABLE: _LATER,
}


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker said about itself.

    `versions` are the protocol versions it accepted a connection with (4 is MQTT 3.1.1). The
    others are from its MQTT 5 CONNACK (section 3.2.2.3), the specification's defaults where it was
    silent, and None where it does not speak MQTT 5. `version` is what it publishes of itself,
    escaped, at most 200 characters; "unknown" if nothing.
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


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of one CONNECT: the CONNACK's properties, or why the version is not spoken."""

    properties: Properties | None = None
    version: str = _UNKNOWN
    cause: str = ""


async def probe(
    endpoint: Endpoint,
    *,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = _REACH_TIMEOUT_S,
) -> BrokerFacts:
    """Connect with MQTT 5 and 3.1.1 and gather what the broker says.

    `tls_context` is used for mqtts and wss (the system's trust when None). Raises
    BrokerUnreachableError when nothing answers within `timeout_s`, BrokerRefusedError when the
    broker does not want this client. Each connection has `timeout_s` to be made, whatever the
    peer sends meanwhile.
    """
    five = await _ask(endpoint, MQTT_5, tls_context, timeout_s)
    try:
        three = await _ask(endpoint, MQTT_3_1_1, tls_context, timeout_s)
    except BrokerUnreachableError as error:
        # It was there a moment ago.
        three = _Answer(cause=str(error))
    spoken = ((MQTT_3_1_1, three.properties), (MQTT_5, five.properties))
    versions = tuple(version for version, properties in spoken if properties is not None)
    if not versions:
        raise BrokerRefusedError(
            f"{endpoint.redacted} accepted neither MQTT 5 nor 3.1.1 ({three.cause}); is it an MQTT "
            "port?"
        )
    said = five.properties

    def number(value: int | None, silent: int | None = None) -> int | None:
        return None if said is None else silent if value is None else value

    def flag(value: int | None) -> bool | None:
        return None if said is None else value != 0

    properties = said or Properties()
    return BrokerFacts(
        endpoint=endpoint,
        version=five.version if five.version != _UNKNOWN else three.version,
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


async def _ask(
    endpoint: Endpoint, version: int, tls_context: ssl.SSLContext | None, timeout_s: float
) -> _Answer:
    connected = False
    try:
        async with asyncio.timeout(timeout_s) as limit:
            async with packet_stream(endpoint, version, tls_context) as stream:
                connected = True
                connack = await _connect(stream, endpoint)
                if not connack.reason_code:
                    limit.reschedule(None)
                    stated = await _stated_version(stream)
                    stream.send(Disconnect())
                    return _Answer(connack.properties, stated)
    except TimeoutError:
        cause = f"no answer within {timeout_s:g} s"
    except ssl.SSLError as error:
        detail = getattr(error, "verify_message", "") or error.reason or "the handshake failed"
        raise BrokerUnreachableError(
            f"no TLS connection to {endpoint.redacted}: {detail}; check the certificate, or give "
            "its authority"
        ) from None
    except OSError as error:
        if endpoint.tls and isinstance(error, ConnectionError):
            await _hear_tls_alert(endpoint, tls_context, timeout_s)
        # asyncio says where it called, not what came of it; names that do not resolve have
        # negative numbers and say it themselves.
        number = error.errno or 0
        cause = os.strerror(number) if number > 0 else error.strerror or "cannot be reached"
        cause = str(error) if connected and not number else cause.lower()
    except RemoteProtocolError as error:
        cause = str(error)
    else:
        code = connack.reason_code
        # The return code of an older broker comes also as the answer to MQTT 5.
        refusal = reason_name(code, MQTT_5 if is_failure(code) else MQTT_3_1_1)
        if code not in _WRONG_VERSION:
            raise BrokerRefusedError(
                f"{endpoint.redacted} refused the connection: {refusal}; "
                f"{_WAYS.get(code, 'check what the broker allows')}"
            )
        cause = refusal
    if not connected:
        raise BrokerUnreachableError(
            f"no broker at {endpoint.redacted}: {cause}; is it running, and is the port right?"
        )
    # Some brokers simply close, or say nothing, when they do not know the version.
    return _Answer(cause=shown(cause))


async def _connect(stream: PacketStream, endpoint: Endpoint) -> ConnAck:
    password = None if endpoint.password is None else endpoint.password.encode()
    stream.send(
        Connect(
            client_identifier("probe"),
            stream.version,
            keep_alive=_KEEP_ALIVE_S,
            user_name=endpoint.username,
            password=password,
        )
    )
    answer = await stream.receive()
    if not isinstance(answer, ConnAck):
        raise RemoteProtocolError(f"{type(answer).__name__} came instead of CONNACK")
    return answer


async def _stated_version(stream: PacketStream) -> str:
    stream.send(Subscribe(1, (Subscription(_VERSION_TOPIC),)))
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT_S):
            while True:
                packet = await stream.receive()
                if isinstance(packet, Publish) and packet.payload:
                    return shown_version(packet.payload)
    except (TimeoutError, OSError, RemoteProtocolError):
        return _UNKNOWN


async def _hear_tls_alert(
    endpoint: Endpoint, tls_context: ssl.SSLContext | None, timeout_s: float
) -> None:
    """Connect and send nothing: data that meets a closed socket takes the peer's alert along.

    Raises BrokerRefusedError when there is an alert.
    """
    silent = replace(endpoint, scheme="mqtts")
    with contextlib.suppress(OSError, RemoteProtocolError):
        async with (
            asyncio.timeout(timeout_s),
            packet_stream(silent, MQTT_5, tls_context) as stream,
        ):
            await stream.receive()


def shown_version(payload: bytes) -> str:
    """What a broker says of itself, printable ASCII, at most 200 characters; or "unknown"."""
    return shown(payload, _MAX_VERSION_CHARACTERS) or _UNKNOWN
