"""Client lists of mqttbench (Eclipse Amlen) as scenarios.

A list is a JSON array with one object a client; its fields are those that mqttbench's own parser
knows (perftools/mqttbench, client list version 2):

    version           TCP3 TCP4 TCP5, over WebSocket WS3 WS4 WS5; the number is that of MQTT
    dst, dstPort      the broker; useTLS
    _id, username     password in base64
    publishTopics, subscriptions
                      objects with topicStr, qos, retain; ${COUNT:x-y} in a topic stands for many
    cleanSession      before MQTT 5; in MQTT 5 cleanStart and sessionExpiryIntervalSecs

Rates are not in the list: mqttbench takes them from its command line. A list that is none of our
cases is refused with the first thing that cannot be expressed; what is left out without changing
what is measured is told in `notes`.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from loadgen.errors import ScenarioError
from loadgen.mqtt.topics import filter_matches
from loadgen.workload.scenario import FIELDS, Case, Scenario, build_scenario, to_toml
from loadgen.workload.units import shown

CLIENTS_LIMIT: Final = 10_000_000
TOPIC_LIMIT: Final = 65_535

_VERSIONS: Final[Mapping[str, tuple[str, bool]]] = MappingProxyType(
    {
        "TCP4": ("3.1.1", False),
        "WS4": ("3.1.1", True),
        "TCP5": ("5", False),
        "WS5": ("5", True),
    }
)
_SCHEMES: Final = MappingProxyType(
    {
        (False, False): "mqtt",
        (False, True): "mqtts",
        (True, False): "ws",
        (True, True): "wss",
    }
)
"""By (WebSocket, TLS)."""

_READ: Final = frozenset(
    (
        *("_id", "version", "dst", "dstPort", "useTLS", "username", "password"),
        *("publishTopics", "subscriptions", "cleanSession", "cleanStart"),
        *("sessionExpiryIntervalSecs", "clientCertPath", "clientKeyPath"),
        *("reconnectDelayUSecs", "connectionTimeoutSecs", "lastWillMsg"),
    )
)
_LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "topicAliasMaxIn": "topics are always sent in full",
        "topicAliasMaxOut": "topics are always sent in full",
        "recvMaximum": "a device takes as many messages at once as MQTT allows",
        "maxPktSizeBytes": "a device takes packets of any size that the run has",
        "requestResponseInfo": "nobody asks for it",
        "requestProblemInfo": "nobody asks for it",
        "pingIntervalSecs": "a device sends PINGREQ by its keep_alive",
        "pingTimeoutSecs": "a device sends PINGREQ by its keep_alive",
    }
)
_REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "messageDirPath": "messages of several kinds; a scenario has one size or one payload file",
        "lingerTimeSecs": "clients that leave after a time; see churn and away",
        "lingerMsgsCount": "clients that leave after a number of messages; see churn and away",
        "userProperties": "user properties in CONNECT",
    }
)
_TOPIC_FIELDS: Final = frozenset(("topicStr", "qos", "retain"))
_COUNT: Final = re.compile(r"\$\{COUNT:(\d{1,9})-(\d{1,9})\}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """What a client list became: `toml` is its file, `clients` are identifier, user name and
    password of the first group's devices (for `clients_file`), `notes` one line each."""

    scenario: Scenario
    toml: str
    clients: tuple[tuple[str, str | None, str | None], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Client:
    number: int
    name: str
    version: str
    url: str
    publishes: tuple[str, ...]
    subscribes: tuple[str, ...]
    qos: frozenset[int]
    durable: bool
    login: tuple[str | None, str | None]
    options: Mapping[str, object]


def without_comments(text: str) -> str:
    """The text without comments as in C, which mqttbench allows in its JSON."""
    return re.sub(
        r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/',
        lambda found: found[0] if found[0].startswith('"') else " ",
        text,
        flags=re.DOTALL,
    )


def import_clients(document: object, clients_file: str | None = None) -> ImportedScenario:
    """The scenario of a client list, parsed from JSON.

    With `clients_file`, a path, the scenario names it for the identifiers and credentials of its
    first group. Raises ScenarioError, one line that names what cannot be expressed.
    """
    if not isinstance(document, list) or not document:
        raise ScenarioError("mqttbench: the file holds no list of clients; allowed: a JSON array")
    if len(document) > CLIENTS_LIMIT:
        raise ScenarioError(f"mqttbench: {len(document):,} clients are more than {CLIENTS_LIMIT:,}")
    clients = [_client(number, entry) for number, entry in enumerate(document)]
    case, fields, first, second = _case(clients)
    fields |= _common(clients, case)
    user = _common_user(first, second, clients_file)
    urls = dict.fromkeys(client.url for client in clients)
    fields["broker"] = tuple(_with_user(url, user) for url in urls)
    if clients_file is not None:
        fields["clients_file"] = clients_file
    given = {name: value for name, value in fields.items() if value != FIELDS[name].default}
    scenario = build_scenario(case, None, given)
    lines = [line for line in to_toml(scenario).splitlines() if _name(line) in {"case", *given}]
    return ImportedScenario(
        scenario=scenario,
        toml="\n".join(lines) + "\n",
        clients=tuple((c.name or f"device-{c.number}", *c.login) for c in first),
        notes=tuple(_notes(document, case, first, second, clients_file)),
    )


def _name(line: str) -> str:
    return line.partition(" ")[0]


# One client -------------------------------------------------------------------------------------


def _refuse(number: int, field: str, what: str) -> ScenarioError:
    return ScenarioError(f"mqttbench: client {number}: {field}: {what}")


def _client(number: int, entry: object) -> _Client:
    if not isinstance(entry, Mapping):
        raise ScenarioError(f"mqttbench: client {number} is no JSON object")
    for field, why in _REFUSED.items():
        if entry.get(field):
            raise _refuse(number, field, f"cannot be expressed: {why}")
    for field in entry:
        if field not in _READ and field not in _LEFT_OUT and field not in _REFUSED:
            raise _refuse(number, shown(field, 40), "is no field of a client list")
    version = entry.get("version")
    if not isinstance(version, str) or version not in _VERSIONS:
        raise _refuse(
            number,
            "version",
            f"{shown(version)} cannot be expressed; allowed: TCP4, TCP5, WS4, WS5",
        )
    mqtt, websocket = _VERSIONS[version]
    published, publish_qos = _topics(number, entry, "publishTopics")
    subscribed, subscribe_qos = _topics(number, entry, "subscriptions")
    if published and subscribed:
        raise _refuse(
            number, "publishTopics", "cannot be expressed together with subscriptions of one client"
        )
    for field, topics in (("publishTopics", published), ("subscriptions", subscribed)):
        if len(topics) > 1:
            raise _refuse(
                number, field, f"{len(topics):,} topics cannot be expressed; allowed: one"
            )
    if any(character in topic for topic in published for character in "+#"):
        raise _refuse(number, "publishTopics", "a topic to publish to has no wildcard")
    return _Client(
        number=number,
        name=_text(number, entry, "_id"),
        version=mqtt,
        url=_url(number, entry, websocket),
        publishes=published,
        subscribes=subscribed,
        qos=publish_qos | subscribe_qos,
        durable=_is_durable(number, entry, mqtt),
        login=_login(number, entry),
        options={
            name: entry[name]
            for name in (
                *("clientCertPath", "clientKeyPath", "lastWillMsg"),
                *("reconnectDelayUSecs", "connectionTimeoutSecs"),
            )
            if name in entry
        },
    )


def _text(number: int, entry: Mapping[str, object], field: str) -> str:
    value = entry.get(field, "")
    if not isinstance(value, str) or len(value) > TOPIC_LIMIT:
        raise _refuse(number, field, f"{shown(value)} is no text")
    return value


def _whole(number: int, entry: Mapping[str, object], field: str, most: int) -> int:
    value = entry.get(field, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _refuse(number, field, f"{shown(value)} is no whole number from 0 to {most:,}")
    return value


def _flag(number: int, entry: Mapping[str, object], field: str) -> bool:
    value = entry.get(field, False)
    if not isinstance(value, bool):
        raise _refuse(number, field, f"{shown(value)} is neither true nor false")
    return value


def _url(number: int, entry: Mapping[str, object], websocket: bool) -> str:
    host = _text(number, entry, "dst")
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", host):
        raise _refuse(number, "dst", f"{shown(host)} is no address or name")
    port = _whole(number, entry, "dstPort", 65_535)
    if port == 0:
        raise _refuse(number, "dstPort", "is missing")
    scheme = _SCHEMES[websocket, _flag(number, entry, "useTLS")]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_durable(number: int, entry: Mapping[str, object], mqtt: str) -> bool:
    # Left out, it is false to mqttbench.
    clean = _flag(number, entry, "cleanSession")
    _flag(number, entry, "cleanStart")
    if mqtt == "5":
        return _whole(number, entry, "sessionExpiryIntervalSecs", 0xFFFFFFFF) > 0
    return not clean


def _login(number: int, entry: Mapping[str, object]) -> tuple[str | None, str | None]:
    password = _text(number, entry, "password")
    try:
        plain = base64.b64decode(password, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _refuse(number, "password", "is not base64 of text") from None
    return _text(number, entry, "username") or None, plain or None


def _topics(
    number: int, entry: Mapping[str, object], field: str
) -> tuple[tuple[str, ...], frozenset[int]]:
    """Topics of one client with ${COUNT} filled in, and their QoS."""
    listed = entry.get(field) or []
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise _refuse(number, field, "is no list of topics")
    topics: list[str] = []
    qos: set[int] = set()
    for item in listed:
        for name, value in item.items():
            if name not in _TOPIC_FIELDS and value:
                raise _refuse(number, field, f"{shown(name, 40)} cannot be expressed")
        if item.get("retain") and field == "publishTopics":
            raise _refuse(number, field, "retain cannot be expressed: messages are not retained")
        qos.add(_whole(number, item, "qos", 2))
        topics += _counted(number, field, _text(number, item, "topicStr"))
    return tuple(topics), frozenset(qos)


def _counted(number: int, field: str, topic: str) -> Iterable[str]:
    found = _COUNT.search(topic)
    if not topic:
        raise _refuse(number, field, "a topic without topicStr")
    if found is None:
        return (topic,)
    first, last = int(found[1]), int(found[2])
    if last > first:
        raise _refuse(number, field, f"{shown(topic)} is several topics; allowed: one")
    return (topic[: found.start()] + str(first) + topic[found.end() :],)


# All clients ------------------------------------------------------------------------------------

_Choice = tuple[Case, dict[str, object], Sequence[_Client], Sequence[_Client]]


def _same(clients: Iterable[_Client], field: str, value: Callable[[_Client], object]) -> object:
    """What all clients have alike; ScenarioError names two that differ."""
    first: tuple[int, object] | None = None
    for client in clients:
        own = value(client)
        if first is None:
            first = client.number, own
        elif own != first[1]:
            raise ScenarioError(
                f"mqttbench: {field} cannot be expressed: clients {first[0]} and {client.number} "
                "differ in it; allowed: the same in all"
            )
    return None if first is None else first[1]


def _case(clients: Sequence[_Client]) -> _Choice:
    """Which case the topics make, its own fields, and its two groups of clients."""
    senders = [client for client in clients if client.publishes]
    readers = [client for client in clients if client.subscribes]
    idle = [client for client in clients if not client.publishes and not client.subscribes]
    if idle and (senders or readers):
        raise ScenarioError(
            f"mqttbench: client {idle[0].number} only connects while others publish or subscribe, "
            "which cannot be expressed"
        )
    if not senders:
        return _connburst(clients, readers)
    if not readers:
        raise ScenarioError(
            "mqttbench: nobody subscribes, which cannot be expressed: each message is accounted for"
        )
    _same(clients, "qos", lambda client: client.qos)
    sent = Counter(client.publishes[0] for client in senders)
    wild = [client for client in readers if _is_wild(client.subscribes[0])]
    if wild:
        return _fanin(senders, readers, sent)
    shares = [client for client in readers if client.subscribes[0].startswith("$share/")]
    if shares:
        return _queue(senders, readers, sent)
    return _exact(senders, readers, sent)


def _connburst(clients: Sequence[_Client], readers: Sequence[_Client]) -> _Choice:
    fields: dict[str, object] = {"devices": len(clients)}
    if readers:
        topic = _same(readers, "topicStr of subscriptions", lambda client: client.subscribes[0])
        if _is_wild(str(topic)) or str(topic).startswith("$"):
            raise ScenarioError(
                f"mqttbench: subscription {shown(topic)} without publishers cannot be expressed"
            )
        fields |= {"subscribe": True, "qos": _qos(readers)}
    return "connburst", fields, clients, ()


def _fanin(
    senders: Sequence[_Client], readers: Sequence[_Client], sent: Mapping[str, int]
) -> _Choice:
    if len(readers) > 1:
        raise ScenarioError(
            f"mqttbench: {len(readers):,} subscribers, some with wildcards, cannot be expressed; "
            "allowed: one wildcard subscriber to all, or subscribers without wildcards"
        )
    pattern = readers[0].subscribes[0]
    if pattern.startswith("$"):
        raise ScenarioError(f"mqttbench: subscription {shown(pattern)} cannot be expressed")
    _one_topic_each(sent)
    missed = next((c for c in senders if not filter_matches(pattern, c.publishes[0])), None)
    if missed is not None:
        raise ScenarioError(
            f"mqttbench: subscription {shown(pattern)} does not cover the topic of client "
            f"{missed.number}, which cannot be expressed"
        )
    return "fanin", {"devices": len(senders)} | _durable(senders, readers), senders, readers


def _one_topic_each(sent: Mapping[str, int]) -> None:
    common = next((topic for topic, count in sent.items() if count > 1), None)
    if common is not None:
        raise ScenarioError(
            f"mqttbench: {sent[common]:,} publishers of {shown(common)} cannot be expressed here; "
            "allowed: a topic for each"
        )


def _queue(
    senders: Sequence[_Client], readers: Sequence[_Client], sent: Mapping[str, int]
) -> _Choice:
    names = Counter(client.subscribes[0] for client in readers)
    topics: dict[str, int] = {}
    for name, count in names.items():
        share, _, topic = name.removeprefix("$share/").partition("/")
        if not name.startswith("$share/") or not share or topic in topics:
            raise ScenarioError(
                f"mqttbench: subscription {shown(name)} beside shared ones cannot be expressed"
            )
        topics[topic] = count
    _same_topics(sent, topics)
    fields = {
        "queues": len(topics),
        "producers": _even(sent, "publishers"),
        "consumers": _even(topics, "subscribers"),
        "durable": _same(readers, "cleanSession", lambda client: client.durable),
    }
    return "queue", fields, senders, readers


def _exact(
    senders: Sequence[_Client], readers: Sequence[_Client], sent: Mapping[str, int]
) -> _Choice:
    """Subscribers that name their topic: fanout, or pairs with durable subscribers."""
    read = Counter(client.subscribes[0] for client in readers)
    _same_topics(sent, read)
    ratio = _even(read, "subscribers")
    producers = _even(sent, "publishers")
    durable = _same(readers, "cleanSession", lambda client: client.durable)
    if ratio == 1 and durable and _qos(readers) > 0:
        fields: dict[str, object] = {"pairs": len(read), "producers": producers}
        return "persistent", fields, senders, readers
    _one_topic_each(sent)
    fields = {"topics": len(read), "ratio": ratio} | _durable(senders, readers)
    return "fanout", fields, senders, readers


def _durable(senders: Sequence[_Client], readers: Sequence[_Client]) -> dict[str, object]:
    if _qos(readers) == 0:
        return {}
    return {"durable": _same([*senders, *readers], "cleanSession", lambda client: client.durable)}


def _same_topics(sent: Mapping[str, int], read: Mapping[str, int]) -> None:
    for topic in sent.keys() ^ read.keys():
        who = "no subscriber" if topic in sent else "no publisher"
        raise ScenarioError(f"mqttbench: topic {shown(topic)} has {who}, which cannot be expressed")


def _even(counts: Mapping[str, int], what: str) -> int:
    least, most = min(counts.values()), max(counts.values())
    if least != most:
        raise ScenarioError(
            f"mqttbench: topics with {least:,} and with {most:,} {what} cannot be expressed; "
            "allowed: the same number each"
        )
    return most


def _qos(clients: Sequence[_Client]) -> int:
    both = _same(clients, "qos", lambda client: client.qos)
    assert isinstance(both, frozenset)
    if len(both) != 1:
        raise ScenarioError(
            f"mqttbench: client {clients[0].number}: several qos cannot be expressed"
        )
    return int(next(iter(both)))


def _common(clients: Sequence[_Client], case: Case) -> dict[str, object]:
    """Fields that every case has, alike in all clients."""
    fields: dict[str, object] = {"mqtt": _same(clients, "version", lambda client: client.version)}
    _same(clients, "useTLS or WebSocket", lambda client: client.url.partition(":")[0])
    if case != "connburst":
        fields["qos"] = _qos(clients)
    for name, field in (("clientCertPath", "tls_certificate"), ("clientKeyPath", "tls_key")):
        value = _same(clients, name, lambda client, name=name: client.options.get(name))  # type: ignore[misc]
        if value:
            fields[field] = value
    delay = _same(clients, "reconnectDelayUSecs", _option("reconnectDelayUSecs"))
    if delay:
        fields["reconnect"] = max(_number("reconnectDelayUSecs", delay) / 1e6, 0.01)
    timeout = _same(clients, "connectionTimeoutSecs", _option("connectionTimeoutSecs"))
    if timeout:
        fields["connect_timeout"] = _number("connectionTimeoutSecs", timeout)
    willing = [client for client in clients if client.options.get("lastWillMsg")]
    if willing:
        raise _refuse(
            willing[0].number, "lastWillMsg", "cannot be expressed; give the topic with --will"
        )
    return fields


def _option(name: str) -> Callable[[_Client], object]:
    return lambda client: client.options.get(name)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ScenarioError(f"mqttbench: {name}: {shown(value)} is no number")
    return float(value)


def _common_user(
    first: Sequence[_Client], second: Sequence[_Client], clients_file: str | None
) -> str | None:
    """The user of broker's URLs: that of all devices without a row in the file of clients."""
    others = second if clients_file is not None else [*first, *second]
    logins = {client.login for client in others}
    if len(logins) > 1 and clients_file is None:
        raise ScenarioError(
            "mqttbench: username: clients differ in it; give --clients FILE to write them to"
        )
    _same(others, "username of subscribers", lambda client: client.login)
    return next(iter(logins))[0] if logins else None


def _with_user(url: str, user: str | None) -> str:
    scheme, _, rest = url.partition("://")
    return url if user is None else f"{scheme}://{quote(user, safe='')}@{rest}"


def _notes(
    document: Sequence[Mapping[str, object]],
    case: Case,
    first: Sequence[_Client],
    second: Sequence[_Client],
    clients_file: str | None,
) -> Iterable[str]:
    named = {name for entry in document for name in entry}
    if case != "connburst":
        yield "rate: mqttbench takes it from its command line; here it is the case's default"
        yield "publishTopics: topics are loadgen's own, as many and as far apart"
    for name in sorted(named & _LEFT_OUT.keys()):
        yield f"{name}: left out, {_LEFT_OUT[name]}"
    if clients_file is None and "_id" in named:
        yield "_id: left out; keep them with --clients FILE"
    elif second and any(client.name for client in second):
        yield "_id: kept for publishers, subscribers have loadgen's own"
    others = second if clients_file is not None else first
    if others and others[0].login[1] is not None:
        yield "password: left out of broker's URLs; add it there, as mqtt://user:password@host"


def _is_wild(topic: str) -> bool:
    return "+" in topic or "#" in topic
