"""Misdeeds of a broker that means harm, each to one connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import ConnAck, Publish, SubAck
from loadgen.mqtt.properties import Properties

_PIECE = bytes(1 << 16)
_STREAM_BYTES = 256 << 20
_BYTE_EACH_S = 1.0
_HUGE = b"\xff\xff\xff\x7f"  # 268,435,455, the longest length that MQTT has


@dataclass(slots=True)
class Victim:
    """A connection to be harmed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

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


def names(when: str) -> Iterator[str]:
    """The misdeeds of a moment."""
    return (name for name, one in MISDEEDS.items() if one.when == when)
