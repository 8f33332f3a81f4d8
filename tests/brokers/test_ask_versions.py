import asyncio
import gc
import itertools
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import uvloop

from loadgen.brokers.ask import Attempt, Greeting, greet, shown_version, version_of
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.nats import run_nats
from loadgen.brokers.ports import free_port
from loadgen.brokers.reflector import run_reflector
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError
from loadgen.mqtt.packets import Connect
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.brokers.test_mosquitto import tls as tls
from tests.instruments.conftest import erring
from tests.needs import needs_mosquitto
from tests.secured_mosquitto import TlsFiles, run_secured
from tests.servers import Talk, closed, talking, upgraded


@needs_mosquitto
async def test_mosquitto() -> None:
    async with run_secured("max_inflight_messages 55", username="a", password="b") as broker:
        (endpoint,) = broker.endpoints
        greeting = await greet(endpoint)
        assert await version_of(endpoint, greeting.newest) == f"mosquitto version {broker.version}"
        assert greeting.versions == (4, 5)
        assert greeting.stated is not None and greeting.stated.receive_maximum == 55
        with pytest.raises(BrokerRefusedError) as caught:
            await greet(replace(endpoint, password="wrongwrong"))
    assert "Not authorized" in str(caught.value)
    assert "wrongwrong" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_the_login_of_a_device_is_used() -> None:
    async with serving_little(little := LittleBroker()) as endpoint:
        await greet(endpoint, login=Connect("", user_name="u", password=b"p"))
    assert {(one.user_name, one.password) for one in little.connects} == {("u", b"p")}
    assert len({one.client_id for one in little.connects}) == len(little.connects) == 2


@needs_mosquitto
async def test_tls(tls: TlsFiles) -> None:
    async with run_secured(tls=tls) as broker:
        trust = ssl.create_default_context(cafile=tls.certificate)
        assert (await greet(broker.endpoints[0], tls_context=trust)).versions == (4, 5)
        with pytest.raises(BrokerUnreachableError, match="certificate"):
            await greet(broker.endpoints[0])


async def test_broker_of_the_older_version_only() -> None:
    async with run_nats() as broker:
        (endpoint,) = broker.endpoints
        greeting = await greet(endpoint)
        assert await version_of(endpoint, greeting.newest) == "unknown"
    assert (greeting.versions, greeting.stated) == ((4,), None)


async def test_refused_with_the_name_of_the_reason() -> None:
    async with erring("refuse=0x8a") as reflector:
        with pytest.raises(BrokerRefusedError, match=r"Banned \(0x8A\)"):
            await greet(reflector.endpoints[0])


async def test_nobody_listens() -> None:
    endpoint = Endpoint("mqtt", "127.0.0.1", free_port("127.0.0.1"), "u", "hunter22")
    with pytest.raises(BrokerUnreachableError, match="refused") as caught:
        await greet(endpoint)
    assert "hunter22" not in str(caught.value)
    with pytest.raises(BrokerUnreachableError):
        await greet(Endpoint("mqtt", "no-such-host.invalid", 1883), timeout_s=2)


def _answering(answer: bytes, *, close: bool) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if not close:
            await reader.read()
        await closed(writer)

    return talk


@asynccontextmanager
async def _talking(talk: Talk, scheme: str = "mqtt") -> AsyncIterator[Endpoint]:
    async with talking(talk) as port:
        yield Endpoint(scheme, "127.0.0.1", port, path="/m" if scheme == "ws" else "")


@pytest.mark.parametrize(
    ("answer", "close"), [(b"", True), (b"SSH-2.0-OpenSSH_9.2\r\n", True), (b"", False)]
)
async def test_no_mqtt_there(answer: bytes, close: bool) -> None:
    async with _talking(_answering(answer, close=close)) as endpoint:
        with pytest.raises((BrokerRefusedError, BrokerUnreachableError)) as caught:
            await greet(endpoint, timeout_s=0.5)
    assert "\n" not in str(caught.value)


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n")
    while True:
        writer.write(b"X-More: more\r\n" * 20)
        await writer.drain()
        await asyncio.sleep(0.005)


def _polite_at_first() -> Talk:
    """Upgrades the first connection and then never ends its headers."""
    numbers = itertools.count()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(numbers) > 0:
            return await _endless(reader, writer)
        await upgraded(reader, writer)
        await reader.read()
        return None

    return talk


@pytest.mark.parametrize("talk", [_endless, _polite_at_first()])
def test_endless_answer_to_the_upgrade_ends_in_time(talk: Talk) -> None:
    async def ask() -> None:
        async with _talking(talk, "ws") as endpoint:
            with pytest.raises((BrokerRefusedError, BrokerUnreachableError)) as caught:
                await greet(endpoint, timeout_s=0.5)
            assert "\n" not in str(caught.value)

    before, since = threading.active_count(), time.monotonic()
    asyncio.run(ask())
    assert time.monotonic() - since < 5
    assert threading.active_count() == before


