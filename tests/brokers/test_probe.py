import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import uvloop

from loadgen.brokers.amqtt_broker import run_amqtt
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import MosquittoSettings, TlsFiles, find_mosquitto, run_mosquitto
from loadgen.brokers.ports import free_port
from loadgen.brokers.probe import BrokerFacts, probe, shown_version
from loadgen.brokers.reflector import run_reflector
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError
from tests.brokers.conftest import run_local_reflector
from tests.brokers.test_mosquitto import tls as tls

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="the program mosquitto is not installed"
)


async def test_reflector() -> None:
    async with run_local_reflector() as reflector:
        (endpoint,) = reflector.endpoints
        assert await probe(endpoint) == BrokerFacts(
            endpoint=endpoint,
            version="loadgen reflector",
            versions=(4, 5),
            receive_maximum=65535,
            maximum_qos=2,
            maximum_packet_size_bytes=16 << 20,
            topic_alias_maximum=0,
            server_keep_alive_s=None,
            retain_available=True,
            wildcard_subscription_available=True,
            subscription_identifier_available=False,
            shared_subscription_available=True,
        )


@needs_mosquitto
async def test_mosquitto() -> None:
    settings = MosquittoSettings(max_inflight_messages=55, username="a", password="b")
    async with run_mosquitto(settings) as broker:
        facts = await probe(broker.endpoints[0])
        assert facts.version == f"mosquitto version {broker.version}"
        assert (facts.versions, facts.receive_maximum) == ((4, 5), 55)
        assert facts.shared_subscription_available
        with pytest.raises(BrokerRefusedError) as caught:
            await probe(replace(broker.endpoints[0], password="wrongwrong"))
    assert "Not authorized" in str(caught.value)
    assert "wrongwrong" not in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_mosquitto
async def test_tls(tls: TlsFiles) -> None:
    async with run_mosquitto(MosquittoSettings(tls=tls)) as broker:
        trust = ssl.create_default_context(cafile=tls.certificate)
        assert (await probe(broker.endpoints[0], tls_context=trust)).versions == (4, 5)
        with pytest.raises(BrokerUnreachableError, match="certificate"):
            await probe(broker.endpoints[0])


async def test_broker_of_the_older_version_only() -> None:
    async with run_amqtt() as broker:
        facts = await probe(broker.endpoints[0])
    assert facts.versions == (4,)
    assert facts.version == f"amqtt {broker.version}"
    assert facts.receive_maximum is None
    assert facts.shared_subscription_available is None


async def test_refused_with_the_name_of_the_reason() -> None:
    async with run_local_reflector("refuse=0x8a") as reflector:
        with pytest.raises(BrokerRefusedError, match=r"Banned \(0x8A\)"):
            await probe(reflector.endpoints[0])


async def test_nobody_listens() -> None:
    endpoint = Endpoint("mqtt", "127.0.0.1", free_port("127.0.0.1"), "u", "hunter22")
    with pytest.raises(BrokerUnreachableError, match="refused") as caught:
        await probe(endpoint)
    assert "hunter22" not in str(caught.value)
    with pytest.raises(BrokerUnreachableError):
        await probe(Endpoint("mqtt", "no-such-host.invalid", 1883), timeout_s=2)


@asynccontextmanager
async def _server(answer: bytes, *, close: bool) -> AsyncIterator[Endpoint]:
    talks = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        writer.write(answer)
        with suppress(OSError):
            if not close:
                await reader.read()
            writer.close()
            await writer.wait_closed()

    port = free_port("127.0.0.1")
    server = await asyncio.start_server(talk, "127.0.0.1", port)
    yield Endpoint("mqtt", "127.0.0.1", port)
    server.close()
    await asyncio.gather(*filter(None, talks))


@pytest.mark.parametrize(
    ("answer", "close"), [(b"", True), (b"SSH-2.0-OpenSSH_9.2\r\n", True), (b"", False)]
)
async def test_no_mqtt_there(answer: bytes, close: bool) -> None:
    async with _server(answer, close=close) as endpoint:
        with pytest.raises((BrokerRefusedError, BrokerUnreachableError)) as caught:
            await probe(endpoint, timeout_s=0.5)
    assert "\n" not in str(caught.value)


def test_on_uvloop_without_threads_left() -> None:
    async def ask() -> BrokerFacts:
        async with run_reflector() as reflector:
            return await probe(reflector.endpoints[0])

    before = threading.active_count()
    assert uvloop.run(ask()).versions == (4, 5)
    assert threading.active_count() == before


def test_what_a_broker_says_is_bounded_and_escaped() -> None:
    assert shown_version(b"") == "unknown"
    assert shown_version(b" x 1.0 ") == "x 1.0"
    assert shown_version(b"\x1b[31m<b>\xff\n") == "\\x1b[31m<b>\\ufffd"
    assert len(shown_version(b"\0" * 10_000)) == 200
