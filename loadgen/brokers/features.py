"""What a broker can do, each feature tried by clients that use it.

Where a device of a run would do the same, it is the question before the load in small
(`rehearse.py`). What can only be stated is taken from the broker's MQTT 5 CONNACK.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

from loadgen.brokers.client import client_identifier
from loadgen.brokers.probe import Greeting
from loadgen.brokers.rehearse import Wanted, rehearse
from loadgen.brokers.talk import Client, Patience, Talk
from loadgen.errors import CannotRunError
from loadgen.mqtt.packets import Connect, Publish, Will
from loadgen.mqtt.properties import Properties
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.rehearsal import ASKED, Publication, Role

TRIAL_S: Final = 10.0
"""The longest that a trial may take, whatever is heard."""
QUIET_S: Final = 0.7
"""When nothing came for so long, what did not come yet is not to come."""
_KEEP_ALIVES_S: Final = (60, 50_000)
_FOREVER_S: Final = 0xFFFF_FFFF
_PAYLOADS_BYTES: Final = (256 << 10, 64 << 10, 16 << 10, 4 << 10)
"""The largest is the most that a scenario allows."""
_SMALL_BYTES: Final = 32

Basis = Literal["tried", "stated", "default", "absent"]


@dataclass(frozen=True, slots=True)
class Feature:
    """What a broker does, and how that is known.

    `basis`: it was `tried`, the broker `stated` it, it is the `default` of MQTT 5 on which the
    broker is silent, or it is `absent` from the versions that it speaks; then `value` is None, as
    it is where there is no limit. `detail` is a sentence about what was seen, or "".
    """

    value: bool | int | None
    basis: Basis
    detail: str = ""

    def plain(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The broker, how to connect, and how long to wait for what may not come."""

    greeting: Greeting
    tls_context: ssl.SSLContext | None
    patience: Patience

    @property
    def version(self) -> int:
        return self.greeting.versions[-1]

    def connect(self, **fields: Any) -> Connect:
        """CONNECT of a client of ours, in the newest version that the broker speaks."""
        return replace(self.greeting.newest, **({"client_id": client_identifier("probe")} | fields))

    def talk(self) -> Talk:
        return Talk(self.tls_context, patience=self.patience)

    async def join(self, talk: Talk, **fields: Any) -> Client:
        return await talk.join(self.greeting.endpoint, self.connect(**fields))

    async def lacks(self, *roles: Role) -> str:
        """What the broker lacks to play these roles, the first of it; "" for nothing."""
        wanted = Wanted(
            roles=roles,
            connects=[self.connect(clean_start=True) for _ in roles],
            endpoints=(self.greeting.endpoint,),
            version=self.version,
            apart=False,
            qos_option="QoS {highest}",
            tls_context=self.tls_context,
            answer_s=TRIAL_S,
            return_s=TRIAL_S,
            patience=self.patience,
            names=False,
        )
        found = (await rehearse(wanted)).lacks
        return self.said(found[0]) if found else ""

    def said(self, text: str) -> str:
        """A sentence about the broker without its address."""
        return text.replace(f"{self.greeting.endpoint.redacted} ", "").replace(
            f" at {self.greeting.endpoint.redacted}", ""
        )


def _topic() -> str:
    return client_identifier("asks")


def _role(
    *filters: str, qos: int = 0, publications: Sequence[Publication] = (), lasting: bool = False
) -> Role:
    group = DeviceGroup("the probe", 1, clean_start=not lasting)
    return Role(group, 0, 0, filters, qos, tuple(publications))


# What devices do ------------------------------------------------------------------------------


async def _most(asked: _Asked, tried: Sequence[tuple[int, int, int]], told: str = "") -> Feature:
    """The first value that works, each tried with a QoS and a payload's size; why not more."""
    for value, qos, size_bytes in tried:
        topic = _topic()
        role = _role(topic, qos=qos, publications=(Publication(topic, qos, size_bytes),))
        found = await asked.lacks(role)
        if not found:
            return Feature(value, "tried", told)
        told = found
    return Feature(None, "tried", told)


async def _maximum_qos(asked: _Asked) -> Feature:
    return await _most(asked, [(qos, qos, _SMALL_BYTES) for qos in (2, 1, 0)])


async def _payload(asked: _Asked) -> Feature:
    return await _most(asked, [(n, 0, n) for n in _PAYLOADS_BYTES], "no larger one was tried")


async def _wildcards(asked: _Asked) -> Feature:
    topic = _topic()
    publications = [Publication(f"{topic}/{one}/x", 0, _SMALL_BYTES) for one in ("a", "b")]
    return _works(
        await asked.lacks(_role(f"{topic}/a/+", f"{topic}/b/#", publications=publications))
    )


async def _shared(asked: _Asked) -> Feature:
    topic = _topic()
    shared = f"$share/{topic}/{topic}"
    publication = Publication(topic, 0, _SMALL_BYTES)
    return _works(await asked.lacks(_role(shared, publications=(publication,)), _role(shared)))


async def _sessions(asked: _Asked) -> Feature:
    topic = _topic()
    sender = _role(publications=(Publication(topic, 1, _SMALL_BYTES),))
    return _works(await asked.lacks(_role(topic, qos=1, lasting=True), sender))


async def _retained(asked: _Asked) -> Feature:
    topic = _topic()
    publication = Publication(topic, 0, _SMALL_BYTES, retain=True)
    return _works(await asked.lacks(_role(topic, publications=(publication,))))


