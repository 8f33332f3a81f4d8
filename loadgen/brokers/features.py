"""The features of a broker, each tried by clients that use it.

If a device of a run would use a feature, the check before the load (`rehearse.py`) tries it. What
can only be stated is taken from the broker's MQTT 5 CONNACK.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

from loadgen.brokers.ask import Greeting
from loadgen.brokers.client_pool import ClientPool, PoolClient
from loadgen.brokers.packet_stream import client_identifier
from loadgen.brokers.rehearse import Wanted, rehearse
from loadgen.errors import CannotRunError
from loadgen.mqtt.packets import Connect, Publish, Will
from loadgen.mqtt.properties import Properties
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.rehearsal import ASKED, Publication, Role

TRIAL_S: Final = 10.0
"""Longest time of a trial."""
QUIET_S: Final = 0.7
"""Without any packet for this time, a missing one does not come any more."""
_KEEP_ALIVES_S: Final = (60, 50_000)
_FOREVER_S: Final = 0xFFFF_FFFF
_PAYLOADS_BYTES: Final = (256 << 10, 64 << 10, 16 << 10, 4 << 10)
"""The largest is the most that a scenario allows."""
_SMALL_BYTES: Final = 32

Basis = Literal["tried", "stated", "default", "absent"]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a broker and the basis of this knowledge.

    It was `tried`, the broker `stated` it, it is the `default` of MQTT 5 that applies if the broker
    is silent, or it is `absent` from the versions that the broker speaks. `value` is None if it is
    absent or has no limit. `detail` is a sentence about the trial, or "".
    """

    value: bool | int | None
    basis: Basis
    detail: str = ""

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Trial:
    """The broker of a trial, the way to connect, and the longest silence of a wait."""

    greeting: Greeting
    tls_context: ssl.SSLContext | None
    quiet_s: float

    @property
    def version(self) -> int:
        return self.greeting.versions[-1]

    def connect(self, **fields: Any) -> Connect:
        """Return a CONNECT of the newest version that the broker speaks."""
        return replace(self.greeting.newest, **({"client_id": client_identifier("probe")} | fields))

    def pool(self) -> ClientPool:
        return ClientPool(self.tls_context, quiet_s=self.quiet_s)

    async def join(self, pool: ClientPool, **fields: Any) -> PoolClient:
        return await pool.join(self.greeting.endpoint, self.connect(**fields))

    async def lacks(self, *roles: Role) -> str:
        """Return the first thing that the broker lacks for these roles, "" if it lacks none."""
        wanted = Wanted(
            roles=roles,
            connects=[self.connect(clean_start=True) for _ in roles],
            endpoints=(self.greeting.endpoint,),
            version=self.version,
            separate=False,
            qos_option="QoS {highest}",
            tls_context=self.tls_context,
            answer_s=TRIAL_S,
            return_s=TRIAL_S,
            quiet_s=self.quiet_s,
            with_version=False,
        )
        lacks = (await rehearse(wanted)).lacks
        return self.without_address(lacks[0]) if lacks else ""

    def without_address(self, text: str) -> str:
        """Return a sentence about the broker without its address."""
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


async def _most(trial: Trial, tried: Sequence[tuple[int, int, int]], detail: str = "") -> Feature:
    """Return the first value that works, each tried with a QoS and a size of the payload."""
    for value, qos, size_bytes in tried:
        topic = _topic()
        role = _role(topic, qos=qos, publications=(Publication(topic, qos, size_bytes),))
        lack = await trial.lacks(role)
        if not lack:
            return Feature(value, "tried", detail)
        detail = lack
    return Feature(None, "tried", detail)


async def _maximum_qos(trial: Trial) -> Feature:
    return await _most(trial, [(qos, qos, _SMALL_BYTES) for qos in (2, 1, 0)])


async def _payload(trial: Trial) -> Feature:
    return await _most(trial, [(n, 0, n) for n in _PAYLOADS_BYTES], "no larger one was tried")


async def _wildcards(trial: Trial) -> Feature:
    topic = _topic()
    publications = [Publication(f"{topic}/{one}/x", 0, _SMALL_BYTES) for one in ("a", "b")]
    return _works(
        await trial.lacks(_role(f"{topic}/a/+", f"{topic}/b/#", publications=publications))
    )


async def _shared(trial: Trial) -> Feature:
    topic = _topic()
    shared = f"$share/{topic}/{topic}"
    publication = Publication(topic, 0, _SMALL_BYTES)
    return _works(await trial.lacks(_role(shared, publications=(publication,)), _role(shared)))


async def _sessions(trial: Trial) -> Feature:
    topic = _topic()
    sender = _role(publications=(Publication(topic, 1, _SMALL_BYTES),))
    return _works(await trial.lacks(_role(topic, qos=1, lasting=True), sender))


