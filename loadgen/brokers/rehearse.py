"""Asks a broker to play a run in small before any load is put on it: what it refuses or lacks.

The devices connect as those of the run do, subscribe, and publish one message each, which must
come back. Whatever the broker does not give is a sentence that says what to do.
"""

import asyncio
import itertools
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadgen.brokers.client import PACKET_LIMIT_BYTES, shown
from loadgen.brokers.door import OLDER, ended
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.probe import UNKNOWN, version_of
from loadgen.brokers.talk import Client, Patience, Talk, named, together
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_3_1, MQTT_5
from loadgen.mqtt.packets import ConnAck, Connect, PubAck, Publish, PubRec
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import is_failure
from loadgen.mqtt.topics import is_wild
from loadgen.plan.rehearsal import ASKED, Delivery, Publication, Role, deliveries_of

ANSWER_S: Final = 5.0
"""For a SUBACK or an acknowledgement."""
RETURN_S: Final = 2.0
"""For a message to come back."""
_AGAIN_S: Final = 0.25  # after which it is sent again: nodes of a cluster learn of each other
_SETTLE_S: Final = 0.05  # for a copy too many
_NAME_S: Final = 1.0  # for the version, when all else is known
_SESSION_S: Final = 3600  # the Session Expiry Interval that devices ask for


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be asked: who does what, and what helps where the broker does not give it.

    `connects` are the CONNECT packets of the roles, `endpoints` those of the plan's targets.
    `apart`: each target is a broker by itself. The others end a sentence.
    """

    roles: Sequence[Role]
    connects: Sequence[Connect]
    endpoints: Sequence[Endpoint]
    version: int
    apart: bool
    older: str = OLDER
    qos_option: str = "--qos {highest}"
    wildcards: str = ""
    shared: str = ""
    sessions: str = "take another broker"
    separate: bool = False  # whether --separate-brokers can be given
    tls_context: ssl.SSLContext | None = None
    answer_s: float = ANSWER_S
    return_s: float = RETURN_S
    patience: Patience | None = None  # beside others that ask at the same time
    names: bool = True  # whether it is asked for its version, too

    @property
    def waited_s(self) -> float:
        """How long a message that is missing was waited for."""
        return self.return_s if self.patience is None else self.patience.quiet_s

    def talk(self, packet_limit_bytes: int = PACKET_LIMIT_BYTES, *, spoken: bool = False) -> Talk:
        """A talk in which all this is asked; `spoken` as of `Talk`."""
        return Talk(
            self.tls_context,
            packet_limit_bytes=packet_limit_bytes,
            older=self.older,
            patience=self.patience,
            spoken=spoken,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The broker's own name for its version, what it lacks, and what else a reader should know."""

    version: str
    lacks: tuple[str, ...]
    remarks: tuple[str, ...]


async def rehearse(wanted: Wanted) -> Found:
    """Ask; raises BrokerUnreachableError and BrokerRefusedError where a device cannot connect."""
    largest = max((one.size_bytes for role in wanted.roles for one in role.publications), default=0)
    async with wanted.talk(PACKET_LIMIT_BYTES + largest) as talk:
        played = _Played(wanted, talk)
        # The first by itself: where nobody can connect, one error says what is there.
        await played.join(0)
        naming = asyncio.ensure_future(_version(wanted))
        try:
            await together(*map(played.join, range(1, len(wanted.roles))))
            lacks = (
                list(_limits(played))
                or await played.subscribe()
                or await played.exchange()
                or await played.retained()
            )
            remarks = list(_remarks(played))
            await asyncio.wait((naming,), timeout=_NAME_S)
            version = naming.result() if naming.done() else UNKNOWN
        finally:
            await ended((naming,))
    # A broker of MQTT 3.1 does not say whether it kept a session.
    for number in _keeping(wanted.roles) if wanted.version != MQTT_3_1 else ():
        lacks += await _session(wanted, number)
    return Found(version, tuple(dict.fromkeys(lacks)), tuple(dict.fromkeys(remarks)))


