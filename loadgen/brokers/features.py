"""The features of a broker, each tried by clients that use it, or stated in its MQTT 5 CONNACK."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

from loadgen.brokers.ask import Greeting, client_identifier
from loadgen.brokers.rehearsal import ClientPool, PoolClient, Wanted, rehearse
from loadgen.errors import CannotRunError
from loadgen.mqtt.packets import Publish, Will
from loadgen.mqtt.properties import Properties
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.plan import BrokerNeeds
from loadgen.plan.rehearsal import ASKED, Publication, Role
from loadgen.sentences import BROKER_TEXT, Sentence, Text

TRIAL_S: Final = 10.0
QUIET_S: Final = 0.7  # a missing packet does not come any more after this time without any
_KEEP_ALIVES_S: Final = (60, 50_000)
_FOREVER_S: Final = 0xFFFF_FFFF
_PAYLOADS_BYTES: Final = (256 << 10, 64 << 10, 16 << 10, 4 << 10)
"""The largest is the most that a scenario allows."""
_SMALL_BYTES: Final = 32

Basis = Literal["tried", "stated", "default", "absent"]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a broker and the basis of this knowledge.

    It was `tried` or `stated`, is the `default` of MQTT 5 for a silent broker, or is `absent` from
    the versions that the broker speaks. `value` is None if it is absent, unknown or `unlimited`.
    """

    value: bool | int | None
    basis: Basis
    detail: str = ""
    unlimited: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    greeting: Greeting
    pool: ClientPool

    @property
    def stated(self) -> Properties:
        assert self.greeting.stated is not None
        return self.greeting.stated

    async def join(self, **fields: Any) -> PoolClient:
        """Connect a client of the newest version that the broker speaks."""
        return await self.pool.join(self.greeting.endpoint, self.greeting.connect(**fields))

    async def lacks(self, *roles: Role) -> Text | None:
        """Return the first thing that the broker lacks for these roles, else None."""
        wanted = Wanted(
            roles=roles,
            connects=[self.greeting.connect() for _ in roles],
            endpoints=(self.greeting.endpoint,),
            separate=False,
            needs=BrokerNeeds(qos_option="QoS {highest}"),
            tls_context=self.pool.tls_context,
            answer_s=TRIAL_S,
            return_s=TRIAL_S,
            quiet_s=self.pool.quiet_s,
        )
        return next(iter((await rehearse(wanted)).lacks), None)


def anonymous(text: str) -> str:
    """Return a sentence about a broker without the broker's address."""
    if not isinstance(text, Text) or text.code not in BROKER_TEXT:
        return text
    return Sentence(BROKER_TEXT.package, text.code)(**{**text.values, "where": "it"})


def _topic() -> str:
    return client_identifier("asks")


def _role(
    *filters: str, qos: int = 0, sends: Publication | None = None, lasting: bool = False
) -> Role:
    group = DeviceGroup("the probe", 1, clean_start=not lasting)
    return Role(group, 0, 0, filters, qos, () if sends is None else (sends,))


async def _works(roles: Callable[[str], Sequence[Role]], trial: Trial) -> Feature:
    """Return a feature that is present if the broker supports all that these roles need."""
    lack = await trial.lacks(*roles(_topic()))
    return Feature(lack is None, "tried", anonymous(lack or ""))


async def _most(tried: Sequence[tuple[int, int, int]], detail: str, trial: Trial) -> Feature:
    """Return the first (value, QoS, payload bytes) of these that works."""
    for value, qos, size_bytes in tried:
        lack = await trial.lacks(_echoing(_topic(), qos=qos, size_bytes=size_bytes))
        if lack is None:
            return Feature(value, "tried", detail)
        detail = anonymous(lack)
    return Feature(None, "tried", detail)


def _echoing(
    topic: str, *filters: str, qos: int = 0, size_bytes: int = _SMALL_BYTES, retain: bool = False
) -> Role:
    """Return a device that publishes to a topic, and subscribes to it or to filters."""
    return _role(*(filters or (topic,)), qos=qos, sends=Publication(topic, qos, size_bytes, retain))


async def _wills(trial: Trial) -> Feature:
    topic = _topic()
    reader = await trial.join()
    if not await trial.pool.subscribed(reader, (topic,), 0, TRIAL_S):
        return Feature(None, "tried", BROKER_TEXT.WILL_NOT_GRANTED())
    leaving = await trial.join(will=Will(topic, ASKED))
    leaving.connection.abort()
    came = await trial.pool.until(lambda: bool(reader.inbox), TRIAL_S)
    return Feature(came, "tried", "" if came else BROKER_TEXT.NO_WILL())


async def _topic_aliases(trial: Trial) -> Feature:
    maximum = trial.stated.topic_alias_maximum
    if not maximum:
        return Feature(0, "default" if maximum is None else "stated")
    topic, alias = _topic(), Properties(topic_alias=1)
    client = await trial.join()
    await trial.pool.subscribed(client, (topic,), 0, TRIAL_S)
    for name in (topic, ""):
        client.publish(Publish(name, ASKED, properties=alias))
    came = await trial.pool.until(lambda: len(client.inbox) == 2, TRIAL_S)
    basis: Basis = "tried" if came else "stated"
    return Feature(maximum, basis, "" if came else BROKER_TEXT.NO_ALIAS())


