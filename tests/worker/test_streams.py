"""Devices over TLS: the same exchange and accounts, and faults of TLS."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol

from loadgen.brokers.certificates import CertificateFiles
from loadgen.kernels.device import LISTED
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import ConnAck
from loadgen.mqtt.violations import FORBIDDEN_FRAME, NO_SUBPROTOCOL, TEXT_FRAME, VIOLATIONS
from loadgen.plan.groups import DeviceGroup, Target, Tls
from loadgen.worker import streams
from loadgen.worker.streams import MQTT, FrameViolationError, Streams, WebSocket
from tests import servers
from tests.worker.harness import Driver, Session, one_worker_plan, publishers


@pytest.mark.parametrize(("host", "known"), [("127.0.0.1", False), ("127.1", True)])
async def test_a_certificate_of_another_authority_or_host_is_refused(
    driver: Driver, certificates: CertificateFiles, host: str, known: bool
) -> None:
    broker = await driver.broker(transport="tls")
    # 127.1 is the same broker by a name that its certificate does not have.
    targets = (Target(host, broker.port, "tls"),)
    tls = Tls(ca_file=str(certificates.authority)) if known else Tls()
    answer = await driver.connect(one_worker_plan(publishers(2), targets=targets, tls=tls))
    assert (answer["connected"], list(answer["failures"].values())) == (0, [2])
    (reason,) = answer["failures"]
    assert reason.startswith("certificate not accepted")
    assert driver.now("connect_failures") == 2
    await driver.stop()


async def test_a_broker_without_tls_fails_the_handshake(driver: Driver) -> None:
    async def answer_in_the_clear(session: Session) -> None:
        await session.reader.read(10)
        session.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await session.drain()
        session.close()

    broker = await driver.broker(answer_in_the_clear)
    answer = await driver.connect(one_worker_plan(publishers(2), port=broker.port, transport="tls"))
    assert answer["connected"] == 0
    assert sum(answer["failures"].values()) == 2
    assert all(reason.startswith("TLS: ") for reason in answer["failures"])
    await driver.stop()


async def test_many_devices_connect_without_one_expiring_before_it_began(driver: Driver) -> None:
    broker = await driver.broker(transport="tls")
    group = DeviceGroup("devices", 150)
    answer = await driver.connect(
        one_worker_plan(group, port=broker.port, transport="tls"), in_flight=150
    )
    assert (answer["connected"], answer["failures"]) == (150, {})
    await driver.stop()


@pytest.mark.parametrize(
    ("tls_version", "cipher", "version", "resume"),
    [
        ("1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", True),
        ("1.3", None, "TLSv1.3", True),
        ("1.3", None, "TLSv1.3", False),
    ],
)
async def test_the_last_answer_says_what_was_negotiated(
    driver: Driver,
    certificates: CertificateFiles,
    tls_version: str,
    cipher: str | None,
    version: str,
    resume: bool,
) -> None:
    broker = await driver.broker(transport="tls")
    tls = Tls(str(certificates.authority), version=tls_version, ciphers=cipher, resume=resume)
    plan = one_worker_plan(publishers(10), port=broker.port, transport="tls", tls=tls)
    await driver.configure(plan)
    assert (await driver.connect(in_flight=1))["connected"] == 10
    said = (await driver.stop())["tls"]
    (entry,) = said["connections"]
    assert (entry["version"], entry["count"]) == (version, 10)
    assert entry["cipher"] == (cipher or "TLS_AES_256_GCM_SHA384")
    assert said["resumed"] in (range(5, 10) if resume else (0,))


def upgraded(near: socket.socket, far: socket.socket) -> tuple[WebSocket, ServerProtocol]:
    """Return both ends of a WebSocket; the broker's frames are not sent yet."""
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
            # Unsent bytes cannot leave, and only the reader notices that.
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


async def test_a_websocket_without_its_subprotocol_is_a_violation(driver: Driver) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await servers.upgraded(reader, writer)
        await reader.read(1)
        writer.write(b"\x82\4" + encode(ConnAck(), 4))
        await reader.read()

    async with servers.talking(talk) as port:
        target = Target("127.0.0.1", port, "ws")
        await driver.connect(one_worker_plan(publishers(1), targets=(target,)))
        await driver.stop()
    assert driver.said("violation") == [VIOLATIONS[NO_SUBPROTOCOL].words]
    assert driver.counted("violations") == 1


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
