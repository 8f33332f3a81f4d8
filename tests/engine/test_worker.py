"""One worker process from configure to stop, against brokers good and bad."""

import asyncio
import gc
import json
import os
import signal
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pytest

from loadgen.brokers.mosquitto import MosquittoSettings, find_mosquitto, run_mosquitto
from loadgen.brokers.ports import free_port
from loadgen.engine import worker as worker_module
from loadgen.engine.live import Live, create_live_page
from loadgen.engine.syscalls import (
    EPOLLET,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    close_descriptor,
    watch,
)
from loadgen.errors import HostLimitError
from loadgen.metrics.interval import PHASES, Interval
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
)
from loadgen.mqtt.properties import Properties
from loadgen.workload import traffic
from loadgen.workload.groups import DeviceGroup, Publishes, Reconnect, Subscribes, Target, client_id
from tests.engine.harness import (
    HANG_S,
    MS,
    RUN_TAG,
    Driver,
    FakeBroker,
    Gone,
    Session,
    WorkerRefusedError,
    one_worker_plan,
    until,
)

StartBroker = Callable[..., Awaitable[FakeBroker]]


def publishers(
    count: int = 3,
    rate: float = 300.0,
    *,
    qos: int = 0,
    deliveries: int = 1,
    topics: int | None = None,
    window: int = 100,
    size: tuple[int, int] = (32, 32),
    **fields: Any,
) -> DeviceGroup:
    publishes = Publishes(
        "t", topics or count, 0, rate, deliveries, qos, size_bytes=size, window=window
    )
    return DeviceGroup("publishers", count, publishes, **fields)


def subscribers(
    count: int = 1, *, qos: int = 0, wildcard: bool = True, **fields: Any
) -> DeviceGroup:
    return DeviceGroup(
        "subscribers", count, subscribes=Subscribes("publishers", qos, wildcard), **fields
    )


def header(packet: Publish) -> tuple[int, int, int]:
    """(stream, sequence, intended_ns) of a payload, which must be intact and of this run."""
    data = packet.payload
    assert zlib.crc32(data[:28], zlib.crc32(data[32:])) == int.from_bytes(data[28:32], "little")
    assert int.from_bytes(data[:4], "little") == RUN_TAG
    parts = (data[4:8], data[8:16], data[16:24])
    stream, sequence, intended_ns = (int.from_bytes(part, "little") for part in parts)
    return stream, sequence, intended_ns


def check_stream(packets: list[Publish], stream: int, dues: list[int] | None = None) -> None:
    """Every message of one stream once, in order and whole."""
    headers = [header(packet) for packet in packets]
    assert [found[:2] for found in headers] == [(stream, n) for n in range(len(packets))]
    if dues is not None:
        assert [found[2] for found in headers] == dues