async def _version(wanted: Wanted) -> str:
    if not wanted.names:
        return UNKNOWN
    endpoint = wanted.endpoints[wanted.roles[0].target]
    return await version_of(endpoint, wanted.connects[0], wanted.tls_context)


# The devices ----------------------------------------------------------------------------------


class _Played:
    """The roles, each played by a client of one talk."""

    def __init__(self, wanted: Wanted, talk: Talk) -> None:
        self.wanted, self.talk = wanted, talk
        self.clients: dict[int, Client] = {}  # by the number of the role

    async def join(self, number: int) -> None:
        """Connect the client that plays the role with this number."""
        wanted = self.wanted
        endpoint = wanted.endpoints[wanted.roles[number].target]
        self.clients[number] = await self.talk.join(endpoint, wanted.connects[number])

    def each(self) -> Iterator[tuple[int, Role, Client]]:
        """Number, role and client of all that are connected."""
        return ((number, self.wanted.roles[number], one) for number, one in self.clients.items())

    # Subscriptions

    async def subscribe(self) -> list[str]:
        """Subscribe every device that does; what was not granted."""
        asking = [(role, client) for _, role, client in self.each() if role.filters]
        for role, client in asking:
            client.subscribe(role.filters, role.qos)
        await self.talk.until(
            lambda: all(client.suback or client.ended for _, client in asking), self.wanted.answer_s
        )
        return [lack for role, client in asking if (lack := self._not_granted(role, client))]

    def _not_granted(self, role: Role, client: Client) -> str:
        suback, wanted = client.suback, self.wanted
        where = client.endpoint.redacted
        asked = f"the subscription of {role.group.name} to {shown(role.filters[0], 80)}"
        needs = _because(wanted.shared) if role.shares else ""
        if suback is None:
            how = (
                f"ended the connection ({shown(client.ended)})" if client.ended else "said nothing"
            )
            return f"{where} {how} at {asked}{needs}; check what it allows this client"
        for topic, code in zip(role.filters, suback.reason_codes, strict=False):
            one = f"the subscription of {role.group.name} to {shown(topic, 80)}"
            if is_failure(code):
                name = named(code, suback.properties, wanted.version)
                return f"{where} refused {one}{needs}: {name}; check what it allows this client"
            if code < role.qos:
                option = wanted.qos_option.format(highest=code)
                return f"{where} grants QoS {code} and not {role.qos} to {one}; use {option}"
        if len(suback.reason_codes) != len(role.filters):
            return f"{where} answered {len(suback.reason_codes)} of {len(role.filters)} filters"
        return ""

    # Publications

    async def exchange(self) -> list[str]:
        """Publish what every device would; what was refused, or did not come back."""
        sent = _Sent(self)
        deliveries = deliveries_of(self.wanted.roles, apart=self.wanted.apart)
        end_s = time.monotonic() + self.wanted.return_s
        sent.send(
            (number, place)
            for number, role in enumerate(self.wanted.roles)
            for place in range(len(role.publications))
        )
        while True:
            missing = [one for one in deliveries if not sent.arrived(one)]
            if not missing or sent.faults() or self.talk.given_up or time.monotonic() >= end_s:
                break
            came = await self.talk.until(
                lambda: bool(sent.faults()) or all(map(sent.arrived, deliveries)), _AGAIN_S
            )
            if not came:
                sent.send({(one.sender, one.publication) for one in missing})
        await self.talk.until(
            lambda: bool(sent.faults()) or sent.acknowledged(), self.wanted.answer_s
        )
        if any(self.wanted.roles[one.receivers[0]].shares for one in deliveries):
            await asyncio.sleep(_SETTLE_S)
        faults = sent.faults() or sent.unacknowledged()
        return faults or self._astray(sent, deliveries)

    async def retained(self) -> list[str]:
        """Ask again for what was retained, and get it; what did not come."""
        wanted = self.wanted
        missing = {
            (one.receivers[0], publication.topic)
            for one in deliveries_of(wanted.roles, apart=wanted.apart)
            for publication in (wanted.roles[one.sender].publications[one.publication],)
            if publication.retain and not wanted.roles[one.receivers[0]].shares
        }
        for number in {receiver for receiver, _ in missing}:
            role = wanted.roles[number]
            self.clients[number].subscribe(role.filters, role.qos)

        def all_came() -> bool:
            for number, _ in set(missing):
                inbox = self.clients[number].inbox
                missing.difference_update((number, one.topic_name) for one in inbox if one.retain)
            return not missing

        await self.talk.until(all_came, self.wanted.return_s)
        return [
            f"{self.clients[number].endpoint.redacted} does not retain messages: none came to "
            f"{wanted.roles[number].group.name} for a later subscription to {shown(topic, 80)}; "
            "allow it there, or publish without it"
            for number, topic in sorted(missing)
        ]

    def _astray(self, sent: "_Sent", deliveries: Sequence[Delivery]) -> list[str]:
        """Messages that did not come back as they should have."""
        missing = [one for one in deliveries if not sent.arrived(one)]
        if missing:
            apart = self._unacquainted(sent, deliveries, missing)
            return [apart or self._not_delivered(missing[0])]
        found = []
        for delivery in deliveries:
            role = self.wanted.roles[delivery.receivers[0]]
            publication = self.wanted.roles[delivery.sender].publications[delivery.publication]
            where = self.clients[delivery.receivers[0]].endpoint.redacted
            copies, qos, whole = sent.copies(delivery)
            if role.shares and copies > 1:
                found.append(
                    f"{where} has no shared subscriptions{_because(self.wanted.shared)}: a message "
                    f"came to {copies} consumers of one"
                )
            elif qos < min(publication.qos, role.qos):
                found.append(
                    f"{where} delivers at QoS {qos} what {role.group.name} should get at QoS "
                    f"{min(publication.qos, role.qos)}; "
                    f"use {self.wanted.qos_option.format(highest=qos)}"
                )
            elif not whole:
                found.append(f"{where} changed the payload of a message to {publication.topic}")
        return found

    def _unacquainted(
        self, sent: "_Sent", deliveries: Sequence[Delivery], missing: Sequence[Delivery]
    ) -> str:
        """Whether what is missing is what would have to go from one broker to another."""
        roles = self.wanted.roles

        def crosses(one: Delivery) -> bool:
            return all(roles[r].target != roles[one.sender].target for r in one.receivers)

        within = [one for one in deliveries if not crosses(one)]
        if not within or not all(map(sent.arrived, within)):
            return ""
        one = missing[0]
        first = self.clients[one.sender].endpoint.redacted
        second = self.clients[one.receivers[0]].endpoint.redacted
        way = "use --separate-brokers, or " if self.wanted.separate else ""
        return (
            f"{first} and {second} do not know each other: what is published at the one does not "
            f"come to subscribers at the other; {way}give addresses of one system"
        )

    def _not_delivered(self, one: Delivery) -> str:
        roles = self.wanted.roles
        sender, receiver = roles[one.sender], roles[one.receivers[0]]
        publication = sender.publications[one.publication]
        needs = _because(self.wanted.shared) if receiver.shares else ""
        return (
            f"{self.clients[one.sender].endpoint.redacted} did not bring a message of "
            f"{publication.size_bytes:,} bytes at QoS {publication.qos} from {sender.group.name} "
            f"to {receiver.group.name} within {self.wanted.waited_s:.1g} s (topic "
            f"{shown(publication.topic, 80)}){needs}; check what it allows this client, and its "
            "limits"
        )


