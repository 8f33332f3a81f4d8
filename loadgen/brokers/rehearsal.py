"""The check before the load: a small version of the run lists what the broker lacks.

A device or two of each group connect, subscribe, and publish one message that must come back. A
pool of clients removes its retained messages and closes its connections, even if cancelled.
"""

import asyncio
import contextlib
import itertools
import math
import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from loadgen.brokers.ask import (
    PACKET_LIMIT_BYTES,
    BrokerConnection,
    ask,
    connect_of,
    ended,
    named,
    shown,
    together,
)
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.ports import program_at
from loadgen.brokers.process import UNKNOWN
from loadgen.errors import BrokerRefusedError, CannotRunError, RemoteProtocolError
from loadgen.mqtt import packets
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_3_1, MQTT_5
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import is_failure
from loadgen.mqtt.topics import is_wild
from loadgen.plan.plan import BrokerNeeds
from loadgen.plan.rehearsal import ASKED, Publication, Role, deliveries_of
from loadgen.sentences import BROKER_TEXT, Sentence, Text

ANSWER_S: Final = 5.0
RETURN_S: Final = 2.0
_AGAIN_S: Final = 0.25  # then it is sent again: nodes of a cluster need time to connect
_SETTLE_S: Final = 0.05  # for a copy too many
_STREAM_S: Final = 300.0  # the longest stream of retained messages that prolongs a wait
_SESSION_S: Final = 3600  # the Session Expiry Interval that devices ask for
_TOPIC_CHARACTERS: Final = 80
_SUBSCRIBE_ID: Final = 65_535
"""The Packet Identifier of SUBSCRIBE; publications count from 1."""
_VERSION_TOPICS: Final = (
    "$SYS/broker/version",
    "$SYS/brokers/+/version",
    "$SYS/brokers/+/sysdescr",
)
_VERSION_CHARACTERS: Final = 200
_VERSION_S: Final = 1.0
_RETAINED_S: Final = 0.3


# Clients ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class PoolClient:
    connection: BrokerConnection
    connack: packets.ConnAck
    suback: packets.SubAck | None = None  # the answer to the last SUBSCRIBE
    answers: dict[int, packets.Packet] = field(default_factory=dict)  # the first by identifier
    completed: set[int] = field(default_factory=set)  # identifiers of completed handshakes
    inbox: list[packets.Publish] = field(default_factory=list)
    retained: set[str] = field(default_factory=set)  # topics
    ended: str = ""  # the reason for the end of the connection

    def publish(self, packet: packets.Publish) -> None:
        if not self.ended:
            if packet.retain:
                self.retained.add(packet.topic_name)
            self.connection.send(packet)

    def subscribe(
        self,
        filters: Sequence[str],
        qos: int,
        properties: Properties = NO_PROPERTIES,
        *,
        retained: bool = False,
    ) -> None:
        """Subscribe, in MQTT 5 without retained messages unless they are needed."""
        handling = 2 if self.connection.version == MQTT_5 and not retained else 0
        subscriptions = tuple(
            packets.Subscription(topic, qos, retain_handling=handling) for topic in filters
        )
        self.suback = None
        self.connection.send(packets.Subscribe(_SUBSCRIBE_ID, subscriptions, properties))

    async def listen(self, notify: Callable[[packets.Packet | None], None]) -> None:
        try:
            while True:
                packet = await self.connection.receive()
                self._take(packet)
                notify(packet)
        except (OSError, RemoteProtocolError) as error:
            number = error.errno if isinstance(error, OSError) else None
            self.ended = self.ended or (os.strerror(number).lower() if number else str(error))
            notify(None)

    def _take(self, packet: packets.Packet) -> None:
        send = self.connection.send
        match packet:
            case packets.Publish(qos=qos, topic_name=topic):
                # A broker can have a million retained messages of others.
                if not packet.retain or packet.payload.startswith(ASKED) or topic.startswith("$"):
                    self.inbox.append(packet)
                if qos:
                    send((packets.PubAck if qos == 1 else packets.PubRec)(packet.packet_id))
            case packets.PubRel():
                send(packets.PubComp(packet.packet_id))
            case packets.SubAck():
                self.suback = packet
            case packets.PubAck() | packets.PubRec() | packets.PubComp():
                self.answers.setdefault(packet.packet_id, packet)
                if isinstance(packet, packets.PubRec) and not is_failure(packet.reason_code):
                    send(packets.PubRel(packet.packet_id))
                else:
                    self.completed.add(packet.packet_id)
            case packets.Disconnect():
                self.ended = named(packet.reason_code, packet.properties, MQTT_5)

    async def leave(self) -> None:
        if not self.ended:
            for topic in self.retained:
                self.connection.send(packets.Publish(topic, retain=True))
            self.connection.send(packets.Disconnect())
            self.ended = "disconnected"
        await self.connection.close()