# --- a whole run ------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "qos"), [(4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 2)])
async def test_a_run_counts_every_message_once_in_each_place(
    driver: Driver, start_broker: StartBroker, version: int, qos: int
) -> None:
    broker = await start_broker()
    groups = publishers(qos=qos, deliveries=2), subscribers(2, qos=qos)
    plan = one_worker_plan(*groups, port=broker.port, version=version)
    configured = await driver.configure(plan)
    assert configured["devices"] == 5
    assert configured["pid"] == driver.pid
    connected = await driver.connect()
    assert (connected["connected"], connected["failures"]) == (5, {})
    assert connected["first_ns"] <= connected["last_ns"]
    assert driver.now(Live.CONNECTED) == 5
    subscribed = await driver.subscribe()
    assert (subscribed["subscribed"], subscribed["failures"]) == (2, {})
    assert subscribed["first_ns"] <= subscribed["last_ns"]
    assert driver.now(Live.SUBSCRIBED) == 2
    await driver.start(warmup_ms=100, measure_ms=400)
    await driver.finished()
    # 100 messages a second and publisher, for half a second.
    assert driver.now(Live.SENT) == 150
    assert driver.now(Live.EXPECTED) == driver.now(Live.RECEIVED) == 300
    assert driver.now(Live.IN_FLIGHT) == driver.now(Live.OWED) == 0
    assert driver.now(Live.DISCONNECTS) == driver.now(Live.CONNECT_FAILURES) == 0
    final = await driver.stop()
    assert final["forgotten_holes"] == 0
    assert not final["pushed_back"]
    assert driver.now(Live.CONNECTED) == 0
    assert driver.window_ends == [{"owed": 0, "owed_oldest_ns": 0}]
    assert driver.events == []

    for number in range(3):
        dues = [driver.start_ns + round(number * 1e7 / 3 // 1) + k * 10 * MS for k in range(50)]
        check_stream(broker.client(number).published, number, dues)
    assert {session.version for session in broker.sessions} == {version}

    for phase, sent in (("warmup", 30), ("measure", 120)):
        assert driver.counted("sent", phase=phase, group="publishers") == sent
        assert driver.counted("expected", phase=phase) == 2 * sent
        assert driver.counted("received", phase=phase, group="subscribers") == 2 * sent
        assert driver.counted("acknowledged", phase=phase) == (sent if qos else 0)
        assert driver.recorded_count("send_delay", phase=phase, group="publishers") == sent
        assert driver.recorded_count("end_to_end", phase=phase, group="subscribers") == 2 * sent
        assert driver.recorded_count("transit", phase=phase) == 2 * sent
        assert driver.recorded_count("acknowledge", phase=phase) == (sent if qos else 0)
    for name in ("duplicated", "out_of_order", "corrupt", "foreign", "disconnects"):
        assert driver.counted(name) == 0
    assert driver.counted("sent") == 150
    size = sum(len(encode(packet, version)) for s in broker.sessions for packet in s.published)
    assert driver.counted("sent_bytes") == size
    assert driver.counted("connects", phase="connect") == driver.counted("connects") == 5
    for series in ("connect", "tcp", "connack"):
        assert driver.recorded_count(series, phase="connect") == 5
    assert driver.recorded_count("suback", phase="connect", group="subscribers") == 2
    assert driver.recorded_count("tls") == 0


async def test_interval_rows_follow_one_another_and_name_their_phase(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    await driver.configure(one_worker_plan(publishers(), subscribers(), port=broker.port))
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=300, measure_ms=1500)
    await driver.finished()
    await driver.stop()
    process = [row for row in driver.rows if row.group == ""]
    assert len(process) >= 5
    for earlier, later in pairwise(process):
        assert earlier.time_ns + earlier.span_ns == later.time_ns
        assert earlier.second <= later.second
        assert PHASES.index(earlier.phase) <= PHASES.index(later.phase)
    assert [row.phase for row in process if row.time_ns < driver.start_ns - 50 * MS] == [
        "connect",
        "subscribe",
    ]
    spans = {name: sum(r.span_ns for r in process if r.phase == name) for name in PHASES}
    # A loop's timers are in milliseconds.
    assert spans["warmup"] > 299 * MS
    assert spans["measure"] > 1499 * MS - (spans["warmup"] - 300 * MS)
    assert process[-1].phase == "drain"
    # The kernel adds to a running thread's time at its ticks, 10 ms apart at most.
    assert all(0 <= row.cpu_ns <= row.span_ns + 10 * MS for row in process)
    assert sum(row.cpu_ns for row in process) > 0
    assert all(row.wait_ns >= 0 and row.resident_bytes > 1 << 20 for row in process)
    for row in driver.rows:
        assert row.worker == 0
        assert row.span_ns > 0
        assert row.phase in PHASES
    keys = [(row.time_ns, row.group, row.phase, row.series) for row in driver.rows]
    assert len(set(keys)) == len(keys)
    gauges: list[Interval] = [row for row in driver.rows if row.group == "subscribers"]
    assert max(row.connected for row in gauges) == 1


@pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto")
@pytest.mark.parametrize(("version", "qos"), [(4, 0), (5, 1), (4, 2)])
async def test_a_run_through_mosquitto_loses_nothing(
    driver: Driver, version: int, qos: int
) -> None:
    async with run_mosquitto(MosquittoSettings()) as broker:
        endpoint = broker.endpoints[0]
        fans = DeviceGroup(
            "fans", 4, subscribes=Subscribes("publishers", qos), clean_start=qos == 0
        )
        plan = one_worker_plan(
            publishers(2, 2000.0, qos=qos, deliveries=3, size=(32, 300)),
            subscribers(1, qos=qos, keep_alive_s=0),
            fans,
            targets=(Target(endpoint.host, endpoint.port),),
            version=version,
        )
        await driver.configure(plan)
        await driver.connect(rate=2000.0)
        assert (await driver.subscribe())["subscribed"] == 5
        await driver.start(warmup_ms=200, measure_ms=800)
        await driver.finished()
        await driver.stop()
    assert driver.events == []
    assert driver.counted("sent") == 2000
    assert driver.counted("expected") == driver.counted("received") == 6000
    assert driver.counted("received", phase="measure") == 4800
    assert driver.counted("received", group="fans") == 4000
    assert driver.recorded_count("end_to_end") == 6000
    assert driver.counted("duplicated") + driver.counted("out_of_order") == 0
    assert driver.counted("acknowledged") == (2000 if qos else 0)


@pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto")
async def test_credentials_are_sent_and_a_refusal_is_told(driver: Driver) -> None:
    settings = MosquittoSettings(username="user", password="right")
    async with run_mosquitto(settings) as broker:
        plan = one_worker_plan(
            publishers(2), port=broker.endpoints[0].port, username="user", password="wrong"
        )
        await driver.configure(plan)
        answer = await driver.connect()
        assert answer["connected"] == 0
        assert sum(answer["failures"].values()) == 2
        assert all("not authorized" in reason.lower() for reason in answer["failures"])
        await driver.stop()
    assert "wrong" not in json.dumps(driver.frames)


# --- connecting ------------------------------------------------------------------------------


async def test_a_port_where_nobody_listens_fails_every_device(driver: Driver) -> None:
    await driver.configure(one_worker_plan(publishers(5), port=free_port("127.0.0.1")))
    answer = await driver.connect(in_flight=2)
    assert answer["connected"] == 0
    assert answer["failures"] == {"ECONNREFUSED": 5}
    assert driver.now(Live.CONNECT_FAILURES) == 5
    await driver.stop()
    assert driver.counted("connect_failures", phase="connect") == 5
    assert driver.said("connect") == ["5 devices could not connect: ECONNREFUSED"]


async def test_a_name_that_does_not_resolve_is_an_error_of_configure(driver: Driver) -> None:
    plan = one_worker_plan(publishers(1), targets=(Target("no.such.host.invalid", 1883),))
    with pytest.raises(WorkerRefusedError, match=r"BrokerUnreachableError: .*no\.such\.host"):
        await driver.configure(plan)


@pytest.mark.parametrize(
    ("version", "code", "reason"),
    [(4, 5, "not authorized (5)"), (5, 0x87, "not authorized (0x87)"), (4, 77, "return code (77)")],
)
async def test_a_refused_connack_is_a_failure_with_its_reason(
    driver: Driver, start_broker: StartBroker, version: int, code: int, reason: str
) -> None:
    async def refuse(session: Session) -> None:
        await session.packet()
        # Twice, in one write: the second must not be counted as another device's.
        length = 3 if version == 5 else 2
        session.send_bytes(bytes([0x20, length, 0, code, *([0] * (length - 2))]) * 2)
        await session.packet()

    broker = await start_broker(refuse)
    await driver.configure(one_worker_plan(publishers(4), port=broker.port, version=version))
    answer = await driver.connect(in_flight=2)
    assert answer["connected"] == 0
    (told, count), *others = answer["failures"].items()
    assert not others
    assert told.lower().endswith(reason)
    assert told.startswith("CONNACK ")
    assert count == 4
    await driver.stop()
    assert driver.counted("connects") == 0
    assert driver.counted("connect_failures") == 4
    assert driver.counted("disconnects") == 0


async def test_a_broker_that_never_answers_is_given_up(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def silent(session: Session) -> None:
        await session.packet()
        await session.packet()

    broker = await start_broker(silent)
    await driver.configure(one_worker_plan(publishers(3), port=broker.port))
    answer = await driver.connect(timeout_s=0.2)
    assert answer["failures"] == {"no answer in time": 3}
    assert driver.now(Live.CONNECTED) == 0
    await until(lambda: broker.gone == 3)  # their sockets are closed
    await driver.stop()
    assert driver.counted("connect_failures") == 3


@pytest.mark.parametrize("first", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x20\x02\x00"])
async def test_a_server_that_hangs_up_before_connack_fails_the_connect(
    driver: Driver, start_broker: StartBroker, first: bytes
) -> None:
    async def leave(session: Session) -> None:
        session.send_bytes(first)
        await session.drain()
        session.close()

    broker = await start_broker(leave)
    await driver.configure(one_worker_plan(publishers(3), port=broker.port))
    answer = await driver.connect()
    assert answer["connected"] == 0
    assert sum(answer["failures"].values()) == 3
    expected = {"closed by the broker", "protocol error", "ECONNRESET", "EPIPE"}
    assert set(answer["failures"]) <= expected
    await driver.stop()
    assert driver.counted("connect_failures") == 3


async def test_a_banner_from_a_server_that_stays_is_a_protocol_error(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def greet(session: Session) -> None:
        session.send_bytes(b"SSH-2.0-OpenSSH_9.2\r\n")
        await asyncio.Event().wait()

    broker = await start_broker(greet)
    await driver.configure(one_worker_plan(publishers(3), port=broker.port))
    answer = await driver.connect()
    assert answer["failures"] == {"protocol error": 3}
    await driver.stop()


async def test_connects_are_bounded_in_flight_and_paced(
    driver: Driver, start_broker: StartBroker
) -> None:
    most = 0
    under_way = 0

    async def slow(session: Session) -> None:
        nonlocal most, under_way
        await session.packet()
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        session.send(ConnAck())
        await session.behave()

    broker = await start_broker(slow)
    await driver.configure(one_worker_plan(publishers(60), port=broker.port))
    answer = await driver.connect(rate=300.0, in_flight=4)
    assert answer["connected"] == 60
    assert most <= 4
    # 60 connects at 300/s take 59 gaps, whatever the machine does.
    assert answer["last_ns"] - answer["first_ns"] >= 59 / 300 * 1e9 * 0.99
    await driver.stop()
    assert driver.counted("connects") == 60


async def test_more_failures_at_once_than_events_fit(driver: Driver) -> None:
    """A source address that is not ours fails every connect before it begins."""
    count = 6000
    plan = one_worker_plan(publishers(count, 6000.0), port=free_port("127.0.0.1"))
    worker = plan.workers[0]
    workers = (type(worker)(worker.worker, worker.shares, source_address="203.0.113.9"),)
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    await driver.configure(type(plan)(**{**fields, "workers": workers}))
    answer = await driver.connect(in_flight=100_000)
    assert answer["failures"] == {"EADDRNOTAVAIL": count}
    await driver.stop()
    assert driver.counted("connect_failures") == count


async def test_a_share_of_devices_keeps_its_numbers(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    plan = one_worker_plan(publishers(6, topics=2), port=broker.port)
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    worker = type(plan.workers[0])
    share = type(plan.workers[0].shares[0])
    workers = (worker(0, (share(0, 1, 6, 2),)), worker(1, (share(0, 0, 6, 2),)))
    plan = type(plan)(**{**fields, "workers": workers})
    await driver.configure(plan)
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    await driver.stop()
    ids = {session.connect.client_id for session in broker.sessions}
    assert ids == {client_id(plan, plan.groups[0], device) for device in (1, 3, 5)}
    assert broker.published == {"t/0": 5, "t/1": 10}
    for device in (1, 3, 5):
        check_stream(broker.client(device).published, device)


async def test_endpoints_may_be_of_both_address_families(
    driver: Driver, start_broker: StartBroker
) -> None:
    try:
        new = await start_broker(host="::1")
    except HostLimitError:
        pytest.skip("no IPv6 loopback")
    old = await start_broker()
    targets = (Target("127.0.0.1", old.port), Target("::1", new.port))
    await driver.configure(one_worker_plan(publishers(6), targets=targets))
    answer = await driver.connect()
    assert answer["connected"] == 6
    assert answer["failures"] == {}
    assert [len(broker.sessions) for broker in (old, new)] == [3, 3]
    await driver.stop()


# --- subscribing -----------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x87), (5, 0x80)])
async def test_a_refused_subscription_is_told(
    driver: Driver, start_broker: StartBroker, version: int, code: int
) -> None:
    async def refuse(session: Session) -> None:
        await session.welcome()
        packet = await session.behave(until_packet=Subscribe)
        assert isinstance(packet, Subscribe)
        odd = session.connect.client_id.endswith(("1", "3"))
        session.send(SubAck(packet.packet_id, (code if odd else 0,)))
        await session.behave()

    broker = await start_broker(refuse)
    plan = one_worker_plan(publishers(), subscribers(4), port=broker.port, version=version)
    await driver.configure(plan)
    await driver.connect()
    answer = await driver.subscribe()
    assert answer["subscribed"] == 2
    assert driver.now(Live.SUBSCRIBED) == 2
    (reason, count), *others = answer["failures"].items()
    assert not others
    assert count == 2
    assert f"0x{code:02X}" in reason
    await driver.stop()


@pytest.mark.parametrize(("qos", "granted"), [(1, 0), (2, 1), (2, 0)])
async def test_a_subscription_with_less_qos_than_asked_for_is_a_failure(
    driver: Driver, start_broker: StartBroker, qos: int, granted: int
) -> None:
    async def grant_less(session: Session) -> None:
        await session.welcome()
        packet = await session.behave(until_packet=Subscribe)
        assert isinstance(packet, Subscribe)
        short = session.connect.client_id.endswith("-0")
        session.send(SubAck(packet.packet_id, (granted if short else qos,)))
        await session.behave()

    broker = await start_broker(grant_less)
    await driver.configure(one_worker_plan(subscribers(3, qos=qos), publishers(), port=broker.port))
    await driver.connect()
    answer = await driver.subscribe()
    assert answer["subscribed"] == 2
    assert answer["failures"] == {f"granted QoS {granted} instead of {qos}": 1}
    await driver.stop()


async def test_a_subscription_refused_after_a_return_is_told(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def refuse_the_second(session: Session) -> None:
        await session.welcome()
        again = any(other.filters for other in broker.sessions)
        packet = await session.behave(until_packet=Subscribe)
        assert isinstance(packet, Subscribe)
        session.send(SubAck(packet.packet_id, (0x80 if again else 0,)))
        if not again:
            session.filters.append(("t/0", 0))
            await until(lambda: driver.now(Live.SUBSCRIBED) == 1)
            session.abort()
        await session.behave()

    broker = await start_broker(refuse_the_second)
    plan = one_worker_plan(
        subscribers(1), publishers(), port=broker.port, reconnect=Reconnect(0.01, 0.1, 0.0)
    )
    await driver.configure(plan)
    await driver.connect()
    await driver.subscribe()
    await driver.until(lambda: driver.said("subscribe"))
    (told,) = driver.said("subscribe")
    assert told.startswith("subscribing again: ")
    assert "0x80" in told
    await driver.stop()


async def test_a_missing_suback_is_a_failure_after_the_timeout(
    driver: Driver, start_broker: StartBroker
) -> None:
    late: list[Session] = []

    async def forgetful(session: Session) -> None:
        await session.welcome()
        if session.connect.client_id.endswith("-0"):
            await session.behave(until_packet=Subscribe)
            late.append(session)
        await session.behave()

    broker = await start_broker(forgetful)
    await driver.configure(one_worker_plan(subscribers(3), publishers(), port=broker.port))
    await driver.connect()
    answer = await driver.subscribe(timeout_s=0.3)
    assert answer["subscribed"] == 2
    assert answer["failures"] == {"no SUBACK in time": 1}
    for session in late:
        session.send(SubAck(65_535, (0,)), SubAck(65_535, (0,)))
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends)
    await driver.stop()
    # Whatever comes late or unasked is no SUBACK latency of hours.
    assert all(row.max_ns < HANG_S * 1e9 for row in driver.recorded("suback"))


async def test_devices_that_leave_before_their_turn_do_not_hold_up_the_others(
    driver: Driver, start_broker: StartBroker
) -> None:
    """More subscribers than SUBSCRIBEs in flight; those that wait their turn are closed."""
    count = 400
    asked: list[Session] = []

    async def behave(session: Session) -> None:
        await session.welcome()
        packet = await session.behave(until_packet=Subscribe)
        assert isinstance(packet, Subscribe)
        asked.append(session)
        if len(asked) == 256:
            # All that wait for SUBACK are here; the rest was not asked for yet.
            for other in broker.sessions:
                if other not in asked:
                    other.abort()
            await until(lambda: driver.now(Live.CONNECTED) == 256)
            for other in asked:
                other.send(SubAck(packet.packet_id, (0,)))
        await session.behave()

    broker = await start_broker(behave)
    group = DeviceGroup("devices", count, subscribes=Subscribes("", topic="t"))
    await driver.configure(one_worker_plan(group, port=broker.port))
    await driver.connect()
    answer = await driver.subscribe()
    assert answer["subscribed"] == 256
    assert sum(answer["failures"].values()) == count - 256
    await driver.stop()


async def test_a_device_that_is_dropped_while_it_subscribes_is_a_failure(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def drop(session: Session) -> None:
        await session.welcome()
        packet = await session.behave(until_packet=Subscribe)
        if session.connect.client_id.endswith("-1"):
            session.abort()
        else:
            session.respond(packet)
            await session.behave()

    broker = await start_broker(drop)
    plan = one_worker_plan(subscribers(3), publishers(1), port=broker.port)
    await driver.configure(plan)
    await driver.connect()
    answer = await driver.subscribe()
    assert answer["subscribed"] == 2
    assert sum(answer["failures"].values()) == 1
    assert driver.now(Live.DISCONNECTS) == 1
    await driver.stop()
    # It happened before the schedule had a phase.
    assert driver.counted("disconnects", phase="connect") == 1


# --- brokers that break the protocol, or the connection --------------------------------------


async def test_a_connection_closed_right_behind_connack_is_noticed(
    driver: Driver, start_broker: StartBroker
) -> None:
    """CONNACK and the end of the stream arrive while the worker looks away."""

    async def leave(session: Session) -> None:
        await session.packet()
        os.kill(driver.pid, signal.SIGSTOP)
        session.send(ConnAck())
        await session.drain()
        session.writer.write_eof()
        # The two are in the worker's socket before it looks.
        await asyncio.sleep(0.05)
        os.kill(driver.pid, signal.SIGCONT)
        with pytest.raises(Gone):
            await session.packet()

    broker = await start_broker(leave)
    await driver.configure(one_worker_plan(publishers(2), port=broker.port))
    await driver.connect(in_flight=1)
    await driver.until(lambda: driver.now(Live.DISCONNECTS) == 2)
    assert driver.now(Live.CONNECTED) == 0
    await driver.stop()
    assert driver.counted("connects") == 2
    assert driver.counted("disconnects") == 2
    assert driver.said("disconnect") == ["closed by the broker"] * 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(20),
        b"\xf0\xff\xff\xff\xff",
        b"\x30\xff\xff\xff\x7f",
        b"\x20\x02\x00\x00\x30\x00",
        encode(Connect("x", protocol_version=4), 4),
        encode(Subscribe(1, (Subscription("a"),)), 4),
        encode(PingReq(), 4),
    ],
)
async def test_garbage_after_connack_ends_that_connection_only(
    driver: Driver, start_broker: StartBroker, garbage: bytes
) -> None:
    async def spit(session: Session) -> None:
        await session.welcome()
        if session.connect.client_id.endswith("-1"):
            session.send_bytes(garbage)
        await session.behave()

    broker = await start_broker(spit)
    await driver.configure(one_worker_plan(publishers(3), port=broker.port))
    answer = await driver.connect()
    connects = answer["connected"] + sum(answer["failures"].values())
    assert connects in (2, 3)
    await driver.until(lambda: broker.gone == 1)
    assert driver.now(Live.CONNECTED) == 2
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends)
    await driver.until(lambda: driver.now(Live.SENT) == 20)
    await driver.stop()
    assert len(driver.said("protocol")) == 1
    assert driver.counted("disconnects") == driver.now(Live.DISCONNECTS) == 1
    assert broker.published == {"t/0": 10, "t/2": 10}


async def test_packets_dribbled_byte_by_byte_are_put_together(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def dribble(session: Session) -> None:
        async def send(data: bytes) -> None:
            for index in range(len(data)):
                session.send_bytes(data[index : index + 1])
                await session.drain()
                await asyncio.sleep(0)

        session.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await session.packet()
        await send(encode(ConnAck(), 4))
        while True:
            packet = await session.packet()
            if isinstance(packet, Subscribe):
                await send(encode(SubAck(packet.packet_id, (1,)), 4))
                reader.append(send)
            elif isinstance(packet, Publish):
                session.published.append(packet)
                await reader[0](encode(Publish("t/0", packet.payload, 1, packet_id=9), 4))
                await send(encode(PubAck(packet.packet_id), 4))
            elif isinstance(packet, Disconnect):
                return

    reader: list[Callable[[bytes], Awaitable[None]]] = []
    broker = await start_broker(dribble)
    plan = one_worker_plan(publishers(1, 100.0, qos=1), subscribers(1, qos=1), port=broker.port)
    await driver.configure(plan)
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=200)
    await driver.finished()
    await driver.stop()
    assert driver.counted("sent") == driver.counted("received") == 20
    assert driver.counted("acknowledged") == 20
    assert driver.counted("corrupt") == driver.counted("foreign") == 0
    acknowledged = [p for s in broker.sessions for p in s.packets if isinstance(p, PubAck)]
    assert acknowledged == [PubAck(9)] * 20


async def test_a_broker_that_loses_repeats_reorders_and_spoils_is_found_out(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    held: list[Publish] = []

    def route(packet: Publish) -> None:
        _, sequence, _ = header(packet)
        if sequence == 3:
            return
        if sequence == 5:
            held.append(packet)
            return
        forward(packet)
        if sequence == 7:
            forward(held[0])
            forward(packet)
        if sequence == 9:
            data = bytearray(packet.payload)
            data[9] ^= 1
            forward(Publish(packet.topic_name, bytes(data)))
            forward(Publish(packet.topic_name, b"from somewhere else, and long enough for it"))

    forward = broker.route
    broker.route = route  # type: ignore[method-assign]
    await driver.configure(one_worker_plan(publishers(1, 100.0), subscribers(), port=broker.port))
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=200)
    await driver.until(lambda: driver.window_ends and driver.now(Live.RECEIVED) == 19)
    await driver.stop()
    assert driver.counted("expected", phase="measure") == 20
    assert driver.counted("received", phase="measure") == 19
    for name in ("duplicated", "out_of_order", "corrupt", "foreign"):
        assert driver.counted(name, phase="measure", group="subscribers") == 1, name
    assert driver.recorded_count("end_to_end") == 19


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_connection_that_drops_mid_run_is_told_and_its_messages_stay_owed(
    driver: Driver, start_broker: StartBroker, qos: int
) -> None:
    async def drop(session: Session) -> None:
        await session.welcome()
        while True:
            session.respond(await session.packet())
            if session.connect.client_id.endswith("-1") and len(session.published) == 5:
                session.abort()
                return

    broker = await start_broker(drop)
    await driver.configure(one_worker_plan(publishers(3, qos=qos), port=broker.port))
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.window_ends)
    sent = driver.now(Live.SENT)
    assert 105 <= sent < 150
    owed = 150 - sent
    assert driver.window_ends[0]["owed"] == driver.now(Live.OWED) == owed
    assert driver.window_ends[0]["owed_oldest_ns"] > 0
    assert driver.now(Live.DISCONNECTS) == 1
    assert driver.now(Live.CONNECTED) == 2
    assert driver.now(Live.FINISHED) == 0
    await driver.stop()
    assert driver.counted("disconnects", phase="measure") == 1
    assert len(driver.said("disconnect")) == 1
    last = max((row for row in driver.rows if row.group == "publishers"), key=lambda r: r.time_ns)
    rows = [r for r in driver.rows if r.time_ns == last.time_ns and r.group == "publishers"]
    assert sum(row.owed for row in rows) == owed
    assert broker.published["t/0"] == broker.published["t/2"] == 50


@pytest.mark.parametrize("version", [4, 5])
async def test_a_disconnect_from_the_broker_is_told_with_its_reason(
    driver: Driver, start_broker: StartBroker, version: int
) -> None:
    async def dismiss(session: Session) -> None:
        await session.welcome()
        session.send(Disconnect(0x8B if version == 5 else 0))
        await session.behave()

    broker = await start_broker(dismiss)
    plan = one_worker_plan(publishers(1), port=broker.port, version=version)
    await driver.configure(plan)
    await driver.connect()
    await driver.until(lambda: driver.now(Live.DISCONNECTS) == 1)
    await driver.stop()
    (detail,) = driver.said("disconnect")
    assert detail.startswith("DISCONNECT from the broker")
    assert ("0x8B" in detail) == (version == 5)
    assert driver.events[0]["group"] == "publishers"
    assert driver.events[0]["device"] == 0


async def test_a_storm_of_events_of_one_kind_is_cut(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def leave(session: Session) -> None:
        await session.welcome()
        await connected.wait()
        session.abort()

    connected = asyncio.Event()
    broker = await start_broker(leave)
    await driver.configure(one_worker_plan(publishers(60), port=broker.port))
    await driver.connect()
    connected.set()
    await driver.until(lambda: driver.now(Live.DISCONNECTS) == 60)
    await driver.stop()
    assert len(driver.said("disconnect")) == 20
    assert driver.counted("disconnects") == 60


# --- acknowledgements ------------------------------------------------------------------------


async def test_late_unknown_and_repeated_acknowledgements(
    driver: Driver, start_broker: StartBroker
) -> None:
    """Acknowledged in reverse, twice, and for identifiers that nobody used."""

    async def acknowledge(session: Session) -> None:
        await session.welcome()
        waiting: list[int] = []
        while True:
            packet = await session.packet()
            if not isinstance(packet, Publish):
                continue
            session.published.append(packet)
            waiting.append(packet.packet_id)
            if len(waiting) == 5:
                session.send(*map(PubAck, [*waiting[::-1], *waiting, 99, 65_535]))
                session.send(PubComp(waiting[0]), PubRec(60_000))
                waiting.clear()

    broker = await start_broker(acknowledge)
    await driver.configure(one_worker_plan(publishers(1, 100.0, qos=1), port=broker.port))
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=400)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    assert driver.now(Live.IN_FLIGHT) == 0
    await driver.stop()
    assert driver.counted("sent") == driver.counted("acknowledged") == 40
    assert driver.recorded_count("acknowledge") == 40
    check_stream(broker.sessions[0].published, 0)
    assert driver.now(Live.DISCONNECTS) == 0


async def test_the_receive_maximum_is_kept(driver: Driver, start_broker: StartBroker) -> None:
    worst = 0

    async def narrow(session: Session) -> None:
        nonlocal worst
        await session.welcome(ConnAck(properties=Properties(receive_maximum=1)))
        while True:
            packet = await session.packet()
            if not isinstance(packet, Publish):
                continue
            session.published.append(packet)
            await asyncio.sleep(0.002)
            decoded = len(session._buffer)
            worst = max(worst, decoded)
            session.send(PubAck(packet.packet_id))

    broker = await start_broker(narrow)
    plan = one_worker_plan(publishers(1, 200.0, qos=1), port=broker.port, version=5)
    await driver.configure(plan)
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    await driver.stop()
    assert worst == 0  # never a second message before the first was acknowledged
    check_stream(broker.sessions[0].published, 0)
    assert len(broker.sessions[0].published) == 100


async def test_a_full_window_holds_messages_back_and_owes_them(
    driver: Driver, start_broker: StartBroker
) -> None:
    release = asyncio.Event()

    async def stall(session: Session) -> None:
        await session.welcome()
        while len(session.published) < 4:
            packet = await session.packet()
            assert isinstance(packet, Publish)
            session.published.append(packet)
        await release.wait()
        session.send(*(PubAck(packet.packet_id) for packet in session.published))
        await session.behave()

    broker = await start_broker(stall)
    plan = one_worker_plan(publishers(1, 100.0, qos=1, window=4), port=broker.port)
    await driver.configure(plan)
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=300)
    await driver.until(lambda: driver.window_ends)
    assert driver.window_ends[0]["owed"] == 26
    assert driver.now(Live.IN_FLIGHT) == driver.now(Live.SENT) == 4
    assert driver.now(Live.FINISHED) == 0
    release.set()
    await driver.until(lambda: driver.now(Live.FINISHED))
    assert driver.now(Live.SENT) == 30
    assert driver.now(Live.OWED) == 0
    await driver.stop()
    dues = [driver.start_ns + k * 10 * MS for k in range(30)]
    check_stream(broker.sessions[0].published, 0, dues)
    # What was owed is charged from the moment it was intended.
    delays = driver.recorded("send_delay", phase="measure")
    assert sum(row.count for row in delays) == 30
    assert max(row.max_ns for row in delays) >= 250 * MS


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_that_the_broker_refuses_is_told(
    driver: Driver, start_broker: StartBroker, qos: int
) -> None:
    async def refuse(session: Session) -> None:
        await session.welcome()
        while True:
            packet = await session.packet()
            if isinstance(packet, Publish):
                answer = PubAck if qos == 1 else PubRec
                session.send(answer(packet.packet_id, 0x97))

    broker = await start_broker(refuse)
    plan = one_worker_plan(publishers(1, 50.0, qos=qos, window=2), port=broker.port, version=5)
    await driver.configure(plan)
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=200)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    await driver.stop()
    assert driver.counted("sent") == 10
    assert all("0x97" in detail for detail in driver.said("refused"))
    assert len(driver.said("refused")) == 10


# --- back-pressure ---------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_broker_that_stops_reading_gets_everything_later_and_in_order(
    driver: Driver, start_broker: StartBroker, qos: int
) -> None:
    resume = asyncio.Event()

    async def stall(session: Session) -> None:
        await session.welcome()
        session.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await resume.wait()
        session.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await session.behave()

    broker = await start_broker(stall)
    # 1,000 messages a second of up to 60 kB: the kernel's buffers hold a few tenths of a second.
    group = publishers(2, 1000.0, qos=qos, size=(20_000, 60_000), window=1000)
    await driver.configure(one_worker_plan(group, port=broker.port, max_packet_bytes=1 << 17))
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=1000)
    await driver.until(lambda: driver.window_ends)
    owed = driver.window_ends[0]["owed"]
    assert owed > 0
    assert owed == 1000 - driver.now(Live.SENT)
    assert driver.window_ends[0]["owed_oldest_ns"] > 0
    assert driver.now(Live.FINISHED) == 0
    assert driver.now(Live.CONNECTED) == 2
    resume.set()
    await driver.until(
        lambda: (
            driver.now(Live.FINISHED)
            and sum(len(session.published) for session in broker.sessions) == 1000
        )
    )
    assert driver.now(Live.SENT) == 1000
    assert driver.now(Live.OWED) == 0
    await driver.stop()
    for number in range(2):
        dues = [driver.start_ns + number * MS + k * 2 * MS for k in range(500)]
        check_stream(broker.client(number).published, number, dues)
    assert driver.counted("sent", phase="measure") == 1000
    assert driver.counted("disconnects") == 0
    assert max(row.max_ns for row in driver.recorded("send_delay")) > 100 * MS
    peak = max(row.owed for row in driver.rows)
    assert peak > 0


