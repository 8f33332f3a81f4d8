"""The reflector: a small, fast MQTT 3.1.1 and 5 broker without wills and retained messages.

It is an instrument, not a system under test: its limit is a ceiling for what the harness can
measure on a host. With `discards` it is the sink: it takes every message and delivers none.

A kernel cuts each read into items (`scan.py`). A run of QoS 0 messages to one topic goes to its
subscribers unchanged in one write. Every other message goes through `_serve` and `Session.send`.
"""

import asyncio
import ssl
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np
import uvloop

from loadgen import __version__
from loadgen.brokers.ports import listen
from loadgen.brokers.process import Program, ProgramBroker, ProgramSettings, run_program
from loadgen.errors import LoadgenError, RemoteProtocolError
from loadgen.kernels.scan import ACK, MORE, RUN, SINGLE, next_item
from loadgen.mqtt import packets
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from loadgen.mqtt.properties import NO_PROPERTIES, Properties, encode_properties
from loadgen.mqtt.reason_codes import ReasonCode, is_failure
from loadgen.mqtt.topics import Group, SubscriptionTree, is_wild
from loadgen.mqtt.wire import write_variable

PACKET_LIMIT_BYTES: Final = 16 << 20
_CONNECT_LIMIT_BYTES: Final = 512 << 10
_RUN_MESSAGES: Final = 1 << 15
_MAX_ROUTES: Final = 200_000
_BUFFER_BYTES: Final = 1 << 20
_READ_BYTES: Final = 256 << 10
_WRITE_HIGH_BYTES: Final = 8 << 20
_BACKLOG: Final = 4096


def run_reflector(
    settings: ProgramSettings | None = None, *, discards: bool = False
) -> AbstractAsyncContextManager[ProgramBroker]:
    """Run a reflector for the length of the block; it heeds host and port of the settings."""
    name, chosen = "sink" if discards else "reflector", settings or ProgramSettings()

    def configure(_: Path, port: int) -> list[str]:
        module = "loadgen.brokers.reflector"
        return [sys.executable, "-m", module, name, chosen.host, str(port)]

    # Compiling the kernels takes a minute on a slow host.
    program = Program(name, __version__, configure, b"serving", saves=False, ready_s=300.0)
    return run_program(program, chosen)


# Packets that are written for every message, without the codec --------------------------------


class StoredMessage(NamedTuple):
    """An application message; `properties` with their length, as MQTT 5 writes them."""

    topic: bytes
    payload: bytes
    properties: bytes = b"\0"


def publish_packet(message: StoredMessage, flags: int, packet_id: int, version: int) -> bytes:
    """Return a PUBLISH (section 3.3) with DUP, QoS and RETAIN of `flags`."""
    parts = [len(message.topic).to_bytes(2, "big"), message.topic]
    if flags & 0x06:
        parts.append(packet_id.to_bytes(2, "big"))
    if version == MQTT_5:
        parts.append(message.properties)
    parts.append(message.payload)
    body = b"".join(parts)
    return bytes((PUBLISH << 4 | flags,)) + write_variable(len(body), "Remaining Length") + body


