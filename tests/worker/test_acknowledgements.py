"""Acknowledgements that come late, twice, or with a refusal, and their slots of the window."""

import asyncio
from functools import partial

import pytest

from loadgen.mqtt.packets import ConnAck, PubAck, Publish, PubRec
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.violations import SESSION_PRESENT
from tests.worker.harness import MS, Driver, Session, check_stream, one_worker_plan, publishers


async def stall(release: asyncio.Event, count: int, session: Session) -> None:
    """Acknowledge the first messages when they are released."""
    await session.welcome()
    while len(session.published) < count:
        packet = await session.packet()
        assert isinstance(packet, Publish)
        session.published.append(packet)
    await release.wait()
    session.send(*(PubAck(packet.packet_id) for packet in session.published))
    await session.behave()


async def test_a_full_window_holds_messages_back_as_a_backlog(driver: Driver) -> None:
    release = asyncio.Event()
    broker = await driver.broker(partial(stall, release, 4))
    plan = one_worker_plan(publishers(1, 100.0, qos=1, window=4), port=broker.port)
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=300)
    await driver.until(lambda: driver.window_ends)
    assert driver.window_ends[0] == 26
    assert driver.now("in_flight") == driver.now("sent") == 4
    assert driver.now("finished") == 0
    release.set()
    await driver.until(lambda: driver.now("finished"))
    assert driver.now("sent") == 30
    assert driver.now("owed") == 0
    await driver.stop()
    dues = [driver.start_ns + k * 10 * MS for k in range(30)]
    check_stream(broker.sessions[0].published, 0, dues)
    # Unsent messages have a latency from their intended time.
    delays = driver.recorded("send_delay", phase="measure")
    assert sum(row.count for row in delays) == 30
    assert max(row.max_ns for row in delays) >= 250 * MS


async def test_nothing_is_sent_that_the_final_counts_lack(driver: Driver) -> None:
    release = asyncio.Event()
    broker = await driver.broker(partial(stall, release, 1))
    plan = one_worker_plan(publishers(1, 100.0, qos=1, window=1), port=broker.port)
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=300)
    await driver.until(lambda: driver.window_ends)
    await driver.ask("conclude")
    release.set()
    await driver.until(lambda: not driver.now("in_flight"))
    await driver.stop()
    assert len(broker.sessions[0].published) == 1


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_that_the_broker_refuses_is_reported(driver: Driver, qos: int) -> None:
    async def refuse(session: Session) -> None:
        await session.welcome(ConnAck(session_present=True))
        while True:
            packet = await session.packet()
            if isinstance(packet, Publish):
                answer = PubAck if qos == 1 else PubRec
                reason = Properties(reason_string="\x1b[2Jfull")
                session.send(answer(packet.packet_id, 0x97, reason))

    broker = await driver.broker(refuse)
    plan = one_worker_plan(publishers(1, 50.0, qos=qos, window=2), port=broker.port, version=5)
    await driver.connect(plan)
    await driver.start(warmup_ms=0, measure_ms=200)
    closing = (await driver.sent())["closing"]
    assert driver.counted("sent") == 10
    # All are counted, and the first is reported in the broker's words.
    assert driver.said("refused") == ["acknowledged with Quota exceeded (0x97): \x1b[2Jfull"]
    assert (driver.counted("refused"), driver.counted("acknowledged")) == (10, 0)
    assert driver.counted("expected") == 0
    assert closing["refusals"] == {"151": 10}
    assert closing["refusal"] == "Quota exceeded (0x97): \x1b[2Jfull"
    assert closing["violations"] == {str(SESSION_PRESENT): 1}
    assert driver.counted("violations") == 1
    assert driver.said("violation") == [closing["violation"]]
