"""A connection to a broker, or one error that says what answered instead.

A CONNECT without CONNACK is explained by attempts without login: the same port with and without TLS
and WebSocket, and another version of MQTT.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.ports import open_socket
from loadgen.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CannotRunError,
    RemoteProtocolError,
)
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1, MQTT_3_1_1, MQTT_5, VERSION_NAMES
from loadgen.mqtt.packets import ConnAck, Connect, Disconnect, Packet
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode, is_failure, reason_name
from loadgen.sentences import BROKER_TEXT, Sentence

REACH_S: Final = 5.0
"""Longest time until a connection is made and answered, or an error explains why not."""
PACKET_LIMIT_BYTES: Final = 64 << 10
KEEP_ALIVE_S: Final = 60
_PATIENCE_S: Final = 1.0  # without an answer, before other ways are tried
_LOOK_S: Final = 2.0  # for the other ways
_SILENT_S: Final = 3.0  # without an answer, if another version of MQTT got one
_CLOSE_TIMEOUT_S: Final = 1.0
_READ_BYTES: Final = 64 << 10
_FIRST_BYTES: Final = 512
_SWITCHING: Final = b"HTTP/1.1 101"

_OTHER_VERSION: Final = {MQTT_3_1: MQTT_3_1_1, MQTT_3_1_1: MQTT_5, MQTT_5: MQTT_3_1_1}
_PATHS: Final = {"mqtt": "", "mqtts": "", "ws": "/mqtt", "wss": "/mqtt"}
_WRONG_VERSION: Final = (
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
)
_REFUSALS: Final[dict[int, Sentence]] = {
    ReasonCode.SERVER_UNAVAILABLE: BROKER_TEXT.NOT_READY,
    ReasonCode.SERVER_BUSY: BROKER_TEXT.NOT_READY,
    ConnectReturnCode.SERVER_UNAVAILABLE: BROKER_TEXT.NOT_READY,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: BROKER_TEXT.WRONG_LOGIN,
    ReasonCode.NOT_AUTHORIZED: BROKER_TEXT.WRONG_LOGIN,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: BROKER_TEXT.WRONG_LOGIN,
    ConnectReturnCode.NOT_AUTHORIZED: BROKER_TEXT.WRONG_LOGIN,
}
# First bytes of other protocols.
_OPENINGS: Final = (
    (b"SSH-", BROKER_TEXT.ANSWERED_AS(protocol="SSH")),
    (b"AMQP", BROKER_TEXT.ANSWERED_AS(protocol="AMQP")),
    (b"\x15\x03", BROKER_TEXT.SPEAKS_TLS()),
    (b"\x16\x03", BROKER_TEXT.SPEAKS_TLS()),
)
# Results of a verification (x509_vfy.h).
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)


def client_identifier(role: str) -> str:
    return f"loadgen-{role}-{uuid.uuid4().hex[:8]}"


def tls_context_of(endpoint: Endpoint, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return None without TLS, else the given context or one with the system's trust."""
    return (given or ssl.create_default_context()) if endpoint.tls else None


def shown(text: str | bytes, limit: int = 120) -> str:
    """Return a peer's text as one printable line of at most `limit` characters."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "replace")
    return ascii(text.strip())[1:-1][:limit]


def connect_of(endpoint: Endpoint, version: int, login: Connect | None = None) -> Connect:
    """Return a CONNECT with a new identifier and the login of a packet, else the endpoint's."""
    password = None if endpoint.password is None else endpoint.password.encode()
    return Connect(
        client_identifier("probe"),
        version,
        keep_alive=KEEP_ALIVE_S,
        user_name=endpoint.username if login is None else login.user_name,
        password=password if login is None else login.password,
    )


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks and wait until they have ended."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all at once; the first error ends the others before it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await ended(tasks)


# One connection -------------------------------------------------------------------------------