def test_probe_can_be_interrupted() -> None:
    async def ask() -> None:
        async with _talking(_polite_at_first(), "ws") as endpoint:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await greet(endpoint, timeout_s=20)

    before, since = threading.active_count(), time.monotonic()
    asyncio.run(ask())
    assert time.monotonic() - since < 5
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "HTTP 403 Forbidden"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "HTTP 302 Found"),
        (b"HTTP/1.1 101 Yes\r\nSec-WebSocket-Accept: no\r\n\r\n", "missing Connection header"),
        (
            b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: no\r\n\r\n",
            "invalid Sec-WebSocket-Accept header: no",
        ),
        (b"", "closed the connection;"),
        (b"SSH-2.0-\x1b[31m" + b"x" * 900 + b"\r\n\r\n", r"SSH-2.0-\x1b[31mxxx"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "answered SSH-2.0-OpenSSH_9.2;"),
    ],
)
async def test_upgrade_refused_with_the_reason(answer: bytes, said: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await closed(writer)

    async with _talking(talk, "ws") as endpoint:
        with pytest.raises(BrokerRefusedError) as caught:
            await greet(endpoint, timeout_s=2)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("accepts", [True, False])
async def test_close_frame_leaves_no_unread_exception(accepts: bool) -> None:
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upgraded(reader, writer)
        await reader.read(1)
        if accepts:
            writer.write(b"\x82\x05\x20\x03\x00\x00\x00")
        writer.write(b"\x88\x02\x03\xe8")
        await writer.drain()
        await asyncio.sleep(0.05)

    async with _talking(talk, "ws") as endpoint:
        with suppress(BrokerRefusedError, BrokerUnreachableError):
            await greet(endpoint, timeout_s=0.5)
    gc.collect()
    await asyncio.sleep(0)
    assert said == []


@needs_mosquitto
@pytest.mark.parametrize("websocket", [False, True])
async def test_missing_client_certificate_is_named(tls: TlsFiles, websocket: bool) -> None:
    asking = replace(tls, authority=tls.certificate, require_client_certificate=True)
    async with run_secured(tls=asking, websocket=websocket) as broker:
        trust = ssl.create_default_context(cafile=tls.certificate)
        with pytest.raises(BrokerRefusedError, match="certificate required; give") as caught:
            await greet(broker.endpoints[0], tls_context=trust, timeout_s=1)
    assert "MQTT port" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said", "login"),
    [
        (b"\x20\x03\x00\x88\x00", r"\(0x88\); try again", False),
        (b"\x20\x03\x00\x86\x00", r"\(0x86\); check user", True),
        (b"\x20\x03\x00\x95\x00", r"\(0x95\); check what", False),
    ],
)
async def test_only_a_wrong_login_is_about_the_password(
    answer: bytes, said: str, login: bool
) -> None:
    async with _talking(_answering(answer, close=False)) as endpoint:
        with pytest.raises(BrokerRefusedError, match=said) as caught:
            await greet(endpoint, timeout_s=2)
    assert ("password" in str(caught.value)) == login


@pytest.mark.parametrize(("code", "said"), [(3, "try again"), (4, "password"), (5, "password")])
async def test_refusal_of_the_older_version_says_what_to_do(code: int, said: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        level = (await reader.readexactly(9))[8]
        writer.write(b"\x20\x03\x00\x84\x00" if level == 5 else bytes((0x20, 2, 0, code)))
        await reader.read()

    async with _talking(talk) as endpoint:
        with pytest.raises(BrokerRefusedError, match=said):
            await greet(endpoint, timeout_s=2)


async def test_broker_of_the_newer_version_only() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        level = (await reader.readexactly(9))[8]
        writer.write(b"\x20\x03\x00\x00\x00" if level == 5 else b"\x20\x02\x00\x01")
        await reader.read()

    async with _talking(talk) as endpoint:
        assert (await greet(endpoint, timeout_s=1)).versions == (5,)


def test_on_uvloop_without_threads_left() -> None:
    async def ask() -> Greeting:
        async with run_reflector() as reflector:
            return await greet(reflector.endpoints[0])

    before = threading.active_count()
    assert uvloop.run(ask()).versions == (4, 5)
    assert threading.active_count() == before


def test_what_a_broker_says_is_bounded_and_escaped() -> None:
    assert shown_version(b"") == "unknown"
    assert shown_version(b" x 1.0 ") == "x 1.0"
    assert shown_version(b"\x1b[31m<b>\xff\n") == "\\x1b[31m<b>\\ufffd"
    assert len(shown_version(b"\0" * 10_000)) == 200


async def test_mqtt_3_1_is_asked_for_on_request() -> None:
    async with run_reflector() as broker:
        (endpoint,) = broker.endpoints
        assert (await greet(endpoint, versions=(5, 4, 3))).versions == (3, 4, 5)


async def test_all_connections_are_closed_when_nobody_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled while the first of them is closed, the others are closed all the same."""
    closed = []
    closing = asyncio.Event()
    close = Attempt.close

    async def slow(attempt: Attempt) -> None:
        closed.append(attempt)
        closing.set()
        await close(attempt)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(Attempt, "close", slow)
    async with serving_little(LittleBroker()) as endpoint:
        task = asyncio.ensure_future(greet(endpoint))
        await closing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(closed) == 2
