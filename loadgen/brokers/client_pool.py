"""Clients that check a broker before a run: each keeps all that it receives.

A pool ends in good order, also if it is cancelled: it removes what its clients retained at the
broker and closes every connection.
"""

import asyncio
import contextlib
import math
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from loadgen.brokers.ask import (
    PACKET_LIMIT_BYTES,
    BrokerConnection,
    ask,
    connect_of,
    ended,
    named,
    shown,
)
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import UNKNOWN
from loadgen.errors import CannotRunError, RemoteProtocolError
from loadgen.mqtt import packets
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import is_failure

_SUBSCRIBE_ID: Final = 65_535
"""Publications count from 1."""
_VERSION_TOPICS: Final = (
    "$SYS/broker/version",
    # One of each node, and the product's name next to it.
    "$SYS/brokers/+/version",
    "$SYS/brokers/+/sysdescr",
)
_VERSION_CHARACTERS: Final = 200
_ANSWER_S: Final = 1.0
_RETAINED_S: Final = 0.3


@dataclass(slots=True, eq=False)
class PoolClient:
    """One client of a pool, and all that it received."""

    connection: BrokerConnection
    connack: packets.ConnAck
    suback: packets.SubAck | None = None  # the answer to the last SUBSCRIBE
    answers: dict[int, packets.Packet] = field(default_factory=dict)  # the first by identifier
    completed: set[int] = field(default_factory=set)  # identifiers of completed handshakes
    inbox: list[packets.Publish] = field(default_factory=list)
    retained: set[str] = field(default_factory=set)  # topics
    ended: str = ""  # the reason for the end of the connection

    def publish(self, packet: packets.Publish) -> None:
        """Send, unless the connection has ended."""
        if not self.ended:
            if packet.retain:
                self.retained.add(packet.topic_name)
            self.connection.send(packet)

    def subscribe(
        self, filters: Sequence[str], qos: int, properties: Properties = NO_PROPERTIES
    ) -> None:
        subscriptions = tuple(packets.Subscription(topic, qos) for topic in filters)
        self.suback = None
        self.connection.send(packets.Subscribe(_SUBSCRIBE_ID, subscriptions, properties))

    async def listen(self, notify: Callable[[], None]) -> None:
        """Receive until the connection ends."""
        try:
            while True:
                self._take(await self.connection.receive())
                notify()
        except (OSError, RemoteProtocolError) as error:
            number = error.errno if isinstance(error, OSError) else None
            self.ended = self.ended or (os.strerror(number).lower() if number else str(error))
            notify()

    def _take(self, packet: packets.Packet) -> None:
        send = self.connection.send
        match packet:
            case packets.Publish(qos=qos):
                self.inbox.append(packet)
                if qos:
                    send((packets.PubAck if qos == 1 else packets.PubRec)(packet.packet_id))
            case packets.PubRel():
                send(packets.PubComp(packet.packet_id))
            case packets.SubAck():
                self.suback = packet
            case packets.PubAck() | packets.PubRec() | packets.PubComp():
                self.answers.setdefault(packet.packet_id, packet)
                if isinstance(packet, packets.PubRec) and not is_failure(packet.reason_code):
                    send(packets.PubRel(packet.packet_id))
                else:
                    self.completed.add(packet.packet_id)
            case packets.Disconnect():
                self.ended = named(packet.reason_code, packet.properties, MQTT_5)

    async def leave(self) -> None:
        """Remove retained messages, send DISCONNECT and close."""
        if not self.ended:
            for topic in self.retained:
                self.connection.send(packets.Publish(topic, retain=True))
            self.connection.send(packets.Disconnect())
        await self.connection.close()


@dataclass(slots=True, eq=False)
class ClientPool:
    """Clients for the length of a block, and a way to wait for what they receive.

    Its waits also end once nothing was received for `quiet_s`. With `spoken` the broker is known to
    speak the version of the clients, as it is once a client was accepted.
    """

    tls_context: ssl.SSLContext | None = None
    packet_limit_bytes: int = PACKET_LIMIT_BYTES
    quiet_s: float = math.inf
    spoken: bool = False
    _received_s: float = field(default_factory=time.monotonic)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self, endpoint: Endpoint, connect: packets.Connect) -> PoolClient:
        connection, connack = await ask(endpoint, connect, self.tls_context, spoken=self.spoken)
        self.spoken = True
        connection.packet_limit_bytes = self.packet_limit_bytes
        client = PoolClient(connection, connack)
        self._stack.push_async_callback(client.leave)
        listening = asyncio.ensure_future(client.listen(self._notify))
        self._stack.push_async_callback(ended, (listening,))
        self._notify()
        return client

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, which is called after each packet, and return its result."""
        end_s = time.monotonic() + timeout_s
        while not done():
            left_s = min(end_s, self._received_s + self.quiet_s) - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        return True

    async def subscribed(
        self,
        client: PoolClient,
        filters: Sequence[str],
        qos: int,
        timeout_s: float,
        properties: Properties = NO_PROPERTIES,
    ) -> bool:
        """Subscribe, wait for the answer, and return True if all was granted."""
        client.subscribe(filters, qos, properties)
        await self.until(lambda: bool(client.suback or client.ended), timeout_s)
        return client.suback is not None and client.suback.reason_codes == (qos,) * len(filters)

    @property
    def is_quiet(self) -> bool:
        return time.monotonic() >= self._received_s + self.quiet_s

    def _notify(self) -> None:
        self._received_s = time.monotonic()
        self._changed.set()


async def version_of(
    endpoint: Endpoint, connect: packets.Connect, tls_context: ssl.SSLContext | None = None
) -> str:
    """Return a broker's name for its version, with the version of MQTT and login of `connect`.

    It needs a separate connection: some brokers end one that subscribes to $SYS.
    """
    levels: dict[str, str] = {}

    def is_named() -> bool:
        for message in client.inbox:
            level = message.topic_name.rpartition("/")[2]
            levels.setdefault(level, shown_version(message.payload))
        return len(levels) > 1 or any(one.topic_name == _VERSION_TOPICS[0] for one in client.inbox)

    with contextlib.suppress(CannotRunError):
        async with ClientPool(tls_context) as pool:
            packet = connect_of(endpoint, connect.protocol_version, connect)
            client = await pool.join(endpoint, packet)
            for name, value in client.connack.properties.user_property:
                if "version" in name.lower() and value.strip():
                    return shown_version(value)
            await pool.subscribed(client, _VERSION_TOPICS, 0, _ANSWER_S)
            # Retained messages come at once, or never.
            await pool.until(is_named, _RETAINED_S)
    return " ".join(levels[name] for name in ("sysdescr", "version") if name in levels) or UNKNOWN


def shown_version(text: str | bytes) -> str:
    """Return a version as printable ASCII of at most 200 characters, or "unknown"."""
    return shown(text, _VERSION_CHARACTERS) or UNKNOWN
