"""The transcript of a relay: the packets that clients and broker sent to each other.

One JSON array a line, `[kind, moment_ns, ...]`, appended with one write each, so that a killed
process leaves all that it saw. Moments are CLOCK_MONOTONIC. A message is told by its header
(`kernels/payload.py`): `[run tag, stream, sequence, intended_ns, sent_ns, 1 for a copy]`, null
where it is too short.

    connect    client, clean start, session present, reason code
    close      client
    subscribe  client, [[topic filter, QoS asked for, granted QoS or reason code], ...]
    publish    client, Packet Identifier, QoS, DUP, topic, message
    answer     client, packet type, Packet Identifier, reason code     PUBACK, PUBREC, PUBCOMP to it
    deliver    client, Packet Identifier, QoS, DUP, topic, message, intact
    taken      client, packet type, Packet Identifier                  PUBACK or PUBREC from it
    release    client, Packet Identifier                               PUBREL to it
    fault      name, client, message as it was before
"""

import json
import os
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any, Final

from loadgen.kernels.payload import HEADER_BYTES
from loadgen.mqtt.packets import Subscription
from tests.instruments.packets import Delivery

_HEADER: Final = struct.Struct("<IIqqfI")
_MARK: Final = 27
_LONGEST_NS: Final = 1e18
_CHECKED_BYTES: Final = HEADER_BYTES - 4

Header = list[int] | None


def header_of(payload: bytes) -> Header:
    """Run tag, stream, sequence, moments and mark of a message; None where it has no header."""
    if len(payload) < HEADER_BYTES:
        return None
    tag, stream, sequence, intended_ns, offset_ns, _ = _HEADER.unpack_from(payload)
    # What is damaged, or another's, may have any offset.
    sent_ns = intended_ns + int(abs(offset_ns)) if abs(offset_ns) < _LONGEST_NS else 0
    return [tag, stream, sequence, intended_ns, sent_ns, payload[_MARK] >> 7]


def is_intact(payload: bytes) -> bool:
    """Whether a message has a header, and its checksum is right."""
    if len(payload) < HEADER_BYTES:
        return False
    crc = zlib.crc32(payload[:_CHECKED_BYTES], zlib.crc32(payload[HEADER_BYTES:]))
    return bool(crc == _HEADER.unpack_from(payload)[5])


class Transcript:
    """Appends what it is told to the file at `path`; where that is "", it forgets it."""

    def __init__(self, path: str = "") -> None:
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(path, how, 0o600) if path else None
        # The moment of what is written late.
        self.at_ns: int | None = None

    def __bool__(self) -> bool:
        return self._descriptor is not None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def connect(self, client: str, *, clean: bool, present: bool, code: int) -> None:
        self._write("connect", client, clean, present, code)

    def gone(self, client: str) -> None:
        self._write("close", client)

    def subscribe(self, client: str, asked: Sequence[Subscription], codes: Sequence[int]) -> None:
        filters = [
            (one.topic_filter, one.qos, code) for one, code in zip(asked, codes, strict=True)
        ]
        self._write("subscribe", client, filters)

    def publish(self, client: str, packet_id: int, item: Delivery, *, dup: bool) -> None:
        if self:
            topic, header = item.topic, header_of(item.message.payload)
            self._write("publish", client, packet_id, item.qos, dup, topic, header)

    def answer(self, client: str, packet_type: int, packet_id: int, code: int) -> None:
        self._write("answer", client, packet_type, packet_id, code)

    def deliver(self, client: str, packet_id: int, item: Delivery, *, dup: bool) -> None:
        if self:
            topic, payload = item.topic, item.message.payload
            header, intact = header_of(payload), is_intact(payload)
            self._write("deliver", client, packet_id, item.qos, dup, topic, header, intact)

    def taken(self, client: str, packet_type: int, packet_id: int) -> None:
        self._write("taken", client, packet_type, packet_id)

    def release(self, client: str, packet_id: int) -> None:
        self._write("release", client, packet_id)

    def fault(self, name: str, client: str, payload: bytes | None) -> None:
        self._write("fault", name, client, None if payload is None else header_of(payload))

    def _write(self, kind: str, *values: Any) -> None:
        if self._descriptor is not None:
            at_ns = self.at_ns or time.monotonic_ns()
            line = json.dumps((kind, at_ns, *values), separators=(",", ":"))
            os.write(self._descriptor, line.encode() + b"\n")
