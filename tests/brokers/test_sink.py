import aiomqtt
import pytest

from loadgen.brokers.sink import run_sink
from loadgen.errors import CannotRunError
from loadgen.mqtt.packets import (
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from tests.brokers.conftest import Client, ClientMaker


async def test_takes_everything_and_delivers_nothing(client: ClientMaker, version: int) -> None:
    async with run_sink() as sink:
        (endpoint,) = sink.endpoints
        one = await client(endpoint, "a", version)
        one.send(Subscribe(3, (Subscription("t", 1), Subscription("#", 2))))
        assert await one.until(SubAck) == SubAck(3, (1, 2))
        for qos in (0, 1, 2):
            await one.publish("t", *[b"x" * 50] * 700, qos=qos)
        one.send(Unsubscribe(4, ("t",)))
        assert await one.until(UnsubAck) == UnsubAck(4, (0,) if version == 5 else ())
        assert await sink.received() == 2100
        assert one.messages == []
        await one.disconnect()


async def test_aiomqtt_is_content() -> None:
    async with run_sink() as sink:
        (endpoint,) = sink.endpoints
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            for qos in (0, 1, 2):
                await client.publish("t", b"x", qos=qos)
        assert await sink.received() == 3


@pytest.mark.parametrize("data", ["00", "3000", "10060000000000", "30ffffff7f"])
async def test_hostile_bytes_close_only_their_connection(client: ClientMaker, data: str) -> None:
    async with run_sink() as sink:
        (endpoint,) = sink.endpoints
        good = await client(endpoint, "good")
        raw = Client(5)
        await raw.open(endpoint)
        raw.send_bytes(bytes.fromhex(data) + bytes(100))
        await raw.gone()
        await raw.close()
        good.send(Publish("t", b"x"))
        await good.sync()
        assert await sink.received() == 1


async def test_start_again_on_the_same_port(client: ClientMaker) -> None:
    async with run_sink() as sink:
        before = sink.endpoints
        await (await client(before[0], "a")).publish("t", b"x")
        sink.kill()
        with pytest.raises(CannotRunError):
            await sink.received()
        await sink.start()
        assert sink.endpoints == before
        assert await sink.received() == 0