class _Sent:
    """What was published, again where it did not arrive, and what came of it."""

    def __init__(self, played: _Played) -> None:
        self._clients, self._wanted = played.clients, played.wanted
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

    def arrived(self, one: Delivery) -> bool:
        return self.copies(one)[0] > 0

    def copies(self, one: Delivery) -> tuple[int, int, bool]:
        """Most copies of an attempt, the least QoS, and whether all came as they were sent."""
        publication = self._wanted.roles[one.sender].publications[one.publication]
        most, qos, whole = 0, 2, True
        for payload in self._payloads[one.sender, one.publication]:
            token = payload[: payload.index(b" ", len(ASKED)) + 1]
            came = [
                message
                for receiver in one.receivers
                for message in self._clients[receiver].inbox
                if message.payload.startswith(token)
            ]
            most = max(most, len(came))
            qos = min([qos, *(message.qos for message in came)])
            whole = whole and all(
                message.payload == payload and message.topic_name == publication.topic
                for message in came
            )
        return most, qos, whole

    def acknowledged(self) -> bool:
        """Whether the handshake of each first attempt has ended."""
        return not any(self._open())

    def _open(self) -> Iterator[tuple[int, int]]:
        for (sender, place), identifier in self._identifiers.items():
            if identifier and identifier not in self._clients[sender].completed:
                yield sender, place

    def unacknowledged(self) -> list[str]:
        """Sentences about handshakes that did not end."""
        return [
            f"{self._clients[sender].endpoint.redacted} did not acknowledge "
            f"{self._what(sender, place)} within {self._wanted.answer_s:g} s; check its log"
            for sender, place in self._open()
        ]

    def faults(self) -> list[str]:
        """Sentences about publications that were refused, or ended the connection."""
        found = []
        for (sender, place), identifier in self._identifiers.items():
            client = self._clients[sender]
            where, what = client.endpoint.redacted, self._what(sender, place)
            answer = client.answers.get(identifier)
            qos = self._wanted.roles[sender].publications[place].qos
            if isinstance(answer, (PubAck, PubRec)) and is_failure(answer.reason_code):
                name = named(answer.reason_code, answer.properties, MQTT_5)
                found.append(f"{where} refused {what}: {name}; check what it allows this client")
            elif answer is not None and isinstance(answer, PubAck) != (qos == 1):
                kind = type(answer).__name__.upper()
                option = self._wanted.qos_option.format(highest=1)
                way = f"use {option}" if qos == 2 else "take another broker"
                found.append(f"{where} answered {what} with {kind}; {way}")
            elif client.ended:
                found.append(
                    f"{where} ended the connection at {what} ({shown(client.ended)}); check what "
                    "it allows this client, and its limits"
                )
        return found

    def _what(self, sender: int, place: int) -> str:
        role = self._wanted.roles[sender]
        publication = role.publications[place]
        return (
            f"a publication of {role.group.name} to {shown(publication.topic, 80)} at QoS "
            f"{publication.qos} with {publication.size_bytes:,} bytes"
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


def _limits(played: _Played) -> Iterator[str]:
    """What a CONNACK rules out (MQTT 5, 3.2.2.3); in MQTT 3.1.1 it says nothing."""
    wanted = played.wanted
    for _, role, client in played.each():
        said, where = client.connack.properties, client.endpoint.redacted
        qos = max([role.qos, *(one.qos for one in role.publications)])
        if said.maximum_qos is not None and qos > said.maximum_qos:
            yield (
                f"{where} allows QoS {said.maximum_qos} at most and the scenario asks for {qos}; "
                f"use {wanted.qos_option.format(highest=said.maximum_qos)}"
            )
        for one in role.publications:
            packet = encode(_packet(one, b"." * one.size_bytes, int(one.qos > 0)), wanted.version)
            limit_bytes = said.maximum_packet_size
            if limit_bytes is not None and len(packet) > limit_bytes:
                yield (
                    f"{where} takes packets of {limit_bytes:,} bytes at most and payloads have up "
                    f"to {one.size_bytes:,}; raise the broker's limit, or make them smaller"
                )
            if one.retain and said.retain_available == 0:
                yield f"{where} retains no messages, which {role.group.name} publish"
        if said.wildcard_subscription_available == 0 and any(map(is_wild, role.filters)):
            needs = wanted.wildcards or f"needed by {role.group.name}; take another broker"
            yield f"{where} allows no wildcard subscription, {needs}"
        if said.shared_subscription_available == 0 and role.shares:
            yield f"{where} says that it has no shared subscriptions{_because(wanted.shared)}"


def _because(needs: str) -> str:
    return f", {needs}" if needs else ""


def _remarks(played: _Played) -> Iterator[str]:
    """What CONNACK changes without ruling it out."""
    for number, role, client in played.each():
        said, where = client.connack.properties, client.endpoint.redacted
        asked = played.wanted.connects[number]
        if said.receive_maximum is not None and said.receive_maximum < role.window:
            yield (
                f"{where} takes {said.receive_maximum:,} unacknowledged messages of a client "
                f"(Receive Maximum); {role.group.name} may have no more in flight, not "
                f"{role.window:,}"
            )
        if said.server_keep_alive is not None and said.server_keep_alive != asked.keep_alive:
            yield f"{where} sets its own Keep Alive of {said.server_keep_alive:,} s"


# Sessions that last ---------------------------------------------------------------------------


def _keeping(roles: Sequence[Role]) -> list[int]:
    """The first device of each group for which the broker is to keep what comes meanwhile."""
    found: dict[str, int] = {}
    for number, role in enumerate(roles):
        if not role.group.clean_start and role.filters:
            found.setdefault(role.group.name, number)
    return list(found.values())


async def _session(wanted: Wanted, number: int) -> list[str]:
    """Whether a session is there again for who comes back; afterwards there is none."""
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
        present = present or await _kept(wanted, number, leaving)
        await _visit(wanted, endpoint, connect)
    except BrokerRefusedError as error:
        return [f"{error} (for a session that lasts, needed by {role.group.name})"]
    if present and granted.properties.session_expiry_interval != 0:
        return []
    return [
        f"{endpoint.redacted} keeps no session of a client that is away, needed by "
        f"{role.group.name}; allow it there, or {wanted.sessions}"
    ]


async def _kept(wanted: Wanted, number: int, leaving: Connect) -> bool:
    """Whether a device that comes back gets what was published while it was away."""
    roles = wanted.roles
    for one in deliveries_of(roles, apart=wanted.apart):
        publication = roles[one.sender].publications[one.publication]
        if one.receivers == (number,) and one.sender != number and publication.qos:
            break
    else:
        return False
    endpoint, payload = wanted.endpoints[roles[number].target], ASKED + b"while you were away"
    await _visit(wanted, endpoint, leaving, roles[number])
    async with wanted.talk(spoken=True) as talk:
        sender = await talk.join(
            wanted.endpoints[roles[one.sender].target], wanted.connects[one.sender]
        )
        sender.publish(_packet(publication, payload, 1))
        await talk.until(lambda: 1 in sender.completed or bool(sender.ended), wanted.answer_s)
        away = await talk.join(endpoint, leaving)
        return await talk.until(
            lambda: any(message.payload == payload for message in away.inbox), wanted.return_s
        )


async def _visit(
    wanted: Wanted, endpoint: Endpoint, connect: Connect, role: Role | None = None
) -> ConnAck:
    """Connect and leave in order; as this role with its subscriptions, which some sessions need."""
    end_s = time.monotonic() + wanted.waited_s
    while True:
        try:
            async with wanted.talk(spoken=True) as talk:
                client = await talk.join(endpoint, connect)
                if role is not None and role.filters:
                    await talk.subscribed(client, role.filters, role.qos, wanted.answer_s)
                return client.connack
        except BrokerRefusedError:
            # RabbitMQ does not yet know that the last connection with this identifier has ended.
            if time.monotonic() >= end_s:
                raise
            await asyncio.sleep(_AGAIN_S)