def _works(lack: str) -> Feature:
    return Feature(not lack, "tried", lack)


# What no device of a run does -----------------------------------------------------------------


async def _wills(asked: _Asked) -> Feature:
    topic = _topic()
    async with asked.talk() as talk:
        reader = await asked.join(talk)
        if not await talk.subscribed(reader, (topic,), 0, TRIAL_S):
            return Feature(None, "tried", "the subscription to the will's topic was not granted")
        leaving = await asked.join(talk, will=Will(topic, ASKED))
        leaving.stream.abort()
        came = await talk.until(lambda: bool(reader.inbox), TRIAL_S)
    return Feature(came, "tried", "" if came else "no will came when a connection was cut")


async def _topic_aliases(asked: _Asked) -> Feature:
    said = asked.greeting.said
    if said is None:
        return _ABSENT
    if not said.topic_alias_maximum:
        return Feature(0, "default" if said.topic_alias_maximum is None else "stated")
    topic, alias = _topic(), Properties(topic_alias=1)
    async with asked.talk() as talk:
        client = await asked.join(talk)
        came = await talk.subscribed(client, (topic,), 0, TRIAL_S)
        for name in (topic, ""):
            client.publish(Publish(name, ASKED, properties=alias))
        came = came and await talk.until(lambda: len(client.inbox) == 2, TRIAL_S)
    wrong = "" if came else "a message with an alias in place of its topic did not come back"
    return Feature(said.topic_alias_maximum, "stated" if wrong else "tried", wrong)


async def _subscription_identifiers(asked: _Asked) -> Feature:
    if asked.greeting.said is None:
        return _ABSENT
    if asked.greeting.said.subscription_identifier_available == 0:
        return Feature(False, "stated")
    topic = _topic()
    async with asked.talk() as talk:
        client = await asked.join(talk)
        identified = Properties(subscription_identifier=(7,))
        await talk.subscribed(client, (topic,), 0, TRIAL_S, identified)
        client.publish(Publish(topic, ASKED))
        await talk.until(lambda: bool(client.inbox or client.ended), TRIAL_S)
        came = [message.properties.subscription_identifier for message in client.inbox]
    right = came == [(7,)]
    return Feature(right, "tried", "" if right else "a message came without the identifier")


async def _keep_alive(asked: _Asked) -> Feature:
    if asked.greeting.said is None:
        return _ABSENT
    async with asked.talk() as talk:
        short, long = [
            (await asked.join(talk, keep_alive=s)).connack.properties.server_keep_alive
            for s in _KEEP_ALIVES_S
        ]
    if (short, long) == _KEEP_ALIVES_S:
        return Feature(None, "tried", "it repeats what the client asks for")
    return Feature(long, "tried", "" if long != _KEEP_ALIVES_S[1] else f"at least {short:,} s")


async def _session_expiry(asked: _Asked) -> Feature:
    if asked.greeting.said is None:
        return _ABSENT
    name = client_identifier("probe")
    lasting = Properties(session_expiry_interval=_FOREVER_S)
    async with asked.talk() as talk:
        granted = (await asked.join(talk, client_id=name, properties=lasting)).connack.properties
    async with asked.talk() as talk:
        await asked.join(talk, client_id=name)  # which ends it
    most_s = granted.session_expiry_interval
    if most_s in (None, _FOREVER_S):
        return Feature(None, "tried", "as long as a client asks for")
    return Feature(most_s, "tried")


# What can only be stated ----------------------------------------------------------------------


async def _stated(name: str, silent: int | None, asked: _Asked) -> Feature:
    """What CONNACK says of a limit; `silent` is what it means not to."""
    if asked.greeting.said is None:
        return _ABSENT
    value = getattr(asked.greeting.said, name)
    return Feature(silent, "default") if value is None else Feature(value, "stated")


_ABSENT: Final = Feature(None, "absent", "MQTT 5 only")

TRIALS: Final[Mapping[str, Callable[[_Asked], Awaitable[Feature]]]] = MappingProxyType(
    {
        "receive_maximum": partial(_stated, "receive_maximum", 65_535),
        "maximum_qos": _maximum_qos,
        "maximum_packet_size_bytes": partial(_stated, "maximum_packet_size", None),
        "payload_bytes": _payload,
        "topic_alias_maximum": _topic_aliases,
        "server_keep_alive_s": _keep_alive,
        "retain_available": _retained,
        "wildcard_subscription_available": _wildcards,
        "subscription_identifier_available": _subscription_identifiers,
        "shared_subscription_available": _shared,
        "session_available": _sessions,
        "session_expiry_s": _session_expiry,
        "will_available": _wills,
    }
)
"""How each feature is found out, by the name that it has in JSON."""


def trials_of(
    greeting: Greeting, tls_context: ssl.SSLContext | None, patience: Patience
) -> list[Coroutine[Any, Any, Feature]]:
    """A trial of each feature, in the order of `TRIALS`, for `in_turn`."""
    asked = _Asked(greeting, tls_context, patience)

    async def one(trial: Callable[[_Asked], Awaitable[Feature]]) -> Feature:
        try:
            async with asyncio.timeout(TRIAL_S):
                return await trial(asked)
        except CannotRunError as error:
            return Feature(None, "tried", asked.said(str(error)))
        except TimeoutError:
            return Feature(None, "tried", f"no answer within {TRIAL_S:g} s")

    return [one(trial) for trial in TRIALS.values()]
