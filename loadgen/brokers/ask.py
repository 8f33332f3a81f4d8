"""A connection to a broker, or one error that says what answered instead.

A CONNECT without CONNACK is explained by further attempts without any login: the same port with
and without TLS and WebSocket, and another version of MQTT.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.messages import Message
from loadgen.brokers.packet_stream import (
    SWITCHING,
    PacketStream,
    client_identifier,
    open_socket,
    shown,
)
from loadgen.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CannotRunError,
    RemoteProtocolError,
)
from loadgen.mqtt import packets
from loadgen.mqtt.constants import MQTT_3_1, MQTT_3_1_1, MQTT_5, VERSION_NAMES
from loadgen.mqtt.packets import ConnAck, Connect
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode, is_failure, reason_name

REACH_S: Final = 5.0
"""Longest time until a connection is made and answered, or an error explains why not."""
_PATIENCE_S: Final = 1.0  # without an answer, before other ways are tried
_LOOK_S: Final = 2.0  # for the other ways
_SILENT_S: Final = 3.0  # without an answer, if another version of MQTT got one
KEEP_ALIVE_S: Final = 60

_OTHER_VERSION: Final = {MQTT_3_1: MQTT_3_1_1, MQTT_3_1_1: MQTT_5, MQTT_5: MQTT_3_1_1}
_PATHS: Final = {"mqtt": "", "mqtts": "", "ws": "/mqtt", "wss": "/mqtt"}
_WRONG_VERSION: Final = (
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
)
_REFUSALS: Final[dict[int, Message]] = {
    ReasonCode.SERVER_UNAVAILABLE: Message.NOT_READY,
    ReasonCode.SERVER_BUSY: Message.NOT_READY,
    ConnectReturnCode.SERVER_UNAVAILABLE: Message.NOT_READY,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: Message.WRONG_LOGIN,
    ReasonCode.NOT_AUTHORIZED: Message.WRONG_LOGIN,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: Message.WRONG_LOGIN,
    ConnectReturnCode.NOT_AUTHORIZED: Message.WRONG_LOGIN,
}
# First bytes of other protocols.
_OPENINGS: Final = (
    (b"SSH-", Message.ANSWERED_AS(protocol="SSH")),
    (b"AMQP", Message.ANSWERED_AS(protocol="AMQP")),
    (b"\x15\x03", Message.SPEAKS_TLS()),
    (b"\x16\x03", Message.SPEAKS_TLS()),
)
# Results of a verification (x509_vfy.h).
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)


@dataclass(slots=True)
class Attempt:
    """One CONNECT and its result: `connack`, or `error`, or neither while it waits."""

    endpoint: Endpoint
    packet: Connect
    context: ssl.SSLContext | None = None
    silent: bool = False  # no CONNECT is sent, so that the peer's own words can be read
    reached: bool = False  # a TCP connection was made
    encrypted: bool = False  # a TLS handshake was done
    stream: PacketStream | None = None
    connack: ConnAck | None = None
    error: Exception | None = None

    @property
    def first_bytes(self) -> bytes:
        """The first bytes from the peer."""
        return b"" if self.stream is None else self.stream.first_bytes

    @property
    def wrong_version(self) -> str:
        """The answer of a broker that does not speak the version of the CONNECT, else ""."""
        if self.connack is None or self.stream is None:
            return ""
        if self.connack.reason_code in _WRONG_VERSION:
            return _name_of(self.connack)
        downgraded = self.packet.protocol_version == MQTT_5 != self.stream.version
        return Message.CONNACK_OF_3_1_1() if downgraded and not self.connack.reason_code else ""

    async def run(self) -> None:
        """Connect and wait for CONNACK; close the connection if none comes."""
        endpoint = self.endpoint
        try:
            opened = await open_socket(endpoint.host, endpoint.port)
            self.reached = True
            self.stream = stream = PacketStream(self.packet.protocol_version)
            await stream.open(opened, endpoint, self.context)
            self.encrypted = endpoint.tls
            if not self.silent:
                if endpoint.websocket:
                    await stream.upgrade(endpoint)
                stream.send(self.packet)
            answer = await stream.receive()
            if not isinstance(answer, ConnAck):
                raise RemoteProtocolError(f"{type(answer).__name__} came instead of CONNACK")
            self.connack = answer
        except (OSError, RemoteProtocolError, BrokerRefusedError) as error:
            self.error = error
        finally:
            if self.connack is None:
                await self.close()

    async def close(self) -> None:
        """Close the connection if it is open."""
        if self.stream is not None:
            await self.stream.close()


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


async def ask(
    endpoint: Endpoint,
    packet: Connect,
    tls_context: ssl.SSLContext | None = None,
    *,
    timeout_s: float = REACH_S,
    spoken: bool = False,
) -> tuple[PacketStream, ConnAck]:
    """Return a connection that the broker accepted, and its CONNACK; the caller closes it.

    Raises BrokerUnreachableError if nothing answers within `timeout_s`, and BrokerRefusedError for
    any other answer. With `spoken` the broker is known to speak the version.
    """
    attempt = Attempt(endpoint, packet, tls_context)
    running = asyncio.ensure_future(attempt.run())
    try:
        try:
            await _answer(attempt, running, timeout_s, spoken=spoken)
        finally:
            await ended((running,))
        assert attempt.stream is not None and attempt.connack is not None
        if attempt.wrong_version:
            raise _other_version(attempt, attempt.wrong_version)
        if attempt.connack.reason_code:
            raise _refusal(attempt, attempt.connack)
    except BaseException:
        await attempt.close()
        raise
    return attempt.stream, attempt.connack


async def _answer(
    attempt: Attempt, running: asyncio.Future[None], timeout_s: float, *, spoken: bool
) -> None:
    """Wait for the CONNACK of an attempt, or raise the error that explains its absence."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    async def wait_until(s: float) -> None:
        left_s = begun_s + min(s, timeout_s) - loop.time()
        await asyncio.wait((running,), timeout=max(0.0, left_s))

    await wait_until(_PATIENCE_S)
    if isinstance(attempt.error, ssl.SSLCertVerificationError):
        raise await _untrusted(attempt.endpoint, attempt.error)
    further: tuple[Attempt, ...] = ()
    if attempt.connack is None and attempt.reached:
        left_s = begun_s + timeout_s - loop.time()
        further = await _other_ways(attempt, left_s, spoken=spoken)
        if not _is_named(attempt, further):
            # The broker may be slow with this version, as with a login to be checked.
            another = any(other.connack for other in further)
            await wait_until(_SILENT_S if another else timeout_s)
    if attempt.connack is None:
        raise _explained(attempt, further, timeout_s, spoken=spoken)


