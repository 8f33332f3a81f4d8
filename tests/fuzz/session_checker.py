"""A reference checker of MQTT sessions, written from the specification alone.

`Checker` reads a transcript, the packets between two clients and a server in order, and names each
breach by the server with its paragraph (of MQTT 5, where the two versions agree). It imports
nothing of loadgen; tests compare its findings with those of the codec and of the kernels.

A client stops reading a connection after a malformed or unexpected packet (4.13).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

Event = tuple[int, str, bytes]
"""Client, direction (">" to the server, "<" from it, "!" for the end of the connection), packet."""


class Breach(NamedTuple):
    """A breach by the server: the event, its name and the paragraph of the specification."""

    event: int
    name: str
    paragraph: str


class MalformedError(Exception):
    """The bytes are no packet of the specification."""


# --- packets (1.5, 2, 3) -----------------------------------------------------------------------

_PROPERTIES = {  # 2.2.2.2, by the packets from a server that carry them; 0x1F, 0x26: all answers
    PUBLISH: (0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26),
    CONNACK: (0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x21, 0x22, 0x24, 0x25, *range(0x27, 0x2B)),
    DISCONNECT: (0x11, 0x1C),
    AUTH: (0x15, 0x16),
}
_KINDS = {  # 2.2.2.2, by the type of their value; all others are strings
    "1": (0x01, 0x24, 0x25, 0x28, 0x29, 0x2A),
    "2": (0x13, 0x21, 0x22, 0x23),
    "4": (0x02, 0x11, 0x27),
    "variable": (0x0B,),
    "topic": (0x08,),
    "data": (0x09, 0x16),
    "pair": (0x26,),
}
_NOT_ZERO = (0x0B, 0x21, 0x23, 0x27)
_REASONS = {  # 2.4
    CONNACK: {0, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F, *range(0x80, 0x8B)},
    PUBACK: {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREC: {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREL: {0, 0x92},
    PUBCOMP: {0, 0x92},
    SUBACK: {0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    DISCONNECT: {
        *(0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90),
        *range(0x93, 0xA3),
    },
}
_OLD_REASONS = {CONNACK: set(range(6)), SUBACK: {0, 1, 2, 0x80}}  # 3.2.2.3 and 3.9.3 of 3.1.1


def _require(is_allowed: bool) -> None:
    if not is_allowed:
        raise MalformedError


class _Reader:
    """The bytes of a packet that are not read yet."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        _require(len(self.data) >= count)
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def variable(self) -> int:  # 1.5.5
        value = 0
        for place in range(4):
            byte = self.number(1)
            value += (byte & 127) << 7 * place
            if byte < 128:
                _require(byte > 0 or place == 0)
                return value
        raise MalformedError

    def text(self) -> str:  # 1.5.4
        try:
            text = self.take(self.number(2)).decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedError from None
        _require("\0" not in text)
        return text

    def topic(self) -> str:  # 4.7
        topic = self.text()
        _require("+" not in topic and "#" not in topic)
        return topic

    def properties(self, packet_type: int) -> dict[int, object]:  # 2.2.2
        part = _Reader(self.take(self.variable()))
        found: dict[int, object] = {}
        while part.data:
            identifier = part.variable()
            answers = () if packet_type == PUBLISH else (0x1F, 0x26)
            is_allowed = identifier in (*_PROPERTIES.get(packet_type, ()), *answers)
            _require(
                not (not is_allowed or (identifier in found and identifier not in (0x0B, 0x26)))
            )
            found[identifier] = part.value(identifier)
        return found

    def value(self, identifier: int) -> object:
        kind = next((kind for kind, which in _KINDS.items() if identifier in which), "text")
        if kind == "text":
            return self.text()
        if kind == "data":
            return self.take(self.number(2))
        if kind == "pair":
            return self.text(), self.text()
        if kind == "topic":
            topic = self.topic()
            _require(topic != "")
            return topic
        value = self.variable() if kind == "variable" else self.number(int(kind))
        _require(value <= 1 or kind != "1")
        _require(value > 0 or identifier not in _NOT_ZERO)
        return value


@dataclass
class Packet:
    """A packet from the server, as far as a breach depends on it."""

    kind: int
    packet_id: int = 0
    reasons: tuple[int, ...] = (0,)
    properties: dict[int, object] = field(default_factory=dict)
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    dup: bool = False
    retain: bool = False