async def test_acknowledgements_to_a_broker_that_does_not_read_follow_later(
    driver: Driver, start_broker: StartBroker
) -> None:
    """The subscriber's PUBACKs fill its socket; every one must still go out, once and in order."""
    each, rounds = 5000, 260  # 5.2 MB of PUBACKs, more than the kernel holds
    flood = b"".join(
        b"\x32\x08\x00\x01t" + n.to_bytes(2, "big") + b"abc" for n in range(1, each + 1)
    )
    sent = asyncio.Event()

    async def behave(session: Session) -> None:
        await session.welcome()
        session.respond(await session.behave(until_packet=Subscribe))
        session.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(rounds):
            session.send_bytes(flood)
            await session.drain()
        sent.set()
        # And more of them while the sockets open and close again.
        for _ in range(rounds):
            session.send_bytes(flood)
            await session.drain()
        await asyncio.Event().wait()

    broker = await start_broker(behave)
    group = DeviceGroup("subscribers", 1, subscribes=Subscribes("", 1, topic="t"))
    await driver.configure(one_worker_plan(group, port=broker.port))
    await driver.connect()
    await driver.subscribe()
    await asyncio.wait_for(sent.wait(), HANG_S)
    (session,) = broker.sessions
    # The worker reads on; what it answers does not fit into the sockets.
    await driver.until(lambda: driver.counted("foreign") >= each * rounds)
    session.writer.transport.resume_reading()  # type: ignore[attr-defined]
    received = bytearray()
    async with asyncio.timeout(HANG_S):
        while len(received) < 2 * 4 * each * rounds:
            data = await session.reader.read(1 << 20)
            assert data
            received += data
            driver.tell("beat")
    identifiers = np.frombuffer(bytes(received), ">u2").reshape(-1, 2)
    assert (identifiers[:, 0] == 0x4002).all()
    assert np.array_equal(identifiers[:, 1], np.tile(np.arange(1, each + 1), 2 * rounds))
    await driver.stop()
    assert driver.counted("foreign") == 2 * each * rounds
    assert isinstance(await session.packet(), Disconnect)