async def _other_ways(first: Attempt, left_s: float, *, spoken: bool) -> tuple[Attempt, ...]:
    """Try the other ways to talk to the same port, without login and without trust."""
    endpoint, version = first.endpoint, first.packet.protocol_version
    ways = [(scheme, MQTT_3_1_1) for scheme in _PATHS if scheme != endpoint.scheme]
    if not spoken:
        ways.append((endpoint.scheme, _OTHER_VERSION[version]))
    further = tuple(
        Attempt(
            Endpoint(scheme, endpoint.host, endpoint.port, path=_PATHS[scheme]),
            Connect(client_identifier("ask"), other_version, keep_alive=KEEP_ALIVE_S),
            _trusting(),
        )
        for scheme, other_version in ways
    )
    if endpoint.tls:
        # Bytes that meet a closed socket destroy the alert in which the peer gives its reason.
        further += (Attempt(endpoint, first.packet, first.context, silent=True),)
    running = {asyncio.ensure_future(other.run()) for other in further}
    end_s = asyncio.get_running_loop().time() + min(_LOOK_S, left_s)
    pending = running
    # The stack closes all of them even if this is cancelled.
    async with contextlib.AsyncExitStack() as stack:
        for other in further:
            stack.push_async_callback(other.close)
        stack.push_async_callback(ended, running)
        while pending and not _is_named(first, further):
            wait_s = end_s - asyncio.get_running_loop().time()
            if wait_s <= 0:
                break
            _, pending = await asyncio.wait(
                pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
    return further


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks and wait until they have ended."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all at once; if one fails, cancel the others and wait for their end before raising."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await ended(tasks)


# Explanations ---------------------------------------------------------------------------------


def _is_named(first: Attempt, further: Sequence[Attempt]) -> bool:
    """Return True if another transport shows what the port is."""
    scheme = first.endpoint.scheme
    openings = (_opening(one.first_bytes) for one in further if one.endpoint.scheme != scheme)
    return any(openings) or bool(_other_transport(first.endpoint, further))


def _opening(first_bytes: bytes) -> str:
    """Return the protocol of a peer that begins like this, "" if it may be MQTT."""
    for opening, protocol in _OPENINGS:
        if first_bytes.startswith(opening):
            return protocol
    line = first_bytes.partition(b"\n")[0]
    if line.startswith(SWITCHING):
        return ""
    if line.startswith(b"HTTP/"):
        return Message.ANSWERED(answer=shown(b" ".join(line.split()[:2]), 40))
    if first_bytes and first_bytes[0] not in (0x20, 0xE0):
        return Message.ANSWERED(answer=f"'{shown(line, 40)}'")
    return ""


def _explained(
    first: Attempt, further: Sequence[Attempt], timeout_s: float, *, spoken: bool
) -> CannotRunError:
    """Return the one error about a CONNECT without CONNACK."""
    endpoint, error = first.endpoint, first.error
    where = endpoint.redacted
    if not first.reached:
        return _unreached(endpoint, error, timeout_s)
    for attempt in (first, *(other for other in further if other.silent)):
        if attempt.encrypted and isinstance(attempt.error, ssl.SSLError):
            return _certificate_refused(endpoint, attempt.error)
    for other in further:
        if other.endpoint.scheme == endpoint.scheme and other.connack and not other.wrong_version:
            return _other_version(first)
    if use := _other_transport(endpoint, further):
        return BrokerRefusedError(Message.OTHER_TRANSPORT(where=where, use=use))
    if endpoint.websocket and isinstance(error, BrokerRefusedError):
        return error  # of the upgrade
    for attempt in (first, *further):
        if opening := _opening(attempt.first_bytes):
            return BrokerRefusedError(Message.OTHER_PROTOCOL(where=where, opening=opening))
    if isinstance(error, ssl.SSLError):
        fault = _words(error, "the handshake failed")
        return BrokerRefusedError(Message.TLS_FAILED(where=where, fault=fault))
    if isinstance(error, RemoteProtocolError):
        return BrokerRefusedError(Message.BROKE_MQTT(where=where, fault=shown(str(error))))
    if error is None:
        return BrokerUnreachableError(Message.SILENT(where=where, timeout_s=timeout_s))
    closes = Message.CLOSES_THIS_CLIENT if spoken else Message.CLOSES
    return BrokerRefusedError(closes(where=where))


def _other_transport(endpoint: Endpoint, further: Sequence[Attempt]) -> str:
    """Return the transport that the port speaks, with its URL; "" if it is unknown."""
    for other in further:
        upgraded = other.first_bytes.startswith(SWITCHING)
        if other.endpoint.scheme == endpoint.scheme or not (other.connack or upgraded):
            continue
        url = other.endpoint.redacted
        if other.endpoint.tls != endpoint.tls:
            return (Message.USE_NO_TLS if endpoint.tls else Message.USE_TLS)(url=url)
        return (Message.USE_NO_WEBSOCKET if endpoint.websocket else Message.USE_WEBSOCKET)(url=url)
    if not endpoint.tls and any(other.encrypted for other in further):
        return Message.USE_TLS(url=replace(endpoint, scheme=endpoint.scheme + "s").redacted)
    return ""


def _unreached(
    endpoint: Endpoint, error: Exception | None, timeout_s: float
) -> BrokerUnreachableError:
    """Return the error of an attempt without a TCP connection."""
    where = endpoint.redacted
    if error is None:
        return BrokerUnreachableError(Message.NO_ANSWER(where=where, timeout_s=timeout_s))
    if isinstance(error, socket.gaierror):
        # These errors have different numbers from the system's.
        cause = (error.strerror or "the name is not known").lower()
        return BrokerUnreachableError(Message.NO_NAME(where=where, cause=cause))
    number = error.errno if isinstance(error, OSError) else None
    cause = (os.strerror(number) if number else str(error) or "cannot be reached").lower()
    message = Message.NOT_RUNNING if number == errno.ECONNREFUSED else Message.NO_WAY
    return BrokerUnreachableError(message(where=where, cause=cause))


async def _untrusted(
    endpoint: Endpoint, error: ssl.SSLCertVerificationError
) -> BrokerUnreachableError:
    """Return the error of a broker whose certificate is not trusted."""
    from cryptography import x509

    where, message = endpoint.redacted, error.verify_message
    encoded = b""
    if error.verify_code in (_EXPIRED, *_OTHER_NAME):
        stream = PacketStream(MQTT_3_1_1)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                opened = await open_socket(endpoint.host, endpoint.port)
                await stream.open(opened, endpoint, _trusting())
                encoded = stream.peer_certificate
        await stream.close()
    if not encoded:
        return BrokerUnreachableError(Message.CERTIFICATE_UNTRUSTED(where=where, fault=message))
    certificate = x509.load_der_x509_certificate(encoded)
    if error.verify_code == _EXPIRED:
        until = certificate.not_valid_after_utc.date().isoformat()
        return BrokerUnreachableError(Message.CERTIFICATE_EXPIRED(where=where, until=until))
    names: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound):
        kind = x509.SubjectAlternativeName
        alternatives = certificate.extensions.get_extension_for_class(kind).value
        names = alternatives.get_values_for_type(x509.DNSName)
        names += map(str, alternatives.get_values_for_type(x509.IPAddress))
    shown_names = tuple(shown(name) for name in names[:5])
    return BrokerUnreachableError(
        Message.CERTIFICATE_NAMES(where=where, host=endpoint.host, names=shown_names)
    )