async def _retained(trial: Trial) -> Feature:
    topic = _topic()
    publication = Publication(topic, 0, _SMALL_BYTES, retain=True)
    return _works(await trial.lacks(_role(topic, publications=(publication,))))


def _works(lack: str) -> Feature:
    return Feature(not lack, "tried", lack)


# What no device of a run does -----------------------------------------------------------------


async def _wills(trial: Trial) -> Feature:
    topic = _topic()
    async with trial.pool() as pool:
        reader = await trial.join(pool)
        if not await pool.subscribed(reader, (topic,), 0, TRIAL_S):
            return Feature(None, "tried", "the subscription to the will's topic was not granted")
        leaving = await trial.join(pool, will=Will(topic, ASKED))
        leaving.stream.abort()
        came = await pool.until(lambda: bool(reader.inbox), TRIAL_S)
    return Feature(came, "tried", "" if came else "no will came when a connection was cut")


async def _topic_aliases(trial: Trial) -> Feature:
    stated = trial.greeting.stated
    if stated is None:
        return _ABSENT
    if not stated.topic_alias_maximum:
        return Feature(0, "default" if stated.topic_alias_maximum is None else "stated")
    topic, alias = _topic(), Properties(topic_alias=1)
    async with trial.pool() as pool:
        client = await trial.join(pool)
        came = await pool.subscribed(client, (topic,), 0, TRIAL_S)
        for name in (topic, ""):
            client.publish(Publish(name, ASKED, properties=alias))
        came = came and await pool.until(lambda: len(client.inbox) == 2, TRIAL_S)
    wrong = "" if came else "a message with an alias in place of its topic did not come back"
    return Feature(stated.topic_alias_maximum, "stated" if wrong else "tried", wrong)


async def _subscription_identifiers(trial: Trial) -> Feature:
    if trial.greeting.stated is None:
        return _ABSENT
    if trial.greeting.stated.subscription_identifier_available == 0:
        return Feature(False, "stated")
    topic = _topic()
    async with trial.pool() as pool:
        client = await trial.join(pool)
        identified = Properties(subscription_identifier=(7,))
        await pool.subscribed(client, (topic,), 0, TRIAL_S, identified)
        client.publish(Publish(topic, ASKED))
        await pool.until(lambda: bool(client.inbox or client.ended), TRIAL_S)
        came = [message.properties.subscription_identifier for message in client.inbox]
    right = came == [(7,)]
    return Feature(right, "tried", "" if right else "a message came without the identifier")


async def _keep_alive(trial: Trial) -> Feature:
    if trial.greeting.stated is None:
        return _ABSENT
    async with trial.pool() as pool:
        short, long = [
            (await trial.join(pool, keep_alive=s)).connack.properties.server_keep_alive
            for s in _KEEP_ALIVES_S
        ]
    if (short, long) == _KEEP_ALIVES_S:
        return Feature(None, "tried", "it repeats what the client asks for")
    return Feature(long, "tried", "" if long != _KEEP_ALIVES_S[1] else f"at least {short:,} s")


async def _session_expiry(trial: Trial) -> Feature:
    if trial.greeting.stated is None:
        return _ABSENT
    name = client_identifier("probe")
    lasting = Properties(session_expiry_interval=_FOREVER_S)
    async with trial.pool() as pool:
        granted = (await trial.join(pool, client_id=name, properties=lasting)).connack.properties
    async with trial.pool() as pool:
        await trial.join(pool, client_id=name)  # which ends it
    most_s = granted.session_expiry_interval
    if most_s in (None, _FOREVER_S):
        return Feature(None, "tried", "as long as a client asks for")
    return Feature(most_s, "tried")


# What can only be stated ----------------------------------------------------------------------


async def _stated(name: str, silent: int | None, trial: Trial) -> Feature:
    """Return a limit of CONNACK; `silent` is its value if CONNACK does not have it."""
    if trial.greeting.stated is None:
        return _ABSENT
    value = getattr(trial.greeting.stated, name)
    return Feature(silent, "default") if value is None else Feature(value, "stated")


_ABSENT: Final = Feature(None, "absent", "MQTT 5 only")

TRIALS: Final[Mapping[str, Callable[[Trial], Awaitable[Feature]]]] = MappingProxyType(
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
"""The trial of each feature, by its name in JSON."""


async def features_of(
    greeting: Greeting, tls_context: ssl.SSLContext | None, quiet_s: float
) -> dict[str, Feature]:
    """Try each feature in turn."""
    trial = Trial(greeting, tls_context, quiet_s)
    return {name: await feature_of(name, trial) for name in TRIALS}


async def feature_of(name: str, trial: Trial) -> Feature:
    """Try the feature of this name."""
    try:
        async with asyncio.timeout(TRIAL_S):
            return await TRIALS[name](trial)
    except CannotRunError as error:
        return Feature(None, "tried", trial.without_address(str(error)))
    except TimeoutError:
        return Feature(None, "tried", f"no answer within {TRIAL_S:g} s")