def read_packet(data: bytes, version: int) -> Packet:
    """Read a packet of a server; MalformedError if the specification does not allow its bytes."""
    kind, flags = data[0] >> 4, data[0] & 15
    reader = _Reader(data[1:])
    _require(
        not (reader.variable() != len(reader.data) or kind == 0 or (kind == AUTH and version < 5))
    )
    packet = Packet(kind)
    if kind == PUBLISH:
        _read_publish(packet, reader, flags, version)
        return packet
    _require(flags == (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0))
    if kind == CONNACK:
        acknowledge_flags, code = reader.number(1), reader.number(1)
        packet.session_present, packet.reasons = acknowledge_flags == 1, (code,)
        _require(acknowledge_flags <= (1 if code == 0 else 0))
        packet.properties = reader.properties(kind) if version == 5 else {}
        _require(0x16 not in packet.properties or 0x15 in packet.properties)
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK):
        packet.packet_id = reader.number(2)
        _require(packet.packet_id > 0)
        if kind == SUBACK or (kind == UNSUBACK and version == 5):
            packet.properties = reader.properties(kind) if version == 5 else {}
            packet.reasons = tuple(reader.take(len(reader.data)))
            _require(bool(packet.reasons))
    elif kind == AUTH and reader.data:
        reader.number(1)
        reader.properties(kind)
    if version == 5 and reader.data and kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT):
        packet.reasons = (reader.number(1),)
        if reader.data:
            packet.properties = reader.properties(kind)
    _require(not reader.data)
    return packet


def _read_publish(packet: Packet, reader: _Reader, flags: int, version: int) -> None:
    packet.qos, packet.dup, packet.retain = flags >> 1 & 3, bool(flags & 8), bool(flags & 1)
    _require(packet.qos < 3 and (packet.qos > 0 or not packet.dup))
    packet.topic = reader.topic()
    if packet.qos:
        packet.packet_id = reader.number(2)
        _require(packet.packet_id > 0)
    packet.properties = reader.properties(PUBLISH) if version == 5 else {}
    _require(packet.topic != "" or 0x23 in packet.properties)
    packet.payload = reader.data


# --- sessions (4) --------------------------------------------------------------------------------


def message_of(payload: bytes) -> bytes:
    """The identity of a message: stream and sequence in its header, the same in each copy."""
    return payload[4:16]


@dataclass
class _Client:
    """The packets that the server may still send to a client."""

    durable: bool = False
    was_here: bool = False
    connected: bool = False
    over: bool = False  # the connection is not read any more
    resumed: bool = False
    pings: int = 0
    asked: dict[int, list[int]] = field(default_factory=dict)  # SUBSCRIBE: identifier, QoS each
    requested: int = 0
    granted: int = 2
    accepted_at: int = -1
    subscribed_at: int = -1
    waiting: dict[int, str] = field(default_factory=dict)  # the packet that awaits an answer
    in_use: dict[int, bytes] = field(default_factory=dict)  # QoS 2 before its PUBREL
    repeatable: dict[int, bytes] = field(default_factory=dict)
    unanswered: set[int] = field(default_factory=set)  # QoS 1 before its PUBACK
    released: set[int] = field(default_factory=set)  # by PUBREL on this connection
    releasable: set[int] = field(default_factory=set)  # by PUBREL again: its answer may be lost
    arrived: dict[bytes, set[bytes]] = field(default_factory=dict)  # the payloads of a message
    doubtful: set[bytes] = field(default_factory=set)
    retained: set[bytes] = field(default_factory=set)  # streams with a retained repeat since then


_WANTED = {"PUBLISH of QoS 1": PUBACK, "PUBLISH of QoS 2": PUBREC, "PUBREL": PUBCOMP}