def _certificate_refused(endpoint: Endpoint, error: ssl.SSLError) -> BrokerRefusedError:
    """Return the error of a server that judges our certificate after a TLS 1.3 handshake."""
    missing = "CERTIFICATE_REQUIRED" in (error.reason or "")
    message = Message.CERTIFICATE_REQUIRED if missing else Message.CERTIFICATE_REFUSED
    return BrokerRefusedError(message(where=endpoint.redacted, fault=_words(error, "TLS failed")))


def _words(error: ssl.SSLError, default: str) -> str:
    return shown((error.reason or default).lower().replace("_", " "))


def _other_version(attempt: Attempt, answer: str = "") -> BrokerRefusedError:
    """Return the error of a broker that does not speak the version of a CONNECT."""
    version = VERSION_NAMES[attempt.packet.protocol_version]
    where = attempt.endpoint.redacted
    return BrokerRefusedError(
        Message.OTHER_VERSION(where=where, version=version, answer=answer, use="")
    )


def _refusal(attempt: Attempt, connack: ConnAck) -> BrokerRefusedError:
    """Return the error of a CONNACK with another failure."""
    message = _REFUSALS.get(connack.reason_code, Message.REFUSED)
    if message is Message.WRONG_LOGIN and attempt.packet.password is None:
        message = Message.NO_PASSWORD if attempt.packet.user_name else Message.NO_USER
    return BrokerRefusedError(message(where=attempt.endpoint.redacted, name=_name_of(connack)))


