"""Who is at an address: a CONNACK, or one error that says what was there instead.

A CONNECT that gets no CONNACK is explained by others beside it, at most one a transport and without
any login: the same port with and without TLS and WebSocket, and the other version of MQTT.
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

from loadgen.brokers.client import (
    SWITCHING,
    PacketStream,
    client_identifier,
    open_socket,
    shown,
    tls_refusal,
)
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CannotRunError,
    RemoteProtocolError,
)
from loadgen.mqtt.constants import MQTT_3_1, MQTT_3_1_1, MQTT_5, VERSION_NAMES
from loadgen.mqtt.packets import ConnAck, Connect
from loadgen.mqtt.reason_codes import ConnectReturnCode, ReasonCode, is_failure, reason_name

REACH_S: Final = 5.0
"""Within this a connection is made and answered, or the error is there."""
_PATIENCE_S: Final = 1.0  # without an answer, before others are asked beside it
_LOOK_S: Final = 2.0  # for these others
_SILENT_S: Final = 3.0  # without an answer, after which that of another version decides
KEEP_ALIVE_S: Final = 60

_OTHER: Final = {MQTT_3_1: MQTT_3_1_1, MQTT_3_1_1: MQTT_5, MQTT_5: MQTT_3_1_1}
_PATHS: Final = {"mqtt": "", "mqtts": "", "ws": "/mqtt", "wss": "/mqtt"}
# With these a broker says that it does not speak the version, not that it does not want us.
WRONG_VERSION: Final = (
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
# What an answer begins with that is not MQTT, and what to call it.
_OPENINGS: Final = (
    (b"SSH-", "answered as SSH, not MQTT"),
    (b"AMQP", "answered as AMQP, not MQTT"),
    (b"\x15\x03", "speaks TLS"),
    (b"\x16\x03", "speaks TLS"),
)
_REFUSED_WAY: Final = "is it running, and is the port right?"
OLDER: Final = "use the other version"
_PORT_WAY: Final = "is the port right?"


@dataclass(slots=True)
class Knock:
    """One CONNECT and what came of it; `error` where that is no CONNACK, None while none came."""

    endpoint: Endpoint
    packet: Connect
    context: ssl.SSLContext | None = None
    silent: bool = False  # whether CONNECT is not sent, to hear what the peer says of itself
    reached: bool = False  # whether a TCP connection was made
    encrypted: bool = False  # whether a TLS handshake was done
    stream: PacketStream | None = None
    connack: ConnAck | None = None
    error: Exception | None = None

    @property
    def heard(self) -> bytes:
        """The first bytes that came."""
        return b"" if self.stream is None else self.stream.heard

    async def run(self) -> None:
        """Connect and wait for CONNACK; without one the connection is closed again."""
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
            self.error = tls_refusal(endpoint, error) if self.encrypted else error
        except (OSError, RemoteProtocolError, BrokerRefusedError) as error:
            self.error = error
        finally:
            if self.connack is None:
                await self.close()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self.stream is not None:
            await self.stream.close()


async def admitted(
    endpoint: Endpoint,
    packet: Connect,
    tls_context: ssl.SSLContext | None = None,
    *,
    timeout_s: float = REACH_S,
    older: str = OLDER,
    spoken: bool = False,
) -> tuple[PacketStream, ConnAck]:
    """A connection that the broker accepted, with its CONNACK; the caller closes it.

    Raises BrokerUnreachableError where nothing answers, and BrokerRefusedError where something
    else does, within `timeout_s`; `older` is what helps where the broker does not speak the
    version, and `spoken` says that it is known to.
    """
    knock = Knock(endpoint, packet, tls_context)
    try:
        await knocked((knock,), timeout_s, older, spoken=spoken)
    except BaseException:
        # Accepted, and then nobody waits for it any more.
        await knock.close()
        raise
    if knock.stream is None or knock.connack is None:
        raise knock.error or silence(knock, timeout_s)
    if knock.connack.reason_code:
        await knock.close()
        raise refusal(endpoint, knock.connack, packet.protocol_version, older)
    return knock.stream, knock.connack


async def knocked(
    knocks: Sequence[Knock], timeout_s: float, older: str = OLDER, *, spoken: bool = False
) -> None:
    """Run these, one port in several versions, until an answer has come or what is there is known.

    Those with a CONNACK are open afterwards; where there is none, the first one's `error` says
    what is there.
    """
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    async def wait_until(s: float) -> bool:
        left_s = max(0.0, begun_s + min(s, timeout_s) - loop.time())
        await asyncio.wait(running, timeout=left_s)
        return any(knock.connack for knock in knocks)

    first = knocks[0]
    others: tuple[Knock, ...] = ()
    running = [asyncio.ensure_future(knock.run()) for knock in knocks]
    try:
        if await wait_until(_PATIENCE_S):
            return
        if any(knock.reached for knock in knocks):
            others = await _others(knocks, begun_s + timeout_s - loop.time(), spoken=spoken)
        if not _conclusive(first, others):
            # The same version may only be slower, with a login to be checked.
            known = any(other.connack for other in others)
            if await wait_until(_SILENT_S if known else timeout_s):
                return
        first.error = _explained(first, others, timeout_s, older, spoken=spoken)
    finally:
        await ended(running)


async def _others(knocks: Sequence[Knock], left_s: float, *, spoken: bool) -> tuple[Knock, ...]:
    """What other ways to talk to the same port bring, without login and without trust."""
    endpoint, version = knocks[0].endpoint, knocks[0].packet.protocol_version
    asked = {(knock.endpoint.scheme, knock.packet.protocol_version) for knock in knocks}
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    ways = {(scheme, MQTT_3_1_1) for scheme in _PATHS if scheme != endpoint.scheme}
    if not spoken:
        ways.add((endpoint.scheme, _OTHER[version]))
    others = tuple(
        Knock(
            Endpoint(scheme, endpoint.host, endpoint.port, path=_PATHS[scheme]),
            Connect(client_identifier("door"), one_version, keep_alive=KEEP_ALIVE_S),
            trusting if scheme in ("mqtts", "wss") else None,
        )
        for scheme, one_version in sorted(ways - asked)
    )
    if endpoint.tls:
        # Data that meets a closed socket takes the alert along in which the peer says why.
        others += (Knock(endpoint, knocks[0].packet, knocks[0].context, silent=True),)
    running = {asyncio.ensure_future(other.run()) for other in others}
    end_s = asyncio.get_running_loop().time() + min(_LOOK_S, left_s)
    pending = running
    try:
        while pending and not _conclusive(knocks[0], others):
            wait_s = end_s - asyncio.get_running_loop().time()
            if wait_s <= 0:
                break
            _, pending = await asyncio.wait(
                pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        # Also when this is cancelled meanwhile.
        async with contextlib.AsyncExitStack() as stack:
            for other in others:
                stack.push_async_callback(other.close)
            await ended(running)
    return others


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks and wait until they have ended."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# What was there -------------------------------------------------------------------------------


def _conclusive(first: Knock, others: Iterable[Knock]) -> bool:
    """Whether the others tell what the port is, though the first still waits for an answer."""
    scheme = first.endpoint.scheme
    return any(
        other.endpoint.scheme != scheme
        and (
            other.connack is not None
            or (other.encrypted and not first.endpoint.tls)
            or _opening(other.heard)
        )
        for other in others
    )


def _opening(heard: bytes) -> str:
    """What a peer speaks that begins like this; "" where that may be MQTT."""
    for opening, name in _OPENINGS:
        if heard.startswith(opening):
            return name
    line = heard.partition(b"\n")[0]
    if line.startswith(SWITCHING):
        return ""
    if line.startswith(b"HTTP/"):
        return f"answered {shown(b' '.join(line.split()[:2]), 40)}, not MQTT"
    if heard and heard[0] not in (0x20, 0xE0):
        return f"answered '{shown(line, 40)}', not MQTT"
    return ""


def _explained(
    first: Knock, others: Sequence[Knock], timeout_s: float, older: str, *, spoken: bool
) -> CannotRunError:
    """The one error about a first CONNECT without CONNACK."""
    endpoint, error = first.endpoint, first.error
    where = endpoint.redacted
    if not first.reached:
        return _unreached(first, timeout_s)
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerUnreachableError(
            f"no TLS connection to {where}: {error.verify_message}; check the certificate, or give "
            "its authority"
        )
    for knock in (first, *(other for other in others if other.silent)):
        if knock.encrypted and isinstance(knock.error, BrokerRefusedError):
            return knock.error
    told = _spoken(first, others, older)
    if told:
        return BrokerRefusedError(f"{where} {told}")
    opening = _opening(first.heard)
    if endpoint.websocket and isinstance(error, BrokerRefusedError):
        # It says what came instead of an upgrade.
        return error
    opening = opening or next(filter(None, (_opening(other.heard) for other in others)), "")
    if opening:
        return BrokerRefusedError(f"{where} {opening}; {_PORT_WAY}")
    if isinstance(error, ssl.SSLError):
        return BrokerRefusedError(
            f"no TLS connection to {where}: {_tls_fault(error)}; does it speak TLS?"
        )
    if isinstance(error, RemoteProtocolError):
        return BrokerRefusedError(f"{where} broke MQTT: {shown(str(error))}; {_PORT_WAY}")
    if error is None:
        return silence(first, timeout_s)
    if spoken:
        return BrokerRefusedError(
            f"{where} closes this client's connection without an answer, and took others; check "
            "what it allows this client, and its limits"
        )
    return BrokerRefusedError(
        f"{where} closes new connections without an answer; has it reached a limit, or is it no "
        "MQTT port?"
    )


def _spoken(first: Knock, others: Sequence[Knock], older: str) -> str:
    """What the port speaks instead of what was asked for, and what to use; "" if unknown."""
    endpoint = first.endpoint
    for other in others:
        if other.endpoint.scheme == endpoint.scheme and _speaks(other):
            version = VERSION_NAMES[first.packet.protocol_version]
            return f"does not speak MQTT {version}; {older}"
    for other in others:
        upgraded = other.heard.startswith(SWITCHING)
        if other.endpoint.scheme == endpoint.scheme or not (other.connack or upgraded):
            continue
        url = other.endpoint.redacted
        if other.endpoint.tls != endpoint.tls:
            return f"{'does not speak' if endpoint.tls else 'speaks'} TLS: use {url}"
        if endpoint.websocket:
            return f"speaks MQTT without WebSocket: use {url}"
        return f"speaks MQTT over WebSocket: use {url}"
    if not endpoint.tls:
        for other in others:
            if other.encrypted:
                return f"speaks TLS: use {replace(endpoint, scheme=endpoint.scheme + 's').redacted}"
    return ""


def _speaks(knock: Knock) -> bool:
    return knock.connack is not None and knock.connack.reason_code not in WRONG_VERSION


def _unreached(knock: Knock, timeout_s: float) -> BrokerUnreachableError:
    """Nobody took the connection."""
    error, where = knock.error, knock.endpoint.redacted
    if error is None:
        cause = f"nothing answers within {timeout_s:g} s"
        way = "is the address right, and does every firewall let it through?"
    elif isinstance(error, socket.gaierror):
        # Names that do not resolve have numbers of their own and say it themselves.
        cause, way = (error.strerror or "the name is not known").lower(), "is the name right?"
    else:
        number = error.errno if isinstance(error, OSError) else None
        cause = (os.strerror(number) if number else str(error) or "cannot be reached").lower()
        way = _REFUSED_WAY if number == errno.ECONNREFUSED else "is the address right?"
    return BrokerUnreachableError(f"no broker at {where}: {cause}; {way}")


def silence(knock: Knock, timeout_s: float) -> BrokerUnreachableError:
    """A connection was made and nothing came."""
    if not knock.reached:
        return _unreached(knock, timeout_s)
    return BrokerUnreachableError(
        f"{knock.endpoint.redacted} takes connections and sends nothing within {timeout_s:g} s; is "
        "it an MQTT port?"
    )


def _tls_fault(error: ssl.SSLError) -> str:
    return shown((error.reason or "the handshake failed").lower().replace("_", " "))


def refusal(
    endpoint: Endpoint, connack: ConnAck, version: int, older: str = OLDER
) -> BrokerRefusedError:
    """What to say of a CONNACK with a failure."""
    code = connack.reason_code
    # The return code of an older broker comes also as the answer to MQTT 5.
    name = reason_name(code, MQTT_5 if is_failure(code) else MQTT_3_1_1)
    if connack.properties.reason_string:
        name += f": {shown(connack.properties.reason_string)}"
    where = endpoint.redacted
    if code in WRONG_VERSION:
        spoken = VERSION_NAMES[version]
        return BrokerRefusedError(f"{where} does not speak MQTT {spoken} ({name}); {older}")
    way = _WAYS.get(code, "check what the broker allows")
    return BrokerRefusedError(f"{where} refused the connection: {name}; {way}")
