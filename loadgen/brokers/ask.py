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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from loadgen.brokers.endpoints import Endpoint
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
UNKNOWN: Final = "unknown"
"""The version of a broker that does not publish it."""

_OTHER_VERSION: Final = {MQTT_3_1: MQTT_3_1_1, MQTT_3_1_1: MQTT_5, MQTT_5: MQTT_3_1_1}
_PATHS: Final = {"mqtt": "", "mqtts": "", "ws": "/mqtt", "wss": "/mqtt"}
_WRONG_VERSION: Final = (
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
)
_LOGIN: Final = "check user and password, and what the broker allows"
_LATER: Final = "try again when the broker is ready"
_REMEDIES: Final[dict[int, str]] = {
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: _LOGIN,
    ReasonCode.NOT_AUTHORIZED: _LOGIN,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: _LOGIN,
    ConnectReturnCode.NOT_AUTHORIZED: _LOGIN,
    ReasonCode.SERVER_UNAVAILABLE: _LATER,
    ReasonCode.SERVER_BUSY: _LATER,
    ConnectReturnCode.SERVER_UNAVAILABLE: _LATER,
}
# First bytes of other protocols.
_OPENINGS: Final = (
    (b"SSH-", "answered as SSH, not MQTT"),
    (b"AMQP", "answered as AMQP, not MQTT"),
    (b"\x15\x03", "speaks TLS"),
    (b"\x16\x03", "speaks TLS"),
)
OLDER: Final = "use the other version"
_PORT: Final = "is the port right?"
_VERSION_TOPICS: Final = (
    "$SYS/broker/version",
    # One of each node, and the product's name next to it.
    "$SYS/brokers/+/version",
    "$SYS/brokers/+/sysdescr",
)
_MAX_VERSION_CHARACTERS: Final = 200
_ANSWER_S: Final = 1.0
_RETAINED_S: Final = 0.3


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
    def accepted(self) -> bool:
        """True if the broker took the connection."""
        return self.connack is not None and not self.connack.reason_code

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
        except ssl.SSLError as error:
            self.error = _certificate_refused(endpoint, error) if self.encrypted else error
        except (OSError, RemoteProtocolError, BrokerRefusedError) as error:
            self.error = error
        finally:
            if self.connack is None:
                await self.close()

    async def close(self) -> None:
        """Close the connection if it is open."""
        if self.stream is not None:
            await self.stream.close()


def connect_of(endpoint: Endpoint, version: int) -> Connect:
    """Return a CONNECT with a new identifier and the endpoint's login."""
    return Connect(
        client_identifier("probe"),
        version,
        keep_alive=KEEP_ALIVE_S,
        user_name=endpoint.username,
        password=None if endpoint.password is None else endpoint.password.encode(),
    )


async def ask(
    endpoint: Endpoint,
    packet: Connect,
    tls_context: ssl.SSLContext | None = None,
    *,
    timeout_s: float = REACH_S,
    older: str = OLDER,
    spoken: bool = False,
) -> tuple[PacketStream, ConnAck]:
    """Return a connection that the broker accepted, and its CONNACK; the caller closes it.

    Raises BrokerUnreachableError if nothing answers within `timeout_s`, and BrokerRefusedError for
    any other answer. `older` is the remedy if the broker does not speak the version; with `spoken`
    it is known to speak it.
    """
    attempt = Attempt(endpoint, packet, tls_context)
    running = asyncio.ensure_future(attempt.run())
    try:
        try:
            await _answer(attempt, running, timeout_s, older, spoken=spoken)
        finally:
            await ended((running,))
        assert attempt.stream is not None and attempt.connack is not None
        if attempt.connack.reason_code:
            raise refusal(endpoint, attempt.connack, packet.protocol_version, older)
    except BaseException:
        await attempt.close()
        raise
    return attempt.stream, attempt.connack