class BrokerConnection:
    """A connection of one client; its result is `connack` or `error`, or neither yet.

    A `silent` one sends no CONNECT, so that the peer's own words can be read.
    """

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter | None = None

    def __init__(
        self,
        endpoint: Endpoint,
        packet: Connect,
        tls_context: ssl.SSLContext | None = None,
        *,
        silent: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.packet = packet
        self.silent = silent
        self.tls_context = tls_context
        self.version = packet.protocol_version
        self.packet_limit_bytes = PACKET_LIMIT_BYTES
        self.reached = False  # a TCP connection was made
        self.encrypted = False  # a TLS handshake was done
        self.first_bytes = b""  # that the peer sent
        self.connack: ConnAck | None = None
        self.error: Exception | None = None
        self._framing: ClientProtocol | None = None
        self._received = bytearray()

    async def connect(self) -> None:
        """Connect and wait for CONNACK; close the connection if none comes."""
        try:
            await self.open()
            if not self.silent:
                if self.endpoint.websocket:
                    await self._upgrade()
                self.send(self.packet)
            answer = await self.receive()
            if not isinstance(answer, ConnAck):
                raise RemoteProtocolError(f"{type(answer).__name__.upper()} instead of CONNACK")
            self.connack = answer
        except (OSError, RemoteProtocolError, BrokerRefusedError) as error:
            self.error = error
        finally:
            if self.connack is None:
                await self.close()

    async def open(self) -> None:
        """Connect TCP and TLS; raise OSError."""
        host, context = self.endpoint.host, tls_context_of(self.endpoint, self.tls_context)
        opened = await open_socket(host, self.endpoint.port)
        self.reached = True
        try:
            self._reader, self._writer = await asyncio.open_connection(
                sock=opened, ssl=context, server_hostname=host if context else None
            )
        except BaseException:
            opened.close()
            raise
        self.encrypted = context is not None

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await writer.wait_closed()
        finally:
            _abort(writer)

    def abort(self) -> None:
        """Reset the connection, as a broken network would."""
        _abort(self._out)

    def send(self, packet: Packet) -> None:
        data = encode(packet, self.version)
        if self._framing is None:
            self._out.write(data)
        elif self._framing.state is State.OPEN:
            self._framing.send_binary(data)
            self._out.writelines(self._framing.data_to_send())

    async def receive(self) -> Packet:
        """Return the next packet; raise RemoteProtocolError for bytes that are not MQTT, else
        OSError."""
        # Yield to the loop, so that a flooding peer cannot starve timeouts.
        await asyncio.sleep(0)
        while True:
            received = self._received
            if self.version == MQTT_5 and received[:2] == b"\x20\x02":
                # A broker without MQTT 5 may answer with the CONNACK of 3.1.1.
                self.version = MQTT_3_1_1
            decoded = decode(received, 0, len(received), self.version, self.packet_limit_bytes)
            if decoded is not None:
                packet, end = decoded
                del received[:end]
                return packet
            data = await (self._read() if self._framing is None else self._unframed(self._framing))
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            received += data

    async def _upgrade(self) -> None:
        """Open a WebSocket; raise BrokerRefusedError with the server's reason."""
        endpoint = self.endpoint
        uri = parse_uri(f"{endpoint.scheme}://{endpoint.address}{endpoint.path}")
        self._framing = framing = ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")])
        framing.send_request(framing.connect())
        self._out.writelines(framing.data_to_send())
        line = b""
        while framing.state is State.CONNECTING and framing.handshake_exc is None:
            data = await self._read()
            line, newline, _ = self.first_bytes.partition(b"\n")
            # Any answer but "101 Switching Protocols" is an error, whatever may follow.
            other = newline and not line.startswith(_SWITCHING)
            if not data or other or len(line) == _FIRST_BYTES:
                break
            framing.receive_data(data)
        if framing.state is State.OPEN:
            return
        protocol, _, status = line.partition(b" ")
        error = framing.handshake_exc
        if not line:
            fault = "it closed the connection"
        elif not protocol.startswith(b"HTTP/"):
            fault = f"it answered {shown(line)}"
        elif not line.startswith(_SWITCHING) or error is None:
            fault = f"HTTP {shown(status)}"
        else:
            fault = shown(str(error.__cause__ or error))
        raise BrokerRefusedError(BROKER_TEXT.NOT_UPGRADED(where=endpoint.redacted, fault=fault))

    async def _unframed(self, framing: ClientProtocol) -> bytes:
        """Return the content of the next frames, b"" at the end of the connection."""
        while True:
            frames = [event for event in framing.events_received() if isinstance(event, Frame)]
            self._out.writelines(framing.data_to_send())
            data = b"".join(bytes(frame.data) for frame in frames if not frame.opcode & 8)
            if data or framing.state is not State.OPEN:
                return data
            raw = await self._read()
            if not raw:
                return b""
            framing.receive_data(raw)

    async def _read(self) -> bytes:
        data = await self._reader.read(_READ_BYTES)
        self.first_bytes = (self.first_bytes + data)[:_FIRST_BYTES]
        return data

    @property
    def _out(self) -> asyncio.StreamWriter:
        assert self._writer is not None
        return self._writer

    @property
    def wrong_version(self) -> str:
        """The answer to a CONNECT whose version the broker does not speak, else ""."""
        if self.connack is None:
            return ""
        if self.connack.reason_code in _WRONG_VERSION:
            return _name_of(self.connack)
        downgraded = self.packet.protocol_version == MQTT_5 != self.version
        return BROKER_TEXT.CONNACK_OF_3_1_1() if downgraded and not self.connack.reason_code else ""

    @property
    def opening(self) -> str:
        """The protocol of a peer that sent such first bytes, "" if it may be MQTT."""
        first_bytes = self.first_bytes
        for opening, protocol in _OPENINGS:
            if first_bytes.startswith(opening):
                return protocol
        line = first_bytes.partition(b"\n")[0]
        if line.startswith(_SWITCHING):
            return ""
        if line.startswith(b"HTTP/"):
            return BROKER_TEXT.ANSWERED(answer=shown(b" ".join(line.split()[:2]), 40))
        if first_bytes and first_bytes[0] not in (0x20, 0xE0):
            return BROKER_TEXT.ANSWERED(answer=f"'{shown(line, 40)}'")
        return ""


def _abort(writer: asyncio.StreamWriter) -> None:
    # In CPython 3.11.3 and older, a transport of TLS that was closed twice has no protocol.
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


async def ask(
    endpoint: Endpoint,
    packet: Connect,
    tls_context: ssl.SSLContext | None = None,
    *,
    timeout_s: float = REACH_S,
    spoken: bool = False,
) -> tuple[BrokerConnection, ConnAck]:
    """Return a connection that the broker accepted, and its CONNACK; the caller closes it.

    With `spoken` the broker is known to speak the version. Raise BrokerUnreachableError if nothing
    answers within `timeout_s`, BrokerRefusedError for any other answer.
    """
    first = BrokerConnection(endpoint, packet, tls_context)
    running = asyncio.ensure_future(first.connect())
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    def left_s(limit_s: float) -> float:
        return max(0.0, begun_s + min(limit_s, timeout_s) - loop.time())

    try:
        try:
            await asyncio.wait((running,), timeout=left_s(_PATIENCE_S))
            if isinstance(first.error, ssl.SSLCertVerificationError):
                raise await _untrusted(first, first.error)
            further: tuple[BrokerConnection, ...] = ()
            if first.connack is None and first.reached:
                further = await _other_ways(first, left_s(timeout_s), spoken=spoken)
                if not _is_named(first, further):
                    # The broker may be slow with this version, as with a login to be checked.
                    another = any(other.connack for other in further)
                    limit_s = _SILENT_S if another else timeout_s
                    await asyncio.wait((running,), timeout=left_s(limit_s))
        finally:
            await ended((running,))
        if first.connack is None:
            raise _explained(first, further, timeout_s, spoken=spoken)
        if first.wrong_version:
            raise _other_version(first, first.wrong_version)
        if first.connack.reason_code:
            message = _REFUSALS.get(first.connack.reason_code, BROKER_TEXT.REFUSED)
            if message == BROKER_TEXT.WRONG_LOGIN and packet.password is None:
                message = BROKER_TEXT.NO_PASSWORD if packet.user_name else BROKER_TEXT.NO_USER
            name = _name_of(first.connack)
            raise BrokerRefusedError(message(where=endpoint.redacted, name=name))
    except BaseException:
        await first.close()
        raise
    return first, first.connack


async def _other_ways(
    first: BrokerConnection, left_s: float, *, spoken: bool
) -> tuple[BrokerConnection, ...]:
    """Try the other ways to talk to the same port, without login and without trust."""
    endpoint = first.endpoint
    ways = [(scheme, MQTT_3_1_1) for scheme in _PATHS if scheme != endpoint.scheme]
    if not spoken:
        ways.append((endpoint.scheme, _OTHER_VERSION[first.packet.protocol_version]))
    further = tuple(
        BrokerConnection(
            Endpoint(scheme, endpoint.host, endpoint.port, path=_PATHS[scheme]),
            Connect(client_identifier("ask"), version, keep_alive=KEEP_ALIVE_S),
            _trusting(),
        )
        for scheme, version in ways
    )
    if endpoint.tls:
        # Bytes sent to a socket that the peer closed would discard the alert with its reason.
        further += (BrokerConnection(endpoint, first.packet, first.tls_context, silent=True),)
    pending = running = {asyncio.ensure_future(other.connect()) for other in further}
    # The stack closes all of them even if this is cancelled.
    async with contextlib.AsyncExitStack() as stack:
        for other in further:
            stack.push_async_callback(other.close)
        stack.push_async_callback(ended, running)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_LOOK_S, left_s)):
                while pending and not _is_named(first, further):
                    _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    return further


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# Explanations ---------------------------------------------------------------------------------


