"""The check before the load: a broker plays the run in small, and what it lacks is listed.

A device or two of each group connect, subscribe, and publish one message that must come back.
Each thing that the broker lacks is a sentence with its remedy.
"""

import asyncio
import itertools
import math
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadgen.brokers.ask import OLDER, UNKNOWN, ended, named, version_of
from loadgen.brokers.client_pool import ClientPool, PoolClient, together
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.packet_stream import PACKET_LIMIT_BYTES, shown
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_3_1, MQTT_5
from loadgen.mqtt.packets import ConnAck, Connect, PubAck, Publish, PubRec
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import is_failure
from loadgen.mqtt.topics import is_wild
from loadgen.plan.rehearsal import ASKED, Delivery, Publication, Role, deliveries_of
from loadgen.sentences import counted

ANSWER_S: Final = 5.0
"""Longest wait for a SUBACK or an acknowledgement."""
RETURN_S: Final = 2.0
"""Longest wait for a message to come back."""
_AGAIN_S: Final = 0.25  # then it is sent again: nodes of a cluster need time to connect
_SETTLE_S: Final = 0.05  # for a copy too many
_NAME_S: Final = 1.0  # for the version, when all else is known
_SESSION_S: Final = 3600  # the Session Expiry Interval that devices ask for


@dataclass(frozen=True, slots=True)
class Wanted:
    """The roles to play, and the remedies for what the broker lacks.

    `connects` are the CONNECT packets of the roles, `endpoints` those of the plan's targets. With
    `separate` each target is a broker by itself. A wait ends once nothing was received for
    `quiet_s`.
    """

    roles: Sequence[Role]
    connects: Sequence[Connect]
    endpoints: Sequence[Endpoint]
    version: int
    separate: bool
    older: str = OLDER
    qos_option: str = "--qos {highest}"
    wildcards: str = ""
    shared: str = ""
    sessions: str = "take another broker"
    may_separate: bool = False  # --separate-brokers can be given
    tls_context: ssl.SSLContext | None = None
    answer_s: float = ANSWER_S
    return_s: float = RETURN_S
    quiet_s: float = math.inf
    with_version: bool = True  # the broker's version is wanted, too

    @property
    def waited_s(self) -> float:
        """The longest wait for a missing message."""
        return min(self.return_s, self.quiet_s)

    def pool(
        self, packet_limit_bytes: int = PACKET_LIMIT_BYTES, *, spoken: bool = False
    ) -> ClientPool:
        """Return a pool for these clients; `spoken` as of `ClientPool`."""
        return ClientPool(
            self.tls_context,
            packet_limit_bytes=packet_limit_bytes,
            older=self.older,
            quiet_s=self.quiet_s,
            spoken=spoken,
        )


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The broker's version, what it lacks, and further remarks."""

    version: str
    lacks: tuple[str, ...]
    remarks: tuple[str, ...]


async def rehearse(wanted: Wanted) -> Rehearsed:
    """Play the roles; raises the errors of `ask` if a device cannot connect."""
    largest = max((one.size_bytes for role in wanted.roles for one in role.publications), default=0)
    async with wanted.pool(PACKET_LIMIT_BYTES + largest) as pool:
        players = _Players(wanted, pool)
        # The first alone: if none can connect, one error explains it.
        await players.join(0)
        naming = asyncio.ensure_future(_version(wanted))
        try:
            await together(*map(players.join, range(1, len(wanted.roles))))
            lacks = (
                list(_limits(players))
                or await players.subscribe()
                or await players.exchange()
                or await players.retained()
            )
            remarks = list(_remarks(players))
            await asyncio.wait((naming,), timeout=_NAME_S)
            version = naming.result() if naming.done() else UNKNOWN
        finally:
            await ended((naming,))
    # A broker of MQTT 3.1 does not say whether it kept a session.
    for number in _keeping(wanted.roles) if wanted.version != MQTT_3_1 else ():
        lacks += await _session(wanted, number)
    return Rehearsed(version, tuple(dict.fromkeys(lacks)), tuple(dict.fromkeys(remarks)))


async def _version(wanted: Wanted) -> str:
    if not wanted.with_version:
        return UNKNOWN
    endpoint = wanted.endpoints[wanted.roles[0].target]
    return await version_of(endpoint, wanted.connects[0], wanted.tls_context)


# The devices ----------------------------------------------------------------------------------


