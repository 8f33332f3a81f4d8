"""A port without CONNACK is explained in one line, and soon."""

import asyncio
import gc
import itertools
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadgen.brokers import ask as asking
from loadgen.brokers import certificates
from loadgen.brokers.ask import BrokerConnection, ask, connect_of, ended, greet
from loadgen.brokers.certificates import make_certificates
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.nats import run_nats
from loadgen.brokers.ports import free_port, open_socket
from loadgen.brokers.reflector import run_reflector
from loadgen.errors import CannotRunError, LoadgenError
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.packets import Connect
from tests.brokers.full_listener import full_listener
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.instruments.relay import run_erring
from tests.needs import needs_mosquitto
from tests.secured_mosquitto import TlsFiles, run_secured
from tests.servers import Talk, closed, talking, upgraded
from tests.tables import rows_of

SECRET = "hunter22"
CONNECT_3_1_1 = b"\x04MQTT\x04"


@asynccontextmanager
async def serving(
    talk: Talk, tls: ssl.SSLContext | None = None, scheme: str = "mqtt"
) -> AsyncIterator[Endpoint]:
    path = "/m" if scheme == "ws" else ""
    async with talking(talk, tls) as port:
        yield Endpoint(scheme, "127.0.0.1", port, "user", SECRET, path)


def answering(answer: bytes, *, after: bytes = b"", close: bool = False) -> Talk:
    """Return a server that answers once these bytes have come, and stays or closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if after:
            await reader.readuntil(after)
        writer.write(answer)
        if close:
            await closed(writer)
            return
        await reader.read()
        await asyncio.Event().wait()

    return talk


async def closing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Take a connection and close it."""


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for a whole line, as a server for HTTP does."""
    line = await reader.readline()
    status = b"404 Not Found" if line.startswith(b"GET ") else b"400 Bad Request"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def refused(
    endpoint: Endpoint,
    version: int = 4,
    timeout_s: float = 5.0,
    tls_context: ssl.SSLContext | None = None,
) -> LoadgenError:
    """Return the error about this endpoint; it comes in time and repeats no secret."""
    since_s = time.monotonic()
    with pytest.raises(CannotRunError) as caught:
        await ask(endpoint, connect_of(endpoint, version), tls_context, timeout_s=timeout_s)
    text = str(caught.value)
    # The limit, and a moment for a busy host.
    assert time.monotonic() - since_s < timeout_s + 5
    assert text.isprintable() and len(text) < 400
    assert SECRET not in text
    return caught.value


@pytest.mark.parametrize(
    ("talk", "code", "value"),
    [
        (closing, "CLOSES", ""),
        (answering(b"SSH-2.0-OpenSSH_9.2\r\n"), "OTHER_PROTOCOL", "answered as SSH, not MQTT"),
        (answering(b"HTTP/1.1 400 Bad\r\n\r\n"), "OTHER_PROTOCOL", "answered HTTP/1.1 400, not"),
        (http, "OTHER_PROTOCOL", "answered HTTP/1.1 404, not MQTT"),
        (answering(b"220 a \x1b[31m\r\n"), "OTHER_PROTOCOL", r"answered '220 a \x1b[31m', not"),
        (answering(b"AMQP\x00\x00\x09\x01"), "OTHER_PROTOCOL", "answered as AMQP, not MQTT"),
        (answering(b"\xd0\x00"), "OTHER_PROTOCOL", "answered '"),
        (answering(b""), "SILENT", ""),
    ],
)
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
async def test_a_port_without_broker_is_named(
    scheme: str, talk: Talk, code: str, value: str
) -> None:
    async with serving(talk) as plain:
        endpoint = replace(plain, scheme=scheme)
        error = await refused(endpoint, timeout_s=2)
    assert error.code == code
    assert endpoint.address in error.values["where"]
    assert error.values.get("opening", "").startswith(value)
    assert bool(error.values.get("option")) is (code == "CLOSES" and scheme == "mqtts")


async def test_a_tls_alert_is_named() -> None:
    async with serving(answering(b"\x15\x03\x01\x00\x02\x02\x28")) as plain:
        assert (await refused(plain, timeout_s=2)).values["opening"].code == "SPEAKS_TLS"
        assert "TLS" in str(await refused(replace(plain, scheme="mqtts"), timeout_s=2))


async def test_a_closed_port() -> None:
    endpoint = Endpoint("mqtt", "127.0.0.1", free_port("127.0.0.1"), "user", SECRET)
    error = await refused(endpoint)
    assert (error.code, error.values["cause"]) == ("NOT_RUNNING", "connection refused")
    assert error.values["where"] == f"mqtt://user:***@{endpoint.address}"
    assert (await refused(replace(endpoint, host="no-such-host.invalid"))).code == "NO_NAME"


@pytest.mark.parametrize(("number", "cause"), [(113, "no route to host"), (101, "network is unre")])
async def test_there_is_no_way(monkeypatch: pytest.MonkeyPatch, number: int, cause: str) -> None:
    async def refuse(_host: str, _port: int) -> socket.socket:
        raise OSError(number, "x")

    monkeypatch.setattr("loadgen.brokers.ask.open_socket", refuse)
    error = await refused(Endpoint("mqtt", "127.0.0.1", 1))
    assert error.code == "NO_WAY" and error.values["cause"].startswith(cause)


async def test_nothing_answers_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_host: str, _port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("loadgen.brokers.ask.open_socket", wait)
    error = await refused(Endpoint("mqtt", "127.0.0.1", 1), timeout_s=0.3)
    assert (error.code, error.values["timeout_s"]) == ("NO_ANSWER", 0.3)


def accepts(level: bytes) -> Talk:
    """Return a broker of one version that drops a client of the other without a word."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.readexactly(9)
        if not start.endswith(b"MQTT" + level):
            return
        writer.write(b"\x20\x02\x00\x00" if level == b"\x04" else b"\x20\x03\x00\x00\x00")
        await reader.read()

    return talk