def _is_named(first: BrokerConnection, further: Sequence[BrokerConnection]) -> bool:
    """Return True if another transport shows what the port is."""
    scheme = first.endpoint.scheme
    others = [other for other in further if other.endpoint.scheme != scheme]
    return any(other.opening for other in others) or bool(_other_transport(first.endpoint, others))


def _explained(
    first: BrokerConnection,
    further: Sequence[BrokerConnection],
    timeout_s: float,
    *,
    spoken: bool,
) -> CannotRunError:
    endpoint, error = first.endpoint, first.error
    where = endpoint.redacted
    if not first.reached:
        if error is None:
            return BrokerUnreachableError(BROKER_TEXT.NO_ANSWER(where=where, timeout_s=timeout_s))
        number = error.errno if isinstance(error, OSError) else None
        message = BROKER_TEXT.NOT_RUNNING if number == errno.ECONNREFUSED else BROKER_TEXT.NO_WAY
        cause = os.strerror(number) if number else str(error) or "cannot be reached"
        if isinstance(error, socket.gaierror):
            # Name look-ups have error numbers that `os.strerror` does not know.
            message, cause = BROKER_TEXT.NO_NAME, error.strerror or "the name is not known"
        return BrokerUnreachableError(message(where=where, cause=cause.lower()))
    for attempt in (first, *(other for other in further if other.silent)):
        if attempt.encrypted and isinstance(attempt.error, ssl.SSLError):
            # The server judges our certificate after a handshake of TLS 1.3.
            missing = "CERTIFICATE_REQUIRED" in (attempt.error.reason or "")
            message = (
                BROKER_TEXT.CERTIFICATE_REQUIRED if missing else BROKER_TEXT.CERTIFICATE_REFUSED
            )
            return BrokerRefusedError(message(where=where, fault=_fault(attempt.error)))
    for other in further:
        if other.endpoint.scheme == endpoint.scheme and other.connack and not other.wrong_version:
            return _other_version(first)
    if use := _other_transport(endpoint, further):
        return BrokerRefusedError(BROKER_TEXT.OTHER_TRANSPORT(where=where, use=use))
    if endpoint.websocket and isinstance(error, BrokerRefusedError):
        return error  # of the upgrade
    for attempt in (first, *further):
        if opening := attempt.opening:
            return BrokerRefusedError(BROKER_TEXT.OTHER_PROTOCOL(where=where, opening=opening))
    if isinstance(error, ssl.SSLError):
        return BrokerRefusedError(BROKER_TEXT.TLS_FAILED(where=where, fault=_fault(error)))
    if isinstance(error, RemoteProtocolError):
        return BrokerRefusedError(BROKER_TEXT.BROKE_MQTT(where=where, fault=shown(str(error))))
    if error is None:
        return BrokerUnreachableError(BROKER_TEXT.SILENT(where=where, timeout_s=timeout_s))
    closes = BROKER_TEXT.CLOSES_THIS_CLIENT if spoken else BROKER_TEXT.CLOSES
    option = "--tls-alpn" if endpoint.tls and not spoken else None
    return BrokerRefusedError(closes(where=where, option=option))