@dataclass(slots=True, eq=False)
class ClientPool:
    """Clients for the length of a block, and a way to wait for what they receive.

    A wait ends once nothing was received for `quiet_s`, and its time is without that in which
    retained messages stream in. `spoken` is that of `ask`; it is True once a client was accepted.
    """

    tls_context: ssl.SSLContext | None = None
    packet_limit_bytes: int = PACKET_LIMIT_BYTES
    quiet_s: float = math.inf
    spoken: bool = False
    _received_s: float = field(default_factory=time.monotonic)
    _retained_s: float = 0.0  # when the last retained message came
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self, endpoint: Endpoint, connect: packets.Connect) -> PoolClient:
        connection, connack = await ask(endpoint, connect, self.tls_context, spoken=self.spoken)
        self.spoken = True
        connection.packet_limit_bytes = self.packet_limit_bytes
        client = PoolClient(connection, connack)
        self._stack.push_async_callback(client.leave)
        listening = asyncio.ensure_future(client.listen(self._notify))
        self._stack.push_async_callback(ended, (listening,))
        self._notify(None)
        return client

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, which is called after each packet, and return its result."""
        begun_s = time.monotonic()
        while not done():
            if (left_s := self.left_s(begun_s, timeout_s)) <= 0:
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

    def left_s(self, begun_s: float, timeout_s: float) -> float:
        """Return the time left of a wait that began then."""
        end_s = begun_s + min(max(self._retained_s - begun_s, 0.0), _STREAM_S) + timeout_s
        return min(end_s, self._received_s + self.quiet_s) - time.monotonic()

    def _notify(self, packet: packets.Packet | None) -> None:
        self._received_s = time.monotonic()
        if isinstance(packet, packets.Publish) and packet.retain:
            self._retained_s = self._received_s
        self._changed.set()


async def version_of(
    endpoint: Endpoint, connect: packets.Connect, tls_context: ssl.SSLContext | None = None
) -> str:
    """Return a broker's name for its version, with the version of MQTT and login of `connect`.

    It needs a separate connection: some brokers end one that subscribes to $SYS. A silent broker on
    this host has the name of its program.
    """
    levels: dict[str, str] = {}

    def is_named() -> bool:
        for message in client.inbox:
            level = message.topic_name.rpartition("/")[2]
            levels.setdefault(level, shown_version(message.payload))
        return len(levels) > 1 or any(one.topic_name == _VERSION_TOPICS[0] for one in client.inbox)

    with contextlib.suppress(CannotRunError):
        async with ClientPool(tls_context) as pool:
            packet = connect_of(endpoint, connect.protocol_version, connect)
            client = await pool.join(endpoint, packet)
            for name, value in client.connack.properties.user_property:
                if "version" in name.lower() and value.strip():
                    return shown_version(value)
            client.subscribe(_VERSION_TOPICS, 0, retained=True)
            await pool.until(lambda: bool(client.suback or client.ended), _VERSION_S)
            # Retained messages come at once, or never.
            await pool.until(is_named, _RETAINED_S)
    said = " ".join(levels[name] for name in ("sysdescr", "version") if name in levels)
    return said or await asyncio.to_thread(program_at, endpoint.host, endpoint.port) or UNKNOWN


def shown_version(text: str | bytes) -> str:
    """Return a version as printable ASCII of at most 200 characters, or "unknown"."""
    return shown(text, _VERSION_CHARACTERS) or UNKNOWN


# The rehearsal ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The roles to play, and the needs of the run with the remedies for a broker that lacks them.

    `connects` are the CONNECT packets of the roles, `endpoints` those of the plan's targets. With
    `separate` each target is a broker by itself.
    """

    roles: Sequence[Role]
    connects: Sequence[packets.Connect]
    endpoints: Sequence[Endpoint]
    separate: bool
    needs: BrokerNeeds
    sessions: str = "take another broker"
    may_separate: bool = False  # --separate-brokers can be given
    tls_context: ssl.SSLContext | None = None
    answer_s: float = ANSWER_S
    return_s: float = RETURN_S
    quiet_s: float = math.inf

    @property
    def waited_s(self) -> float:
        return min(self.return_s, self.quiet_s)

    def pool(self, *, spoken: bool = False) -> ClientPool:
        sizes = (one.size_bytes for role in self.roles for one in role.publications)
        limit_bytes = PACKET_LIMIT_BYTES + max(sizes, default=0)
        return ClientPool(self.tls_context, limit_bytes, self.quiet_s, spoken)

    def use_qos(self, highest: int) -> str:
        """Return the setting for a broker that allows this QoS at most."""
        return self.needs.qos_option.format(highest=highest)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    lacks: tuple[Text, ...]
    remarks: tuple[Text, ...]