class _Players:
    """The clients of one pool, each with its role."""

    def __init__(self, wanted: Wanted, pool: ClientPool) -> None:
        self.wanted, self.pool = wanted, pool
        self.clients: dict[int, PoolClient] = {}  # by the number of the role

    async def join(self, number: int) -> None:
        """Connect the client that plays the role with this number."""
        wanted = self.wanted
        endpoint = wanted.endpoints[wanted.roles[number].target]
        self.clients[number] = await self.pool.join(endpoint, wanted.connects[number])

    def each(self) -> Iterator[tuple[int, Role, PoolClient]]:
        """Return number, role and client of all that are connected."""
        roles = self.wanted.roles
        return ((number, roles[number], client) for number, client in self.clients.items())

    # Subscriptions

    async def subscribe(self) -> list[str]:
        """Subscribe, and return a sentence for each subscription that was not granted."""
        asking = [(role, client) for _, role, client in self.each() if role.filters]
        for role, client in asking:
            client.subscribe(role.filters, role.qos)
        await self.pool.until(
            lambda: all(client.suback or client.ended for _, client in asking), self.wanted.answer_s
        )
        return [lack for role, client in asking if (lack := self._not_granted(role, client))]

    def _not_granted(self, role: Role, client: PoolClient) -> str:
        suback, wanted = client.suback, self.wanted
        where = client.endpoint.redacted
        subscription = f"the subscription of {role.group.name} to {shown(role.filters[0], 80)}"
        needs = _because(wanted.shared) if role.shares else ""
        if suback is None:
            answer = "did not answer"
            if client.ended:
                answer = f"ended the connection ({shown(client.ended)})"
            return f"{where} {answer} at {subscription}{needs}; check what it allows this client"
        for topic, code in zip(role.filters, suback.reason_codes, strict=False):
            subscription = f"the subscription of {role.group.name} to {shown(topic, 80)}"
            if is_failure(code):
                name = named(code, suback.properties, wanted.version)
                refused = f"{where} refused {subscription}{needs}: {name}"
                return f"{refused}; check what it allows this client"
            if code < role.qos:
                option = wanted.qos_option.format(highest=code)
                granted = f"grants QoS {code} and not {role.qos} to {subscription}"
                return f"{where} {granted}; use {option}"
        if len(suback.reason_codes) != len(role.filters):
            return f"{where} answered {len(suback.reason_codes)} of {len(role.filters)} filters"
        return ""

    # Publications

    async def exchange(self) -> list[str]:
        """Publish each role's messages, and return a sentence for each that failed or got lost."""
        sent = _Sent(self)
        deliveries = deliveries_of(self.wanted.roles, separate=self.wanted.separate)
        end_s = time.monotonic() + self.wanted.return_s
        sent.send(
            (number, place)
            for number, role in enumerate(self.wanted.roles)
            for place in range(len(role.publications))
        )
        while True:
            missing = [delivery for delivery in deliveries if not sent.arrived(delivery)]
            if not missing or sent.faults() or self.pool.is_quiet or time.monotonic() >= end_s:
                break
            came = await self.pool.until(
                lambda: bool(sent.faults()) or all(map(sent.arrived, deliveries)), _AGAIN_S
            )
            if not came:
                sent.send({(delivery.sender, delivery.publication) for delivery in missing})
        await self.pool.until(
            lambda: bool(sent.faults()) or sent.acknowledged(), self.wanted.answer_s
        )
        if any(self.wanted.roles[delivery.receivers[0]].shares for delivery in deliveries):
            await asyncio.sleep(_SETTLE_S)
        faults = sent.faults() or sent.unacknowledged()
        return faults or self._astray(sent, deliveries)

    async def retained(self) -> list[str]:
        """Subscribe again, and return a sentence for each retained message that does not come."""
        wanted = self.wanted
        missing = {
            (delivery.receivers[0], publication.topic)
            for delivery in deliveries_of(wanted.roles, separate=wanted.separate)
            for publication in (wanted.roles[delivery.sender].publications[delivery.publication],)
            if publication.retain and not wanted.roles[delivery.receivers[0]].shares
        }
        for number in {receiver for receiver, _ in missing}:
            role = wanted.roles[number]
            self.clients[number].subscribe(role.filters, role.qos)

        def all_came() -> bool:
            for number, _ in set(missing):
                inbox = self.clients[number].inbox
                missing.difference_update(
                    (number, message.topic_name) for message in inbox if message.retain
                )
            return not missing

        await self.pool.until(all_came, self.wanted.return_s)
        return [
            f"{self.clients[number].endpoint.redacted} does not retain messages: none came to "
            f"{wanted.roles[number].group.name} for a later subscription to {shown(topic, 80)}; "
            "allow it there, or publish without it"
            for number, topic in sorted(missing)
        ]

    def _astray(self, sent: "_Sent", deliveries: Sequence[Delivery]) -> list[str]:
        """Return a sentence for each message that did not come back as it should."""
        missing = [delivery for delivery in deliveries if not sent.arrived(delivery)]
        if missing:
            unacquainted = self._unacquainted(sent, deliveries, missing)
            return [unacquainted or self._not_delivered(missing[0])]
        faults = []
        for delivery in deliveries:
            role = self.wanted.roles[delivery.receivers[0]]
            publication = self.wanted.roles[delivery.sender].publications[delivery.publication]
            where = self.clients[delivery.receivers[0]].endpoint.redacted
            copies, qos, unchanged = sent.copies(delivery)
            if role.shares and copies > 1:
                faults.append(
                    f"{where} has no shared subscriptions{_because(self.wanted.shared)}: a message "
                    f"came to {copies} consumers of one"
                )
            elif qos < min(publication.qos, role.qos):
                faults.append(
                    f"{where} delivers at QoS {qos} what {role.group.name} should get at QoS "
                    f"{min(publication.qos, role.qos)}; "
                    f"use {self.wanted.qos_option.format(highest=qos)}"
                )
            elif not unchanged:
                faults.append(f"{where} changed the payload of a message to {publication.topic}")
        return faults

    def _unacquainted(
        self, sent: "_Sent", deliveries: Sequence[Delivery], missing: Sequence[Delivery]
    ) -> str:
        """Return a sentence if only deliveries from one target to another are missing, else ""."""
        roles = self.wanted.roles

        def crosses(delivery: Delivery) -> bool:
            return all(roles[r].target != roles[delivery.sender].target for r in delivery.receivers)

        within = [delivery for delivery in deliveries if not crosses(delivery)]
        if not within or not all(map(sent.arrived, within)):
            return ""
        first = self.clients[missing[0].sender].endpoint.redacted
        second = self.clients[missing[0].receivers[0]].endpoint.redacted
        way = "use --separate-brokers, or " if self.wanted.may_separate else ""
        return (
            f"{first} and {second} do not know each other: a message that is published at one "
            f"does not come to subscribers at the other; {way}give addresses of one system"
        )

    def _not_delivered(self, delivery: Delivery) -> str:
        roles = self.wanted.roles
        sender, receiver = roles[delivery.sender], roles[delivery.receivers[0]]
        publication = sender.publications[delivery.publication]
        needs = _because(self.wanted.shared) if receiver.shares else ""
        return (
            f"{self.clients[delivery.sender].endpoint.redacted} did not bring a message of "
            f"{counted(publication.size_bytes, 'byte')} at QoS {publication.qos} from "
            f"{sender.group.name} to {receiver.group.name} within {self.wanted.waited_s:.1g} s "
            f"(topic {shown(publication.topic, 80)}){needs}; check what it allows this client, and "
            "its limits"
        )