def _name_of(connack: ConnAck) -> str:
    """Return the name of a CONNACK's reason code."""
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
    """The versions of MQTT with which a broker took a connection (3 is MQTT 3.1, 4 is 3.1.1).

    `stated` are the properties of its MQTT 5 CONNACK (section 3.2.2.3), None without MQTT 5.
    `answered_s` is the time until it had answered. `refusals` are the errors of other versions.
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
    """Connect with each of these versions, with the endpoint's login or that of `login`.

    Raises the errors of `ask` if the broker takes none of them.
    """
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    taken: dict[int, ConnAck] = {}
    answers_s: list[float] = []
    errors: list[CannotRunError] = []

    async def connect(version: int) -> None:
        packet = connect_of(endpoint, version, login)
        try:
            stream, taken[version] = await ask(endpoint, packet, tls_context, timeout_s=timeout_s)
        except CannotRunError as error:
            errors.append(error)
            return
        answers_s.append(loop.time() - begun_s)
        stream.send(packets.Disconnect())
        await stream.close()

    await together(*map(connect, versions))
    if not taken:
        # An error about one version says less than any other.
        raise min(errors, key=lambda error: error.code == Message.OTHER_VERSION.name)
    stated = taken[MQTT_5].properties if MQTT_5 in taken else None
    return Greeting(endpoint, login, tuple(sorted(taken)), stated, min(answers_s), tuple(errors))
