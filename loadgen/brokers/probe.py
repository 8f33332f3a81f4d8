"""What a broker can do, asked through aiomqtt before any load is put on it."""

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import aiomqtt
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode, reason_name

_VERSION_TOPIC: Final = "$SYS/broker/version"
_MAX_VERSION_CHARACTERS: Final = 200
_REACH_TIMEOUT_S: Final = 5.0
_VERSION_TIMEOUT_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 1.0
_UNKNOWN: Final = "unknown"
_MAX_CAUSE_CHARACTERS: Final = 120
_MAX_UPGRADE_BYTES: Final = 16 << 10
_WEBSOCKET_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

# With these a broker says that it does not speak the version, not that it does not want us.
_WRONG_VERSION: Final = {
    MQTT_5: (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
    MQTT_3_1_1: (
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ),
}
# 3.1.1 return codes are shown by paho as the MQTT 5 codes of the same meaning.
_WRONG_LOGIN: Final = (
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD,
    ConnectReturnCode.NOT_AUTHORIZED,
)
_UNAVAILABLE: Final = (
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_BUSY,
    ConnectReturnCode.SERVER_UNAVAILABLE,
)


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


class _Failures(logging.Handler):
    """Keeps what paho only logs: why a connection ended."""

    cause: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        for value in record.args if isinstance(record.args, tuple) else ():
            if isinstance(value, BaseException):
                self.cause = value


class _Client(aiomqtt.Client):
    """aiomqtt keeps the CONNACK properties to itself; this keeps them for us.

    It also lets go of a connection from outside: paho shakes hands in a thread that cannot be
    cancelled and reads without an end, so that a peer that never stops talking would hold it.
    """

    connack: Any = None

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.failures = _Failures()
        log = logging.Logger("loadgen.brokers.probe.paho")
        log.addHandler(self.failures)
        super().__init__(*args, logger=log, **settings)
        self._first: socket.socket | None = None
        self._spare: socket.socket | None = None
        self._let_go = False
        self._lock_of_spare = threading.Lock()
        self._connect_socket = self._client._create_socket_connection
        self._client._create_socket_connection = self._shared_socket  # type: ignore[method-assign]

    def _client_connect(self) -> None:
        try:
            super()._client_connect()
        except BaseException:
            # paho drops the socket of a handshake that fails.
            if self._first is not None:
                self._first.close()
            raise

    def _shared_socket(self) -> socket.socket:
        """A connected socket of which we keep a second descriptor."""
        self._first = connected = self._connect_socket()
        with self._lock_of_spare:
            if not self._let_go:
                self._spare = connected.dup()
                return connected
        connected.close()
        raise TimeoutError("no answer in time")

    def abort(self) -> None:
        """End the connection whoever is busy with it; from any thread, any number of times."""
        with self._lock_of_spare:
            self._let_go = True
            if self._spare is not None:
                with contextlib.suppress(OSError):
                    self._spare.shutdown(socket.SHUT_RDWR)
                self._spare.close()
                self._spare = None

    @contextlib.contextmanager
    def limited(self, seconds: float) -> Iterator[threading.Event]:
        """Abort after so long, by a thread since the loop itself may be held; then set."""
        passed = threading.Event()

        def late() -> None:
            passed.set()
            self.abort()

        timer = threading.Timer(seconds, late)
        timer.daemon = True
        timer.start()
        try:
            yield passed
        finally:
            timer.cancel()
            timer.join()

    def close(self) -> None:
        """Leave no socket and no unread exception behind."""
        self.abort()
        with contextlib.suppress(Exception):
            if self._client.socket() is not None:
                self._client._sock_close()
        for ended in (self._connected, self._disconnected):
            if ended.done() and not ended.cancelled():
                ended.exception()

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
    broker does not want this client. Each connection has `timeout_s` to be made, whatever the
    peer sends meanwhile.
    """
    if endpoint.tls and tls_context is None:
        tls_context = ssl.create_default_context()
    await _reach(endpoint, tls_context, timeout_s)
    five, said, _ = await _ask(endpoint, MQTT_5, tls_context, timeout_s)
    three, said_3, cause = await _ask(endpoint, MQTT_3_1_1, tls_context, timeout_s)
    versions = tuple(v for v, spoken in ((MQTT_3_1_1, three), (MQTT_5, five)) if spoken is not None)
    if not versions:
        raise BrokerRefusedError(
            f"{endpoint.redacted} accepted neither MQTT 5 nor 3.1.1 ({cause}); is it an MQTT port?"
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
    # paho connects in a thread that cannot be cancelled, leaks the socket of a TLS handshake that
    # fails, and does not tell an HTTP status; so it is asked only once this has gone well.
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                endpoint.host,
                endpoint.port,
                ssl=tls_context if endpoint.tls else None,
                server_hostname=endpoint.host if endpoint.tls else None,
                limit=_MAX_UPGRADE_BYTES,
            )
            if endpoint.websocket:
                await _upgrade(endpoint, reader, writer)
        return
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except ssl.SSLError as error:
        if writer is not None:
            raise _tls_refusal(endpoint, error) from None
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
    finally:
        if writer is not None:
            await _close(writer)
    raise BrokerUnreachableError(
        f"no broker at {endpoint.redacted}: {reason}; is it running, and is the port right?"
    )


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await writer.wait_closed()
    writer.transport.abort()


async def _upgrade(
    endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Ask for WebSocket once (RFC 6455, section 4.1) and say what a server has against it."""
    key = base64.b64encode(os.urandom(16))
    writer.write(
        f"GET {endpoint.path} HTTP/1.1\r\nHost: {endpoint.address}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key.decode()}\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
    )
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        fault = f"its answer has no end after {_MAX_UPGRADE_BYTES >> 10} KiB"
    except asyncio.IncompleteReadError as error:
        fault = "it closed the connection"
        if error.partial:
            fault += " after " + _bounded(error.partial.partition(b"\n")[0])
    else:
        fault = _upgrade_fault(answer, key)
    if fault:
        raise BrokerRefusedError(
            f"{endpoint.redacted} did not upgrade to WebSocket: {fault}; check the port, the path "
            "and what the server allows"
        )


def _upgrade_fault(answer: bytes, key: bytes) -> str:
    status, *lines = answer.split(b"\r\n")
    protocol, _, code = status.partition(b" ")
    if not protocol.startswith(b"HTTP/"):
        return f"it answered {_bounded(status)}"
    if code.split(b" ")[0] != b"101":
        return f"HTTP {_bounded(code)}"
    parted = (line.partition(b":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in parted}
    digest = hashlib.sha1(key + _WEBSOCKET_GUID, usedforsecurity=False).digest()
    if fields.get(b"sec-websocket-accept") != base64.b64encode(digest):
        return "its Sec-WebSocket-Accept does not fit the key"
    return ""


def _tls_refusal(endpoint: Endpoint, error: ssl.SSLError) -> BrokerRefusedError:
    # In TLS 1.3 a server judges our certificate after the handshake has ended for us.
    detail = _bounded((error.reason or "TLS failed").lower().replace("_", " "))
    return BrokerRefusedError(
        f"{endpoint.redacted} ended the TLS connection: {detail}; give the client certificate that "
        "it asks for"
    )


async def _ask(
    endpoint: Endpoint, version: int, tls_context: ssl.SSLContext | None, timeout_s: float
) -> tuple[dict[str, int] | None, str, str]:
    """CONNACK properties by paho's names, the stated version, and what went wrong.

    The first is None, and the last not empty, where the version is not spoken.
    """
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
    )
    passed = threading.Event()
    try:
        async with contextlib.AsyncExitStack() as stack:
            with client.limited(timeout_s) as passed:
                await stack.enter_async_context(client)
            stack.enter_context(client.limited(_VERSION_TIMEOUT_S + timeout_s))
            found = dict(client.connack.json()) if client.connack is not None else {}
            numbers = {name: value for name, value in found.items() if isinstance(value, int)}
            return numbers, await _stated_version(client), ""
    except aiomqtt.exceptions.MqttConnectError as error:
        code = error.rc.value if isinstance(error.rc, PahoReasonCode) else int(error.rc or 0)
        if code in _WRONG_VERSION[version]:
            return None, _UNKNOWN, _refusal(code, version)
        raise BrokerRefusedError(
            f"{endpoint.redacted} refused the connection: {_refusal(code, version)}; {_way(code)}"
        ) from None
    except (OSError, ValueError, LookupError, aiomqtt.MqttError) as error:
        # Some brokers simply close, or say nothing, when they do not know the version. paho's
        # reading of HTTP headers raises what Python does.
        cause = client.failures.cause or error
        if isinstance(cause, ssl.SSLError):
            raise _tls_refusal(endpoint, cause) from None
        late = passed.is_set() or not str(cause)
        return (
            None,
            _UNKNOWN,
            f"no answer within {timeout_s:g} s" if late else _bounded(str(cause)),
        )
    finally:
        client.close()


def _way(code: int) -> str:
    """What to do about a refusal."""
    if code in _WRONG_LOGIN:
        return "check user and password, and what the broker allows"
    if code in _UNAVAILABLE:
        return "try again when the broker is ready"
    return "check what the broker allows"


def _bounded(text: str | bytes) -> str:
    """One printable line of what a peer or a library says."""
    if isinstance(text, bytes):
        text = text[: 4 * _MAX_CAUSE_CHARACTERS].decode("utf-8", "replace")
    return ascii(text.strip())[1:-1][:_MAX_CAUSE_CHARACTERS]


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
