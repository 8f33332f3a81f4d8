"""Client lists of mqttbench (Eclipse Amlen) as scenarios.

A list is a JSON array with one object a client; its fields are those that mqttbench's own parser
knows (perftools/mqttbench, client list version 2):

    version           TCP3 TCP4 TCP5, over WebSocket WS3 WS4 WS5; the number is that of MQTT
    dst, dstPort      the broker; useTLS
    _id, username     password in base64
    publishTopics, subscriptions
                      objects with topicStr, qos, retain; ${COUNT:x-y} in a topic stands for many
    cleanSession      before MQTT 5; in MQTT 5 cleanStart and sessionExpiryIntervalSecs

Rates are not in the list: mqttbench takes them from its command line. A list that fits
no case is refused with the first thing that cannot be expressed. `notes` say what is left out
without changing what is measured.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from loadgen.cases.registry import CASES, build_scenario
from loadgen.errors import ScenarioError
from loadgen.mqtt.topics import filter_matches, is_wild, split_shared
from loadgen.plan.scenario import Scenario, to_toml
from loadgen.plan.units import shown

CLIENTS_LIMIT: Final = 10_000_000
TOPIC_LIMIT: Final = 65_535

_VERSIONS: Final = {
    "TCP3": ("3.1", "mqtt"),
    "WS3": ("3.1", "ws"),
    "TCP4": ("3.1.1", "mqtt"),
    "WS4": ("3.1.1", "ws"),
    "TCP5": ("5", "mqtt"),
    "WS5": ("5", "ws"),
}
_READ: Final = frozenset(
    (
        *("_id", "version", "dst", "dstPort", "useTLS", "username", "password"),
        *("publishTopics", "subscriptions", "cleanSession", "cleanStart"),
        *("sessionExpiryIntervalSecs", "lastWillMsg"),
        *("clientCertPath", "clientKeyPath", "reconnectDelayUSecs", "connectionTimeoutSecs"),
    )
)
_LEFT_OUT: Final = {
    "topicAliasMaxIn": "topics are always sent in full",
    "topicAliasMaxOut": "topics are always sent in full",
    "recvMaximum": "a device takes as many messages at once as MQTT allows",
    "maxPktSizeBytes": "a device takes packets of any size that the run has",
    "requestResponseInfo": "no device requests it",
    "requestProblemInfo": "no device requests it",
    "pingIntervalSecs": "a device sends PINGREQ by its keep_alive",
    "pingTimeoutSecs": "a device sends PINGREQ by its keep_alive",
}
_REFUSED: Final = {
    "messageDirPath": "messages of several kinds; a scenario has one size or one payload file",
    "lingerTimeSecs": "clients that leave after a time; see churn and away",
    "lingerMsgsCount": "clients that leave after a number of messages; see churn and away",
    "userProperties": "user properties in CONNECT",
}
_KNOWN: Final = _READ | _LEFT_OUT.keys() | _REFUSED.keys()
_UNSAID: Final[Mapping[str, object]] = {"qos": 0, "mqtt": "3.1.1", "durable": False}
"""Defaults of a client's fields; other values are written down."""
_TOPIC_FIELDS: Final = frozenset(("topicStr", "qos", "retain"))
_CANNOT: Final = "cannot be expressed"
_COUNT: Final = re.compile(r"\$\{COUNT:(\d{1,9})-(\d{1,9})\}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """The result of an import: `toml` is its file, `clients` are identifier, user name and
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
    publishes: str | None
    subscribes: str | None
    qos: int | None
    durable: bool
    login: tuple[str | None, str | None]
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The case that the topics make, its fields, and its two groups of clients."""

    case: str
    fields: dict[str, object]
    first: Sequence[_Client]
    second: Sequence[_Client] = ()


def without_comments(text: str) -> str:
    """Remove comments as in C, which mqttbench allows in its JSON."""
    return re.sub(
        r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/',
        lambda found: found[0] if found[0].startswith('"') else " ",
        text,
        flags=re.DOTALL,
    )


def import_clients(document: object, clients_file: str | None = None) -> ImportedScenario:
    """Return the scenario of a client list, parsed from JSON.

    With `clients_file`, a path, the scenario names it for the identifiers and credentials of its
    first group. Raises ScenarioError, one line that names what cannot be expressed.
    """
    if not isinstance(document, list) or not document:
        raise _unlike("the file does not hold a list of clients; allowed: a JSON array")
    if len(document) > CLIENTS_LIMIT:
        raise _unlike(f"the list is too long: {len(document):,}, at most {CLIENTS_LIMIT:,}")
    clients = [_client(number, entry) for number, entry in enumerate(document)]
    choice = _case(clients)
    fields = choice.fields | _common(clients, choice.case)
    user = _common_user(choice, clients_file)
    fields["broker"] = tuple(_with_user(url, user) for url in dict.fromkeys(c.url for c in clients))
    if clients_file is not None:
        fields["clients_file"] = clients_file
    known = CASES[choice.case].scenario.fields()
    fields_given = {
        name: value
        for name, value in fields.items()
        if value != known[name].default or value != _UNSAID.get(name, value)
    }
    scenario = build_scenario(choice.case, None, fields_given)
    return ImportedScenario(
        scenario=scenario,
        toml=to_toml(scenario, {"case", *fields_given}),
        clients=tuple((c.name or f"device-{c.number}", *c.login) for c in choice.first),
        notes=tuple(_notes(clients, choice, clients_file)),
    )


# One client -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object of the list, or one topic in it, `field` being the name for messages."""

    number: int
    values: Mapping[str, object]
    field: str = ""

    def refusal(self, field: str, what: str) -> ScenarioError:
        return _unlike(f"client {self.number}: {self.field or field}: {what}")

    def text(self, field: str) -> str:
        value = self.values.get(field, "")
        if not isinstance(value, str) or len(value) > TOPIC_LIMIT:
            raise self.refusal(field, f"{shown(value)} is not text")
        return value

    def integer(self, field: str, most: int) -> int:
        value = self.values.get(field, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self.refusal(field, f"{shown(value)} is not a whole number from 0 to {most:,}")
        return value

    def flag(self, field: str) -> bool:
        value = self.values.get(field, False)
        if not isinstance(value, bool):
            raise self.refusal(field, f"{shown(value)} is neither true nor false")
        return value


def _client(number: int, values: object) -> _Client:
    if not isinstance(values, Mapping):
        raise _unlike(f"client {number} is not a JSON object")
    entry = _Entry(number, values)
    for field, value in values.items():
        if field in _REFUSED and value:
            raise entry.refusal(field, f"{_CANNOT}: {_REFUSED[field]}")
        if field not in _KNOWN:
            raise entry.refusal(shown(field, 40), "is not a field of a client list")
    version = values.get("version")
    if not isinstance(version, str) or version not in _VERSIONS:
        raise entry.refusal(
            "version", f"{shown(version)} {_CANNOT}; allowed: {', '.join(_VERSIONS)}"
        )
    mqtt, scheme = _VERSIONS[version]
    published, subscribed = _topic(entry, "publishTopics"), _topic(entry, "subscriptions")
    if published and subscribed:
        raise entry.refusal("publishTopics", f"{_CANNOT} together with subscriptions of one client")
    if published and is_wild(published[0]):
        raise entry.refusal("publishTopics", "a topic to publish to has no wildcard")
    topic, qos = published or subscribed or (None, None)
    # Left out, it is false to mqttbench.
    clean = entry.flag("cleanSession")
    entry.flag("cleanStart")
    expires = mqtt == "5" and entry.integer("sessionExpiryIntervalSecs", 0xFFFFFFFF) > 0
    return _Client(
        number=number,
        name=entry.text("_id"),
        version=mqtt,
        url=_url(entry, scheme),
        publishes=topic if published else None,
        subscribes=topic if subscribed else None,
        qos=qos,
        durable=expires if mqtt == "5" else not clean,
        login=_login(entry),
        values=values,
    )


def _url(entry: _Entry, scheme: str) -> str:
    host = entry.text("dst")
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", host):
        raise entry.refusal("dst", f"{shown(host)} is not an address or name")
    port = entry.integer("dstPort", 65_535)
    if port == 0:
        raise entry.refusal("dstPort", "is missing")
    encrypted = "s" if entry.flag("useTLS") else ""
    return f"{scheme}{encrypted}://{f'[{host}]' if ':' in host else host}:{port}"


def _login(entry: _Entry) -> tuple[str | None, str | None]:
    try:
        password = base64.b64decode(entry.text("password"), validate=True).decode()
    except (binascii.Error, ValueError):
        raise entry.refusal("password", "is not base64 of text") from None
    return entry.text("username") or None, password or None


def _topic(entry: _Entry, field: str) -> tuple[str, int] | None:
    """Return the only topic of a client with ${COUNT} filled in, and its QoS; None for none."""
    listed = entry.values.get(field) or []
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise entry.refusal(field, "is not a list of topics")
    found = [_one_topic(_Entry(entry.number, values, field)) for values in listed]
    if len(found) > 1:
        raise entry.refusal(field, f"several topics ({len(found):,}) {_CANNOT}; use one")
    return found[0] if found else None


def _one_topic(item: _Entry) -> tuple[str, int]:
    for name, value in item.values.items():
        if name not in _TOPIC_FIELDS and value:
            raise item.refusal(name, f"{shown(name, 40)} {_CANNOT}")
    if item.values.get("retain") and item.field == "publishTopics":
        raise item.refusal("retain", f"retain {_CANNOT}: messages are not retained")
    qos, topic = item.integer("qos", 2), item.text("topicStr")
    if not topic:
        raise item.refusal("topicStr", "a topic without topicStr")
    found = _COUNT.search(topic)
    if found is not None and int(found[2]) > int(found[1]):
        raise item.refusal("topicStr", f"{shown(topic)} is several topics; allowed: one")
    return _COUNT.sub(lambda count: str(int(count[1])), topic, count=1), qos


# All clients ------------------------------------------------------------------------------------


def _unlike(what: str) -> ScenarioError:
    """Return the error for a list that no case can express."""
    return ScenarioError(f"mqttbench: {what}")


def _same(clients: Sequence[_Client], field: str, value: Callable[[_Client], Any]) -> Any:
    """Return the fields that all clients share; ScenarioError names two that differ."""
    for client in clients:
        if value(client) != value(clients[0]):
            raise _unlike(
                f"{field} {_CANNOT}: clients {clients[0].number} and {client.number} differ in it; "
                "allowed: the same in all"
            )
    return value(clients[0]) if clients else None


def _case(clients: Sequence[_Client]) -> _Choice:
    senders = [client for client in clients if client.publishes]
    readers = [client for client in clients if client.subscribes]
    idle = [client for client in clients if not client.publishes and not client.subscribes]
    if idle and (senders or readers):
        raise _unlike(
            f"client {idle[0].number} only connects while others publish or subscribe, "
            f"which {_CANNOT}"
        )
    if not senders:
        return _Choice("connburst", _connburst(clients, readers), clients)
    if not readers:
        raise _unlike(f"no client subscribes, which {_CANNOT}: each message is accounted for")
    _qos(clients)
    sent = Counter(client.publishes or "" for client in senders)
    read = Counter(client.subscribes or "" for client in readers)
    if any(map(is_wild, read)):
        return _Choice("fanin", _fanin(senders, readers, sent), senders, readers)
    if any(topic.startswith("$share/") for topic in read):
        return _Choice("queue", _queue(readers, sent, read), senders, readers)
    return _exact(senders, readers, sent, read)


def _connburst(clients: Sequence[_Client], readers: Sequence[_Client]) -> dict[str, object]:
    fields: dict[str, object] = {"devices": len(clients)}
    if readers:
        topic = _same(readers, "topicStr of subscriptions", lambda client: client.subscribes)
        if is_wild(topic) or topic.startswith("$"):
            raise _unlike(f"subscription {shown(topic)} without publishers {_CANNOT}")
        fields |= {"subscribe": True, "qos": _qos(readers)}
    return fields


def _fanin(
    senders: Sequence[_Client], readers: Sequence[_Client], sent: Mapping[str, int]
) -> dict[str, object]:
    if len(readers) > 1:
        raise _unlike(
            f"several subscribers ({len(readers):,}), some with wildcards, {_CANNOT}; use one "
            "wildcard subscriber to all, or subscribers without wildcards"
        )
    pattern = readers[0].subscribes or ""
    if pattern.startswith("$"):
        raise _unlike(f"subscription {shown(pattern)} {_CANNOT}")
    _one_topic_each(sent)
    missed = next((c for c in senders if not filter_matches(pattern, c.publishes or "")), None)
    if missed is not None:
        raise _unlike(
            f"subscription {shown(pattern)} does not cover the topic of client {missed.number}, "
            f"which {_CANNOT}"
        )
    return {"devices": len(senders)} | _durable([*senders, *readers])


def _one_topic_each(sent: Mapping[str, int]) -> None:
    common = next((topic for topic, count in sent.items() if count > 1), None)
    if common is not None:
        raise _unlike(
            f"several publishers ({sent[common]:,}) of {shown(common)} {_CANNOT} here; use a "
            "topic for each"
        )


def _queue(
    readers: Sequence[_Client], sent: Mapping[str, int], read: Mapping[str, int]
) -> dict[str, object]:
    topics: dict[str, int] = {}
    for name, count in read.items():
        share, topic = split_shared(name)
        if share is None or topic in topics:
            raise _unlike(f"subscription {shown(name)} next to shared ones {_CANNOT}")
        topics[topic] = count
    _same_topics(sent, topics)
    return {
        "queues": len(topics),
        "producers": _even(sent, "publishers"),
        "consumers": _even(topics, "subscribers"),
        "durable": _alike_durable(readers),
    }


def _exact(
    senders: Sequence[_Client],
    readers: Sequence[_Client],
    sent: Mapping[str, int],
    read: Mapping[str, int],
) -> _Choice:
    """Return subscribers that name their topic: fanout, or pairs with durable subscribers."""
    _same_topics(sent, read)
    ratio = _even(read, "subscribers")
    producers = _even(sent, "publishers")
    if ratio == 1 and _alike_durable(readers) and _qos(readers) > 0:
        fields: dict[str, object] = {"pairs": len(read), "producers": producers}
        return _Choice("persistent", fields, senders, readers)
    _one_topic_each(sent)
    fields = {"topics": len(read), "ratio": ratio} | _durable([*senders, *readers])
    return _Choice("fanout", fields, senders, readers)


def _durable(clients: Sequence[_Client]) -> dict[str, object]:
    return {"durable": _alike_durable(clients)} if _qos(clients) else {}


def _alike_durable(clients: Sequence[_Client]) -> bool:
    return bool(_same(clients, "cleanSession", lambda client: client.durable))


def _same_topics(sent: Mapping[str, int], read: Mapping[str, int]) -> None:
    for topic in sent.keys() ^ read.keys():
        who = "no subscriber" if topic in sent else "no publisher"
        raise _unlike(f"topic {shown(topic)} has {who}, which {_CANNOT}")


def _even(counts: Mapping[str, int], what: str) -> int:
    least, most = min(counts.values()), max(counts.values())
    if least != most:
        raise _unlike(
            f"topics with {least:,} and with {most:,} {what} {_CANNOT}; allowed: the same number "
            "each"
        )
    return most


def _qos(clients: Sequence[_Client]) -> int:
    return int(_same(clients, "qos", lambda client: client.qos))


def _common(clients: Sequence[_Client], case: str) -> dict[str, object]:
    """Return fields that every case has, alike in all clients."""
    willing = next((client for client in clients if client.values.get("lastWillMsg")), None)
    if willing is not None:
        raise _unlike(f"client {willing.number}: lastWillMsg: {_CANNOT}; give it with --will")
    fields: dict[str, object] = {"mqtt": _same(clients, "version", lambda client: client.version)}
    _same(clients, "useTLS or WebSocket", lambda client: client.url.partition(":")[0])
    if case != "connburst":
        fields["qos"] = _qos(clients)
    for option, field, converted in (
        ("clientCertPath", "tls_certificate", None),
        ("clientKeyPath", "tls_key", None),
        ("reconnectDelayUSecs", "reconnect", lambda us: max(us / 1e6, 0.01)),
        ("connectionTimeoutSecs", "connect_timeout", float),
    ):
        value = _same(clients, option, lambda client, option=option: client.values.get(option))  # type: ignore[misc]
        if value:
            fields[field] = value if converted is None else converted(_number(option, value))
    return fields


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise _unlike(f"{name}: {shown(value)} is not a number")
    return float(value)


def _common_user(choice: _Choice, clients_file: str | None) -> str | None:
    """Return the user of broker's URLs: that of all devices not in the file of clients."""
    others = [*(choice.first if clients_file is None else ()), *choice.second]
    if clients_file is None and len({client.login for client in others}) > 1:
        raise _unlike("username: clients differ in it; give --clients FILE to write them to")
    login = _same(others, "username of subscribers", lambda client: client.login)
    return None if login is None else login[0]


def _with_user(url: str, user: str | None) -> str:
    scheme, _, rest = url.partition("://")
    return url if user is None else f"{scheme}://{quote(user, safe='')}@{rest}"


def _notes(clients: Sequence[_Client], choice: _Choice, clients_file: str | None) -> Iterable[str]:
    named = {name for client in clients for name in client.values}
    if choice.case != "connburst":
        yield "rate: mqttbench takes it from its command line; here it is the case's default"
        yield "publishTopics: topics are loadgen's own, as many and as far apart"
    for name in sorted(named & _LEFT_OUT.keys()):
        yield f"{name}: left out, {_LEFT_OUT[name]}"
    if clients_file is None and "_id" in named:
        yield "_id: left out; keep them with --clients FILE"
    elif any(client.name for client in choice.second):
        yield "_id: kept for publishers, subscribers have loadgen's own"
    others = choice.first if clients_file is None else choice.second
    if others and others[0].login[1] is not None:
        yield "password: left out; give it with --password prompt, env:NAME or file:PATH"