async def rehearse(wanted: Wanted) -> Rehearsed:
    """Play the roles; raise the errors of `ask` if a device cannot connect."""
    roles = wanted.roles

    async def join(number: int) -> _Player:
        role, connect = roles[number], wanted.connects[number]
        return _Player(role, connect, await pool.join(wanted.endpoints[role.target], connect))

    try:
        async with wanted.pool() as pool:
            # The first alone: if none can connect, one error explains it.
            players = [await join(0)]
            players += await together(*map(join, range(1, len(roles))))
            lacks = (
                list(_limits(wanted, players))
                or await _subscribe(wanted, pool, players)
                or await _exchange(wanted, pool, players)
                or await _retained(wanted, pool, players)
            )
        durable: dict[str, int] = {}  # the first device of each group
        for number, role in enumerate(roles):
            # A broker of MQTT 3.1 does not say whether it kept a session.
            version = wanted.connects[number].protocol_version
            if role.filters and not role.group.clean_start and version != MQTT_3_1:
                durable.setdefault(role.group.name, number)
        for number in durable.values():
            lacks += await _session(wanted, number)
    except BrokerRefusedError as error:
        if error.code != BROKER_TEXT.OTHER_VERSION.code:
            raise
        values = {**error.values, "use": wanted.needs.older}
        raise BrokerRefusedError(BROKER_TEXT.OTHER_VERSION(**values)) from None
    return Rehearsed(tuple(dict.fromkeys(lacks)), tuple(dict.fromkeys(_remarks(players))))


def folded(texts: Iterable[str]) -> list[str]:
    """Return the first sentence of each code, with the number of further ones."""
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(getattr(text, "code", text), []).append(text)
    return [
        f"{first} (and {len(more):,} more alike)" if more else first
        for first, *more in alike.values()
    ]


@dataclass(frozen=True, slots=True)
class _Player:
    role: Role
    connect: packets.Connect
    client: PoolClient

    def lack(self, sentence: Sentence, **values: Any) -> Text:
        where, group = self.client.connection.endpoint.redacted, self.role.group.name
        return sentence(where=where, group=group, **values)


# What CONNACK says ----------------------------------------------------------------------------


def _limits(wanted: Wanted, players: Iterable[_Player]) -> Iterator[Text]:
    """Yield a sentence for each need that a CONNACK of MQTT 5 excludes (section 3.2.2.3)."""
    for player in players:
        limits, role, lack = player.client.connack.properties, player.role, player.lack
        most, limit_bytes = limits.maximum_qos, limits.maximum_packet_size
        qos = max([role.qos, *(publication.qos for publication in role.publications)])
        if most is not None and qos > most:
            yield lack(BROKER_TEXT.QOS_LIMIT, most=most, qos=qos, use=wanted.use_qos(most))
        for publication in role.publications:
            size_bytes = publication.size_bytes
            packet = _packet(publication, b"." * size_bytes, int(publication.qos > 0))
            version = player.connect.protocol_version
            if limit_bytes is not None and len(encode(packet, version)) > limit_bytes:
                yield lack(BROKER_TEXT.SIZE_LIMIT, limit_bytes=limit_bytes, size_bytes=size_bytes)
            if publication.retain and limits.retain_available == 0:
                yield lack(BROKER_TEXT.NO_RETAIN)
        if limits.wildcard_subscription_available == 0 and any(map(is_wild, role.filters)):
            needs = wanted.needs.wildcards or f"needed by {role.group.name}; take another broker"
            yield lack(BROKER_TEXT.NO_WILDCARDS, needs=needs)
        if limits.shared_subscription_available == 0 and role.shares:
            yield lack(BROKER_TEXT.NO_SHARED_STATED, needs=wanted.needs.shared)