async def silent_to_mqtt_5(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if (await reader.readexactly(9))[8] == 4:
        writer.write(b"\x20\x02\x00\x00")
    await reader.read()


@pytest.mark.parametrize(
    ("talk", "version", "name"),
    [
        (accepts(b"\x04"), 5, "5"),
        (accepts(b"\x05"), 4, "3.1.1"),
        (silent_to_mqtt_5, 5, "5"),
        (answering(b"\x20\x02\x00\x00", after=b"MQTT"), 5, "5"),
    ],
)
async def test_a_version_that_the_broker_does_not_speak(
    talk: Talk, version: int, name: str
) -> None:
    async with serving(talk) as endpoint:
        error = await refused(endpoint, version)
    assert (error.code, error.values["version"]) == ("OTHER_VERSION", name)


async def test_a_connack_of_3_1_1_is_not_mqtt_5() -> None:
    async with serving_little(LittleBroker(lies=True)) as endpoint:
        error = await refused(endpoint, 5)
        greeting = await greet(endpoint)
    assert error.values["answer"].code == "CONNACK_OF_3_1_1"
    assert (greeting.versions, greeting.stated) == ((4,), None)
    (refusal,) = greeting.refusals
    assert refusal.values["answer"].code == "CONNACK_OF_3_1_1"


async def test_a_slow_broker_gets_its_time() -> None:
    """Other ways are tried in the meantime, and none of them is taken for it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"user" in await reader.read(100):
            await asyncio.sleep(1.5)
            writer.write(b"\x20\x02\x00\x00")
        else:
            writer.write(b"\x20\x02\x00\x05")
        await reader.read()

    async with serving(talk) as endpoint:
        connection, connack = await ask(endpoint, connect_of(endpoint, 4))
        await connection.close()
        await connection.close()
    assert connack.reason_code == 0


async def test_versions_of_a_broker() -> None:
    async with run_reflector() as broker:
        (endpoint,) = broker.endpoints
        assert (await greet(endpoint, versions=(5, 4, 3))).versions == (3, 4, 5)
    async with run_nats() as nats:
        greeting = await greet(nats.endpoints[0])
        assert (greeting.versions, greeting.stated) == ((4,), None)
    async with serving(accepts(b"\x05")) as endpoint:
        assert (await greet(endpoint, timeout_s=3)).versions == (5,)


@needs_mosquitto
async def test_mosquitto() -> None:
    async with run_secured("max_inflight_messages 55", username="a", password="b") as broker:
        (endpoint,) = broker.endpoints
        greeting = await greet(endpoint)
        assert greeting.versions == (4, 5)
        assert greeting.stated is not None and greeting.stated.receive_maximum == 55
        error = await refused(replace(endpoint, password="wrongwrong"), 5)
        assert error.code == "WRONG_LOGIN" and "wrongwrong" not in str(error)
        error = await refused(replace(endpoint, password=None), 5)
        assert error.code == "NO_PASSWORD"
        error = await refused(replace(endpoint, username=None, password=None), 5)
        assert error.code == "NO_USER"


async def test_the_login_of_a_device_is_used() -> None:
    async with serving_little(little := LittleBroker()) as endpoint:
        await greet(endpoint, login=Connect("", user_name="u", password=b"p"))
    assert {(one.user_name, one.password) for one in little.connects} == {("u", b"p")}
    assert len({one.client_id for one in little.connects}) == len(little.connects) == 2


@pytest.mark.parametrize(("answer", "version", "code", "name"), rows_of("brokers.refusals"))
async def test_a_refusal_has_its_reason_and_advice(
    answer: str, version: int, code: str, name: str
) -> None:
    async with serving(answering(bytes.fromhex(answer), after=b"MQTT")) as endpoint:
        error = await refused(endpoint, version)
    assert (error.code, error.values["name"]) == (code, name)


async def test_the_refusal_of_another_reason_is_shown_first() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        level = (await reader.readexactly(9))[8]
        writer.write(b"\x20\x03\x00\x84\x00" if level == 5 else b"\x20\x02\x00\x04")
        await reader.read()

    async with serving(talk) as endpoint:
        with pytest.raises(CannotRunError) as caught:
            await greet(endpoint, timeout_s=2)
    assert caught.value.code == "WRONG_LOGIN"
    async with run_erring("refuse=0x8a") as reflector:
        with pytest.raises(CannotRunError) as caught:
            await greet(reflector.endpoints[0])
    assert caught.value.values["name"] == "Banned (0x8A)"


@needs_mosquitto
async def test_mosquitto_reached_in_other_ways(tls: TlsFiles) -> None:
    async def use(endpoint: Endpoint) -> tuple[str, str]:
        error = await refused(endpoint)
        assert error.code == "OTHER_TRANSPORT"
        text = error.values["use"]
        return text.code, text.values["url"]

    async with run_secured(tls=tls) as broker:
        secure = broker.endpoints[0]
        url = f"mqtts://{secure.address}"
        assert await use(replace(secure, scheme="mqtt")) == ("USE_TLS", url)
    async with run_secured() as broker:
        plain = broker.endpoints[0]
        url = f"mqtt://{plain.address}"
        assert await use(replace(plain, scheme="mqtts")) == ("USE_NO_TLS", url)
        web = replace(plain, scheme="ws", path="/mqtt")
        assert await use(web) == ("USE_NO_WEBSOCKET", url)
    async with run_secured(websocket=True) as broker:
        web = broker.endpoints[0]
        url = f"ws://{web.address}/mqtt"
        assert await use(replace(web, scheme="mqtt", path="")) == ("USE_WEBSOCKET", url)


def test_no_password_is_tried_elsewhere() -> None:
    """Only the requested way gets the login; and on uvloop no thread is left."""
    received: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1000))

    async def both() -> None:
        async with serving(listen) as endpoint:
            await refused(replace(endpoint, scheme="mqtts"))
            await refused(replace(endpoint, scheme="ws", path="/mqtt"))

    before = threading.active_count()
    uvloop.run(both())
    assert threading.active_count() == before
    assert any(CONNECT_3_1_1 in data for data in received)
    assert not any(SECRET.encode() in data for data in received)


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    files = make_certificates(tmp_path / "tls", ["127.0.0.1"], key="ecdsa")
    return TlsFiles(files.certificate, files.key, files.authority)


def _server(directory: Path, *hosts: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server for these hosts and of a client that trusts it."""
    files = make_certificates(directory, hosts)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    return server, ssl.create_default_context(cafile=files.authority)


async def test_a_certificate_of_other_names(tmp_path: Path) -> None:
    server, trust = _server(tmp_path, "broker.example", "192.0.2.1")
    async with serving(closing, server, "mqtts") as endpoint:
        error = await refused(endpoint, tls_context=trust)
        assert error.code == "CERTIFICATE_NAMES"
        assert error.values["names"] == ("broker.example", "192.0.2.1")
        assert (await refused(endpoint)).code == "CERTIFICATE_UNTRUSTED"


async def test_a_certificate_that_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Past":
            return cls.fromtimestamp((datetime.now(UTC) - timedelta(days=38)).timestamp(), UTC)

    monkeypatch.setattr(certificates, "datetime", Past)
    files = make_certificates(tmp_path, ["127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    # Trust in the server's certificate itself: that of the authority has expired, too.
    trust = ssl.create_default_context(cafile=files.certificate)
    trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    async with serving(closing, server, "mqtts") as endpoint:
        error = await refused(endpoint, tls_context=trust)
    until = datetime.now(UTC) - timedelta(days=8)
    assert (error.code, error.values["until"]) == ("CERTIFICATE_EXPIRED", until.date().isoformat())


@needs_mosquitto
@pytest.mark.parametrize("websocket", [False, True])
async def test_client_certificates_of_mosquitto(
    tls: TlsFiles, tmp_path: Path, websocket: bool
) -> None:
    asking = replace(tls, require_client_certificate=True)
    other = make_certificates(tmp_path / "other", ["x"], clients=1)
    async with run_secured(tls=asking, websocket=websocket) as broker:
        trust = ssl.create_default_context(cafile=tls.authority)
        error = await refused(broker.endpoints[0], timeout_s=2, tls_context=trust)
        assert (error.code, error.values["fault"]) == (
            "CERTIFICATE_REQUIRED",
            "tlsv13 alert certificate required",
        )
        trust.load_cert_chain(
            str(other.client_certificate).format(device=0), str(other.client_key).format(device=0)
        )
        error = await refused(broker.endpoints[0], timeout_s=2, tls_context=trust)
        assert (error.code, error.values["fault"]) == (
            "CERTIFICATE_REFUSED",
            "tlsv1 alert unknown ca",
        )


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n")
    while True:
        writer.write(b"X-More: more\r\n" * 20)
        await writer.drain()
        await asyncio.sleep(0.005)


def _endless_at_the_second() -> Talk:
    """Return a server that upgrades the first connection and then never ends its headers."""
    numbers = itertools.count()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(numbers) > 0:
            return await _endless(reader, writer)
        await upgraded(reader, writer, "mqtt")
        await reader.read()
        return None

    return talk


@pytest.mark.parametrize("talk", [_endless, _endless_at_the_second()])
@pytest.mark.parametrize("interrupted", [False, True])
def test_endless_answer_to_the_upgrade_ends_in_time(talk: Talk, interrupted: bool) -> None:
    async def connect() -> None:
        async with serving(talk, scheme="ws") as endpoint:
            if not interrupted:
                await refused(endpoint, timeout_s=0.5)
                return
            with pytest.raises((TimeoutError, CannotRunError)):
                async with asyncio.timeout(0.5):
                    await greet(endpoint, timeout_s=20)

    before, since = threading.active_count(), time.monotonic()
    asyncio.run(connect())
    assert time.monotonic() - since < 5
    assert threading.active_count() == before


@pytest.mark.parametrize(("answer", "fault"), rows_of("brokers.upgrades_refused"))
async def test_a_refused_upgrade_has_its_reason(answer: str, fault: str) -> None:
    data = answer.replace("{x}", "x" * 900).encode()
    talk = answering(data, after=b"\r\n\r\n", close=True)
    async with serving(talk, scheme="ws") as endpoint:
        error = await refused(endpoint, timeout_s=2)
    assert error.code == "NOT_UPGRADED" and error.values["fault"].startswith(fault)


@pytest.mark.parametrize("accepts", [True, False])
async def test_close_frame_leaves_no_unread_exception(accepts: bool) -> None:
    unread: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upgraded(reader, writer, "mqtt")
        await reader.read(1)
        if accepts:
            writer.write(b"\x82\x05\x20\x03\x00\x00\x00")
        writer.write(b"\x88\x02\x03\xe8")
        await writer.drain()
        await asyncio.sleep(0.05)

    async with serving(talk, scheme="ws") as endpoint:
        with suppress(CannotRunError):
            await greet(endpoint, timeout_s=0.5)
    gc.collect()
    await asyncio.sleep(0)
    assert unread == []


async def test_an_accepted_connection_is_closed_if_the_wait_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted, over = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x02\x00\x00")
        await reader.read()
        over.set()

    async def never_ends(_: object) -> None:
        accepted.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asking, "ended", never_ends)
    async with serving(talk) as endpoint:
        waiting = asyncio.create_task(ask(endpoint, connect_of(endpoint, 4)))
        await accepted.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(over.wait(), 20)


async def test_other_ways_are_closed_though_their_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
        await ended(tasks)
        raise asyncio.CancelledError

    broker = LittleBroker(drops=lambda packet: packet.protocol_version == MQTT_5)
    async with serving_little(broker) as endpoint:
        attempt = BrokerConnection(endpoint, connect_of(endpoint, 5))
        await attempt.connect()
        monkeypatch.setattr(asking, "ended", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await asking._other_ways(attempt, 5.0, spoken=False)
        assert {packet.protocol_version for packet in broker.connects} == {4, 5}
        async with asyncio.timeout(5):
            while broker.connected:
                await asyncio.sleep(0.01)


async def test_a_cancelled_connect_closes_its_socket() -> None:
    def sockets() -> int:
        return sum(one.is_socket() for one in Path("/proc/self/fd").iterdir())

    with full_listener() as (host, port):
        before = sockets()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await open_socket(host, port)
        assert sockets() == before
