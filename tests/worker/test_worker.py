"""Whole runs of one worker, against a broker that behaves as a test wants."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest

from loadgen.brokers.certificates import CertificateFiles
from loadgen.metrics.interval import PHASES, Interval
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import ConnAck, Disconnect, PubAck, PubComp
from loadgen.plan.groups import DeviceGroup, Tls
from loadgen.plan.plan import document_of
from tests.tables import rows_of
from tests.worker.harness import (
    MS,
    RUN_TAG,
    Driver,
    Session,
    Transport,
    check_stream,
    header,
    one_worker_plan,
    publishers,
    subscribers,
)


@pytest.mark.parametrize(("version", "qos", "transport"), rows_of("worker.exchanges"))
async def test_a_run_counts_every_message_once_in_each_place(
    driver: Driver, certificates: CertificateFiles, version: int, qos: int, transport: Transport
) -> None:
    broker = await driver.broker(transport=transport)
    groups = publishers(qos=qos, deliveries=2), subscribers(2, qos=qos)
    tls = Tls(ca_file=str(certificates.authority)) if transport == "tls" else Tls()
    plan = one_worker_plan(*groups, port=broker.port, version=version, transport=transport, tls=tls)
    configured = await driver.configure(plan)
    assert configured["devices"] == 5
    assert configured["pid"] == driver.pid
    connected = await driver.connect()
    assert (connected["connected"], connected["failures"]) == (5, {})
    assert connected["first_ns"] <= connected["last_ns"]
    assert driver.now("connected") == 5
    subscribed = await driver.subscribe()
    assert (subscribed["subscribed"], subscribed["failures"]) == (2, {})
    assert subscribed["first_ns"] <= subscribed["last_ns"]
    assert driver.now("subscribed") == 2
    await driver.start(warmup_ms=100, measure_ms=400)
    await driver.finished()
    # 100 messages a second and publisher, for half a second.
    assert driver.now("sent") == 150
    assert driver.now("expected") == driver.now("received") == 300
    assert driver.now("in_flight") == driver.now("owed") == 0
    assert driver.now("disconnects") == driver.now("connect_failures") == 0
    final = await driver.stop()
    assert final["forgotten_gaps"] == 0
    assert final["closing"] == {
        "scheduled": 150,
        "in_flight": 0,
        "distinct": 300,
        "damaged": 0,
        "publishes": 300,
        "discarded": 0,
        "unread": 0,
        "refusals": {},
        "refusal": "",
        "violation": "",
        "violations": {},
        "unreleased": 0,
        "redelivered": 0,
        "overtaken": 0,
    }
    assert driver.now("connected") == 0
    assert len(driver.window_ends) == 1  # unsent messages then depend on the machine
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
    for series in ("connect", "tcp", "connack", "connected_at"):
        assert driver.recorded_count(series, phase="connect") == 5
    assert driver.recorded_count("suback", phase="connect", group="subscribers") == 2
    assert driver.recorded_count("tls", phase="connect") == (5 if transport == "tls" else 0)
    assert all(isinstance(session.packets[-1], Disconnect) for session in broker.sessions)


async def test_interval_rows_follow_one_another_and_name_their_phase(driver: Driver) -> None:
    broker = await driver.broker()
    await driver.connect(one_worker_plan(publishers(), subscribers(), port=broker.port))
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


async def test_another_run_on_the_same_connections_counts_its_own_messages(driver: Driver) -> None:
    broker = await driver.broker()
    plan = one_worker_plan(publishers(), subscribers(), port=broker.port)
    await driver.connect(plan)
    await driver.subscribe()
    await driver.start(warmup_ms=100, measure_ms=400)
    await driver.finished()
    first = await driver.ask("conclude")
    assert first["final"]["closing"]["distinct"] == driver.counted("received") == 150
    for found in (driver.rows, driver.window_ends):
        found.clear()
    # A late message belongs to no run between two, and is foreign in the next.
    broker.client(0).send(PubAck(60_000))
    await driver.until(lambda: bool(driver.events))
    driver.events.clear()
    late = broker.client(0).published[0]
    (subscriber,) = (session for session in broker.sessions if session.filters)
    subscriber.send(late, late)
    await driver.until(lambda: driver.now("publishes") == 152)
    next_plan = replace(
        plan,
        run_tag=RUN_TAG + 1,
        connected_by=RUN_TAG,
        groups=(publishers(rate=600), subscribers()),
    )
    renewed = await driver.ask("renew", anchor_ns=time.monotonic_ns(), plan=document_of(next_plan))
    assert renewed["connected"] == driver.now("connected") == 4
    assert driver.now("sent") == driver.now("received") == driver.now("finished") == 0
    subscriber.send(late)
    broker.client(0).send(PubComp(60_000))
    await driver.start(warmup_ms=100, measure_ms=400)
    await driver.finished()
    final = await driver.stop()
    assert driver.counted("violations") == 1
    assert [event["kind"] for event in driver.events] == ["violation"]
    assert final["closing"]["distinct"] == final["closing"]["scheduled"] == 300
    assert driver.counted("sent") == driver.counted("received") == 300
    assert driver.counted("sent", phase="measure") == 240
    assert driver.recorded_count("end_to_end") == driver.recorded_count("send_delay") == 300
    assert (driver.counted("foreign"), driver.counted("duplicated")) == (1, 0)
    assert driver.counted("connects") == driver.recorded_count("connect") == 0
    assert len(broker.sessions) == 4


async def test_a_rate_change_in_mid_run_is_exact(driver: Driver) -> None:
    broker = await driver.broker()
    await driver.connect(one_worker_plan(publishers(2, 200.0), subscribers(), port=broker.port))
    await driver.subscribe()
    await driver.start(warmup_ms=200, measure_ms=800, rates=[(400, 3.0), (700, 0.5)])
    faster_ns, slower_ns = driver.start_ns + 400 * MS, driver.start_ns + 700 * MS
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


async def test_a_schedule_can_end_early(driver: Driver) -> None:
    broker = await driver.broker()
    await driver.connect(one_worker_plan(publishers(2, 200.0), subscribers(), port=broker.port))
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=60_000)
    end_ns = driver.start_ns + 2_300 * MS
    await driver.until(lambda: time.monotonic_ns() > end_ns - 50 * MS)
    for at_ns in (end_ns, end_ns + 90_000 * MS):  # the second moment is after the first end
        assert (await driver.ask("end", at_ns=at_ns))["at_ns"] == at_ns
    await driver.finished()
    await driver.stop()
    assert driver.counted("sent", phase="measure") == driver.counted("received") == 460


async def test_messages_received_by_devices_of_other_workers_are_not_expected_here(
    driver: Driver,
) -> None:
    """Finish a worker that only publishes when it has sent."""
    broker = await driver.broker()
    await driver.connect(one_worker_plan(publishers(1, 100.0, deliveries=7), port=broker.port))
    assert (await driver.subscribe())["subscribed"] == 0
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends and driver.now("finished"))
    assert driver.now("expected") == 70
    assert driver.now("received") == 0
    await driver.stop()


@pytest.mark.parametrize("transport", ["tcp", "tls"])
async def test_stop_says_goodbye_and_forgets_durable_sessions(
    driver: Driver, transport: Transport
) -> None:
    broker = await driver.broker(transport=transport)
    durable = subscribers(2, qos=1, clean_start=False)
    plan = one_worker_plan(publishers(1), durable, port=broker.port, transport=transport, version=5)
    await driver.connect(plan)
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
    assert driver.said("cleanup") == []


async def test_a_session_that_could_not_be_forgotten_is_reported(driver: Driver) -> None:
    async def refuse_the_second(session: Session) -> None:
        code = 3 if len(broker.sessions) > 1 else 0
        await session.welcome(ConnAck(reason_code=code))
        await session.behave()

    broker = await driver.broker(refuse_the_second)
    group = DeviceGroup("devices", 1, clean_start=False)
    await driver.connect(one_worker_plan(group, port=broker.port))
    await driver.stop()
    assert driver.said("cleanup") == ["1 durable sessions may remain at the broker"]


async def test_nothing_is_sent_before_the_start_and_after_the_stop(driver: Driver) -> None:
    broker = await driver.broker()
    await driver.connect(one_worker_plan(publishers(1, 1000.0), port=broker.port))
    await driver.start(warmup_ms=0, measure_ms=60_000, lead_ms=200)
    await driver.until(lambda: driver.now("sent") > 100)
    await driver.stop()
    packets = broker.sessions[0].published
    check_stream(packets, 0)
    assert header(packets[0])[2] == driver.start_ns
    assert isinstance(broker.sessions[0].packets[-1], Disconnect)
    assert driver.counted("sent") == len(packets) == driver.now("sent")