class Checker:
    """Two clients and a server: client 0 publishes, client 1 subscribes with a stored session."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.clients = _Client(), _Client(durable=True)
        self.published: dict[bytes, tuple[int, int]] = {}  # first event and QoS of each message
        self.breaches: list[Breach] = []
        self.repeated = self.excused = 0
        self.event = -1

    def check(self, event: Event) -> None:
        """Take the next event of the transcript."""
        self.event += 1
        number, direction, data = event
        client = self.clients[number]
        if direction == "!":
            self._end(client)
        elif direction == ">":
            self._from_client(client, data)
        elif not client.over:
            self._from_server(client, data)

    def _breach(self, name: str, paragraph: str) -> None:
        self.breaches.append(Breach(self.event, name, paragraph))

    def _end(self, client: _Client) -> None:
        if client.connected:
            client.was_here = True
            client.doubtful = set(client.arrived)
            client.repeatable = dict(client.in_use)
            client.releasable |= {*client.in_use} | client.released
            client.released.clear()
            client.unanswered.clear()
        client.connected = client.over = False
        client.pings = 0
        client.asked.clear()

    def _from_client(self, client: _Client, data: bytes) -> None:
        kind, qos = data[0] >> 4, data[0] >> 1 & 3
        reader = _Reader(data[1:])
        reader.variable()
        if kind == PINGREQ:
            client.pings += 1
        elif kind == PUBACK:
            client.unanswered.discard(reader.number(2))
        elif kind == SUBSCRIBE:
            packet_id = reader.number(2)
            reader.take(reader.variable() if self.version == 5 else 0)
            requested = []
            while reader.data:
                reader.text()
                requested.append(reader.number(1) & 3)
            client.asked[packet_id] = requested
            client.requested = max(requested)
        elif kind == PUBLISH:
            reader.text()
            packet_id = reader.number(2) if qos else 0
            reader.take(reader.variable() if self.version == 5 else 0)
            self.published.setdefault(message_of(reader.data), (self.event, qos))
            if qos:
                client.waiting[packet_id] = f"PUBLISH of QoS {qos}"

    def _from_server(self, client: _Client, data: bytes) -> None:
        try:
            packet = read_packet(data, self.version)
        except MalformedError:
            self._breach("MALFORMED", "4.13.1")
            client.over = True
            return
        kind = packet.kind
        if kind != CONNACK and not client.connected:
            self._breach("UNEXPECTED_PACKET", "MQTT-3.2.0-1")
            client.over = True
        elif kind == CONNACK and not client.connected:
            self._check_reasons(packet)
            self._on_connack(client, packet)
        elif kind == PUBLISH:
            self._on_publish(client, packet)
        elif kind == PUBREL:
            self._check_reasons(packet)
            known = client.in_use.pop(packet.packet_id, None) is not None
            again = packet.packet_id in client.releasable or not client.was_here
            self._settle(client, packet.packet_id)
            client.released |= {packet.packet_id} if client.requested == 2 else set()
            if not known and not (client.resumed and again):
                self._breach("UNKNOWN_PUBREL", "4.3.3")
            elif known and not client.resumed and packet.reasons[0] >= 0x80:
                self._breach("FAILED_PUBREL", "3.6.2.1")
        elif kind in (PUBACK, PUBREC, PUBCOMP):
            self._check_reasons(packet)
            self._on_answer(client, packet)
        elif kind == SUBACK and client.durable:
            self._on_suback(client, packet)
        elif kind == PINGRESP:
            client.pings -= 1
            if client.pings < 0:
                client.pings = 0
                self._breach("UNREQUESTED_PINGRESP", "3.13")
        elif kind == DISCONNECT:
            self._check_reasons(packet)
            if self.version < 5:
                self._breach("SERVER_DISCONNECT", "3.14 of 3.1.1")
            client.over = True
        else:
            self._breach("UNEXPECTED_PACKET", "3")
            client.over = True

    def _check_reasons(self, packet: Packet) -> None:
        table = _REASONS if self.version == 5 else _OLD_REASONS
        if not set(packet.reasons) <= table.get(packet.kind, {0}):
            self._breach("UNKNOWN_REASON", "2.4")

    def _on_connack(self, client: _Client, packet: Packet) -> None:
        if packet.reasons != (0,):
            client.over = True
            return
        client.connected, client.accepted_at = True, self.event
        client.retained.clear()
        client.resumed = packet.session_present
        if packet.session_present and not (client.durable and client.was_here):
            self._breach("SESSION_PRESENT", "MQTT-3.2.2-2")
        if client.was_here and client.durable and not packet.session_present:
            self._breach("SESSION_LOST", "MQTT-3.1.2-23")
        if 0x12 in packet.properties:
            self._breach("ASSIGNED_IDENTIFIER", "3.2.2.3.7")
        if packet.properties.get(0x1A) or packet.properties.get(0x15):
            self._breach("UNREQUESTED_PROPERTY", "MQTT-3.1.2-28")
        if not packet.session_present:
            client.in_use.clear()
            for packet_id in [n for n, sent in client.waiting.items() if sent == "PUBREL"]:
                del client.waiting[packet_id]

    def _on_suback(self, client: _Client, packet: Packet) -> None:
        requested = client.asked.pop(packet.packet_id, None)
        if requested is None:
            self._breach("UNKNOWN_SUBACK", "MQTT-3.8.4-2")
            return
        if len(packet.reasons) != len(requested):
            self._breach("SUBACK_CODES", "MQTT-3.8.4-6")
        self._check_reasons(packet)
        if any(requested[0] < code <= 2 for code in packet.reasons):
            self._breach("GRANT_RAISED", "MQTT-3.8.4-8")
        client.granted = min(client.granted, *packet.reasons, requested[0])
        client.subscribed_at = self.event

    def _on_answer(self, client: _Client, packet: Packet) -> None:
        sent = client.waiting.get(packet.packet_id)
        failed = packet.reasons[0] >= 0x80
        if sent is None:
            self._breach("UNKNOWN_ACKNOWLEDGEMENT", "4.3")
        elif _WANTED[sent] != packet.kind:
            self._breach(f"{sent} answered with {packet.kind}", "4.3")
            if not (packet.kind == PUBREC and sent == "PUBREL"):
                del client.waiting[packet.packet_id]
        elif packet.kind == PUBREC and not failed:
            client.waiting[packet.packet_id] = "PUBREL"
        else:
            del client.waiting[packet.packet_id]
            if packet.kind == PUBCOMP and failed:
                self._breach("FAILED_PUBCOMP", "4.3.3")

    def _on_publish(self, client: _Client, packet: Packet) -> None:
        if 0x23 in packet.properties:
            self._breach("TOPIC_ALIAS", "MQTT-3.1.2-26")
        if 0x0B in packet.properties:
            self._breach("SUBSCRIPTION_IDENTIFIER", "MQTT-3.3.4-3")
        message = message_of(packet.payload)
        if packet.qos == 2 and packet.packet_id in client.in_use:
            self._on_identifier_in_use(client, packet, message)
            return
        unanswered = packet.packet_id in client.unanswered and not packet.dup
        if packet.qos == 1 and (packet.packet_id in client.in_use or unanswered):
            self._breach("IDENTIFIER_IN_USE", "MQTT-2.2.1-4")
        if packet.qos == 2:
            client.in_use[packet.packet_id] = message
            self._settle(client, packet.packet_id)
        elif packet.qos == 1:
            client.unanswered.add(packet.packet_id)
        sent_at, sent_qos = self.published[message]
        if message in client.arrived:
            self._on_repeat(client, packet, message)
            return
        client.arrived[message] = {packet.payload}
        if packet.qos > min(client.granted, sent_qos):
            self._breach("QOS_RAISED", "MQTT-3.8.4-8")
        if packet.retain and not client.asked and sent_at > client.subscribed_at:
            self._breach("RETAIN_ON_LIVE", "MQTT-3.3.1-12")
        if packet.dup and (not client.was_here or sent_at > client.accepted_at):
            self._breach("DUP_ON_FIRST", "MQTT-3.3.1-3")

    def _settle(self, client: _Client, packet_id: int) -> None:
        """4.4: only what was open when the connection ended may come again."""
        client.releasable.discard(packet_id)
        client.repeatable.pop(packet_id, None)

    def _on_identifier_in_use(self, client: _Client, packet: Packet, message: bytes) -> None:
        """2.2.1: an identifier belongs to one message until its PUBREL."""
        self.repeated += 1
        if client.in_use[packet.packet_id] != message or not packet.dup:
            self._breach("IDENTIFIER_IN_USE", "MQTT-2.2.1-4")
        elif client.resumed and client.repeatable.pop(packet.packet_id, None) == message:
            self.excused += 1

    def _on_repeat(self, client: _Client, packet: Packet, message: bytes) -> None:
        """4.4: only unacknowledged messages are sent again, on a resumed session, with DUP.

        Each PUBLISH of ours may be passed on once, also if it repeats another one (4.3.2).
        """
        self.repeated += 1
        excused = packet.payload not in client.arrived[message]
        client.arrived[message].add(packet.payload)
        # 3.3.1.3: a new subscription brings the retained message of each topic.
        renewed = bool(client.asked) or client.accepted_at < client.subscribed_at
        if packet.retain and client.was_here and renewed:
            excused = excused or message[:4] not in client.retained
            client.retained.add(message[:4])
        if packet.qos == 1 and packet.dup and client.resumed and message in client.doubtful:
            client.doubtful.discard(message)
            excused = True
        self.excused += excused
