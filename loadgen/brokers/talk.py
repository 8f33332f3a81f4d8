"""Clients that talk to brokers when speed does not matter: each keeps all that it hears.

What comes is acknowledged as a client must. A `Talk` ends in good order also when it is cancelled:
what its clients retained at a broker is removed, and every connection is closed.
"""

import asyncio
import contextlib
import math
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from loadgen.brokers.client import PACKET_LIMIT_BYTES, PacketStream, shown
from loadgen.brokers.door import OLDER, admitted, ended
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import RemoteProtocolError
from loadgen.mqtt import packets
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import is_failure, reason_name

_SUBSCRIBE_ID: Final = 65_535
"""Publications count from 1."""


TURN_S: Final = 0.25

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Client:
    """One client of a talk and all that it heard."""

    endpoint: Endpoint
    stream: PacketStream
    connack: packets.ConnAck
    suback: packets.SubAck | None = None
    answers: dict[int, packets.Packet] = field(default_factory=dict)  # the first by identifier
    completed: set[int] = field(default_factory=set)  # identifiers whose handshake has ended
    inbox: list[packets.Publish] = field(default_factory=list)
    retained: set[str] = field(default_factory=set)  # topics
    ended: str = ""  # how the connection ended

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
        """Ask for these Topic Filters; `suback` is the answer to the last such question."""
        asked = tuple(packets.Subscription(one, qos) for one in filters)
        self.suback = None
        self.stream.send(packets.Subscribe(_SUBSCRIBE_ID, asked, properties))

    async def listen(self, heard: Callable[[], None]) -> None:
        """Take what comes until the connection ends."""
        try:
            while True:
                self._take(await self.stream.receive())
                heard()
        except (OSError, RemoteProtocolError) as error:
            number = error.errno if isinstance(error, OSError) else None
            self.ended = self.ended or (os.strerror(number).lower() if number else str(error))
            heard()

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
        """Remove what was retained, DISCONNECT and close."""
        if not self.ended:
            for topic in self.retained:
                self.stream.send(packets.Publish(topic, retain=True))
            self.stream.send(packets.Disconnect())
        await self.stream.close()


def named(code: int, properties: Properties, version: int) -> str:
    """A reason code with the Reason String that came with it."""
    text = f": {shown(properties.reason_string)}" if properties.reason_string else ""
    return f"{reason_name(code, version)}{text}"


class Patience:
    """When several talks give up together: when none of them has heard anything for `quiet_s`.

    A broker that is slow with all of them is not taken for one that lacks what one of them wants.
    """

    def __init__(self, quiet_s: float) -> None:
        self.quiet_s = quiet_s
        self._heard_s = time.monotonic()

    def hear(self) -> None:
        """Something came."""
        self._heard_s = time.monotonic()

    @property
    def left_s(self) -> float:
        """How long to wait if nothing comes, 0 or less when that is over."""
        return self._heard_s + self.quiet_s - time.monotonic()


class Talk:
    """Any number of clients for the length of a block, and a way to wait for what one hears."""

    def __init__(
        self,
        tls_context: ssl.SSLContext | None = None,
        *,
        packet_limit_bytes: int = PACKET_LIMIT_BYTES,
        older: str = OLDER,
        patience: Patience | None = None,
        spoken: bool = False,
    ) -> None:
        """`older` is what helps where a broker does not speak the version of a CONNECT.

        `spoken`: it does; known, too, when the first client was accepted.
        """
        self._tls_context, self._older, self._spoken = tls_context, older, spoken
        self._patience = Patience(math.inf) if patience is None else patience
        self._packet_limit_bytes = packet_limit_bytes
        self._changed = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self, endpoint: Endpoint, connect: packets.Connect) -> Client:
        """A client that the broker accepted; raises what `admitted` does."""
        stream, connack = await admitted(
            endpoint, connect, self._tls_context, older=self._older, spoken=self._spoken
        )
        self._spoken = True
        stream.packet_limit_bytes = self._packet_limit_bytes
        client = Client(endpoint, stream, connack)
        self._stack.push_async_callback(client.leave)
        listening = asyncio.ensure_future(client.listen(self._hear))
        self._stack.push_async_callback(ended, (listening,))
        return client

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, looked at whenever something was heard; whether it is."""
        end_s = time.monotonic() + timeout_s
        while not done():
            left_s = min(end_s - time.monotonic(), self._patience.left_s)
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        return True

    async def subscribed(
        self,
        client: Client,
        filters: Sequence[str],
        qos: int,
        timeout_s: float,
        properties: Properties = NO_PROPERTIES,
    ) -> bool:
        """Subscribe and wait for the answer; whether all was granted."""
        client.subscribe(filters, qos, properties)
        await self.until(lambda: bool(client.suback or client.ended), timeout_s)
        return client.suback is not None and client.suback.reason_codes == (qos,) * len(filters)

    @property
    def given_up(self) -> bool:
        """Whether patience is at its end."""
        return self._patience.left_s <= 0

    def _hear(self) -> None:
        self._patience.hear()
        self._changed.set()


async def in_turn(work: Iterable[Coroutine[Any, Any, T]], turn_s: float = TURN_S) -> list[T]:
    """Do one after the other, each for `turn_s` at most before the next begins beside it.

    Those that only wait for what may never come hold nobody up, and a broker that errs when many
    clients come at once is asked by few.
    """
    waiting = list(work)
    tasks: list[asyncio.Task[T]] = []
    try:
        while waiting:
            tasks.append(asyncio.ensure_future(waiting.pop(0)))
            await asyncio.wait(tasks[-1:], timeout=turn_s)
        return await asyncio.gather(*tasks)
    finally:
        for one in waiting:
            one.close()
        await ended(tasks)


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Do all at once; when one fails the others are cancelled, and have ended when it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await ended(tasks)
