"""A client of the tests, and a reflector."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from loadgen.brokers.ask import BrokerConnection
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.reflector import run_reflector
from loadgen.mqtt import packets
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5


class Client(BrokerConnection):
    """A connection; `messages` are the PUBLISH packets received, which are acknowledged."""

    connack: packets.ConnAck

    def __init__(self, endpoint: Endpoint, packet: packets.Connect) -> None:
        super().__init__(endpoint, packet)
        self.packet_limit_bytes = 16 << 20
        self.messages: list[packets.Publish] = []
        self.acknowledges = True
        self._next_id = 1
        self._completed = 0

    def send_bytes(self, data: bytes) -> None:
        self._out.write(data)

    async def receive(self) -> packets.Packet:
        async with asyncio.timeout(30):
            return await super().receive()

    async def until(self, kind: type[packets.Packet]) -> Any:
        """Return the next packet of a kind; messages on the way are kept and acknowledged."""
        while True:
            packet = await self.receive()
            if isinstance(packet, packets.Publish):
                self.messages.append(packet)
                if self.acknowledges and packet.qos == 1:
                    self.send(packets.PubAck(packet.packet_id))
                elif self.acknowledges and packet.qos == 2:
                    self.send(packets.PubRec(packet.packet_id))
            elif isinstance(packet, packets.PubRel) and self.acknowledges:
                self.send(packets.PubComp(packet.packet_id))
            elif isinstance(packet, packets.PubRec) and self.acknowledges:
                self.send(packets.PubRel(packet.packet_id))
            self._completed += isinstance(packet, packets.PubAck | packets.PubComp)
            if isinstance(packet, kind):
                return packet

    async def until_count(self, number: int) -> list[packets.Publish]:
        """Return `messages` once there are `number` of them."""
        while len(self.messages) < number:
            await self.until(packets.Publish)
        return self.messages

    async def subscribe(self, *filters: str, qos: int = 0, **options: Any) -> packets.SubAck:
        wanted = tuple(packets.Subscription(text, qos, **options) for text in filters)
        self.send(packets.Subscribe(self.packet_id(), wanted))
        answer: packets.SubAck = await self.until(packets.SubAck)
        return answer

    async def publish(
        self, topic: str, *payloads: bytes, qos: int = 0, retain: bool = False
    ) -> None:
        """Send, and wait until the broker has acknowledged, or served, every one."""
        for payload in payloads:
            packet_id = self.packet_id() if qos else 0
            self.send(packets.Publish(topic, payload, qos, retain, packet_id=packet_id))
        self._completed = 0
        while qos and self._completed < len(payloads):
            await self.until(packets.PubAck if qos == 1 else packets.PubComp)
        await self.sync()

    async def sync(self) -> None:
        """Wait until all that was sent is served, and all written to this client received."""
        self.send(packets.PingReq())
        await self.until(packets.PingResp)

    def packet_id(self) -> int:
        self._next_id = self._next_id % 65535 + 1
        return self._next_id

    async def disconnect(self) -> None:
        self.send(packets.Disconnect())
        await self.gone()

    async def gone(self) -> packets.Packet | None:
        """Wait until the broker has closed; return the last packet that it sent."""
        last = None
        try:
            while True:
                last = await self.receive()
        except ConnectionError:
            return last


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reflector() -> AsyncIterator[Endpoint]:
    async with run_reflector() as broker:
        yield broker.endpoints[0]


ClientMaker = Callable[..., Coroutine[Any, Any, Client]]


@pytest.fixture
async def client() -> AsyncIterator[ClientMaker]:
    """Provide `await client(endpoint, "id", version=4, **fields)`; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(
            endpoint: Endpoint, client_id: str = "", version: int = MQTT_5, **fields: Any
        ) -> Client:
            fields.setdefault("user_name", endpoint.username)
            if endpoint.password is not None:
                fields.setdefault("password", endpoint.password.encode())
            made = Client(endpoint, packets.Connect(client_id, version, **fields))
            await made.connect()
            assert made.error is None
            stack.push_async_callback(made.close)
            return made

        yield make


@pytest.fixture(params=[MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number