def _remarks(players: Iterable[_Player]) -> Iterator[Text]:
    """Yield a sentence for each thing that CONNACK changes without ruling it out."""
    for player in players:
        limits, window = player.client.connack.properties, player.role.window
        most, keep_alive_s = limits.receive_maximum, limits.server_keep_alive
        if most is not None and most < window:
            yield player.lack(BROKER_TEXT.RECEIVE_MAXIMUM, most=most, window=window)
        if keep_alive_s not in (None, player.connect.keep_alive):
            yield player.lack(BROKER_TEXT.KEEP_ALIVE, keep_alive_s=keep_alive_s)


# Subscriptions --------------------------------------------------------------------------------


async def _subscribe(wanted: Wanted, pool: ClientPool, players: Iterable[_Player]) -> list[Text]:
    """Subscribe, and return a sentence for each subscription that was not granted."""
    asking = [player for player in players if player.role.filters]
    for player in asking:
        player.client.subscribe(player.role.filters, player.role.qos)
    clients = [player.client for player in asking]
    await pool.until(
        lambda: all(client.suback or client.ended for client in clients), wanted.answer_s
    )
    return [lack for player in asking if (lack := _not_granted(wanted, player))]


def _not_granted(wanted: Wanted, player: _Player) -> Text | None:
    role, suback, reason = player.role, player.client.suback, shown(player.client.ended)
    needs = wanted.needs.shared if role.shares else ""
    codes: Sequence[int | None] = [None] if suback is None else suback.reason_codes
    for topic, code in zip(role.filters, codes, strict=False):
        subscription = player.lack(BROKER_TEXT.SUBSCRIPTION, topic=shown(topic, _TOPIC_CHARACTERS))
        if code is None:
            ending = BROKER_TEXT.SUBSCRIBE_ENDED if reason else BROKER_TEXT.SUBSCRIBE_SILENT
            return player.lack(ending, subscription=subscription, needs=needs, reason=reason)
        if suback is not None and is_failure(code):
            name = named(code, suback.properties, player.connect.protocol_version)
            refused = BROKER_TEXT.SUBSCRIBE_REFUSED
            return player.lack(refused, subscription=subscription, needs=needs, name=name)
        if code < role.qos:
            values = {"granted": code, "qos": role.qos, "use": wanted.use_qos(code)}
            return player.lack(BROKER_TEXT.QOS_GRANTED, subscription=subscription, **values)
    if len(codes) != len(role.filters):
        return player.lack(BROKER_TEXT.SUBACK_SHORT, answered=len(codes), filters=len(role.filters))
    return None


# Publications ---------------------------------------------------------------------------------


def _packet(publication: Publication, payload: bytes, identifier: int) -> packets.Publish:
    qos, retain = publication.qos, publication.retain
    return packets.Publish(publication.topic, payload, qos, retain, packet_id=identifier)


@dataclass(slots=True, eq=False)
class _Sent:
    """A publication of a player, and the payloads of its attempts."""

    player: _Player
    publication: Publication
    identifier: int = 0  # of the first attempt, 0 at QoS 0
    payloads: list[bytes] = field(default_factory=list)

    def send(self, number: int) -> None:
        """Publish it, with a number that no other attempt has."""
        payload = (ASKED + b"%d " % number).ljust(self.publication.size_bytes, b".")
        identifier = number if self.publication.qos else 0
        self.identifier = self.identifier or identifier
        self.payloads.append(payload)
        self.player.client.publish(_packet(self.publication, payload, identifier))

    @property
    def acknowledged(self) -> bool:
        return not self.identifier or self.identifier in self.player.client.completed

    def lack(self, sentence: Sentence, **values: Any) -> Text:
        about = asdict(self.publication)
        about["topic"] = shown(self.publication.topic, _TOPIC_CHARACTERS)
        text = self.player.lack(BROKER_TEXT.PUBLICATION, **about)
        return self.player.lack(sentence, publication=text, **{**about, **values})

    def fault(self, wanted: Wanted) -> Text | None:
        """Return a sentence if it was refused or ended the connection."""
        client, qos = self.player.client, self.publication.qos
        answer = client.answers.get(self.identifier)
        if isinstance(answer, (packets.PubAck, packets.PubRec)) and is_failure(answer.reason_code):
            name = named(answer.reason_code, answer.properties, MQTT_5)
            return self.lack(BROKER_TEXT.PUBLISH_REFUSED, name=name)
        if answer is not None and isinstance(answer, packets.PubAck) != (qos == 1):
            use = f"use {wanted.use_qos(1)}" if qos == 2 else "take another broker"
            return self.lack(BROKER_TEXT.WRONG_ANSWER, kind=type(answer).__name__.upper(), use=use)
        if client.ended:
            return self.lack(BROKER_TEXT.PUBLISH_ENDED, reason=shown(client.ended))
        return None


