"""Subscribing before the run and after a return, and the answers of a broker."""

import asyncio

import pytest

from loadgen.mqtt.packets import SubAck, Subscribe
from loadgen.plan.groups import DeviceGroup, Publishes, Reconnect, Subscribes
from loadgen.worker.build_fleet import build_fleet
from loadgen.worker.messaging import behave
from tests.plans import small_plan
from tests.worker.harness import (
    HANG_S,
    Behaviour,
    Driver,
    Session,
    one_worker_plan,
    publishers,
    subscribers,
    until,
)


def granting(code: int, otherwise: int, devices: tuple[str, ...]) -> Behaviour:
    """Answer SUBSCRIBE with this code if a client identifier ends in this way."""

    async def answer(session: Session) -> None:
        await session.welcome()
        packet = await session.behave(until_packet=Subscribe)
        assert isinstance(packet, Subscribe)
        named = session.connect.client_id.endswith(devices)
        session.send(SubAck(packet.packet_id, (code if named else otherwise,)))
        await session.behave()

    return answer


@pytest.mark.parametrize(
    ("version", "qos", "code"),
    [(4, 0, 0x80), (5, 0, 0x87), (5, 0, 0x80), (4, 1, 0), (4, 2, 1), (5, 2, 0)],
)
async def test_a_subscription_that_is_refused_or_granted_less_qos_is_a_failure(
    driver: Driver, version: int, qos: int, code: int
) -> None:
    broker = await driver.broker(granting(code, qos, ("1", "3")))
    groups = publishers(), subscribers(4, qos=qos)
    await driver.connect(one_worker_plan(*groups, port=broker.port, version=version))
    answer = await driver.subscribe()
    assert answer["subscribed"] == driver.now("subscribed") == 2
    ((reason, count),) = answer["failures"].items()
    wanted = f"0x{code:02X}" if code >= 0x80 else f"granted QoS {code} instead of {qos}"
    assert (count, wanted in reason) == (2, True)
    await driver.stop()


@pytest.mark.parametrize("answered", [True, False])
async def test_a_subscription_that_fails_after_a_return_is_reported(
    driver: Driver, answered: bool
) -> None:
    async def refuse_the_second(session: Session) -> None:
        await session.welcome()
        again = any(other.filters for other in broker.sessions)
        packet = await session.behave(until_packet=Subscribe)
        assert isinstance(packet, Subscribe)
        if answered or not again:
            session.send(SubAck(packet.packet_id, (0x80 if again else 0,)))
        if not again:
            session.filters.append(("t/0", 0))
            await until(lambda: driver.now("subscribed") == 1)
            session.abort()
        await session.behave()

    broker = await driver.broker(refuse_the_second)
    plan = one_worker_plan(
        subscribers(1), publishers(), port=broker.port, reconnect=Reconnect(0.01, 0.1, 0.0)
    )
    await driver.connect(plan)
    await driver.subscribe()
    await until(lambda: sum(len(one.packets) > 1 for one in broker.sessions) == 2)
    await driver.until(lambda: driver.said("subscribe") or not answered)
    await asyncio.sleep(0 if answered else 1.1)
    (failure,) = (await driver.stop())["subscribe_failures"]
    assert ("0x80" in failure) is answered


async def test_connections_that_end_with_their_subscribe_are_counted(driver: Driver) -> None:
    async def hang_up(session: Session) -> None:
        await session.welcome()
        if session.connect.client_id.endswith("-0"):
            await session.behave(until_packet=Subscribe)
            session.abort()
        await session.behave()

    broker = await driver.broker(hang_up)
    await driver.connect(one_worker_plan(publishers(), subscribers(3), port=broker.port))
    answer = await driver.subscribe()
    assert (answer["subscribed"], answer["closed"]) == (2, 1)
    assert sum(answer["failures"].values()) == 1
    assert (await driver.ask("absent"))["streams"] == [[0, 3, 1]]
    said = await driver.ask("sent_on", streams=[[0, 3, 1]])
    assert (said["sent"], said["complete"]) == (0, True)
    assert driver.now("disconnects") == 1
    await driver.stop()
    assert driver.counted("disconnects", phase="connect") == 1


async def test_a_missing_suback_is_a_failure_after_the_timeout(driver: Driver) -> None:
    late: list[Session] = []

    async def forgetful(session: Session) -> None:
        await session.welcome()
        if session.connect.client_id.endswith("-0"):
            await session.behave(until_packet=Subscribe)
            late.append(session)
        await session.behave()

    broker = await driver.broker(forgetful)
    await driver.connect(one_worker_plan(subscribers(3), publishers(), port=broker.port))
    answer = await driver.subscribe(timeout_s=0.3)
    assert answer["subscribed"] == 2
    assert answer["failures"] == {"no SUBACK in time": 1}
    for session in late:
        session.send(SubAck(65_535, (0,)), SubAck(65_535, (0,)))
    await driver.start(warmup_ms=0, measure_ms=100)
    await driver.until(lambda: driver.window_ends)
    await driver.stop()
    # A late or unrequested SUBACK does not count as a latency of hours.
    assert all(row.max_ns < HANG_S * 1e9 for row in driver.recorded("suback"))


async def test_devices_that_leave_before_their_turn_do_not_hold_up_the_others(
    driver: Driver,
) -> None:
    """Close devices that wait for their turn, with more subscribers than SUBSCRIBEs in flight."""
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
            await until(lambda: driver.now("connected") == 256)
            for other in asked:
                other.send(SubAck(packet.packet_id, (0,)))
        await session.behave()

    broker = await driver.broker(behave)
    group = DeviceGroup("devices", count, subscribes=Subscribes(("t",)))
    await driver.connect(one_worker_plan(group, port=broker.port))
    answer = await driver.subscribe()
    assert answer["subscribed"] == 256
    assert sum(answer["failures"].values()) == count - 256
    await driver.stop()


def test_others_retained_messages_are_not_requested() -> None:
    for retain, handling in ((False, 2), (True, 0)):
        sender = DeviceGroup("sender", 1, Publishes("a", 1.0, 1, retain))
        plan = small_plan((sender, DeviceGroup("reader", 1, None, Subscribes(("#",)))), version=5)
        (packet,) = behave(build_fleet(plan, plan.workers[0])).subscribe_packets(1)
        assert [one.retain_handling for one in packet.subscriptions] == [handling]
