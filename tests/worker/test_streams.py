"""Devices over TLS: the same exchange, the same accounts, and what only TLS can do wrong."""

import asyncio
import socket
import ssl
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol

from loadgen.brokers.certificates import CertificateFiles
from loadgen.kernels.device import LISTED
from loadgen.mqtt.packets import Disconnect
from loadgen.mqtt.violations import FORBIDDEN_FRAME, TEXT_FRAME
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes, Target, Tls
from loadgen.worker import streams
from loadgen.worker.streams import MQTT, FrameViolationError, Streams, WebSocket
from tests.worker.harness import (
    MS,
    Driver,
    FakeBroker,
    Session,
    StartBroker,
    check_stream,
    one_worker_plan,
    until,
)


def tls_plan(*groups: DeviceGroup, port: int, host: str = "127.0.0.1", **fields: Any) -> Any:
    return one_worker_plan(*groups, targets=(Target(host, port, "tls"),), **fields)


def publishers(count: int = 2, rate: float = 200.0, **fields: Any) -> DeviceGroup:
    return DeviceGroup("publishers", count, Publishes("t/{topic}", rate, **fields))


SUBSCRIBER = DeviceGroup("subscribers", 1, subscribes=Subscribes(("t/+",), 1))


@pytest.mark.parametrize(("version", "qos"), [(4, 0), (5, 1), (4, 2)])
async def test_a_run_over_tls_counts_every_message_once(
    driver: Driver,
    start_broker: StartBroker,
    server_context: ssl.SSLContext,
    certificates: CertificateFiles,
    version: int,
    qos: int,
) -> None:
    broker = await start_broker(ssl=server_context)
    plan = tls_plan(
        publishers(qos=qos),
        SUBSCRIBER,
        port=broker.port,
        version=version,
        tls=Tls(ca_file=str(certificates.authority)),
    )
    answer = await driver.connect(plan)
    assert (answer["connected"], answer["failures"]) == (3, {})
    assert (await driver.subscribe())["subscribed"] == 1
    await driver.start(warmup_ms=100, measure_ms=300)
    await driver.finished()
    assert driver.now("sent") == driver.now("received") == 80
    await driver.stop()
    for number in range(2):
        dues = [driver.start_ns + number * 5 * MS + k * 10 * MS for k in range(40)]
        check_stream(broker.client(number).published, number, dues)
    assert driver.counted("sent", phase="measure") == 60
    assert driver.counted("received", phase="measure") == 60
    assert driver.counted("acknowledged") == (80 if qos else 0)
    assert driver.recorded_count("end_to_end") == driver.recorded_count("transit") == 80
    for series in ("connect", "tcp", "tls", "connack", "connected_at"):
        assert driver.recorded_count(series, phase="connect") == 3
    assert driver.events == []
    assert all(isinstance(session.packets[-1], Disconnect) for session in broker.sessions)


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    driver: Driver, start_broker: StartBroker, server_context: ssl.SSLContext
) -> None:
    broker = await start_broker(ssl=server_context)
    answer = await driver.connect(tls_plan(publishers(), port=broker.port, tls=Tls()))
    assert answer["connected"] == 0
    (reason, count), *others = answer["failures"].items()
    assert not others
    assert count == 2
    assert reason.startswith("certificate not accepted")
    assert driver.now("connect_failures") == 2
    await driver.stop()


async def test_a_certificate_for_another_host_is_refused(
    driver: Driver,
    start_broker: StartBroker,
    server_context: ssl.SSLContext,
    certificates: CertificateFiles,
) -> None:
    broker = await start_broker(ssl=server_context)
    # The same broker by a name that its certificate does not have.
    tls = Tls(ca_file=str(certificates.authority))
    answer = await driver.connect(tls_plan(publishers(1), port=broker.port, host="127.1", tls=tls))
    assert answer["connected"] == 0
    assert all("certificate" in reason for reason in answer["failures"])
    await driver.stop()


async def test_without_verification_any_certificate_will_do(
    driver: Driver, start_broker: StartBroker, server_context: ssl.SSLContext
) -> None:
    broker = await start_broker(ssl=server_context)
    await driver.configure(tls_plan(publishers(), port=broker.port, tls=Tls(verify=False)))
    assert (await driver.connect())["connected"] == 2
    await driver.stop()