@dataclass(frozen=True, slots=True)
class _Expected:
    """An expected delivery: its publication, and the clients of which one must receive it."""

    sent: _Sent
    receivers: tuple[_Player, ...]

    def copies(self, payload: bytes) -> list[packets.Publish]:
        token = payload[: payload.index(b" ", len(ASKED)) + 1]
        inboxes = (receiver.client.inbox for receiver in self.receivers)
        return [one for inbox in inboxes for one in inbox if one.payload.startswith(token)]

    @property
    def arrived(self) -> bool:
        return any(map(self.copies, self.sent.payloads))

    @property
    def crosses(self) -> bool:
        target = self.sent.player.role.target
        return all(receiver.role.target != target for receiver in self.receivers)

    def fault(self, wanted: Wanted) -> Text | None:
        """Return a sentence if it came twice or changed."""
        receiver, publication = self.receivers[0], self.sent.publication
        qos = min(publication.qos, receiver.role.qos)
        for payload in self.sent.payloads:
            copies = self.copies(payload)
            if receiver.role.shares and len(copies) > 1:
                needs = wanted.needs.shared
                return receiver.lack(BROKER_TEXT.NO_SHARED, needs=needs, copies=len(copies))
            for copy in copies:
                if copy.qos < qos:
                    values = {"delivered": copy.qos, "qos": qos, "use": wanted.use_qos(copy.qos)}
                    return receiver.lack(BROKER_TEXT.QOS_DELIVERED, **values)
                if copy.payload != payload or copy.topic_name != publication.topic:
                    return receiver.lack(BROKER_TEXT.CHANGED, topic=publication.topic)
        return None


async def _exchange(wanted: Wanted, pool: ClientPool, players: Sequence[_Player]) -> list[Text]:
    """Publish each role's messages, and return a sentence for each that failed or got lost."""
    by_place = {
        (number, place): _Sent(player, publication)
        for number, player in enumerate(players)
        for place, publication in enumerate(player.role.publications)
    }
    sent = by_place.values()
    expected = [
        _Expected(by_place[way.sender, way.publication], tuple(players[n] for n in way.receivers))
        for way in deliveries_of(wanted.roles, separate=wanted.separate)
    ]
    numbers = itertools.count(1)

    def faults() -> list[Text]:
        return [fault for sending in sent if (fault := sending.fault(wanted))]

    def missing() -> list[_Expected]:
        return [delivery for delivery in expected if not delivery.arrived]

    begun_s = time.monotonic()
    for sending in sent:
        sending.send(next(numbers))
    while missing() and not faults() and pool.left_s(begun_s, wanted.return_s) > 0:
        if not await pool.until(lambda: bool(faults()) or not missing(), _AGAIN_S):
            for sending in {delivery.sent for delivery in missing()}:
                sending.send(next(numbers))
    await pool.until(
        lambda: bool(faults()) or all(sending.acknowledged for sending in sent), wanted.answer_s
    )
    if any(delivery.receivers[0].role.shares for delivery in expected):
        await asyncio.sleep(_SETTLE_S)
    if wrong := faults():
        return wrong
    if late := [sending for sending in sent if not sending.acknowledged]:
        return [one.lack(BROKER_TEXT.UNACKNOWLEDGED, answer_s=wanted.answer_s) for one in late]
    if lost := missing():
        return [_not_delivered(wanted, lost[0], expected)]
    return [fault for delivery in expected if (fault := delivery.fault(wanted))]


