"""Pings of silent devices, and connections given up without a PINGRESP."""

import pytest

from loadgen.mqtt.packets import ConnAck, PingReq
from loadgen.mqtt.properties import Properties
from loadgen.plan.groups import DeviceGroup
from tests.worker.harness import Driver, Session, one_worker_plan


@pytest.mark.parametrize("by_server", [False, True])
async def test_silent_devices_ping_in_time(driver: Driver, by_server: bool) -> None:
    """Let two devices be silent: the one with a keep-alive pings before it runs out."""
    properties = Properties(server_keep_alive=2) if by_server else Properties()

    async def watch(session: Session) -> None:
        await session.welcome(ConnAck(properties=properties))
        await session.behave()

    broker = await driver.broker(watch)
    alive = DeviceGroup("alive", 1, keep_alive_s=600 if by_server else 2)
    never = DeviceGroup("never", 1, keep_alive_s=0)
    groups = (alive,) if by_server else (alive, never)
    await driver.connect(one_worker_plan(*groups, port=broker.port, version=5))

    def pings(session: Session) -> int:
        return sum(isinstance(packet, PingReq) for packet in session.packets)

    watched = next(s for s in broker.sessions if s.connect.client_id[10] == "a")
    await driver.until(lambda: pings(watched) >= 2)
    assert sum(pings(session) for session in broker.sessions if session is not watched) == 0
    await driver.stop()
    assert driver.counted("disconnects") == 0


@pytest.mark.parametrize("blind", [False, True])
async def test_a_connection_without_pingresp_is_given_up(driver: Driver, blind: bool) -> None:
    """Let a broker hang: pinging devices lose their connections, others keep them."""

    async def hang(session: Session) -> None:
        await session.welcome()
        while blind and session.connect.client_id[10] == "h":
            await session.packet()
        await session.behave()

    broker = await driver.broker(hang)
    groups = (DeviceGroup("hung", 2, keep_alive_s=1), DeviceGroup("alive", 2, keep_alive_s=1))
    await driver.connect(one_worker_plan(*groups, port=broker.port))

    def pings() -> list[int]:
        kept = [s for s in broker.sessions if s.connect.client_id[10] == "a"]
        return [sum(isinstance(packet, PingReq) for packet in s.packets) for s in kept]

    await driver.until(lambda: min(pings()) >= 4)
    await driver.until(lambda: broker.gone == 2 * blind)
    assert driver.now("disconnects") == 2 * blind
    await driver.stop()
    assert driver.said("disconnect") == ["no PINGRESP in time"] * 2 * blind
    assert driver.counted("disconnects", group="hung") == 2 * blind
    assert driver.counted("disconnects", group="alive") == 0