class _Sent:
    """Published messages, their repetitions, and their results."""

    def __init__(self, players: _Players) -> None:
        self._clients, self._wanted = players.clients, players.wanted
        self._numbers = itertools.count(1)
        self._payloads: dict[tuple[int, int], list[bytes]] = {}
        self._identifiers: dict[tuple[int, int], int] = {}  # of the first attempt

    def send(self, which: Iterable[tuple[int, int]]) -> None:
        """Publish these (sender, publication)."""
        for sender, place in which:
            client = self._clients[sender]
            publication = self._wanted.roles[sender].publications[place]
            number = next(self._numbers)
            payload = (ASKED + b"%d " % number).ljust(publication.size_bytes, b".")
            identifier = number if publication.qos else 0
            self._payloads.setdefault((sender, place), []).append(payload)
            self._identifiers.setdefault((sender, place), identifier)
            client.publish(_packet(publication, payload, identifier))

    def arrived(self, delivery: Delivery) -> bool:
        return self.copies(delivery)[0] > 0

    def copies(self, delivery: Delivery) -> tuple[int, int, bool]:
        """Return the most copies of an attempt, the lowest QoS, and True if none was changed."""
        publication = self._wanted.roles[delivery.sender].publications[delivery.publication]
        most, qos, unchanged = 0, 2, True
        for payload in self._payloads[delivery.sender, delivery.publication]:
            token = payload[: payload.index(b" ", len(ASKED)) + 1]
            came = [
                message
                for receiver in delivery.receivers
                for message in self._clients[receiver].inbox
                if message.payload.startswith(token)
            ]
            most = max(most, len(came))
            qos = min([qos, *(message.qos for message in came)])
            unchanged = unchanged and all(
                message.payload == payload and message.topic_name == publication.topic
                for message in came
            )
        return most, qos, unchanged

    def acknowledged(self) -> bool:
        """Return True if the handshake of each first attempt is complete."""
        return not any(self._open())

    def _open(self) -> Iterator[tuple[int, int]]:
        for (sender, place), identifier in self._identifiers.items():
            if identifier and identifier not in self._clients[sender].completed:
                yield sender, place

    def unacknowledged(self) -> list[str]:
        """Return a sentence for each handshake that is not complete."""
        return [
            f"{self._clients[sender].endpoint.redacted} did not acknowledge "
            f"{self._shown(sender, place)} within {self._wanted.answer_s:g} s; check its log"
            for sender, place in self._open()
        ]

    def faults(self) -> list[str]:
        """Return a sentence for each publication that was refused or ended the connection."""
        faults = []
        for (sender, place), identifier in self._identifiers.items():
            client = self._clients[sender]
            where, publication = client.endpoint.redacted, self._shown(sender, place)
            answer = client.answers.get(identifier)
            qos = self._wanted.roles[sender].publications[place].qos
            if isinstance(answer, (PubAck, PubRec)) and is_failure(answer.reason_code):
                name = named(answer.reason_code, answer.properties, MQTT_5)
                faults.append(
                    f"{where} refused {publication}: {name}; check what it allows this client"
                )
            elif answer is not None and isinstance(answer, PubAck) != (qos == 1):
                kind = type(answer).__name__.upper()
                option = self._wanted.qos_option.format(highest=1)
                way = f"use {option}" if qos == 2 else "take another broker"
                faults.append(f"{where} answered {publication} with {kind}; {way}")
            elif client.ended:
                ending = f"ended the connection at {publication} ({shown(client.ended)})"
                faults.append(f"{where} {ending}; check what it allows this client, and its limits")
        return faults

    def _shown(self, sender: int, place: int) -> str:
        role = self._wanted.roles[sender]
        publication = role.publications[place]
        return (
            f"a publication of {role.group.name} to {shown(publication.topic, 80)} at QoS "
            f"{publication.qos} with {counted(publication.size_bytes, 'byte')}"
        )


