"""The reflector: a small, fast MQTT 3.1.1 and 5 broker without wills and retained messages.

It is an instrument, not a system under test: its limit is a ceiling for what the harness can
measure on a host. As the sink it takes every message and delivers none. Messages and their
acknowledgements stay in compiled code (kernels/forwarding.py); connects and subscriptions are here.
"""

import resource
import select
import socket
import sys
from typing import Final

import numpy as np

from loadgen.brokers.ports import listen
from loadgen.errors import LoadgenError, RemoteProtocolError
from loadgen.kernels import forwarding as kernel
from loadgen.kernels.forwarding import PACKET_LIMIT_BYTES, ReflectorTables
from loadgen.kernels.syscalls import EPOLLET, EPOLLIN, EVENT_WORDS, watch
from loadgen.mqtt import packets
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.mqtt.topics import filter_of_shape, is_wild, shape_of, split_shared

_CONNECT_LIMIT_BYTES: Final = 512 << 10
_MOST_DESCRIPTORS: Final = 1 << 20
_FIRST_ROWS: Final = 1 << 8


class Reflector:
    """Sessions and subscriptions, and the loop around the kernel."""

    def __init__(self, host: str, port: int, *, discards: bool = False) -> None:
        self._listener = listen(host, port)
        self._epoll = select.epoll()
        epoll, listener = self._epoll.fileno(), self._listener.fileno()
        self._tables = _tables(epoll, listener)
        watch(epoll, listener, EPOLLIN | EPOLLET, 0, self._tables.words)
        self._view = memoryview(self._tables.buffer)  # type: ignore[arg-type]
        self._discards = discards
        self._assigned = 0
        # The session of each Client Identifier, and the filters of each session.
        self._sessions: dict[str, int] = {}
        self._filters: dict[int, set[str]] = {}
        # Subscribers of each filter with their QoS, by share name.
        self._subscribers: dict[str, dict[str | None, dict[int, int]]] = {}
        self._shapes: set[tuple[str, ...]] = set()
        self._forget_routes()

    def warm_up(self) -> None:
        """Compile, or load what was compiled, before the first client comes."""
        kernel.keep_rest(self._tables)
        with socket.create_connection(self._listener.getsockname()[:2]) as client:
            for packet in (packets.Connect("warm-up"), packets.Disconnect()):
                client.sendall(encode(packet, MQTT_5))
                self.serve_once()

    def serve_once(self) -> None:
        """Run the kernel until it needs Python, and do what it needs."""
        tables, state = self._tables, self._tables.state
        reason = kernel.serve(tables)
        row = state.row
        try:
            if reason == kernel.CLOSED:
                self._close(row)
            elif reason == kernel.ROUTE:
                self._find_subscribers(bytes(self._view[state.topic : state.topic_end]))
            else:
                self._serve_packet(row)
        except RemoteProtocolError as error:
            self._end(row, error.reason_code)

    def _serve_packet(self, row: int) -> None:
        tables, state = self._tables, self._tables.state
        session = tables.links[row].session
        version = tables.sessions[session].version or MQTT_5
        limit = PACKET_LIMIT_BYTES if session else _CONNECT_LIMIT_BYTES
        decoded = decode(self._view, state.position, state.end, version, limit)
        if decoded is None:
            kernel.keep_rest(tables)
            return
        packet, state.position = decoded
        if session:
            self._take(row, session, version, packet)
        elif isinstance(packet, packets.Connect):
            self._connect(row, packet)
        else:
            detail = "the first packet is not CONNECT"
            raise RemoteProtocolError(detail, ReasonCode.PROTOCOL_ERROR)

    def _connect(self, row: int, packet: packets.Connect) -> None:
        tables, version = self._tables, packet.protocol_version
        client_id = packet.client_id
        if not client_id:
            self._assigned += 1
            client_id = f"reflector-{self._assigned}"
        number = self._sessions.setdefault(client_id, len(self._sessions) + 1)
        self._grow(number + 1, "sessions", "stored")
        session, answer = tables.sessions[number], NO_PROPERTIES
        if session.link:
            self._end(session.link, ReasonCode.SESSION_TAKEN_OVER)
        # Stored messages are those of a version.
        present = bool(session.lasts) and not packet.clean_start and session.version == version
        if not present:
            self._end_session(number)
        session.version = version
        session.window = packet.properties.receive_maximum or 65535
        session.lasts = not packet.clean_start
        if version == MQTT_5:
            session.lasts = bool(packet.properties.session_expiry_interval)
            answer = Properties(
                assigned_client_identifier=None if packet.client_id else client_id,
                maximum_packet_size=PACKET_LIMIT_BYTES,
                subscription_identifier_available=0,
                retain_available=0,
            )
        self._reply(row, packets.ConnAck(present, 0, answer), version)
        kernel.attach(tables, number, row)

    def _take(self, row: int, session: int, version: int, packet: packets.Packet) -> None:
        match packet:
            case packets.Publish():
                # The kernel leaves only those with an alias.
                code = ReasonCode.TOPIC_ALIAS_INVALID
                raise RemoteProtocolError("a Topic Alias was not offered", code)
            case packets.Subscribe(packet_id, subscriptions):
                for one in subscriptions:
                    self._subscribe(session, one.topic_filter, one.qos)
                codes = tuple(one.qos for one in subscriptions)
                self._reply(row, packets.SubAck(packet_id, codes), version)
            case packets.Unsubscribe(packet_id, filters):
                for topic_filter in filters:
                    self._unsubscribe(session, topic_filter)
                codes = (0,) * len(filters) if version == MQTT_5 else ()
                self._reply(row, packets.UnsubAck(packet_id, codes), version)
            case packets.Disconnect(properties=properties):
                if properties.session_expiry_interval == 0:
                    self._tables.sessions[session].lasts = 0
                self._end(row, None)
            case _:
                detail = f"unexpected {type(packet).__name__}"
                raise RemoteProtocolError(detail, ReasonCode.PROTOCOL_ERROR)

    def _reply(self, row: int, packet: packets.Packet, version: int) -> None:
        kernel.reply(self._tables, row, np.frombuffer(encode(packet, version), np.uint8).copy())

    def _end(self, row: int, reason_code: int | None) -> None:
        """Close a connection, with a DISCONNECT if the client understands it."""
        session = self._tables.sessions[self._tables.links[row].session]
        if reason_code is not None and session.version == MQTT_5:
            self._reply(row, packets.Disconnect(reason_code), MQTT_5)
        self._close(row)

    def _close(self, row: int) -> None:
        number = kernel.close_link(self._tables, row)
        if number and not self._tables.sessions[number].lasts:
            self._end_session(number)

    def _end_session(self, number: int) -> None:
        kernel.end_session(self._tables, number)
        for topic_filter in tuple(self._filters.get(number, ())):
            self._unsubscribe(number, topic_filter)

    # Subscriptions ----------------------------------------------------------------------------

    def _subscribe(self, session: int, topic_filter: str, qos: int) -> None:
        if self._discards:
            return
        share, plain = split_shared(topic_filter)
        self._filters.setdefault(session, set()).add(topic_filter)
        self._subscribers.setdefault(plain, {}).setdefault(share, {})[session] = qos
        self._shapes.add(shape_of(plain))
        self._forget_routes()

    def _unsubscribe(self, session: int, topic_filter: str) -> None:
        if topic_filter not in self._filters.get(session, ()):
            return
        self._filters[session].remove(topic_filter)
        share, plain = split_shared(topic_filter)
        shares = self._subscribers[plain]
        del shares[share][session]
        if not shares[share]:
            del shares[share]
        if not shares:
            del self._subscribers[plain]
        self._forget_routes()

    def _forget_routes(self) -> None:
        """Look for the subscribers of every topic again."""
        self._tables.state.generation += 1
        self._routes = self._targets = self._names_end = 0

    def _grow(self, count: int, *names: str) -> None:
        """Add rows to tables until they have `count`, or more."""
        for name in names:
            table = self._tables.held[name]
            while len(table) < count:
                table = np.concatenate([table, np.zeros_like(table)])
            self._tables.replace(**{name: table})

    def _find_subscribers(self, name: bytes) -> None:
        """Add the route of a topic; raises RemoteProtocolError if it is not valid."""
        topic = name.decode("utf-8", "replace")
        if "\0" in topic or is_wild(topic) or topic.encode() != name:
            raise RemoteProtocolError("a Topic Name is not valid", ReasonCode.TOPIC_NAME_INVALID)
        alone: dict[int, int] = {}
        targets = []
        for shape in self._shapes:
            plain = filter_of_shape(shape, topic)
            for share, members in self._subscribers.get(plain or "", {}).items():
                if share is None:
                    # One delivery for overlapping filters, with the highest QoS (section 3.3.4).
                    alone.update({one: max(qos, alone.get(one, 0)) for one, qos in members.items()})
                else:
                    # Turns of several topics do not begin at the same member.
                    group = [(one, qos, len(members), self._routes) for one, qos in members.items()]
                    targets += group
        targets += [(one, qos, 1, 0) for one, qos in alone.items()]
        tables, slots = self._tables, len(self._tables.routes)
        if 2 * self._routes > slots:
            tables.replace(routes=kernel.TopicRoute.rows(2 * slots))
            self._forget_routes()
            return
        first, last = self._targets, self._targets + len(targets)
        start, end = self._names_end, self._names_end + len(name)
        self._grow(last, "targets")
        self._grow(end, "names")
        if targets:
            tables.targets[first:last] = targets
        tables.names[start:end] = np.frombuffer(name, np.uint8)
        tables.routes[tables.state.route] = (tables.state.generation, start, end, first, last)
        self._routes, self._targets, self._names_end = self._routes + 1, last, end


