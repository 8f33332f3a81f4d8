"""A broker that means harm: in front of a good one, it is good to all clients but some.

Whom it harms is told by the client identifier; where nothing has been said yet, it is the second
device that connects. `everyone` harms all, those too that ask before the load.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadgen.brokers.endpoints import Endpoint
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import ConnAck, Publish, SubAck
from loadgen.mqtt.properties import Properties
from tests.servers import closed, talking

VICTIM = re.compile(rb"lg[0-9a-f]{8}[a-z]0-1(?![0-9])")
"""The second device of a run's first group."""
_DEVICE = re.compile(rb"lg[0-9a-f]{8}[a-z][0-9]+-[0-9]+")
_PIECE = bytes(1 << 16)
_STREAM_BYTES = 256 << 20
_BYTE_EACH_S = 1.0
_HUGE = b"\xff\xff\xff\x7f"  # 268,435,455, the longest length that MQTT has


@dataclass(slots=True)
class Victim:
    """A connection to be harmed, and the version of MQTT that it spoke, 5 where that is unknown."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    version: int = 5

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def stream(self, piece: bytes = _PIECE) -> None:
        """As much as the other side takes, at most what MQTT allows in one packet."""
        for _ in range(_STREAM_BYTES // len(piece)):
            await self.say(piece)

    async def listen(self) -> None:
        """Until the other side has had enough."""
        while await self.reader.read(1 << 16):
            pass


Harm = Callable[[Victim], Awaitable[None]]


def _saying(*parts: bytes) -> Harm:
    async def harm(victim: Victim) -> None:
        for part in parts:
            await victim.say(part)
        await victim.listen()

    return harm


def _streaming(head: bytes, piece: bytes = _PIECE) -> Harm:
    async def harm(victim: Victim) -> None:
        await victim.say(head)
        await victim.stream(piece)
        await victim.listen()

    return harm


async def _dribble(victim: Victim) -> None:
    for byte in encode(ConnAck(), 5) + encode(Publish("t", bytes(100)), 5):
        await victim.say(bytes((byte,)))
        await asyncio.sleep(_BYTE_EACH_S)
    await victim.listen()


async def _nothing(victim: Victim) -> None:
    await victim.listen()


_CONNACK = encode(ConnAck(), 5)
_GARBAGE = bytes(range(255, 0, -1)) * 40
_ALIAS = encode(Publish("t", b"x" * 40, properties=Properties(topic_alias=9)), 5)
_PROPERTY = b"\x26\x00\x01a\x00\x01b"
_PROPERTIES = _PROPERTY * 9000
_TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"

AT_ONCE, FOR_CONNACK, AFTER_CONNACK = "at once", "for CONNACK", "after CONNACK"


@dataclass(frozen=True, slots=True)
class Misdeed:
    """What is done, and when."""

    when: str
    harm: Harm


MISDEEDS = {
    "connack-first": Misdeed(AT_ONCE, _saying(_CONNACK, _CONNACK)),
    "garbage-first": Misdeed(AT_ONCE, _saying(_GARBAGE)),
    "nothing": Misdeed(AT_ONCE, _nothing),
    "mqtt-in-tls": Misdeed(AT_ONCE, _saying(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76", _CONNACK)),
    "alert": Misdeed(AT_ONCE, _saying(_TLS_ALERT)),
    "garbage": Misdeed(FOR_CONNACK, _saying(_GARBAGE)),
    "silence": Misdeed(FOR_CONNACK, _nothing),
    "dribble": Misdeed(FOR_CONNACK, _dribble),
    "huge-connack": Misdeed(FOR_CONNACK, _streaming(b"\x20" + _HUGE)),
    "endless-connack-properties": Misdeed(
        FOR_CONNACK, _streaming(b"\x20" + _HUGE + b"\0\0" + _HUGE, _PROPERTIES)
    ),
    "endless-text": Misdeed(FOR_CONNACK, _streaming(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536)),
    "garbage-later": Misdeed(AFTER_CONNACK, _saying(_GARBAGE)),
    "huge-publish": Misdeed(AFTER_CONNACK, _streaming(b"\x30" + _HUGE + b"\0\1t\0")),
    "endless-properties": Misdeed(
        AFTER_CONNACK, _streaming(b"\x30" + _HUGE + b"\0\1t" + _HUGE, _PROPERTIES)
    ),
    "huge-suback": Misdeed(AFTER_CONNACK, _streaming(b"\x90" + _HUGE)),
    "wrong-alias": Misdeed(AFTER_CONNACK, _saying(_ALIAS * 3)),
    "unknown-suback": Misdeed(AFTER_CONNACK, _saying(encode(SubAck(77, (0,)), 5))),
    "second-connack": Misdeed(AFTER_CONNACK, _saying(_CONNACK)),
    "endless-connacks": Misdeed(AFTER_CONNACK, _streaming(b"", _CONNACK * 13000)),
    "endless-pings": Misdeed(AFTER_CONNACK, _streaming(b"", b"\xd0\x00" * 32768)),
    "dribble-later": Misdeed(AFTER_CONNACK, _dribble),
}


@dataclass(slots=True)
class HostileBroker:
    """A listener before the broker at `behind`."""

    misdeed: Misdeed
    behind: Endpoint
    everyone: bool = False
    harmed: int = 0
    devices: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        victim = Victim(reader, writer)
        if self.misdeed.when == AT_ONCE and (
            self.everyone or (self.devices == 1 and not self.harmed)
        ):
            await self._harm(victim)
        else:
            await self._pass_on(victim)
        await closed(writer)

    async def _harm(self, victim: Victim) -> None:
        self.harmed += 1
        await self.misdeed.harm(victim)

    async def _pass_on(self, victim: Victim) -> None:
        connect = await victim.reader.read(1 << 16)
        self.devices += bool(_DEVICE.search(connect))
        victim.version = connect[8] if len(connect) > 8 else 5
        harmed = self.everyone or VICTIM.search(connect)
        when = self.misdeed.when
        if harmed and when == FOR_CONNACK:
            await self._harm(victim)
            return
        near, far = await asyncio.open_connection(self.behind.host, self.behind.port)
        try:
            far.write(connect)
            await victim.say(await near.read(1 << 16))
            if harmed and when == AFTER_CONNACK:
                # Once the device has spoken, all devices are connected.
                far.write(await victim.reader.read(1 << 16))
                await self._harm(victim)
                return
            both = (
                asyncio.ensure_future(_carry(victim.reader, far)),
                asyncio.ensure_future(_carry(near, victim.writer)),
            )
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            far.close()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


@asynccontextmanager
async def hostile(
    name: str, behind: Endpoint, *, everyone: bool = False
) -> AsyncIterator[tuple[HostileBroker, int]]:
    """The broker that does this, and its port."""
    broker = HostileBroker(MISDEEDS[name], behind, everyone)
    async with talking(broker.serve) as port:
        yield broker, port


def names(when: str) -> Iterator[str]:
    """The misdeeds of a moment."""
    return (name for name, one in MISDEEDS.items() if one.when == when)