def _packet(publication: Publication, payload: bytes, identifier: int) -> Publish:
    return Publish(
        publication.topic,
        payload,
        qos=publication.qos,
        retain=publication.retain,
        packet_id=identifier,
    )


# What CONNACK says ----------------------------------------------------------------------------


def _limits(players: _Players) -> Iterator[str]:
    """Yield a sentence for each thing that a CONNACK of MQTT 5 rules out (section 3.2.2.3)."""
    wanted = players.wanted
    for _, role, client in players.each():
        limits, where = client.connack.properties, client.endpoint.redacted
        qos = max([role.qos, *(publication.qos for publication in role.publications)])
        if limits.maximum_qos is not None and qos > limits.maximum_qos:
            yield (
                f"{where} allows QoS {limits.maximum_qos} at most and the scenario asks for {qos}; "
                f"use {wanted.qos_option.format(highest=limits.maximum_qos)}"
            )
        for publication in role.publications:
            payload = b"." * publication.size_bytes
            packet = encode(_packet(publication, payload, int(publication.qos > 0)), wanted.version)
            limit_bytes = limits.maximum_packet_size
            if limit_bytes is not None and len(packet) > limit_bytes:
                limit = counted(limit_bytes, "byte")
                yield (
                    f"{where} takes packets of {limit} at most and payloads have up to "
                    f"{publication.size_bytes:,}; raise the broker's limit, or make them smaller"
                )
            if publication.retain and limits.retain_available == 0:
                yield f"{where} retains no messages, which {role.group.name} publish"
        if limits.wildcard_subscription_available == 0 and any(map(is_wild, role.filters)):
            needs = wanted.wildcards or f"needed by {role.group.name}; take another broker"
            yield f"{where} allows no wildcard subscription, {needs}"
        if limits.shared_subscription_available == 0 and role.shares:
            yield f"{where} says that it has no shared subscriptions{_because(wanted.shared)}"


