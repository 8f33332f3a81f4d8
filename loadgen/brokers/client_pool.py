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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from loadgen.brokers.ask import OLDER, ask, ended, named
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.packet_stream import PACKET_LIMIT_BYTES, PacketStream
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt import packets
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import is_failure

_SUBSCRIBE_ID: Final = 65_535
"""Publications count from 1."""


@dataclass(slots=True, eq=False)
class PoolClient:
    """One client of a pool, and all that it received."""

    endpoint: Endpoint
    stream: PacketStream
    connack: packets.ConnAck
    suback: packets.SubAck | None = None
    answers: dict[int, packets.Packet] = field(default_factory=dict)  # the first by identifier
    completed: set[int] = field(default_factory=set)  # identifiers of completed handshakes
    inbox: list[packets.Publish] = field(default_factory=list)
    retained: set[str] = field(default_factory=set)  # topics
    ended: str = ""  # the reason for the end of the connection

    def publish(self, packet: packets.Publish) -> None:
        """Send, unless the connection has ended."""
        if self.ended:
            return
        if packet.retain:
            self.retained.add(packet.topic_name)
        self.stream.send(packet)

    def subscribe(
        self, filters: Sequence[str], qos: int, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Send a SUBSCRIBE; `suback` will be the answer to the last one."""
        subscriptions = tuple(packets.Subscription(topic, qos) for topic in filters)
        self.suback = None
        self.stream.send(packets.Subscribe(_SUBSCRIBE_ID, subscriptions, properties))

    async def listen(self, notify: Callable[[], None]) -> None:
        """Receive until the connection ends."""
        try:
            while True:
                self._take(await self.stream.receive())
                notify()
        except (OSError, RemoteProtocolError) as error:
            number = error.errno if isinstance(error, OSError) else None
            self.ended = self.ended or (os.strerror(number).lower() if number else str(error))
            notify()

    def _take(self, packet: packets.Packet) -> None:
        send = self.stream.send
        if isinstance(packet, packets.Publish):
            self.inbox.append(packet)
            if packet.qos == 1:
                send(packets.PubAck(packet.packet_id))
            elif packet.qos == 2:
                send(packets.PubRec(packet.packet_id))
        elif isinstance(packet, packets.PubRel):
            send(packets.PubComp(packet.packet_id))
        elif isinstance(packet, packets.SubAck):
            self.suback = packet
        elif isinstance(packet, (packets.PubAck, packets.PubRec)):
            self.answers.setdefault(packet.packet_id, packet)
            if isinstance(packet, packets.PubRec) and not is_failure(packet.reason_code):
                send(packets.PubRel(packet.packet_id))
            else:
                self.completed.add(packet.packet_id)
        elif isinstance(packet, packets.PubComp):
            self.completed.add(packet.packet_id)
        elif isinstance(packet, packets.Disconnect):
            self.ended = named(packet.reason_code, packet.properties, MQTT_5)

    async def leave(self) -> None:
        """Remove retained messages, send DISCONNECT and close."""
        if not self.ended:
            for topic in self.retained:
                self.stream.send(packets.Publish(topic, retain=True))
            self.stream.send(packets.Disconnect())
        await self.stream.close()


class ClientPool:
    """Clients for the length of a block, and a way to wait for what they receive."""

    def __init__(
        self,
        tls_context: ssl.SSLContext | None = None,
        *,
        packet_limit_bytes: int = PACKET_LIMIT_BYTES,
        older: str = OLDER,
        quiet_s: float = math.inf,
        spoken: bool = False,
    ) -> None:
        """Make a pool whose waits also end once nothing was received for `quiet_s`.

        `older` and `spoken` are those of `ask`; a version is known to be spoken, too, once a client
        was accepted.
        """
        self._tls_context, self._older, self._spoken = tls_context, older, spoken
        self._quiet_s = quiet_s
        self._received_s = time.monotonic()
        self._packet_limit_bytes = packet_limit_bytes
        self._changed = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self, endpoint: Endpoint, connect: packets.Connect) -> PoolClient:
        """Connect a client; raises the errors of `ask`."""
        stream, connack = await ask(
            endpoint, connect, self._tls_context, older=self._older, spoken=self._spoken
        )
        self._spoken = True
        stream.packet_limit_bytes = self._packet_limit_bytes
        client = PoolClient(endpoint, stream, connack)
        self._stack.push_async_callback(client.leave)
        listening = asyncio.ensure_future(client.listen(self._notify))
        self._stack.push_async_callback(ended, (listening,))
        self._notify()
        return client

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, which is called after each packet, and return its result."""
        end_s = time.monotonic() + timeout_s
        while not done():
            left_s = min(end_s, self._received_s + self._quiet_s) - time.monotonic()
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
        """True if nothing was received for `quiet_s`."""
        return time.monotonic() >= self._received_s + self._quiet_s

    def _notify(self) -> None:
        self._received_s = time.monotonic()
        self._changed.set()


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all at once; if one fails, cancel the others and wait for their end before raising."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await ended(tasks)