def _other_transport(endpoint: Endpoint, further: Sequence[BrokerConnection]) -> str:
    """Return the transport that the port speaks, with its URL; "" if it is unknown."""
    for other in further:
        upgraded = other.first_bytes.startswith(_SWITCHING)
        if other.endpoint.scheme == endpoint.scheme or not (other.connack or upgraded):
            continue
        url = other.endpoint.redacted
        if other.endpoint.tls != endpoint.tls:
            return (BROKER_TEXT.USE_NO_TLS if endpoint.tls else BROKER_TEXT.USE_TLS)(url=url)
        return (BROKER_TEXT.USE_NO_WEBSOCKET if endpoint.websocket else BROKER_TEXT.USE_WEBSOCKET)(
            url=url
        )
    if not endpoint.tls and any(other.encrypted for other in further):
        return BROKER_TEXT.USE_TLS(url=replace(endpoint, scheme=endpoint.scheme + "s").redacted)
    return ""


async def _untrusted(
    first: BrokerConnection, error: ssl.SSLCertVerificationError
) -> BrokerUnreachableError:
    from cryptography import x509

    endpoint = first.endpoint
    where, encoded = endpoint.redacted, b""
    if error.verify_code in (_EXPIRED, *_OTHER_NAME):
        trusting = BrokerConnection(endpoint, first.packet, _trusting())
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await trusting.open()
                encoded = trusting._out.get_extra_info("ssl_object").getpeercert(True) or b""
        await trusting.close()
    if not encoded:
        fault = error.verify_message
        return BrokerUnreachableError(BROKER_TEXT.CERTIFICATE_UNTRUSTED(where=where, fault=fault))
    certificate = x509.load_der_x509_certificate(encoded)
    if error.verify_code == _EXPIRED:
        until = certificate.not_valid_after_utc.date().isoformat()
        return BrokerUnreachableError(BROKER_TEXT.CERTIFICATE_EXPIRED(where=where, until=until))
    names: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound):
        kind = x509.SubjectAlternativeName
        alternatives = certificate.extensions.get_extension_for_class(kind).value
        names = alternatives.get_values_for_type(x509.DNSName)
        names += map(str, alternatives.get_values_for_type(x509.IPAddress))
    shown_names = tuple(shown(name) for name in names[:5])
    return BrokerUnreachableError(
        BROKER_TEXT.CERTIFICATE_NAMES(where=where, host=endpoint.host, names=shown_names)
    )


