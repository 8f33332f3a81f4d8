"""The reflector: a small, fast MQTT 3.1.1 and 5 broker.

It is an instrument, not a system under test: its limit is a ceiling for what the harness can
measure on a host. Run as a module it is its own child.

A kernel cuts each read into items (`scan.py`). A run of QoS 0 messages to one topic goes to its
subscribers unchanged in one write. Every other message goes through `publish` and `Session.send`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

import numpy as np

from loadgen.brokers.child import ChildBroker, Json, Serving, run_child
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import running
from loadgen.brokers.reflector_clients import FOREVER, Connection, Counts, Host, Session
from loadgen.brokers.reflector_packets import Message, Outgoing
from loadgen.errors import RemoteProtocolError
from loadgen.kernels.scan import ACK, MORE, RUN, SINGLE, next_item
from loadgen.mqtt import packets
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5, PUBACK, PUBLISH, PUBREC
from loadgen.mqtt.packets import Subscription, Will
from loadgen.mqtt.properties import NO_PROPERTIES, Properties, encode_properties
from loadgen.mqtt.reason_codes import ReasonCode, is_failure
from loadgen.mqtt.topics import Group, SubscriptionTree, filter_matches, is_wild, split_shared

VERSION_TOPIC: Final = "$SYS/broker/version"

PACKET_LIMIT_BYTES: Final = 16 << 20
_CONNECT_LIMIT_BYTES: Final = 512 << 10
_RUN_MESSAGES: Final = 1 << 15
_MAX_ROUTES: Final = 200_000
_CONNECT_TIMEOUT_S: Final = 30


class ReflectorProcess(ChildBroker):
    """A running reflector; made by `run_reflector`."""

    async def counts(self) -> Counts:
        """Return the counts since its start."""
        return Counts(**await self.ask())


def run_reflector(
    *, host: str = "127.0.0.1", port: int = 0
) -> AbstractAsyncContextManager[ReflectorProcess]:
    """Run a reflector for the length of the block; `port` 0 chooses one."""
    endpoint = Endpoint("mqtt", host, port)
    return running(
        ReflectorProcess("reflector", "loadgen reflector", "loadgen.brokers.reflector", endpoint)
    )


class Route(NamedTuple):
    """The subscribers of one topic."""

    text: str
    targets: tuple[tuple[Session, Subscription], ...]
    groups: tuple[Group[Session, Subscription], ...]


class Reflector(Host):
    """The broker: sessions, subscriptions, routes and counts."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._starts = np.zeros(_RUN_MESSAGES + 1, np.int64)
        self._payloads = np.zeros(_RUN_MESSAGES, np.int64)
        self._sessions: dict[str, Session] = {}
        self._tree: SubscriptionTree[Session, Subscription] = SubscriptionTree()
        self._routes: dict[bytes, Route] = {}
        self._retained: dict[str, Outgoing] = {}
        self._assigned = 0
        about = Message(VERSION_TOPIC.encode(), b"loadgen reflector")
        self._retained[VERSION_TOPIC] = Outgoing(about, 0, True)
        self._ticker = self._loop.call_later(1.0, self._on_tick)

    def snapshot(self) -> Counts:
        """Return the counts with those of the present moment."""
        sessions = self._sessions.values()
        return replace(
            self.counts,
            held=sum(len(session.pending) for session in sessions),
            connected=sum(session.connection is not None for session in sessions),
        )

    def close(self) -> None:
        self._ticker.cancel()
        super().close()

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
                message = Message(bytes(view[a:b]), bytes(view[payloads[0] : item_end]))
                self._serve(connection, Outgoing(message, flags >> 1 & 3, bool(flags & 1)), c)
            elif kind == ACK:
                session.acknowledged(connection, a >> 4, b)
            else:
                decoded = decode(view, position, end, version, PACKET_LIMIT_BYTES)
                if decoded is None:
                    return position
                packet, item_end = decoded
                handler = _HANDLERS.get(type(packet), Reflector._on_unexpected)
                handler(self, connection, session, packet)
            position = item_end
        return position

    def _make_route(self, topic: bytes) -> Route:
        try:
            text = topic.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text or is_wild(text):
            raise RemoteProtocolError("a Topic Name is not valid", ReasonCode.TOPIC_NAME_INVALID)
        subscribers = self._tree.match(text)
        best: dict[Session, Subscription] = {}
        for session, subscription in subscribers.single:
            # One delivery for overlapping subscriptions, with the highest QoS (section 3.3.4).
            former = best.get(session)
            if former is None or subscription.qos > former.qos:
                best[session] = subscription
        route = Route(text, tuple(best.items()), tuple(subscribers.groups))
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        self._routes[topic] = route
        return route

    # --- QoS 0, as it came -----------------------------------------------------------------------

    def _forward_run(
        self, connection: Connection, route: Route, topic: bytes, start: int, end: int, count: int
    ) -> None:
        view, starts = self.view, self._starts
        self.counts.received += count
        whole = bytes(view[start:end])
        for session, subscription in route.targets:
            if subscription.no_local and session is connection.session:
                continue
            if not self._forward(connection, session, whole, count):
                self._forward_one_by_one(session, topic, range(count))
        for group in route.groups:
            turns: dict[Session, list[int]] = {}
            for i in range(count):
                turns.setdefault(_whose_turn(group), []).append(i)
            for session, numbers in turns.items():
                data = b"".join(view[starts[i] : starts[i + 1]] for i in numbers)
                if not self._forward(connection, session, data, len(numbers)):
                    self._forward_one_by_one(session, topic, numbers)

    def _forward(
        self, connection: Connection, session: Session, packets: bytes, count: int
    ) -> bool:
        """Pass packets on unchanged; return False if each must be written anew."""
        target = session.connection
        if target is None:
            self.counts.discarded += count
            return True
        if target.version != connection.version or len(packets) > session.maximum_packet_bytes:
            return False
        target.write(packets)
        self.counts.delivered += count
        if target.blocked:
            connection.wait_for(target)
        return True

    def _forward_one_by_one(self, session: Session, topic: bytes, numbers: Sequence[int]) -> None:
        for i in numbers:
            session.send(self._item_of_run(topic, i))

    def _item_of_run(self, topic: bytes, i: int) -> Outgoing:
        payload = bytes(self.view[self._payloads[i] : self._starts[i + 1]])
        return Outgoing(Message(topic, payload), 0, False)

    # --- one message -----------------------------------------------------------------------------

    def _serve(self, connection: Connection, item: Outgoing, packet_id: int) -> None:
        message, qos = item.message, item.qos
        route = self._routes.get(message.topic) or self._make_route(message.topic)
        session = connection.session
        if qos == 2 and session is not None and packet_id in session.received:
            # Sent again because our PUBREC got lost with the connection; not to be served twice.
            connection.answer(PUBREC, packet_id)
            return
        self.counts.received += 1
        self.publish(route, item, connection)
        if qos == 1:
            connection.answer(PUBACK, packet_id)
        elif qos == 2 and session is not None:
            session.received.add(packet_id)
            connection.answer(PUBREC, packet_id)

    def publish(self, route: Route, item: Outgoing, publisher: Connection | None) -> None:
        """Deliver a message to all subscribers of its topic."""
        message, qos, retain = item
        if retain and message.payload:
            self._retained[route.text] = item
        elif retain:
            self._retained.pop(route.text, None)
        origin = None if publisher is None else publisher.session
        targets = route.targets
        if route.groups:
            turns = [(group, _whose_turn(group)) for group in route.groups]
            targets += tuple((session, group.members[session]) for group, session in turns)
        for session, subscription in targets:
            if subscription.no_local and session is origin:
                continue
            target = session.connection
            if target is not None and target.blocked and publisher is not None:
                publisher.wait_for(target)
            keep = retain and subscription.retain_as_published
            delivery = item
            if retain != keep or qos > subscription.qos:
                delivery = Outgoing(message, min(qos, subscription.qos), keep)
            session.send(delivery)

    # --- sessions --------------------------------------------------------------------------------

    def _connect(self, connection: Connection, packet: packets.Connect) -> None:
        connection.version = packet.protocol_version
        properties = packet.properties
        if properties.authentication_method is not None:
            refused = packets.ConnAck(False, ReasonCode.BAD_AUTHENTICATION_METHOD)
            connection.write(encode(refused, connection.version))
            connection.end(None)
            return
        client_id = packet.client_id
        if not client_id:
            self._assigned += 1
            client_id = f"reflector-{self._assigned}"
        session = self._sessions.get(client_id)
        if session is not None and session.connection is not None:
            taken = session.connection
            taken.end(ReasonCode.SESSION_TAKEN_OVER)
            session = self._sessions.get(client_id)
        if session is not None and packet.clean_start:
            self._end_session(session)
            session = None
        present = session is not None
        if session is None:
            session = self._sessions[client_id] = Session(client_id, self.counts)
        for timer in (session.expiry_timer, session.will_timer):
            if timer is not None:
                timer.cancel()
        session.expiry_timer = session.will_timer = None
        session.connection = connection
        session.will = packet.will
        session.window = properties.receive_maximum or 65535
        session.maximum_packet_bytes = properties.maximum_packet_size or FOREVER
        if connection.version == MQTT_5:
            session.expiry_s = properties.session_expiry_interval or 0
        else:
            session.expiry_s = 0 if packet.clean_start else FOREVER
        connection.session = session
        connection.keep_alive_s = packet.keep_alive
        self.counts.connects += 1
        answer = NO_PROPERTIES
        if connection.version == MQTT_5:
            answer = Properties(
                assigned_client_identifier=None if packet.client_id else client_id,
                maximum_packet_size=PACKET_LIMIT_BYTES,
                subscription_identifier_available=0,
            )
        connection.write(encode(packets.ConnAck(present, 0, answer), connection.version))
        session.resume(connection)

    def detach(self, connection: Connection, *, clean: bool) -> None:
        """Keep or end the session of a connection that ended, and publish its will."""
        session = connection.session
        if session is None or session.connection is not connection:
            return
        self.counts.disconnects += 1
        session.connection = None
        will, session.will = session.will, None
        if will is not None and not clean:
            delay_s = min(will.properties.will_delay_interval or 0, session.expiry_s)
            if delay_s:
                session.will_timer = self._loop.call_later(delay_s, self._publish_will, will)
            else:
                self._publish_will(will)
        if session.expiry_s == 0:
            self._end_session(session)
        elif session.expiry_s != FOREVER:
            session.expiry_timer = self._loop.call_later(
                session.expiry_s, self._end_session, session
            )

    def _publish_will(self, will: Will) -> None:
        plain = replace(will.properties, will_delay_interval=None)
        message = Message(will.topic.encode(), will.payload, encode_properties(plain, PUBLISH))
        route = self._routes.get(message.topic) or self._make_route(message.topic)
        self.publish(route, Outgoing(message, will.qos, will.retain), None)

    def _end_session(self, session: Session) -> None:
        del self._sessions[session.client_id]
        for topic_filter in session.subscriptions:
            self._tree.unsubscribe(topic_filter, session)
        if session.subscriptions:
            self._routes.clear()
        session.end()

    def _on_tick(self) -> None:
        self._ticker = self._loop.call_later(1.0, self._on_tick)
        self.tick += 1
        for connection in list(self.connections):
            silent_s = self.tick - connection.seen_tick
            if connection.session is None:
                if silent_s > _CONNECT_TIMEOUT_S:
                    connection.cut()
            elif connection.keep_alive_s and silent_s > 1.5 * connection.keep_alive_s + 1:
                # Section 3.1.2.10.
                connection.end(ReasonCode.KEEP_ALIVE_TIMEOUT)

    # --- other packets ---------------------------------------------------------------------------

    def _on_publish(
        self, connection: Connection, session: Session, packet: packets.Publish
    ) -> None:
        # Only with properties; the kernel has taken the others.
        properties = packet.properties
        if properties.topic_alias is not None:
            raise RemoteProtocolError(
                "a Topic Alias was not offered", ReasonCode.TOPIC_ALIAS_INVALID
            )
        if properties.subscription_identifier:
            raise _protocol_error("a client sent a Subscription Identifier")
        message = Message(
            packet.topic_name.encode(), packet.payload, encode_properties(properties, PUBLISH)
        )
        self._serve(connection, Outgoing(message, packet.qos, packet.retain), packet.packet_id)

    def _on_ack(
        self,
        connection: Connection,
        session: Session,
        packet: packets.PubAck | packets.PubRec | packets.PubRel | packets.PubComp,
    ) -> None:
        if isinstance(packet, packets.PubRec) and is_failure(packet.reason_code):
            session.refused(packet.packet_id)
        else:
            session.acknowledged(connection, packet.packet_type, packet.packet_id)

    def _on_subscribe(
        self, connection: Connection, session: Session, packet: packets.Subscribe
    ) -> None:
        if packet.properties.subscription_identifier:
            raise RemoteProtocolError(
                "Subscription Identifiers were not offered",
                ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
            )
        renewed = {item.topic_filter for item in packet.subscriptions} & set(session.subscriptions)
        for subscription in packet.subscriptions:
            session.subscriptions[subscription.topic_filter] = subscription
            self._tree.subscribe(subscription.topic_filter, session, subscription)
        self._routes.clear()
        granted = tuple(subscription.qos for subscription in packet.subscriptions)
        connection.write(encode(packets.SubAck(packet.packet_id, granted), connection.version))
        for subscription in packet.subscriptions:
            self._send_retained(session, subscription, subscription.topic_filter in renewed)

    def _send_retained(self, session: Session, subscription: Subscription, renewed: bool) -> None:
        topic_filter = subscription.topic_filter
        # Section 3.8.3.1, Retain Handling; shared subscriptions get none (section 4.8.2).
        handling = subscription.retain_handling
        shared = split_shared(topic_filter)[0] is not None
        if shared or handling == 2 or (handling == 1 and renewed):
            return
        for topic, item in list(self._retained.items()):
            if filter_matches(topic_filter, topic):
                session.send(item._replace(qos=min(item.qos, subscription.qos)))

    def _on_unsubscribe(
        self, connection: Connection, session: Session, packet: packets.Unsubscribe
    ) -> None:
        codes = []
        for topic_filter in packet.topic_filters:
            session.subscriptions.pop(topic_filter, None)
            existed = self._tree.unsubscribe(topic_filter, session)
            codes.append(0x00 if existed else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._routes.clear()
        reasons = tuple(codes) if connection.version == MQTT_5 else ()
        connection.write(encode(packets.UnsubAck(packet.packet_id, reasons), connection.version))

    def _on_ping(self, connection: Connection, session: Session, packet: packets.PingReq) -> None:
        connection.write(encode(packets.PingResp(), connection.version))

    def _on_disconnect(
        self, connection: Connection, session: Session, packet: packets.Disconnect
    ) -> None:
        interval = packet.properties.session_expiry_interval
        if interval is not None:
            if session.expiry_s == 0 and interval:
                # Section 3.14.2.2.2.
                raise _protocol_error("DISCONNECT extends a session that was to end")
            session.expiry_s = interval
        clean = packet.reason_code != ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        self.detach(connection, clean=clean)
        connection.end(None)

    def _on_unexpected(self, connection: Connection, session: Session, packet: Any) -> None:
        raise _protocol_error(f"unexpected {type(packet).__name__}")


def _protocol_error(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(detail, ReasonCode.PROTOCOL_ERROR)


def _whose_turn(group: Group[Session, Subscription]) -> Session:
    """Return the next connected member, or the next one if all are absent."""
    first: Session | None = None
    for session in group.turn():
        if session.connection is not None:
            return session
        first = first or session
    assert first is not None
    return first


_HANDLERS: Final[dict[type, Callable[[Reflector, Connection, Session, Any], None]]] = {
    packets.Publish: Reflector._on_publish,
    packets.PubAck: Reflector._on_ack,
    packets.PubRec: Reflector._on_ack,
    packets.PubRel: Reflector._on_ack,
    packets.PubComp: Reflector._on_ack,
    packets.Subscribe: Reflector._on_subscribe,
    packets.Unsubscribe: Reflector._on_unsubscribe,
    packets.PingReq: Reflector._on_ping,
    packets.Disconnect: Reflector._on_disconnect,
}


async def serve(config: Json) -> Serving:
    """Serve as a child process, for `run_child`."""
    reflector = Reflector()
    # Compiling, or loading what was compiled, belongs to the start and not to the first client.
    packet = np.frombuffer(b"\x30\x04\0\1tx", np.uint8).copy()
    scratch = np.zeros(3, np.int64), np.zeros(2, np.int64)
    next_item(packet, 0, len(packet), MQTT_3_1_1, PACKET_LIMIT_BYTES, *scratch)

    return await reflector.listen(
        config, lambda: Connection(reflector), lambda _question: asdict(reflector.snapshot())
    )


if __name__ == "__main__":
    run_child(serve)