def _not_delivered(wanted: Wanted, lost: _Expected, expected: Sequence[_Expected]) -> Text:
    sent, receiver = lost.sent, lost.receivers[0]
    within = [one for one in expected if not one.crosses]
    if within and all(one.arrived for one in within):
        separate = "use --separate-brokers, or " if wanted.may_separate else ""
        other = receiver.client.connection.endpoint.redacted
        return sent.lack(BROKER_TEXT.UNACQUAINTED, other=other, separate=separate)
    needs = wanted.needs.shared if receiver.role.shares else ""
    values = {"receiver": receiver.role.group.name, "waited_s": wanted.waited_s, "needs": needs}
    return sent.lack(BROKER_TEXT.NOT_DELIVERED, **values)


async def _retained(wanted: Wanted, pool: ClientPool, players: Sequence[_Player]) -> list[Text]:
    """Subscribe again, and return a sentence for each retained message that does not come."""
    retained = [
        (players[delivery.receivers[0]], publication.topic)
        for delivery in deliveries_of(wanted.roles, separate=wanted.separate)
        for publication in (wanted.roles[delivery.sender].publications[delivery.publication],)
        if publication.retain and not wanted.roles[delivery.receivers[0]].shares
    ]
    for player, _ in retained:
        player.client.subscribe(player.role.filters, player.role.qos, retained=True)

    def came(player: _Player, topic: str) -> bool:
        return any(one.retain and one.topic_name == topic for one in player.client.inbox)

    await pool.until(lambda: all(came(*one) for one in retained), wanted.return_s)
    return [
        player.lack(BROKER_TEXT.NOT_RETAINED, topic=shown(topic, _TOPIC_CHARACTERS))
        for player, topic in retained
        if not came(player, topic)
    ]


# Sessions that last ---------------------------------------------------------------------------


async def _session(wanted: Wanted, number: int) -> list[Text]:
    """Return a sentence if a session is lost between two connections; end the session."""
    role, connect = wanted.roles[number], wanted.connects[number]
    endpoint, lasting = wanted.endpoints[role.target], Properties()
    if connect.protocol_version == MQTT_5:
        lasting = Properties(session_expiry_interval=_SESSION_S)
    leaving = replace(connect, clean_start=False, properties=lasting)

    async def join(pool: ClientPool, packet: packets.Connect) -> PoolClient:
        end_s = time.monotonic() + wanted.waited_s
        while True:
            try:
                return await pool.join(endpoint, packet)
            except BrokerRefusedError:
                # RabbitMQ may not have noticed the end of the identifier's last connection yet.
                if time.monotonic() >= end_s:
                    raise
                await asyncio.sleep(_AGAIN_S)

    try:
        async with wanted.pool(spoken=True) as pool:
            client = await join(pool, leaving)
            await pool.subscribed(client, role.filters, role.qos, wanted.answer_s)
            granted = client.connack.properties.session_expiry_interval
        payload = await _publish_in_absence(wanted, number)
        async with wanted.pool(spoken=True) as pool:
            client = await join(pool, leaving)
            # ActiveMQ keeps sessions and does not say so.
            present = client.connack.session_present or await pool.until(
                lambda: any(message.payload == payload for message in client.inbox),
                wanted.return_s if payload else 0.0,
            )
        async with wanted.pool(spoken=True) as pool:
            await join(pool, connect)
    except BrokerRefusedError as error:
        return [BROKER_TEXT.SESSION_REFUSED(error=error.args[0], group=role.group.name)]
    if present and granted != 0:
        return []
    lost = BROKER_TEXT.NO_SESSION
    return [lost(where=endpoint.redacted, group=role.group.name, use=wanted.sessions)]


async def _publish_in_absence(wanted: Wanted, number: int) -> bytes:
    """Publish a message that an absent device should get; return its payload, else b""."""
    roles = wanted.roles
    for delivery in deliveries_of(roles, separate=wanted.separate):
        publication = roles[delivery.sender].publications[delivery.publication]
        if delivery.receivers == (number,) and delivery.sender != number and publication.qos:
            break
    else:
        return b""
    payload = ASKED + b"in your absence"
    async with wanted.pool(spoken=True) as pool:
        connect = wanted.connects[delivery.sender]
        sender = await pool.join(wanted.endpoints[roles[delivery.sender].target], connect)
        sender.publish(_packet(publication, payload, 1))
        await pool.until(lambda: 1 in sender.completed or bool(sender.ended), wanted.answer_s)
    return payload