def _fault(error: ssl.SSLError) -> str:
    return shown((error.reason or "the handshake failed").lower().replace("_", " "))


def _other_version(attempt: BrokerConnection, answer: str = "") -> BrokerRefusedError:
    where, version = attempt.endpoint.redacted, VERSION_NAMES[attempt.packet.protocol_version]
    message = BROKER_TEXT.OTHER_VERSION(where=where, version=version, answer=answer, use="")
    return BrokerRefusedError(message)


def _name_of(connack: ConnAck) -> str:
    # The answer to MQTT 5 can have the return code of an older broker, too.
    version = MQTT_5 if is_failure(connack.reason_code) else MQTT_3_1_1
    return named(connack.reason_code, connack.properties, version)


def named(code: int, properties: Properties, version: int) -> str:
    """Return the name of a reason code, with its Reason String."""
    text = f": {shown(properties.reason_string)}" if properties.reason_string else ""
    return f"{reason_name(code, version)}{text}"


# Versions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greeting:
    """The versions of MQTT that a broker accepted, by their number in CONNECT.

    `stated` are the properties of its MQTT 5 CONNACK, None without MQTT 5. `answered_s` is the time
    until its first answer, `refusals` are the errors of other versions.
    """

    endpoint: Endpoint
    login: Connect | None
    versions: tuple[int, ...]
    stated: Properties | None
    answered_s: float
    refusals: tuple[CannotRunError, ...] = ()

    def connect(self, **fields: Any) -> Connect:
        """Return a CONNECT with the newest version that the broker speaks."""
        return replace(connect_of(self.endpoint, self.versions[-1], self.login), **fields)


async def greet(
    endpoint: Endpoint,
    *,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = REACH_S,
    versions: Sequence[int] = (MQTT_5, MQTT_3_1_1),
    login: Connect | None = None,
) -> Greeting:
    """Connect with each of these versions; raise the errors of `ask` if none is accepted.

    The login is that of `login`, else that of the endpoint.
    """
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    taken: dict[int, ConnAck] = {}
    answers_s: list[float] = []
    errors: dict[int, CannotRunError] = {}

    async def connect(version: int) -> None:
        packet = connect_of(endpoint, version, login)
        try:
            connection, taken[version] = await ask(
                endpoint, packet, tls_context, timeout_s=timeout_s
            )
        except CannotRunError as error:
            errors[version] = error
            return
        answers_s.append(loop.time() - begun_s)
        connection.send(Disconnect())
        await connection.close()

    await together(*map(connect, versions))
    if not taken:
        # An error about one version says less than any other.
        refusals = [errors[version] for version in versions]
        raise min(refusals, key=lambda error: error.code == BROKER_TEXT.OTHER_VERSION.code)
    stated = taken[MQTT_5].properties if MQTT_5 in taken else None
    refused = tuple(errors.values())
    return Greeting(endpoint, login, tuple(sorted(taken)), stated, min(answers_s), refused)