async def test_a_blocked_connection_that_breaks_leaves_nothing_behind(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def stall(session: Session) -> None:
        await session.welcome()
        session.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: driver.window_ends)
        session.abort()

    broker = await start_broker(stall)
    group = publishers(1, 500.0, size=(60_000, 60_000))
    await driver.configure(one_worker_plan(group, port=broker.port, max_packet_bytes=1 << 17))
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.now(Live.DISCONNECTS) == 1)
    assert driver.now(Live.OWED) == 250 - driver.now(Live.SENT) > 0
    await driver.stop()
    assert driver.counted("disconnects") == 1


# --- the schedule ----------------------------------------------------------------------------


async def test_a_rate_change_in_mid_run_is_exact(driver: Driver, start_broker: StartBroker) -> None:
    broker = await start_broker()
    await driver.configure(one_worker_plan(publishers(2, 200.0), subscribers(), port=broker.port))
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=200, measure_ms=800, lead_ms=100)
    faster_ns, slower_ns = driver.start_ns + 400 * MS, driver.start_ns + 700 * MS
    await driver.ask("rate", factor=3.0, at_ns=faster_ns)
    await driver.until(lambda: driver.now(Live.SENT) > 150)
    await driver.ask("rate", factor=0.5, at_ns=slower_ns)
    await driver.finished()
    await driver.stop()
    dues = [driver.start_ns + k * 10 * MS for k in range(40)]
    dues += [faster_ns + k * 10 * MS // 3 for k in range(90)]
    dues += [slower_ns + k * 20 * MS for k in range(15)]
    found = [header(packet)[2] for packet in broker.client(0).published]
    assert len(found) == len(dues)
    assert all(abs(a - b) <= 2 for a, b in zip(found, dues, strict=True))
    assert driver.counted("sent") == driver.counted("received") == 290
    assert driver.counted("sent", phase="warmup") == 40


async def test_a_schedule_brought_to_a_standstill_sends_no_more(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    # One device sends each 30,000 s: its next message must not overflow into the past.
    slow = DeviceGroup("slow", 1, Publishes("s", 1, 10, 1 / 30_000, 0))
    await driver.configure(one_worker_plan(publishers(1, 100.0), slow, port=broker.port))
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=600)
    at_ns = driver.start_ns + 200 * MS
    await driver.ask("rate", factor=1e-6, at_ns=at_ns)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    await driver.stop()
    assert broker.published == {"t/0": 21, "s/0": 1}
    assert driver.window_ends[0]["owed"] == 0


@pytest.mark.parametrize("arrivals", ["uniform", "poisson"])
async def test_random_arrivals_are_sent_when_intended(
    driver: Driver, start_broker: StartBroker, arrivals: str
) -> None:
    broker = await start_broker()
    publishes = Publishes("t", 2, 0, 1000.0, 1, arrivals=arrivals)  # type: ignore[arg-type]
    group = DeviceGroup("publishers", 2, publishes)
    await driver.configure(one_worker_plan(group, subscribers(), port=broker.port))
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.finished()
    await driver.stop()
    total = driver.counted("sent")
    assert total == driver.counted("received")
    assert 350 < total < 650  # 500 with a standard deviation of 22 at most
    for number in range(2):
        packets = broker.client(number).published
        check_stream(packets, number)
        dues = [header(packet)[2] for packet in packets]
        assert dues == sorted(dues)
        assert driver.start_ns <= dues[0]
        assert dues[-1] < driver.end_ns


async def test_a_send_tick_gathers_messages_and_changes_no_intended_time(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    plan = one_worker_plan(
        publishers(2, 4000.0), subscribers(), port=broker.port, send_tick_us=5000
    )
    await driver.configure(plan)
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=300)
    await driver.finished()
    await driver.stop()
    for number in range(2):
        dues = [driver.start_ns + number * MS // 4 + k * MS // 2 for k in range(600)]
        check_stream(broker.client(number).published, number, dues)
    delays = driver.recorded("send_delay")
    assert sum(row.count for row in delays) == 1200
    # Half a tick on average, could they but be as late as that.
    assert sum(row.sum_ns for row in delays) / 1200 > MS


async def test_messages_received_by_devices_of_other_workers_are_not_expected_here(
    driver: Driver, start_broker: StartBroker
) -> None:
    """A worker that only publishes is finished when it has sent."""
    broker = await start_broker()
    await driver.configure(one_worker_plan(publishers(1, 100.0, deliveries=7), port=broker.port))
    await driver.connect()
    assert (await driver.subscribe())["subscribed"] == 0
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    assert driver.now(Live.EXPECTED) == 70
    assert driver.now(Live.RECEIVED) == 0
    await driver.stop()


# --- keep alive ------------------------------------------------------------------------------


@pytest.mark.parametrize("by_server", [False, True])
async def test_silent_devices_ping_in_time(
    driver: Driver, start_broker: StartBroker, by_server: bool
) -> None:
    """Of two silent devices the one with a keep-alive pings before it runs out."""
    properties = Properties(server_keep_alive=2) if by_server else Properties()

    async def watch(session: Session) -> None:
        await session.welcome(ConnAck(properties=properties))
        await session.behave()

    broker = await start_broker(watch)
    alive = DeviceGroup("alive", 1, keep_alive_s=600 if by_server else 2)
    never = DeviceGroup("never", 1, keep_alive_s=0)
    groups = (alive,) if by_server else (alive, never)
    await driver.configure(one_worker_plan(*groups, port=broker.port, version=5))
    await driver.connect()

    def pings(session: Session) -> int:
        return sum(isinstance(packet, PingReq) for packet in session.packets)

    watched = next(s for s in broker.sessions if s.connect.client_id[10] == "a")
    await driver.until(lambda: pings(watched) >= 2)
    assert sum(pings(session) for session in broker.sessions if session is not watched) == 0
    await driver.stop()
    assert driver.counted("disconnects") == 0


@pytest.mark.parametrize("blind", [False, True])
async def test_a_connection_without_pingresp_is_given_up(
    driver: Driver, start_broker: StartBroker, blind: bool
) -> None:
    """A broker that hangs keeps its connections; who pings finds out, who is answered stays."""

    async def hang(session: Session) -> None:
        await session.welcome()
        while blind and session.connect.client_id[10] == "h":
            await session.packet()
        await session.behave()

    broker = await start_broker(hang)
    groups = (DeviceGroup("hung", 2, keep_alive_s=1), DeviceGroup("alive", 2, keep_alive_s=1))
    await driver.configure(one_worker_plan(*groups, port=broker.port))
    await driver.connect()

    def pings() -> list[int]:
        kept = [s for s in broker.sessions if s.connect.client_id[10] == "a"]
        return [sum(isinstance(packet, PingReq) for packet in s.packets) for s in kept]

    await driver.until(lambda: min(pings()) >= 4)
    await driver.until(lambda: broker.gone == 2 * blind)
    assert driver.now(Live.DISCONNECTS) == 2 * blind
    await driver.stop()
    assert driver.said("disconnect") == ["no PINGRESP in time"] * 2 * blind
    assert driver.counted("disconnects", group="hung") == 2 * blind
    assert driver.counted("disconnects", group="alive") == 0


# --- coming back -----------------------------------------------------------------------------


@pytest.mark.parametrize("present", [False, True])
async def test_a_device_that_comes_back_sends_again_what_was_unacknowledged(
    driver: Driver, start_broker: StartBroker, present: bool
) -> None:
    async def break_once(session: Session) -> None:
        again = len(broker.sessions) > 1
        await session.welcome(ConnAck(session_present=again and present))
        if again:
            await session.behave()
        while len(session.published) < 3:
            packet = await session.packet()
            assert isinstance(packet, Publish)
            session.published.append(packet)
        session.abort()

    broker = await start_broker(break_once)
    plan = one_worker_plan(
        publishers(1, 100.0, qos=1, clean_start=not present),
        port=broker.port,
        reconnect=Reconnect(0.05, 0.1, 0.0),
    )
    await driver.configure(plan)
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    await driver.stop()
    first, second = (session.published for session in broker.sessions[:2])
    check_stream(first, 0)
    again = [header(packet)[1] for packet in second]
    assert again == list(range(again[0], 50))
    assert again[0] == 0
    repeated = [packet.dup for packet in second]
    assert repeated[:3] == [present] * 3
    assert driver.counted("disconnects", phase="measure") == 1
    assert driver.counted("connects") == 2
    assert driver.counted("sent") == driver.counted("acknowledged") == 50
    assert driver.now(Live.CONNECT_FAILURES) == 0


async def test_a_subscriber_that_comes_back_subscribes_again_and_what_it_missed_is_lost(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def break_once(session: Session) -> None:
        await session.welcome()
        if session.connect.client_id[10] == "p" or len(broker.sessions) > 2:
            await session.behave()
        session.respond(await session.packet())
        await until(lambda: sum(broker.published.values()) >= 10)
        session.filters.clear()
        session.abort()

    broker = await start_broker(break_once)
    plan = one_worker_plan(
        publishers(1, 100.0),
        subscribers(),
        port=broker.port,
        reconnect=Reconnect(0.02, 0.1, 0.5),
    )
    await driver.configure(plan)
    await driver.connect()
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=600)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    received = driver.now(Live.RECEIVED)
    await driver.stop()
    assert driver.counted("sent") == 60
    assert driver.counted("received") == received
    assert 10 <= received < 60
    assert driver.counted("connects") == 3
    recorded = driver.recorded_count("end_to_end") + driver.recorded_count("reconnect")
    assert recorded == received


async def test_devices_come_back_however_often_they_fail(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def moody(session: Session) -> None:
        number = len(broker.sessions)
        if number in (2, 3):
            session.abort()
        elif number == 4:
            await session.welcome(ConnAck(reason_code=3))
        else:
            await session.welcome()
            if number == 1:
                await until(lambda: driver.now(Live.CONNECTED) == 1)
                session.abort()
        await session.behave()

    broker = await start_broker(moody)
    plan = one_worker_plan(
        publishers(1, 100.0), port=broker.port, reconnect=Reconnect(0.01, 0.02, 0.5)
    )
    await driver.configure(plan)
    await driver.connect()
    await driver.until(lambda: len(broker.sessions) == 5 and driver.now(Live.CONNECTED) == 1)
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends and driver.now(Live.FINISHED))
    await driver.stop()
    assert broker.published == {"t/0": 10}
    assert driver.counted("connects") == 2
    assert driver.counted("connect_failures") == 3
    assert driver.counted("disconnects") == 1


# --- the end ---------------------------------------------------------------------------------


async def test_stop_says_goodbye_and_forgets_durable_sessions(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    durable = subscribers(2, qos=1, clean_start=False)
    await driver.configure(one_worker_plan(publishers(1), durable, port=broker.port, version=5))
    await driver.connect()
    await driver.subscribe()
    await driver.stop()
    assert len(broker.sessions) == 5
    run, cleaning = broker.sessions[:3], broker.sessions[3:]
    assert all(isinstance(session.packets[-1], Disconnect) for session in broker.sessions)
    kept = [session.connect for session in run if not session.connect.clean_start]
    assert len(kept) == 2
    assert all(packet.properties.session_expiry_interval for packet in kept)
    assert {s.connect.client_id for s in cleaning} == {packet.client_id for packet in kept}
    assert all(session.connect.clean_start for session in cleaning)
    assert all(not s.connect.properties.session_expiry_interval for s in cleaning)


async def test_a_session_that_could_not_be_forgotten_is_told(
    driver: Driver, start_broker: StartBroker
) -> None:
    async def refuse_the_second(session: Session) -> None:
        code = 3 if len(broker.sessions) > 1 else 0
        await session.welcome(ConnAck(reason_code=code))
        await session.behave()

    broker = await start_broker(refuse_the_second)
    group = DeviceGroup("devices", 1, clean_start=False)
    await driver.configure(one_worker_plan(group, port=broker.port))
    await driver.connect()
    await driver.stop()
    assert driver.said("cleanup") == ["1 durable sessions may remain at the broker"]


@pytest.mark.parametrize("when", ["at once", "configured", "running"])
async def test_a_worker_ends_when_its_channel_closes(
    driver: Driver, start_broker: StartBroker, when: str
) -> None:
    broker = await start_broker()
    if when != "at once":
        await driver.configure(one_worker_plan(publishers(3), port=broker.port))
        await driver.connect()
    if when == "running":
        await driver.start()
    await driver.close()  # the fixture waits for the process and checks its status
    if when != "at once":
        await until(lambda: broker.gone == 3)


async def test_an_unknown_command_and_a_beat_are_not_answered(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    driver.tell("beat")
    driver.tell("no such thing")
    await driver.configure(one_worker_plan(publishers(1), port=broker.port))
    await driver.stop()
    assert driver.answers == []


async def test_nothing_is_sent_before_the_start_and_after_the_stop(
    driver: Driver, start_broker: StartBroker
) -> None:
    broker = await start_broker()
    await driver.configure(one_worker_plan(publishers(1, 1000.0), port=broker.port))
    await driver.connect()
    await driver.start(warmup_ms=0, measure_ms=60_000, lead_ms=200)
    await driver.until(lambda: driver.now(Live.SENT) > 100)
    await driver.stop()
    packets = broker.sessions[0].published
    check_stream(packets, 0)
    assert header(packets[0])[2] == driver.start_ns
    assert isinstance(broker.sessions[0].packets[-1], Disconnect)
    assert driver.counted("sent") == len(packets) == driver.now(Live.SENT)


# --- in this process -------------------------------------------------------------------------


class _Channel:
    """A channel's transport that keeps nothing."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def collector() -> Iterator[None]:
    """A worker switches the garbage collector off for good; these tests go on."""
    worker_module.warm()
    yield
    gc.unfreeze()
    gc.enable()


async def test_a_worker_that_hears_nothing_ends(
    collector: None,
    tmp_path: Path,
    start_broker: StartBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_LEASE_S", 0.5)
    broker = await start_broker()
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(asyncio.to_thread(worker_module.run_worker, theirs))
    driver = Driver(ours, tmp_path)
    await driver.open()
    await driver.configure(one_worker_plan(publishers(1), port=broker.port))
    await driver.connect()
    # Beats keep it alive for longer than the lease.
    for _ in range(24):
        driver.tell("beat")
        await asyncio.sleep(0.05)
    assert not serving.done()
    await asyncio.wait_for(asyncio.shield(serving), HANG_S)
    await driver.close()


async def test_a_worker_that_stalled_hears_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stalls longer than the lease, with a sign of life waiting each time."""
    monkeypatch.setattr(worker_module, "_LEASE_S", 20.0)
    loop = _Stalled()
    made = worker_module.Worker(cast(Any, loop), cast(asyncio.WriteTransport, _Channel()))
    monkeypatch.setattr(made, "_snapshot", lambda: None)
    monkeypatch.setattr(made, "_ping_idle", lambda: None)
    monkeypatch.setattr(made, "_schedule_tick", lambda: None)
    for _ in range(3):
        loop.now_s += 25.0
        made._tick()  # timers come first in a turn of the loop
        assert not made.finished.done()
        made.handle({"op": "beat"})
    loop.now_s += 25.0
    made._tick()
    assert not made.finished.done()
    loop.now_s += 1.0
    made._tick()
    assert made.finished.done()


class _Stalled:
    """A loop that does nothing but tell the time, and make futures."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().create_future()


async def test_what_waits_leaves_in_order_when_the_socket_opens_while_more_is_answered(
    collector: None, tmp_path: Path
) -> None:
    """Writable again and a message to acknowledge, both in one look at the socket."""
    loop = asyncio.get_running_loop()
    made = worker_module.Worker(loop, cast(asyncio.WriteTransport, _Channel()))
    group = DeviceGroup("subscribers", 1, subscribes=Subscribes("", 1, topic="t"))
    plan = one_worker_plan(group, port=1)
    create_live_page(tmp_path / "live", 1)
    header = {
        "plan": json.loads(orjson.dumps(plan)),
        "worker": 0,
        "workers": 1,
        "live": str(tmp_path / "live"),
        "anchor_ns": 1,
    }
    await made.configure(header)
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(HANG_S)
    fleet = made.fleet
    fleet.connections[0, traffic.FD] = near.fileno()
    fleet.connections[0, traffic.STATE] = traffic.CONNECTED
    flags = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
    watch(made.epoll.fileno(), near.fileno(), flags, 0, fleet.words)
    made.on_ready()
    fleet.connections[0, traffic.FLAGS] |= traffic.BLOCKED
    made.pending[0] = bytearray(encode(PubAck(1), 4))
    far.sendall(encode(Publish("t", b"x", 1, packet_id=2), 4))
    made.on_ready()
    received = b""
    while len(received) < 8:
        received += far.recv(100)
    assert received == encode(PubAck(1), 4) + encode(PubAck(2), 4)
    assert not made.pending
    assert not fleet.connections[0, traffic.FLAGS] & traffic.BLOCKED
    made.stopping = True
    loop.remove_reader(made.epoll.fileno())
    made.epoll.close()
    close_descriptor(made.timer)
    near.close()
    far.close()