def _because(needs: str) -> str:
    return f", {needs}" if needs else ""


def _remarks(players: _Players) -> Iterator[str]:
    """Yield a sentence for each thing that CONNACK changes without ruling it out."""
    for number, role, client in players.each():
        limits, where = client.connack.properties, client.endpoint.redacted
        connect = players.wanted.connects[number]
        if limits.receive_maximum is not None and limits.receive_maximum < role.window:
            yield (
                f"{where} takes {limits.receive_maximum:,} unacknowledged messages of a client "
                f"(Receive Maximum); {role.group.name} may have no more in flight, not "
                f"{role.window:,}"
            )
        if limits.server_keep_alive is not None and limits.server_keep_alive != connect.keep_alive:
            yield f"{where} sets its own Keep Alive of {limits.server_keep_alive:,} s"


# Sessions that last ---------------------------------------------------------------------------


def _keeping(roles: Sequence[Role]) -> list[int]:
    """Return the first device of each group with durable sessions."""
    first: dict[str, int] = {}
    for number, role in enumerate(roles):
        if not role.group.clean_start and role.filters:
            first.setdefault(role.group.name, number)
    return list(first.values())


async def _session(wanted: Wanted, number: int) -> list[str]:
    """Return a sentence if a session is lost between two connections; end the session."""
    role, connect = wanted.roles[number], wanted.connects[number]
    endpoint = wanted.endpoints[role.target]
    lasting = Properties()
    if wanted.version == MQTT_5:
        lasting = Properties(session_expiry_interval=_SESSION_S)
    leaving = replace(connect, clean_start=False, properties=lasting)
    try:
        granted = await _visit(wanted, endpoint, leaving, role)
        present = (await _visit(wanted, endpoint, leaving)).session_present
        # ActiveMQ keeps sessions and does not say so.
        present = present or await _keeps_messages(wanted, number, leaving)
        await _visit(wanted, endpoint, connect)
    except BrokerRefusedError as error:
        return [f"{error} (for a session that lasts, needed by {role.group.name})"]
    if present and granted.properties.session_expiry_interval != 0:
        return []
    return [
        f"{endpoint.redacted} keeps no session of a client that is away, needed by "
        f"{role.group.name}; allow it there, or {wanted.sessions}"
    ]


async def _keeps_messages(wanted: Wanted, number: int, leaving: Connect) -> bool:
    """Return True if a returning device gets a message that was published in its absence."""
    roles = wanted.roles
    for delivery in deliveries_of(roles, separate=wanted.separate):
        publication = roles[delivery.sender].publications[delivery.publication]
        if delivery.receivers == (number,) and delivery.sender != number and publication.qos:
            break
    else:
        return False
    endpoint, payload = wanted.endpoints[roles[number].target], ASKED + b"in your absence"
    await _visit(wanted, endpoint, leaving, roles[number])
    async with wanted.pool(spoken=True) as pool:
        sender = await pool.join(
            wanted.endpoints[roles[delivery.sender].target], wanted.connects[delivery.sender]
        )
        sender.publish(_packet(publication, payload, 1))
        await pool.until(lambda: 1 in sender.completed or bool(sender.ended), wanted.answer_s)
        away = await pool.join(endpoint, leaving)
        return await pool.until(
            lambda: any(message.payload == payload for message in away.inbox), wanted.return_s
        )


async def _visit(
    wanted: Wanted, endpoint: Endpoint, connect: Connect, role: Role | None = None
) -> ConnAck:
    """Connect and leave in order, with the role's subscriptions, which some sessions need."""
    end_s = time.monotonic() + wanted.waited_s
    while True:
        try:
            async with wanted.pool(spoken=True) as pool:
                client = await pool.join(endpoint, connect)
                if role is not None and role.filters:
                    await pool.subscribed(client, role.filters, role.qos, wanted.answer_s)
                return client.connack
        except BrokerRefusedError:
            # RabbitMQ may not have noticed yet that the last connection with this identifier ended.
            if time.monotonic() >= end_s:
                raise
            await asyncio.sleep(_AGAIN_S)
