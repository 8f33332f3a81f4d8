"""Asks a broker to play a run in small before any load is put on it: what it refuses or lacks.

The devices connect as those of the run do, subscribe, and publish one message each, which must
come back. Whatever the broker does not give is a sentence that says what to do.
"""

import asyncio
import contextlib
import itertools
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from loadgen.brokers.client import PacketStream, shown
from loadgen.brokers.door import admitted
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.probe import UNKNOWN, connect_of, stated_version
from loadgen.errors import BrokerRefusedError, RemoteProtocolError
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_3_1, MQTT_5
from loadgen.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import is_failure, reason_name
from loadgen.workload.rehearsal import ASKED, Delivery, Publication, Role, deliveries_of

ANSWER_S: Final = 5.0
"""For a SUBACK or an acknowledgement."""
_RETURN_S: Final = 2.0  # for a message to come back
_AGAIN_S: Final = 0.25  # after which it is sent again: nodes of a cluster learn of each other
_SETTLE_S: Final = 0.05  # for a copy too many
_NAME_S: Final = 1.0  # for the version, when all else is known
_SESSION_S: Final = 3600  # the Session Expiry Interval that devices ask for
_SUBSCRIBE_ID: Final = 1
_MORE_BYTES: Final = 8 << 10  # of a packet, beside its payload


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
    older: str = "use the other version"
    qos_option: str = "--qos {highest}"
    wildcards: str = ""
    shared: str = ""
    sessions: str = "take another broker"
    separate: bool = False  # whether --separate-brokers can be given
    tls_context: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The broker's own name for its version, what it lacks, and what else a reader should know."""

    version: str
    lacks: tuple[str, ...]
    remarks: tuple[str, ...]


async def rehearse(wanted: Wanted) -> Found:
    """Ask; raises BrokerUnreachableError and BrokerRefusedError where a device cannot connect."""
    async with contextlib.AsyncExitStack() as stack:
        talk = _Talk(wanted)
        # The first by itself: where nobody can connect, one error says what is there.
        await talk.connect(stack, 0)
        naming = asyncio.ensure_future(_version(wanted))
        stack.push_async_callback(_cancelled, naming)
        others = range(1, len(wanted.roles))
        await asyncio.gather(*(talk.connect(stack, number) for number in others))
        lacks = list(_limits(talk))
        if not lacks:
            lacks += await talk.subscribe()
        if not lacks:
            lacks += await talk.exchange()
        remarks = list(_remarks(talk))
        await asyncio.wait((naming,), timeout=_NAME_S)
        version = naming.result() if naming.done() else UNKNOWN
    # A broker of MQTT 3.1 does not say whether it kept a session.
    for number in _keeping(wanted.roles) if wanted.version != MQTT_3_1 else ():
        lacks += await _session(wanted, number)
    return Found(version, tuple(dict.fromkeys(lacks)), tuple(dict.fromkeys(remarks)))