def _tables(epoll: int, listener: int) -> ReflectorTables:
    """Return empty tables; the kernel gives them memory when they are used."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, _MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    state = kernel.ReflectorState.rows(1)
    state[0].epoll, state[0].listener = epoll, listener
    return ReflectorTables(
        state=state,
        links=kernel.Link.rows(most),
        rests=kernel.ByteQueue.rows(most),
        outs=kernel.ByteQueue.rows(most),
        sessions=kernel.Session.rows(_FIRST_ROWS),
        stored=kernel.ByteQueue.rows(_FIRST_ROWS),
        routes=kernel.TopicRoute.rows(_FIRST_ROWS),
        targets=kernel.RouteTarget.rows(_FIRST_ROWS),
        dirty=np.zeros(most + 4 * kernel.EVENTS_AT_ONCE, np.int32),
        waiting=np.zeros(most + 4 * kernel.EVENTS_AT_ONCE, np.int32),
        names=np.zeros(_FIRST_ROWS, np.uint8),
        buffer=np.zeros(PACKET_LIMIT_BYTES + kernel.READ_BYTES, np.uint8),
        scratch=np.zeros(PACKET_LIMIT_BYTES, np.uint8),
        epoll_events=np.zeros(kernel.EVENTS_AT_ONCE * EVENT_WORDS, np.int32),
        words=np.zeros(EVENT_WORDS, np.int32),
        word=np.zeros(1, np.int64),
    )


if __name__ == "__main__":
    try:
        reflector = Reflector(sys.argv[2], int(sys.argv[3]), discards=sys.argv[1] == "sink")
    except LoadgenError as error:
        sys.exit(str(error))
    reflector.warm_up()
    print("serving", flush=True)
    while True:
        reflector.serve_once()
