"""What a broker can do, asked through aiomqtt before any load is put on it."""

import asyncio
import contextlib
import logging
import os
import ssl
import uuid
from dataclasses import dataclass
from typing import Any, Final

import aiomqtt
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode, reason_name

__all__ = ["BrokerFacts", "probe"]

_VERSION_TOPIC: Final = "$SYS/broker/version"
_MAX_VERSION_CHARACTERS: Final = 200
_REACH_TIMEOUT_S: Final = 5.0
_VERSION_TIMEOUT_S: Final = 1.0
_UNKNOWN: Final = "unknown"

# With these a broker says that it does not speak the version, not that it does not want us.
_WRONG_VERSION: Final = {
    MQTT_5: (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
    MQTT_3_1_1: (ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,),
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


class _Client(aiomqtt.Client):
    """aiomqtt keeps the CONNACK properties to itself; this keeps them for us."""

    connack: Any = None

    def _on_connect(
        self, client: Any, userdata: Any, flags: Any, reason_code: Any, properties: Any = None
    ) -> None:
        self.connack = properties
        super()._on_connect(client, userdata, flags, reason_code, properties)


async def probe(
    endpoint: Endpoint,
    *,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = _REACH_TIMEOUT_S,
) -> BrokerFacts:
    """Connect with MQTT 5 and 3.1.1 and gather what the broker says.

    `tls_context` is used for mqtts and wss (the system's trust when None). Raises
    BrokerUnreachableError when nothing answers within `timeout_s`, BrokerRefusedError when the
    broker does not want this client.
    """
    if endpoint.tls and tls_context is None:
        tls_context = ssl.create_default_context()
    await _reach(endpoint, tls_context, timeout_s)
    five, said = await _ask(endpoint, MQTT_5, tls_context, timeout_s)
    three, said_3 = await _ask(endpoint, MQTT_3_1_1, tls_context, timeout_s)
    versions = tuple(v for v, spoken in ((MQTT_3_1_1, three), (MQTT_5, five)) if spoken is not None)
    if not versions:
        raise BrokerRefusedError(
            f"{endpoint.redacted} accepted neither MQTT 5 nor 3.1.1; is it an MQTT port?"
        )

    def number(name: str, silent: int | None) -> int | None:
        return None if five is None else five.get(name, silent)

    def flag(name: str) -> bool | None:
        value = number(name, 1)
        return None if value is None else bool(value)

    return BrokerFacts(
        endpoint=endpoint,
        version=said if said != _UNKNOWN else said_3,
        versions=versions,
        receive_maximum=number("ReceiveMaximum", 65535),
        maximum_qos=number("MaximumQoS", 2),
        maximum_packet_size_bytes=number("MaximumPacketSize", None),
        topic_alias_maximum=number("TopicAliasMaximum", 0),
        server_keep_alive_s=number("ServerKeepAlive", None),
        retain_available=flag("RetainAvailable"),
        wildcard_subscription_available=flag("WildcardSubscriptionAvailable"),
        subscription_identifier_available=flag("SubscriptionIdentifierAvailable"),
        shared_subscription_available=flag("SharedSubscriptionAvailable"),
    )


async def _reach(endpoint: Endpoint, tls_context: ssl.SSLContext | None, timeout_s: float) -> None:
    # paho connects in a thread that cannot be cancelled, and leaks the socket of a TLS handshake
    # that fails; so it is asked only once this has gone well.
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(
                endpoint.host,
                endpoint.port,
                ssl=tls_context if endpoint.tls else None,
                server_hostname=endpoint.host if endpoint.tls else None,
            )
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except ssl.SSLError as error:
        detail = getattr(error, "verify_message", "") or error.reason or "the handshake failed"
        raise BrokerUnreachableError(
            f"no TLS connection to {endpoint.redacted}: {detail}; check the certificate, or give "
            "its authority"
        ) from None
    except OSError as error:
        # asyncio says where it called, not what came of it; names that do not resolve have
        # negative numbers and say it themselves.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or "cannot be reached"
        reason = reason.lower()
    else:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return
    raise BrokerUnreachableError(
        f"no broker at {endpoint.redacted}: {reason}; is it running, and is the port right?"
    )


async def _ask(
    endpoint: Endpoint, version: int, tls_context: ssl.SSLContext | None, timeout_s: float
) -> tuple[dict[str, int] | None, str]:
    """CONNACK properties by paho's names (None: version not spoken), and the stated version."""
    client = _Client(
        endpoint.host,
        endpoint.port,
        username=endpoint.username,
        password=endpoint.password,
        identifier=f"loadgen-probe-{uuid.uuid4().hex[:8]}",
        protocol=aiomqtt.ProtocolVersion(version),
        transport="websockets" if endpoint.websocket else "tcp",
        websocket_path=endpoint.path if endpoint.websocket else None,
        tls_context=tls_context if endpoint.tls else None,
        timeout=timeout_s,
        keepalive=max(1, round(timeout_s)),
        logger=_SILENT,
    )
    try:
        async with client:
            found = dict(client.connack.json()) if client.connack is not None else {}
            numbers = {name: value for name, value in found.items() if isinstance(value, int)}
            return numbers, await _stated_version(client)
    except aiomqtt.exceptions.MqttConnectError as error:
        code = error.rc.value if isinstance(error.rc, PahoReasonCode) else int(error.rc or 0)
        if code in _WRONG_VERSION[version]:
            return None, _UNKNOWN
        raise BrokerRefusedError(
            f"{endpoint.redacted} refused the connection: {_refusal(code, version)}; "
            "check user and password, and what the broker allows"
        ) from None
    except (ssl.SSLError, aiomqtt.MqttError):
        # Some brokers simply close, or say nothing, when they do not know the version.
        return None, _UNKNOWN
    finally:
        _close_socket(client)


def _refusal(code: int, version: int) -> str:
    # paho shows a 3.1.1 return code as the MQTT 5 code of the same meaning.
    return reason_name(code, version if code < 0x80 else MQTT_5)


async def _stated_version(client: aiomqtt.Client) -> str:
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT_S):
            await client.subscribe(_VERSION_TOPIC)
            async for message in client.messages:
                payload = message.payload
                if isinstance(payload, bytes | bytearray) and payload:
                    return shown_version(bytes(payload))
    except (TimeoutError, aiomqtt.MqttError):
        pass
    return _UNKNOWN


def shown_version(payload: bytes) -> str:
    """What a broker says of itself, printable ASCII, at most 200 characters; or "unknown"."""
    text = payload[: 4 * _MAX_VERSION_CHARACTERS].decode("utf-8", "replace").strip()
    return ascii(text)[1:-1][:_MAX_VERSION_CHARACTERS] or _UNKNOWN


def _close_socket(client: aiomqtt.Client) -> None:
    # A refused or silent connection is left open by aiomqtt until it is collected.
    inner = client._client
    with contextlib.suppress(Exception):
        if inner.socket() is not None:
            inner._sock_close()


_SILENT: Final = logging.getLogger("loadgen.brokers.probe.paho")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
