"""A broker of a page, whose every answer a test can change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt import packets
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.topics import filter_matches, split_shared
from tests.servers import closed, talking

Answer = packets.Packet | None  # None closes the connection


def _granted(packet: packets.Subscribe) -> Answer:
    return packets.SubAck(packet.packet_id, tuple(one.qos for one in packet.subscriptions))


def _acknowledged(packet: packets.Publish) -> Answer:
    return packets.PubAck(packet.packet_id) if packet.qos == 1 else packets.PubRec(packet.packet_id)


@dataclass(slots=True)
class LittleBroker:
    """What it answers; `delivered` are the QoS of the copies that a subscriber gets.

    Sessions are remembered with `sessions`, and with `shares` one of those that share a
    subscription is served. `connects` and `published` are what it heard.
    """

    versions: tuple[int, ...] = (4, 5)
    connack: Properties = field(default_factory=Properties)
    greets: Callable[[packets.Connect], Properties] | None = None  # in place of `connack`
    suback: Callable[[packets.Subscribe], Answer] = _granted
    acknowledgement: Callable[[packets.Publish], Answer] = _acknowledged
    delivered: Callable[[packets.Publish, int], tuple[int, ...]] = lambda packet, qos: (
        min(packet.qos, qos),
    )
    drops: Callable[[packets.Connect], bool] = lambda packet: False  # closes instead of a CONNACK
    sessions: bool = True
    silent: bool = False  # whether it keeps sessions and does not say so
    lies: bool = False  # it answers MQTT 5 with the CONNACK of 3.1.1, and speaks 3.1.1
    shares: bool = True
    connects: list[packets.Connect] = field(default_factory=list)
    published: list[packets.Publish] = field(default_factory=list)
    connected: set[object] = field(default_factory=set)
    _subscribers: list["_Client"] = field(default_factory=list)
    _kept: set[str] = field(default_factory=set)
    _away: dict[str, "_Client"] = field(default_factory=dict)


class _Client:
    def __init__(self, broker: LittleBroker, writer: asyncio.StreamWriter) -> None:
        self.broker, self.writer = broker, writer
        self.version = MQTT_5
        self.filters: dict[str, int] = {}
        self.client_id = ""
        self.missed: list[packets.Publish] = []

    def send(self, packet: Answer) -> None:
        if packet is None:
            self.writer.close()
        elif not self.writer.is_closing():
            self.writer.write(encode(packet, self.version))
        elif isinstance(packet, packets.Publish):
            self.missed.append(packet)

    def take(self, packet: packets.Packet) -> None:
        broker = self.broker
        match packet:
            case packets.Connect():
                self._connect(packet)
            case packets.Subscribe():
                answer = broker.suback(packet)
                if isinstance(answer, packets.SubAck):
                    granted = zip(packet.subscriptions, answer.reason_codes, strict=False)
                    self.filters |= {one.topic_filter: code for one, code in granted if code < 128}
                self.send(answer)
            case packets.Publish():
                broker.published.append(packet)
                answer = broker.acknowledgement(packet) if packet.qos else packet
                if packet.qos:
                    self.send(answer)
                if answer is not None and getattr(answer, "reason_code", 0) < 128:
                    self._forward(packet)
            case packets.PubRec():
                self.send(packets.PubRel(packet.packet_id))
            case packets.PubRel():
                self.send(packets.PubComp(packet.packet_id))

    def _connect(self, packet: packets.Connect) -> None:
        broker, client_id = self.broker, packet.client_id
        self.client_id = client_id
        self.version = MQTT_3_1_1 if broker.lies else packet.protocol_version
        broker.connects.append(packet)
        if broker.drops(packet):
            return self.send(None)
        if self.version not in broker.versions:
            code = 0x84 if self.version == MQTT_5 else 1
            return self.send(packets.ConnAck(reason_code=code))
        kept = client_id in broker._kept and not packet.clean_start
        broker._kept.discard(client_id)
        if not packet.clean_start:
            broker._kept.add(client_id)
        said = broker.connack if broker.greets is None else broker.greets(packet)
        properties = said if self.version == MQTT_5 else Properties()
        present = kept and broker.sessions and not broker.silent
        self.send(packets.ConnAck(present, 0, properties))
        broker._subscribers.append(self)
        if broker.silent and not packet.clean_start:
            before = broker._away.get(client_id)
            broker._away[client_id] = self
            if before is not None:
                self.filters = before.filters
                for message in before.missed:
                    self.send(message)
        return None

    def _forward(self, packet: packets.Publish) -> None:
        topic, served = packet.topic_name, set[str]()
        matching = [
            (other, topic_filter, granted)
            for other in self.broker._subscribers
            for topic_filter, granted in other.filters.items()
            if filter_matches(split_shared(topic_filter)[1], topic)
        ]
        for other, topic_filter, granted in matching:
            if topic_filter not in served:
                if self.broker.shares and topic_filter.startswith("$share/"):
                    served.add(topic_filter)
                for qos in self.broker.delivered(packet, granted):
                    number = len(self.broker.published) if qos else 0
                    other.send(packets.Publish(topic, packet.payload, qos, packet_id=number))


@asynccontextmanager
async def serving_little(broker: LittleBroker) -> AsyncIterator[Endpoint]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, received = _Client(broker, writer), b""
        broker.connected.add(client)
        with suppress(OSError, RemoteProtocolError):
            while data := await reader.read(1 << 20):
                received += data
                while found := decode(received, 0, len(received), client.version, 1 << 20):
                    packet, end = found
                    received = received[end:]
                    client.take(packet)
        broker.connected.discard(client)
        if broker._away.get(client.client_id) is not client:
            with suppress(ValueError):
                broker._subscribers.remove(client)
        await closed(writer)

    async with talking(talk) as port:
        yield Endpoint("mqtt", "127.0.0.1", port)
