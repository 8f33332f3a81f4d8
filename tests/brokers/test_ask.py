"""A port without CONNACK is explained in one line, and soon."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadgen.brokers import ask as asking
from loadgen.brokers.ask import Attempt, ask, connect_of, ended
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.packet_stream import open_socket
from loadgen.brokers.ports import free_port
from loadgen.errors import BrokerRefusedError, CannotRunError
from loadgen.mqtt.constants import MQTT_5
from tests.brokers.full_listener import full_listener
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.brokers.test_mosquitto import tls as tls
from tests.needs import needs_mosquitto
from tests.secured_mosquitto import TlsFiles, run_secured
from tests.servers import Talk, talking

SECRET = "hunter22"
CONNECT_3_1_1 = b"\x04MQTT\x04"


@asynccontextmanager
async def serving(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """A little server, at a port of its own."""
    async with talking(talk, tls) as port:
        yield Endpoint("mqtt", "127.0.0.1", port, "user", SECRET)


def answering(answer: bytes, *, after: bytes = b"") -> Talk:
    """A server that answers once these bytes have come, and stays."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if after:
            await reader.readuntil(after)
        writer.write(answer)
        await reader.read()
        await asyncio.Event().wait()

    return talk


async def closing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """A server that takes a connection and closes it."""


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that waits for a whole line, as one for HTTP does."""
    line = await reader.readline()
    status = b"404 Not Found" if line.startswith(b"GET ") else b"400 Bad Request"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def said(endpoint: Endpoint, version: int = 4, timeout_s: float = 5.0) -> str:
    """The one line about this endpoint; it comes in time and repeats no secret."""
    since_s = time.monotonic()
    with pytest.raises(CannotRunError) as caught:
        await ask(endpoint, connect_of(endpoint, version), timeout_s=timeout_s)
    text = str(caught.value)
    # The limit, and a moment for a busy host.
    assert time.monotonic() - since_s < timeout_s + 5
    assert text.isprintable()
    assert SECRET not in text
    return text


@pytest.mark.parametrize(
    ("talk", "told"),
    [
        (closing, "closes new connections without an answer; has it reached a limit"),
        (answering(b"SSH-2.0-OpenSSH_9.2\r\n"), "answered as SSH, not MQTT; is the port right?"),
        (answering(b"HTTP/1.1 400 Bad\r\n\r\n"), "answered HTTP/1.1 400, not MQTT; is the port"),
        (http, "answered HTTP/1.1 404, not MQTT; is the port right?"),
        (answering(b"220 a \x1b[31m\r\n"), r"answered '220 a \x1b[31m', not MQTT"),
        (answering(b"AMQP\x00\x00\x09\x01"), "answered as AMQP, not MQTT"),
        (answering(b"\x15\x03\x01\x00\x02\x02\x28"), "speaks TLS"),
        (answering(b"\xd0\x00"), "answered '"),
        (answering(b""), "takes connections and sends nothing within 2 s; is it an MQTT port?"),
    ],
)
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
async def test_what_is_no_broker_is_named(scheme: str, talk: Talk, told: str) -> None:
    async with serving(talk) as plain:
        endpoint = replace(plain, scheme=scheme)
        text = await said(endpoint, timeout_s=2)
    if scheme == "mqtts" and "TLS" in told:
        assert "TLS" in text
    else:
        assert told in text
    assert endpoint.address in text


async def test_nobody_takes_the_connection() -> None:
    closed = Endpoint("mqtt", "127.0.0.1", free_port("127.0.0.1"), "user", SECRET)
    text = await said(closed)
    assert text.startswith(f"no broker at mqtt://user:***@127.0.0.1:{closed.port}: connection ref")
    unknown = await said(replace(closed, host="no-such-host.invalid"))
    assert unknown.endswith("; is the name right?")


@pytest.mark.parametrize(("number", "told"), [(113, "no route to host"), (101, "network is unre")])
async def test_there_is_no_way(monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    async def refuse(_host: str, _port: int) -> socket.socket:
        raise OSError(number, "x")

    monkeypatch.setattr("loadgen.brokers.ask.open_socket", refuse)
    assert f": {told}" in await said(Endpoint("mqtt", "127.0.0.1", 1))


async def test_nothing_answers_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_host: str, _port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("loadgen.brokers.ask.open_socket", wait)
    text = await said(Endpoint("mqtt", "127.0.0.1", 1), timeout_s=0.3)
    assert "nothing answers within 0.3 s; is the address right, and does every firewall" in text


# Brokers that are reached in another way ---------------------------------------------------------


def accepts(level: bytes) -> Talk:
    """A broker of one version that drops a client of the other without a word."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.readexactly(9)
        if not start.endswith(b"MQTT" + level):
            return
        writer.write(b"\x20\x02\x00\x00" if level == b"\x04" else b"\x20\x03\x00\x00\x00")
        await reader.read()

    return talk