async def test_a_client_certificate_is_shown(
    driver: Driver,
    start_broker: StartBroker,
    server_context: ssl.SSLContext,
    certificates: CertificateFiles,
) -> None:
    server_context.verify_mode = ssl.CERT_REQUIRED
    server_context.load_verify_locations(certificates.authority)
    seen: list[Any] = []

    async def look(session: Session) -> None:
        seen.append(session.writer.get_extra_info("peercert")["subject"])
        await session.welcome()
        await session.behave()

    broker = await start_broker(look, ssl=server_context)
    assert certificates.client_certificate and certificates.client_key
    own, key = (
        path.replace("{device}", "0")
        for path in (certificates.client_certificate, certificates.client_key)
    )
    tls = Tls(str(certificates.authority), own, key)
    await driver.configure(tls_plan(publishers(1), port=broker.port, tls=tls))
    assert (await driver.connect())["connected"] == 1
    assert seen == [((("commonName", "device-0"),),)]
    await driver.stop()


async def test_a_broker_without_tls_fails_the_handshake(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def answer_in_the_clear(session: Session) -> None:
        await session.reader.read(10)
        session.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await session.drain()
        session.close()

    broker = await start_broker(answer_in_the_clear)
    answer = await driver.connect(tls_plan(publishers(), port=broker.port, tls=Tls(verify=False)))
    assert answer["connected"] == 0
    assert sum(answer["failures"].values()) == 2
    assert all(reason.startswith("TLS: ") for reason in answer["failures"])
    await driver.stop()


async def test_a_port_where_nobody_listens_is_refused(driver: Driver) -> None:
    broker = FakeBroker()
    broker._listener.close()
    await driver.configure(tls_plan(publishers(), port=broker.port, tls=Tls(verify=False)))
    assert (await driver.connect())["failures"] == {"connection refused": 2}
    await driver.stop()


async def test_a_handshake_that_hangs_is_given_up(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def silent(session: Session) -> None:
        await asyncio.Event().wait()

    broker = await start_broker(silent)
    answer = await driver.connect(
        tls_plan(publishers(), port=broker.port, tls=Tls(verify=False)), timeout_s=0.2
    )
    assert answer["failures"] == {"no answer in time": 2}
    await driver.stop()
    assert driver.counted("connect_failures") == 2


async def test_many_devices_connect_without_one_expiring_before_it_began(
    driver: Driver, start_broker: StartBroker, server_context: ssl.SSLContext
) -> None:
    broker = await start_broker(ssl=server_context)
    group = DeviceGroup("devices", 150)
    answer = await driver.connect(
        tls_plan(group, port=broker.port, tls=Tls(verify=False)), in_flight=150
    )
    assert (answer["connected"], answer["failures"]) == (150, {})
    await driver.stop()


async def test_a_connection_that_drops_is_reported(
    driver: Driver, start_broker: StartBroker, server_context: ssl.SSLContext
) -> None:
    async def drop(session: Session) -> None:
        await session.welcome()
        while len(session.published) < 5:
            session.respond(await session.packet())
        if session.connect.client_id.endswith("-0"):
            session.abort()
        else:
            await session.behave()

    broker = await start_broker(drop, ssl=server_context)
    plan = tls_plan(publishers(qos=1), port=broker.port, tls=Tls(verify=False))
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=300)
    await driver.until(lambda: driver.window_ends)
    assert driver.now("disconnects") == 1
    assert driver.window_ends[0] == 60 - driver.now("sent") > 0
    await driver.stop()
    assert broker.published["t/1"] == 30


async def test_garbage_ends_the_connection(
    driver: Driver, start_broker: StartBroker, server_context: ssl.SSLContext
) -> None:
    async def spit(session: Session) -> None:
        await session.welcome()
        session.send_bytes(b"\x00 what is this")
        await session.behave()

    broker = await start_broker(spit, ssl=server_context)
    await driver.connect(tls_plan(publishers(1), port=broker.port, tls=Tls(verify=False)))
    await driver.until(lambda: driver.now("disconnects") == 1)
    await until(lambda: broker.gone == 1)
    await driver.stop()
    assert len(driver.said("protocol")) == 1


async def test_durable_sessions_are_forgotten_over_tls_too(
    driver: Driver, start_broker: StartBroker, server_context: ssl.SSLContext
) -> None:
    broker = await start_broker(ssl=server_context)
    group = DeviceGroup("devices", 2, clean_start=False)
    await driver.connect(tls_plan(group, port=broker.port, tls=Tls(verify=False)))
    await driver.stop()
    assert [session.connect.clean_start for session in broker.sessions] == [False] * 2 + [True] * 2
    assert driver.said("cleanup") == []


@pytest.mark.parametrize(
    ("tls_version", "cipher", "version"),
    [("1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2"), ("1.3", None, "TLSv1.3")],
)
async def test_the_last_answer_says_what_was_negotiated(
    driver: Driver,
    start_broker: StartBroker,
    server_context: ssl.SSLContext,
    certificates: CertificateFiles,
    tls_version: str,
    cipher: str | None,
    version: str,
) -> None:
    broker = await start_broker(ssl=server_context)
    tls = Tls(
        str(certificates.authority),
        minimum=tls_version,
        maximum=tls_version,
        ciphers=cipher,
        resume=True,
    )
    await driver.configure(tls_plan(publishers(10), port=broker.port, tls=tls))
    assert (await driver.connect(in_flight=1))["connected"] == 10
    said = (await driver.stop())["tls"]
    (entry,) = said["connections"]
    assert (entry["version"], entry["count"]) == (version, 10)
    assert entry["cipher"] == (cipher or "TLS_AES_256_GCM_SHA384")
    assert 5 <= said["resumed"] < 10


def upgraded(near: socket.socket, far: socket.socket) -> tuple[WebSocket, ServerProtocol]:
    """Both ends of a WebSocket, whose broker's frames are still to be sent."""
    near.setblocking(False)
    device = WebSocket(near, "ws://broker:1/mqtt")
    with pytest.raises(BlockingIOError):
        device.upgrade()
    broker = ServerProtocol(subprotocols=[MQTT])
    broker.receive_data(far.recv(1 << 16))
    (request,) = broker.events_received()
    assert isinstance(request, Request)
    broker.send_response(broker.accept(request))
    far.sendall(b"".join(broker.data_to_send()))
    device.upgrade()
    return device, broker


@pytest.mark.parametrize("last", [(), (b"\x30\x03\x00\x01t",)], ids=["alone", "behind a packet"])
def test_a_websocket_that_the_broker_closes_ends_and_takes_nothing_more(
    last: tuple[bytes, ...],
) -> None:
    near, far = socket.socketpair()
    with near, far:
        device, broker = upgraded(near, far)
        for data in last:
            broker.send_binary(data)
        broker.send_close()
        far.sendall(b"".join(broker.data_to_send()))
        view = memoryview(bytearray(100))
        for data in last:
            assert view[: device.recv_into(view)] == data
            # What the broker is owed cannot go out, and that is for the reader to notice.
            with pytest.raises(BrokenPipeError):
                device.send(b"acknowledged")
            assert device.pending()
        assert device.recv_into(view) == 0


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (b"\x81\2\xd0\0", TEXT_FRAME),
        (b"\x82\x82\0\0\0\0\xd0\0", FORBIDDEN_FRAME),  # masked
        (b"\xc2\2\xd0\0", FORBIDDEN_FRAME),  # a reserved bit
    ],
)
@pytest.mark.parametrize("before", [b"", b"\xd0\0"])
def test_a_frame_that_a_broker_must_not_send_is_a_violation(
    frame: bytes, kind: int, before: bytes
) -> None:
    near, far = socket.socketpair()
    with near, far:
        device, broker = upgraded(near, far)
        if before:
            broker.send_binary(before)
        far.sendall(b"".join(broker.data_to_send()) + frame)
        view = memoryview(bytearray(100))
        if before:
            assert view[: device.recv_into(view)] == before
        with pytest.raises(FrameViolationError) as caught:
            device.recv_into(view)
        assert caught.value.kind == kind


def test_a_broker_that_sends_control_frames_without_end_does_not_keep_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_PIECE_BYTES", 100)
    near, far = socket.socketpair()
    with near, far:
        device, broker = upgraded(near, far)
        for _ in range(2000):
            broker.send_pong(b"")
        broker.send_binary(b"data")
        far.sendall(b"".join(broker.data_to_send()))
        served = Streams.__new__(Streams)
        served.fleet = cast("Any", SimpleNamespace(ready=np.full(1, -1)))
        served._links, served._view = {0: device}, memoryview(bytearray(100))
        served._kept, served._flags, served._ready = (np.zeros(1, np.int64) for _ in range(3))
        served._read(0, 0)
        # The others have their turn, and then this one again.
        assert (served._flags[0], served._ready[0], served.fleet.ready[0]) == (LISTED, 1, 0)
        with pytest.raises(InterruptedError):
            device.recv_into(memoryview(bytearray(100)))
