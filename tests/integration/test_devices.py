"""What devices of a fleet do, one worker against private Mosquittos: nothing may be lost by it."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from loadgen.brokers.certificates import CertificateFiles
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.process import ProgramSettings
from loadgen.brokers.start import serve
from loadgen.plan import groups
from tests.secured_mosquitto import TlsFiles, run_secured
from tests.tables import rows_of
from tests.worker.harness import HANG_S, Driver, FakeBroker, Gone, Session, one_worker_plan, until

StartBroker = Callable[..., Awaitable[FakeBroker]]


def publishers(
    count: int = 4, rate: float = 400.0, *, qos: int = 0, topics: int | None = None, **fields: Any
) -> groups.DeviceGroup:
    publishes = groups.Publishes("t/{topic}", rate, qos)
    if "size" in fields:
        publishes = replace(publishes, size_bytes=(fields["size"], fields.pop("size")))
    return groups.DeviceGroup("publishers", count, publishes, topics=topics or count, **fields)


def subscribers(
    count: int = 1, *, qos: int = 0, wildcard: bool = True, **fields: Any
) -> groups.DeviceGroup:
    wanted = groups.Subscribes(("t/+" if wildcard else "t/{topic}",), qos)
    return groups.DeviceGroup("subscribers", count, subscribes=wanted, **fields)


def target(endpoint: Endpoint) -> groups.Target:
    transport = {"mqtt": "tcp", "mqtts": "tls"}.get(endpoint.scheme, endpoint.scheme)
    return groups.Target(endpoint.host, endpoint.port, transport, endpoint.path or "/mqtt")  # type: ignore[arg-type]


def targets(*brokers: Any) -> tuple[groups.Target, ...]:
    return tuple(target(broker.endpoints[0]) for broker in brokers)


async def play(driver: Driver, plan: Any, *, warmup_ms: int = 100, measure_ms: int = 400) -> None:
    """Every phase up to the start of the schedule; everyone connected and subscribed."""
    devices = (await driver.configure(plan))["devices"]
    connected = await driver.connect()
    assert (connected["connected"], connected["failures"]) == (devices, {})
    assert (await driver.subscribe())["failures"] == {}
    await driver.start(warmup_ms=warmup_ms, measure_ms=measure_ms)


def check_nothing_lost(driver: Driver) -> None:
    assert driver.counted("sent") == driver.counted("expected") > 0
    assert driver.counted("received") == driver.counted("expected")
    for name in ("corrupt", "foreign", "out_of_order"):
        assert driver.counted(name) == 0, name


# --- coming back -----------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "qos"), [(4, 1), (5, 2)])
async def test_durable_sessions_lose_nothing_when_the_broker_restarts(
    driver: Driver, version: int, qos: int
) -> None:
    async with run_mosquitto(ProgramSettings(persistence=True)) as broker:
        plan = one_worker_plan(
            publishers(4, 800.0, qos=qos, topics=2, clean_start=False),
            subscribers(2, qos=qos, wildcard=False, clean_start=False),
            targets=targets(broker),
            version=version,
            reconnect=groups.Reconnect(0.05, 0.2, 0.5),
        )
        await play(driver, plan, measure_ms=1500)
        await driver.until(lambda: driver.now("received") > 200)
        await broker.stop()
        await driver.until(lambda: driver.now("connected") == 0)
        await asyncio.sleep(0.3)
        await broker.start()
        await driver.finished()
        await driver.stop()
    check_nothing_lost(driver)
    assert driver.counted("sent") == 1280
    assert driver.counted("acknowledged") == 1280
    assert driver.counted("disconnects") == 6
    assert driver.counted("connects") == 12
    if qos == 2:
        # What the broker sends again under an identifier that was not released is one message.
        assert driver.counted("duplicated") == driver.counted("excused")
    waited = driver.recorded_count("reconnect", group="subscribers")
    # Each is in one of two series: what waited for the device, and what did not. How many these are
    # depends on who is back first.
    assert waited + driver.recorded_count("end_to_end") == 1280
    assert all(row.min_ns > 0 for row in driver.recorded("reconnect"))


@pytest.mark.parametrize(("qos", "durable"), [(0, False), (1, True), (2, True)])
async def test_devices_leave_and_return_at_the_rate_and_lose_nothing(
    driver: Driver, qos: int, durable: bool
) -> None:
    async with run_mosquitto() as broker:
        plan = one_worker_plan(
            publishers(20, 400.0, qos=qos, topics=10, clean_start=not durable),
            subscribers(10, qos=qos, wildcard=False, clean_start=not durable),
            targets=targets(broker),
            churn=40.0,
            away=0.1,
        )
        await play(driver, plan, warmup_ms=500, measure_ms=1500)
        await driver.finished()
        await driver.until(lambda: driver.now("connected") == 30)
        final = await driver.stop()
    check_nothing_lost(driver)
    assert driver.counted("sent") == 800
    left = driver.counted("connects") - 30
    assert final["overdue"] == 0
    assert driver.counted("connect_failures") == 0
    assert len(driver.said("return")) == 20  # those that are reported
    # They leave from the command to start, 50 ms before the schedule, to the first look after its
    # end, 20 ms apart, which may be late: 2.1 s.
    assert 60 <= left <= 84
    assert driver.counted("disconnects") == driver.now("disconnects") == 0
    assert driver.said("disconnect") == []
    # What the broker sends again because of a return, it may.
    assert driver.counted("duplicated") == driver.counted("excused")
    # Only a subscriber whose session was kept may leave, and messages wait for it alone.
    assert (driver.recorded_count("reconnect") > 0) == durable


# --- who devices are -------------------------------------------------------------------------


async def test_devices_of_the_first_group_are_those_of_the_file(
    driver: Driver, start_broker: StartBroker, tmp_path: Path
) -> None:
    path = tmp_path / "clients.csv"
    path.write_text('password,client_id,username\nsecret-0,first,ann\n"s,1",second,bob\n,third,\n')
    broker = await start_broker()
    plan = one_worker_plan(
        replace(publishers(2), clean_start=False),
        subscribers(1),
        port=broker.port,
        username="common",
        password="shared",
        clients_file=str(path),
    )
    await driver.connect(plan)
    await driver.stop()
    told = [(s.connect.client_id, s.connect.user_name, s.connect.password) for s in broker.sessions]
    assert ("first", "ann", b"secret-0") in told
    assert ("second", "bob", b"s,1") in told
    assert told[2][1:] == ("common", b"shared")
    # The sessions that the broker kept are forgotten under the same names.
    again = [s.connect for s in broker.sessions[3:]]
    assert {(c.client_id, c.password, c.clean_start) for c in again} == {
        ("first", b"secret-0", True),
        ("second", b"s,1", True),
    }
    assert "secret-0" not in json.dumps(driver.frames)


async def test_the_will_of_a_device_that_was_cut_off_reaches_others(driver: Driver) -> None:
    async with run_mosquitto() as broker:
        endpoint = broker.endpoints[0]
        group = groups.DeviceGroup("devices", 3, will="dead/{device}")
        plan = one_worker_plan(group, targets=targets(broker))
        await driver.connect(plan)
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            await client.subscribe("dead/+", qos=1)
            assert (await driver.ask("drop", group=0, device=1))["dropped"] == 1
            message = await asyncio.wait_for(anext(client.messages), HANG_S)
            assert (str(message.topic), message.payload) == ("dead/1", b"")
            await driver.stop()
            await client.publish("dead/end", b"")
            # Those that said goodbye have no will any more.
            message = await asyncio.wait_for(anext(client.messages), HANG_S)
            assert str(message.topic) == "dead/end"


async def test_a_worker_stays_on_its_processor(driver: Driver) -> None:
    processor = max(os.sched_getaffinity(0))
    plan = one_worker_plan(groups.DeviceGroup("devices", 1), port=1)
    pinned = replace(plan, workers=(replace(plan.workers[0], processors=(processor,)),))
    await driver.configure(pinned)
    assert os.sched_getaffinity(driver.pid) == {processor}
    await driver.stop()


# --- brokers that do not know each other -----------------------------------------------------


@asynccontextmanager
async def overheard(endpoint: Endpoint) -> AsyncIterator[set[str]]:
    """Topics that another client sees at this broker, for the length of the block."""
    topics: set[str] = set()
    async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
        await client.subscribe("t/#")

        async def listen() -> None:
            async for message in client.messages:
                topics.add(str(message.topic))

        listening = asyncio.create_task(listen())
        yield topics
        await asyncio.sleep(0.05)
        listening.cancel()


@pytest.mark.parametrize("qos", [0, 1])
async def test_each_of_several_brokers_has_its_block_and_its_subscriber(
    driver: Driver, qos: int
) -> None:
    async with serve("mosquitto", instances=3) as served:
        plan = one_worker_plan(
            publishers(10, 500.0, qos=qos),
            subscribers(3, qos=qos),
            targets=targets(*served.brokers),
            separate_brokers=True,
        )
        first, second, third = served.endpoints
        async with overheard(first) as one, overheard(second) as two, overheard(third) as three:
            await play(driver, plan)
            await driver.finished()
        await driver.stop()
    check_nothing_lost(driver)
    assert driver.counted("received", group="subscribers") == 250
    assert one == {f"t/{n}" for n in range(4)}
    assert two == {f"t/{n}" for n in range(4, 7)}
    assert three == {f"t/{n}" for n in range(7, 10)}


# --- TLS and WebSocket -----------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "version", "qos"), rows_of("integration.websocket_versions"))
async def test_fanin_over_websocket(
    driver: Driver,
    tls: TlsFiles,
    certificates: CertificateFiles,
    scheme: str,
    version: int,
    qos: int,
) -> None:
    secure = scheme == "wss"
    async with run_secured(websocket=True, tls=tls if secure else None) as broker:
        assert broker.endpoints[0].scheme == scheme
        plan = one_worker_plan(
            publishers(5, 1000.0, qos=qos, size=300, clean_start=qos < 2),
            subscribers(1, qos=qos, clean_start=qos == 0),
            targets=targets(broker),
            version=version,
            tls=groups.Tls(ca_file=str(certificates.authority) if secure else None),
        )
        await play(driver, plan)
        await driver.finished()
        await driver.stop()
    check_nothing_lost(driver)
    assert driver.counted("sent") == 500
    assert driver.counted("duplicated") == 0
    assert driver.counted("acknowledged") == (500 if qos else 0)
    assert driver.recorded_count("tls") == (6 if secure else 0)
    assert driver.events == []


async def test_what_is_no_websocket_is_refused(driver: Driver, start_broker: StartBroker) -> None:
    async def no_upgrade(session: Session) -> None:
        await session.reader.readuntil(b"\r\n\r\n")
        session.send_bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await session.drain()
        await session.reader.read()
        raise Gone

    broker = await start_broker(no_upgrade)
    target = groups.Target("127.0.0.1", broker.port, "ws", "/mqtt")
    plan = one_worker_plan(groups.DeviceGroup("devices", 3), targets=(target,))
    answer = await driver.connect(plan)
    assert answer["failures"] == {"WebSocket refused": 3}
    await until(lambda: broker.gone == 3)
    await driver.stop()
    assert driver.counted("connect_failures") == 3


@pytest.mark.parametrize("subprotocols", [["mqtt"], None])
async def test_a_websocket_without_its_subprotocol_is_a_violation(
    driver: Driver, start_broker: StartBroker, subprotocols: list[Subprotocol] | None
) -> None:
    async def upgrade(session: Session) -> None:
        framing = ServerProtocol(subprotocols=subprotocols)
        framing.receive_data(await session.reader.readuntil(b"\r\n\r\n"))
        (request,) = framing.events_received()
        assert isinstance(request, Request)
        framing.send_response(framing.accept(request))
        framing.send_binary(b"\x20\2\0\0")
        session.send_bytes(b"".join(framing.data_to_send()))
        await session.drain()
        await session.reader.read()
        raise Gone

    broker = await start_broker(upgrade)
    target = groups.Target("127.0.0.1", broker.port, "ws", "/mqtt")
    plan = one_worker_plan(groups.DeviceGroup("devices", 3), targets=(target,))
    assert (await driver.connect(plan))["connected"] == 3
    await driver.stop()
    assert driver.counted("violations") == (0 if subprotocols else 3)


async def test_each_device_shows_its_own_certificate(
    driver: Driver, start_broker: StartBroker, certificates: CertificateFiles
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority)
    names: list[str] = []

    async def look(session: Session) -> None:
        names.append(session.writer.get_extra_info("peercert")["subject"][0][0][1])
        await session.welcome()
        await session.behave()

    broker = await start_broker(look, ssl=context)
    plan = one_worker_plan(
        groups.DeviceGroup("devices", 6),
        targets=(groups.Target("127.0.0.1", broker.port, "tls"),),
        tls=device_certificates(certificates),
    )
    assert (await driver.connect(plan))["connected"] == 6
    await driver.stop()
    assert sorted(names) == [f"device-{n}" for n in range(6)]


def device_certificates(certificates: CertificateFiles) -> groups.Tls:
    return groups.Tls(
        str(certificates.authority), certificates.client_certificate, certificates.client_key
    )


async def test_a_device_without_its_certificate_is_a_failure_that_says_why(
    driver: Driver, certificates: CertificateFiles
) -> None:
    files = TlsFiles(certificates.certificate, certificates.key, certificates.authority, True)
    async with run_secured(tls=files) as broker:
        # There are certificates for six.
        plan = one_worker_plan(
            groups.DeviceGroup("devices", 7),
            targets=targets(broker),
            tls=device_certificates(certificates),
        )
        answer = await driver.connect(plan)
        assert answer["connected"] == 6
        (reason,) = answer["failures"]
        assert "no such file" in reason
        assert "--tls" in reason
        await driver.stop()
        assert driver.said("cleanup") == []


async def test_a_handshake_that_was_given_up_does_not_disturb_the_next_attempt(
    driver: Driver, start_broker: StartBroker, certificates: CertificateFiles
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    hung: list[Session] = []

    async def hang_up_once(session: Session) -> None:
        await session.welcome()
        if not hung:
            hung.append(session)
            await until(lambda: driver.now("connected") == 1)
            session.abort()
        await session.behave()

    broker = await start_broker(hang_up_once, ssl=context)
    silent: list[asyncio.StreamWriter] = []
    port = broker.port
    plan = one_worker_plan(
        groups.DeviceGroup("devices", 1),
        targets=(groups.Target("127.0.0.1", port, "tls"),),
        tls=groups.Tls(str(certificates.authority)),
        reconnect=groups.Reconnect(0.05, 0.05, 0.0),
    )
    assert (await driver.connect(plan, timeout_s=0.3))["connected"] == 1
    # Between the two, nobody answers on the port: the handshake hangs until it is given up.
    broker.server.close()
    mute = await asyncio.start_server(lambda _, writer: silent.append(writer), "127.0.0.1", port)
    await driver.until(lambda: driver.now("connect_failures") >= 2)
    mute.close()
    broker.server = await asyncio.start_server(
        broker._accept, "127.0.0.1", port, ssl=context, limit=1 << 20
    )
    await driver.until(lambda: driver.now("connected") == 1)
    for writer in silent:
        writer.close()
    await driver.until(lambda: driver.now("connecting") == 0)
    assert driver.now("connected") == 1
    await driver.stop()
    assert driver.counted("connects") == 2
    assert driver.counted("disconnects") == 1
