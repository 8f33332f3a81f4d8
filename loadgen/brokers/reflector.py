"""The reflector: a small, fast MQTT 3.1.1 and 5 broker without wills and retained messages.

It is an instrument, not a system under test: its limit is a ceiling for what the harness can
measure on a host. With `discards` it is the sink: it takes every message and delivers none.

A kernel cuts each read into items (`scan.py`). A run of QoS 0 messages to one topic goes to its
subscribers unchanged in one write. Every other message goes through `_serve` and `Session.send`.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import uvloop

from loadgen import __version__
from loadgen.brokers.process import Program, ProgramBroker, ProgramSettings, run_program
from loadgen.brokers.reflector_clients import Connection, ReflectorCounts, ReflectorHost, Session
from loadgen.brokers.reflector_packets import QueuedMessage, StoredMessage
from loadgen.errors import LoadgenError, RemoteProtocolError
from loadgen.kernels.scan import ACK, MORE, RUN, SINGLE, next_item
from loadgen.mqtt import packets
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5, PUBACK, PUBLISH, PUBREC
from loadgen.mqtt.properties import NO_PROPERTIES, Properties, encode_properties
from loadgen.mqtt.reason_codes import ReasonCode, is_failure
from loadgen.mqtt.topics import Group, SubscriptionTree, is_wild

PACKET_LIMIT_BYTES: Final = 16 << 20
_CONNECT_LIMIT_BYTES: Final = 512 << 10
_RUN_MESSAGES: Final = 1 << 15
_MAX_ROUTES: Final = 200_000


def run_reflector(
    *, host: str = "127.0.0.1", port: int = 0, discards: bool = False
) -> AbstractAsyncContextManager[ProgramBroker]:
    """Run a reflector for the length of the block; `port` 0 chooses one."""
    name = "sink" if discards else "reflector"

    def configure(_: Path, ports: tuple[int, ...]) -> list[str]:
        return [sys.executable, "-m", "loadgen.brokers.reflector", name, host, str(ports[0])]

    # Compiling the kernels takes a minute on a slow host.
    program = Program(name, __version__, configure, b"serving", saves=False, ready_s=300.0)
    return run_program(program, ProgramSettings(host, (port,) if port else ()))


class ReflectorRoute(NamedTuple):
    """The subscribers of one topic."""

    targets: tuple[tuple[Session, int], ...]  # with the QoS of the subscription
    groups: tuple[Group[Session, int], ...]


class Reflector(ReflectorHost):
    """The broker: sessions, subscriptions, routes and counts."""

    def __init__(self, *, discards: bool = False) -> None:
        super().__init__()
        self._discards = discards
        self._starts = np.zeros(_RUN_MESSAGES + 1, np.int64)
        self._payloads = np.zeros(_RUN_MESSAGES, np.int64)
        self._sessions: dict[str, Session] = {}
        self._tree: SubscriptionTree[Session, int] = SubscriptionTree()
        self._routes: dict[bytes, ReflectorRoute] = {}
        self._assigned = 0

    def snapshot(self) -> ReflectorCounts:
        """Return the counts with those of the present moment."""
        sessions = self._sessions.values()
        return replace(
            self.counts,
            held=sum(len(session.pending) for session in sessions),
            connected=sum(session.connection is not None for session in sessions),
        )

    # --- reading ---------------------------------------------------------------------------------

    def consume(self, connection: Connection, end: int) -> int:
        buffer, view = self.buffer, self.view
        starts, payloads = self._starts, self._payloads
        position = 0
        while position < end and not connection.closed:
            version, session = connection.version, connection.session
            if session is None:
                decoded = decode(view, position, end, MQTT_5, _CONNECT_LIMIT_BYTES)
                if decoded is None:
                    return position
                packet, position = decoded
                if not isinstance(packet, packets.Connect):
                    raise _protocol_error("the first packet is not CONNECT")
                self._connect(connection, packet)
                continue
            kind, item_end, a, b, c = next_item(
                buffer, position, end, version, PACKET_LIMIT_BYTES, starts, payloads
            )
            if kind == MORE:
                return position
            if kind == RUN:
                topic = bytes(view[a:b])
                route = self._routes.get(topic) or self._make_route(topic)
                self._forward_run(connection, route, topic, position, item_end, c)
            elif kind == SINGLE:
                flags = view[position]
                message = StoredMessage(bytes(view[a:b]), bytes(view[payloads[0] : item_end]))
                self._serve(connection, QueuedMessage(message, flags >> 1 & 3, False), c)
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

    def _make_route(self, topic: bytes) -> ReflectorRoute:
        try:
            text = topic.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text or is_wild(text):
            raise RemoteProtocolError("a Topic Name is not valid", ReasonCode.TOPIC_NAME_INVALID)
        subscribers = self._tree.match(text)
        best: dict[Session, int] = {}
        for session, qos in subscribers.single:
            # One delivery for overlapping subscriptions, with the highest QoS (section 3.3.4).
            best[session] = max(qos, best.get(session, 0))
        route = ReflectorRoute(tuple(best.items()), tuple(subscribers.groups))
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        self._routes[topic] = route
        return route

    # --- QoS 0, as it came -----------------------------------------------------------------------

    def _forward_run(
        self,
        connection: Connection,
        route: ReflectorRoute,
        topic: bytes,
        start: int,
        end: int,
        count: int,
    ) -> None:
        view, starts = self.view, self._starts
        self.counts.received += count
        whole = bytes(view[start:end])
        for session, _ in route.targets:
            self._forward(connection, session, whole, topic, range(count))
        for group in route.groups:
            turns: dict[Session, list[int]] = {}
            for i in range(count):
                turns.setdefault(_whose_turn(group), []).append(i)
            for session, numbers in turns.items():
                data = b"".join(view[starts[i] : starts[i + 1]] for i in numbers)
                self._forward(connection, session, data, topic, numbers)

    def _forward(
        self,
        connection: Connection,
        session: Session,
        packets: bytes,
        topic: bytes,
        numbers: Sequence[int],
    ) -> None:
        """Pass packets of a run on: unchanged, or each written anew for another version."""
        target = session.connection
        if target is None:
            self.counts.discarded += len(numbers)
        elif target.version == connection.version:
            target.write(packets)
            self.counts.delivered += len(numbers)
        else:
            for i in numbers:
                payload = bytes(self.view[self._payloads[i] : self._starts[i + 1]])
                session.send(QueuedMessage(StoredMessage(topic, payload), 0, False))
        if target is not None and target.blocked:
            connection.wait_for(target)

    # --- one message -----------------------------------------------------------------------------

    def _serve(self, connection: Connection, item: QueuedMessage, packet_id: int) -> None:
        message, qos = item.message, item.qos
        route = self._routes.get(message.topic) or self._make_route(message.topic)
        session = connection.session
        if qos == 2 and session is not None and packet_id in session.received:
            # Sent again because our PUBREC got lost with the connection; not to be served twice.
            connection.answer(PUBREC, packet_id)
            return
        self.counts.received += 1
        targets = route.targets
        for group in route.groups:
            member = _whose_turn(group)
            targets += ((member, group.members[member]),)
        for target, most in targets:
            if target.connection is not None and target.connection.blocked:
                connection.wait_for(target.connection)
            target.send(item if qos <= most else item._replace(qos=most))
        if qos == 1:
            connection.answer(PUBACK, packet_id)
        elif qos == 2 and session is not None:
            session.received.add(packet_id)
            connection.answer(PUBREC, packet_id)

    # --- sessions --------------------------------------------------------------------------------

    def _connect(self, connection: Connection, packet: packets.Connect) -> None:
        connection.version = packet.protocol_version
        client_id = packet.client_id
        if not client_id:
            self._assigned += 1
            client_id = f"reflector-{self._assigned}"
        session = self._sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.end(ReasonCode.SESSION_TAKEN_OVER)
            session = self._sessions.get(client_id)
        if session is not None and packet.clean_start:
            self._end_session(session)
            session = None
        present = session is not None
        if session is None:
            session = self._sessions[client_id] = Session(client_id, self.counts)
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
        self.counts.connects += 1
        connection.write(encode(packets.ConnAck(present, 0, answer), connection.version))
        session.resume(connection)

    def detach(self, connection: Connection) -> None:
        """Keep or end the session of a connection that ended."""
        session = connection.session
        if session is None or session.connection is not connection:
            return
        self.counts.disconnects += 1
        session.connection = None
        if not session.lasts:
            self._end_session(session)

    def _end_session(self, session: Session) -> None:
        del self._sessions[session.client_id]
        for topic_filter in session.subscriptions:
            self._tree.unsubscribe(topic_filter, session)
        if session.subscriptions:
            self._routes.clear()
        session.end()

    # --- other packets ---------------------------------------------------------------------------

    def _take(self, connection: Connection, session: Session, packet: packets.Packet) -> None:
        match packet:
            case packets.Publish(properties=properties):
                # Only with properties; the kernel has taken the others.
                if properties.topic_alias is not None:
                    code = ReasonCode.TOPIC_ALIAS_INVALID
                    raise RemoteProtocolError("a Topic Alias was not offered", code)
                encoded = encode_properties(properties, PUBLISH)
                message = StoredMessage(packet.topic_name.encode(), packet.payload, encoded)
                self._serve(connection, QueuedMessage(message, packet.qos, False), packet.packet_id)
            case packets.PubRec(reason_code=code) if is_failure(code):
                session.refused(packet.packet_id)
            case packets.PubAck() | packets.PubRec() | packets.PubRel() | packets.PubComp():
                session.acknowledged(connection, packet.packet_type, packet.packet_id)
            case packets.Subscribe(subscriptions=subscriptions):
                for one in subscriptions:
                    session.subscriptions.add(one.topic_filter)
                    if not self._discards:
                        self._tree.subscribe(one.topic_filter, session, one.qos)
                self._routes.clear()
                granted = tuple(one.qos for one in subscriptions)
                connection.write(
                    encode(packets.SubAck(packet.packet_id, granted), connection.version)
                )
            case packets.Unsubscribe(topic_filters=filters):
                for topic_filter in filters:
                    session.subscriptions.discard(topic_filter)
                    self._tree.unsubscribe(topic_filter, session)
                self._routes.clear()
                codes = (0,) * len(filters) if connection.version == MQTT_5 else ()
                connection.write(
                    encode(packets.UnsubAck(packet.packet_id, codes), connection.version)
                )
            case packets.PingReq():
                connection.write(encode(packets.PingResp(), connection.version))
            case packets.Disconnect(properties=properties):
                if properties.session_expiry_interval == 0:
                    session.lasts = False
                connection.end(None)
            case _:
                raise _protocol_error(f"unexpected {type(packet).__name__}")


def _protocol_error(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(detail, ReasonCode.PROTOCOL_ERROR)


def _whose_turn(group: Group[Session, int]) -> Session:
    """Return the next connected member, or the next one if all are absent."""
    first: Session | None = None
    for session in group.turn():
        if session.connection is not None:
            return session
        first = first or session
    assert first is not None
    return first


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