def acknowledgement(packet_type: int, packet_id: int) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP with success, equal in both versions."""
    flags = 2 if packet_type == PUBREL else 0
    return bytes((packet_type << 4 | flags, 2, packet_id >> 8, packet_id & 0xFF))


# Connections ----------------------------------------------------------------------------------


class ReflectorHost:
    """The broker that serves connections, with the buffer into which all of them read."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.grow_buffer(_BUFFER_BYTES)

    def grow_buffer(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]

    def consume(self, connection: "Connection", end: int) -> int:
        """Serve the packets in `view[:end]` and return where the first incomplete one begins.

        Raises RemoteProtocolError if the client violates the protocol.
        """
        raise NotImplementedError

    def detach(self, connection: "Connection") -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening, and cut every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.cut()

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Listen, and return the port; `port` 0 chooses one."""
        listener = listen(host, port, _BACKLOG)
        self._server = await asyncio.get_running_loop().create_server(
            protocol, sock=listener, backlog=_BACKLOG, ssl=tls
        )
        chosen: int = listener.getsockname()[1]
        return chosen


class Connection(asyncio.BufferedProtocol):
    """A network connection that reads into the shared buffer and writes with back-pressure."""

    def __init__(self, host: ReflectorHost) -> None:
        self.host = host
        self.transport: asyncio.Transport
        self.session: Session | None = None
        self.version = MQTT_5
        # The bytes of an incomplete packet.
        self.partial = b""
        self.closed = False
        self.holds = 0
        # True while the write buffer is full, and the connections that wait for its end.
        self.blocked = False
        self.held_up: set[Connection] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are no subclass of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.host.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        host, partial = self.host, self.partial
        if not partial:
            return host.view
        if len(partial) + _READ_BYTES > len(host.view):
            host.grow_buffer(2 * len(partial) + _READ_BYTES)
        host.view[: len(partial)] = partial
        return host.view[len(partial) :]

    def buffer_updated(self, nbytes: int) -> None:
        self.consume(len(self.partial) + nbytes)

    def consume(self, end: int) -> None:
        """Serve the first `end` bytes of the buffer."""
        self.partial = b""
        try:
            position = self.host.consume(self, end)
        except RemoteProtocolError as error:
            self.end(error.reason_code)
            return
        if position < end and not self.closed:
            self.partial = bytes(self.host.view[position:end])

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        waiting, self.held_up = self.held_up, set()
        for connection in waiting:
            connection.release()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.resume_writing()
        self.host.connections.discard(self)
        self.host.detach(self)

    def write(self, data: bytes) -> None:
        """Send, unless this connection is already closing."""
        if not self.closed:
            self.transport.write(data)

    def answer(self, packet_type: int, packet_id: int) -> None:
        self.write(acknowledgement(packet_type, packet_id))

    def end(self, reason_code: int | None) -> None:
        """Close, with a DISCONNECT if the client understands it."""
        if self.closed:
            return
        if reason_code is not None and self.version == MQTT_5 and self.session is not None:
            self.transport.write(bytes((0xE0, 1, reason_code)))
        self._leave()
        self.transport.close()

    def cut(self) -> None:
        """Close at once, without a DISCONNECT."""
        if not self.closed:
            self._leave()
            self.transport.abort()

    def _leave(self) -> None:
        self.closed = True
        self.partial = b""
        self.host.detach(self)

    def hold(self) -> None:
        """Stop reading until `release` has been called as often."""
        self.holds += 1
        if self.holds == 1 and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self) -> None:
        """Undo one `hold`."""
        self.holds -= 1
        if self.holds == 0 and not self.transport.is_closing():
            self.transport.resume_reading()

    def wait_for(self, other: "Connection") -> None:
        """Stop reading until `other` has room to write."""
        if self not in other.held_up:
            other.held_up.add(self)
            self.hold()


# Sessions -------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Session:
    """The state of a Client Identifier (MQTT 5, section 4.1)."""

    client_id: str
    connection: Connection | None = None
    subscriptions: set[str] = field(default_factory=set)
    lasts: bool = False  # it outlives the connection
    # Towards the client: Receive Maximum, and the messages that are sent and not acknowledged, in
    # their order, with their QoS; None once PUBREC has come and PUBCOMP is awaited.
    window: int = 65535
    inflight: dict[int, tuple[StoredMessage, int] | None] = field(default_factory=dict)
    pending: deque[tuple[StoredMessage, int]] = field(default_factory=deque)
    next_packet_id: int = 1
    # From the client: QoS 2 messages that were served and await PUBREL.
    received: set[int] = field(default_factory=set)

    def send(self, message: StoredMessage, qos: int) -> None:
        """Deliver now, or once the client is connected and its window has room."""
        if qos:
            self.pending.append((message, qos))
            self.send_pending()
        elif self.connection is not None:
            self.connection.write(publish_packet(message, 0, 0, self.connection.version))

    def resume(self, connection: Connection) -> None:
        """Send unacknowledged messages again, in their order, before new ones (section 4.4)."""
        for packet_id, item in list(self.inflight.items()):
            if item is None:
                connection.answer(PUBREL, packet_id)
            else:
                flags = 0x08 | item[1] << 1
                connection.write(publish_packet(item[0], flags, packet_id, connection.version))
        self.send_pending()

    def send_pending(self) -> None:
        """Send waiting messages as far as the window allows."""
        connection, inflight = self.connection, self.inflight
        while connection is not None and self.pending and len(inflight) < self.window:
            packet_id = self.next_packet_id
            while packet_id in inflight:
                packet_id = packet_id % 65535 + 1
            self.next_packet_id = packet_id % 65535 + 1
            inflight[packet_id] = message, qos = self.pending.popleft()
            connection.write(publish_packet(message, qos << 1, packet_id, connection.version))

    def acknowledged(
        self, connection: Connection, packet_type: int, packet_id: int, *, failed: bool = False
    ) -> None:
        """Handle a PUBACK, PUBREC, PUBREL or PUBCOMP (section 4.3)."""
        item = self.inflight.get(packet_id)
        if packet_type == PUBREL:
            self.received.discard(packet_id)
            connection.answer(PUBCOMP, packet_id)
        elif packet_type == PUBREC and not failed:
            if item is not None and item[1] == 2:
                self.inflight[packet_id] = None
            connection.answer(PUBREL, packet_id)
        else:
            awaited = PUBCOMP if item is None else PUBACK if item[1] == 1 else PUBREC
            if packet_type == awaited:
                self.inflight.pop(packet_id, None)
        self.send_pending()


# The broker -----------------------------------------------------------------------------------


class ReflectorRoute(NamedTuple):
    """The subscribers of one topic."""

    targets: tuple[tuple[Session, int], ...]  # with the QoS of the subscription
    groups: tuple[Group[Session, int], ...]


class Reflector(ReflectorHost):
    """The broker: sessions, subscriptions and routes."""

    def __init__(self, *, discards: bool = False) -> None:
        super().__init__()
        self.sessions: dict[str, Session] = {}
        self._discards = discards
        self._starts = np.zeros(_RUN_MESSAGES + 1, np.int64)
        self._payloads = np.zeros(_RUN_MESSAGES, np.int64)
        self._tree: SubscriptionTree[Session, int] = SubscriptionTree()
        self._routes: dict[bytes, ReflectorRoute] = {}
        self._assigned = 0

    def consume(self, connection: Connection, end: int) -> int:
        view, payloads = self.view, self._payloads
        position = 0
        while position < end and not connection.closed:
            version, session = connection.version, connection.session
            if session is None:
                decoded = decode(view, position, end, MQTT_5, _CONNECT_LIMIT_BYTES)
                if decoded is None:
                    return position
                packet, position = decoded
                if not isinstance(packet, packets.Connect):
                    detail = "the first packet is not CONNECT"
                    raise RemoteProtocolError(detail, ReasonCode.PROTOCOL_ERROR)
                self._connect(connection, packet)
                continue
            kind, item_end, a, b, c = next_item(
                self.buffer, position, end, version, PACKET_LIMIT_BYTES, self._starts, payloads
            )
            if kind == MORE:
                return position
            if kind == RUN:
                self._forward_run(connection, session, bytes(view[a:b]), c)
            elif kind == SINGLE:
                message = StoredMessage(bytes(view[a:b]), bytes(view[payloads[0] : item_end]))
                self._serve(connection, session, message, view[position] >> 1 & 3, c)
            elif kind == ACK:
                session.acknowledged(connection, a >> 4, b)
            else:
                decoded = decode(view, position, end, version, PACKET_LIMIT_BYTES)
                if decoded is None:
                    return position
                packet, item_end = decoded
                self._take(connection, session, packet)
            position = item_end
        return position

    def _route(self, topic: bytes) -> ReflectorRoute:
        if (route := self._routes.get(topic)) is not None:
            return route
        text = topic.decode("utf-8", "replace")
        if "\0" in text or is_wild(text) or text.encode() != topic:
            raise RemoteProtocolError("a Topic Name is not valid", ReasonCode.TOPIC_NAME_INVALID)
        subscribers = self._tree.match(text)
        best: dict[Session, int] = {}
        for session, qos in subscribers.single:
            # One delivery for overlapping subscriptions, with the highest QoS (section 3.3.4).
            best[session] = max(qos, best.get(session, 0))
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        route = ReflectorRoute(tuple(best.items()), tuple(subscribers.groups))
        self._routes[topic] = route
        return route

    def _forward_run(
        self, connection: Connection, session: Session, topic: bytes, count: int
    ) -> None:
        """Forward a run of QoS 0 messages: as it came, or each alone if that cannot be."""
        route, view, starts = self._route(topic), self.view, self._starts
        targets = [one.connection for one, _ in route.targets if one.connection is not None]
        if route.groups or any(target.version != connection.version for target in targets):
            for i in range(count):
                payload = bytes(view[self._payloads[i] : starts[i + 1]])
                self._serve(connection, session, StoredMessage(topic, payload), 0, 0)
            return
        data = bytes(view[starts[0] : starts[count]])
        for target in targets:
            target.write(data)
            if target.blocked:
                connection.wait_for(target)

    def _serve(
        self,
        connection: Connection,
        session: Session,
        message: StoredMessage,
        qos: int,
        packet_id: int,
    ) -> None:
        route = self._route(message.topic)
        # After a lost PUBREC a message is sent again, and is not to be served twice.
        if qos < 2 or packet_id not in session.received:
            members = [(_next_member(group), group) for group in route.groups]
            shared = ((member, group.members[member]) for member, group in members)
            for target, most in (*route.targets, *shared):
                if target.connection is not None and target.connection.blocked:
                    connection.wait_for(target.connection)
                target.send(message, min(qos, most))
        if qos == 2:
            session.received.add(packet_id)
        if qos:
            connection.answer(PUBACK if qos == 1 else PUBREC, packet_id)

    def _connect(self, connection: Connection, packet: packets.Connect) -> None:
        connection.version = packet.protocol_version
        client_id = packet.client_id
        if not client_id:
            self._assigned += 1
            client_id = f"reflector-{self._assigned}"
        session = self.sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.end(ReasonCode.SESSION_TAKEN_OVER)
            session = self.sessions.get(client_id)
        if session is not None and packet.clean_start:
            self._end_session(session)
            session = None
        present = session is not None
        if session is None:
            session = self.sessions[client_id] = Session(client_id)
        session.connection, connection.session = connection, session
        session.window = packet.properties.receive_maximum or 65535
        session.lasts = not packet.clean_start
        answer = NO_PROPERTIES
        if connection.version == MQTT_5:
            session.lasts = bool(packet.properties.session_expiry_interval)
            answer = Properties(
                assigned_client_identifier=None if packet.client_id else client_id,
                maximum_packet_size=PACKET_LIMIT_BYTES,
                subscription_identifier_available=0,
                retain_available=0,
            )
        connection.write(encode(packets.ConnAck(present, 0, answer), connection.version))
        session.resume(connection)

    def detach(self, connection: Connection) -> None:
        """Keep or end the session of a connection that ended."""
        session = connection.session
        if session is not None and session.connection is connection:
            session.connection = None
            if not session.lasts:
                self._end_session(session)

    def _end_session(self, session: Session) -> None:
        del self.sessions[session.client_id]
        for topic_filter in session.subscriptions:
            self._tree.unsubscribe(topic_filter, session)
        if session.subscriptions:
            self._routes.clear()

    def _take(self, connection: Connection, session: Session, packet: packets.Packet) -> None:
        answer: packets.Packet | None = None
        match packet:
            case packets.Publish(properties=properties):
                # Only with properties; the kernel has taken the others.
                if properties.topic_alias is not None:
                    code = ReasonCode.TOPIC_ALIAS_INVALID
                    raise RemoteProtocolError("a Topic Alias was not offered", code)
                encoded = encode_properties(properties, PUBLISH)
                message = StoredMessage(packet.topic_name.encode(), packet.payload, encoded)
                self._serve(connection, session, message, packet.qos, packet.packet_id)
            case packets.PubAck() | packets.PubRec() | packets.PubRel() | packets.PubComp():
                kind, failed = packet.packet_type, is_failure(packet.reason_code)
                session.acknowledged(connection, kind, packet.packet_id, failed=failed)
            case packets.Subscribe(subscriptions=subscriptions):
                for one in subscriptions:
                    session.subscriptions.add(one.topic_filter)
                    if not self._discards:
                        self._tree.subscribe(one.topic_filter, session, one.qos)
                self._routes.clear()
                answer = packets.SubAck(packet.packet_id, tuple(one.qos for one in subscriptions))
            case packets.Unsubscribe(topic_filters=filters):
                for topic_filter in filters:
                    session.subscriptions.discard(topic_filter)
                    self._tree.unsubscribe(topic_filter, session)
                self._routes.clear()
                codes = (0,) * len(filters) if connection.version == MQTT_5 else ()
                answer = packets.UnsubAck(packet.packet_id, codes)
            case packets.PingReq():
                answer = packets.PingResp()
            case packets.Disconnect(properties=properties):
                if properties.session_expiry_interval == 0:
                    session.lasts = False
                connection.end(None)
            case _:
                detail = f"unexpected {type(packet).__name__}"
                raise RemoteProtocolError(detail, ReasonCode.PROTOCOL_ERROR)
        if answer is not None:
            connection.write(encode(answer, connection.version))


def _next_member(group: Group[Session, int]) -> Session:
    """Return the next connected member, or the next one if all are absent."""
    turn = group.turn()
    first = next(turn)
    if first.connection is not None:
        return first
    return next((member for member in turn if member.connection is not None), first)


async def _serve(name: str, host: str, port: int) -> None:
    reflector = Reflector(discards=name == "sink")
    # Compiling, or loading what was compiled, belongs to the start and not to the first client.
    packet = np.frombuffer(b"\x30\x04\0\1tx", np.uint8).copy()
    scratch = np.zeros(3, np.int64), np.zeros(2, np.int64)
    next_item(packet, 0, len(packet), MQTT_3_1_1, PACKET_LIMIT_BYTES, *scratch)
    await reflector.listen(host, port, lambda: Connection(reflector))
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        uvloop.run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    except LoadgenError as error:
        sys.exit(str(error))