async def _subscription_identifiers(trial: Trial) -> Feature:
    if trial.stated.subscription_identifier_available == 0:
        return Feature(False, "stated")
    topic = _topic()
    client = await trial.join()
    identified = Properties(subscription_identifier=(7,))
    await trial.pool.subscribed(client, (topic,), 0, TRIAL_S, identified)
    client.publish(Publish(topic, ASKED))
    await trial.pool.until(lambda: bool(client.inbox or client.ended), TRIAL_S)
    right = [message.properties.subscription_identifier for message in client.inbox] == [(7,)]
    return Feature(right, "tried", "" if right else BROKER_TEXT.NO_IDENTIFIER())


async def _keep_alive(trial: Trial) -> Feature:
    short_s, long_s = [
        (await trial.join(keep_alive=s)).connack.properties.server_keep_alive
        for s in _KEEP_ALIVES_S
    ]
    if (short_s, long_s) == _KEEP_ALIVES_S:
        return Feature(None, "tried", BROKER_TEXT.ECHOED_KEEP_ALIVE(), unlimited=True)
    if long_s is None:
        least = BROKER_TEXT.LONG_KEEP_ALIVE(keep_alive_s=_KEEP_ALIVES_S[1])
        return Feature(None, "tried", least, unlimited=True)
    return Feature(long_s, "tried")


async def _session_expiry(trial: Trial) -> Feature:
    name, lasting = client_identifier("probe"), Properties(session_expiry_interval=_FOREVER_S)
    first = await trial.join(client_id=name, properties=lasting)
    await first.leave()
    await trial.join(client_id=name)  # which ends it
    most_s = first.connack.properties.session_expiry_interval
    if most_s in (None, _FOREVER_S):
        return Feature(None, "tried", BROKER_TEXT.ENDLESS_SESSION(), unlimited=True)
    return Feature(most_s, "tried")


async def _stated(name: str, silent: int | None, trial: Trial) -> Feature:
    """Return a limit of CONNACK, `silent` if CONNACK does not have it."""
    value = getattr(trial.stated, name)
    if value is None:
        return Feature(silent, "default", unlimited=silent is None)
    return Feature(value, "stated")


TRIALS: Final[Mapping[str, Callable[[Trial], Awaitable[Feature]]]] = MappingProxyType(
    {
        "receive_maximum": partial(_stated, "receive_maximum", 65_535),
        "maximum_qos": partial(_most, [(qos, qos, _SMALL_BYTES) for qos in (2, 1, 0)], ""),
        "maximum_packet_size_bytes": partial(_stated, "maximum_packet_size", None),
        "payload_bytes": partial(
            _most, [(n, 0, n) for n in _PAYLOADS_BYTES], BROKER_TEXT.NO_LARGER()
        ),
        "topic_alias_maximum": _topic_aliases,
        "server_keep_alive_s": _keep_alive,
        "retain_available": partial(_works, lambda t: [_echoing(t, retain=True)]),
        "wildcard_subscription_available": partial(
            _works, lambda t: [_echoing(f"{t}/a/x", f"{t}/a/+"), _echoing(f"{t}/b/x", f"{t}/b/#")]
        ),
        "subscription_identifier_available": _subscription_identifiers,
        "shared_subscription_available": partial(
            _works, lambda t: [_echoing(t, f"$share/{t}/{t}"), _role(f"$share/{t}/{t}")]
        ),
        "session_available": partial(
            _works,
            lambda t: [
                _role(t, qos=1, lasting=True),
                _role(sends=Publication(t, 1, _SMALL_BYTES)),
            ],
        ),
        "session_expiry_s": _session_expiry,
        "will_available": _wills,
    }
)
"""The trial of each feature, by its name in JSON."""
_OF_MQTT_5: Final = (
    *("receive_maximum", "maximum_packet_size_bytes", "topic_alias_maximum"),
    *("server_keep_alive_s", "subscription_identifier_available", "session_expiry_s"),
)


async def features_of(
    greeting: Greeting, tls_context: ssl.SSLContext | None, quiet_s: float
) -> dict[str, Feature]:
    return {name: await feature_of(name, greeting, tls_context, quiet_s) for name in TRIALS}


async def feature_of(
    name: str, greeting: Greeting, tls_context: ssl.SSLContext | None, quiet_s: float
) -> Feature:
    if name in _OF_MQTT_5 and greeting.stated is None:
        return Feature(None, "absent", BROKER_TEXT.MQTT_5_ONLY())
    try:
        async with asyncio.timeout(TRIAL_S), ClientPool(tls_context, quiet_s=quiet_s) as pool:
            return await TRIALS[name](Trial(greeting, pool))
    except CannotRunError as error:
        return Feature(None, "tried", anonymous(error.args[0]))
    except TimeoutError:
        return Feature(None, "tried", BROKER_TEXT.NO_TRIAL_ANSWER(trial_s=TRIAL_S))