async def test_a_version_that_is_dropped_is_told_at_once() -> None:
    async with serving(accepts(b"\x04")) as endpoint:
        with pytest.raises(BrokerRefusedError, match="does not speak MQTT 5; use --mqtt 3"):
            await ask(endpoint, connect_of(endpoint, 5), older="use --mqtt 3.1.1")
    async with serving(accepts(b"\x05")) as endpoint:
        assert "does not speak MQTT 3.1.1; use the other version" in await said(endpoint, 4)


async def test_a_version_that_gets_no_answer_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readexactly(9))[8] == 4:
            writer.write(b"\x20\x02\x00\x00")
        await reader.read()

    async with serving(talk) as endpoint:
        assert "does not speak MQTT 5" in await said(endpoint, 5)


async def test_a_broker_that_thinks_for_a_while_is_let_think() -> None:
    """Other ways are asked beside it, and none of them is taken for it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"user" in await reader.read(100):
            await asyncio.sleep(1.5)
            writer.write(b"\x20\x02\x00\x00")
        else:
            writer.write(b"\x20\x02\x00\x05")
        await reader.read()

    async with serving(talk) as endpoint:
        stream, connack = await ask(endpoint, connect_of(endpoint, 4))
        await stream.close()
    assert connack.reason_code == 0


async def test_refusals_of_the_older_version_are_in_its_words() -> None:
    async with serving(answering(b"\x20\x02\x00\x02", after=b"MQTT")) as endpoint:
        text = await said(endpoint)
    assert "refused the connection: Connection Refused, identifier rejected (2)" in text


async def test_a_reason_string_is_shown_escaped() -> None:
    connack = b"\x20\x0b\x00\x87\x08\x1f\x00\x05no\x1b[m"
    async with serving(answering(connack, after=b"MQTT")) as endpoint:
        text = await said(endpoint, 5)
    assert r"Not authorized (0x87): no\x1b[m; check user and password" in text


@needs_mosquitto
async def test_mosquitto_reached_in_other_ways(tls: TlsFiles) -> None:
    async with run_secured(tls=tls) as broker:
        secure = broker.endpoints[0]
        text = await said(replace(secure, scheme="mqtt"))
        assert text.endswith(f"speaks TLS: use mqtts://{secure.address}")
    async with run_secured() as broker:
        plain = broker.endpoints[0]
        text = await said(replace(plain, scheme="mqtts"))
        assert text.endswith(f"does not speak TLS: use mqtt://{plain.address}")
        text = await said(replace(plain, scheme="ws", path="/mqtt"))
        assert text.endswith(f"speaks MQTT without WebSocket: use mqtt://{plain.address}")
    async with run_secured(websocket=True) as broker:
        web = broker.endpoints[0]
        text = await said(replace(web, scheme="mqtt", path=""))
        assert text.endswith(f"speaks MQTT over WebSocket: use ws://{web.address}/mqtt")


def test_no_password_is_tried_elsewhere() -> None:
    """Only the way that was asked for gets the login; and on uvloop no thread is left."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))

    async def both() -> None:
        async with serving(listen) as endpoint:
            await said(replace(endpoint, scheme="mqtts"))
            await said(replace(endpoint, scheme="ws", path="/mqtt"))

    before = threading.active_count()
    uvloop.run(both())
    assert threading.active_count() == before
    assert any(CONNECT_3_1_1 in data for data in heard)
    assert not any(SECRET.encode() in data for data in heard)


async def test_a_closed_stream_can_be_closed_again() -> None:
    async with serving(answering(b"\x20\x02\x00\x00", after=b"MQTT")) as endpoint:
        stream, _ = await ask(endpoint, connect_of(endpoint, 4))
        await stream.close()
        await stream.close()


async def test_an_accepted_connection_is_closed_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted, ended = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x20\x02\x00\x00")
        await reader.read()
        ended.set()

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
        await asyncio.wait_for(ended.wait(), 20)


async def test_other_ways_are_closed_though_their_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
        await ended(tasks)
        raise asyncio.CancelledError

    broker = LittleBroker(drops=lambda packet: packet.protocol_version == MQTT_5)
    async with serving_little(broker) as endpoint:
        attempt = Attempt(endpoint, connect_of(endpoint, 5))
        await attempt.run()
        monkeypatch.setattr(asking, "ended", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await asking._other_ways(attempt, 5.0, spoken=False)
        assert {packet.protocol_version for packet in broker.connects} == {4, 5}
        async with asyncio.timeout(5):
            while broker.connected:
                await asyncio.sleep(0.01)


async def test_a_connection_that_is_waited_for_no_more_is_closed() -> None:
    def sockets() -> int:
        return sum(one.is_socket() for one in Path("/proc/self/fd").iterdir())

    with full_listener() as (host, port):
        before = sockets()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await open_socket(host, port)
        assert sockets() == before
