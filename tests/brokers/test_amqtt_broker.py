import asyncio

import aiomqtt
import psutil
import pytest

from loadgen.brokers.amqtt_broker import run_amqtt
from loadgen.brokers.ports import ephemeral_ports
from loadgen.mqtt.constants import MQTT_3_1_1
from loadgen.mqtt.packets import Publish
from tests.brokers.conftest import ClientMaker


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_aiomqtt_counts_the_same(qos: int) -> None:
    async with run_amqtt() as broker:
        (endpoint,) = broker.endpoints
        assert endpoint.port not in ephemeral_ports()
        async with (
            aiomqtt.Client(endpoint.host, endpoint.port) as subscriber,
            aiomqtt.Client(endpoint.host, endpoint.port) as publisher,
        ):
            await subscriber.subscribe("t/#", qos=qos)
            for number in range(50):
                await publisher.publish("t/1", b"%d" % number, qos=qos)
            seen = []
            async for message in subscriber.messages:
                seen.append(message.payload)
                if len(seen) == 50:
                    break
        assert seen == [b"%d" % number for number in range(50)]
        pid = broker.pid
    assert not psutil.pid_exists(pid)


async def test_durable_session_of_a_nameless_user(client: ClientMaker) -> None:
    """amqtt's own anonymous login would forget the session within a second or two."""
    async with run_amqtt() as broker:
        (endpoint,) = broker.endpoints
        first = await client(endpoint, "s", MQTT_3_1_1, clean_start=False, keep_alive=60)
        await first.subscribe("t", qos=1)
        await first.disconnect()
        publisher = await client(endpoint, "p", MQTT_3_1_1, keep_alive=60)
        await asyncio.sleep(2.5)
        await publisher.publish("t", b"1", b"2", b"3", qos=1)
        again = await client(endpoint, "s", MQTT_3_1_1, clean_start=False, keep_alive=60)
        assert again.connack.session_present
        await again.until_count(3)
    assert [message.payload for message in again.messages] == [b"1", b"2", b"3"]


async def test_restart(client: ClientMaker) -> None:
    async with run_amqtt() as broker:
        before, pid = broker.endpoints, broker.pid
        first = await client(before[0], "first", MQTT_3_1_1, keep_alive=60)
        assert first.connack.reason_code == 0
        broker.kill()
        await first.gone()
        await broker.start()
        assert broker.endpoints == before
        assert broker.pid != pid
        again = await client(before[0], "again", MQTT_3_1_1, keep_alive=60)
        await again.subscribe("t")
        again.send(Publish("t", b"x"))
        await again.until(Publish)