async def _cancelled(task: "asyncio.Future[str]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _version(wanted: Wanted) -> str:
    """Asked on a connection of its own: some brokers end one that asks for $SYS."""
    endpoint, connect = wanted.endpoints[wanted.roles[0].target], wanted.connects[0]
    asking = replace(
        connect_of(endpoint, wanted.version),
        user_name=connect.user_name,
        password=connect.password,
    )
    try:
        stream, connack = await admitted(endpoint, asking, wanted.tls_context)
    except Exception:
        return UNKNOWN
    try:
        return await stated_version(stream, connack)
    finally:
        await stream.close()


# The devices ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Device:
    """One device of the rehearsal and all that it heard."""

    role: Role
    endpoint: Endpoint
    stream: PacketStream
    connack: ConnAck
    granted: tuple[int, ...] | None = None
    suback: SubAck | None = None
    answers: dict[int, Packet] = field(default_factory=dict)  # the first one by Packet Identifier
    completed: set[int] = field(default_factory=set)
    inbox: list[Publish] = field(default_factory=list)
    ended: str = ""  # how the connection ended

    @property
    def who(self) -> str:
        return f"{self.role.group.name} at {self.endpoint.redacted}"

    async def listen(self, heard: Callable[[], None]) -> None:
        """Take what comes until the connection ends."""
        try:
            while True:
                self._take(await self.stream.receive())
                heard()
        except (OSError, RemoteProtocolError) as error:
            number = error.errno if isinstance(error, OSError) else None
            self.ended = self.ended or (os.strerror(number).lower() if number else str(error))
            heard()

    def _take(self, packet: Packet) -> None:
        send = self.stream.send
        if isinstance(packet, Publish):
            self.inbox.append(packet)
            if packet.qos == 1:
                send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            send(PubComp(packet.packet_id))
        elif isinstance(packet, SubAck):
            self.suback = packet
        elif isinstance(packet, (PubAck, PubRec)):
            self.answers.setdefault(packet.packet_id, packet)
            if isinstance(packet, PubRec) and not is_failure(packet.reason_code):
                send(PubRel(packet.packet_id))
            else:
                self.completed.add(packet.packet_id)
        elif isinstance(packet, PubComp):
            self.completed.add(packet.packet_id)
        elif isinstance(packet, Disconnect):
            self.ended = _named(packet.reason_code, packet.properties, MQTT_5)


def _named(code: int, properties: Properties, version: int) -> str:
    """A reason code with the Reason String that came with it."""
    text = f": {shown(properties.reason_string)}" if properties.reason_string else ""
    return f"{reason_name(code, version)}{text}"


class _Talk:
    """The devices of one rehearsal, each listening."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.devices: dict[int, _Device] = {}
        self._changed = asyncio.Event()

    async def connect(self, stack: contextlib.AsyncExitStack, number: int) -> None:
        """Connect the device with this number for the length of `stack`."""
        wanted, role = self.wanted, self.wanted.roles[number]
        endpoint = wanted.endpoints[role.target]
        stream, connack = await admitted(
            endpoint, wanted.connects[number], wanted.tls_context, older=wanted.older
        )
        stream.packet_limit_bytes = _MORE_BYTES + max(
            (one.size_bytes for other in wanted.roles for one in other.publications), default=0
        )
        device = self.devices[number] = _Device(role, endpoint, stream, connack)
        await stack.enter_async_context(_listening(device, self._changed.set))

    async def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done`, looked at whenever something was heard."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        return done()

    # Subscriptions

    async def subscribe(self) -> list[str]:
        """Subscribe every device that does; what was not granted."""
        asking = [device for device in self.devices.values() if device.role.filters]
        for device in asking:
            role = device.role
            subscriptions = tuple(Subscription(one, role.qos) for one in role.filters)
            device.stream.send(Subscribe(_SUBSCRIBE_ID, subscriptions))
        await self.until(lambda: all(one.suback or one.ended for one in asking), ANSWER_S)
        return [lack for device in asking if (lack := self._not_granted(device))]

    def _not_granted(self, device: _Device) -> str:
        role, suback, wanted = device.role, device.suback, self.wanted
        where = device.endpoint.redacted
        asked = f"the subscription of {role.group.name} to {shown(role.filters[0], 80)}"
        needs = f", {wanted.shared}" if role.shares and wanted.shared else ""
        if suback is None:
            how = (
                f"ended the connection ({shown(device.ended)})" if device.ended else "said nothing"
            )
            return f"{where} {how} at {asked}{needs}; check what it allows this client"
        for topic, code in zip(role.filters, suback.reason_codes, strict=False):
            one = f"the subscription of {role.group.name} to {shown(topic, 80)}"
            if is_failure(code):
                name = _named(code, suback.properties, wanted.version)
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
        end_s = time.monotonic() + _RETURN_S
        sent.send(
            (number, place)
            for number, role in enumerate(self.wanted.roles)
            for place in range(len(role.publications))
        )
        while True:
            missing = [one for one in deliveries if not sent.arrived(one)]
            if not missing or sent.faults() or time.monotonic() >= end_s:
                break
            came = await self.until(
                lambda: bool(sent.faults()) or all(map(sent.arrived, deliveries)), _AGAIN_S
            )
            if not came:
                sent.send({(one.sender, one.publication) for one in missing})
        await self.until(lambda: bool(sent.faults()) or sent.acknowledged(), ANSWER_S)
        if any(self.wanted.roles[one.receivers[0]].shares for one in deliveries):
            await asyncio.sleep(_SETTLE_S)
        faults = sent.faults() or sent.unacknowledged()
        return faults or self._astray(sent, deliveries)

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
            where = self.devices[delivery.receivers[0]].endpoint.redacted
            copies, qos, whole = sent.copies(delivery)
            if role.shares and copies > 1:
                found.append(
                    f"{where} has no shared subscriptions, {self.wanted.shared}: a message came to "
                    f"{copies} consumers of one"
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
        first = self.devices[one.sender].endpoint.redacted
        second = self.devices[one.receivers[0]].endpoint.redacted
        way = "use --separate-brokers, or " if self.wanted.separate else ""
        return (
            f"{first} and {second} do not know each other: what is published at the one does not "
            f"come to subscribers at the other; {way}give addresses of one system"
        )

    def _not_delivered(self, one: Delivery) -> str:
        sender, receiver = self.devices[one.sender], self.devices[one.receivers[0]]
        publication = sender.role.publications[one.publication]
        needs = f", {self.wanted.shared}" if receiver.role.shares and self.wanted.shared else ""
        return (
            f"{sender.endpoint.redacted} did not bring a message of {publication.size_bytes:,} "
            f"bytes at QoS {publication.qos} from {sender.role.group.name} to "
            f"{receiver.role.group.name} within {_RETURN_S:g} s (topic "
            f"{shown(publication.topic, 80)}){needs}; check what it allows this client, and its "
            "limits"
        )


@contextlib.asynccontextmanager
async def _listening(device: _Device, heard: Callable[[], None]) -> AsyncIterator[None]:
    """The device takes what comes, and leaves in order at the end."""
    task = asyncio.ensure_future(device.listen(heard))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not device.ended:
            for publication in device.role.publications:
                if publication.retain:
                    device.stream.send(Publish(publication.topic, retain=True))
            device.stream.send(Disconnect())
        await device.stream.close()


class _Sent:
    """What was published, again where it did not arrive, and what came of it."""

    def __init__(self, talk: _Talk) -> None:
        self._talk = talk
        self._numbers = itertools.count(1)
        self._payloads: dict[tuple[int, int], list[bytes]] = {}
        self._identifiers: dict[tuple[int, int], int] = {}  # of the first attempt

    def send(self, which: Iterable[tuple[int, int]]) -> None:
        """Publish these (sender, publication)."""
        for sender, place in which:
            device = self._talk.devices[sender]
            publication = device.role.publications[place]
            number = next(self._numbers)
            payload = (ASKED + b"%d " % number).ljust(publication.size_bytes, b".")
            identifier = number if publication.qos else 0
            self._payloads.setdefault((sender, place), []).append(payload)
            self._identifiers.setdefault((sender, place), identifier)
            if not device.ended:
                device.stream.send(_packet(publication, payload, identifier))

    def arrived(self, one: Delivery) -> bool:
        return self.copies(one)[0] > 0

    def copies(self, one: Delivery) -> tuple[int, int, bool]:
        """Most copies of an attempt, the least QoS, and whether all came as they were sent."""
        publication = self._talk.wanted.roles[one.sender].publications[one.publication]
        most, qos, whole = 0, 2, True
        for payload in self._payloads[one.sender, one.publication]:
            token = payload[: payload.index(b" ", len(ASKED)) + 1]
            came = [
                message
                for receiver in one.receivers
                for message in self._talk.devices[receiver].inbox
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
            if identifier and identifier not in self._talk.devices[sender].completed:
                yield sender, place

    def unacknowledged(self) -> list[str]:
        """Sentences about handshakes that did not end."""
        return [
            f"{device.endpoint.redacted} did not acknowledge {self._what(sender, place)} within "
            f"{ANSWER_S:g} s; check its log"
            for sender, place in self._open()
            for device in (self._talk.devices[sender],)
        ]

    def faults(self) -> list[str]:
        """Sentences about publications that were refused, or ended the connection."""
        found = []
        for (sender, place), identifier in self._identifiers.items():
            device = self._talk.devices[sender]
            where, what = device.endpoint.redacted, self._what(sender, place)
            answer = device.answers.get(identifier)
            qos = device.role.publications[place].qos
            if isinstance(answer, (PubAck, PubRec)) and is_failure(answer.reason_code):
                name = _named(answer.reason_code, answer.properties, MQTT_5)
                found.append(f"{where} refused {what}: {name}; check what it allows this client")
            elif answer is not None and isinstance(answer, PubAck) != (qos == 1):
                kind = type(answer).__name__.upper()
                option = self._talk.wanted.qos_option.format(highest=1)
                way = f"use {option}" if qos == 2 else "take another broker"
                found.append(f"{where} answered {what} with {kind}; {way}")
            elif device.ended:
                found.append(
                    f"{where} ended the connection at {what} ({shown(device.ended)}); check what "
                    "it allows this client, and its limits"
                )
        return found

    def _what(self, sender: int, place: int) -> str:
        role = self._talk.wanted.roles[sender]
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


def _limits(talk: _Talk) -> Iterator[str]:
    """What a CONNACK rules out (MQTT 5, 3.2.2.3); in MQTT 3.1.1 it says nothing."""
    wanted = talk.wanted
    for device in talk.devices.values():
        role, said, where = device.role, device.connack.properties, device.endpoint.redacted
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
        if said.wildcard_subscription_available == 0 and any(map(_wild, role.filters)):
            needs = wanted.wildcards or f"which {role.group.name} need; take another broker"
            yield f"{where} allows no wildcard subscription, {needs}"
        if said.shared_subscription_available == 0 and role.shares:
            yield f"{where} says that it has no shared subscriptions, {wanted.shared}"


def _wild(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def _remarks(talk: _Talk) -> Iterator[str]:
    """What CONNACK changes without ruling it out."""
    for number, device in talk.devices.items():
        role, said = device.role, device.connack.properties
        where, asked = device.endpoint.redacted, talk.wanted.connects[number]
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
        await _visit(wanted, endpoint, connect)
    except BrokerRefusedError as error:
        return [f"{error} (for a session that lasts, which {role.group.name} need)"]
    if present and granted.properties.session_expiry_interval != 0:
        return []
    return [
        f"{endpoint.redacted} keeps no session of a client that is away, which {role.group.name} "
        f"need; allow it there, or {wanted.sessions}"
    ]


async def _visit(
    wanted: Wanted, endpoint: Endpoint, connect: Connect, role: Role | None = None
) -> ConnAck:
    """Connect and leave in order; as this role with its subscriptions, which some sessions need."""
    stream, connack = await admitted(endpoint, connect, wanted.tls_context, older=wanted.older)
    try:
        if role is not None and role.filters:
            asked = tuple(Subscription(one, role.qos) for one in role.filters)
            stream.send(Subscribe(_SUBSCRIBE_ID, asked))
            with contextlib.suppress(TimeoutError, OSError, RemoteProtocolError):
                async with asyncio.timeout(ANSWER_S):
                    while not isinstance(await stream.receive(), SubAck):
                        pass
        stream.send(Disconnect())
    finally:
        await stream.close()
    return connack