async def _answer(
    attempt: Attempt, running: asyncio.Future[None], timeout_s: float, older: str, *, spoken: bool
) -> None:
    """Wait for the CONNACK of an attempt, or raise the error that explains its absence."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    async def wait_until(s: float) -> None:
        left_s = begun_s + min(s, timeout_s) - loop.time()
        await asyncio.wait((running,), timeout=max(0.0, left_s))

    await wait_until(_PATIENCE_S)
    further: tuple[Attempt, ...] = ()
    if attempt.connack is None and attempt.reached:
        left_s = begun_s + timeout_s - loop.time()
        further = await _other_ways(attempt, left_s, spoken=spoken)
        if not _is_named(attempt, further):
            # The broker may be slow with this version, as with a login to be checked.
            another = any(other.connack for other in further)
            await wait_until(_SILENT_S if another else timeout_s)
    if attempt.connack is None:
        raise _explained(attempt, further, timeout_s, older, spoken=spoken)


async def _other_ways(first: Attempt, left_s: float, *, spoken: bool) -> tuple[Attempt, ...]:
    """Try the other ways to talk to the same port, without login and without trust."""
    endpoint, version = first.endpoint, first.packet.protocol_version
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    ways = [(scheme, MQTT_3_1_1) for scheme in _PATHS if scheme != endpoint.scheme]
    if not spoken:
        ways.append((endpoint.scheme, _OTHER_VERSION[version]))
    further = tuple(
        Attempt(
            Endpoint(scheme, endpoint.host, endpoint.port, path=_PATHS[scheme]),
            Connect(client_identifier("ask"), other_version, keep_alive=KEEP_ALIVE_S),
            trusting if scheme in ("mqtts", "wss") else None,
        )
        for scheme, other_version in ways
    )
    if endpoint.tls:
        # Bytes that meet a closed socket destroy the alert in which the peer gives its reason.
        further += (Attempt(endpoint, first.packet, first.context, silent=True),)
    running = {asyncio.ensure_future(other.run()) for other in further}
    end_s = asyncio.get_running_loop().time() + min(_LOOK_S, left_s)
    pending = running
    try:
        while pending and not _is_named(first, further):
            wait_s = end_s - asyncio.get_running_loop().time()
            if wait_s <= 0:
                break
            _, pending = await asyncio.wait(
                pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        # The stack closes all of them even if this is cancelled here.
        async with contextlib.AsyncExitStack() as stack:
            for other in further:
                stack.push_async_callback(other.close)
            await ended(running)
    return further


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks and wait until they have ended."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Explanations ---------------------------------------------------------------------------------


def _is_named(first: Attempt, further: Iterable[Attempt]) -> bool:
    """Return True if another transport shows what the port is."""
    return any(
        other.endpoint.scheme != first.endpoint.scheme
        and (
            other.connack is not None
            or (other.encrypted and not first.endpoint.tls)
            or _opening(other.first_bytes)
        )
        for other in further
    )


def _opening(first_bytes: bytes) -> str:
    """Return the protocol of a peer that begins like this, "" if it may be MQTT."""
    for opening, name in _OPENINGS:
        if first_bytes.startswith(opening):
            return name
    line = first_bytes.partition(b"\n")[0]
    if line.startswith(SWITCHING):
        return ""
    if line.startswith(b"HTTP/"):
        return f"answered {shown(b' '.join(line.split()[:2]), 40)}, not MQTT"
    if first_bytes and first_bytes[0] not in (0x20, 0xE0):
        return f"answered '{shown(line, 40)}', not MQTT"
    return ""


def _explained(
    first: Attempt, further: Sequence[Attempt], timeout_s: float, older: str, *, spoken: bool
) -> CannotRunError:
    """Return the one error about a CONNECT without CONNACK."""
    endpoint, error = first.endpoint, first.error
    where = endpoint.redacted
    if not first.reached:
        return _unreached(first, timeout_s)
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerUnreachableError(
            f"no TLS connection to {where}: {error.verify_message}; check the certificate, or give "
            "its authority"
        )
    for attempt in (first, *(other for other in further if other.silent)):
        if attempt.encrypted and isinstance(attempt.error, BrokerRefusedError):
            return attempt.error
    if other_way := _other_way(first, further, older):
        return BrokerRefusedError(f"{where} {other_way}")
    if endpoint.websocket and isinstance(error, BrokerRefusedError):
        return error  # of the upgrade
    for attempt in (first, *further):
        if opening := _opening(attempt.first_bytes):
            return BrokerRefusedError(f"{where} {opening}; {_PORT}")
    if isinstance(error, ssl.SSLError):
        fault = _words(error, "the handshake failed")
        return BrokerRefusedError(f"no TLS connection to {where}: {fault}; does it speak TLS?")
    if isinstance(error, RemoteProtocolError):
        return BrokerRefusedError(f"{where} broke MQTT: {shown(str(error))}; {_PORT}")
    if error is None:
        return BrokerUnreachableError(
            f"{where} takes connections and sends nothing within {timeout_s:g} s; is it an MQTT "
            "port?"
        )
    if spoken:
        return BrokerRefusedError(
            f"{where} closes this client's connection without an answer, and took others; check "
            "what it allows this client, and its limits"
        )
    return BrokerRefusedError(
        f"{where} closes new connections without an answer; has it reached a limit, or is it no "
        "MQTT port?"
    )


def _other_way(first: Attempt, further: Sequence[Attempt], older: str) -> str:
    """Return the way in which the port can be used, "" if it is unknown."""
    endpoint = first.endpoint
    for other in further:
        speaks = other.connack is not None and other.connack.reason_code not in _WRONG_VERSION
        if other.endpoint.scheme == endpoint.scheme and speaks:
            version = VERSION_NAMES[first.packet.protocol_version]
            return f"does not speak MQTT {version}; {older}"
    for other in further:
        upgraded = other.first_bytes.startswith(SWITCHING)
        if other.endpoint.scheme == endpoint.scheme or not (other.connack or upgraded):
            continue
        url = other.endpoint.redacted
        if other.endpoint.tls != endpoint.tls:
            return f"{'does not speak' if endpoint.tls else 'speaks'} TLS: use {url}"
        if endpoint.websocket:
            return f"speaks MQTT without WebSocket: use {url}"
        return f"speaks MQTT over WebSocket: use {url}"
    if not endpoint.tls and any(other.encrypted for other in further):
        return f"speaks TLS: use {replace(endpoint, scheme=endpoint.scheme + 's').redacted}"
    return ""


def _unreached(attempt: Attempt, timeout_s: float) -> BrokerUnreachableError:
    """Return the error of an attempt without a TCP connection."""
    error, where = attempt.error, attempt.endpoint.redacted
    if error is None:
        cause = f"nothing answers within {timeout_s:g} s"
        remedy = "is the address right, and does every firewall let it through?"
    elif isinstance(error, socket.gaierror):
        # These errors have different numbers from the system's.
        cause, remedy = (error.strerror or "the name is not known").lower(), "is the name right?"
    else:
        number = error.errno if isinstance(error, OSError) else None
        cause = (os.strerror(number) if number else str(error) or "cannot be reached").lower()
        refused = number == errno.ECONNREFUSED
        remedy = "is it running, and is the port right?" if refused else "is the address right?"
    return BrokerUnreachableError(f"no broker at {where}: {cause}; {remedy}")


def _certificate_refused(endpoint: Endpoint, error: ssl.SSLError) -> BrokerRefusedError:
    """Return the error of a server that judges our certificate after a TLS 1.3 handshake."""
    return BrokerRefusedError(
        f"{endpoint.redacted} ended the TLS connection: {_words(error, 'TLS failed')}; give the "
        "client certificate that it asks for"
    )


def _words(error: ssl.SSLError, default: str) -> str:
    return shown((error.reason or default).lower().replace("_", " "))


def refusal(
    endpoint: Endpoint, connack: ConnAck, version: int, older: str = OLDER
) -> BrokerRefusedError:
    """Return the error of a CONNACK with a failure."""
    code = connack.reason_code
    # The answer to MQTT 5 can have the return code of an older broker, too.
    name = named(code, connack.properties, MQTT_5 if is_failure(code) else MQTT_3_1_1)
    where = endpoint.redacted
    if code in _WRONG_VERSION:
        return BrokerRefusedError(
            f"{where} does not speak MQTT {VERSION_NAMES[version]} ({name}); {older}"
        )
    remedy = _REMEDIES.get(code, "check what the broker allows")
    return BrokerRefusedError(f"{where} refused the connection: {name}; {remedy}")


def named(code: int, properties: Properties, version: int) -> str:
    """Return the name of a reason code, with its Reason String."""
    text = f": {shown(properties.reason_string)}" if properties.reason_string else ""
    return f"{reason_name(code, version)}{text}"


# Versions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greeting:
    """The versions of MQTT with which a broker took a connection (3 is MQTT 3.1, 4 is 3.1.1).

    `stated` are the properties of its MQTT 5 CONNACK (section 3.2.2.3), None without MQTT 5.
    `answered_s` is the time until it had answered.
    """

    endpoint: Endpoint
    connect: Connect
    versions: tuple[int, ...]
    stated: Properties | None
    answered_s: float

    @property
    def newest(self) -> Connect:
        """A CONNECT with the newest version that the broker speaks."""
        return replace(self.connect, protocol_version=self.versions[-1])


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
    connect = connect_of(endpoint, MQTT_5)
    if login is not None:
        connect = replace(connect, user_name=login.user_name, password=login.password)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    attempts = [
        Attempt(
            endpoint,
            # A broker ends a connection when another client comes with its identifier.
            replace(connect, client_id=client_identifier("probe"), protocol_version=version),
            tls_context,
        )
        for version in versions
    ]
    running = [asyncio.ensure_future(attempt.run()) for attempt in attempts]
    async with contextlib.AsyncExitStack() as stack:
        for attempt in attempts:
            stack.push_async_callback(attempt.close)
        stack.push_async_callback(ended, running)
        await asyncio.wait(running, timeout=min(_PATIENCE_S, timeout_s))
        answered_s = loop.time() - begun_s
        if not any(attempt.connack for attempt in attempts):
            packet = replace(attempts[0].packet, client_id=client_identifier("probe"))
            try:
                stream, connack = await ask(endpoint, packet, tls_context, timeout_s=timeout_s)
            except CannotRunError:
                # In the meantime a slow broker may have taken another version.
                if not any(attempt.connack for attempt in attempts):
                    raise
            else:
                slow = Attempt(endpoint, packet, tls_context, stream=stream, connack=connack)
                stack.push_async_callback(slow.close)
                attempts.append(slow)
            answered_s = loop.time() - begun_s
        accepted = [attempt for attempt in attempts if attempt.accepted]
        if not accepted:
            raise _unwelcome(attempts)
        for attempt in accepted:
            assert attempt.stream is not None
            attempt.stream.send(packets.Disconnect())
    stated = [
        attempt.connack.properties
        for attempt in accepted
        if attempt.packet.protocol_version == MQTT_5 and attempt.connack
    ]
    return Greeting(
        endpoint,
        connect,
        tuple(sorted({attempt.packet.protocol_version for attempt in accepted})),
        stated[0] if stated else None,
        answered_s,
    )


def _unwelcome(attempts: Sequence[Attempt]) -> BrokerRefusedError:
    """Return the error of a broker that took no version, preferably another than of versions."""
    answered = [(one, one.connack) for one in attempts if one.connack is not None]
    answered.sort(key=lambda pair: pair[1].reason_code in _WRONG_VERSION)
    attempt, connack = answered[0]
    return refusal(attempt.endpoint, connack, attempt.packet.protocol_version)


async def version_of(
    endpoint: Endpoint, connect: Connect, tls_context: ssl.SSLContext | None = None
) -> str:
    """Return a broker's name for its version, with the version of MQTT and login of `connect`.

    It needs a separate connection: some brokers end one that subscribes to $SYS.
    """
    asking = replace(
        connect_of(endpoint, connect.protocol_version),
        user_name=connect.user_name,
        password=connect.password,
    )
    try:
        stream, connack = await ask(endpoint, asking, tls_context)
    except CannotRunError:
        return UNKNOWN
    try:
        return await _stated_version(stream, connack)
    finally:
        await stream.close()


async def _stated_version(stream: PacketStream, connack: ConnAck) -> str:
    for name, value in connack.properties.user_property:
        if "version" in name.lower() and value.strip():
            return shown_version(value.encode())
    stream.send(packets.Subscribe(1, tuple(map(packets.Subscription, _VERSION_TOPICS))))
    parts: dict[str, str] = {}
    try:
        async with asyncio.timeout(_ANSWER_S) as limit:
            while len(parts) < 2:
                packet = await stream.receive()
                if isinstance(packet, packets.SubAck):
                    # Retained messages come at once, or never.
                    limit.reschedule(asyncio.get_running_loop().time() + _RETAINED_S)
                elif isinstance(packet, packets.Publish) and packet.payload:
                    level = packet.topic_name.rpartition("/")[2]
                    parts.setdefault(level, shown_version(packet.payload))
                    if packet.topic_name == _VERSION_TOPICS[0]:
                        break
    except (TimeoutError, OSError, RemoteProtocolError):
        pass
    return " ".join(parts[name] for name in ("sysdescr", "version") if name in parts) or UNKNOWN


def shown_version(payload: bytes) -> str:
    """Return a version as printable ASCII of at most 200 characters, or "unknown"."""
    return shown(payload, _MAX_VERSION_CHARACTERS) or UNKNOWN
